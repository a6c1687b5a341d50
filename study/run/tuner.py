"""Ray Tune: gives cells to warm actors and gangs, tries them again when a process dies, and tells how they end."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from study.plan.cells import PlannedCell
from study.run.trial import Report, TrialSettings, run_trial, trial_config
from study.search import Outcome, Source
from study.search.early_stopping import Judge
from study.workers.gang import GangError
from study.workers.machines import Slots, live_machines, placement
from study.workers.process_loss import LossCause, death
from trainables.layout import Layout
from trainables.progress import Progress, Result

#: Seconds between two steps of Tune's loop, 0.1 when all is well, beyond which the driver itself was not awake.
AWAKE_SECONDS = 2.0
#: Seconds for which no other cell is begun because a gang waits for room on the machines that are there. Devices that
#: other studies hold may be why it waits, and what is free is then better used.
HOLD_SECONDS = 3600.0
#: What the search hears of a cell whose trial is lost for good.
FAILED = Outcome(None, status="failed")
#: What is said of the process of a trial.
LOSS_CAUSES = {
    LossCause.MACHINE: "the machine of the trial was lost",
    LossCause.UNREACHABLE: "the process of the trial cannot be reached, so its machine may be lost",
    LossCause.MEMORY: "out of memory",
    LossCause.PROCESS: "the process of the trial died",
}


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


def run_cells(
    source: Source,
    slots: Slots,
    settings: TrialSettings,
    retries: int,
    listener: Listener,
    scratch: Path,
    trainable: Callable[[dict[str, Any]], None] = run_trial,
    one_machine: bool = True,
    judge: Callable[[PlannedCell], Judge | None] = lambda _: None,
) -> bool:
    """Run all cells of a source; return False if the user stopped it (Ctrl-C or SIGTERM) before the end.

    Args:
        source: gives the cells and is told how they end.
        slots: how many devices at once, and their resources.
        settings: passed to every trial.
        retries: how often a cell whose process died is tried again, each time from its checkpoint.
        listener: hears what happens.
        scratch: folder for Tune's own files, removed at the end.
        trainable: what a trial runs; benchmarks of the scheduling alone give another.
        one_machine: whether Ray has only this machine; else the ranks that share matrices are kept on one.
        judge: says by what a cell that starts now may end before its last step.
    """
    from ray import tune

    def there() -> int:
        return sum(slots.ranks_on(machine.resources) for machine in live_machines())

    adapter = _Adapter(source, settings, slots.devices, there, judge)

    def resources(config: dict[str, Any]) -> Any:
        return placement(Layout.model_validate_json(config["layout"]), slots, one_machine=one_machine)

    sized = tune.with_resources(trainable, resources)
    tuner = tune.Tuner(
        sized,
        tune_config=tune.TuneConfig(
            search_alg=_searcher(adapter),
            scheduler=_scheduler(),
            num_samples=-1,
            max_concurrent_trials=slots.devices,
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
    return source.done and adapter.held is None and not adapter.running


class _Adapter:
    """Joins Tune's trial ids with cells, and gives no cell before its whole gang has devices.

    Left to Tune, a gang would wait for as long as there are narrower cells to take each device that falls free, and
    hold a place among the running trials meanwhile. Devices that are free on several machines need not have room for
    ranks that must be together: narrower cells would take each that falls free, so none is begun while such a gang
    waits, unless it waits for machines that are still to come.
    """

    def __init__(
        self,
        source: Source,
        settings: TrialSettings,
        devices: int,
        there: Callable[[], int] = lambda: 0,
        judge: Callable[[PlannedCell], Judge | None] = lambda _: None,
    ) -> None:
        self.source, self.settings, self.devices = source, settings, devices
        self.there = there
        """How many ranks the machines hold that live now."""
        self.judge = judge
        """By what a cell that starts now may end before its last step."""
        self.held: PlannedCell | None = None
        """The next cell, which waits for devices."""
        self.running: dict[str, PlannedCell] = {}
        self.waiting: dict[str, float] = {}
        """Trials whose ranks must be together and are not yet placed, and since when."""
        self.error: Exception | None = None

    def suggest(self, trial_id: str) -> dict[str, str] | str | None:
        busy = sum(other.layout.ranks for other in self.running.values())
        since = time.monotonic() - HOLD_SECONDS
        if any(began > since for began in self.waiting.values()) and self.there() >= busy:
            return None
        planned = self.held or self.source.take()
        if planned is None:
            return "FINISHED" if self.source.done else None
        self.held = planned if busy + planned.layout.ranks > self.devices else None
        if self.held:
            return None
        self.running[trial_id] = planned
        self.waits(trial_id)
        return trial_config(planned.cell, planned.layout, self.settings, self.judge(planned))

    def waits(self, trial_id: str) -> None:
        """Note that a trial waits to be placed, for the first time or after it was lost."""
        if self.running[trial_id].layout.tensor_parallel > 1:
            self.waiting[trial_id] = time.monotonic()

    def end(self, trial_id: str, outcome: Outcome = FAILED) -> PlannedCell | None:
        """Forget a trial and tell the source, once; None for a trial that has ended already."""
        self.waiting.pop(trial_id, None)
        planned = self.running.pop(trial_id, None)
        if planned is not None:
            self.source.tell(planned.cell.key, outcome)
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

        def suggest(self, trial_id: str) -> dict[str, str] | str | None:
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


def _scheduler() -> Any:
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import FIFOScheduler

    class InOrder(_NotPickled, FIFOScheduler):  # type: ignore[misc, unused-ignore]
        """Runs trials in the order in which they came.

        So does Tune's own (2.60), but it goes through all trials at each step, those that have ended too. A trial that
        was lost comes again, after all others.
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


