"""Runs cells by Ray Tune on warm actors and gangs, and tries them again when a process is lost."""

import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from study.plan import PlannedCell
from study.run.heartbeat import Heartbeat, HeartbeatMonitor
from study.run.interrupts import term_is_interrupt
from study.run.trial import Report, TrialSettings, run_trial, trial_config
from study.search import Outcome, Source
from study.search.early_stopping import Judge
from study.workers.gang import GangError
from study.workers.machines import Slots, live_machines
from study.workers.process_loss import LossCause, loss_cause
from trainables.layout import Layout
from trainables.progress import Progress, Result

#: Seconds for which no other cell is started because a gang waits for room on the live machines. Devices
#: that other studies hold may be why it waits, and free ones are then better used.
HOLD_SECONDS = 3600.0
#: The outcome of a cell whose trial is lost for good.
FAILED = Outcome(None, status="failed")
#: Descriptions of how the process of a trial was lost.
LOSS_CAUSES = {
    LossCause.MACHINE: "the machine of the trial was lost",
    LossCause.UNREACHABLE: "the process of the trial cannot be reached, so its machine may be lost",
    LossCause.MEMORY: "out of memory",
    LossCause.PROCESS: "the process of the trial died",
}


class CellCallback(Protocol):
    """Events of cells; called in the driver's main thread, so they must return quickly."""

    def started(self, planned: PlannedCell) -> None:
        """A trial of this cell has an actor."""

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """A running cell has reported."""

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """A cell is done, was stopped early or diverged."""

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """A cell failed and will not be tried again in this run."""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """A trial was lost; the cell is tried again from its checkpoint."""


def run_cells(
    source: Source,
    slots: Slots,
    settings: TrialSettings,
    retries: int,
    callback: CellCallback,
    scratch: Path,
    trainable: Callable[[dict[str, Any]], None] = run_trial,
    one_machine: bool = True,
    judge: Callable[[PlannedCell], Judge | None] = lambda _: None,
) -> bool:
    """Run all cells of a source; return False if the user stopped it (Ctrl-C or SIGTERM) before the end.

    A cell whose process died is tried again, from its checkpoint, up to `retries` times. The folder `scratch`
    is for Tune's own files and removed at the end. Unless Ray has only `one_machine`, the ranks that share
    matrices are kept on one. `judge` returns the rule by which a cell that starts now may end before its last
    step. Benchmarks of the scheduling alone pass another `trainable`.
    """
    from ray import tune

    from study.workers.placement import placement

    def live_ranks() -> int:
        return sum(slots.ranks_on(machine.resources) for machine in live_machines())

    def resources(config: dict[str, Any]) -> Any:
        return placement(Layout.model_validate_json(config["layout"]), slots, one_machine=one_machine)

    trials = Trials(source, settings, slots.devices, live_ranks, judge)
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(trials),
            scheduler=make_scheduler(),
            num_samples=-1,
            max_concurrent_trials=slots.devices,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(scratch.resolve()),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=retries),
            callbacks=[make_tune_callback(trials, callback), _silent_reporter()],
        ),
    )
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        # Ray takes SIGTERM for itself when it starts, so it is taken back here.
        with term_is_interrupt():
            tuner.fit()
    except tune.TuneError:
        # Tune wraps errors of callbacks in the text of a traceback; re-raise the original error (a full disk).
        if trials.error is None:
            raise
        raise trials.error from None
    finally:
        # Tune leaves its own handler behind, which would swallow the next Ctrl-C.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        shutil.rmtree(scratch, ignore_errors=True)
    return source.done and trials.held is None and not trials.running


