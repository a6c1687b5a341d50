"""Says when a pool of a cluster gives no machine: Ray tries on in silence, and never takes another pool instead."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study.plan.table import duration
from study.spec.resources import ResourcesSection
from study.workers.machines import Promised, promised

#: Seconds between two looks. Ray 2.60 tries a launch that failed again every five, and forgets it soon after.
POLL_SECONDS = 2.0
#: A type whose last failure is older than this has stopped failing: it started, or is no longer asked for.
QUIET_SECONDS = 60.0
#: Where the autoscaler writes, on the head, which is where the driver of a job runs; and how much of its end is read.
AUTOSCALER_LOG = Path("/tmp/ray/session_latest/logs/monitor.log")
TAIL_BYTES = 1 << 18

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failing:
    """A type of machine whose launches fail."""

    since: float
    """Seconds of the clock of `Shortages.look`, as are the others."""
    last: float
    reason: str
    said: float | None = None


class Shortages:
    """Which types of machines cannot be had, and since when."""

    def __init__(self, patience: float) -> None:
        """Hold a type for missing after `patience` seconds of failures, and again after as many more."""
        self.patience = patience
        self.failing: dict[str, Failing] = {}
        self._nodes: set[str] = set()

    def look(self, now: float, failures: Mapping[str, str], nodes: Mapping[str, str]) -> dict[str, Failing]:
        """Note what Ray's autoscaler says now; return the types that are to be spoken of.

        Args:
            now: seconds of a clock that does not jump back.
            failures: the reason of each type whose launch failed of late.
            nodes: the type of each machine that is there or starting, by an id.
        """
        for name in {kind for node, kind in nodes.items() if node not in self._nodes}:
            self.failing.pop(name, None)
        self._nodes = set(nodes)
        for name, reason in failures.items():
            before = self.failing.get(name, Failing(now, now, reason))
            self.failing[name] = replace(before, last=now, reason=reason or before.reason)
        self.failing = {n: f for n, f in self.failing.items() if now - f.last <= QUIET_SECONDS}
        due = {n: f for n, f in self.failing.items() if now - (f.said or f.since) >= self.patience}
        for name, failing in due.items():
            self.failing[name] = replace(failing, said=now)
        return due


def message(name: str, failing: Failing, now: float, promise: Promised, pool: str) -> str:
    """One paragraph: which machines cannot be had, why, and what to change."""
    kind = promise.kinds.get(name, {})
    machine = (kind.get("node_config") or {}).get("InstanceType")
    others = ", ".join(sorted(other for other in promise.kinds if other != name)) or "none"
    asked = f"`resources.pool` is {pool!r}"
    return (
        f"No machine of type {name}{f' ({machine})' if machine else ''} could be started for "
        f"{duration(now - failing.since)}: {failing.reason or 'no reason was given'}. Cells that need one wait, the "
        f"others go on, and it is tried again all the time; Ray takes no other pool by itself ({asked}). To change it, "
        f"stop the study (nothing is lost) and run it with --set resources.pool=NAME (others of this cluster: "
        f"{others}), or give the cluster more zones or another machine type and run `ray up` again."
    )


def concerns(name: str, promise: Promised, pool: str) -> bool:
    """Whether a study on a pool waits for machines of a type: another study of the cluster may have asked for them."""
    resources = promise.kinds.get(name, {}).get("resources")
    return pool == "any" or resources is None or bool(resources.get(pool))


def cloud_answers(log: Path) -> dict[str, str]:
    """What the cloud said to the last launch that failed of each type of machine, by the autoscaler's own log.

    Ray 2.60 passes the failure on without its cause (its LaunchNodeError is made without details) and writes the cause
    to this file alone. Where there is no such file, nothing is known.
    """
    if not log.is_file():
        return {}
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    found = re.findall(r"Failed to launch \d+ nodes of type (\S+): (.+)", text)
    return {name: _short(answer) for name, answer in found}


@contextmanager
def said_shortages(resources: ResourcesSection, say: Callable[[str], None]) -> Iterator[None]:
    """Watch the autoscaler of the joined cluster in a thread, and say which pools cannot be had.

    A cluster without an autoscaler has nothing to say. One that cannot be asked is noted in the log and asked again:
    the study itself does not need the answer.
    """
    over = threading.Event()

    def watch() -> None:
        shortages, promise, warned = Shortages(resources.capacity_timeout_seconds), promised(), False
        while not over.wait(POLL_SECONDS):
            try:
                failures, nodes = _asked()
            except Exception as error:  # noqa: BLE001 - the head may be busy; cells train on all the same
                if not warned:
                    _LOG.warning("Ray's autoscaler cannot be asked which machines are missing: %s", error)
                warned = True
                continue
            now = time.monotonic()
            failures = {n: why for n, why in failures.items() if concerns(n, promise, resources.pool)}
            for name, failing in shortages.look(now, failures, nodes).items():
                say(message(name, failing, now, promise, resources.pool))

    thread = threading.Thread(target=watch, name="shortages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _asked() -> tuple[dict[str, str], dict[str, str]]:
    """What failed of late by type, and the type of each machine there is."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    status: Any = get_cluster_status(ray.get_runtime_context().gcs_address)
    names = {launch.ray_node_type_name: _short(launch.details) for launch in status.failed_launches}
    answers = cloud_answers(AUTOSCALER_LOG) if names else {}
    failures = {name: answers.get(name) or details for name, details in names.items()}
    there = (*status.active_nodes, *status.idle_nodes, *status.pending_nodes)
    return failures, {node.instance_id: node.ray_node_type_name for node in there}


def _short(details: str | None) -> str:
    """The cloud's own words, on one line; a traceback's last line is where they are."""
    lines = [line.strip() for line in (details or "").splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else ""