def _callback(adapter: _Adapter, listener: Listener) -> Any:
    from ray.tune import Callback

    class CellCallback(_NotPickled, Callback):  # type: ignore[misc, unused-ignore]
        """Turns Tune's events into the listener's, and ends a gang whose trial process is stopped."""

        def __init__(self) -> None:
            super().__init__()
            self.signs = SignsOfLife()
            self.moved: set[str] = set()
            """Trials with news since they were last lost."""

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            for trial_id in self.signs.overdue(time.monotonic()):
                for trial in trials:
                    if trial.trial_id == trial_id and trial.temporary_state.ray_actor:
                        _kill(trial.temporary_state.ray_actor)

        def lost(self, trial: Any, planned: PlannedCell) -> str:
            seen = self.signs.forget(trial.trial_id)
            return failure_reason(trial, planned.layout.ranks, seen)

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            adapter.waiting.pop(trial.trial_id, None)
            if planned := adapter.running.get(trial.trial_id):
                listener.started(planned)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            planned = adapter.running.get(trial.trial_id)
            if planned is None or "report" not in result:
                return
            report = read_report(result["report"])
            if report.alive is not None:
                place = f"host {result['hostname']}, pid {result['pid']}"
                self.signs.heard(trial.trial_id, place, report.alive)
            if report.result or report.failure:
                self.signs.forget(trial.trial_id)
            try:
                if report.progress:
                    self.moved.add(trial.trial_id)
                    listener.progress(planned, report.progress)
                if report.result:
                    adapter.end(trial.trial_id, outcome_of(report.result, planned))
                    listener.ended(planned, report.result)
                if report.failure:
                    adapter.end(trial.trial_id)
                    listener.failed(planned, report.failure)
            except Exception as error:
                adapter.error = error
                raise

        def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.running.get(trial.trial_id):
                adapter.waits(trial.trial_id)
                reason = self.lost(trial, planned)
                if lost_machine(trial) and trial.trial_id in self.moved:
                    # A spot machine may be taken back many times in the life of a large cell, and each time the cell
                    # is further; a retry is for what may be the cell's own fault.
                    trial.max_failures += 1
                self.moved.discard(trial.trial_id)
                listener.retried(planned, reason)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if planned := adapter.end(trial.trial_id):
                listener.failed(planned, self.lost(trial, planned))

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.signs.forget(trial.trial_id)
            if planned := adapter.end(trial.trial_id):
                listener.failed(planned, "the trial ended without a result")

    return CellCallback()


