"""Which machines a cluster has and may start, and where a trial's ranks are put on them."""

import re

import pytest

from study.plan.layouts import ClusterCapacity
from study.run.tune_interface import resource_request
from study.spec.resources import ResourcesSection
from study.workers.machines import (
    CUSTOM_AMOUNT,
    AutoscalerLimits,
    Machine,
    MachineLosses,
    Slots,
    awaited_machines,
    capacity,
    check_capacity,
    check_devices,
    custom_resources,
    possible_machines,
    read_autoscaler_limits,
)
from tests.environment import run_program
from tests.named import refused
from trainables.layout import Layout


def test_gpus_that_this_machine_does_not_have_are_refused(monkeypatch):
    monkeypatch.setattr("study.workers.machines.local_gpus", lambda: 1)
    check_devices(Slots(1, 1, 1), "h100-80gb")
    check_devices(Slots(64, 1, 0), "cpu")
    with refused("h100-80gb", "3 slots", "3 GPUs", "has 1", "`resources.slots` to 1"):
        check_devices(Slots(3, 1, 1), "h100-80gb")
    monkeypatch.setattr("study.workers.machines.local_gpus", lambda: 0)
    with refused("has 0", "`resources.device: cpu`", "RAY_ADDRESS"):
        check_devices(Slots(3, 1, 1), "h100-80gb")


def test_a_gang_that_could_never_be_placed_is_refused_with_both_numbers():
    four, spread = Layout(tensor_parallel=4, zero=1), Layout(data_parallel=4, zero=1)
    pairs = [Machine({"CPU": 8.0, "GPU": 2.0})] * 2
    check_capacity(Slots(4, 1, 1), {Layout(), spread, Layout(tensor_parallel=2, data_parallel=2)}, pairs)
    check_capacity(Slots(4, 0.1, 0), {four}, [Machine({"CPU": 0.4})])
    with refused("4 ranks", "1 groups of 4 devices", "2 x 2 ranks", "hold 0", "tensor_parallel: auto"):
        check_capacity(Slots(4, 1, 1), {four}, pairs)
    with refused(
        "4 ranks", "4 groups of 1 devices", "1 x 2 ranks", "hold 2", "`resources.data_parallel` to 2"
    ):
        check_capacity(Slots(4, 1, 1), {spread}, pairs[:1])
    with refused("4 ranks", "4 devices", "`resources.slots` is 3"):
        check_devices(Slots(3, 1, 0), "cpu", {Layout(), four})
    with refused("3 CPUs", ": 2 CPUs", "`resources.cpus_per_trial`"):
        check_capacity(Slots(1, 3, 0), {Layout()}, [Machine({"CPU": 2.0})] * 2)


def test_ranks_that_share_matrices_are_in_one_bundle_which_ray_does_not_divide():
    def asked(avoided="[]", **degrees):
        config = {"layout": Layout(**degrees).model_dump_json(), "avoided": avoided}
        request = resource_request(config, Slots(8, 0.1, 1, ("wide",)))
        assert request.strategy == "PACK"
        assert request.head_bundle_is_empty == bool(degrees), "what supervises a gang leaves all to the ranks"
        found = [(bundle["CPU"], bundle["GPU"], bundle["wide"]) for bundle in request.bundles if bundle]
        return found, request._bound.kwargs.get("bundle_label_selector")

    assert asked() == ([(0.1, 1, CUSTOM_AMOUNT)], None)
    assert asked(tensor_parallel=3) == ([(0.3, 3, CUSTOM_AMOUNT)], None)
    assert asked(tensor_parallel=3, data_parallel=2) == ([(0.3, 3, CUSTOM_AMOUNT)] * 2, None)
    assert asked(data_parallel=4) == ([(0.1, 1, CUSTOM_AMOUNT)] * 4, None), (
        "sharing batches alone bears a network"
    )
    assert asked('["a", "b"]', data_parallel=2)[1] == [{"ray.io/node-id": "!in(a,b)"}] * 2


def test_a_gang_that_one_machine_holds_stays_on_one():
    def strategy(avoided="[]", **degrees):
        config = {"layout": Layout(**degrees).model_dump_json(), "avoided": avoided}
        return resource_request(config, Slots(8, 1, 1, together=4)).strategy

    assert strategy(data_parallel=4) == strategy(tensor_parallel=2, data_parallel=2) == "STRICT_PACK"
    assert strategy(data_parallel=8) == strategy() == "PACK"
    # The others may be smaller.
    assert strategy('["a"]', data_parallel=4) == "PACK"
    pairs = [Machine({"CPU": 8.0, "GPU": 2.0, "memory": 1e9}, "a"), Machine({"CPU": 8.0, "GPU": 4.0}, "b")]
    assert capacity(pairs, AutoscalerLimits(), ResourcesSection(device="l4-24gb")).slots.together == 4


