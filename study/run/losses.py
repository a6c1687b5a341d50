"""What a lost trial gives: its error, the cause in one line with the remedy, and whether the cell may be at fault."""

from pathlib import Path
from typing import Any

from study.plan import PlannedCell
from study.plan.layouts import memory_remedy
from study.workers.gang import GangError
from study.workers.machines import Slots
from study.workers.process_loss import LossCause, Place, loss_cause, loss_cause_at

#: Descriptions of how the process of a trial was lost.
LOSS_CAUSES = {
    LossCause.MACHINE: "the machine of the trial was lost",
    LossCause.UNREACHABLE: "the process of the trial cannot be reached, so its machine may be lost",
    LossCause.MEMORY: "out of memory",
    LossCause.KERNEL: "out of memory: the kernel killed the process of the trial",
    LossCause.RAY: "out of memory: Ray's memory monitor killed the process of the trial",
    LossCause.PROCESS: "the process of the trial died",
}


def trial_error(trial: Any) -> BaseException | None:
    """Return the exception that ended a Tune trial's last try, without the wrapper in which Ray carries it.

    It is read where the driver wrote it, before Tune copies it to its storage.
    """
    path = Path(trial.pickled_error_file or "")
    if not path.is_file():
        return None
    from ray import cloudpickle

    error: BaseException = cloudpickle.loads(path.read_bytes())
    return getattr(error, "cause", None) or error


def lost_place(error: BaseException | None, trial: Place | None) -> Place | None:
    """Return where the rank was that was lost: the one a gang names, else that of the trial's own process."""
    return (error.place if isinstance(error, GangError) else None) or trial


def failure_reason(
    error: BaseException | None,
    planned: PlannedCell,
    slots: Slots,
    place: Place | None = None,
    *,
    is_local: bool = True,
) -> str:
    """Return one paragraph on why a trial was lost: how its process was lost, or the exception that it raised.

    Out of memory it also has the size that was planned, and what to set.

    Args:
        error: that of `trial_error`, if there is one.
        planned: the cell.
        slots: of the study.
        place: where the trial's process was, if it is known.
        is_local: whether the trials share the machine and the memory limit of this process.
    """
    ranks = planned.layout.ranks
    if isinstance(error, GangError):
        reason, cause = _one_line(error), error.loss_cause
    else:
        cause = loss_cause_at(error, place, is_local=is_local)
        reason = _reason(error, cause)
        if ranks > 1 and (cause or error is None):
            # The trial's process only supervises; it names every rank that is lost.
            where = f" (host {place.host}, pid {place.pid})" if place else ""
            reason = f"supervisor of {ranks} ranks{where}: {reason}"
    if cause is None or not cause.of_memory:
        return reason
    return f"{reason}. {memory_remedy(planned, slots.devices, on_gpu=slots.gpus > 0)}"


def _reason(error: BaseException | None, cause: LossCause | None) -> str:
    name = type(error).__name__
    if error is None:
        return "the process of the trial was lost"
    if cause is LossCause.MEMORY:
        return f"{LOSS_CAUSES[cause]} ({name}: {_one_line(error)[:200]})"
    if cause:
        return f"{LOSS_CAUSES[cause]} ({name})"
    return f"{name}: {_one_line(error) or 'no message'}"[:500]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def is_machine_loss(error: BaseException | None) -> bool:
    """Whether a trial was lost because the machine of any of its ranks was lost, or seems to be."""
    cause = error.loss_cause if isinstance(error, GangError) else loss_cause(error)
    return cause is not None and cause.of_machine
