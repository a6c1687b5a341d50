"""`interplay run`: fill in the missing rows of a study, then fit and report."""

import functools
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from analysis.fit.document import Fit
from study.errors import SpecError
from study.plan import Plan, PlannedCell, make_plan
from study.plan.layouts import ClusterCapacity
from study.plan.table import duration
from study.results.answer import answer
from study.run.console import Board, Viewer
from study.run.interrupts import remembered_interrupt
from study.run.trial import TrialSettings
from study.run.tuner import run_cells, term_is_interrupt
from study.search import Search, Source, make_search
from study.search.crossing_search import next_words
from study.search.early_stopping import Judge, Policy
from study.search.sensitivity_runs import ThenSensitivityRuns, sensitivity_cells
from study.spec.devices import DEVICES
from study.spec.study import StudySpec
from study.tracking.ledger import (
    ARM,
    SERIES,
    StudyPaths,
    begun,
    connect,
    ended_at,
    identity,
    known_rows,
    layer_table,
    outcomes,
    places,
    run_table,
    with_recorded,
)
from study.tracking.mlflow_store import (
    ENDED,
    LOST_TRIALS,
    MEASURE,
    START,
    TAG_CHARACTERS,
    CurveUpdate,
    Row,
    SearchUpdate,
    Store,
    stored_curves,
)
from study.tracking.provenance import revision, versions
from study.tracking.tracker import MANY_DEVICES, Tracker
from study.workers.launch_failures import said_shortages
from study.workers.machines import (
    Machine,
    Slots,
    check_capacity,
    check_devices,
    cluster_machines,
    marks,
    room,
)
from study.workers.packing import packed
from study.workers.ray_session import joined_cluster, joins, private_ray
from trainables.errors import InputError
from trainables.progress import Evaluation, Progress, Result
from trainables.storage.storage import copy_into, discard, open_storage, reason, shown, under

_LOG = logging.getLogger(__name__)

#: Tags of a study's run: which cells a search wants next and why, and which limit ended it.
NEXT, SEARCH_ENDED = "interplay.next", "interplay.search_ended"
#: How long the machines that a cluster always has may take to join it.
JOIN_SECONDS = 180.0


@dataclass(frozen=True)
class Summary:
    """How a run ended; seconds are of the cells trained in this run."""

    plan: Plan
    wall_seconds: float
    """From Ray being up to the end of the last trial."""
    train_seconds: float
    """Sum over the ranks of all trials of the time in their own training steps and evaluations."""
    trained: int
    failed: Mapping[str, str]
    finished: bool
    fit: Fit | None
    report: Path | None
    copy: str | None
    """Where a copy of the results lies that outlives this machine."""


