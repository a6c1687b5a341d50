"""Runs cells by Ray Tune on warm actors, or gangs of new processes, and tries them again when a process is lost."""

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from study.plan import PlannedCell
from study.run.interrupts import StopSignals, stop_signals
from study.run.losses import failure_reason, is_machine_loss, lost_place, trial_error
from study.run.trial import Report, TrialSettings, run_trial, trial_config
from study.search import Outcome, Source
from study.workers.machines import Slots
from study.workers.process_loss import Place
from study.workers.stop_request import request_stop, withdraw_stop
from trainables.layout import Layout
from trainables.progress import Progress, Result

if TYPE_CHECKING:
    from study.workers.placement import Placer

#: Seconds for which no other cell is started because a gang waits for room on the live machines. Devices
#: that other studies hold may be why it waits, and free ones are then better used.
HOLD_SECONDS = 3600.0
#: The outcome of a cell whose trial is lost for good.
FAILED = Outcome(None, status="failed")
#: Seconds that running cells have to save after a first Ctrl-C; `cluster/slurm.sbatch` gives 120 s for all.
SAVE_SECONDS = 90.0


class CellCallback(Protocol):
    """Events of cells; called in the driver's main thread, so they must return quickly."""

    def started(self, planned: PlannedCell) -> None:
        """A trial of this cell has an actor."""

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """A running cell has reported."""

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """A cell is done or diverged."""

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """A cell failed and will not be tried again in this run."""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """A trial was lost; the cell is tried again from its checkpoint."""

    def notice(self, text: str) -> None:
        """Something happened to the run that the user should read."""


def run_cells(
    source: Source,
    slots: Slots,
    settings: TrialSettings,
    retries: int,
    callback: CellCallback,
    scratch: Path,
    trainable: Callable[[dict[str, Any]], None] = run_trial,
    one_machine: bool = True,
) -> bool:
    """Run all cells of a source; return False if the user stopped it (Ctrl-C, SIGTERM, SIGHUP) before the end.

    Then each running cell saves a checkpoint first, unless a second Ctrl-C comes or `SAVE_SECONDS` have passed.
    A cell whose process died is tried again, from its checkpoint, up to `retries` times. The folder `scratch`
    is for Tune's own files and removed at the end. Unless Ray has only `one_machine`, a machine that loses
    trials is avoided. Benchmarks of the scheduling alone pass another `trainable`.
    """
    from ray import tune

    from study.workers.placement import Placer

    settings = settings.model_copy(update={"run": f"stop-{secrets.token_hex(8)}"})
    placer = Placer(slots, one_machine=one_machine)

    def resources(config: dict[str, Any]) -> Any:
        return placer.request(Layout.model_validate_json(config["layout"]))

    def keep_away(trial: Any) -> None:
        # Tune asks a pickled copy of `resources`, in which no trial was ever lost.
        if placer.losses.avoided:
            trial.update_resources(resources(trial.config))

    trials = Trials(source, settings, slots.devices, placer.live_ranks)
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(trials),
            scheduler=make_scheduler(keep_away),
            num_samples=-1,
            max_concurrent_trials=slots.devices,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(scratch.resolve()),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=retries),
            callbacks=[make_tune_callback(trials, callback, placer), _silent_reporter()],
        ),
    )
    _end_trials_alone_for_memory()
    try:
        with stop_signals() as trials.signals:
            tuner.fit()
    except tune.TuneError:
        # Tune wraps errors of callbacks in the text of a traceback; re-raise the original error (a full disk).
        if trials.error is None:
            raise
        raise trials.error from None
    finally:
        if trials.stop_since is not None:
            withdraw_stop(settings.run)
        shutil.rmtree(scratch, ignore_errors=True)
    return trials.stop_since is None and source.done and trials.held is None and not trials.running


def _end_trials_alone_for_memory() -> None:
    """Let a kill by Ray's memory monitor end one trial, as any other loss of its process does.

    Ray reports such a kill with an exception that is neither of the two that Tune (2.60) expects from a trial, so that
    Tune would end the whole run. Tune has no setting for the manager of its processes.
    """
    from ray.air.execution._internal import RayActorManager
    from ray.exceptions import OutOfMemoryError, RayActorError
    from ray.tune.execution import tune_controller

    class ActorManager(RayActorManager):
        def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
            if isinstance(exception, OutOfMemoryError):
                exception = RayActorError(error_msg=str(exception))
            super()._actor_task_failed(tracked_actor_task, exception)

    tune_controller.RayActorManager = ActorManager


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
    ) -> None:
        """Begin with no trial; see `run_cells`. `live_ranks` returns how many ranks the live machines hold."""
        self.source, self.settings, self.devices = source, settings, devices
        self.live_ranks = live_ranks
        self.held: PlannedCell | None = None
        """The next cell, which waits for devices."""
        self.running: dict[str, PlannedCell] = {}
        self.waiting: dict[str, float] = {}
        """Trials whose ranks must be together and are not yet placed, and since when."""
        self.error: Exception | None = None
        self.signals = StopSignals()
        self.stop_since: float | None = None
        """When the trials were asked to save and end."""

    def suggest(self, trial_id: str) -> dict[str, str] | str | None:
        """Return the configuration of a trial, "FINISHED" after the last one, None if nothing can be started now."""
        if self.signals.came:
            return None
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
        return trial_config(planned.cell, planned.layout, self.settings)

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


