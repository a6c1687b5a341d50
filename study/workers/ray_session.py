"""Ray for the time of a study: the cluster this process belongs to, or a private one on this machine."""

import asyncio
import importlib
import logging
import math
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

from core.errors import shortened
from study.errors import SpecError
from study.workers.machines import Slots

#: Read by Ray when it is imported or started: no telemetry, no log files of trials, no output. Tune's experiment
#: snapshot is not used (a study is resumed from its rows), so it is written as rarely as possible.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",
    # Cells save before Tune ends; see `study.run.tuner`.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
#: Set in every trial's process before torch is loaded.
TRIAL_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
OBJECT_STORE_BYTES = 128 << 20
#: Time limit for a connection to the head of a cluster.
ANSWER_SECONDS = 10.0
#: Ray's core reads its token once, so a second session of this process must have the same.
TOKEN = secrets.token_hex(32)
#: Environment variable with the folder in which Ray keeps the logs of this machine's processes, while Ray runs.
LOGS = "INTERPLAY_RAY_LOGS"
#: Most characters of a line that are kept.
LONGEST_LINE = 300
#: Seconds that the log of a process of another machine may take.
LOG_SECONDS = 10


def joins() -> bool:
    """Whether this process belongs to a cluster: it is a job of `ray job submit`, or RAY_ADDRESS names one."""
    return bool(os.environ.get("RAY_ADDRESS"))


def joined_cluster(*, on_gpu: bool) -> AbstractContextManager[None]:
    """Join the cluster this process belongs to, with the authentication that the environment sets."""
    check_address(os.environ["RAY_ADDRESS"])
    return _connected(on_gpu=on_gpu)


def check_address(address: str) -> None:
    """Refuse an address for which Ray would print a traceback, or that it would try for minutes."""
    host, _, port = address.rpartition(":")
    problem = ""
    if "://" in address:
        problem = (
            ": a study joins a cluster by HOST:PORT of its head (such as 10.0.0.4:6379), on a machine of it"
        )
    elif host and port.isdigit():  # `auto` and `local` are Ray's own words
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            problem = f", and no Ray cluster answers there ({error})"
    if problem:
        raise SpecError(
            f"RAY_ADDRESS is {address}{problem}. Unset RAY_ADDRESS to train on this machine, or send the study to the "
            "cluster with `interplay submit`."
        )


@contextmanager
def private_ray(slots: Slots) -> Iterator[None]:
    """Start Ray with the slots' resources on this machine, on loopback and with token authentication.

    The token is in a file of this session, so that the user's own token and any running cluster stay untouched.
    """
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    # Ray never removes the logs and sockets of a session (0.3 to 3 MB). The path of a socket may have 107 characters,
    # and the temporary folder of macOS has too long a name.
    where = os.environ.get("RAY_TMPDIR", "/tmp")
    with tempfile.TemporaryDirectory(prefix="interplay-", dir=where, ignore_cleanup_errors=True) as scratch:
        token = Path(scratch, "token")
        token.touch(mode=0o600)
        token.write_text(TOKEN, encoding="ascii")
        # Ray lets every user write to its folder, in which the driver unpickles errors; none can enter ours.
        os.environ.update(zip(names, ("token", str(token), scratch), strict=True))
        try:
            with _connected(
                on_gpu=bool(slots.gpus),
                address="local",
                num_cpus=math.ceil(slots.devices * slots.cpus),
                num_gpus=math.ceil(slots.devices * slots.gpus) or None,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
            ):
                yield
        finally:
            for name in names:
                os.environ.pop(name, None)
            os.environ.update(before)


@contextmanager
def _connected(*, on_gpu: bool, **options: Any) -> Iterator[None]:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Imported here: Ray's C++ core reads the mode of authentication once, at import.
    import ray

    # Ray shows every GPU to a process that asked for none; a cell planned for the CPU must not see them.
    hidden = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    # `log_to_driver=False` leaves a paragraph in the live table when a process dies (Ray 2.60).
    worker: Any = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        with _own_signals():
            session = ray.init(
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                runtime_env={"env_vars": TRIAL_ENVIRONMENT | hidden},
                **options,
            )
        os.environ[LOGS] = str(Path(session.address_info["session_dir"], "logs"))
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield
    finally:
        os.environ.pop(LOGS, None)
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep SIGHUP from the processes that Ray starts, and the handler of SIGTERM in this one, which Ray replaces.

    When a terminal is closed, the trials would die before they can save. They inherit the mask; this process gets a
    SIGHUP that came meanwhile at the end.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_of_log(node: str, pid: int) -> str:
    """Return the last line that a process wrote to stderr: NCCL's reason, or the signal that ended native code.

    Empty if it wrote none, or if its log cannot be read; the log of another machine needs Ray's dashboard there.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.state import get_log
    from ray.util.state.exception import RayStateApiException

    lines: list[str] = []
    if LOGS not in os.environ:
        return ""
    if node == ray.get_runtime_context().get_node_id():
        for file in Path(os.environ[LOGS]).glob(f"worker-*-{pid}.err"):
            lines = file.read_text(errors="replace").splitlines()
    else:
        try:
            log = get_log(node_id=node, pid=pid, suffix="err", tail=20, timeout=LOG_SECONDS)
            lines = "".join(log).splitlines()
        except (RayError, RayStateApiException, OSError) as error:
            logging.getLogger(__name__).info("No log of process %d on %s: %s", pid, node, error)
    # Ray's own lines begin with a colon, such as `:actor_name:ImplicitFunc`.
    messages = [line.strip() for line in lines if line.strip() and not line.startswith(":")]
    return shortened(messages[-1], LONGEST_LINE) if messages else ""


class _StopEvent:
    """The stop event of a run, as an actor; each trial, on any machine, has one call of `wait` pending."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def set(self) -> None:
        """End the calls of `wait`."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the run is to stop."""
        await self._event.wait()


def make_stop_event(run: str) -> Callable[[], Any]:
    """Start the stop event of a run on this machine, and return the function that sets it.

    The event exists as long as that function is kept; `run` is its name, unique in the cluster.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    event = ray.remote(_StopEvent).options(
        name=run,
        num_cpus=0,
        scheduling_strategy=strategy,
        # If its process is lost, the pending calls are made again on a new one.
        max_restarts=-1,
        max_task_retries=-1,
        # The call of a process that was killed stays pending.
        max_concurrency=100_000,
    )
    return cast("Callable[[], Any]", event.remote().set.remote)


@contextmanager
def stop_requested(run: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the run is to stop.

    It looks at one pending call of the run's stop event, which costs no message: looking for an actor by its name once
    a second wrote 25 MB per trial and day to the logs (ray 2.60).
    """
    import ray

    if not run:
        # A trial by itself, without a driver that could ask it.
        yield lambda: False
        return
    call = ray.get_actor(run).wait.remote()

    def is_set() -> bool:
        done, _ = ray.wait([call], timeout=0)
        # A call that ended because the event was lost for good raises here.
        return bool(done) and ray.get(call) is None

    try:
        yield is_set
    finally:
        ray.cancel(call)


@contextmanager
def polled(look: Callable[[], bool], seconds: float, name: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether `look` was true; a thread calls it every so many seconds until it is."""
    over, came = threading.Event(), threading.Event()

    def watch() -> None:
        while not came.is_set() and not over.wait(seconds):
            if look():
                came.set()

    threading.Thread(target=watch, name=name, daemon=True).start()
    try:
        yield came.is_set
    finally:
        over.set()
