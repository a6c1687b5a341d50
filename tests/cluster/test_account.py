"""cluster/account.sh, which prepares an AWS account, run unchanged but for the name of the image against moto."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clouds import amazon

pytestmark = [pytest.mark.extended]
#: Seconds until a script counts as hanging. Each of its dozen calls of `aws` starts Python: 30 s on quiet cores.
LIMIT = 900
README = Path(__file__).parents[2] / "cluster" / "README.md"


@pytest.fixture(scope="module")
def endpoint():
    """EC2, IAM, S3, STS and SSM by moto, on loopback."""
    with amazon() as address:
        yield f"http://{address}"


@pytest.fixture(scope="module")
def laptop(endpoint, tmp_path_factory):
    """A shell whose AWS command line reaches only moto."""
    aws = shutil.which("aws")
    if not aws:
        pytest.skip("the AWS command line is not installed: apt-get install awscli")
    folder = tmp_path_factory.mktemp("laptop")
    # Debian's is older than AWS_ENDPOINT_URL. An address of one's own is not asked for either: that is no part of AWS.
    for name, body in (("aws", f'exec {aws} --endpoint-url "$ENDPOINT" "$@"'), ("curl", "echo 192.0.2.7")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
    }

    def run(script, **more):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], env={**environment, **more}, capture_output=True, text=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Path of the script, for an account of moto."""
    text = (README.parent / "account.sh").read_text()
    # moto serves a fixed list of public parameters, without this one: the question is asked here for one it has.
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    assert name in text
    path = tmp_path_factory.mktemp("script") / "account.sh"
    path.write_text(
        text.replace(name, "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64")
    )
    shutil.copy(README.parent / "aws.yaml", path.parent)
    return path


@pytest.fixture(scope="module")
def shown(laptop, script):
    """What the first run prints, and a second one."""
    return [laptop(f"bash {script}", AWS_DEFAULT_REGION="us-west-2").splitlines() for _ in range(2)]


@pytest.fixture(scope="module")
def account(shown):
    """The account after both runs: the values of the last line."""
    return dict(re.findall(r"(\w+): (\S+)", shown[-1][-1]))


@pytest.fixture
def client(endpoint, account):
    import boto3

    def make(service):
        return boto3.client(
            service, endpoint_url=endpoint, region_name=account["region"],
            aws_access_key_id="nobody", aws_secret_access_key="nothing",
        )  # fmt: skip

    return make


def test_the_script_prints_what_the_file_wants_to_know(account):
    assert account["region"] == "us-west-2"
    assert re.fullmatch(r"ami-[0-9a-f]+", account["image"])
    assert re.fullmatch(r"sg-[0-9a-f]+", account["security_group"])


def test_a_second_run_makes_nothing_new(shown, client):
    assert shown[0] == shown[1]
    # moto has no quotas of EC2.
    assert sum("quota L-" in line and "unknown (NoSuchResource" in line for line in shown[1]) == 6
    zones = [re.findall(r"zones (us-west-2[a-d,]+\S*);", line) for line in shown[1] if line.startswith("  ")]
    assert sum(map(bool, zones)) >= 4
    assert len(client("s3").list_buckets()["Buckets"]) == 1


def test_the_bucket_drops_killed_uploads_and_takes_tls_only(account, client):
    s3, name = client("s3"), account["bucket"]
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )


def test_the_bucket_is_closed(account, client):
    closed = client("s3").get_public_access_block(Bucket=account["bucket"])["PublicAccessBlockConfiguration"]
    assert set(closed.values()) == {True}
    assert len(closed) == 4


def test_the_group_lets_in_its_machines_and_one_address(account, client):
    (group,) = client("ec2").describe_security_groups(GroupIds=[account["security_group"]])["SecurityGroups"]
    inside, outside = sorted(group["IpPermissions"], key=lambda rule: rule["IpProtocol"])
    assert (inside["IpProtocol"], inside["IpRanges"]) == ("-1", [])
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [account["security_group"]]
    assert (outside["IpProtocol"], outside["FromPort"], outside["ToPort"]) == ("tcp", 22, 22)
    assert [entry["CidrIp"] for entry in outside["IpRanges"]] == ["192.0.2.7/32"]