def run_study(spec: StudySpec, results: Path, console: Console, base: Path = Path()) -> Summary:
    """Run the missing cells of a study, then fit and write the report.

    Ctrl-C or SIGTERM at any stage ends it cleanly: what has ended is on record, and `Summary.finished` is False.

    Raises:
        SpecError: the spec cannot run, its store cannot be opened, or another process runs the study.
        DataError: the data cannot be used.
    """
    where = places(spec, results.resolve())
    if (where.folder / SERIES).is_file():
        raise SpecError(
            f"{where.folder} is the folder of a series, whose page the report of the study {spec.name!r} would "
            "replace; give the study a name of its own with `--set name=NAME`."
        )
    if where.is_shared:
        open_storage(where.checkpoints).check()
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(spec, console)) if joins() else None
        plan = make_plan(spec, base=base, room=cluster.room if cluster else None)
        stack.enter_context(where.locked())
        check = stack.enter_context(remembered_interrupt())
        stack.enter_context(term_is_interrupt())
        (where.folder / "spec.yaml").write_text(spec.to_yaml())
        where.remember()
        connection = connect(spec, where)
        if connection.problem:
            console.print(
                Text(f"{connection.problem}. Rows are kept in {where.folder} until it does.", style="yellow")
            )
        tracker = Tracker(
            connection.store,
            connection.uri,
            spec.experiment,
            where.outbox,
            where.artifacts,
            connection.problem,
            apart=plan.slots >= MANY_DEVICES,
        )
        rows = known_rows(plan, connection, where)
        if spec.early_stopping is None:
            # What an earlier run stopped is to be trained to its end.
            rows = {key: row for key, row in rows.items() if row.status != "stopped"}
        plan = with_recorded(plan, rows)
        listener = _Listener(plan, rows, tracker, where, _policy(spec, plan, rows, connection.store))
        for key in open_storage(where.checkpoints).tags():
            # A driver killed between recording a row and tidying up leaves its checkpoint.
            if key in rows and rows[key].status != "failed":
                discard(under(where.checkpoints, key))
        search = make_search(spec, plan, outcomes(rows), begun(plan, rows, where, connection.store))
        source = _with_arm(spec, plan, search, rows, listener)
        listener.search = search
        tracker.start(spec.name, _tags(spec, plan))
        finished, status = False, "FAILED"
        fit, report = None, None
        try:
            check()
            if not source.done:
                _announce(plan, rows, search.total + listener.sensitivity_cells, console)
                finished = _train(spec, plan, cluster, where, base, source, listener, console, check)
            else:
                finished = True
            ending = search.ending
            if finished and ending:
                console.print(Text(f"The search has ended: {ending.words}"))
            listener.tell_last()
            tracker.close()
            if rows:
                run_table(plan, rows).write_csv(where.runs)
            if finished and any(row.loss is not None for row in rows.values()):
                with console.status("fitting"):
                    fit, report = answer(
                        spec,
                        plan,
                        run_table(plan, rows),
                        where,
                        curves(rows, tracker.usable_store),
                        store=tracker.usable_store,
                        ended=ending.words if ending else "",
                        measures=layer_table(plan, rows),
                    )
            status = "FINISHED" if finished else "KILLED"
            if finished:
                console.print(_tally(listener, plan.slots, rows))
        except KeyboardInterrupt:
            finished, status = False, "KILLED"
        finally:
            tracker.close()
            tracker.finish(status, _artifacts(where))
            copy = share(where, _artifacts(where), console) if where.is_shared else None
        waiting = where.outbox.rows()
        if tracker.problem or waiting:
            why = tracker.problem or "not all rows were sent"
            text = (
                f"MLflow: {why}. {len(waiting)} rows wait in {where.outbox.folder}; the next run sends them."
            )
            console.print(Text(text, style="yellow"))
    failed = {key: row.reason or "" for key, row in rows.items() if row.status == "failed"}
    return Summary(
        plan=plan,
        wall_seconds=listener.wall_seconds,
        train_seconds=listener.train_seconds,
        trained=listener.trained,
        failed=failed,
        finished=finished,
        fit=fit,
        report=report,
        copy=copy,
    )


def _with_arm(
    spec: StudySpec, plan: Plan, search: Search, rows: Mapping[str, Row], listener: "_Listener"
) -> Source:
    """The search, and after it the arm of the study, if it has one."""
    if spec.sensitivity is None:
        return search
    return ThenSensitivityRuns(
        search,
        lambda key: key in rows and rows[key].status != "failed",
        lambda: sensitivity_cells(spec, plan, run_table(plan, rows)),
        listener.arm_opened,
    )


def share(where: StudyPaths, files: Sequence[Path], console: Console) -> str | None:
    """Copy results to where all machines keep theirs, and name the place; the next run does what this cannot."""
    name = shown(str(where.shared_results))
    try:
        copy_into(where.shared_results, files)
    except (OSError, InputError) as error:
        text = f"The results could not be copied to {name}: {reason(error)} They are in {where.folder}."
        console.print(Text(text, style="yellow"))
        return None
    return name


def curves(rows: Mapping[str, Row], store: Store | None) -> pd.DataFrame:
    """Return validation loss by cell and step, from the rows just trained and, for the others, from MLflow."""
    lines = [(row.cell, e.step, e.loss) for row in rows.values() for e in row.evaluations]
    lines += stored_curves(store, [cell for cell, row in rows.items() if not row.evaluations])
    frame = pd.DataFrame(lines, columns=["cell", "step", "loss"])
    return frame[np.isfinite(frame["loss"].astype(float))]


