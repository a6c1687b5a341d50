"""Train the missing cells of a study, then let the caller fit and report."""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console
from rich.text import Text

from analysis.runs.epochs import repeated
from analysis.runs.table import RunTable
from analysis.runs.words import texts_of
from core.errors import InputError
from core.extras import need
from core.numbers import duration
from study.errors import SpecError
from study.plan import Plan, PlannedCell, make_plan
from study.plan.cells import with_trials_per_gpu
from study.plan.prices import money
from study.plan.rows import Row, failed_cells, run_table
from study.revision import revision
from study.run.console import Viewer
from study.run.costs import measure_costs
from study.run.interrupts import request_stop, stop_signals
from study.run.preparation import is_worth_timing, packed, time_steps
from study.run.recorder import Recorder, has_ended
from study.run.trial import GpuSettings, TrialSettings, trunk_folder
from study.run.tuner import run_cells
from study.search import Source, make_search
from study.search.sensitivity_runs import sensitivity_cells
from study.search.source import DATABASE, ListedCells, database_problem
from study.spec.study import StudySpec
from study.spec.yaml_file import SPEC
from study.tracking.lease import LOST_SECONDS, Driver, leased
from study.tracking.ledger import ended_rows, study_rows, unfinished_cells, versions
from study.tracking.study_paths import StudyPaths, check_owner, study_paths
from study.tracking.tables import study_of_rows
from study.tracking.targets import make_mirror, progress
from study.workers import machines
from study.workers.launch_failures import report_launch_failures
from study.workers.ray_session import joined_cluster, joins, private_ray
from trainables.storage.storage import copy_into, discard, joined, open_storage, reason, redacted

Conclusion = TypeVar("Conclusion")
#: Concludes a finished study, as by a fit and its report: plan, rows, paths, run table and why the search ended.
Conclude = Callable[[Plan, Mapping[str, Row], StudyPaths, RunTable, str], Conclusion]

#: How long the machines that a cluster always has may take to join it.
JOIN_SECONDS = 180.0


@dataclass(frozen=True)
class Summary(Generic[Conclusion]):
    """How a run ended."""

    recorder: Recorder
    """Has counted the trained cells and their seconds."""
    failed: Mapping[str, str]
    """The reasons of the failed cells, by name."""
    finished: bool
    conclusion: Conclusion | None
    """None if the study was stopped, or no cell has a loss."""
    copy: str | None
    """The place of a copy of the results that outlives this machine."""
    hints: Sequence[tuple[str, str]] = ()
    """What the user can do with the trackers of `tracking.also`, and the command for it."""


def run_study(
    spec: StudySpec,
    results: Path,
    console: Console | None = None,
    conclude: Conclude[Conclusion] | None = None,
) -> Summary[Conclusion]:
    """Run the missing cells of a study; without a console nothing is shown.

    `conclude` fits a finished study that has losses and writes its report, before the results are copied to a shared
    storage and the lock of the study is released.

    Ctrl-C or SIGTERM at any stage ends it cleanly: finished cells are on record, and `Summary.finished` is False.

    Raises:
        SpecError: the spec cannot run, its store cannot be opened, another process runs the study, or its folder
            belongs to another study.
        DataError: the data cannot be used.
    """
    need("training a study", "train", "ray", "torch", "deepspeed", "transformers", "optuna", "mlflow")
    console, spec = console or Console(quiet=True), with_trials_per_gpu(spec)
    paths = study_paths(spec, results.resolve())
    if paths.is_shared:
        open_storage(paths.checkpoints).check()
    with ExitStack() as stack:
        cluster = _joined(stack, spec, console) if joins() else None
        plan = make_plan(spec, capacity=cluster.capacity if cluster else None).trainable()
        check = stack.enter_context(stop_signals(raises=True)).check
        is_locked = stack.enter_context(paths.locked())
        if paths.is_shared or not is_locked:
            stack.enter_context(_leased(paths, console))
        recorded = paths.ledger.rows()
        check_owner(plan, paths, recorded)
        (paths.folder / SPEC).write_text(spec.to_yaml())
        paths.write_storage()
        return _Run(spec, plan, paths, recorded, cluster, console, check).to_the_end(conclude)