def test_only_the_head_may_start_machines_and_both_may_use_the_bucket(account, client):
    iam = client("iam")

    def allowed(role):
        actions, terms = {}, {}
        for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
            if isinstance(document, str):
                document = json.loads(document)
            for statement in document["Statement"]:
                for action in (
                    [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
                ):
                    actions[action] = statement.get("Resource")
                    terms.setdefault(action, []).append(statement.get("Condition"))
        return actions, terms

    for role in ("interplay-head", "interplay-worker"):
        (held,) = iam.get_instance_profile(InstanceProfileName=role)["InstanceProfile"]["Roles"]
        assert held["RoleName"] == role
        may, _ = allowed(role)
        assert may["s3:ListBucket"] == f"arn:aws:s3:::{account['bucket']}"
        assert may["s3:PutObject"] == f"arn:aws:s3:::{account['bucket']}/*"
    (head, terms), (worker, _) = allowed("interplay-head"), allowed("interplay-worker")
    assert {action.split(":")[0] for action in worker} == {"s3"}
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:CreateTags", "ec2:DescribeInstances"} <= set(
        head
    )
    assert head["iam:PassRole"].endswith(":role/interplay-worker")
    # It may not terminate or tag other machines of the account.
    tagged = {"StringEquals": {"ec2:ResourceTag/ray-cluster-name": "interplay"}}
    assert terms["ec2:TerminateInstances"] == [tagged]
    assert terms["ec2:CreateTags"] == [{"StringEquals": {"ec2:CreateAction": "RunInstances"}}, tagged]


def command(start):
    """The command of README.md that begins so."""
    (line,) = re.findall(rf"^\$ ({re.escape(start)}.*)$", README.read_text(), re.M)
    return line


def test_what_runs_is_listed_and_the_bucket_emptied(account, client, laptop):
    """The two commands that check that nothing costs money any more."""
    listed, emptied = command("aws ec2 describe-instances"), command("aws s3 rm")
    # Without a region, or with another one, it would print nothing while machines run.
    elsewhere = {"AWS_DEFAULT_REGION": "eu-central-1"}
    listed = listed.replace("REGION", account["region"])
    assert json.loads(laptop(listed, **elsewhere)) == []
    tags = {"ResourceType": "instance", "Tags": [{"Key": "ray-cluster-name", "Value": "interplay"}]}
    client("ec2").run_instances(ImageId=account["image"], MinCount=1, MaxCount=1, TagSpecifications=[tags])
    assert len(json.loads(laptop(listed, **elsewhere))) == 1

    # moto denies the bucket's files by its policy, whose condition it does not read.
    client("s3").delete_bucket_policy(Bucket=account["bucket"])
    client("s3").put_object(
        Bucket=account["bucket"], Key="interplay/interplay/verbs/report.html", Body=b"shown"
    )
    laptop(emptied.replace("BUCKET", account["bucket"]), **elsewhere)
    assert "Contents" not in client("s3").list_objects_v2(Bucket=account["bucket"])


def test_the_budget_and_the_commands_for_a_capacity_block_are_complete(account, client, laptop):
    laptop(command("aws budgets create-budget"), AWS_DEFAULT_REGION="us-east-1")
    number = client("sts").get_caller_identity()["Account"]
    (budget,) = client("budgets").describe_budgets(AccountId=number)["Budgets"]
    assert budget["BudgetLimit"] == {"Amount": "100", "Unit": "USD"}
    for start in ("aws ec2 describe-capacity-block-offerings", "aws ec2 purchase-capacity-block"):
        # Arguments are checked, and nothing is sent: moto has no blocks.
        line = re.sub(r" --(query|output) ('[^']*'|\S+)", "", command(start))
        laptop(f"{line} --generate-cli-skeleton output")


def test_delete_is_refused_by_machines_and_then_removes_all(account, client, laptop, script):
    delete = f"bash {script} --delete"
    ec2, iam = client("ec2"), client("iam")
    running = [
        instance["InstanceId"]
        for reservation in ec2.describe_instances()["Reservations"]
        for instance in reservation["Instances"]
    ]
    assert len(running) == 1
    with pytest.raises(AssertionError, match=running[0]):
        laptop(delete, AWS_DEFAULT_REGION="us-west-2")
    assert ec2.describe_security_groups(GroupIds=[account["security_group"]])
    ec2.terminate_instances(InstanceIds=running)
    for _ in range(2):
        laptop(delete, AWS_DEFAULT_REGION="us-west-2")
    assert client("s3").list_buckets()["Buckets"] == []
    assert [role["RoleName"] for role in iam.list_roles()["Roles"] if "interplay" in role["RoleName"]] == []
    assert iam.list_instance_profiles()["InstanceProfiles"] == []
    groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["interplay"]}])
    assert groups["SecurityGroups"] == []
