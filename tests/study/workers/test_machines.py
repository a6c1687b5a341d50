"""Which machines a cluster has and may start, and where a trial's ranks are put on them."""

import re
import subprocess
import sys

import pytest

from study.errors import SpecError
from study.run.tune_interface import resource_request
from study.spec.devices import DEVICES
from study.workers.machines import (
    MARK,
    ClusterCapacity,
    Machine,
    MachineLosses,
    Promised,
    Slots,
    check_capacity,
    check_devices,
    cluster_machines,
    machines,
    marks,
    promised,
    room,
)
from tests.environment import environment_without
from trainables.layout import Layout


def test_gpus_that_this_machine_does_not_have_are_refused(monkeypatch):
    monkeypatch.setattr("study.workers.machines.local_gpus", lambda: 1)
    check_devices(Slots(1, 1, 1), "h100-80gb")
    check_devices(Slots(64, 1, 0), "cpu")
    with pytest.raises(SpecError, match=r"h100-80gb with 3 slots needs 3 GPUs.*has 1.*resources\.slots"):
        check_devices(Slots(3, 1, 1), "h100-80gb")
    monkeypatch.setattr("study.workers.machines.local_gpus", lambda: 0)
    with pytest.raises(SpecError, match=r"has 0\. Set `resources\.device: cpu`, or join a cluster"):
        check_devices(Slots(3, 1, 1), "h100-80gb")


def test_a_gang_that_could_never_be_placed_is_refused_with_both_numbers():
    four, spread = Layout(tensor_parallel=4, zero=1), Layout(data_parallel=4, zero=1)
    pairs = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 2.0}]
    check_capacity(Slots(4, 1, 1), {Layout(), spread, Layout(tensor_parallel=2, data_parallel=2)}, pairs)
    check_capacity(Slots(4, 0.1, 0), {four}, [{"CPU": 0.4}])
    with pytest.raises(
        SpecError, match=r"4 ranks.*needs 4 devices in one machine.*room for 2.*tensor_parallel"
    ):
        check_capacity(Slots(4, 1, 1), {four}, pairs)
    with pytest.raises(
        SpecError, match=r"4 ranks.*needs 4 devices, and the Ray cluster has room for 2 ranks"
    ):
        check_capacity(Slots(4, 1, 1), {spread}, pairs[:1])
    with pytest.raises(SpecError, match=r"4 ranks.*needs 4 devices at a time, and `resources.slots` is 3"):
        check_devices(Slots(3, 1, 0), "cpu", {Layout(), four})
    with pytest.raises(SpecError, match=r"needs 3 CPUs, and the largest machine of the Ray cluster has 2"):
        check_capacity(Slots(1, 3, 0), {Layout()}, [{"CPU": 2.0}, {"CPU": 2.0}])


def test_ranks_that_share_matrices_are_in_one_bundle_which_ray_does_not_divide():
    def asked(avoided="[]", **degrees):
        config = {"layout": Layout(**degrees).model_dump_json(), "avoided": avoided}
        request = resource_request(config, Slots(8, 0.1, 1, ("wide",)))
        assert request.strategy == "PACK"
        assert request.head_bundle_is_empty == bool(degrees), "what supervises a gang leaves all to the ranks"
        found = [(bundle["CPU"], bundle["GPU"], bundle["wide"]) for bundle in request.bundles if bundle]
        return found, request._bound.kwargs.get("bundle_label_selector")

    assert asked() == ([(0.1, 1, MARK)], None)
    assert asked(tensor_parallel=3) == ([(0.3, 3, MARK)], None)
    assert asked(tensor_parallel=3, data_parallel=2) == ([(0.3, 3, MARK)] * 2, None)
    assert asked(data_parallel=4) == ([(0.1, 1, MARK)] * 4, None), "sharing batches alone bears a network"
    assert asked('["a", "b"]', data_parallel=2)[1] == [{"ray.io/node-id": "!in(a,b)"}] * 2


def test_machines_to_avoid_are_excluded_unless_no_other_holds_the_ranks(monkeypatch):
    small, large = Machine({"CPU": 1}, "small"), Machine({"CPU": 4}, "large")
    monkeypatch.setattr("study.workers.machines.cluster_machines", lambda: [small, large])
    monkeypatch.setattr("study.workers.machines.live_machines", lambda: [small, large])
    losses = MachineLosses(Slots(4, 1, 0))
    assert losses.avoided(Layout()) == []
    for cell in ("first", "second"):
        losses.add("large", cell)
    assert losses.avoided(Layout()) == ["large"]
    assert losses.avoided(Layout(tensor_parallel=2)) == [], "the small machine holds no pair"
    assert losses.live_ranks() == 1


