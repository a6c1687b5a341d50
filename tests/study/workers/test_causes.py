"""Why trials were lost, as their rows have it."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import cloudpickle
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.exceptions import OutOfMemoryError as MachineOutOfMemory

from study.plan.plan import make_plan
from study.run.tune_interface import trial_error
from study.spec.study import load_spec
from study.workers.causes import (
    GangError,
    LossCause,
    Place,
    failure_reason,
    loss_cause,
    lost_place,
    oom_kills,
)
from study.workers.machines import Slots
from tests.stubs import in_layout
from tests.study.small import SMALL
from trainables.layout import Layout

SLOTS = Slots(2, 1, 0)


@pytest.fixture(scope="module")
def planned():
    options = ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]
    return make_plan(load_spec(SMALL, options)).cells[0]


@pytest.fixture(scope="module")
def pair(planned):
    return in_layout(planned, Layout(tensor_parallel=2, zero=1))


def low_memory():
    """Ray's error for an actor that its memory monitor has killed."""
    text = "The actor died: the node was running low on memory"
    return ActorDiedError(ActorDiedErrorContext(error_message=text, actor_id=b"0" * 16))


def lost_peer(cause):
    error = GangError("rank 1 of 2 died")
    error.loss_cause = cause
    return error


def stored(folder, error):
    """A trial whose error lies where Tune writes it."""
    path = folder / "error.pkl"
    path.write_bytes(cloudpickle.dumps(error))
    return SimpleNamespace(pickled_error_file=str(path))


def test_the_error_of_a_trial_is_read_without_rays_wrapper(tmp_path):
    assert trial_error(SimpleNamespace(pickled_error_file=None)) is None
    assert trial_error(SimpleNamespace(pickled_error_file=str(tmp_path / "absent"))) is None
    assert str(trial_error(stored(tmp_path, ValueError("boom")))) == "boom"
    wrapped = RayTaskError("train", "the traceback", ValueError("boom"))
    assert isinstance(trial_error(stored(tmp_path, wrapped)), ValueError)


@pytest.fixture
def alive(monkeypatch):
    """The machines of Ray's cluster, and whether each is alive."""
    machines = {"node": True}
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": name, "Alive": machines[name]} for name in machines])
    return machines


PLACE = Place("node", "h", "127.0.0.1", 7)


def test_reasons_of_lost_trials(planned, pair, alive):
    away = ActorUnavailableError("rpc error", None)
    cases = [
        (ActorDiedError(), "the process of the trial died (ActorDiedError)"),
        (
            away,
            "the process of the trial cannot be reached, so its machine may be lost (ActorUnavailableError)",
        ),
        (RuntimeError("boom\nand more"), "RuntimeError: boom and more"),
        (lost_peer(LossCause.PROCESS), "rank 1 of 2 died"),
        (None, "the process of the trial was lost"),
    ]
    for error, reason in cases:
        assert failure_reason(error, planned, SLOTS, PLACE, is_local=False) == reason
    of_pair = failure_reason(ActorDiedError(), pair, SLOTS, PLACE, is_local=False)
    assert of_pair == "the supervisor of 2 ranks (host h, pid 7) died (ActorDiedError)"
    assert failure_reason(lost_peer(LossCause.PROCESS), pair, SLOTS, PLACE) == "rank 1 of 2 died"


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("rpc error", None)])
def test_the_loss_of_a_machine_is_told_from_that_of_a_process_by_rays_list_of_machines(error, planned, alive):
    assert loss_cause(error, PLACE) is not LossCause.MACHINE
    alive["node"] = False
    assert loss_cause(error, PLACE) is LossCause.MACHINE
    assert failure_reason(error, planned, SLOTS, PLACE).startswith(
        "the machine of the process of the trial was lost"
    )
    assert loss_cause(error) is not LossCause.MACHINE, "where it was is not known"


