"""The whole way of a user on AWS: `ray up`, studies that lose machines, drivers and servers, `ray down`.

One simulated cloud and one cluster for all tests of this file, which come in the order of a user's day. EC2, IAM, S3
and the metadata service are moto's, the machines are namespaces; Ray, its autoscaler, sshd, rsync, MLflow and the
studies are real. No command can reach anything outside (see test_universe.py).
"""

import csv
import re
import subprocess
import sys
import time

import pytest
import yaml

from tests.cluster.simulated import account
from tests.cluster.simulated.cluster import DASHBOARD, MLFLOW, TOKEN, Cluster
from tests.cluster.simulated.isolation import NotPrivateError, namespace, require_private
from tests.cluster.simulated.simulation import LAPTOP, Laptop, copy_repository, kill
from tests.cluster.simulated.universe import REGION
from tests.environment import environment_without

pytestmark = [pytest.mark.extended, pytest.mark.timeout(3600)]

FILE = "cluster/aws.yaml"
BUCKET = "ada-studies"
#: One rank takes a whole machine of this type, so ranks and machines are as many.
MACHINE = "m7i.xlarge"
#: Batch times context.
TOKENS_OF_A_STEP = 8 * 32
SPEC = """
name: {name}
data: {{kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 4000,
  validation_sequences: 64}}
frontier: {{depths: {depths}, heads: 2, budgets: {budgets}, tolerance: 0.15}}
training: {{steps: {steps}, batch: 8, context: 32, lr: {{rule: width, base: 0.4, cap: 0.04}}, seeds: {seeds}}}
resources: {{device: cpu, pool: {pool}, slots: {slots}, cpus_per_trial: 4, data_parallel: {ranks},
  checkpoint_every_seconds: 1, capacity_timeout_seconds: 15}}
"""


def spec(name, *, steps, seeds=1, depths=(1, 2), budgets=(6200,), pool="cpu", slots="auto", ranks="auto"):
    return SPEC.format(
        name=name, steps=steps, seeds=seeds, depths=list(depths), budgets=list(budgets), pool=pool, slots=slots,
        ranks=ranks,
    )  # fmt: skip


#: A study of six cells, long enough for three machines to come while they last; 3,500 steps once were not.
LOST = spec("lost", steps=6000, seeds=3)
#: A cell of two ranks, which need two machines.
GANG = spec("gang", steps=60, depths=(1,), ranks=2)
#: Two and two cells, so that there are rows before the driver is killed and a checkpoint to go on from. With 2,500
#: steps the third sometimes ended while its checkpoint was looked for.
KILLED = spec("killed", steps=6000, seeds=2, slots=2)
#: Two cells that go on for longer than their machine's disk takes to fill, 20 s: with 3,000 steps both had sometimes
#: ended when it took a few.
FULL = spec("full", steps=18_000, depths=(2,), seeds=2)
#: A cell that without a notice saves nothing while its first machine lasts.
NOTICED = spec("noticed", steps=100_000, depths=(2,)).replace("every_seconds: 1,", "every_seconds: 1200,")
#: Most of the disk at once, then for 20 s without a pause what becomes free: a checkpoint that is complete leaves the
#: room of its copy to the next one, which follows within milliseconds. Ten times a second missed all of these once.
CRAM = (
    "fallocate -l $(($(df --output=avail -B1 / | tail -1) - 16777216)) /var/filler; "
    "timeout 20 sh -c 'while :; do cat /dev/zero >> /var/last; done' 2> /dev/null; df /"
)
SCARCE = spec("scarce", steps=20, depths=(1,), pool="on_demand")


def edited(text, ids):
    """The cluster file as a user edits it: the first key only, and a shorter idle timeout."""
    for name, value in {
        "image": ids["image"],
        "bucket": BUCKET,
        "security_group": ids["security_group"],
    }.items():
        head, _, rest = text.partition(f"\n  {name}: ")
        assert rest, name
        text = f"{head}\n  {name}: {rest.replace('CHANGE-ME', value, 1)}"
    for pool in ("cpu", "on_demand"):
        old = yaml.safe_load(text)["metadata"][pool]["type"]
        text = text.replace(f"type: &{pool} {old}", f"type: &{pool} {MACHINE}")
    text = text.replace("idle_timeout_minutes: 15", "idle_timeout_minutes: 1")
    values = yaml.safe_load(text)
    assert values["available_node_types"]["cpu"]["node_config"]["InstanceType"] == MACHINE
    assert values["available_node_types"]["on_demand"]["node_config"]["InstanceType"] == MACHINE
    assert values["idle_timeout_minutes"] == 1
    assert "CHANGE-ME" not in str(values)
    return text


