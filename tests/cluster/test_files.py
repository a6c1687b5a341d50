"""The files of cluster/ are valid for the programs that read them, and agree with one another."""

import copy
import gzip
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from interplay.cluster import connection
from interplay.cluster.check import check
from interplay.cluster.cluster_file import TOKEN
from interplay.cluster.prices import MONTH_HOURS
from interplay.cluster.submit import ASK_DOLLARS
from study.plan.prices import money, prices
from study.spec.study import load_spec
from study.workers.spot_notice import METADATA, is_noticed

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
SCRIPTS = sorted(path.name for path in CLUSTER.iterdir() if path.suffix in (".sh", ".sbatch"))
#: Keys that both files for `ray up` share.
SHARED = (
    "file_mounts",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "setup_commands",
    "worker_start_ray_commands",
)


def load(name):
    return yaml.safe_load((CLUSTER / name).read_text())


def commands(config):
    return [
        *config["setup_commands"],
        *config["head_start_ray_commands"],
        *config["worker_start_ray_commands"],
    ]


@pytest.fixture(scope="module")
def rayjob():
    documents = list(yaml.safe_load_all((CLUSTER / "kuberay" / "rayjob.yaml").read_text()))
    return next(document for document in documents if document["kind"] == "RayJob")


@pytest.fixture(scope="module")
def pools():
    """The groups as the ConfigMap beside the RayJob describes them to a study."""
    documents = list(yaml.safe_load_all((CLUSTER / "kuberay" / "rayjob.yaml").read_text()))
    (config,) = (document for document in documents if document["kind"] == "ConfigMap")
    return yaml.safe_load(config["data"]["cluster.yaml"])


def strict(schema):
    """The schema under strict field validation of an API server: unknown fields are errors."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
        result["properties"] = {name: strict(field) for name, field in schema["properties"].items()}
    return result


@pytest.fixture(scope="module")
def kuberay():
    """A validator of a RayJob by KubeRay's own schema."""
    archive = Path(__file__).parent / "crds" / "rayjob.json.gz"
    document = json.loads(gzip.decompress(archive.read_bytes()))
    assert document["tag"] == "v1.7.0"
    schema = strict(document["schema"])
    # The schema leaves metadata open; an API server checks it.
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["aws.yaml", "onprem.yaml"])
def test_ray_takes_the_file(name):
    config = load(name)
    validate_config(prepare_config(copy.deepcopy(config)))
    # Ray's schema accepts `metadata`, and no other unknown key.
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuts"):
        validate_config(prepare_config({**config, "idle_timeout_minuts": 5}))


def test_what_a_user_edits_comes_first_and_is_used():
    """`metadata` is the first key, and each of its values is referred to below, or read by the machines' scripts."""
    for name, by_scripts in (("aws.yaml", {"bucket"}), ("onprem.yaml", {"storage"})):
        text = (CLUSTER / name).read_text()
        assert next(iter(load(name))) == "metadata"
        anchors, uses = set(re.findall(r" &(\w+)", text)), set(re.findall(r"[ [{]\*(\w+)", text))
        assert anchors == uses, name
        for key in by_scripts:
            assert re.search(rf"metadata\[['\"]{key}['\"]\]", (CLUSTER / "setup_node.sh").read_text())


def test_pools_are_resources_and_labels_of_one_name():
    config = load("aws.yaml")
    types = config["available_node_types"]
    head = types.pop(config["head_node_type"])
    assert head["resources"] == {"CPU": 0, "head": 1}
    assert set(types) == {"spot", "on_demand", "h100", "wide", "cpu"}
    for name, kind in types.items():
        assert kind["resources"] == {name: 1}
        assert kind["labels"] == {"pool": name}
        assert kind["min_workers"] == 0
    assert sum(kind["max_workers"] for kind in types.values()) >= config["max_workers"]
    spot = {name for name, kind in types.items() if "InstanceMarketOptions" in kind["node_config"]}
    assert spot == {"spot", "cpu"}