def test_out_of_memory_is_named_with_the_size_planned_and_what_to_set(planned, pair):
    class OutOfMemoryError(RuntimeError):
        """Named as torch's."""

    cases = [
        (MachineOutOfMemory("95% used"), "Ray's memory monitor"),
        (low_memory(), "Ray's memory monitor"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "2 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "you tried 9 bytes"),
        (MemoryError(), "MemoryError"),
    ]
    size = f"{planned.memory_bytes / 1e9:.3g} GB of tensors per rank"
    for error, words in cases:
        reason = failure_reason(error, planned, SLOTS)
        assert reason.startswith("out of memory")
        assert words in reason
        assert size in reason
        assert "resources.slots: 1" in reason
    peer = failure_reason(lost_peer(LossCause.KERNEL), pair, SLOTS)
    assert peer.startswith("rank 1 of 2 died. The plan has ")
    assert "resources.slots" not in peer, "one cell at a time is as few as can be"
    half = planned.layout.sequences(planned.cell.recipe) // 2
    assert f"`resources.micro_batch: {half}`" in peer
    on_gpu = failure_reason(OutOfMemoryError("CUDA"), planned, Slots(2, 1, 1))
    assert "resources.slots" not in on_gpu
    assert "resources.tensor_parallel: 2" in on_gpu


def test_a_kill_is_one_for_memory_if_the_kernels_count_has_risen_since_the_cell_started(alive, monkeypatch):
    monkeypatch.setattr("study.workers.causes.oom_kills", lambda: 3)
    two, three = (dataclasses.replace(PLACE, oom_kills=kills) for kills in (2, 3))
    assert loss_cause(ActorDiedError(), two, is_local=True) is LossCause.KERNEL
    assert loss_cause(ActorDiedError(), three, is_local=True) is LossCause.PROCESS
    assert loss_cause(ActorDiedError(), two) is LossCause.PROCESS, (
        "the count of another machine is not known here"
    )
    assert loss_cause(ActorDiedError(), is_local=True) is LossCause.PROCESS


def test_the_place_of_a_loss_is_that_of_the_rank_that_was_lost():
    own, other = (Place(node, "host", "127.0.0.1", 1) for node in "ab")
    peer = lost_peer(LossCause.PROCESS)
    assert lost_place(peer, own) == own
    peer.place = other
    # As it comes to the driver.
    peer = pickle.loads(pickle.dumps(peer))
    assert peer.loss_cause is LossCause.PROCESS
    assert lost_place(peer, own) == other
    assert lost_place(RuntimeError("boom"), own) == own
    assert lost_place(None, None) is None


def write(root, **files):
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_the_kernels_count_is_that_of_the_control_group_else_of_the_machine(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"

    def count():
        return oom_kills(proc, groups)

    assert count() == 0, "no Linux"
    write(proc, vmstat="nr_free_pages 1\noom_kill 7\n", self__cgroup="0::/user/a\n")
    assert count() == 7, "the root has no count of its own"
    write(groups, user__a__memory_DOT_events="low 0\noom 4\noom_kill 2\noom_group_kill 0\n")
    assert count() == 2
    write(proc, self__cgroup="9:cpu:/x\n4:memory:/b\n0::/\n")
    assert count() == 7
    write(groups, memory__b__memory_DOT_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert count() == 5, "version 1 of control groups"


def memory_group(name):
    """A new memory control group of version 1 below this process's; None where this process may make none."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").is_file() else []
    own = [line.split(":", 2)[2] for line in lines if line.split(":", 2)[1] == "memory"]
    if not own:
        return None
    group = Path("/sys/fs/cgroup/memory" + own[0], f"{name}-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        return None
    return group


def test_a_kill_by_the_kernel_raises_the_count_and_one_by_a_user_does_not():
    group = memory_group("interplay-count")
    if group is None:
        pytest.skip("a memory control group of version 1 needs root")
    join = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c "
    try:
        (group / "memory.limit_in_bytes").write_text(str(80 << 20))
        program = "from study.workers.causes import oom_kills; print(oom_kills())"

        def count():
            return int(
                subprocess.run(["bash", "-c", f"{join}'{program}'"], capture_output=True, check=True).stdout
            )

        before = count()
        killed = subprocess.run(["bash", "-c", f"{join}'import os; os.kill(os.getpid(), 9)'"], check=False)
        assert (killed.returncode, count()) == (-9, before)
        killed = subprocess.run(["bash", "-c", f"{join}'bytearray(200 << 20)'"], check=False)
        assert (killed.returncode, count()) == (-9, before + 1)
    finally:
        group.rmdir()
