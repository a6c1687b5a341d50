"""What became of a Ray actor whose work did not come back: its machine went, or its process alone."""

from enum import Enum


class LossCause(Enum):
    """How a process was lost."""

    MACHINE = "its machine is gone"
    UNREACHABLE = "it cannot be reached, so its machine may be lost"
    """What comes first of a machine that is lost: Ray (2.60) holds it for dead half a minute later."""
    MEMORY = "its machine ran out of memory"
    PROCESS = "its process was killed or crashed"

    @property
    def of_machine(self) -> bool:
        """Whether the machine went, or seems to have gone, so that the work itself need not be at fault."""
        return self in (LossCause.MACHINE, LossCause.UNREACHABLE)


def death(error: BaseException | None) -> LossCause | None:
    """Tell from Ray's exception how a process was lost; None for an exception of its own."""
    from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, WorkerCrashedError

    if isinstance(error, OutOfMemoryError):
        return LossCause.MEMORY
    if isinstance(error, ActorUnavailableError):
        return LossCause.UNREACHABLE
    if isinstance(error, (RayActorError, WorkerCrashedError)):
        # Ray has one exception for both, and tells them apart in its text alone (2.60, gcs_actor_manager.cc).
        gone = "node has died" in str(error) or "node was terminated" in str(error)
        return LossCause.MACHINE if gone else LossCause.PROCESS
    return None