def test_machines_to_avoid_are_excluded_unless_no_other_holds_the_ranks(monkeypatch):
    small, large = Machine({"CPU": 1}, "small"), Machine({"CPU": 4}, "large")
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
    three = [Machine({"CPU": 3.0})] * 2
    check_capacity(
        Slots(6, 1, 0), {Layout(tensor_parallel=2, data_parallel=2), Layout(data_parallel=6)}, three
    )
    with refused("6 ranks", "3 groups of 2 devices", "2 x 3 ranks", "hold 2"):
        check_capacity(Slots(6, 1, 0), {Layout(tensor_parallel=2, data_parallel=3)}, three)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_that_kills_two_trials_gets_no_more_of_them(tmp_path):
    """Two raylets of this machine, as two machines; in a process of its own, for Ray keeps its token."""
    root = tmp_path / "root"
    root.mkdir()
    done = run_program("tests.study.ill_machine", root, home=tmp_path, timeout=280)
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
    root = tmp_path / "root"
    root.mkdir()
    done = run_program("tests.study.placed", root, home=tmp_path, timeout=580)
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
def limits(tmp_path, monkeypatch):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    monkeypatch.setenv("INTERPLAY_CLUSTER_FILE", str(path))
    return read_autoscaler_limits()


def test_a_cluster_has_what_lives_and_what_may_be_started_beside_it(limits):
    head = Machine({"CPU": 0, "head": 1}, "h", "head")
    found = possible_machines([head], limits, Slots(0, 1, 0))
    assert [machine.kind for machine in found] == ["head", "wide", "spot", "spot"], "three of all types"
    assert [machine.resources.get("GPU") for machine in found] == [None, 8, 1, 1], "the largest first"
    assert {machine.node for machine in found} == {"h", None}
    two = [head, Machine(limits.kinds["spot"]["resources"], "a", "spot"), Machine({"CPU": 2}, "b", "ssh")]
    found = possible_machines(two, limits, Slots(0, 1, 0))
    assert [machine.node for machine in found] == ["h", "a", "b", None]
    assert found[-1].resources["GPU"] == 8


def test_the_machines_of_another_pool_take_none_of_the_places(limits):
    """The file allows three workers and four of `spot`: those of `wide` are not started for a study on `spot`."""
    spot = Slots(0, 1, 1, ("spot",))
    assert [machine.kind for machine in possible_machines([], limits, spot)] == ["spot"] * 3


