"""Train one cell: steps, evaluation, divergence, checkpoints, throughput."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from core.errors import InputError
from trainables.cell import Cell
from trainables.checkpoint import checkpoint
from trainables.checkpoint.checkpoint import Segment, TrainingState
from trainables.data.store.batches import IGNORED, batch, epochs, validation_batches
from trainables.data.store.open import open_store
from trainables.data.store.token_store import TokenStore
from trainables.diagnostics import Diagnostic, check_diagnostics
from trainables.diagnostics.probe import Probe
from trainables.errors import InterruptedTrainingError
from trainables.export.weights import keep
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.progress import Evaluation, Progress, Result
from trainables.ranks.collective import run_on_all_ranks
from trainables.ranks.process_group import (
    RankInfo,
    Rendezvous,
    device,
    device_name,
    first_collective,
    join,
    leave,
)
from trainables.record import Keep
from trainables.storage.storage import Folder, open_storage, with_retries
from trainables.train.engine import (
    build_engine,
    clip_gradients,
    close_engine,
    missing_for_compiler,
    preload,
    schedule,
    set_rates,
    whole_state,
)
from trainables.train.gpu_readings import gpu_readings
from trainables.train.late_reading import LateReading
from trainables.train.memory_meter import MemoryMeter
from trainables.train.trunk import CurveSteps, Trunk, branched, divergence, point_of

#: Least seconds between two reports of progress.
REPORT_EVERY = 2.0
#: Least seconds between two checkpoints, and from the end of one to the next over the seconds that it took, if their
#: interval is not given: a checkpoint of a small model takes 0.1 s, one of 30 GB to an object store minutes.
CHECKPOINT_EVERY, CHECKPOINT_SHARE = 30.0, 20
#: Seconds between two checks of whether a checkpoint is due or the cell is to stop: a sixtieth of a cell of eight days
#: is three hours.
CHECK_EVERY = 1.0
#: Seconds from which the first collective is noted: ranks that see only their own GPU took 30 s (NCCL's issue 1749).
SLOW_COLLECTIVE = 10.0
#: Seconds that packing may take; 60 GB of text and its vocabulary take hours.
PACK_LIMIT = 24 * 3600.0
#: Why a cell diverged whose numbers left the range of its precision, in every layout.
NOT_FINITE = "the training loss or its gradient was not finite"


def train(
    cell: Cell,
    *,
    data_root: str | Path,
    layout: Layout | None = None,
    rank_info: RankInfo | None = None,
    rendezvous: Rendezvous | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: float | None = None,
    trunk: Trunk | None = None,
    weights: Keep | None = None,
    evaluations: int = 4,
    diagnostics: Sequence[Diagnostic] = (),
    report: Callable[[Progress], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    at_risk: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a cell, or resume it from its newest checkpoint, and return its result.

    Every rank of the layout calls this with the same arguments except `rank_info` and gets the same result.

    - `data_root`: folder or URI of the packed token stores; a missing store is packed there.
    - `layout`, `rank_info`: one rank by default, or as torchrun started this process.
    - `rendezvous`: the open port of rank 0; None on other ranks.
    - `checkpoints`: folder or URI of this cell's checkpoints, one every `checkpoint_every` seconds; by default as often
      as takes a twentieth of the time, and at most one in `CHECKPOINT_EVERY` seconds.
    - `trunk`: of a cell with the schedule `wsd`, where it continues from what shorter cells have trained and leaves the
      same for longer ones; its result is equal without.
    - `weights`: destination of the final weights as a HuggingFace folder; ignored if HuggingFace has no such model.
    - `evaluations`: number of evaluations on the validation set, evenly spaced, the last one at the last step.
    - `diagnostics`: measured before the first step and at each evaluation, with no effect on training.
    - `report`: called on rank 0 with new progress, at most once in `REPORT_EVERY` seconds.
    - `interrupted`: asked about every `CHECK_EVERY` seconds; once it is true on any rank, the cell saves and ends.
    - `at_risk`: asked as often; while it is true on any rank, because its machine will be taken away, checkpoints are
      at most `CHECKPOINT_EVERY` seconds apart.

    Raises:
        DataError: the data is missing, unusable, or has changed since the cell was planned.
        InputError: the cell cannot be trained in this layout, or the number of ranks differs from the layout's.
        InterruptedTrainingError: `interrupted` asked for the end.
        RuntimeError: a rank was lost, or did not reach a collective in time.
    """
    recipe = cell.recipe
    if not family(recipe.network).is_huggingface(recipe):
        weights = None
    layout = layout or Layout()
    layout.check(cell.shape, recipe)
    check_diagnostics(diagnostics, layout, recipe)
    if layout.shard_vocabulary and cell.data.has_targets:
        raise InputError(
            f"the layout shards the vocabulary, and the accuracy of the task {cell.data.kind} is read off whole "
            "logits. Leave `shard_vocabulary` out: the vocabulary of a task is small."
        )
    join(rank_info, rendezvous)
    if dist.get_world_size() != layout.ranks:
        raise InputError(
            f"the layout has {layout.ranks} ranks (tensor_parallel {layout.tensor_parallel} x data_parallel "
            f"{layout.data_parallel}), but {dist.get_world_size()} were started; make them equal."
        )
    connecting = first_collective() if layout.ranks > 1 else 0.0
    preload(recipe, layout)
    meter = MemoryMeter(device())
    store = _open_store(cell, layout, data_root)
    storage = None if checkpoints is None else with_retries(lambda: open_storage(checkpoints))
    trunk_storage = None if trunk is None else with_retries(lambda: open_storage(trunk.folder))
    curve = CurveSteps.of(recipe, evaluations, trunk)
    engine, state, damaged = _start(cell, layout, store, storage, trunk_storage, curve)
    if connecting > SLOW_COLLECTIVE:
        state.notes.append(
            f"the first collective of {layout.ranks} ranks took {connecting:.0f} s; NCCL_DEBUG=INFO shows why"
        )
    training = _Training(
        cell,
        layout,
        store,
        engine,
        state,
        damaged,
        meter,
        curve,
        storage,
        trunk_storage,
        checkpoint_every,
        report,
        interrupted,
        at_risk,
    )
    try:
        if diagnostics:
            parts = family(recipe.network).parts(engine.module, recipe)
            training.probe = Probe(diagnostics, engine.module, parts, store, recipe.context)
        result = training.run()
        final = whole_state(engine, layout) if weights and result.status == "done" else None
    finally:
        close_engine(engine)
    if weights and result.status == "done":
        # The other ranks wait: a rank that exits early counts as lost.
        note, *_ = run_on_all_ranks(
            lambda: None if final is None else keep(weights, final, cell, layout, store, result),
            "writing the weights",
        )
        if note:
            result = result.model_copy(update={"notes": (*result.notes, note)})
    if rank_info is not None:
        leave()
    return result