class _Run:
    """One run of a study, from its rows to its report."""

    def __init__(
        self,
        spec: StudySpec,
        plan: Plan,
        paths: StudyPaths,
        recorded: Mapping[str, Row],
        cluster: machines.Capacity | None,
        console: Console,
        check_interrupt: Callable[[], None],
    ) -> None:
        self.spec, self.paths, self.cluster, self.console = spec, paths, cluster, console
        self.check_interrupt = check_interrupt
        tags = {f"interplay.version.{name}": version for name, version in versions().items()}
        tags["interplay.revision"] = revision()
        self.mirror = make_mirror(spec, plan.protocol, paths, recorded.values(), tags)
        for problem in self.mirror.open():
            self._warn(f"{problem}. Rows are kept in {paths.ledger.name} until it can be used.")
        rows = study_rows(plan, recorded)
        self.rows, self.plan = rows, plan
        done = {key for key, row in rows.items() if row.status != "failed"}
        trunks = {trunk_folder(key) for key, members in plan.trunks.items() if not has_ended(members, rows)}
        for name in open_storage(paths.checkpoints).tags():
            # A driver was killed between recording the row and deleting the checkpoint, or the plan no longer has
            # several cells of a trunk.
            if name in done or (name.startswith(trunk_folder("")) and name not in trunks):
                discard(joined(paths.checkpoints, name))
        self.recorder = Recorder(self.plan, rows, self.mirror, paths)
        self.recorder.unfinished.resume(done)
        unfinished = unfinished_cells(self.plan, rows, self.recorder.unfinished, paths.checkpoints)
        database: Path | None = paths.folder / DATABASE
        if why := database_problem(paths.folder / DATABASE):
            self._warn(
                f"This run keeps no Optuna studies in {database}, which SQLite cannot use ({why}). The search "
                "needs only the rows. If the file is damaged, delete it."
            )
            database = None
        self.search = make_search(spec, self.plan, ended_rows(rows), unfinished, database=database)
        self.sensitivity = self._missing_sensitivity_runs() if self.search.done else []
        """The sensitivity runs to do, once they are known."""

    def _warn(self, text: str) -> None:
        self.console.print(Text(text, style="yellow"))

    def to_the_end(self, conclude: Conclude[Conclusion] | None) -> Summary[Conclusion]:
        """Train what is missing, then fit and report; record how it ended whatever happens."""
        paths, recorder = self.paths, self.recorder
        finished, status, copy = False, "FAILED", None
        conclusion = None
        self.mirror.start()
        try:
            self.check_interrupt()
            finished = self._train()
            self.mirror.close()
            finished = finished and self._measure_costs()
            conclusion = self._concluded(finished, conclude)
            status = "FINISHED" if finished else "KILLED"
        except KeyboardInterrupt:
            finished, status = False, "KILLED"
        finally:
            self.search.close()
            self.mirror.close()
            self.mirror.finish(status, "" if finished else progress(self.plan, self.rows.values()))
            copy = copy_results(paths, paths.outputs, self.console) if paths.is_shared else None
        for problem in self.mirror.problems:
            kept = f"All rows are in {paths.ledger.name}; the next run sends the missing ones."
            self._warn(f"{problem}. {kept}")
        hints = tuple(target.hint for target in self.mirror.targets if target.hint)
        return Summary(recorder, failed_cells(self.rows), finished, conclusion, copy, hints)

    def _sources(self, viewer: Viewer) -> Iterator[Source]:
        """The search, and after its end the sensitivity runs, which follow from its rows."""
        if not self.search.done:
            yield self.search
            self.sensitivity = self._missing_sensitivity_runs()
            viewer.total += len(self.sensitivity)
        if self.sensitivity:
            yield ListedCells(self.sensitivity)

    def _missing_sensitivity_runs(self) -> list[PlannedCell]:
        if self.spec.sensitivity is None:
            return []
        ended = ended_rows(self.rows)
        cells = sensitivity_cells(self.spec, self.plan, study_of_rows(self.rows, self.plan.name))
        return [planned for planned in cells if planned.cell.key not in ended]

    def _concluded(self, finished: bool, conclude: Conclude[Conclusion] | None) -> Conclusion | None:
        """Write the run table, and conclude a finished study that has losses."""
        rows, paths = self.rows, self.paths
        ending = self.search.ending.words if self.search.ending else ""
        if finished and ending:
            self.console.print(Text(f"The search has ended: {ending}"))
        if not rows:
            return None
        table = run_table(rows, self.plan.name, with_order=self.plan.search.chooses_by_rows)
        table.write_csv(paths.runs)
        conclusion = None
        if conclude and finished and any(row.loss is not None for row in rows.values()):
            with self.console.status("fitting"):
                conclusion = conclude(self.plan, rows, paths, table, ending)
        if finished:
            self.console.print(_tally(self.recorder, self.plan.slots))
        return conclusion

    def _train(self) -> bool:
        """Pack the data, start Ray unless a cluster was joined, and run the cells; False if the user stopped it."""
        if self.search.done and not self.sensitivity:
            return True
        self._announce()
        spec, resources, cluster = self.spec, self.spec.resources, self.cluster
        slots = self._slots()
        with ExitStack() as stack:
            if cluster:
                # From here on machines are requested, by the packing before all trials.
                show = functools.partial(self.console.print, style="yellow", markup=False, soft_wrap=True)
                stack.enter_context(report_launch_failures(resources, show))
            # Trials open the store by its key alone: a relative path may mean nothing where they run.
            key = self.plan.cells[0].cell.data_key
            windows = packed(spec.data, spec.training.context, self.paths.data, key, self.console)
            for text in texts_of(repeated(self.plan.planner.epochs_of(windows))):
                self._warn(text)
            self.check_interrupt()
            self._time_steps()
            if cluster is None:
                with self.console.status("starting Ray"):
                    stack.enter_context(private_ray(slots))
            self.check_interrupt()
            viewer = Viewer(self.plan, slots.devices, self._total, self.console, self.search)
            viewer.add_finished(self._done())
            if self.console.is_terminal:
                stack.enter_context(viewer.live)
            began = time.monotonic()
            try:
                for source in self._sources(viewer):
                    if not run_cells(
                        source, slots, self._settings(), resources.max_retries, self.recorder,
                        scratch=self.paths.folder / "tune", one_machine=cluster is None, listeners=[viewer],
                        trunks=self.plan.trunks,
                    ):  # fmt: skip
                        return False
                return True
            finally:
                self.recorder.wall_seconds = time.monotonic() - began

    def _time_steps(self) -> None:
        """Time a few steps, if this machine has not yet timed such cells, and say how long the study takes."""
        if not self._is_worth_timing():
            return
        try:
            timed = time_steps(self.plan, self.paths.data, self.console)
        except (SpecError, OSError) as error:
            self._warn(f"The times of the plan stay estimates: {error}")
        else:
            self.plan = make_plan(self.spec).trainable()
            busy = (
                " The machine was busy meanwhile; the next run times them again." if timed.speed.busy else ""
            )
            self.console.print(f"By a few steps on this machine: {self._time()}.{busy}")

    def _measure_costs(self) -> bool:
        """Measure the trained shapes as `resources.measure` says, now that nothing trains beside them.

        False if the user stopped it; the next run measures the others.
        """
        measures = self.spec.resources.measure
        if not measures:
            return True
        trained = filter(None, map(self.plan.by_key, self._done()))
        try:
            measure_costs(self.plan, trained, measures, self.paths.costs, self.paths.data, self.console)
        except (InputError, OSError) as error:
            self._warn(f"The costs of the shapes are not measured: {error}")
        except KeyboardInterrupt:
            # The rows that there are make a run table all the same.
            return False
        return True

    def _is_worth_timing(self) -> bool:
        return self.cluster is None and is_worth_timing(self.plan, 1 - len(self._done()) / self._total)

    @property
    def _total(self) -> int:
        return self.search.total + len(self.sensitivity)

    def _slots(self) -> machines.Slots:
        """The slots of the cluster or of this machine, which are refused if they cannot hold all cells."""
        resources, layouts = self.spec.resources, {planned.layout for planned in self.plan.pool}
        if self.cluster:
            self.cluster.check(layouts)
            return self.cluster.slots
        slots = machines.Slots(self.plan.slots, resources.cpus_per_trial, resources.gpus_per_trial)
        machines.check_devices(slots, resources.device, layouts)
        return slots

    def _settings(self) -> TrialSettings:
        resources, paths = self.spec.resources, self.paths
        every = resources.checkpoint_every_seconds
        return TrialSettings(
            data_root=paths.data,
            checkpoint_root=paths.checkpoints,
            checkpoint_every=None if every == "auto" else every,
            evaluations=resources.evaluations,
            diagnostics=self.spec.diagnostics,
            gpu=GpuSettings(trials=resources.sharing, vocabulary=self.plan.vocabulary)
            if resources.gpus_per_trial
            else None,
            model_root=paths.models if resources.keep_weights == "final" else None,
            revision=self.recorder.revision,
            gang_timeout=resources.gang_timeout_seconds,
            # Many machines at once would be slow on a shared disk, and other machines may not reach this one's.
            compile_cache=paths.name if self.cluster else paths.compiled,
        )

    def _done(self) -> dict[str, float | None]:
        """The losses of ended cells; of sensitivity runs the total has only those that are still to run."""
        ended = {key: row for key, row in self.rows.items() if row.status != "failed"}
        return {key: row.loss for key, row in ended.items() if not row.purpose}

    def _time(self) -> str:
        price = "" if self.plan.cost is None else f", {money(self.plan.cost)}"
        return f"about {duration(self.plan.hours * 3600)}{price} for all on {self.plan.slots} slots"

    def _announce(self) -> None:
        plan, total, done = self.plan, self._total, len(self._done())
        failed = sum(row.status == "failed" for row in self.rows.values())
        again = f", {failed} failed before and tried again" if failed else ""
        time = "" if self._is_worth_timing() else f", {self._time()}"
        self.console.print(
            f"[bold]{plan.name}[/]: {plan.search.at_most}{total} cells, {done} done{again}{time}."
        )