def test_machines_on_aws_are_closed_and_named():
    config = load("aws.yaml")
    for kind in config["available_node_types"].values():
        node = kind["node_config"]
        assert node["MetadataOptions"] == {"HttpTokens": "required"}
        assert node["ImageId"] == config["metadata"]["image"]
        assert node["SecurityGroupIds"] == [config["metadata"]["security_group"]]
        assert node["BlockDeviceMappings"][0]["Ebs"]["VolumeType"] == "gp3"
        assert node["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    head = config["available_node_types"]["head"]["node_config"]["IamInstanceProfile"]
    workers = [
        kind["node_config"]["IamInstanceProfile"]
        for name, kind in config["available_node_types"].items()
        if name != "head"
    ]
    assert all(worker == workers[0] != head for worker in workers)


@pytest.mark.parametrize("name", ["aws.yaml", "onprem.yaml"])
def test_ray_is_started_with_a_token_on_loopback(name):
    config = load(name)
    starts = [command for command in commands(config) if "ray start" in command]
    assert len(starts) == 2
    for command in starts:
        assert (
            command.index("environment.sh")
            < command.index("RAY_AUTH_MODE=token")
            < command.index("ray start")
        )
        assert "--disable-usage-stats" in command
    (head,) = (command for command in starts if "--head" in command)
    assert "--dashboard-host=127.0.0.1" in head
    assert config["file_mounts"][TOKEN] == f"~/.ray/{config['cluster_name']}-token"


@pytest.mark.parametrize("name", ["aws.yaml", "onprem.yaml"])
def test_mlflow_is_started_before_ray_and_waited_for_after(name):
    """Its start makes its password, which drivers inherit from `ray start`."""
    steps = load(name)["head_start_ray_commands"]
    words = ("ray stop", "start_mlflow.sh --no-wait", "ray start", "start_mlflow.sh")
    assert len(steps) == len(words)
    assert all(word in step for word, step in zip(words, steps, strict=True))


def test_the_two_ways_of_ray_up_differ_only_in_their_machines_and_tokens():
    aws, onprem = load("aws.yaml"), load("onprem.yaml")
    assert aws["file_mounts"].pop(TOKEN) != onprem["file_mounts"].pop(TOKEN)
    assert {key: aws[key] for key in SHARED} == {key: onprem[key] for key in SHARED}
    # Verbs without a cluster file use that of AWS.
    assert str(connection.TOKEN) == f"~/.ray/{aws['cluster_name']}-token"


def test_everything_mounted_is_there_and_no_folder_is_mounted_whole():
    """Ray reads all mounted files at each `ray up`, including those that git ignores (ray#20878)."""
    mounts = load("aws.yaml")["file_mounts"]
    sources = {source for source in mounts.values() if not source.startswith("~")}
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    read_by_pip = {project["readme"], *project["license-files"], "pyproject.toml", "constraints.txt"}
    assert {"study", "trainables", "analysis", "cluster", *read_by_pip} <= sources
    assert "." not in sources
    for source in sources:
        assert mounts[f"~/interplay/{source}"] == source
    for command in commands(load("aws.yaml")):
        for script in re.findall(r"~/interplay/(cluster/\w+\.sh)", command):
            assert (ROOT / script).is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_bash(name):
    subprocess.run(["bash", "-n", CLUSTER / name], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "-x", CLUSTER / name], capture_output=True, text=True, check=False)
    assert not done.stdout


@pytest.mark.slow
def test_kuberay_takes_the_job(rayjob, kuberay):
    kuberay.validate(rayjob)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("spec",), {"backofLimit": 1}),
        (("spec", "rayClusterSpec", "authOptions"), {"mode": "tokens"}),
        (("spec", "rayClusterSpec", "autoscalerOptions"), {"version": "v3"}),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0), {"groupNam": "spot"}),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0), {"maxReplicas": "8"}),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0), {"images": "a"}),
    ],
)
def test_kuberay_refuses_a_mistake_in_the_job(rayjob, kuberay, path, wrong):
    broken = copy.deepcopy(rayjob)
    target = broken
    for key in path:
        target = target[key]
    target.update(wrong)
    (error,) = kuberay.iter_errors(broken)
    assert next(iter(wrong)) in [*error.path, *re.findall(r"'(\w+)'", error.message)]


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """The folder with the files of the ConfigMap, as pods mount it."""
    documents = list(yaml.safe_load_all((CLUSTER / "kuberay" / "rayjob.yaml").read_text()))
    (config,) = (document for document in documents if document["kind"] == "ConfigMap")
    folder = tmp_path_factory.mktemp("interplay")
    for name, text in config["data"].items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (1, 0), (2, 0), (130, 130), (137, 137)])
