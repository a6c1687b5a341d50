"""The cause of the loss of a Ray actor: its machine, or its process alone."""

from enum import Enum


class LossCause(Enum):
    """How a process was lost."""

    MACHINE = "its machine is gone"
    UNREACHABLE = "it cannot be reached, so its machine may be lost"
    """Ray's first report of a lost machine; it declares the machine dead half a minute later (2.60)."""
    MEMORY = "its machine ran out of memory"
    PROCESS = "its process was killed or crashed"

    @property
    def of_machine(self) -> bool:
        """Whether the machine was lost, or seems to be, so that the work itself need not be at fault."""
        return self in (LossCause.MACHINE, LossCause.UNREACHABLE)


def loss_cause(error: BaseException | None) -> LossCause | None:
    """Return from an exception how a process was lost; None for an exception that it raised itself."""
    from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, WorkerCrashedError

    if isinstance(error, OutOfMemoryError):
        return LossCause.MEMORY
    if isinstance(error, ActorUnavailableError):
        return LossCause.UNREACHABLE
    if isinstance(error, (RayActorError, WorkerCrashedError)):
        # Ray has one exception for both; only its text differs (2.60, gcs_actor_manager.cc).
        gone = "node has died" in str(error) or "node was terminated" in str(error)
        return LossCause.MACHINE if gone else LossCause.PROCESS
    return None