@pytest.fixture(scope="module")
def laptop(simulation):
    one = Laptop(simulation)
    one.clone()
    ids = one.python(account.open_account, BUCKET, ["interplay-head", "interplay-worker"], REGION)
    one.write(FILE, edited(one.path(FILE).read_text(), ids))
    for text in (LOST, GANG, KILLED, FULL, SCARCE, NOTICED):
        one.write(f"{yaml.safe_load(text)['name']}.yaml", text)
    return one


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Losses by cell of two of the studies, trained on this machine without a cluster while the cloud starts."""
    folder = tmp_path_factory.mktemp("alone") / "repository"
    copy_repository(folder)
    kept = environment_without("RAY_", "MLFLOW_", "INTERPLAY_", "AWS_")
    for name, text in (("gang", GANG), ("lost", LOST)):
        (folder / f"{name}.yaml").write_text(text)
    # One after the other: two starts of Ray at once exceed Ray's own time limit.
    script = " && ".join(
        f"{sys.executable} -m interplay run {name}.yaml resources.pool=any resources.slots=2 "
        "resources.cpus_per_trial=1"
        for name in ("gang", "lost")
    )
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            env={**kept, "HOME": str(folder.parent), "PYTHONPATH": str(folder)},
            stdout=log,
            stderr=log,
        )

    def losses(name):
        assert started.wait(2000) == 0, (folder / "log").read_text()
        with (folder / "results" / name / "runs.csv").open() as file:
            rows = list(csv.DictReader(file))
        return {f"L{row['depth']}-d{row['width']}-s{row['seed']}": float(row["loss"]) for row in rows}

    yield losses
    kill(started)


@pytest.fixture(scope="module")
def cluster(simulation, laptop, alone):
    """A started cluster, with tunnels to it; asserts the first steps of a user."""
    one = Cluster(simulation, laptop, FILE)
    missing = laptop.run("interplay", "cluster", "check", FILE, ok=False)
    assert missing.returncode == 2
    assert "interplay cluster token" in missing.stdout + missing.stderr
    made = laptop.run("interplay", "cluster", "token", FILE)
    assert one.token not in made.stdout + made.stderr
    checked = laptop.run("interplay", "cluster", "check", FILE)
    assert "error" not in checked.stdout + checked.stderr
    one.up()
    assert [machine.pool for machine in simulation.instances().values()] == ["head"]
    with one.tunnels():
        yield one


@pytest.fixture(scope="module")
def lost(cluster):
    """The first study, submitted and running."""
    with cluster.started_study("lost") as started:
        yield started


# The cluster is up, and its machines boot.


def test_nothing_here_can_leave_the_machine(simulation, lost):
    with pytest.raises(NotPrivateError):
        require_private(namespace())
    networks = {machine.network for machine in simulation.machines().values()}
    assert namespace() not in networks
    connect = "import socket; socket.create_connection(('1.1.1.1', 443), 5)"
    for name in simulation.machines():
        tried = subprocess.run(
            simulation.on(name, sys.executable, "-c", connect), capture_output=True, text=True, check=False
        )
        assert "Network is unreachable" in tried.stderr, name


def test_the_machines_are_what_the_file_says(laptop, cluster):
    (head,) = (one for one in laptop.python(account.instances) if one["tags"]["ray-node-type"] == "head")
    assert (head["type"], head["market"]) == ("m7i.xlarge", "on-demand")
    assert head["profile"].endswith("/interplay-head")
    assert laptop.python(account.groups_open_to_all) == [], "Ray made a group of its own"


def test_only_who_has_the_token_is_answered(simulation, laptop, cluster, lost):
    for path in ("/api/jobs/", "/api/version", "/nodes?view=summary", "/logs"):
        assert laptop.get(DASHBOARD + path)[0] == 401, path
        assert laptop.get(DASHBOARD + path, "Authorization: Bearer " + "0" * 64)[0] == 403, path
    assert laptop.get(f"{DASHBOARD}/api/jobs/", cluster.authorised)[0] == 200
    laptop.write("wrong-token", "0" * 64, mode=0o600)
    entrypoint = {"entrypoint": "touch /tmp/intruder"}
    assert laptop.get(f"{DASHBOARD}/api/jobs/", body=entrypoint)[0] == 401
    # By Ray's own protocol too, on the port of the machines of the cluster.
    (head,) = simulation.instances("head").values()
    ask = ("timeout", "90", "ray", "status", "--address", f"{head.address}:6379")
    assert "Node status" in laptop.run(*ask).stdout
    for wrong in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN_PATH": str(laptop.folder / "wrong-token")}):
        tried = laptop.run(*ask, ok=False, **wrong)
        assert tried.returncode not in (0, 124)
        assert "uthenticat" in tried.stdout + tried.stderr, tried.stderr
        assert "Node status" not in tried.stdout
    assert not (simulation.root(head.name) / "tmp/intruder").exists()
    token = laptop.root / str(laptop.home / TOKEN).lstrip("/")
    assert token.stat().st_mode & 0o777 == 0o600


def test_mlflow_and_the_dashboard_are_for_the_head_alone(simulation, laptop, cluster):
    (head,) = simulation.instances("head").values()
    for port, path in ((5000, "/health"), (8265, "/api/version")):
        assert laptop.get(f"http://127.0.0.1:{port}{path}", cluster.authorised)[0] == 200
        for address in (head.address, head.public):
            assert laptop.get(f"http://{address}:{port}{path}", cluster.authorised)[0] == 0, (port, address)
    assert laptop.get(f"{MLFLOW}/api/2.0/mlflow/experiments/search", "Host: evil.com", body={})[0] == 403


# Six cells on three machines or more, one of which is terminated.


def test_two_studies_at_once_one_a_gang_and_a_machine_is_lost(simulation, laptop, cluster, lost, alone):
    def three():
        # Ended cells have no checkpoint, so the lost machine must have a cell with one.
        return 3 <= len(cluster.training("cpu")) <= len(checkpoints(laptop, "lost"))

    cluster.wait_for(three, "three cells in training, each with a checkpoint", 240)
    victim = cluster.training("cpu")[0]
    laptop.python(account.terminate, victim.name)
    cluster.wait_for(lambda: victim.name not in simulation.machines(), "the power cut", 20)

    before = tunnels(simulation)
    gang = laptop.run("interplay", "submit", "gang.yaml", "--cluster", FILE, timeout=400)
    cluster.wait_for(lambda: tunnels(simulation) <= before, "the tunnel of `interplay submit` to end", 30)
    assert lost.wait(400) == 0, lost.out() + lost.err()

    runs = cluster.runs("lost")
    assert len(runs) == 6
    assert {run["status"] for run in runs} == {"FINISHED"}
    interrupted = [run["tags"] for run in runs if run["tags"].get("interplay.lost_trials")]
    assert len(interrupted) == 1, interrupted
    assert "machine" in interrupted[0]["interplay.lost_trials"]
    assert int(interrupted[0]["interplay.resumed_from"]) > 0
    assert cluster.losses("lost") == alone("lost"), "bit for bit as on one machine, without a cluster"

    places = [one["node_id"] for one in actors(cluster) if one["class_name"] == "Rank"]
    assert len(places) == len(set(places)) == 2, "a rank on each of two machines"
    assert cluster.losses("gang") == alone("gang"), "bit for bit as two ranks on one machine"
    assert "1 cells in" in gang.stdout

    # Temporary files of the study are deleted; its results are on shared storage.
    assert checkpoints(laptop, "lost") == set()
    kept = laptop.python(account.objects, BUCKET, "interplay/lost/")
    assert "interplay/lost/results/report.html" in kept
    assert len({key.split("/")[3] for key in kept if key.startswith("interplay/lost/models/")}) == 6
    assert any(key.endswith("report.html") for key in laptop.python(account.objects, BUCKET, "mlflow/"))


def tunnels(simulation):
    """The processes on the laptop that connect to a cluster."""
    lines = simulation.ask(LAPTOP, "ps", "-eo", "pid,args").splitlines()
    return {line for line in lines if "ssh " in line or "ray dashboard" in line}


def checkpoints(laptop, study):
    """The keys of the cells with a complete checkpoint on S3."""
    keys = laptop.python(account.objects, BUCKET, f"interplay/{study}/checkpoints/")
    return {key.split("/")[3] for key in keys if key.endswith("/complete.json")}


def actors(cluster):
    """Every process of a trial, by Ray's own records: `class_name`, `job_id`, `node_id`."""
    status, answer = cluster.laptop.get(
        f"{DASHBOARD}/api/v0/actors?limit=1000&detail=true", cluster.authorised
    )
    assert status == 200, answer
    return answer["data"]["result"]["result"]