class Trials:
    """Maps Tune's trial ids to cells, and starts no cell before its whole gang has devices.

    Left to Tune, a gang would wait for as long as there are narrower cells to take each free device. Even if enough
    are free, they may be on several machines, without room for ranks that must be on one. So nothing is started while
    such a gang waits, unless it waits for machines that are still to come.
    """

    def __init__(
        self,
        source: Source,
        settings: TrialSettings,
        devices: int,
        live_ranks: Callable[[], int] = lambda: 0,
        judge: Callable[[PlannedCell], Judge | None] = lambda _: None,
    ) -> None:
        """Begin with no trial; see `run_cells`. `live_ranks` returns how many ranks the live machines hold."""
        self.source, self.settings, self.devices = source, settings, devices
        self.live_ranks, self.judge = live_ranks, judge
        self.held: PlannedCell | None = None
        """The next cell, which waits for devices."""
        self.running: dict[str, PlannedCell] = {}
        self.waiting: dict[str, float] = {}
        """Trials whose ranks must be together and are not yet placed, and since when."""
        self.error: Exception | None = None

    def suggest(self, trial_id: str) -> dict[str, str] | str | None:
        """Return the configuration of a trial, "FINISHED" after the last one, None if nothing can be started now."""
        busy = sum(other.layout.ranks for other in self.running.values())
        since = time.monotonic() - HOLD_SECONDS
        if any(began > since for began in self.waiting.values()) and self.live_ranks() >= busy:
            return None
        planned = self.held or self.source.take()
        if planned is None:
            return "FINISHED" if self.source.done else None
        self.held = planned if busy + planned.layout.ranks > self.devices else None
        if self.held:
            return None
        self.running[trial_id] = planned
        self.wait(trial_id)
        return trial_config(planned.cell, planned.layout, self.settings, self.judge(planned))

    def wait(self, trial_id: str) -> None:
        """Note that a trial waits to be placed, for the first time or after it was lost."""
        if self.running[trial_id].layout.tensor_parallel > 1:
            self.waiting[trial_id] = time.monotonic()

    def end(self, trial_id: str, outcome: Outcome = FAILED) -> PlannedCell | None:
        """Forget a trial and pass its outcome to the source, once; return None if it has ended already."""
        self.waiting.pop(trial_id, None)
        planned = self.running.pop(trial_id, None)
        if planned is not None:
            self.source.tell(planned.cell.key, outcome)
        return planned


class _NotPickled:
    """Pickles to an empty object: Tune pickles searcher and callbacks for `Tuner.restore`, which no study uses."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return object, ()


def _searcher(trials: Trials) -> Any:
    from ray.tune.search import Searcher

    class CellSearcher(_NotPickled, Searcher):
        """Passes the cells of a source to Tune. It follows from the rows, so there is nothing to save."""

        def suggest(self, trial_id: str) -> dict[str, str] | str | None:
            return trials.suggest(trial_id)

        def on_trial_complete(self, *_: Any, **__: Any) -> None:
            # The callback has passed the outcome on, from the full report.
            return

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()

    return CellSearcher()


def make_scheduler() -> Any:
    """Return Tune's scheduler: first in, first out."""
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import FIFOScheduler

    class InOrder(_NotPickled, FIFOScheduler):
        """Runs trials in the order in which they were added; a lost trial is added again, after all others.

        Tune's own does too (2.60), but looks at all trials at each step, those that have ended included.
        """

        def __init__(self) -> None:
            super().__init__()
            self.open: list[Any] = []

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            if trial in self.open:
                self.open.remove(trial)
            self.open.append(trial)

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            self.open = [trial for trial in self.open if not trial.is_finished()]
            waiting = (
                trial
                for status in (Trial.PENDING, Trial.PAUSED)
                for trial in self.open
                if trial.status == status
            )
            return next(waiting, None)

    return InOrder()