def test_nothing_is_promised_where_no_cluster_file_is(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERPLAY_CLUSTER_FILE", str(tmp_path / "none.yaml"))
    assert read_autoscaler_limits() == AutoscalerLimits()
    live = [Machine({"CPU": 2}, "a")]
    assert possible_machines(live, AutoscalerLimits(), Slots(0, 1, 0)) == live


def test_machines_that_are_always_there_are_waited_for(monkeypatch):
    """Machines reached by SSH join after the head; a study submitted at once must not find the cluster too small."""
    limits = AutoscalerLimits({"ssh": {"resources": {}, "min_workers": 2, "max_workers": 2}}, 2)
    joined = [Machine({"CPU": 1}, "a", "ssh")]
    looks = iter([[], joined, [*joined, Machine({"CPU": 1}, "b", "ssh")]])
    monkeypatch.setattr("study.workers.machines.live_machines", lambda: next(looks))
    monkeypatch.setattr("study.workers.machines.time.sleep", lambda _: None)
    assert [machine.node for machine in awaited_machines(limits, 60)] == ["a", "b"]
    monkeypatch.setattr("study.workers.machines.live_machines", lambda: joined)
    assert awaited_machines(limits, 0) == joined, "and not for ever"


def machines_of(limits):
    return possible_machines([], limits, Slots(0, 1, 0))


def test_ranks_are_kept_to_the_pool_and_the_gpu_of_the_plan(limits):
    found = machines_of(limits)
    assert custom_resources("cpu", "any", found) == ()
    assert custom_resources("l4-24gb", "spot", found) == ("spot", "accelerator_type:L4")
    assert custom_resources("a100-40gb", "any", found) == ("accelerator_type:A100",)
    assert custom_resources("a100-40gb", "any", [Machine({"CPU": 4, "GPU": 1})]) == (), (
        "machines that do not tell"
    )
    untold = Machine({"CPU": 8, "GPU": 8})
    assert custom_resources("h100-80gb", "any", [*found, untold]) == (), (
        "it may be the one that was planned for"
    )
    with refused("`resources.pool` is 'cheap'", "spot, wide", "`any`"):
        custom_resources("cpu", "cheap", found)
    with refused("`resources.device` is h100-80gb", "A100, L4"):
        custom_resources("h100-80gb", "any", found)


def test_a_study_on_cpus_has_no_machine_with_gpus_started(limits):
    """Ray's autoscaler starts one of eight A100 for the CPUs in it, once the others are used up."""
    cpu, found = "cpu", machines_of(limits)
    assert custom_resources(cpu, "any", found) == (), "there is no other"
    plain = Machine({"CPU": 8, "cpu": 1, "memory": 9})
    assert custom_resources(cpu, "any", [*found, plain]) == ("cpu",)
    assert custom_resources(cpu, "spot", [*found, plain]) == ("spot",), "who names it gets it"
    assert custom_resources(cpu, "any", [Machine({"CPU": 8, "GPU": 8}, "a"), plain]) == (), (
        "what is there costs no more"
    )
    with refused("`resources.pool`", "big, cpu"):
        custom_resources(cpu, "any", [*found, plain, Machine({"CPU": 8, "big": 1})])


def found_by(machines, **resources):
    return capacity(machines, AutoscalerLimits(), ResourcesSection(**resources))


def test_the_capacity_is_what_the_machines_of_the_pool_hold(limits):
    found = [Machine({"CPU": 64, "memory": 10}, "other"), *machines_of(limits)]
    of_gpus = found_by(found, device="l4-24gb", pool="spot")
    assert of_gpus.slots.bundle() == {
        "CPU": 1, "GPU": 1, "spot": CUSTOM_AMOUNT, "accelerator_type:L4": CUSTOM_AMOUNT
    }  # fmt: skip
    assert [of_gpus.slots.ranks_on(machine) for machine in found] == [0, 0, 1, 1]
    assert of_gpus.capacity == ClusterCapacity(2, 8000, 1)
    shared = found_by(found, device="cpu", pool="spot", cpus_per_trial=2)
    assert shared.capacity == ClusterCapacity(4, 4000, 2), "two ranks of two cores share a machine"
    asked = found_by(found, device="cpu", pool="spot", cpus_per_trial=2, slots=9)
    assert (asked.slots.devices, asked.capacity.devices, asked.held) == (9, 9, 4)
    with refused("5 CPUs", "with spot", ": 4 CPUs"):
        found_by(found, device="cpu", pool="spot", cpus_per_trial=5)


def test_a_rank_whose_resources_are_on_two_machines_is_refused():
    """The GPU of one and the cores of the other were each enough, and the study had no slot."""
    with refused("4 CPUs and 1 GPUs", ": 8 CPUs and 1 GPUs"):
        found_by([Machine({"CPU": 8}), Machine({"CPU": 2, "GPU": 1})], device="l4-24gb", cpus_per_trial=4)


def test_machines_that_do_not_tell_their_memory_leave_that_of_the_others():
    """Those that KubeRay may start tell their CPUs and GPUs alone: a rank had no memory at all."""
    told, untold = Machine({"CPU": 4, "memory": 8000}, "a"), Machine({"CPU": 8})
    two = {"device": "cpu", "cpus_per_trial": 2}
    assert found_by([told, untold], **two).capacity == ClusterCapacity(6, 4000, 4)
    assert found_by([untold], **two).capacity == ClusterCapacity(4, 0, 4)


@pytest.mark.parametrize(
    "name", ["GPU", "CPU", "memory", "head", "accelerator_type:L4", "node:10.0.0.1", "none"]
)
def test_what_ray_itself_names_is_no_pool(name):
    """`resources.pool: GPU` made a rank ask for a thousandth of a GPU."""
    machine = Machine(
        {"CPU": 4, "GPU": 1, "memory": 9, "head": 1, "accelerator_type:L4": 1, "node:10.0.0.1": 1, "spot": 1}
    )
    with refused(f"`resources.pool` is '{name}'", "has spot"):
        custom_resources("l4-24gb", name, [machine])
    assert Slots(1, 2, 1, ("GPU", "CPU")).bundle() == {"CPU": 2, "GPU": 1}