def make_scheduler(on_add: Callable[[Any], None] = lambda _: None) -> Any:
    """Return Tune's scheduler: first in, first out. `on_add` is called with each trial that is added."""
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
            on_add(trial)

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


def make_tune_callback(trials: Trials, callback: CellCallback, placer: "Placer") -> Any:
    """Return a Tune callback that passes Tune's events on as those of cells.

    It also keeps trials from machines that lose them, and ends Tune after a signal.
    """
    from ray.tune import Callback
    from ray.tune.experiment import Trial

    class TuneCallback(_NotPickled, Callback):
        def __init__(self) -> None:
            super().__init__()
            self.progressed: set[str] = set()
            """Trials that have reported progress since they were last lost."""
            self.places: dict[str, Place] = {}
            """Where the processes of trials are."""

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            self.stop(trials)

        def stop(self, tune_trials: list[Any]) -> None:
            """After a signal, ask the running cells to save; end Tune when they have."""
            if not trials.signals.came:
                return
            now = time.monotonic()
            running = [t for t in tune_trials if t.trial_id in trials.running and t.status == Trial.RUNNING]
            if trials.stop_since is None:
                trials.stop_since = now
                request_stop(trials.settings.run)
                if running:
                    self.notify(
                        callback.notice,
                        f"Stopping: {len(running)} running {'cell saves' if len(running) == 1 else 'cells save'} first "
                        f"(at most {SAVE_SECONDS:g} s; Ctrl-C again does not wait).",
                    )
            if not running or trials.signals.again or now - trials.stop_since > SAVE_SECONDS:
                # Tune (2.60) ends on it as on Ctrl-C, whose handler `study.workers.ray_session` turns off.
                os.kill(os.getpid(), signal.SIGUSR1)

        def on_trial_start(self, trial: Any, **info: Any) -> None:
            trials.waiting.pop(trial.trial_id, None)
            if planned := trials.running.get(trial.trial_id):
                self.notify(callback.started, planned)

        def on_trial_result(self, trial: Any, result: dict[str, Any], **info: Any) -> None:
            planned = trials.running.get(trial.trial_id)
            if planned is None or "report" not in result:
                return
            report = read_report(result["report"])
            if report.place:
                self.places[trial.trial_id] = report.place
            if report.progress:
                self.progressed.add(trial.trial_id)
                self.notify(callback.progress, planned, report.progress)
            if report.interrupted:
                trials.running.pop(trial.trial_id)
            if ended := report.result:
                share = ended.step / planned.cell.recipe.steps
                trials.end(trial.trial_id, Outcome(ended.loss, share, ended.status))
                self.notify(callback.ended, planned, ended)
            if report.failure:
                trials.end(trial.trial_id)
                self.notify(callback.failed, planned, report.failure)

        def on_trial_recover(self, trial: Any, **info: Any) -> None:
            if planned := trials.running.get(trial.trial_id):
                error = trial_error(trial)
                trials.wait(trial.trial_id)
                if is_machine_loss(error) and trial.trial_id in self.progressed:
                    # A spot machine may be reclaimed many times in the life of a large cell, which is further each
                    # time. Retries are for losses that may be the cell's own fault.
                    trial.max_failures += 1
                self.progressed.discard(trial.trial_id)
                self.notify(callback.retried, planned, self.reason(trial, planned, error))
                self.count_loss(trial, planned, error)
                if placer.losses.avoided:
                    trial.update_resources(placer.request(planned.layout))

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            if planned := trials.end(trial.trial_id):
                error = trial_error(trial)
                self.notify(callback.failed, planned, self.reason(trial, planned, error))
                self.count_loss(trial, planned, error)

        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            self.places.pop(trial.trial_id, None)
            if planned := trials.end(trial.trial_id):
                self.notify(callback.failed, planned, "the trial ended without a result")

        def reason(self, trial: Any, planned: PlannedCell, error: BaseException | None) -> str:
            place = self.places.get(trial.trial_id)
            return failure_reason(error, planned, placer.slots, place, is_local=placer.one_machine)

        def count_loss(self, trial: Any, planned: PlannedCell, error: BaseException | None) -> None:
            """Count a lost trial for its machine, and report that the machine is avoided from now on."""
            place = lost_place(error, self.places.pop(trial.trial_id, None))
            if place is None or placer.one_machine:
                return
            before = placer.losses.avoided
            placer.losses.add(place.node, planned.cell.key)
            if place.node in placer.losses.avoided and place.node not in before:
                fate = (
                    "it is avoided in this run"
                    if placer.avoided(planned.layout)
                    else "no other can take its cells"
                )
                text = f"Several trials were lost on the machine {place.host} (Ray's node {place.node[:8]}): {fate}."
                self.notify(callback.notice, text)

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