def test_a_machine_that_loses_two_trials_is_ill():
    losses = MachineLosses(Slots(4, 1, 0))
    assert not losses.add("a", "first")
    assert not losses.add("b", "second")
    assert losses.ill == []
    assert losses.add("a", "third"), "it is reported"
    assert losses.ill == ["a"]
    assert not losses.add("a", "fourth"), "once"
    losses.add("b", "second")
    assert losses.ill == ["a", "b"], "the same cell twice: it has not been anywhere else"


def test_a_cell_that_is_lost_wherever_it_is_counts_against_no_machine():
    losses = MachineLosses(Slots(4, 1, 0))
    for node in ("a", "a", "b"):
        losses.add(node, "too large")
    assert losses.ill == []
    losses.add("a", "another")
    assert losses.ill == []
    losses.add("a", "a third")
    assert losses.ill == ["a"]


def test_more_groups_than_the_machines_hold_whole_are_refused():
    three = [{"CPU": 3.0}, {"CPU": 3.0}]
    check_capacity(
        Slots(6, 1, 0), {Layout(tensor_parallel=2, data_parallel=2), Layout(data_parallel=6)}, three
    )
    with pytest.raises(SpecError, match=r"6 ranks.*3 groups of 2 devices.*room for 3 \+ 3 ranks, hold 2\."):
        check_capacity(Slots(6, 1, 0), {Layout(tensor_parallel=2, data_parallel=3)}, three)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_that_kills_two_trials_gets_no_more_of_them(tmp_path):
    """Two raylets of this machine, as two machines; in a process of its own, for Ray keeps its token."""
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.study.ill_machine", root],
        capture_output=True,
        text=True,
        env={**environment_without("RAY_"), "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    tries = [line.split()[1:] for line in lines if line.startswith("try")]
    assert [place for _, place in tries].count("ill") == 2
    assert sorted(seed for seed, place in tries if place == "well") == list("012345")
    (notice,) = (line for line in lines if line.startswith("notice"))
    assert f"node {notice.split()[-1]}): it is avoided" in notice
    assert "told " + " ".join(["1.0"] * 6) in lines


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_gang_waits_for_whole_groups_and_outlives_one_of_its_machines(tmp_path):
    """Three raylets of this machine, as three machines; in a process of its own, for Ray keeps its token."""
    kept = environment_without("RAY_")
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.study.placed", root],
        capture_output=True,
        text=True,
        env={**kept, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^retried (the machine of )?rank [23] of 4 \(host .*, pid \d+\) (was lost|cannot be reached)",
        done.stdout,
        re.MULTILINE,
    ), done.stdout
    assert "told 1.0" in done.stdout


CLUSTER = """
max_workers: 3
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0, head: 1}, max_workers: 0, node_config: {}}
  spot: {resources: {CPU: 4, GPU: 1, memory: 8000, spot: 1, "accelerator_type:L4": 1}, max_workers: 4}
  wide: {resources: {CPU: 96, GPU: 8, memory: 900, wide: 1, "accelerator_type:A100": 1}, max_workers: 1}
  ssh: {resources: {}, max_workers: 9}
"""


@pytest.fixture
def promise(tmp_path, monkeypatch):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    monkeypatch.setenv("INTERPLAY_CLUSTER_FILE", str(path))
    return promised()


def test_a_cluster_has_what_lives_and_what_may_be_started_beside_it(promise):
    head = Machine({"CPU": 0, "head": 1}, "h", "head")
    found = machines([head], promise)
    assert [machine.kind for machine in found] == ["head", "wide", "spot", "spot"], "three of all types"
    assert [machine.resources.get("GPU") for machine in found] == [None, 8, 1, 1], "the largest first"
    assert {machine.node for machine in found} == {"h", None}
    two = [head, Machine(promise.kinds["spot"]["resources"], "a", "spot"), Machine({"CPU": 2}, "b", "ssh")]
    found = machines(two, promise)
    assert [machine.node for machine in found] == ["h", "a", "b", None]
    assert found[-1].resources["GPU"] == 8


def test_nothing_is_promised_where_no_cluster_file_is(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERPLAY_CLUSTER_FILE", str(tmp_path / "none.yaml"))
    assert promised() == Promised()
    live = [Machine({"CPU": 2}, "a")]
    assert machines(live, Promised()) == live


def test_machines_that_are_always_there_are_waited_for(promise, monkeypatch):
    """Machines reached by SSH join after the head; a study submitted at once must not find the cluster too small."""
    kinds = {"ssh": {"resources": {}, "min_workers": 2, "max_workers": 2}}
    monkeypatch.setattr("study.workers.machines.promised", lambda: Promised(kinds, 2))
    joined = [Machine({"CPU": 1}, "a", "ssh")]
    looks = iter([[], joined, [*joined, Machine({"CPU": 1}, "b", "ssh")]])
    monkeypatch.setattr("study.workers.machines.live_machines", lambda: next(looks))
    monkeypatch.setattr("study.workers.machines.time.sleep", lambda _: None)
    assert [machine.node for machine in cluster_machines(60)] == ["a", "b"]
    monkeypatch.setattr("study.workers.machines.live_machines", lambda: joined)
    assert cluster_machines(0) == joined, "and not for ever"


def test_ranks_are_kept_to_the_pool_and_the_gpu_of_the_plan(promise):
    found = machines([], promise)
    assert marks(DEVICES["cpu"], "any", found) == ()
    assert marks(DEVICES["l4-24gb"], "spot", found) == ("spot", "accelerator_type:L4")
    assert marks(DEVICES["a100-40gb"], "any", found) == ("accelerator_type:A100",)
    assert marks(DEVICES["a100-40gb"], "any", [Machine({"CPU": 4, "GPU": 1})]) == (), (
        "machines that do not tell"
    )
    untold = Machine({"CPU": 8, "GPU": 8})
    assert marks(DEVICES["h100-80gb"], "any", [*found, untold]) == (), (
        "it may be the one that was planned for"
    )
    with pytest.raises(SpecError, match=r"'cheap'.*it has spot, wide\. Name one of these, or `any`"):
        marks(DEVICES["cpu"], "cheap", found)
    with pytest.raises(SpecError, match=r"`resources\.device` is h100-80gb.*are A100, L4\."):
        marks(DEVICES["h100-80gb"], "any", found)


def test_a_study_on_cpus_has_no_machine_with_gpus_started(promise):
    """Ray's autoscaler starts one of eight A100 for the CPUs in it, once the others are used up."""
    cpu, found = DEVICES["cpu"], machines([], promise)
    assert marks(cpu, "any", found) == (), "there is no other"
    plain = Machine({"CPU": 8, "cpu": 1, "memory": 9})
    assert marks(cpu, "any", [*found, plain]) == ("cpu",)
    assert marks(cpu, "spot", [*found, plain]) == ("spot",), "who names it gets it"
    assert marks(cpu, "any", [Machine({"CPU": 8, "GPU": 8}, "a"), plain]) == (), "what is there costs no more"
    with pytest.raises(SpecError, match=r"Name the pool: big, cpu\."):
        marks(cpu, "any", [*found, plain, Machine({"CPU": 8, "big": 1})])


def test_a_cluster_has_room_for_the_ranks_its_marked_machines_hold(promise):
    found = machines([Machine({"CPU": 64, "memory": 10}, "other")], promise)
    slots = Slots(0, 1, 1, marks(DEVICES["l4-24gb"], "spot", found))
    assert slots.bundle() == {"CPU": 1, "GPU": 1, "spot": MARK, "accelerator_type:L4": MARK}
    assert [slots.ranks_on(machine.resources) for machine in found] == [0, 0, 1, 1]
    assert room(found, slots) == ClusterCapacity(2, 8000, 1)
    assert room(found, Slots(0, 2, 0, ("spot",))) == ClusterCapacity(4, 4000, 2), (
        "two ranks of two cores share a machine"
    )
    with pytest.raises(
        SpecError, match=r"needs 5 CPUs, and the largest machine of the Ray cluster with spot has 4"
    ):
        room(found, Slots(0, 5, 0, ("spot",)))


def test_machines_that_do_not_tell_their_memory_leave_that_of_the_others():
    """Those that KubeRay may start tell their CPUs and GPUs alone: a rank had no memory at all."""
    told, untold = Machine({"CPU": 4, "memory": 8000}, "a"), Machine({"CPU": 8})
    assert room([told, untold], Slots(0, 2, 0)) == ClusterCapacity(6, 4000, 4)
    assert room([untold], Slots(0, 2, 0)) == ClusterCapacity(4, 0, 4)


@pytest.mark.parametrize(
    "name", ["GPU", "CPU", "memory", "head", "accelerator_type:L4", "node:10.0.0.1", "none"]
)
def test_what_ray_itself_names_is_no_pool(name):
    """`resources.pool: GPU` made a rank ask for a thousandth of a GPU."""
    machine = Machine(
        {"CPU": 4, "GPU": 1, "memory": 9, "head": 1, "accelerator_type:L4": 1, "node:10.0.0.1": 1, "spot": 1}
    )
    with pytest.raises(SpecError, match=rf"`resources\.pool` is '{name}'.*it has spot\. Name"):
        marks(DEVICES["l4-24gb"], name, [machine])
    assert Slots(1, 2, 1, ("GPU", "CPU")).bundle() == {"CPU": 2, "GPU": 1}
