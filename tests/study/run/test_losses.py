"""The reasons of lost trials, as their rows have them."""

import dataclasses
from types import SimpleNamespace

import pytest

from study.plan.plan import make_plan
from study.run.losses import failure_reason, is_machine_loss, lost_place, trial_error
from study.spec.study import load_spec
from study.workers.gang import GangError
from study.workers.machines import Slots
from study.workers.process_loss import LossCause, Place
from tests.study.small import SMALL
from trainables.layout import Layout

SLOTS = Slots(2, 1, 0)


@pytest.fixture(scope="module")
def planned():
    options = ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]
    return make_plan(load_spec(SMALL, options)).cells[0]


@pytest.fixture(scope="module")
def pair(planned):
    return dataclasses.replace(planned, layout=Layout(tensor_parallel=2, zero=1))


def dead_node():
    """Ray's error for an actor whose machine it has declared dead."""
    return died("The actor died because its node has died. Node Id: 0")


def died(text):
    """Ray's error for an actor that died, with the cause that its head gives."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError

    return ActorDiedError(ActorDiedErrorContext(error_message=text, actor_id=b"0" * 16))


def lost_peer(cause):
    error = GangError("rank 1 of 2 was lost")
    error.loss_cause = cause
    return error


def stored(folder, error):
    """A trial whose error lies where Tune writes it."""
    from ray import cloudpickle

    path = folder / "error.pkl"
    path.write_bytes(cloudpickle.dumps(error))
    return SimpleNamespace(pickled_error_file=str(path))


def test_the_error_of_a_trial_is_read_without_rays_wrapper(tmp_path):
    from ray.exceptions import RayTaskError

    assert trial_error(SimpleNamespace(pickled_error_file=None)) is None
    assert trial_error(SimpleNamespace(pickled_error_file=str(tmp_path / "absent"))) is None
    assert str(trial_error(stored(tmp_path, ValueError("boom")))) == "boom"
    wrapped = RayTaskError("train", "the traceback", ValueError("boom"))
    assert isinstance(trial_error(stored(tmp_path, wrapped)), ValueError)


def test_reasons_of_lost_trials_and_which_of_them_are_lost_machines(planned, pair):
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    away = ActorUnavailableError("rpc error", None)
    cases = [
        (dead_node(), "machine of the trial was lost (ActorDiedError)", True),
        (ActorDiedError(), "process of the trial died (ActorDiedError)", False),
        (away, "its machine may be lost (ActorUnavailableError)", True),
        (RuntimeError("boom\nand more"), "RuntimeError: boom and more", False),
        (lost_peer(LossCause.MACHINE), "rank 1 of 2 was lost", True),
        (lost_peer(LossCause.PROCESS), "rank 1 of 2 was lost", False),
        (None, "the process of the trial was lost", False),
    ]
    for error, reason, of_machine in cases:
        assert failure_reason(error, planned, SLOTS).endswith(reason)
        assert is_machine_loss(error) == of_machine
    assert failure_reason(dead_node(), pair, SLOTS).startswith("supervisor of 2 ranks: the machine")
    place = Place("node", "h", "127.0.0.1", 7)
    assert failure_reason(None, pair, SLOTS, place).startswith("supervisor of 2 ranks (host h, pid 7): ")
    assert failure_reason(lost_peer(LossCause.MACHINE), pair, SLOTS) == "rank 1 of 2 was lost"


def test_out_of_memory_is_named_with_the_size_planned_and_what_to_set(planned, pair):
    from ray.exceptions import OutOfMemoryError as MachineOutOfMemory

    class OutOfMemoryError(RuntimeError):
        """Named as torch's."""

    cases = [
        (MachineOutOfMemory("95% used"), "Ray's memory monitor"),
        (died("The actor died: the node was running low on memory"), "Ray's memory monitor"),
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
        assert not is_machine_loss(error)
    peer = failure_reason(lost_peer(LossCause.KERNEL), pair, SLOTS)
    assert peer.startswith("rank 1 of 2 was lost. The plan has ")
    assert "resources.slots" not in peer, "one cell at a time is as few as can be"
    half = planned.layout.sequences(planned.cell.recipe) // 2
    assert f"`resources.micro_batch: {half}`" in peer
    on_gpu = failure_reason(OutOfMemoryError("CUDA"), planned, Slots(2, 1, 1))
    assert "resources.slots" not in on_gpu
    assert "resources.tensor_parallel: 2" in on_gpu


def test_a_kill_is_one_for_memory_if_the_kernels_count_has_risen_since_the_cell_started(planned, monkeypatch):
    from ray.exceptions import ActorDiedError

    monkeypatch.setattr("study.workers.process_loss.oom_kills", lambda: 3)

    def reason(kills):
        place = Place("node", "host", "127.0.0.1", 1, kills)
        return failure_reason(ActorDiedError(), planned, SLOTS, place=place)

    assert reason(2).startswith("out of memory: the kernel killed")
    assert reason(3).startswith("the process of the trial died")
    assert failure_reason(ActorDiedError(), planned, SLOTS).startswith("the process of the trial died")


def test_the_place_of_a_loss_is_that_of_the_rank_that_was_lost():
    own, other = (Place(node, "host", "127.0.0.1", 1) for node in "ab")
    peer = lost_peer(LossCause.PROCESS)
    assert lost_place(peer, own) == own
    peer.place = other
    assert lost_place(peer, own) == other
    assert lost_place(RuntimeError("boom"), own) == own
    assert lost_place(None, None) is None