def _open_store(cell: Cell, layout: Layout, data_root: str | Path) -> TokenStore:
    spec, key, context = cell.data, cell.data_key, cell.recipe.context
    opened = functools.partial(
        with_retries, lambda: open_store(spec, context=context, root=data_root, key=key)
    )
    if layout.ranks > 1:
        # Packing can take longer than the timeout of a collective.
        run_on_all_ranks(lambda: bool(opened()), "packing the data", PACK_LIMIT)
    return opened()


def _start(
    cell: Cell,
    layout: Layout,
    store: TokenStore,
    storage: Folder | None,
    trunk: Folder | None,
    curve: CurveSteps,
) -> tuple[Any, TrainingState, set[str]]:
    """Build the engine and load the newest intact checkpoint of the cell; without one, of its trunk.

    Returns the engine, its state of training, and the names of the damaged checkpoints.
    """
    for folder in filter(None, (storage, trunk)):
        check = folder.check if dist.get_rank() == 0 else lambda: None
        run_on_all_ranks(functools.partial(with_retries, check), "checking the checkpoint storage")
    notes: list[str] = []
    damaged: set[str] = set()
    restored = checkpoint.find(storage, cell.key, layout, notes, damaged) if storage else None
    state = restored.marker.state if restored else None
    if trunk and cell.trunk and not restored:
        restored = checkpoint.find(
            trunk, cell.trunk, layout, notes, set(),
            lambda marker: branched(cell, curve, marker.state, marker.layout.ranks) is not None,
        )  # fmt: skip
        if restored:
            state = branched(cell, curve, restored.marker.state, restored.marker.layout.ranks)
    torch.manual_seed(cell.seed)
    model = build_model(cell.shape, cell.recipe, store.vocabulary, cell.seed)
    is_universal = restored is not None and restored.universal
    if layout.compiled and (missing := missing_for_compiler()):
        notes.append(f"the layers were not compiled: this machine lacks {missing}")
        layout = layout.model_copy(update={"compiled": False})
    engine = build_engine(model, cell.shape, cell.recipe, cell.lr, layout, universal=is_universal)
    state = state or TrainingState(cell=cell.key)
    if restored:
        try:
            restored.load(engine, notes)
        except Exception:
            close_engine(engine)
            raise
        if restored.marker.state.cell == cell.trunk:
            set_rates(engine, cell.recipe, state.step)
        # Sums over the ranks of that layout.
        scale = layout.ranks / restored.marker.layout.ranks
        state.window_loss *= scale
        state.segments = [part.model_copy(update={"loss": part.loss * scale}) for part in state.segments]
    state.notes += [note for note in notes if note not in state.notes]
    return engine, state, damaged


