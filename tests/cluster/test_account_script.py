"""cluster/account.sh on an account in a file: run again after failures, its rights, what it refuses and deletes."""

import copy
import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import jmespath
import pytest
import yaml

from study.plan.prices import prices
from tests.cluster.account_stub import ACCOUNT, NEW

ROOT = Path(__file__).parents[2]
FILE = ROOT / "cluster" / "aws.yaml"
BUCKET = f"interplay-{ACCOUNT}-us-west-2"
#: A run is 40 calls of `aws`, 2 s.
pytestmark = pytest.mark.slow


class Account:
    """A laptop with its account of AWS."""

    def __init__(self, folder, **state):
        self.folder, self.path = folder, folder / "state.json"
        self.address = "echo 192.0.2.7"
        self.state = copy.deepcopy(NEW) | state

    @property
    def state(self):
        return json.loads(self.path.read_text())

    @state.setter
    def state(self, value):
        self.path.write_text(json.dumps(value))

    def run(self, *arguments, file=FILE, **variables):
        libraries = Path(jmespath.__file__).parents[1]
        stub = ROOT / "tests" / "cluster" / "account_stub.py"
        for name, body in (
            ("aws", f'PYTHONPATH={libraries} exec {sys.executable} -S {stub} {self.path} "$@"'),
            ("curl", self.address),
        ):
            (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.folder / name).chmod(0o755)
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "AWS_DEFAULT_REGION": "us-west-2", **variables,
        }  # fmt: skip
        return subprocess.run(
            ["bash", ROOT / "cluster" / "account.sh", *arguments, file], env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def changes(self):
        return [
            verb for _, verb, _ in self.state["calls"] if not verb.startswith(("get-", "describe-", "head-"))
        ]


@pytest.fixture
def account(tmp_path):
    return Account(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An account after a first run without the right to make a group, and a second run with it."""
    account = Account(tmp_path_factory.mktemp("account"), denied=["create-security-group"])
    first = account.run()
    half = account.state
    account.state = half | {"denied": []}
    return account, first, half, account.run()


def test_a_second_run_completes_what_a_first_one_could_not(made):
    account, first, half, second = made
    assert first.returncode == 1
    assert "create-security-group" in first.stderr
    assert "AccessDenied" in first.stderr
    assert second.returncode == 0, second.stderr
    assert list(half["buckets"]) == list(account.state["buckets"]) == [BUCKET]
    assert second.stdout.splitlines()[-1] == (
        f"region: us-west-2  image: ami-0123456789abcdef0  bucket: {BUCKET}  security_group: sg-0123456789abcdef0"
    )


@pytest.mark.parametrize(
    "verb",
    [
        "put-bucket-tagging", "put-role-policy", "create-instance-profile", "add-role-to-instance-profile",
        "authorize-security-group-ingress",
    ],
)  # fmt: skip
def test_any_step_may_fail_first(account, made, verb):
    account.state = account.state | {"denied": [verb]}
    assert account.run().returncode == 1
    account.state = account.state | {"denied": []}
    assert account.run().returncode == 0
    whole = made[0].state
    assert {**account.state, "calls": []} == {**whole, "calls": []}


def test_the_bucket_drops_killed_uploads_and_takes_tls_only(made):
    bucket = made[0].state["buckets"][BUCKET]
    (rule,) = bucket["lifecycle"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert rule["Status"] == "Enabled"
    (statement,) = bucket["policy"]["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]


def is_allowed(statements, action, resource, **context):
    """Whether IAM allows an action on one resource: some statement matches in action, resource and all conditions."""

    def values(entry):
        return entry if isinstance(entry, list) else [entry]

    def matches(statement):
        if "NotResource" in statement:
            is_on = not any(fnmatchcase(resource, pattern) for pattern in values(statement["NotResource"]))
        else:
            is_on = any(fnmatchcase(resource, pattern) for pattern in values(statement["Resource"]))
        conditions = statement.get("Condition", {})
        assert set(conditions) <= {"StringEquals", "ArnEquals"}
        return (
            action in values(statement["Action"])
            and is_on
            and all(
                context.get(key) in values(wanted)
                for terms in conditions.values()
                for key, wanted in terms.items()
            )
        )

    assert {statement["Effect"] for statement in statements} == {"Allow"}
    return any(matches(statement) for statement in statements)


def may_run(
    statements, machine="g6.xlarge", profile="interplay-worker", cluster="interplay", region="us-west-2"
):
    """Whether all resources of a RunInstances are allowed; the keys exist for the instance only."""
    own = f"arn:aws:ec2:{region}:{ACCOUNT}"
    others = [f"arn:aws:ec2:{region}::image/ami-1"] + [
        f"{own}:{kind}/x-1"
        for kind in ("volume", "subnet", "security-group", "network-interface", "key-pair")
    ]
    context = {
        "ec2:InstanceType": machine,
        "ec2:InstanceProfile": f"arn:aws:iam::{ACCOUNT}:instance-profile/{profile}",
        "aws:RequestTag/ray-cluster-name": cluster,
    }
    return is_allowed(statements, "ec2:RunInstances", f"{own}:instance/*", **context) and all(
        is_allowed(statements, "ec2:RunInstances", other) for other in others
    )


def test_the_head_starts_the_files_workers_only_and_terminates_its_cluster_only(made):
    role = made[0].state["roles"]["interplay-head"]
    statements = [statement for policy in role["policies"].values() for statement in policy["Statement"]]
    metadata = yaml.safe_load(FILE.read_text())["metadata"]
    pools = {name: pool["type"] for name, pool in metadata.items() if isinstance(pool, dict)}
    assert len(pools) == 5
    assert {machine for machine in prices().types if may_run(statements, machine)} == set(pools.values())
    assert not may_run(statements, profile="interplay-head")
    assert not may_run(statements, cluster="another")
    assert not may_run(statements, region="us-east-1")
    instance = f"arn:aws:ec2:us-west-2:{ACCOUNT}:instance/i-1"
    for action in ("ec2:TerminateInstances", "ec2:CreateTags"):
        for cluster, allowed in (("interplay", True), ("another", False), (None, False)):
            tag = {"ec2:ResourceTag/ray-cluster-name": cluster}
            assert is_allowed(statements, action, instance, **tag) == allowed
    assert is_allowed(statements, "ec2:CreateTags", instance, **{"ec2:CreateAction": "RunInstances"})
    assert is_allowed(statements, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/interplay-worker")
    assert not is_allowed(statements, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/interplay-head")
    worker = made[0].state["roles"]["interplay-worker"]["policies"]
    assert list(worker) == ["bucket-us-west-2"]


def test_a_changed_type_and_name_take_effect_by_another_run(account):
    """Two clusters of one account have rights of their own."""
    file = account.folder / "mine.yaml"
    text = FILE.read_text().replace("&spot g6.xlarge", "&spot g5.2xlarge")
    file.write_text(text.replace("cluster_name: interplay", "cluster_name: mine"))
    assert account.run().returncode == 0
    assert account.run(file=file).returncode == 0
    policies = account.state["roles"]["interplay-head"]["policies"]
    assert set(policies) == {"bucket-us-west-2", "machines-us-west-2-interplay", "machines-us-west-2-mine"}
    mine = policies["machines-us-west-2-mine"]["Statement"]
    assert may_run(mine, "g5.2xlarge", cluster="mine")
    assert not may_run(policies["machines-us-west-2-interplay"]["Statement"], "g5.2xlarge", cluster="mine")


@pytest.mark.parametrize("address", ["exit 6", "echo '<html>'", "echo 2001:db8::1"])
def test_an_address_that_is_not_known_is_refused_before_anything_is_made(account, address):
    account.address = address
    done = account.run()
    assert done.returncode == 2
    assert "INTERPLAY_SSH_FROM" in done.stderr
    assert account.state["calls"] == []


@pytest.mark.parametrize("source", ["0.0.0.0/0", "::/0", "192.0.2.7", "my-laptop"])
def test_a_range_that_opens_the_port_to_all_or_is_none_is_refused(account, source):
    assert account.run(INTERPLAY_SSH_FROM=source).returncode == 2
    assert account.state["calls"] == []


def test_ssh_is_open_to_a_range_and_a_changed_one_is_added_and_named(account):
    account.address = "exit 6"
    for source in ("203.0.113.0/24", "2001:db8::/64"):
        done = account.run(INTERPLAY_SSH_FROM=source)
        assert done.returncode == 0, done.stderr
    (group,) = account.state["groups"].values()
    assert [rule["rule"] for rule in group["IpPermissions"]] == [
        f"IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group['GroupId']}}}]",
        "IpProtocol=tcp,FromPort=22,ToPort=22,IpRanges=[{CidrIp=203.0.113.0/24}]",
        "IpProtocol=tcp,FromPort=22,ToPort=22,Ipv6Ranges=[{CidrIpv6=2001:db8::/64}]",
    ]
    (line,) = (line for line in done.stdout.splitlines() if "revoke-security-group-ingress" in line)
    assert "CidrIp=203.0.113.0/24" in line
    assert "2001:db8" not in line.partition("aws ec2")[2]


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ({"foreign": [BUCKET]}, "INTERPLAY_BUCKET=NAME"),
        ({"buckets": {BUCKET: {}}, "objects": ["thesis.pdf"]}, "INTERPLAY_BUCKET=NAME"),
        ({"vpc": None}, "aws ec2 create-default-vpc"),
        ({"roles": {"interplay-head": {"policies": {}}}}, "write another name into metadata"),
        ({"profiles": {"interplay-worker": {"Roles": []}}}, "write another name into metadata"),
        ({"groups": {"sg-2": {"GroupId": "sg-2", "Tags": [], "IpPermissions": []}}}, "Delete or rename it"),
    ],
)
def test_what_is_not_its_own_is_refused_with_the_fix_and_stays(account, state, fix):
    account.state = account.state | state
    done = account.run()
    assert done.returncode == 2
    assert fix in done.stderr
    assert done.stderr.count("\n") == 1
    deleted = account.run("--delete")
    assert (deleted.returncode, deleted.stderr) == (0, "")
    for kind, things in state.items():
        if kind in ("roles", "profiles", "groups", "buckets"):
            assert account.state[kind] == things


def test_another_vpc_and_bucket_may_be_named(account):
    account.state = account.state | {"vpc": None, "foreign": [BUCKET]}
    done = account.run(INTERPLAY_VPC="vpc-2", INTERPLAY_BUCKET="mine")
    assert done.returncode == 0, done.stderr
    assert list(account.state["buckets"]) == ["mine"]
    (made,) = (options for _, verb, options in account.state["calls"] if verb == "create-security-group")
    assert made["vpc-id"] == "vpc-2"


def test_delete_removes_all_that_was_made_and_may_be_repeated(account):
    assert account.run().returncode == 0
    account.state = account.state | {"objects": ["interplay/a/rows/1.json"]}
    kept = account.run("--delete")
    assert kept.returncode == 0, kept.stderr
    assert "Total Objects: 1" in kept.stdout
    assert f"aws s3 rb --force s3://{BUCKET}" in kept.stdout
    assert list(account.state["buckets"]) == [BUCKET]
    account.state = account.state | {"objects": []}
    for _ in range(2):
        done = account.run("--delete")
        assert (done.returncode, done.stderr) == (0, "")
        assert not any(account.state[kind] for kind in ("buckets", "roles", "profiles", "groups"))


def test_delete_is_refused_while_machines_exist(account):
    assert account.run().returncode == 0
    before = account.state | {"instances": ["i-1", "i-2"], "calls": []}
    account.state = before
    done = account.run("--delete")
    assert done.returncode == 2
    assert "i-1, i-2" in done.stderr
    assert "ray down" in done.stderr
    assert account.state | {"calls": []} == before
    assert account.changes() == []


def test_delete_keeps_the_rights_of_another_region(account):
    assert account.run().returncode == 0
    assert account.run(AWS_DEFAULT_REGION="eu-west-1").returncode == 0
    done = account.run("--delete", AWS_DEFAULT_REGION="eu-west-1")
    assert done.returncode == 0, done.stderr
    assert {name: sorted(role["policies"]) for name, role in account.state["roles"].items()} == {
        "interplay-head": ["bucket-us-west-2", "machines-us-west-2-interplay"],
        "interplay-worker": ["bucket-us-west-2"],
    }
    assert list(account.state["buckets"]) == [BUCKET]


def pool_lines(done):
    return {line.split(":")[0].strip(): line for line in done.stdout.splitlines() if line.startswith("  ")}


def test_offers_and_quotas_are_shown_per_pool(account):
    zones = ["us-west-2a", "us-west-2b"]
    account.state = account.state | {
        "offers": [
            ("m7i.xlarge", 4, zones),
            ("m7i.2xlarge", 8, zones),
            ("g6.xlarge", 4, zones),
            ("p4de.24xlarge", 96, []),
        ],
        "quotas": {"L-1216C47A": 16.0, "L-34B43A08": 31.0, "L-3819A6DF": 32.0, "L-417A185B": 0.0},
    }
    lines = pool_lines(account.run())
    assert list(lines) == ["head", "on_demand", "spot", "h100", "wide", "cpu"]
    assert "zones us-west-2a,us-west-2b; needs 4 virtual CPUs; quota L-1216C47A: 16" in lines["head"]
    assert "TOO FEW" not in lines["head"]
    assert "quota L-DB2E81BA: unknown (NoSuchResourceException)" in lines["on_demand"]
    assert "needs 32 virtual CPUs; quota L-3819A6DF: 32" in lines["spot"]
    assert "TOO FEW" not in lines["spot"]
    assert "NONE" in lines["h100"]
    assert "needs 96 virtual CPUs; quota L-417A185B: 0, TOO FEW" in lines["wide"]
    assert "needs 32 virtual CPUs; quota L-34B43A08: 31, TOO FEW" in lines["cpu"]


def test_missing_rights_to_look_are_no_error(account):
    account.state = account.state | {
        "denied": ["get-service-quota", "describe-instance-types", "describe-instance-type-offerings"]
    }
    done = account.run()
    assert (done.returncode, done.stderr) == (0, "")
    lines = pool_lines(done)
    assert len(lines) == 6
    assert all("zones unknown (AccessDenied)" in line for line in lines.values())
    assert all("unknown (AccessDenied)" in line.partition("quota")[2] for line in lines.values())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cluster_name: interplay", 'cluster_name: "my cluster"'),
        ("cluster_name: interplay", "cluster_name: my cluster"),
        ("  spot:\n", "  spot: &spot_type\n"),
        ("  spot:\n", '  "spot":\n'),
        ("  cpu:\n", "  big: {max_workers: 1, node_config: {InstanceType: p5.48xlarge}}\n  cpu:\n"),
    ],
)
def test_what_it_would_read_wrongly_is_refused_before_anything_is_made(account, old, new):
    """Otherwise the head would lack the right to start a type that the file has."""
    file = account.folder / "other.yaml"
    text = FILE.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    done = account.run(file=file)
    assert (done.returncode, account.state["calls"]) == (2, [])


def test_quotes_and_comments_are_no_part_of_a_name(account):
    file = account.folder / "other.yaml"
    file.write_text(FILE.read_text().replace("cluster_name: interplay", 'cluster_name: "deep"   # ours'))
    assert account.run(file=file).returncode == 0
    assert "machines-us-west-2-deep" in account.state["roles"]["interplay-head"]["policies"]


def test_a_capacity_block_and_a_file_that_cannot_be_read(account):
    file = account.folder / "block.yaml"
    text = FILE.read_text()
    key = "      InstanceType: *h100\n"
    assert key in text
    file.write_text(text.replace(key, key + "      InstanceMarketOptions: {MarketType: capacity-block}\n"))
    assert "Capacity Block" in pool_lines(account.run(file=file))["h100"]
    account.state = copy.deepcopy(NEW)
    file.write_text(text.replace(key, ""))
    done = account.run(file=file)
    assert done.returncode == 2
    assert "h100 ?" in done.stderr
    assert account.state["calls"] == []
