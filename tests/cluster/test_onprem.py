"""Machines by SSH: a head and two workers that no cloud started, with a folder that all mount."""

import pytest
import yaml

from tests.cluster.simulated.cluster import DASHBOARD, Cluster
from tests.cluster.simulated.machine import Machine
from tests.cluster.simulated.simulation import IMAGE_ENVIRONMENT, LAPTOP, Laptop
from tests.environment import PRIORITY

pytestmark = [pytest.mark.extended, pytest.mark.timeout(3600)]

FILE = "cluster/onprem.yaml"
#: Who trains on the machines; another name than on the laptop.
WHO = "trainer"
HEAD, WORKERS = "172.31.242.1", ("172.31.242.2", "172.31.242.3")
NAMES = {HEAD: "rack1", WORKERS[0]: "rack2", WORKERS[1]: "rack3"}
SPEC = """
name: small
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 4000, validation_sequences: 64}
frontier: {depths: [1, 2], heads: 2, budgets: [1600, 6200], tolerance: 0.15}
training: {seeds: 1, steps: 80, batch: 8, context: 32, lr: {rule: width, base: 0.4, cap: 0.04}}
resources: {device: cpu}
"""


@pytest.fixture(scope="module")
def laptop(simulation):
    one = Laptop(simulation)
    one.clone()
    one.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(one.home / ".ssh/id_ed25519"))
    key = (one.root / str(one.home / ".ssh/id_ed25519.pub").lstrip("/")).read_text().strip()
    for address, name in NAMES.items():
        machine = Machine(
            name=name,
            address=address,
            user=WHO,
            key=key,
            needs=simulation.needs,
            shares={"/shared": str(simulation.state / "shared")},
            environment={"INTERPLAY_ENV": str(IMAGE_ENVIRONMENT), **PRIORITY},
        )
        simulation.want(machine)
    for name in NAMES.values():
        simulation.wait_for_boot(name)
    text = one.path(FILE).read_text()
    for old, new in (
        ("head: &head CHANGE-ME", f"head: &head {HEAD}"),
        ("workers: &workers [CHANGE-ME]", f"workers: &workers [{', '.join(WORKERS)}]"),
        ("user: &user CHANGE-ME", f"user: &user {WHO}"),
    ):
        assert old in text
        text = text.replace(old, new)
    assert "CHANGE-ME" not in str(yaml.safe_load(text))
    one.write(FILE, text)
    one.write("small.yaml", SPEC)
    return one


@pytest.fixture(scope="module")
def cluster(simulation, laptop):
    one = Cluster(simulation, laptop, FILE, token=".ray/interplay-onprem-token")
    laptop.run("interplay", "cluster", "token", FILE)
    checked = laptop.run("interplay", "cluster", "check", FILE)
    assert "error" not in checked.stdout + checked.stderr
    one.up()
    with one.tunnels():
        yield one


def nodes(cluster):
    """The machines that have joined: addresses by whether Ray reports them alive, and their CPUs."""
    status, answer = cluster.laptop.get(f"{DASHBOARD}/api/v0/nodes?detail=true", cluster.authorised)
    assert status == 200, answer
    found = answer["data"]["result"]["result"]
    return {one["node_ip"]: one["resources_total"].get("CPU", 0) for one in found if one["state"] == "ALIVE"}


def test_all_machines_join_and_train_a_study_on_a_shared_folder(simulation, laptop, cluster):
    cluster.wait_for(lambda: set(nodes(cluster)) == {HEAD, *WORKERS}, "both workers to join", 120)
    cpus = nodes(cluster)
    assert cpus[HEAD] == 0, "no trial runs on the head"
    assert all(cpus[address] >= 1 for address in WORKERS)

    def all_named():
        # The autoscaler counts a worker some seconds after its raylet has joined, at the end of its setup.
        return (
            "3 local.cluster.node"
            in laptop.run("ray", "exec", "--no-config-cache", FILE, "ray status").stdout
        )

    cluster.wait_for(all_named, "`ray status` to count all three", 120)

    done = laptop.run("interplay", "submit", "small.yaml", "--cluster", FILE, timeout=300)
    assert "4 cells in" in done.stdout
    runs = cluster.runs("small")
    assert len(cluster.losses("small")) == len(runs) == 4
    assert {run["status"] for run in runs} == {"FINISHED"}
    shared = simulation.state / "shared/interplay"
    assert (shared / "small/results/report.html").is_file()
    assert len(list((shared / "small/models").iterdir())) == 4
    assert len(list((shared / "data").iterdir())) >= 1
    assert not any((simulation.root("rack2") / f"home/{WHO}").glob("results"))


def test_only_who_has_the_token_is_answered(laptop, cluster):
    assert laptop.get(f"{DASHBOARD}/api/jobs/")[0] == 401
    for address in NAMES:
        assert laptop.get(f"http://{address}:8265/api/version", cluster.authorised)[0] == 0
        assert laptop.get(f"http://{address}:5000/health")[0] == 0


def test_down_ends_ray_on_every_machine_and_leaves_the_machines(simulation, cluster):
    cluster.down()

    def raylets():
        return [name for name in NAMES.values() if "raylet" in simulation.ask(name, "ps", "-eo", "args")]

    simulation.wait_for(lambda: not raylets(), "Ray to end on all machines", 60)
    assert set(simulation.machines()) == {LAPTOP, *NAMES.values()}