# Other failures.


def test_a_killed_mlflow_comes_back_and_a_killed_driver_costs_what_the_last_checkpoint_lacks(
    simulation, laptop, cluster
):
    (head,) = simulation.instances("head").values()
    with cluster.started_study("killed", "--submission-id", "killed") as first:
        cluster.wait_for(lambda: cluster.training("cpu"), "the first cells", 200)
        simulation.ask(head.name, "pkill", "-KILL", "-f", "uvicorn")
        cluster.wait_for(lambda: laptop.get(f"{MLFLOW}/health")[0] != 200, "MLflow to be gone", 20)
        cluster.wait_for(lambda: "[2/4]" in first.out(), "two rows", 200)
        cluster.wait_for(lambda: checkpoints(laptop, "killed"), "a checkpoint of the third", 100)
        simulation.ask(head.name, "pkill", "-KILL", "-f", "study run killed.yaml")
        assert first.wait(60) == 1
        rows = int(re.findall(r"\[(\d)/4\]", first.out())[-1])
    assert 2 <= rows < 4, first.out()
    assert cluster.job("killed") == "FAILED"
    cluster.wait_for(lambda: laptop.get(f"{MLFLOW}/health")[0] == 200, "MLflow to be back by itself", 200)

    with cluster.started_study("killed") as second:
        assert second.wait(300) == 0, second.out() + second.err()
    assert f"killed: 4 cells, {rows} done" in second.out()
    runs = cluster.runs("killed")
    assert {run["status"] for run in runs} == {"FINISHED"}
    assert len(cluster.losses("killed")) == len(runs) == 4
    assert any(int(run["tags"].get("interplay.resumed_from", 0)) > 0 for run in runs)
    assert all(run["tags"].get("interplay.lost_trials", "") == "" for run in runs)


