"""Ray Tune: gives cells to warm actors, tries them again when a process dies, and tells how they end."""

import functools
import importlib
import logging
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from study.devices import local_gpus
from study.errors import SpecError
from study.plan import PlannedCell
from study.search import Outcome, Source
from study.trial import Report, TrialSettings, run_trial, trial_config
from trainables.progress import Progress, Result

#: Read by Ray when it is imported or started: no telemetry, no per-trial log files, no output of its own. Tune's
#: experiment snapshot is not used (a study is rebuilt from its run table), so it is written as rarely as can be.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",
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


class Listener(Protocol):
    """What the runner hears of its cells; called in the driver's main thread, so it must be quick."""

    def started(self, planned: PlannedCell) -> None:
        """A trial of this cell has an actor."""

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """A running cell has news."""

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """A cell is done or diverged."""

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """A cell failed and will not be tried again in this run."""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """A trial was lost; the cell is tried again from its checkpoint."""


@dataclass(frozen=True)
class Slots:
    """How many trials run side by side and what each takes."""

    trials: int
    cpus: float
    gpus: float


@contextmanager
def ray_session(slots: Slots) -> Iterator[None]:
    """Join the cluster this process belongs to, or start Ray on this machine for as long as the block lasts.

    Inside a job (`ray job submit`) or where RAY_ADDRESS is set the cluster is joined; else a private Ray is started
    on loopback with token authentication, its token in a file of this session, so that neither the user's own token
    nor a cluster they have running is touched.
    """
    os.environ.update({k: v for k, v in ENVIRONMENT.items() if k not in os.environ})
    joins = bool(os.environ.get("RAY_ADDRESS"))
    scratch = None if joins else Path(tempfile.mkdtemp(prefix="interplay-"))
    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    if scratch:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(scratch / "token")
        _write_token(scratch / "token")
    # Only now: Ray's C++ core reads the mode of authentication once, at import.
    import ray

    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
        # Ray shows every GPU to a process that asked for none; a cell planned for the CPU must not see them.
        "runtime_env": {"env_vars": TRIAL_ENVIRONMENT | ({} if slots.gpus else {"CUDA_VISIBLE_DEVICES": ""})},
    }
    if not joins:
        options |= {
            "address": "local",
            "num_cpus": math.ceil(slots.trials * slots.cpus),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
        if slots.gpus:
            options["num_gpus"] = math.ceil(slots.trials * slots.gpus)
    try:
        _silence_raylet()
        ray.init(**options)
        _check_capacity(slots, ray.cluster_resources())
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield
    finally:
        ray.shutdown()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def run_cells(
    source: Source,
    slots: Slots,
    settings: TrialSettings,
    retries: int,
    listener: Listener,
    scratch: Path,
    trainable: Callable[[dict[str, Any]], None] = run_trial,
) -> bool:
    """Run all cells of a source; return False if the user stopped it (Ctrl-C or SIGTERM) before the end.

    Args:
        source: gives the cells and is told how they end.
        slots: how many trials at once, and their resources.
        settings: passed to every trial.
        retries: how often a cell whose process died is tried again, each time from its checkpoint.
        listener: hears what happens.
        scratch: folder for Tune's own files, removed at the end.
        trainable: what a trial runs; benchmarks of the scheduling alone give another.
    """
    from ray import tune

    adapter = _Adapter(source, settings)
    sized = tune.with_resources(trainable, {"CPU": slots.cpus, "GPU": slots.gpus})
    tuner = tune.Tuner(
        sized,
        tune_config=tune.TuneConfig(
            search_alg=_searcher(adapter),
            num_samples=-1,
            max_concurrent_trials=slots.trials,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(scratch.resolve()),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=retries),
            callbacks=[_callback(adapter, listener), _silence()],
        ),
    )
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        # Ray takes SIGTERM for itself when it starts, so it is taken back here.
        with term_is_interrupt():
            tuner.fit()
    except tune.TuneError:
        # Tune wraps what its callbacks raise in a traceback's text; the user is owed the error itself (a full disk).
        if adapter.error is None:
            raise
        raise adapter.error from None
    finally:
        # Tune leaves its own handler behind, which would swallow the first Ctrl-C of whatever comes next.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        shutil.rmtree(scratch, ignore_errors=True)
    return source.done and not adapter.running


class _Adapter:
    """Joins Tune's trial ids with cells."""

    def __init__(self, source: Source, settings: TrialSettings) -> None:
        self.source, self.settings = source, settings
        self.running: dict[str, PlannedCell] = {}
        self.error: Exception | None = None

    def suggest(self, trial_id: str) -> dict[str, str | int] | str | None:
        planned = self.source.take()
        if planned is None:
            return "FINISHED" if self.source.done else None
        self.running[trial_id] = planned
        return trial_config(planned.cell, planned.micro_batch, self.settings)

    def end(self, trial_id: str, loss: float | None) -> PlannedCell | None:
        """Forget a trial and tell the source, once; None for a trial that has ended already."""
        planned = self.running.pop(trial_id, None)
        if planned is not None:
            self.source.tell(planned.cell.key, Outcome(loss))
        return planned


