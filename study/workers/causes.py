"""Why a process was lost, in words: its machine, its memory, or the process alone.

Only memory that could not be allocated decides anything: `study.run.trial` then tries fewer sequences at once.
"""

import os
import re
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from study.plan import PlannedCell
from study.plan.cells import memory_remedy
from study.workers.machines import Slots
from study.workers.ray_session import end_of_log


class LossCause(Enum):
    """How a process was lost; the values are sentences about it."""

    MACHINE = "the machine of {} was lost"
    UNREACHABLE = "{} cannot be reached, so its machine may be lost"
    """Ray's first report of a lost machine; it declares the machine dead half a minute later (2.60)."""
    MEMORY = "out of memory in {}"
    """Torch or Python could not allocate; the process itself was left."""
    KERNEL = "out of memory: the kernel killed {}"
    RAY = "out of memory: Ray's memory monitor killed {}"
    PROCESS = "{} died"


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
    gpu: str = ""
    """The GPU that Ray gave it, of one rank per GPU."""

    def __str__(self) -> str:
        """Return it as in messages."""
        return f"host {self.host}, pid {self.pid}"


class GangError(RuntimeError):
    """A gang was lost; the message names the rank, and the fields have how and where it was lost, if known."""

    loss_cause: LossCause | None = None
    place: Place | None = None


def own_place() -> Place:
    """Return the place of this process, a Ray worker."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (address,) = (record["NodeManagerAddress"] for record in ray.nodes() if record["NodeID"] == node)
    gpus = ray.get_gpu_ids()
    return Place(node, socket.gethostname(), address, os.getpid(), oom_kills(), str(gpus[0]) if gpus else "")


def lost_place(error: BaseException | None, trial: Place | None) -> Place | None:
    """Return where the rank was that was lost: the one a gang names, else that of the trial's own process."""
    return (error.place if isinstance(error, GangError) else None) or trial


def loss_cause(
    error: BaseException | None, place: Place | None = None, *, is_local: bool = False
) -> LossCause | None:
    """Return how a process was lost; None for an exception that it raised itself.

    Ray has one class for a killed process and for a lost machine (2.60), and reports a kill by the kernel as any other:
    it was one for memory if the kernel's count has risen since the cell started. `is_local` is whether this process is
    on the machine of `place`, under the same limit of memory.
    """
    if isinstance(error, GangError):
        return error.loss_cause
    text = str(error)
    if type(error).__module__.startswith("ray."):
        import ray
        from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, WorkerCrashedError

        if isinstance(error, RayActorError | WorkerCrashedError):
            if place and not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == place.node):
                return LossCause.MACHINE
            if isinstance(error, ActorUnavailableError):
                return LossCause.UNREACHABLE
            if "running low on memory" in text:
                return LossCause.RAY
            is_kernel = is_local and place is not None and oom_kills() > place.oom_kills
            return LossCause.KERNEL if is_kernel else LossCause.PROCESS
        if isinstance(error, OutOfMemoryError):
            return LossCause.RAY
    # Torch's allocator raises its own class on a GPU and a plain RuntimeError on a CPU (2.13).
    is_memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    return LossCause.MEMORY if is_memory or "allocate memory" in text else None


def describe(error: BaseException, cause: LossCause | None, process: str) -> str:
    """Return one line on the loss of a process, or on the exception that it raised."""
    if cause is None:
        return f"{process} failed: {as_text(error)}"
    detail = as_text(error) if cause is LossCause.MEMORY else type(error).__name__
    return f"{cause.value.format(process)} ({detail})"


def failure_reason(
    error: BaseException | None,
    planned: PlannedCell,
    slots: Slots,
    place: Place | None = None,
    *,
    is_local: bool = True,
) -> str:
    """Return one paragraph on why the trial of a cell was lost; out of memory also the planned size, and what to set.

    `error` is what ended the trial and `place` where its process was, if they are known. `is_local` is whether the
    trials share the machine and the memory limit of this process.
    """
    ranks = planned.layout.ranks
    process = "the process of the trial"
    if ranks > 1:
        process = f"the supervisor of {ranks} ranks{f' ({place})' if place else ''}"
    cause = loss_cause(error, place, is_local=is_local)
    if isinstance(error, GangError):
        reason = message(error)
    elif error is None:
        reason = f"{process} was lost"
    else:
        reason = describe(error, cause, process) if cause else as_text(error)
    if cause in (LossCause.MEMORY, LossCause.KERNEL, LossCause.RAY):
        reason += f". {memory_remedy(planned, slots.devices, on_gpu=slots.gpus > 0)}"
    where = lost_place(error, place)
    if cause is LossCause.PROCESS and where and (words := end_of_log(where.node, where.pid)):
        reason += f"; its log ends with: {words}"
    return reason


def as_text(error: BaseException) -> str:
    """Return the class and the message of an exception on one line."""
    return f"{type(error).__name__}: {message(error)}"


def message(error: BaseException) -> str:
    """Return the message of an exception on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or "no message"


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes the kernel has killed for memory: in this process's control group, else at all.

    The group's own count also has the kills for the limit of another group or of the machine (Linux, cgroup-v2.rst,
    `memory.events`). Where there is no count, as on other systems than Linux, it is 0.
    """
    files = [proc / "vmstat"]
    cgroup = proc / "self/cgroup"
    # Lines such as `0::/user/a`, or `4:memory:/b` in version 1.
    for line in cgroup.read_text().splitlines() if cgroup.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.insert(0, cgroups / path.lstrip("/") / "memory.events")
        elif controllers == "memory":
            files.insert(0, cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    for file in files:
        if file.is_file() and (count := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)):
            return int(count[1])
    return 0
