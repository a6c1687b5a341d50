"""What the study gives to Ray Tune: a searcher, a callback, a stopper and the resource request of a trial."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.search import Searcher

from study.plan import PlannedCell
from study.plan.rows import Row
from study.plan.saves import seconds_to_save
from study.run.cell_queue import CellCallback, CellQueue, CellRecorder
from study.run.trial import read_report
from study.workers.causes import failure_reason, lost_place
from study.workers.machines import Slots
from study.workers.ray_session import make_stop_event
from trainables.layout import Layout
from trainables.progress import Result

#: Ray's label for the id of a machine.
NODE_LABEL = "ray.io/node-id"


def resource_request(config: dict[str, Any], slots: Slots) -> tune.PlacementGroupFactory:
    """Return the resource request of a trial by its `trial_config`.

    The trial's process trains a cell of one rank itself. That of a gang only supervises: it is on the machine of the
    first bundle and takes nothing, because the ranks need all.

    Ranks that share matrices exchange activations in every layer. They must be on one machine, so they are in one
    bundle, which Ray does not divide. Groups that only share batches are spread (PACK) only if no machine holds all of
    them: by plain TCP a step of 1.3B parameters waits 0.5 to 1 s for its gradients (estimated).
    """
    layout, avoided = Layout.model_validate_json(config["layout"]), json.loads(config["avoided"])
    bundles = [slots.bundle(layout.tensor_parallel)] * layout.data_parallel
    labels = {NODE_LABEL: f"!in({','.join(avoided)})"}
    options = {"bundle_label_selector": [labels] * len(bundles)} if avoided else {}
    strategy = "STRICT_PACK" if slots.are_on_one_machine(layout) and not avoided else "PACK"
    return tune.PlacementGroupFactory([*([{}] if layout.ranks > 1 else []), *bundles], strategy, **options)


class _NotPickled:
    """Tune pickles what it is given for `Tuner.restore`, which no study uses; the content is left out."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class CellSearcher(_NotPickled, Searcher):
    """Passes the cells of a queue to Tune."""

    def __init__(self, queue: CellQueue) -> None:
        super().__init__()
        self.queue = queue

    def suggest(self, trial_id: str) -> dict[str, str] | str | None:
        """See `CellQueue.suggest`."""
        return self.queue.suggest(trial_id)

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """Do nothing: the callback has passed the outcome on, from the full report."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the searcher follows from the rows."""
        Path(checkpoint_path).touch()