def test_kuberay_tries_a_job_again_only_if_its_driver_was_ended(rayjob, mounted, tmp_path, status, ends):
    """Every other status than 0 makes KubeRay build a new cluster."""
    assert rayjob["spec"]["backoffLimit"] > 0
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\nexit {status}\n')
    (tmp_path / "python").chmod(0o755)
    entrypoint = rayjob["spec"]["entrypoint"].replace("/etc/interplay", str(mounted))
    done = subprocess.run(
        entrypoint,
        shell=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ends
    assert (tmp_path / "called").read_text() == "-m interplay run levine2020 resources.pool=wide\n"
    assert (f"status {status}," in done.stdout) == (status in (1, 2))


def test_a_mistake_in_the_spec_of_a_job_on_kubernetes_builds_one_cluster(rayjob, mounted):
    entrypoint = rayjob["spec"]["entrypoint"].replace("/etc/interplay", str(mounted))
    done = subprocess.run(
        f"{entrypoint} training.stepz=7", shell=True, cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "stepz" in done.stderr
    assert "status 2," in done.stdout


@pytest.mark.slow
def test_a_drained_pod_gives_its_cells_the_notice(rayjob, mounted):
    """The real script, on the port that workers are told; it ends once no process has a cell's title."""
    for group in rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (address,) = (one["value"] for one in container["env"] if one["name"] == METADATA)
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert pod["terminationGracePeriodSeconds"] >= 90 + 30
        assert {"name": "pools", "mountPath": "/etc/interplay"} in container["volumeMounts"]
    assert not is_noticed(address)
    if os.geteuid():
        pytest.skip("needs root, for processes that are those of one pod alone")
    script = [sys.executable, *(word.replace("/etc/interplay", str(mounted)) for word in command[1:])]
    # A process with the title that Ray gives that of a trial, for a few seconds.
    pod = f"(exec -a ray::ImplicitFunc.train sleep 6) & {shlex.join(script)}"
    unshare = ["unshare", "-p", "-f", "--mount-proc", "--kill-child", "bash", "-c", pod]
    drain = subprocess.Popen(unshare, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not is_noticed(address):
        assert drain.poll() is None
        assert time.monotonic() < deadline
    # Nothing but its end tells it to stop before the 90 s.
    assert drain.wait(60) == 0
    assert not is_noticed(address)


def test_the_groups_on_kubernetes_and_their_description_agree(rayjob, pools):
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    described = pools["available_node_types"]
    assert [group["groupName"] for group in groups] == list(described)
    for group in groups:
        name = group["groupName"]
        asked = {resource: int(number) for resource, number in group["resources"].items()}
        assert described[name]["resources"] == asked
        assert described[name]["max_workers"] == group["maxReplicas"]
        assert asked[name] == 1
        assert group["labels"] == {"pool": name}
        # KubeRay reads these names in any case; a pool of such a name would overwrite the number.
        assert name.lower() not in ("cpu", "gpu", "memory")
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert (int(limits["cpu"]), int(limits.get("nvidia.com/gpu", 0))) == (
            asked["CPU"],
            asked.get("GPU", 0),
        )
    assert pools["max_workers"] == sum(group["maxReplicas"] for group in groups)
    images = {
        container["image"]
        for group in itertools.chain([rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]], groups)
        for container in group["template"]["spec"]["containers"]
    }
    assert len(images) == 1


def test_a_file_that_never_ran_is_marked():
    first = (CLUSTER / "kuberay" / "rayjob.yaml").read_text().splitlines()[0]
    assert first.startswith("# Checked against the schema of KubeRay v1.7.0 and never run.")


def test_the_job_has_the_pinned_ray(rayjob):
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert rayjob["spec"]["rayClusterSpec"]["rayVersion"] == pins["ray"]


def test_the_prices_on_the_page_are_current(tmp_path):
    file = tmp_path / "aws.yaml"
    file.write_text((CLUSTER / "aws.yaml").read_text())
    command = [sys.executable, "-m", "interplay", "cluster", "check", file, "levine2020"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    (block,) = re.findall(r"```text\n(pool .*?)```", (CLUSTER / "README.md").read_text(), re.S)
    assert block.strip() in shown


def test_the_cost_of_a_mistake_on_the_page_is_current():
    text = (CLUSTER / "README.md").read_text()
    rows = dict(
        re.findall(
            r"^\| (.+?) \| (.+) \|$",
            text.partition("### What a mistake costs")[2].partition("\n## ")[0],
            re.M,
        )
    )
    checked = check(str(CLUSTER / "aws.yaml"))
    head, pools = checked.head_hour, {pool.name: pool for pool in checked.pools}
    idle = load("aws.yaml")["idle_timeout_minutes"] / 60
    resources = load_spec("quickstart").resources
    expected = {
        "a study that waits for machines that AWS has not": (
            f"about {money(head)} per hour", f"({resources.capacity_timeout_seconds:.0f})",
        ),
        "a cluster that you forget": (
            f"about {money(24 * head)} per day", f"about {money(MONTH_HOURS * head)} per month",
            f"after {60 * idle:.0f} minutes", f"about {money(idle * pools['wide'].hour)} for one of `wide`",
            f"about {money(idle * pools['h100'].hour)} for one of `h100`",
        ),
        "a cell that fails": (f"more attempts ({resources.max_retries})",),
        "a study that is larger than you thought": (f"above ${ASK_DOLLARS:g} ",),
    }  # fmt: skip
    for mistake, words in expected.items():
        assert not [word for word in words if word not in rows[mistake]], mistake
    # The comment about the head's disk, too.
    (disk,) = checked.file.disks("head")
    size, fast = disk["VolumeSize"], disk["Throughput"]
    table = prices().gp3
    free, price = table["Throughput"].free, table["Throughput"].month
    month = size * table["VolumeSize"].month, (fast - free) * price
    assert (
        "${:.0f} per month, used or not, and ${:.0f} for its throughput".format(*month)
        in (CLUSTER / "aws.yaml").read_text()
    )


def test_an_image_is_built_from_what_a_machine_is_set_up_from():
    """.dockerignore admits the files that `ray up` mounts, and the image has the pinned Ray."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    mounts = load("aws.yaml")["file_mounts"].values()
    assert allowed == {source for source in mounts if not source.startswith("~")}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert f"FROM rayproject/ray:{pins['ray']}-py311" in (CLUSTER / "Dockerfile").read_text()
