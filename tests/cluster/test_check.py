"""`interplay cluster check`: a correct file passes, and each mistake is reported with its place and fix."""

import contextlib
import copy
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from interplay import cli
from interplay.cluster.check import check
from interplay.cluster.prices import PROCESS_SHARE, detected_resources
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.prices import gpu_price, money, prices
from study.spec.devices import DEVICES
from study.spec.study import load_spec
from tests.cluster.files import ROOT, aws
from tests.named import refused

HEAD, SPOT = "available_node_types.head", "available_node_types.spot"


@pytest.fixture(autouse=True)
def laptop(tmp_path, monkeypatch):
    """A home with the cluster's token and credentials, and the working folder at the top of the repository."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    (tmp_path / ".ray").mkdir()
    for name in ("interplay-token", "interplay-onprem-token"):
        (tmp_path / ".ray" / name).write_text("f" * 64)
        (tmp_path / ".ray" / name).chmod(0o600)
    return tmp_path


def check_changed(laptop, old, new, **values):
    path = aws(laptop, **values)
    text = path.read_text()
    assert old in text, f"the shipped file has no {old!r} any more"
    path.write_text(text.replace(old, new, 1))
    return check(str(path))


def test_the_shipped_file_passes_after_its_edits(laptop):
    checked = check(str(aws(laptop)))
    assert checked.file.errors == []
    assert checked.file.warnings == []
    assert {pool.name for pool in checked.pools} == {"spot", "on_demand", "h100", "wide", "cpu"}
    assert all(pool.hour for pool in checked.pools)


def test_only_placeholders_are_errors_of_the_shipped_files():
    checked = check("cluster/aws.yaml")
    assert {found.path for found in checked.file.errors} == {
        "metadata.image",
        "metadata.bucket",
        "metadata.security_group",
    }
    lines = (ROOT / "cluster/aws.yaml").read_text().splitlines()
    for found in checked.file.errors:
        assert found.path.split(".")[1] in lines[found.line - 1]
    places = {found.path for found in check("cluster/onprem.yaml").file.errors}
    assert places
    assert all(place.startswith(("metadata.", "provider.", "auth.")) for place in places)


TYPE = "      InstanceType: "
SPOT_MARKET = "      InstanceMarketOptions: {MarketType: spot}\n"
DISK = "      BlockDeviceMappings:\n        - {DeviceName: /dev/sda1, Ebs: {"
#: By rule: replaced text, its replacement, the path of the error and what its fix names.
BROKEN = {
    # EC2's, by botocore: a value of a list, a key, a type of value.
    "instance type": ("spot: {type: &spot g6.xlarge", "spot: {type: &spot g6.xlagre",
                      SPOT + ".node_config.InstanceType", "`g6.xlarge`"),
    "market": (TYPE + "*spot\n" + SPOT_MARKET, TYPE + "*spot\n" + SPOT_MARKET.replace("spot", "Spot"),
               SPOT + ".node_config.InstanceMarketOptions.MarketType", "`spot`"),
    "key of EC2": ("{HttpTokens: required}", "{HttpToken: required}",
                   HEAD + ".node_config.MetadataOptions.HttpToken", "`HttpTokens`"),
    "type of EC2": ("VolumeSize: 400", "VolumeSize: '150'",
                    HEAD + ".node_config.BlockDeviceMappings[0].Ebs.VolumeSize", "int"),
    # Ray's, by its schema: a key, a type of value, what belongs together.
    "key of Ray": ("idle_timeout_minutes:", "idle_timeout_minute:", "idle_timeout_minute", "`idle_timeout_minutes`"),
    "key of a type": ("    labels: {pool: spot}", "    label: {pool: spot}", SPOT + ".label", "`labels`"),
    "type of Ray": ("resources: {spot: 1}", "resources: {spot: one}", SPOT + ".resources.spot", "integer"),
    "no head": ("head_node_type: head", "head_node_type: haed", "", "head_node_type"),
    # What a user edits
    "name of the cluster": ("cluster_name: interplay", "cluster_name: my cluster", "cluster_name", "account.sh"),
    "metadata": ("  bucket:", "  buckets:", "metadata", "`bucket`"),
    "region": ("&region us-west-2", "&region us-wset-2", "provider.region", "`us-west-2`"),
    "zone": ("us-west-2a,", "us-east-1a,", "provider.availability_zone", "us-west-2a,us-west-2b"),
    # Money
    "trials on the head": ("{CPU: 0, head: 1}", "{head: 1}", HEAD + ".resources", "CPU: 0"),
    "small head": ("&head m7i.xlarge", "&head t3.micro", HEAD + ".node_config.InstanceType", "4"),
    "spot head": (TYPE + "*head\n", TYPE + "*head\n" + SPOT_MARKET, HEAD + ".node_config.InstanceMarketOptions", ""),
    "no disk": (DISK + "VolumeSize: 400,", DISK + "Iops: 3000,", HEAD + ".node_config.BlockDeviceMappings",
                "VolumeSize: 160"),
    "small disk": ("VolumeSize: 400", "VolumeSize: 20", HEAD + ".node_config.BlockDeviceMappings", "VolumeSize: 160"),
    # Access
    "no image": ("      ImageId: *image\n", "", HEAD + ".node_config", "ImageId"),
    "no profile": ("      IamInstanceProfile: {Name: *head_profile}\n", "", HEAD + ".node_config",
                   "IamInstanceProfile"),
    "Ray's own group": ("      SecurityGroupIds: [*security_group]\n", "", HEAD + ".node_config", "SecurityGroupIds"),
    "metadata service": ("      MetadataOptions: {HttpTokens: required}\n", "", HEAD + ".node_config",
                         "HttpTokens: required"),
    "open dashboard": ("--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0", "head_start_ray_commands[2]",
                       "--dashboard-host=127.0.0.1"),
    "no authentication": ("export RAY_AUTH_MODE=token;", "", "head_start_ray_commands[2]",
                          "export RAY_AUTH_MODE=token;"),
    "Ray's own start": ("    ray start --disable-usage-stats --address", "    echo --address",
                        "worker_start_ray_commands", ""),
    "keys in the file": ("  region: *region", "  region: *region\n  aws_credentials: {aws_access_key_id: x}",
                         "provider", "AWS_PROFILE"),
    "key in a command": ("initialization_commands: []",
                         "initialization_commands: [export AWS_SECRET_ACCESS_KEY=abc]", "initialization_commands", ""),
    "no token mounted": ("  ~/.ray/auth_token: ~/.ray/interplay-token\n", "", "file_mounts",
                         "~/.ray/auth_token: ~/.ray/interplay-token"),
    "missing source": ("study: study", "study: studdy", "file_mounts.~/interplay/study", "studdy"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_mistake_is_reported_with_place_and_fix(laptop, kind):
    old, new, path, fix = BROKEN[kind]
    checked = check_changed(laptop, old, new)
    told = [found for found in checked.file.errors if found.path == path]
    assert told, f"nothing at {path}, but {[(found.path, found.message) for found in checked.file.errors]}"
    assert fix in " ".join(found.message for found in told)
    if key := re.search(r"(\w+)$", path):
        lines = (laptop / "aws.yaml").read_text().splitlines()
        assert all(key[0] in lines[found.line - 1] for found in told)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("image", value) for value in ("ubuntu-24.04", "ami-00000000000000000")),
        *(("bucket", value) for value in ("s3://mine", "My_Bucket", "a..b", "192.168.5.4")),
        ("security_group", "sg-12"),
        ("head_profile", "<yours>"),
    ],
)
def test_edited_values_have_a_form(laptop, key, value):
    errors = check(str(aws(laptop, **{key: value}))).file.errors
    assert [error.path for error in errors] == [f"metadata.{key}"], (
        "once, and not for each machine that refers to it"
    )


def test_all_mistakes_are_reported_at_once(laptop):
    path = aws(laptop, image="x", bucket="X")
    path.write_text(path.read_text().replace("HttpTokens: required", "HttpTokens: optional"))
    places = {found.path for found in check(str(path)).file.errors}
    assert {"metadata.image", "metadata.bucket"} < places
    assert sum("node_config" in place for place in places) == 2, "the head's own and that of all workers"


def places(value, path=()):
    yield path
    for key, item in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(item, (*path, key))


@pytest.mark.slow
def test_no_value_of_a_wrong_type_is_an_internal_error(laptop):
    path = aws(laptop)
    document = yaml.safe_load(path.read_text())
    checked_parts = (
        "provider",
        "auth",
        "available_node_types",
        "file_mounts",
        "rsync_filter",
        "head_start_ray_commands",
    )
    others = ("on_demand", "h100", "wide", "cpu")
    junk = itertools.cycle([[], {}, 3, None, [1], True, {"a": 1}])
    count = 0
    for place in places(document):
        if not place or place[0] not in checked_parts or (len(place) > 1 and place[1] in others):
            continue
        broken = copy.deepcopy(document)
        here = broken
        for key in place[:-1]:
            here = here[key]
        here[place[-1]] = next(junk)
        wrong = laptop / "wrong.yaml"
        wrong.write_text(yaml.safe_dump(broken))
        with contextlib.suppress(SpecError):
            check(str(wrong))
        count += 1
    assert count > 50


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("provider:\n\ttype: aws", ["line 2"]),
        ("", ["empty"]),
        ("- 1", ["list"]),
        ("a:\n  b: 1\n  on: 2", ["line 3", "`on`"]),
        ("a:\n  b: 1\n  b: 2", ["line 3", "`b`"]),
        ("provider: {type: gcp}", ["aws and local"]),
    ],
)
def test_a_file_that_cannot_be_read_is_one_paragraph(tmp_path, text, named):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with refused(str(path), *named):
        check(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"no cluster file absent\.yaml"):
        check("absent.yaml")


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_token_that_others_can_read_is_an_error(laptop, mode, told):
    (laptop / ".ray/interplay-token").chmod(mode)
    errors = check(str(aws(laptop))).file.errors
    assert [found.path for found in errors] == ["file_mounts.~/.ray/auth_token"] * told
    if told:
        assert f"{mode:04o}" in errors[0].message
        assert "interplay cluster token" in errors[0].message


def test_the_token_of_another_cluster_is_a_warning(laptop):
    checked = check_changed(laptop, "cluster_name: interplay", "cluster_name: other")
    assert checked.file.errors == []
    (found,) = checked.file.warnings
    assert found.path == "file_mounts.~/.ray/auth_token"
    assert "~/.ray/other-token" in found.message
    mine = laptop / "mine"
    mine.write_text("f" * 64)
    mine.chmod(0o600)
    checked = check_changed(laptop, "~/.ray/interplay-token", "~/mine")
    assert (checked.file.errors, checked.file.warnings) == ([], [])


def test_a_missing_token_is_an_error_with_the_command_that_makes_it(laptop):
    (laptop / ".ray/interplay-token").unlink()
    path = aws(laptop)
    (found,) = check(str(path)).file.errors
    assert f"interplay cluster token {path}" in found.message


def test_a_type_without_a_price_has_none_in_the_table(laptop):
    checked = check_changed(laptop, "&spot g6.xlarge", "&spot g4dn.xlarge")
    assert not checked.file.errors
    assert next(pool for pool in checked.pools if pool.name == "spot").hour is None


@pytest.mark.parametrize(
    ("line", "most"), [("    max_workers: *spot_max\n", 15), ("\nmax_workers: *machines", 2)]
)
def test_a_pool_without_a_bound_has_that_of_all_workers(laptop, line, most):
    checked = check_changed(laptop, line, "")
    assert not checked.file.errors
    assert next(pool for pool in checked.pools if pool.name == "spot").most == most


@pytest.mark.parametrize(
    ("old", "new", "path", "fix"),
    [
        ("", "", None, None),
        ("head_ip:", "head_ips:", "", "`head_ip`"),
        ("  storage:", "  storag:", "metadata", "`storage`"),
        ("user: &user 10.0.0.1", "user: &user CHANGE-ME", "metadata.user", "CHANGE-ME"),
        ("key: &key ", "key: &key /absent", "auth.ssh_private_key", "/absent"),
        ("--dashboard-host=127.0.0.1", "--dashboard-host=::", "head_start_ray_commands[2]", "127.0.0.1"),
    ],
)
def test_a_file_for_machines_by_ssh(laptop, old, new, path, fix):
    text = (ROOT / "cluster/onprem.yaml").read_text().replace("[CHANGE-ME]", "[10.0.0.2]")
    key = laptop / "key"
    key.write_text("")
    text = text.replace("CHANGE-ME", "10.0.0.1").replace("~/.ssh/id_ed25519", str(key))
    assert old in text
    (laptop / "onprem.yaml").write_text(text.replace(old, new, 1))
    errors = check(str(laptop / "onprem.yaml")).file.errors
    assert bool(errors) == bool(fix)
    if fix:
        assert fix in " ".join(found.message for found in errors if found.path == path)


def onprem(laptop, more="", workers="10.0.0.2, 10.0.0.3"):
    """The findings about the file for machines by SSH with its edits and further lines."""
    text = (ROOT / "cluster/onprem.yaml").read_text().replace("[CHANGE-ME]", f"[{workers}]")
    (laptop / "key").write_text("")
    text = text.replace("CHANGE-ME", "10.0.0.1").replace("~/.ssh/id_ed25519", str(laptop / "key"))
    (laptop / "onprem.yaml").write_text(text + more)
    return check(str(laptop / "onprem.yaml")).file


@pytest.mark.parametrize(
    "keys",
    [
        "min_workers: 2",
        "min_workers: 0\nmax_workers: 2\nupscaling_speed: 2.0",
        "min_workers: 1\nidle_timeout_minutes: 5\ndocker: {}",
    ],
)
def test_rays_own_keys_for_own_machines_are_accepted(laptop, keys):
    file = onprem(laptop, keys + "\n")
    assert (file.errors, file.warnings) == ([], [])


@pytest.mark.parametrize(
    ("keys", "errors", "warnings"),
    [
        ("min_workers: 3", [], ["min_workers"]),
        ("min_workers: 1\nmax_workers: 5", [], ["max_workers"]),
        ("min_workers: 1\nmax_workers: 1", [], ["max_workers"]),
        ("max_workers: 1", ["max_workers"], []),
        ("min_workers: 2\nmax_workers: 1", ["max_workers"], []),
        ("min_workers: -1", ["min_workers"], []),
        ("min_workers: two", ["min_workers"], []),
        ("min_worker: 2", ["min_worker"], []),
    ],
)
def test_counts_of_own_machines_follow_rays_rules(laptop, keys, errors, warnings):
    file = onprem(laptop, keys + "\n")
    # What Ray itself refuses has no place.
    assert [found.path for found in file.errors if found.path] == errors
    assert [found.path for found in file.warnings] == warnings


@pytest.mark.parametrize(
    ("workers", "index"), [("10.0.0.2, 10.0.0.1", 1), ("10.0.0.1", 0), ("10.0.0.2, 10.0.0.3, 10.0.0.2", 2)]
)
def test_an_address_of_own_machines_occurs_once(laptop, workers, index):
    (error,) = onprem(laptop, workers=workers).errors
    # By the anchor of `metadata`, whose line it has.
    assert error.path == f"provider.worker_ips[{index}]"


@pytest.mark.parametrize(("keys", "errors"), [("max_workers: 4", 0), ("min_workers: 1", 1)])
def test_a_coordinator_needs_the_number_of_workers(laptop, keys, errors):
    path = laptop / "onprem.yaml"
    onprem(laptop)
    lines = path.read_text().replace("  head_ip: *head\n", "  coordinator_address: 10.0.0.9:8899\n")
    path.write_text(lines.replace("  worker_ips: *workers\n", "") + keys + "\n")
    found = check(str(path)).file.errors
    assert ["max_workers" in error.message for error in found] == [True] * errors


def test_a_count_of_workers_belongs_to_their_type(laptop):
    (error,) = check_changed(
        laptop, "idle_timeout_minutes:", "min_workers: 2\nidle_timeout_minutes:"
    ).file.errors
    assert error.path == "min_workers"
    assert "available_node_types" in error.message
    assert "did you mean" not in error.message


LEGACY = {
    "aws": (
        "cluster_name: old\nmin_workers: 1\ninitial_workers: 1\nprovider: {type: aws, region: eu-west-1}\n"
        "head_node: {InstanceType: m5.large}\nworker_nodes: {InstanceType: g5.xlarge}\n",
        ["line 3", "head_node", "worker_nodes", "initial_workers", "available_node_types", "head_node_type"],
    ),
    "a few keys": (
        "cluster_name: old\nautoscaling_mode: aggressive\nprovider: {type: aws, region: us-west-2}\n"
        "target_utilization_fraction: 0.8\nhead_node: {}\n",
        ["line 2", "upscaling_speed", "idle_timeout_minutes", "available_node_types"],
    ),
    "own machines": (
        "cluster_name: old\nprovider: {type: local, head_ip: a, worker_ips: [b]}\nhead_node: {}\nworker_nodes: {}\n",
        ["line 3", "head_ip", "worker_ips"],
    ),
    "another cloud": ("cluster_name: a\nprovider: {type: gcp}\nhead_node: {}\n", ["line 3", "head_node"]),
    "the new form with an old key": (
        "cluster_name: a\nprovider: {type: aws, region: us-west-2}\navailable_node_types: {}\n"
        "target_utilization_fraction: 0.5\n",
        ["line 4", "Remove", "idle_timeout_minutes"],
    ),
}


@pytest.mark.parametrize("case", LEGACY)
def test_the_form_before_ray_1_is_one_finding_with_what_replaces_it(tmp_path, case):
    text, words = LEGACY[case]
    (tmp_path / "file.yaml").write_text(text)
    with refused("Ray 1.0", *words):
        check(str(tmp_path / "file.yaml"))


OTHERS = {
    "RayCluster": ("apiVersion: ray.io/v1\nkind: RayCluster\nspec: {}\n", "Kubernetes manifest (RayCluster)"),
    "documents": (
        "---\napiVersion: v1\nkind: ConfigMap\ndata: {kind: x}\n---\nkind: RayJob\napiVersion: ray.io/v1\n",
        "Kubernetes manifest (ConfigMap, RayJob)",
    ),
    "template": ("apiVersion: ray.io/v1\nkind: RayService\nmetadata: {{ .Values.a }}\n", "(RayService)"),
    "ours": (
        (ROOT / "cluster/kuberay/rayjob.yaml").read_text(),
        "kubectl apply -f cluster/kuberay/rayjob.yaml",
    ),
    "SkyPilot": ((ROOT / "cluster/skypilot.yaml").read_text(), "sky jobs launch cluster/skypilot.yaml"),
    "small SkyPilot": ("resources: {cloud: aws}\nrun: echo\n", "sky jobs launch"),
    "Compose": ("services:\n  web: {image: nginx}\n", "Docker Compose"),
    "Slurm": ((ROOT / "cluster/slurm.sbatch").read_text(), "sbatch cluster/slurm.sbatch"),
    "study": ((ROOT / "tests/study/small.yaml").read_text(), "a study"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_file_of_another_tool_is_named_with_what_to_use(tmp_path, case):
    text, words = OTHERS[case]
    (tmp_path / "file.yaml").write_text(text)
    with refused(words):
        check(str(tmp_path / "file.yaml"))


def test_library_defect_ray_checks_a_cluster_file_only_by_private_functions():
    """`ray up` has no dry run and the SDK no check (ray 2.60), so `check` calls what `ray up` calls."""
    from ray.autoscaler import sdk
    from ray.autoscaler._private.util import prepare_config, validate_config
    from ray.scripts.scripts import up

    assert not [name for name in dir(sdk) if "valid" in name or "check" in name]
    assert not [option.name for option in up.params if "dry" in option.name or "check" in option.name]
    with pytest.raises(Exception, match="head_ip"):
        validate_config(prepare_config({"cluster_name": "a", "provider": {"type": "local"}}))


def test_a_study_is_priced_on_each_pool_that_can_train_it(laptop):
    path = str(aws(laptop))
    checked = check(path, "quickstart", ["resources.pool=cpu"])
    (option,) = checked.study.options
    cpu = next(pool for pool in checked.pools if pool.name == "cpu")
    assert option.pool == "cpu"
    assert option.machines == cpu.most
    assert option.dollars == pytest.approx(option.hours * (cpu.most * cpu.hour + checked.head_hour))
    assert not checked.file.warnings


def with_block(laptop, more=True):
    """The file with the commented lines for a Capacity Block of `h100`."""
    path = aws(laptop)
    before, _, after = path.read_text().partition("      InstanceType: *h100\n")
    lines = after.replace("cr-...", "cr-0123456789abcdef0").replace("subnet-...", "subnet-0123456789abcdef0")
    shown = re.sub(r"(?m)^      # (?=[A-Z]\w+: )", "      ", lines.partition("  # No EFA")[0])
    if not more:
        shown = re.sub(r"(?m)^ +CapacityReservationSpecification.*\n", "", shown)
    path.write_text(
        before + "      InstanceType: *h100\n" + shown + "  # No EFA" + lines.partition("  # No EFA")[2]
    )
    return str(path)


def test_a_capacity_block_has_no_price_on_demand(laptop, capsys, monkeypatch):
    path = with_block(laptop)
    checked = check(path, "one-gpu-night")
    assert (checked.file.errors, checked.file.warnings) == ([], [])
    node = checked.file.mapping("available_node_types", "h100", "node_config")
    assert node["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": "cr-0123456789abcdef0"
    }
    assert node["SubnetIds"] == ["subnet-0123456789abcdef0"]
    h100 = next(pool for pool in checked.pools if pool.name == "h100")
    assert (h100.market, h100.hour) == ("capacity-block", None)
    assert [option.dollars for option in checked.study.options if option.pool == "h100"] == [None]
    assert [note for note in checked.file.notes if "h100" in note and "Capacity Block" in note]
    monkeypatch.setattr("sys.argv", ["interplay", "cluster", "check", path])
    with pytest.raises(SystemExit):
        cli.main()
    out = capsys.readouterr().out
    assert re.search(r"(?m)^h100 .*paid in advance *$", out)
    place = "available_node_types.h100.node_config.InstanceMarketOptions"
    assert [error.path for error in check(with_block(laptop, more=False)).file.errors] == [place]
    unedited = Path(with_block(laptop))
    text = unedited.read_text().replace("cr-0123456789abcdef0", "cr-...")
    unedited.write_text(text.replace("subnet-0123456789abcdef0", "subnet-..."))
    assert [error.path for error in check(str(unedited)).file.errors] == [place, place]


def test_prices_of_another_region_are_named_so(laptop, capsys, monkeypatch):
    for region, named in (("us-west-2", True), (prices().region, False)):
        path = aws(laptop)
        path.write_text(path.read_text().replace("us-west-2", region))
        monkeypatch.setattr("sys.argv", ["interplay", "cluster", "check", str(path)])
        with pytest.raises(SystemExit):
            cli.main()
        out = " ".join(capsys.readouterr().out.split())
        assert f"Prices: of {prices().region}" in out
        assert ("us-west-2" in out.partition("Prices: ")[2]) == named


def test_the_price_of_a_machine_has_its_disk_and_its_address(laptop):
    table = prices()
    checked = check(str(aws(laptop)))
    month = 400 * 0.08 + (500 - 125) * 0.04
    assert checked.head_hour == pytest.approx(table.types["m7i.xlarge"].hour + month / 730 + 0.005)
    fast = check_changed(laptop, "VolumeSize: 400,", "VolumeSize: 400, Iops: 5000,")
    assert fast.head_hour - checked.head_hour == pytest.approx(2000 * 0.005 / 730)
    spot = next(pool for pool in checked.pools if pool.name == "spot")
    month = 150 * 0.08 + (250 - 125) * 0.04
    assert spot.hour == pytest.approx(table.types["g6.xlarge"].hour * table.spot + month / 730 + 0.005)


def test_tags_for_cost_reports_are_accepted(laptop):
    path = aws(laptop)
    path.write_text(path.read_text().replace("# TagSpecifications", "TagSpecifications"))
    file = check(str(path)).file
    assert (file.errors, file.warnings) == ([], [])
    for name in file.mapping("available_node_types"):
        (tags,) = file.get("available_node_types", name, "node_config", "TagSpecifications")
        assert tags == {"ResourceType": "instance", "Tags": [{"Key": "project", "Value": "interplay"}]}


@pytest.mark.parametrize("study", ["one-gpu-night", "levine2020"])
def test_the_price_of_the_devices_alone_is_that_of_the_plan(laptop, study):
    found = check(str(aws(laptop)), study).study
    planned = make_plan(load_spec(study)).cost
    assert found.plan.cost == pytest.approx(planned)
    # Head, disks and idle devices.
    assert planned < min(option.dollars for option in found.options) < 1.2 * planned


def test_a_gpu_costs_its_share_of_the_cheapest_machine_on_demand():
    assert gpu_price("l4-24gb").hour == prices().types["g6.xlarge"].hour
    assert gpu_price("a100-80gb").hour == prices().types["p4de.24xlarge"].hour / 8
    assert gpu_price("cpu") is None
    assert gpu_price("rtx4090-24gb") is None


def test_the_price_of_a_study_grows_with_its_work(laptop):
    path = str(aws(laptop))
    one = check(path, "quickstart", ["resources.pool=cpu"]).study.options[0]
    two = check(path, "quickstart", ["resources.pool=cpu", "training.steps=12000"]).study.options[0]
    assert two.dollars > 5 * one.dollars


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resources.pool=large"], "cpu, h100, on_demand, spot, wide"),
        (["resources.device=h200-141gb"], "A100, H100"),
        (["resources.device=a100-40gb"], "a100-40gb"),
        (["resources.cpus_per_trial=500"], "500 CPUs"),
        (["resources.device=l4-24gb", "resources.pool=wide"], "with wide and accelerator_type:L4"),
        (
            [
                "resources.pool=cpu",
                "training.optimizer=adamw",
                "resources.tensor_parallel=16",
                "frontier.heads=16",
                "frontier.widths={1: [64]}",
            ],
            "1 groups of 16 devices, each in one machine",
        ),
    ],
)
def test_a_study_that_does_not_fit_the_machines_is_refused(laptop, overrides, message):
    errors = check(str(aws(laptop)), "quickstart", overrides).file.errors
    assert message in " ".join(found.message for found in errors)


def test_machines_missing_in_the_table_are_a_note(laptop):
    """Their pool exists, and the head will find their resources."""
    path = aws(laptop)
    path.write_text(path.read_text().replace("&cpu m7i.2xlarge", "&cpu m7i-flex.xlarge"))
    checked = check(str(path), "quickstart", ["resources.pool=cpu"])
    assert not checked.file.errors
    assert checked.study is None
    assert any("no m7i-flex.xlarge" in note for note in checked.file.notes)
    assert check(str(path), "quickstart", ["resources.pool=wide"]).study is not None


def test_more_slots_than_machines_hold_is_a_warning(laptop):
    checked = check(str(aws(laptop)), "quickstart", ["resources.pool=cpu", "resources.slots=500"])
    assert not checked.file.errors
    assert any("`resources.slots` of quickstart is 500" in found.message for found in checked.file.warnings)


def test_json_is_one_document_and_the_status_says_whether_it_passes(laptop, capsys, monkeypatch):
    for bucket, status in (("my-bucket", 0), ("My_Bucket", 2)):
        monkeypatch.setattr(
            "sys.argv", ["interplay", "cluster", "check", str(aws(laptop, bucket=bucket)), "--json"]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        document = json.loads(capsys.readouterr().out)
        assert (ended.value.code or 0) == status
        assert set(document) == {"file", "errors", "warnings", "notes", "price"}
        assert bool(document["errors"]) == bool(status)
        assert all(set(found) == {"path", "line", "message"} for found in document["errors"])
        assert document["price"]["head_dollars_per_hour"] > 0


def test_the_text_has_one_line_per_finding_and_the_source_of_the_prices(laptop, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["interplay", "cluster", "check", str(aws(laptop, image="x")), "levine2020"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert ended.value.code == 2
    assert re.search(r"(?m)^error: line \d+, metadata\.image: .*ami-.*\.$", out)
    assert prices().page in out
    assert "assumed" in out
    assert "about $" in out


def test_the_keys_of_a_spec_are_overridden_by_arguments(laptop, capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["interplay", "cluster", "check", str(aws(laptop)), *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr()

    status, printed = run("quickstart", "resources.pool=cpu", "training.seeds=1", "--json")
    assert status == 0
    study = json.loads(printed.out)["price"]["study"]
    assert [option["pool"] for option in study["options"]] == ["cpu"]
    assert study["cells"] < check(str(aws(laptop)), "quickstart").study.plan.cell_count
    status, printed = run("resources.pool=cpu")
    assert status == 2
    assert "`resources.pool=cpu`" in printed.err


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (0, "$0.00"), (0.004, "1 cent"), (0.2167, "$0.22"), (1.94, "$1.94"), (27.5, "$28"), (104.4, "$100"),
        (38_912.7, "$39,000"), (995, "$1,000"), (9.996, "$10.00"),
    ],
)  # fmt: skip
def test_money_has_two_digits(dollars, text):
    assert money(dollars) == text


def test_the_table_agrees_with_ec2_and_with_ray():
    """By moto's copy of EC2's data and Ray's own functions."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Gpus

    for name, machine in prices().types.items():
        real = INSTANCE_TYPES[name]
        assert machine.cpus == real["VCpuInfo"]["DefaultVCpus"]
        assert machine.memory_gib == real["MemoryInfo"]["SizeInMiB"] // 1024
        assert machine.gpus == (Gpus.get_ec2_instance_num_accelerators(name, INSTANCE_TYPES) or 0)
        offered = {key for key in detected_resources(machine) if key.startswith("accelerator_type:")}
        kind = Gpus.get_ec2_instance_accelerator_type(name, INSTANCE_TYPES)
        assert offered == ({f"accelerator_type:{kind}"} if kind else set())
        assert DEVICES[machine.device].is_gpu == bool(machine.gpus)
        if machine.gpus:
            memory = real["GpuInfo"]["Gpus"][0]["MemoryInfo"]["SizeInMiB"] * 2**20
            assert memory == pytest.approx(DEVICES[machine.device].memory, rel=0.1)


def test_the_share_of_memory_for_processes_is_rays():
    from ray._private.ray_constants import DEFAULT_OBJECT_STORE_MEMORY_PROPORTION

    assert pytest.approx(1 - DEFAULT_OBJECT_STORE_MEMORY_PROPORTION) == PROCESS_SHARE


@pytest.mark.parametrize(
    ("library", "arguments"),
    [("botocore", ["cluster", "check", "cluster/aws.yaml"]), ("aiohttp", ["submit", "quickstart", "--yes"])],
)
def test_a_missing_library_is_an_error_with_the_command_that_installs_it(library, arguments):
    program = f"import sys; sys.modules[{library!r}] = None; import interplay.cli; interplay.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    said, _, install = done.stderr.partition("install it: ")
    assert library in said
    # In the root of a clone, with the pip of this environment and the versions of the clone.
    pip, *arguments = shlex.split(install)
    assert arguments == ["install", "-c", "constraints.txt", "-e", ".[cluster]"]
    assert (ROOT / pip).is_file()


def test_the_command_starts_without_the_libraries_of_a_cluster():
    heavy = {"ray", "boto3", "botocore", "jsonschema", "torch", "mlflow"}
    program = f"import interplay.cli, sys; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    assert done.stdout.strip() == ""
