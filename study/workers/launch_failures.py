"""Reports machines that the autoscaler cannot start: Ray retries silently and never takes another pool."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from core.numbers import duration
from study.spec.resources import ResourcesSection
from study.workers.machines import AutoscalerLimits, read_autoscaler_limits

#: Seconds between two checks. Ray 2.60 retries a failed launch every five seconds, and forgets it soon after.
POLL_SECONDS = 2.0
#: Seconds after its last failure from which a machine type counts as working, or as no longer requested.
QUIET_SECONDS = 60.0
#: Where Ray 2.60 writes the cause of a failed launch, and nowhere else; it is only named in the message.
AUTOSCALER_LOG = "/tmp/ray/session_latest/logs/monitor.log"

_LOG = logging.getLogger(__name__)


@dataclass
class LaunchFailure:
    """A machine type whose launches fail; times are in seconds of the clock of `LaunchFailures.update`."""

    since: float
    due: float
    """When it is reported next."""
    last: float = 0.0


class LaunchFailures:
    """The machine types that cannot be started: reported after `patience` seconds, and again after as many more."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.failing: dict[str, LaunchFailure] = {}
        self._nodes: set[str] = set()

    def update(
        self, now: float, failures: Collection[str], nodes: Mapping[str, str]
    ) -> dict[str, LaunchFailure]:
        """Add what `autoscaler_status` returns `now`, on a steady clock; return the types to report."""
        for name in {kind for node, kind in nodes.items() if node not in self._nodes}:
            self.failing.pop(name, None)
        self._nodes = set(nodes)
        for name in failures:
            self.failing.setdefault(name, LaunchFailure(now, now + self.patience)).last = now
        self.failing = {n: f for n, f in self.failing.items() if now - f.last <= QUIET_SECONDS}
        due = {n: f for n, f in self.failing.items() if now >= f.due}
        for failing in due.values():
            failing.due = now + self.patience
        return due


def message(name: str, failing: LaunchFailure, now: float, limits: AutoscalerLimits, pool: str) -> str:
    """Return one paragraph: which machines cannot be started, and what to change."""
    machine = (limits.kinds.get(name, {}).get("node_config") or {}).get("InstanceType")
    others = ", ".join(sorted(other for other in limits.kinds if other != name)) or "none"
    return (
        f"No machine of type {name}{f' ({machine})' if machine else ''} could be started for "
        f"{duration(now - failing.since)}; the head has the cloud's reason in {AUTOSCALER_LOG}. Cells that need one "
        f"wait, the others continue, and Ray keeps trying; it takes no other pool by itself (`resources.pool` is "
        f"{pool!r}). To change it, stop the study (nothing is lost) and run it with resources.pool=NAME (others "
        f"of this cluster: {others}), or give the cluster more zones or another machine type and run `ray up` again."
    )


def concerns(name: str, limits: AutoscalerLimits, pool: str) -> bool:
    """Whether a study on a pool waits for machines of a type; another study of the cluster may have requested them."""
    resources = limits.kinds.get(name, {}).get("resources")
    return pool == "any" or resources is None or bool(resources.get(pool))


@contextmanager
def report_launch_failures(resources: ResourcesSection, show: Callable[[str], None]) -> Iterator[None]:
    """Watch the autoscaler of the joined cluster in a thread, and `show` which machines cannot be started.

    A cluster without an autoscaler reports nothing. If the head does not answer, this is logged once.
    """
    over = threading.Event()

    def watch() -> None:
        launches, limits = LaunchFailures(resources.capacity_timeout_seconds), read_autoscaler_limits()
        warned = False
        while not over.wait(POLL_SECONDS):
            try:
                failures, nodes = autoscaler_status()
            except Exception as error:  # noqa: BLE001 - the head may be busy; cells are still trained
                if not warned:
                    _LOG.warning("Ray's autoscaler cannot be asked which machines are missing: %s", error)
                warned = True
                continue
            now, pool = time.monotonic(), resources.pool
            waited = {name for name in failures if concerns(name, limits, pool)}
            for name, failing in launches.update(now, waited, nodes).items():
                show(message(name, failing, now, limits, pool))

    thread = threading.Thread(target=watch, name="launch failures", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def autoscaler_status() -> tuple[set[str], dict[str, str]]:
    """Return the machine types of which launches failed recently, and the type by id of each machine there is."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    status: Any = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = (*status.active_nodes, *status.idle_nodes, *status.pending_nodes)
    failing = {launch.ray_node_type_name for launch in status.failed_launches}
    return failing, {node.instance_id: node.ray_node_type_name for node in nodes}