class _NotPickled:
    """Pickles to nothing: Tune pickles searcher and callbacks for `Tuner.restore`, which no study relies on."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return object, ()


def _searcher(adapter: _Adapter) -> Any:
    from ray.tune.search import Searcher

    class CellSearcher(_NotPickled, Searcher):  # type: ignore[misc, unused-ignore]
        """Gives Tune the cells of a source. Its state is the run table's, so there is nothing to save."""

        def __init__(self) -> None:
            super().__init__()

        def suggest(self, trial_id: str) -> dict[str, str | int] | str | None:
            return adapter.suggest(trial_id)

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            # The callback has told the source already, from the full report.
            return

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()

        def restore(self, checkpoint_path: str) -> None:
            return

    return CellSearcher()


def _callback(adapter: _Adapter, listener: Listener) -> Any:
    from ray.tune import Callback

    class CellCallback(_NotPickled, Callback):  # type: ignore[misc, unused-ignore]
        """Turns Tune's events into the listener's."""

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.running.get(trial.trial_id):
                listener.started(planned)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            planned = adapter.running.get(trial.trial_id)
            if planned is None or "report" not in result:
                return
            report = read_report(result["report"])
            try:
                if report.progress:
                    listener.progress(planned, report.progress)
                if report.result:
                    adapter.end(trial.trial_id, report.result.loss)
                    listener.ended(planned, report.result)
                if report.failure:
                    adapter.end(trial.trial_id, None)
                    listener.failed(planned, report.failure)
            except Exception as error:
                adapter.error = error
                raise

        def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.running.get(trial.trial_id):
                listener.retried(planned, failure_reason(trial))

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.end(trial.trial_id, None):
                listener.failed(planned, failure_reason(trial))

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.end(trial.trial_id, None):
                listener.failed(planned, "the trial ended without a result")

    return CellCallback()


def _silence() -> Any:
    """A reporter that prints nothing; where Tune is given none, it adds one that is never quite silent."""
    from ray.tune.progress_reporter import TrialProgressCallback

    class Silence(_NotPickled, TrialProgressCallback):  # type: ignore[misc, unused-ignore]
        """Takes the place of Tune's own reporter."""

        def on_trial_result(self, *_: Any, **__: Any) -> None:
            return

        def on_trial_complete(self, *_: Any, **__: Any) -> None:
            return

        def on_trial_error(self, *_: Any, **__: Any) -> None:
            return

    return Silence()


def read_report(text: str) -> Report:
    """Read a trial's report; one that cannot be read fails its cell and not the study."""
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        return Report(failure=f"the trial sent a report that cannot be read: {error.errors()[0]['msg']}")


def failure_reason(trial: Any) -> str:
    """One line on why a Tune trial was lost: what killed its process, or the exception it raised."""
    error = _error(trial)
    if error is None:
        return "the process of the trial was lost"
    cause = getattr(error, "cause", None) or error
    name = type(cause).__name__
    if name in ("RayActorError", "ActorDiedError", "WorkerCrashedError"):
        return f"the process of the trial died ({name})"
    if "OutOfMemory" in name:
        return f"out of memory ({name})"
    message = " ".join(str(cause).split())
    return f"{name}: {message or 'no message'}"[:500]


def _error(trial: Any) -> BaseException | None:
    """The exception that ended a trial's last try, read where the driver wrote it before it is copied to storage."""
    path = Path(trial.pickled_error_file or "")
    if not path.is_file():
        return None
    from ray import cloudpickle

    error: BaseException = cloudpickle.loads(path.read_bytes())
    return error


def _silence_raylet() -> None:
    """Keep Ray from printing a paragraph into the live table whenever a process dies; the listener says so itself.

    `log_to_driver=False` does not cover these messages (Ray 2.60).
    """
    worker: Any = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream = lambda *_, **__: None


@functools.cache
def _token() -> str:
    """The token of this process: Ray's core reads it once and keeps it, so a second session must have the same."""
    return secrets.token_hex(32)


def _write_token(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())


def check_devices(slots: Slots, device: str) -> None:
    """Refuse GPUs that this machine does not have: Ray would take our word for them and the trials would use the CPU.

    Raises:
        SpecError: more GPUs are planned than there are; a cluster that is joined is asked later, by Ray.
    """
    needed = math.ceil(slots.trials * slots.gpus)
    if needed and not os.environ.get("RAY_ADDRESS") and needed > (found := local_gpus()):
        raise SpecError(
            f"`resources.device` {device} with {slots.trials} slots needs {needed} GPUs, and this machine has {found}. "
            f"Set `resources.slots` to {found} or fewer, or `resources.device: cpu`, or join a cluster that has them "
            "(RAY_ADDRESS)."
        )


def _check_capacity(slots: Slots, resources: dict[str, float]) -> None:
    """Refuse a trial that no machine of the cluster could ever hold; Tune would wait for it in silence.

    Raises:
        SpecError: the cluster as a whole has less than one trial needs.
    """
    for name, needed in (("CPU", slots.cpus), ("GPU", slots.gpus)):
        if resources.get(name, 0) < needed:
            raise SpecError(
                f"one trial needs {needed:g} {name}s, and the Ray cluster has {resources.get(name, 0):g}. Lower "
                f"`resources.{name.lower()}s_per_trial`, or start machines that have them."
            )


@contextmanager
def term_is_interrupt() -> Iterator[None]:
    """Let SIGTERM (a scheduler's stop) end the study as cleanly as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