def _policy(spec: StudySpec, plan: Plan, rows: Mapping[str, Row], store: Store | None) -> Policy | None:
    """The rule of early stopping, told of the cells that have ended; None for a study without one."""
    if spec.early_stopping is None:
        return None
    policy = Policy(spec)
    losses = dict(iter(curves(rows, store).groupby("cell", sort=False)))
    # In the order in which they ended, as a run that was not cut off would have told them.
    for key in rows:
        planned = plan.by_key(key)
        if planned and not planned.arm:
            part = (
                losses[key].sort_values("step") if key in losses else pd.DataFrame({"step": [], "loss": []})
            )
            seen = zip(part["step"], part["loss"], strict=True)
            policy.ended(planned, rows[key].status, tuple(Evaluation(step=s, loss=x) for s, x in seen))
    return policy


class _Listener:
    """Turns the events of cells into rows, and passes them on to the tracker and the screen."""

    def __init__(
        self,
        plan: Plan,
        rows: dict[str, Row],
        tracker: Tracker,
        where: StudyPaths,
        policy: Policy | None = None,
    ) -> None:
        self.plan, self.rows, self.tracker, self.where = plan, rows, tracker, where
        self.policy = policy
        self.viewer: Viewer | None = None
        self.search: Search | None = None
        self.sensitivity_cells = 0
        self.last_end = max(map(ended_at, rows.values()), default=0.0)
        self.revision = revision()
        self.trained = 0
        self.wall_seconds = self.train_seconds = 0.0
        self.lost: dict[str, list[str]] = {}

    def judge(self, planned: PlannedCell) -> Judge | None:
        # An arm compares whole runs.
        return self.policy.judge(planned) if self.policy and not planned.arm else None

    def arm_opened(self, count: int) -> None:
        """Count the cells of the arm to those of the search."""
        self.sensitivity_cells = count
        if self.viewer:
            self.viewer.board.total += count

    def started(self, planned: PlannedCell) -> None:
        self.tracker.live(CurveUpdate(planned.cell.key, planned.title, self._params(planned)))
        if self.viewer:
            self.viewer.started(planned)

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        self.tracker.live(
            CurveUpdate(
                planned.cell.key,
                planned.title,
                self._params(planned),
                list(progress.points),
                list(progress.evaluations),
                progress.start,
            )
        )
        if self.viewer:
            self.viewer.progress(planned, progress)

    def ended(self, planned: PlannedCell, result: Result) -> None:
        self.trained += 1
        self.train_seconds += (result.train_seconds - result.resumed_seconds) * planned.layout.ranks
        metrics = {
            "train_seconds": result.train_seconds,
            "tokens_per_second": result.tokens_per_second,
            "utilisation": result.utilisation,
            "memory_bytes": float(result.memory_bytes),
            "trained_share": result.step / planned.cell.recipe.steps,
        }
        if result.loss is not None:
            metrics["loss"] = result.loss
            if result.loss_se is not None:
                metrics["loss_se"] = result.loss_se
            if result.bytes_per_token:
                metrics["bits_per_byte"] = result.loss / math.log(2) / result.bytes_per_token
        if result.evaluations and result.status != "diverged":
            last = result.evaluations[-1].measures
            metrics |= {f"{MEASURE}{name}": value for name, value in last.items()}
        metrics |= {f"{START}{name}": value for name, value in result.start.items()}
        tags = {
            "interplay.device": result.device,
            "interplay.resumed_from": str(result.resumed_from or ""),
            "interplay.notes": " ".join(result.notes)[:TAG_CHARACTERS],
        }
        self._record(planned, result.status, result.reason, metrics, tags, result)
        if self.policy and not planned.arm:
            self.policy.ended(planned, result.status, result.evaluations)
        discard(under(self.where.checkpoints, planned.cell.key))
        self._news(planned.arm)
        if self.viewer:
            self.viewer.ended(planned, result)

    def failed(self, planned: PlannedCell, reason: str) -> None:
        self._record(planned, "failed", reason, {}, {}, None)
        self._news(planned.arm)
        if self.viewer:
            self.viewer.failed(planned, reason)

    def _news(self, arm: str = "", *, last: bool = False) -> None:
        """Tell what the search knows, where that is new, and what it knows at the last; an arm tells it nothing."""
        if arm or self.search is None:
            return
        news = self.search.state() if last else self.search.news()
        if news is None:
            return
        known = news.estimate
        values = {
            "flops": news.flops,
            **({"value": known.value, "low": known.low, "high": known.high} if known else {}),
            **({"halfwidth": known.halfwidth} if known else {}),
        }
        metrics = {
            f"search.{name}": value
            for name, value in values.items()
            if value is not None and math.isfinite(value)
        }
        tags = {NEXT: next_words(news), SEARCH_ENDED: news.ending.words if news.ending else ""}
        self.tracker.news(SearchUpdate(news.cells, metrics, tags))
        if self.viewer:
            self.viewer.board.note = known.words if known else ""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        self.lost.setdefault(planned.cell.key, []).append(reason)
        # At once: the driver may be stopped before the cell ends, and another would know nothing of it.
        self.tracker.live(
            CurveUpdate(
                planned.cell.key,
                planned.title,
                self._params(planned),
                tags=self._lost_tags(planned.cell.key),
            )
        )
        if self.viewer:
            self.viewer.retried(planned, reason)

    def tell_last(self) -> None:
        """Say what is known at the end, between two checks too."""
        self._news(last=True)

    def _lost_tags(self, key: str) -> dict[str, str]:
        reasons = self.lost.get(key, ())
        return {LOST_TRIALS: " | ".join(reasons)[:TAG_CHARACTERS]} if reasons else {}

    def _record(
        self,
        planned: PlannedCell,
        status: str,
        reason: str | None,
        metrics: dict[str, float],
        tags: dict[str, str],
        result: Result | None,
    ) -> None:
        lost = self._lost_tags(planned.cell.key)
        self.lost.pop(planned.cell.key, None)
        # In milliseconds, and never the same twice: a search goes on from the rows in this order.
        self.last_end = max(round(time.time(), 3), round(self.last_end + 0.001, 3))
        own = {ENDED: f"{self.last_end:.3f}", **({ARM: planned.arm} if planned.arm else {})}
        row = Row.model_validate(
            {
                "cell": planned.cell.key,
                "name": planned.title,
                "protocol": self.plan.protocol,
                "status": status,
                "reason": reason,
                "params": self._params(planned),
                "metrics": metrics,
                "tags": {**tags, **lost, **own, "interplay.revision": self.revision},
                "points": result.points if result else (),
                "evaluations": result.evaluations if result else (),
            }
        )
        self.tracker.ended(row)
        # The curve is in the outbox and soon in MLflow: the driver's memory must not grow with the study.
        losses = tuple(one.model_copy(update={"measures": {}}) for one in row.evaluations)
        self.rows[row.cell] = row.model_copy(update={"points": (), "evaluations": losses})

    def _params(self, planned: PlannedCell) -> dict[str, str | int | float | None]:
        cell = planned.cell
        return {
            **{name: value for name, value in identity(planned).items() if name != "cell"},
            "vocabulary": self.plan.vocabulary,
            "data_key": cell.data_key,
            # One value a parameter: options of DeepSpeed and the base shape have several.
            **{
                name: json.dumps(value) if isinstance(value, dict) else value
                for name, value in cell.recipe.model_dump(mode="json").items()
            },
        }


