"""The cause of the loss of a Ray actor: its machine, its memory, or its process alone."""

import os
import re
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

#: Seconds that a machine may take to return its count of kills; a new process starts there for it.
COUNT_SECONDS = 20.0


class LossCause(Enum):
    """How a process was lost."""

    MACHINE = "its machine is gone"
    UNREACHABLE = "it cannot be reached, so its machine may be lost"
    """Ray's first report of a lost machine; it declares the machine dead half a minute later (2.60)."""
    MEMORY = "it ran out of memory"
    """Torch or Python could not allocate; the process itself was left."""
    KERNEL = "the kernel killed it because memory was used up"
    RAY = "Ray's memory monitor killed it because its machine was almost out of memory"
    PROCESS = "its process was killed or crashed"

    @property
    def of_machine(self) -> bool:
        """Whether the machine was lost, or seems to be, so that the work itself need not be at fault."""
        return self in (LossCause.MACHINE, LossCause.UNREACHABLE)

    @property
    def of_memory(self) -> bool:
        """Whether memory was used up."""
        return self in (LossCause.MEMORY, LossCause.KERNEL, LossCause.RAY)


@dataclass(frozen=True)
class Place:
    """The machine and process of a rank."""

    node: str
    """Ray's id of the machine."""
    host: str
    address: str
    pid: int
    oom_kills: int = 0
    """What `oom_kills` returned there when the cell started."""


def own_place() -> Place:
    """Return the place of this process, a Ray worker."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return Place(node, socket.gethostname(), ray.util.get_node_ip_address(), os.getpid(), oom_kills())


def loss_cause(error: BaseException | None) -> LossCause | None:
    """Return from an exception how a process was lost; None for any other exception that it raised itself."""
    from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, WorkerCrashedError

    text = str(error)
    if isinstance(error, OutOfMemoryError):
        return LossCause.RAY
    if isinstance(error, ActorUnavailableError):
        return LossCause.UNREACHABLE
    if isinstance(error, (RayActorError, WorkerCrashedError)):
        # Ray has one exception for all three; only its text differs (2.60, gcs_actor_manager.cc).
        if "node has died" in text or "node was terminated" in text:
            return LossCause.MACHINE
        return LossCause.RAY if "running low on memory" in text else LossCause.PROCESS
    # Torch's allocator raises its own class on a GPU and a plain RuntimeError on a CPU (2.13).
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "allocate memory" in text:
        return LossCause.MEMORY
    return None


def loss_cause_at(error: BaseException | None, place: Place | None, *, is_local: bool) -> LossCause | None:
    """Return `loss_cause`, or KERNEL if the kernel has killed a process for memory at `place` since the cell started.

    Ray reports such a kill as any other. `is_local`: this process is on the machine of `place`, under the same limit.
    """
    cause = loss_cause(error)
    if cause is not LossCause.PROCESS or place is None:
        return cause
    now = oom_kills() if is_local else _oom_kills_on(place.node)
    return LossCause.KERNEL if now is not None and now > place.oom_kills else cause


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes the kernel has killed for memory: in this process's control group, else at all.

    The group's own count also has the kills for the limit of another group or of the machine (Linux, cgroup-v2.rst,
    `memory.events`). Where there is no count, as on other systems than Linux, it is 0.
    """
    groups = _text(proc / "self/cgroup")
    files = [
        *(cgroups / path.lstrip("/") / "memory.events" for path in re.findall(r"^0::(.*)$", groups, re.M)),
        *(
            cgroups / "memory" / path.lstrip("/") / "memory.oom_control"
            for path in re.findall(r"^\d+:memory:(.*)$", groups, re.M)
        ),
        proc / "vmstat",
    ]
    counts = (re.search(r"^oom_kill (\d+)$", _text(file), re.M) for file in files)
    return next((int(count[1]) for count in counts if count), 0)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _oom_kills_on(node: str) -> int | None:
    """Return `oom_kills` of a machine; None if it does not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    count = ray.remote(oom_kills).options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote()
    try:
        return int(ray.get(count, timeout=COUNT_SECONDS))
    except ray.exceptions.RayError:
        return None