@dataclass(frozen=True)
class Sign:
    """The last sign of life of a trial's process."""

    place: str
    """Its host and pid."""
    patience: float
    """Seconds in which another was to come."""
    due: float
    """When they are over, on the clock of `SignsOfLife`."""
    overdue: bool = False


class SignsOfLife:
    """Notices a trial process that is stopped as a whole: the supervisor of its gang is a thread of it, as silent.

    Only time in which the driver itself is awake counts, so that neither a laptop's sleep nor a driver that was busy
    or stopped is taken for the silence of its trials.
    """

    def __init__(self) -> None:
        self.signs: dict[str, Sign] = {}
        self._clock, self._last = 0.0, 0.0

    def heard(self, trial_id: str, place: str, patience: float) -> None:
        """Note a sign of life of a trial, after which another comes within `patience` seconds."""
        self.signs[trial_id] = Sign(place, patience, self._clock + patience)

    def forget(self, trial_id: str) -> Sign | None:
        """Return the last sign of a trial that has ended or was lost, if there was one, and expect no other."""
        return self.signs.pop(trial_id, None)

    def overdue(self, now: float) -> list[str]:
        """Return the trials that have become overdue, each once.

        Args:
            now: in seconds, of a clock that does not jump back; asked many times a second while the driver is awake.
        """
        self._clock += min(now - self._last, AWAKE_SECONDS)
        self._last = now
        late = [name for name, sign in self.signs.items() if self._clock > sign.due and not sign.overdue]
        for name in late:
            self.signs[name] = replace(self.signs[name], overdue=True)
        return late


def _kill(actor: Any) -> None:
    import ray

    # A stopped process cannot answer; Ray (2.60) ends it with SIGKILL after five seconds.
    ray.kill(actor)


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


def outcome_of(result: Result, planned: PlannedCell) -> Outcome:
    """What a search is told of a cell that ended with a result."""
    return Outcome(result.loss, result.loss_se, result.step / planned.cell.recipe.steps, result.status)


def read_report(text: str) -> Report:
    """Read a trial's report; one that cannot be read fails its cell and not the study."""
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        return Report(failure=f"the trial sent a report that cannot be read: {error.errors()[0]['msg']}")


def failure_reason(trial: Any, ranks: int = 1, sign: Sign | None = None) -> str:
    """One line on why a Tune trial was lost: what killed its process, or the exception it raised.

    Args:
        trial: Tune's.
        ranks: of its cell.
        sign: the last one of its process.
    """
    reason = _reason(_cause(trial))
    if sign and sign.overdue:
        reason = f"the process of the trial gave no sign of life for {sign.patience:g} s and was killed"
    # Rank 0's process is the trial's, and can name itself no more; the gang names the others.
    is_lost = reason.startswith(("the process", "the machine", "out of memory"))
    where = f" ({sign.place})" if sign else ""
    return f"rank 0 of {ranks}{where}: {reason}" if ranks > 1 and is_lost else reason


def lost_machine(trial: Any) -> bool:
    """Whether a Tune trial was lost because the machine of any of its ranks went, or seems to have gone."""
    cause = _cause(trial)
    how = cause.death if isinstance(cause, GangError) else death(cause)
    return how is not None and how.of_machine


def _reason(cause: BaseException | None) -> str:
    if cause is None:
        return "the process of the trial was lost"
    name = type(cause).__name__
    if how := death(cause):
        return f"{LOSS_CAUSES[how]} ({name})"
    if "OutOfMemory" in name:
        return f"{LOSS_CAUSES[LossCause.MEMORY]} ({name})"
    message = " ".join(str(cause).split())
    if isinstance(cause, GangError):
        return message[:500]
    return f"{name}: {message or 'no message'}"[:500]


def _cause(trial: Any) -> BaseException | None:
    """What ended a trial's last try, out of the wrapper in which Ray carries what a process raised."""
    error = _error(trial)
    cause: BaseException | None = getattr(error, "cause", None) or error
    return cause


def _error(trial: Any) -> BaseException | None:
    """The exception that ended a trial's last try, read where the driver wrote it before it is copied to storage."""
    path = Path(trial.pickled_error_file or "")
    if not path.is_file():
        return None
    from ray import cloudpickle

    error: BaseException = cloudpickle.loads(path.read_bytes())
    return error


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