def next_stride(stride: int, steps: int, seconds: float) -> int:
    """Return the steps until the next check, from those since the last one and their seconds: `CHECK_EVERY` apart."""
    return max(1, min(2 * stride, int(steps * CHECK_EVERY / seconds)))


def dropout_seed(seed: int, step: int, group: int) -> int:
    """Return a seed by the cell's seed, step and group alone, so that no generator state is saved.

    Unless the ranks of a group draw the same masks, their replicated weights drift apart (by 1.4e-2 after 20 steps).
    """
    return int(np.random.SeedSequence((seed, step, group)).generate_state(1, np.uint64)[0])


@dataclass
class _Training:
    """A cell in training on this rank."""

    cell: Cell
    layout: Layout
    store: TokenStore
    engine: Any
    state: TrainingState
    #: Checkpoints that the next save deletes.
    damaged: set[str]
    meter: MemoryMeter
    curve: CurveSteps
    storage: Folder | None
    trunk: Folder | None
    checkpoint_every: float | None
    report: Callable[[Progress], None] | None
    interrupted: Callable[[], bool]
    at_risk: Callable[[], bool]
    probe: Probe | None = None
    #: Points and evaluations reported so far.
    reported: tuple[int, int] = (0, 0)
    #: Norm of the last step's gradient at stage 0; DeepSpeed keeps that of the others.
    norm: torch.Tensor | None = None
    #: The last checkpoint, while it is copied to an object store.
    saved: checkpoint.Saved | None = None
    #: When it began, and how long the one before it took until it was valid.
    save_began: float = 0.0
    save_seconds: float = 0.0
    #: Whether this rank's losses were finite when they were last on the host.
    is_finite: bool = True

    def __post_init__(self) -> None:
        self.device, self.rank = device(), dist.get_rank()
        self.group = self.rank // self.layout.tensor_parallel
        self.resumed_from, self.resumed_seconds = self.state.step, self.state.train_seconds
        # Of a checkpoint in the middle of a window, rank 0 holds the sum of all ranks.
        begun = self.state.window_loss if self.rank == 0 else 0.0
        # Sums of numbers in fp32 have no rounding in fp64, so that a curve does not depend on what longer cells need.
        dtype = torch.float64 if self.cell.trunk else torch.float32
        self.loss_sum = torch.tensor(begun, dtype=dtype, device=self.device)
        # The ranks of a gang wait for one another at each check anyhow.
        self.reading = LateReading(is_late=self.device.type == "cuda" and self.layout.ranks == 1)

    def run(self) -> Result:
        state, steps, curve = self.state, self.cell.recipe.steps, self.curve
        reason = None
        if self.probe and state.step == 0:
            start = time.perf_counter()
            state.start = self.probe.measures()
            state.train_seconds += time.perf_counter() - start
        interval = CHECKPOINT_EVERY if self.checkpoint_every is None else self.checkpoint_every
        last_checkpoint = last_report = time.monotonic()
        stride = 1
        while state.step < steps and reason is None:
            end = curve.end_after(state.step)
            first_step = state.step
            seconds = self._steps(min(end, state.step + stride), end)
            if state.step == end:
                self._close_segment()
            if state.step in curve.points:
                reason = self._add_point()
            if state.step in curve.evaluations and reason is None:
                state.evaluations.append(self._evaluate())
            elif state.step in curve.longer_evaluations and reason is None:
                state.longer_evaluations.append(self._evaluate())
            now = time.monotonic()
            if reason is None and state.step < steps:
                since, short = now - last_checkpoint, min(interval, CHECKPOINT_EVERY)
                stride = next_stride(stride, state.step - first_step, seconds)
                (broken, ends, at_risk), (due, due_at_risk, stride), all_copied = self._agree(
                    (not self.is_finite or self.engine.skipped_steps > 0, self.interrupted(), self.at_risk()),
                    (since > interval, since > short, stride),
                    self.saved is not None and self.saved.is_copied,
                )
                due = due or (at_risk and due_at_risk)
                if all_copied:
                    # The checkpoint becomes valid now: the next one may come long after this machine is lost.
                    self._finish_save()
                if broken:
                    if state.step != end:
                        self._close_segment()
                    reason = self._add_point()
                elif self.trunk is not None and state.step == curve.trunk_end:
                    self._write(self.trunk, state.model_copy(update={"cell": self.cell.trunk}), None)
                if not broken and self.storage is not None and (ends or due):
                    self._save()
                    last_checkpoint = time.monotonic()
                    if self.checkpoint_every is None:
                        interval = max(CHECKPOINT_EVERY, CHECKPOINT_SHARE * (last_checkpoint - now))
                if ends and reason is None:
                    self._finish_save()
                    raise InterruptedTrainingError(f"stopped at step {state.step}")
            if self.report and self.rank == 0 and now - last_report > REPORT_EVERY:
                self._report()
                last_report = now
        self._finish_save()
        return self._result(reason)

    def _steps(self, until: int, end: int) -> float:
        """Train up to step `until`, and wait for the device at step `end`; return the seconds."""
        recipe, layout, engine, state = self.cell.recipe, self.layout, self.engine, self.state
        start = time.perf_counter()
        pieces = layout.pieces(recipe)
        while state.step < until:
            if recipe.dropout:
                torch.manual_seed(dropout_seed(self.cell.seed, state.step, self.group))
            inputs, targets = self._batch()
            for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
                loss = engine(input_ids=x, labels=y, shift_labels=y).loss
                engine.backward(loss)
                self.loss_sum += loss.detach() / pieces
                if layout.zero == 0 and engine.is_gradient_accumulation_boundary():
                    self.norm = clip_gradients(engine, layout, recipe.grad_clip)
                engine.step()
            state.step += 1
        # Waits for the device: at `end` for these steps, before it for those of the last call.
        self._read(self.reading.exchange(self.loss_sum))
        if until == end:
            self._read(self.reading.newest())
        return self._spent(start)

    def _read(self, loss_sum: float | None) -> None:
        if loss_sum is not None:
            self.is_finite = math.isfinite(loss_sum)

    def _spent(self, start: float) -> float:
        """Add the seconds since `start` to those of training, and return them."""
        seconds = time.perf_counter() - start
        self.state.train_seconds += seconds
        self.state.window_seconds += seconds
        return seconds

    def _close_segment(self) -> None:
        """Add the segment since the last one."""
        engine, state = self.engine, self.state
        last = engine.get_global_grad_norm() if self.layout.zero else self.norm
        state.segments.append(
            Segment(
                step=state.step,
                loss=float(self._sum(self.loss_sum)),
                seconds=state.window_seconds,
                # The scheduler holds the rate of the next step.
                lr=float(engine.lr_scheduler.base_lrs[0]) * schedule(self.cell.recipe)(state.step - 1),
                grad_norm=math.nan if last is None else float(last),
                gpu=gpu_readings(self.device),
            )
        )
        self.loss_sum.zero_()
        state.window_loss = state.window_seconds = 0.0

    def _add_point(self) -> str | None:
        """Add the point of the segments since the last one to the curve; return why the cell diverged, else None."""
        layout, engine, state = self.layout, self.engine, self.state
        start = state.points[-1].step if state.points else 0
        since = [segment for segment in state.segments if segment.step > start]
        point = point_of(since, start, self.cell.recipe, layout.ranks)
        state.points.append(point)
        if state.step > self.curve.trunk_end:
            state.segments.clear()
        # DeepSpeed skips a step under ZeRO if its gradient is not finite; at stage 0 such a step spoils the weights.
        if skipped := engine.skipped_steps:
            return f"{NOT_FINITE} by step {state.step} (steps that DeepSpeed skipped: {skipped})"
        if not math.isfinite(point.train_loss) or not (layout.zero or math.isfinite(point.grad_norm)):
            return f"{NOT_FINITE} by step {state.step}"
        return divergence(state.points)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets of this group at this step, [share, T] each."""
        recipe, share = self.cell.recipe, self.layout.share(self.cell.recipe)
        x, y = batch(
            self.store, context=recipe.context, batch=recipe.batch, seed=self.cell.seed, step=self.state.step,
            rows=slice(self.group * share, (self.group + 1) * share),
        )  # fmt: skip
        return self._tensor(x), self._tensor(y)

    def _tensor(self, array: Any) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        # A copy from memory that is not pinned waits for the device.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of a value over all ranks."""
        if self.layout.ranks > 1:
            dist.all_reduce(value)
        return value

    def _agree(
        self, flags: Sequence[bool], of_rank_0: Sequence[int], is_ready: bool
    ) -> tuple[list[bool], list[int], bool]:
        """Return what all ranks do, in one collective.

        Args:
            flags: each is set if any rank sets it.
            of_rank_0: numbers that depend on the clock, which rank 0 decides.
            is_ready: set if all ranks set it.
        """
        if self.layout.ranks == 1:
            return list(flags), list(of_rank_0), is_ready
        decided = of_rank_0 if self.rank == 0 else [0] * len(of_rank_0)
        votes = torch.tensor([*flags, *decided, is_ready], dtype=torch.int64, device=self.device)
        total = self._sum(votes).tolist()
        n = len(flags)
        return [count > 0 for count in total[:n]], total[n:-1], total[-1] == self.layout.ranks

    def _evaluate(self) -> Evaluation:
        """Evaluate loss and measures over the whole validation set; the groups share it and each target counts once."""
        engine, state = self.engine, self.state
        start = time.perf_counter()
        score = self.cell.data.score(self.cell.recipe.context)
        sums = torch.zeros(2 + (score.numbers if score else 0), dtype=torch.float64)
        engine.eval()
        # Compiled layers would be compiled again for passes without gradients, and for the last, smaller batch.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for x, y, counts in self._validation():
                # With one item the loss is a sum over tokens, also with a sharded vocabulary.
                targets = self._tensor(y)
                output = engine(
                    input_ids=self._tensor(x), labels=targets, shift_labels=targets, num_items_in_batch=1,
                    needs_logits=bool(score),
                )  # fmt: skip
                if not counts:
                    continue
                added = [float(output.loss), float((targets != IGNORED).sum())]
                sums[:2] += torch.tensor(added, dtype=torch.float64)
                if score:
                    sums[2:] += score.count(x, y, output.logits.argmax(dim=-1))
        engine.train()
        total, scored, *counted = (self._sum(sums.to(self.device)) / self.layout.tensor_parallel).tolist()
        measures = score.measures(counted) if score else {}
        if self.probe:
            measures |= self.probe.measures()
        state.train_seconds += time.perf_counter() - start
        return Evaluation(step=state.step, loss=total / scored, measures=measures)

    def _validation(self) -> Iterator[tuple[Any, Any, bool]]:
        """Yield this group's batches (x, y) and whether each counts.

        Groups that run out repeat a batch uncounted, because under ZeRO-3 each call gathers weights from every group.
        """
        sequences = self.layout.sequences(self.cell.recipe)
        batches = validation_batches(self.store, context=self.cell.recipe.context, batch=sequences)
        for turn in itertools.zip_longest(*[batches] * self.layout.data_parallel):
            mine = turn[self.group]
            yield *(mine or turn[0]), mine is not None

    def _save(self) -> None:
        assert self.storage is not None
        self._write(self.storage, self.state, self.damaged)

    def _write(self, storage: Folder, state: TrainingState, damaged: set[str] | None) -> None:
        """Write a checkpoint of the cell or of its trunk; see `checkpoint.save` for `damaged`."""
        start = time.perf_counter()
        self._read(self.reading.newest())
        self._spent(start)
        if not self.is_finite:
            # The next check ends the cell.
            return
        self._finish_save()
        self.save_began = time.monotonic()
        state.window_loss = float(self._sum(self.loss_sum.clone()))
        self.saved = checkpoint.save(self.engine, storage, self.layout, state, damaged)
        if not storage.is_remote:
            self._finish_save()

    def _finish_save(self) -> None:
        """Complete the last checkpoint, after its copy to the object store."""
        if self.saved is None:
            return
        problem = self.saved.finish()
        self.save_seconds = time.monotonic() - self.save_began
        if problem and not any(problem in note for note in self.state.notes):
            # Note each problem once: a disk stays full for many checkpoints.
            step = int(self.saved.tag.split("-")[1])
            self.state.notes.append(f"no checkpoint at step {step}: {problem}")
        self.saved = None

    def _report(self) -> None:
        assert self.report is not None
        state, (points, evaluations) = self.state, self.reported
        self.report(
            Progress(
                step=state.step,
                steps=self.cell.recipe.steps,
                train_seconds=state.train_seconds,
                points=tuple(state.points[points:]),
                evaluations=tuple(state.evaluations[evaluations:]),
                # With the first points, once.
                start=state.start if state.points and not points else {},
                save_seconds=self.save_seconds,
            )
        )
        self.reported = (len(state.points), len(state.evaluations))

    def _result(self, reason: str | None) -> Result:
        cell, recipe, state, store = self.cell, self.cell.recipe, self.state, self.store
        loss = state.evaluations[-1].loss if state.evaluations else None
        if reason is None and (loss is None or not math.isfinite(loss)):
            reason = f"the validation loss is {loss} at step {state.step}"
        model_family, size = family(recipe.network), (cell.shape, recipe, store.vocabulary)
        tokens = state.step * recipe.batch * recipe.context
        rates = [point.tokens_per_second for point in state.points]
        rate = statistics.median(rates or [tokens / state.train_seconds])
        peak = torch.tensor(self.meter.peak(), dtype=torch.int64, device=self.device)
        if self.layout.ranks > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        return Result(
            status="done" if reason is None else "diverged",
            reason=reason,
            loss=loss if reason is None else None,
            train_loss=state.points[-1].train_loss if state.points else None,
            tokens=tokens,
            epochs=epochs(store, context=recipe.context, batch=recipe.batch, steps=state.step),
            params=cell.shape.budget_params,
            total_params=model_family.parameters(*size).total,
            vocabulary=store.vocabulary,
            entropy=store.entropy,
            bytes_per_token=store.bytes_per_token,
            tokens_per_second=rate,
            flops_per_second=rate * model_family.flops(*size).training,
            memory_bytes=int(peak),
            resumed_from=self.resumed_from,
            resumed_seconds=self.resumed_seconds,
            device=device_name(),
            **{name: value for name, value in state if name in Result.model_fields},
        )