@dataclass(frozen=True)
class _Cluster:
    """The cluster this process has joined, as far as the study may use it."""

    machines: Sequence[Machine]
    slots: Slots
    room: ClusterCapacity


@contextmanager
def _cluster(spec: StudySpec, console: Console) -> Iterator[_Cluster]:
    """Join the cluster this process belongs to, and find what it has for the study.

    Raises:
        SpecError: none of its machines holds a rank, or it has no such pool or GPU.
    """
    resources = spec.resources
    with ExitStack() as stack:
        with console.status("joining the cluster"):
            stack.enter_context(joined_cluster(on_gpu=resources.gpus_per_trial > 0))
            machines = cluster_machines(JOIN_SECONDS)
        asked = 0 if resources.slots == "auto" else resources.slots
        slots = Slots(
            asked,
            resources.cpus_per_trial,
            resources.gpus_per_trial,
            marks(DEVICES[resources.device], resources.pool, machines),
        )
        found = room(machines, slots)
        slots = replace(slots, devices=asked or found.devices)
        yield _Cluster(machines, slots, replace(found, devices=slots.devices))


def _train(
    spec: StudySpec,
    plan: Plan,
    cluster: _Cluster | None,
    where: StudyPaths,
    base: Path,
    source: Source,
    listener: _Listener,
    console: Console,
    check: Callable[[], None],
) -> bool:
    """Pack the data, start Ray unless a cluster was joined, and run the cells; False if the user stopped it."""
    resources = spec.resources
    layouts = {planned.layout for planned in plan.main}
    if cluster:
        slots = cluster.slots
        check_capacity(slots, layouts, [machine.resources for machine in cluster.machines])
    else:
        slots = Slots(plan.slots, resources.cpus_per_trial, resources.gpus_per_trial)
        check_devices(slots, resources.device, layouts)
    total = listener.search.total if listener.search else plan.cell_count
    board = Board(plan, slots.devices, total + listener.sensitivity_cells)
    # Of an arm only what is still to run is in the total.
    board.know(
        {k: row.loss for k, row in listener.rows.items() if row.status != "failed" and not row.tags.get(ARM)}
    )
    with ExitStack() as stack:
        if cluster:
            # From here on machines are asked for, by the packing before all trials.
            say = functools.partial(console.print, style="yellow", markup=False, soft_wrap=True)
            stack.enter_context(said_shortages(resources, say))
        packed(
            spec.data,
            spec.training.context,
            root=where.data,
            # Trials open the store by its key alone, so a relative path need mean nothing where they run.
            key=plan.cells[0].cell.data_key,
            base=base,
            console=console,
            slots=slots if cluster else None,
            machines=cluster.machines if cluster else (),
        )
        check()
        settings = TrialSettings(
            data_root=where.data,
            checkpoint_root=where.checkpoints,
            checkpoint_every=resources.checkpoint_every_seconds,
            evaluations=resources.evaluations,
            diagnostics=spec.diagnostics,
            needs_gpu=resources.gpus_per_trial > 0,
            model_root=where.models if resources.keep_weights == "final" else None,
            revision=listener.revision,
            gang_timeout=resources.gang_timeout_seconds,
        )
        if cluster is None:
            with console.status("starting Ray"):
                stack.enter_context(private_ray(slots))
        check()
        listener.viewer = stack.enter_context(Viewer(board, console))
        began = time.monotonic()
        try:
            return run_cells(
                source,
                slots,
                settings,
                resources.max_retries,
                listener,
                where.folder / "tune",
                one_machine=cluster is None,
                judge=listener.judge,
            )
        finally:
            listener.wall_seconds = time.monotonic() - began