@contextmanager
def _leased(paths: StudyPaths, console: Console) -> Iterator[None]:
    """Hold the study's lease in the shared storage; see `study.tracking.lease`."""
    driver = threading.current_thread()

    def waits(other: Driver) -> None:
        text = f"{paths.name} was last run by {other}; waiting {LOST_SECONDS:.0f} s at most for its end."
        console.print(Text(text, style="yellow"))

    def lost(other: Driver) -> None:
        text = (
            f"{paths.name} is now run by {other}, so this driver ends. Both may have trained the same cells."
        )
        console.print(Text(text, style="yellow"))
        request_stop(driver)

    with leased(paths.lease, paths.name, waits, lost):
        yield


def copy_results(paths: StudyPaths, files: Sequence[Path], console: Console) -> str | None:
    """Copy results to the shared storage and return the name of the place; None, with a warning, if that fails."""
    name = redacted(str(paths.shared_results))
    try:
        copy_into(paths.shared_results, files)
    except (OSError, InputError) as error:
        text = f"The results could not be copied to {name}: {reason(error)} They are in {paths.folder}."
        console.print(Text(text, style="yellow"))
        return None
    return name


def _joined(stack: ExitStack, spec: StudySpec, console: Console) -> machines.Capacity:
    """Join the cluster this process belongs to, and return what it has for the study, which must hold a rank."""
    with console.status("joining the cluster"):
        stack.enter_context(joined_cluster(on_gpu=spec.resources.gpus_per_trial > 0))
        limits = machines.read_autoscaler_limits()
        live = machines.awaited_machines(limits, JOIN_SECONDS)
    return machines.capacity(live, limits, spec.resources)


def _tally(recorder: Recorder, slots: int) -> str:
    """One line on the cells that were trained, and the share of the slots' time that went into training."""
    if not recorder.wall_seconds:
        return f"[dim]nothing to train: all {len(recorder.rows)} cells are done.[/]"
    share = recorder.train_seconds / (recorder.wall_seconds * slots)
    wall = duration(recorder.wall_seconds)
    return f"[dim]{recorder.trained} cells in {wall}, {share:.0%} of it in training steps.[/]"