def make_tune_callback(trials: Trials, callback: CellCallback) -> Any:
    """Return a Tune callback that passes Tune's events on as those of cells, and ends gangs without a heartbeat."""
    import ray
    from ray.tune import Callback

    class TuneCallback(_NotPickled, Callback):
        def __init__(self) -> None:
            super().__init__()
            self.heartbeats = HeartbeatMonitor()
            self.progressed: set[str] = set()
            """Trials that have reported progress since they were last lost."""

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            late = self.heartbeats.overdue(time.monotonic())
            for trial in trials if late else ():
                if trial.trial_id in late and trial.temporary_state.ray_actor:
                    # A stopped process cannot answer; Ray (2.60) ends it with SIGKILL after five seconds.
                    ray.kill(trial.temporary_state.ray_actor)

        def on_trial_start(self, trial: Any, **info: Any) -> None:
            trials.waiting.pop(trial.trial_id, None)
            if planned := trials.running.get(trial.trial_id):
                self.notify(callback.started, planned)

        def on_trial_result(self, trial: Any, result: dict[str, Any], **info: Any) -> None:
            planned = trials.running.get(trial.trial_id)
            if planned is None or "report" not in result:
                return
            report = read_report(result["report"])
            if report.alive is not None:
                place = f"host {result['hostname']}, pid {result['pid']}"
                self.heartbeats.record(trial.trial_id, place, report.alive)
            if report.progress:
                self.progressed.add(trial.trial_id)
                self.notify(callback.progress, planned, report.progress)
            if report.result or report.failure:
                self.heartbeats.remove(trial.trial_id)
            if ended := report.result:
                share = ended.step / planned.cell.recipe.steps
                trials.end(trial.trial_id, Outcome(ended.loss, ended.loss_se, share, ended.status))
                self.notify(callback.ended, planned, ended)
            if report.failure:
                trials.end(trial.trial_id)
                self.notify(callback.failed, planned, report.failure)

        def on_trial_recover(self, trial: Any, **info: Any) -> None:
            if planned := trials.running.get(trial.trial_id):
                trials.wait(trial.trial_id)
                if is_machine_loss(trial_error(trial)) and trial.trial_id in self.progressed:
                    # A spot machine may be reclaimed many times in the life of a large cell, which is further each
                    # time. Retries are for losses that may be the cell's own fault.
                    trial.max_failures += 1
                self.progressed.discard(trial.trial_id)
                self.notify(callback.retried, planned, self.loss_of(trial, planned))

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            if planned := trials.end(trial.trial_id):
                self.notify(callback.failed, planned, self.loss_of(trial, planned))

        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            self.heartbeats.remove(trial.trial_id)
            if planned := trials.end(trial.trial_id):
                self.notify(callback.failed, planned, "the trial ended without a result")

        def loss_of(self, trial: Any, planned: PlannedCell) -> str:
            heartbeat = self.heartbeats.remove(trial.trial_id)
            return failure_reason(trial_error(trial), planned.layout.ranks, heartbeat)

        def notify(self, event: Callable[..., None], *arguments: Any) -> None:
            try:
                event(*arguments)
            except Exception as error:
                trials.error = error
                raise

    return TuneCallback()


def _silent_reporter() -> Any:
    """Return a reporter that prints nothing; without one, Tune adds its own, which is never quite silent."""
    from ray.tune.progress_reporter import TrialProgressCallback

    class SilentReporter(_NotPickled, TrialProgressCallback):
        def on_trial_result(self, *_: Any, **__: Any) -> None:
            return

        on_trial_complete = on_trial_error = on_trial_result

    return SilentReporter()


def read_report(text: str) -> Report:
    """Read a trial's report; one that cannot be read fails its cell and not the study."""
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        return Report(failure=f"the trial sent a report that cannot be read: {error.errors()[0]['msg']}")


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


def failure_reason(error: BaseException | None, ranks: int = 1, heartbeat: Heartbeat | None = None) -> str:
    """Return one line on why a trial was lost: how its process was lost, or the exception that it raised.

    The error is that of `trial_error`, the heartbeat the last one of the trial's process; each may be missing.
    """
    name, cause = type(error).__name__, loss_cause(error)
    if cause is None and "OutOfMemory" in name:
        cause = LossCause.MEMORY
    if heartbeat and heartbeat.overdue:
        reason = f"the process of the trial gave no sign of life for {heartbeat.timeout:g} s and was killed"
    elif error is None:
        reason = "the process of the trial was lost"
    elif cause:
        reason = f"{LOSS_CAUSES[cause]} ({name})"
    else:
        message = " ".join(str(error).split())
        return (message if isinstance(error, GangError) else f"{name}: {message or 'no message'}")[:500]
    if ranks == 1:
        return reason
    # The trial's process is rank 0, and can no longer report its own place; the gang names the other ranks.
    return f"rank 0 of {ranks}{f' ({heartbeat.place})' if heartbeat else ''}: {reason}"


def is_machine_loss(error: BaseException | None) -> bool:
    """Whether a trial was lost because the machine of any of its ranks was lost, or seems to be."""
    cause = error.loss_cause if isinstance(error, GangError) else loss_cause(error)
    return cause is not None and cause.of_machine