def _tally(listener: _Listener, slots: int, rows: Mapping[str, Row]) -> str:
    """One line on what was trained, and how much of the slots' time went into training."""
    if not listener.wall_seconds:
        return f"[dim]nothing to train: all {len(rows)} rows are there.[/]"
    share = listener.train_seconds / (listener.wall_seconds * slots)
    wall = duration(listener.wall_seconds)
    return f"[dim]{listener.trained} cells in {wall}, {share:.0%} of it in training steps.[/]"


def _announce(plan: Plan, rows: Mapping[str, Row], total: int, console: Console) -> None:
    known = sum(row.status != "failed" and not row.tags.get(ARM) for row in rows.values())
    again = sum(row.status == "failed" for row in rows.values())
    most = "at most " if plan.search.chooses_cells else ""
    text = f"{most}{total} cells, {known} done" + (
        f", {again} failed before and tried again" if again else ""
    )
    console.print(
        f"[bold]{plan.name}[/]: {text}, about {duration(plan.hours * 3600)} for all on {plan.slots} slots."
    )


def _tags(spec: StudySpec, plan: Plan) -> dict[str, str]:
    """Provenance of a study run: revision, versions, protocol."""
    return {
        "interplay.revision": revision(),
        "interplay.protocol": plan.protocol,
        "interplay.spec": spec.to_yaml()[:TAG_CHARACTERS],
        **{f"interplay.version.{name}": version for name, version in versions().items()},
    }


def _artifacts(where: StudyPaths) -> list[Path]:
    return [where.folder / name for name in ("spec.yaml", "runs.csv", "fit.json", "report.html", "figures")]