class StudyCallback(_NotPickled, tune.Callback):
    """Passes Tune's events on as those of cells, and notes which machines lose trials.

    The recorder learns of each event first, then the source, and then the listeners.
    """

    def __init__(
        self,
        queue: CellQueue,
        recorder: CellRecorder,
        listeners: Sequence[CellCallback] = (),
        *,
        one_machine: bool,
    ) -> None:
        super().__init__()
        self.queue, self.recorder, self.listeners, self.one_machine = queue, recorder, listeners, one_machine
        self.error: Exception | None = None
        """What was raised while an event was recorded."""

    def on_trial_start(self, trial: Any, **_: Any) -> None:
        """Report that a cell has its devices."""
        if attempt := self.queue.attempts.get(trial.trial_id):
            attempt.started = True
            self._notify("started", attempt.planned)

    def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Read the report of a trial."""
        name = trial.trial_id
        attempt = self.queue.attempts.get(name)
        if attempt is None or "report" not in result:
            return
        report, planned = read_report(result["report"]), attempt.planned
        if report.place:
            attempt.place = report.place
        if report.progress:
            attempt.save_seconds = report.progress.save_seconds or attempt.save_seconds
            self._notify("progress", planned, report.progress)
        if report.interrupted:
            del self.queue.attempts[name]
        if ended := report.result:
            self._end(name, "ended", planned, ended)
        if report.failure:
            self._end(name, "failed", planned, report.failure)

    def on_trial_recover(self, trial: Any, **_: Any) -> None:
        """Report a trial that Tune tries again by itself: one whose machine Ray reports as taken back (preempted)."""
        if attempt := self.queue.attempts.get(trial.trial_id):
            reason = self._reason(trial)
            attempt.started, attempt.since, attempt.place = False, time.monotonic(), None
            self._notify("retried", attempt.planned, reason)

    def on_trial_error(self, trial: Any, **_: Any) -> None:
        """Try the cell of a lost trial again, as a new trial, or have it fail."""
        if attempt := self.queue.attempts.get(trial.trial_id):
            reason = self._reason(trial)
            if self.queue.lose(trial.trial_id):
                self._notify("retried", attempt.planned, reason)
            else:
                self._end(trial.trial_id, "failed", attempt.planned, reason)
            place = lost_place(trial_error(trial), attempt.place)
            losses, planned = self.queue.losses, attempt.planned
            if place and not self.one_machine and losses.add(place.node, planned.cell.key):
                avoided = losses.avoided(planned.layout)
                fate = "it is avoided in this run" if avoided else "no other can take its cells"
                text = f"Several trials were lost on the machine {place.host} (Ray's node {place.node[:8]}): {fate}."
                self._notify("notice", text)

    def on_trial_complete(self, trial: Any, **_: Any) -> None:
        """Have a cell fail whose trial has ended and not reported its result."""
        if attempt := self.queue.attempts.get(trial.trial_id):
            self._end(trial.trial_id, "failed", attempt.planned, "the trial ended without a result")

    def notice(self, text: str) -> None:
        """Pass on a sentence about the run."""
        self._notify("notice", text)

    def _reason(self, trial: Any) -> str:
        attempt, slots = self.queue.attempts[trial.trial_id], self.queue.losses.slots
        return failure_reason(
            trial_error(trial), attempt.planned, slots, attempt.place, is_local=self.one_machine
        )

    def _end(self, trial_id: str, event: str, planned: PlannedCell, how: Result | str) -> None:
        """Have the row of a cell made, tell it to the source, then the event to the listeners."""
        row: Row = self._call(getattr(self.recorder, event), planned, how)
        self.queue.end(trial_id, row)
        for listener in self.listeners:
            self._call(getattr(listener, event), planned, how)

    def _notify(self, event: str, *arguments: Any) -> None:
        for listener in (self.recorder, *self.listeners):
            self._call(getattr(listener, event), *arguments)

    def _call(self, event: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return event(*arguments)
        except Exception as error:
            self.error = error
            raise


class StopWhenSaved(_NotPickled, tune.Stopper):
    """After a signal asks the running cells to save, and ends Tune when they have."""

    def __init__(self, queue: CellQueue, notice: Callable[[str], None]) -> None:
        super().__init__()
        self.queue, self.notice = queue, notice
        self.since: float | None = None
        """When the cells were asked to save."""
        self.limit = 0.0
        """Seconds that they have for it."""
        self._stop_cells = make_stop_event(queue.settings.run)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """End no trial by its result."""
        return False

    def stop_all(self) -> bool:
        """Whether Tune is to end now; it asks at each step, about every 0.1 s."""
        signals, now = self.queue.signals, time.monotonic()
        if not signals.came:
            return False
        saving = [attempt for attempt in self.queue.attempts.values() if attempt.started]
        if self.since is None:
            self.since, self.limit = now, seconds_to_save(attempt.save_seconds for attempt in saving)
            self._stop_cells()
            if saving:
                self.notice(
                    f"Stopping: {len(saving)} running {'cell saves' if len(saving) == 1 else 'cells save'} first "
                    f"(at most {self.limit:.0f} s; Ctrl-C again does not wait)."
                )
        return not saving or signals.again or now - self.since > self.limit


class SilentReporter(_NotPickled, TrialProgressCallback):
    """Prints nothing; without a reporter, Tune adds its own, which is never quite silent."""

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    on_trial_complete = on_trial_error = on_trial_result


class ActorManager(RayActorManager):
    """Ends one trial where Ray's memory monitor kills its process, as for any other loss of a process.

    Ray reports such a kill with an exception that is neither of the two that Tune (2.60) expects from a trial, so that
    Tune would end the whole run.
    """

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


def end_trials_alone_for_memory() -> None:
    """Have Tune use `ActorManager`, for which it has no setting."""
    tune_controller.RayActorManager = ActorManager


def trial_error(trial: Any) -> BaseException | None:
    """Return the exception that ended a Tune trial, without the wrapper in which Ray carries it.

    It is read where the driver wrote it, before Tune copies it to its storage.
    """
    path = Path(trial.pickled_error_file or "")
    if not path.is_file():
        return None
    error: BaseException = cloudpickle.loads(path.read_bytes())
    return getattr(error, "cause", None) or error