def test_a_machine_with_a_notice_saves_before_it_is_taken_away(
    simulation, laptop, cluster, record_testsuite_property
):
    with cluster.started_study("noticed") as started:
        cluster.wait_for(lambda: cluster.training("cpu"), "the cell", 200)
        (victim,) = cluster.training("cpu")
        assert checkpoints(laptop, "noticed") == set()
        simulation.notify(victim.address)
        cluster.wait_for(lambda: checkpoints(laptop, "noticed"), "a checkpoint", 100)
        saved = time.monotonic()
        laptop.python(account.terminate, victim.name)
        taken = time.monotonic() - saved
        assert started.wait(700) == 0, started.out() + started.err()
    (run,) = cluster.runs("noticed")
    assert "machine" in run["tags"]["interplay.lost_trials"]
    kept = int(run["tags"]["interplay.resumed_from"])
    assert kept > 0
    # Figures of this run, the second by the time between the save and the end of the machine: without the notice all of
    # both would have been lost.
    record_testsuite_property("steps_kept", kept)
    record_testsuite_property(
        "steps_lost", round(taken * run["metrics"]["tokens_per_second"] / TOKENS_OF_A_STEP)
    )


def test_a_full_disk_and_a_pool_without_machines_are_named_and_the_studies_go_on(simulation, laptop, cluster):
    simulation.refuse("on_demand")
    with cluster.started_study("scarce") as scarce, cluster.started_study("full") as full:

        def two():
            return len(cluster.training("cpu")) == 2 and len(checkpoints(laptop, "full")) == 2

        cluster.wait_for(two, "two cells in training, each with a checkpoint", 200)
        crammed = cluster.training("cpu")[0]
        room = simulation.ask(crammed.name, "sh", "-c", CRAM)
        assert full.wait(300) == 0, full.out() + full.err()
        runs = cluster.runs("full")
        assert len(cluster.losses("full")) == len(runs) == 2
        notes = [run["tags"].get("interplay.notes", "") for run in runs]
        assert sum("is full" in note for note in notes) == 1, (runs, room)
        assert sum(note == "" for note in notes) == 1, notes
        simulation.ask(crammed.name, "rm", "/var/filler", "/var/last")

        said = cluster.wait_for(lambda: "could be started" in scarce.out() and scarce.out(), "the news", 120)
        said = " ".join(said.split())
        assert f"No machine of type on_demand ({MACHINE}) could be started" in said
        assert "resources.pool=NAME" in said
        assert not simulation.instances("on_demand")
        simulation.refuse()
        assert scarce.wait(200) == 0, scarce.out() + scarce.err()
    assert len(cluster.losses("scarce")) == 1


# The end.


def test_no_secret_is_in_a_log_a_spec_a_result_or_mlflow(simulation, laptop, cluster):
    secrets = [cluster.token, laptop.environment["AWS_SECRET_ACCESS_KEY"]]
    looked = 0
    for path, content in cluster.written():
        looked += 1
        if not str(path).endswith("/.ray/auth_token"):
            assert not [path for secret in secrets if secret.encode() in content], path
    assert looked > 100
    assert laptop.python(account.objects_with, BUCKET, secrets) == []
    for name in simulation.instances():
        said = simulation.ask(name, "ps", "-eo", "args")
        assert not [name for secret in secrets if secret in said]


def test_idle_machines_are_given_back_and_down_leaves_none(simulation, laptop, cluster):
    cluster.wait_for(
        lambda: set(simulation.instances()) == set(simulation.instances("head")), "no worker", 240
    )
    running = [one for one in laptop.python(account.instances) if one["state"] == "running"]
    assert [one["tags"]["ray-node-type"] for one in running] == ["head"]
    cluster.down()
    assert {one["state"] for one in laptop.python(account.instances)} == {"terminated"}
    simulation.wait_for(lambda: not simulation.instances(), "the head to be gone", 30)
