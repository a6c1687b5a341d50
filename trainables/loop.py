"""Train one cell: steps, evaluation, divergence, checkpoints, throughput."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from trainables import checkpoint
from trainables.cell import Cell
from trainables.checkpoint import TrainingState
from trainables.counts import flops, parameters
from trainables.data.batches import batch, validation_batches
from trainables.data.store import TokenStore, open_store
from trainables.engine import build_engine, device, prepare_process
from trainables.errors import DataError, InputError
from trainables.model import build_model
from trainables.progress import Evaluation, Point, Progress, Result
from trainables.throughput import matmul_flops_per_second, peak_memory

#: Points of a training curve: enough to see its shape, few enough to log.
CURVE_POINTS = 60
#: A cell whose training loss exceeds this many times its first loss is diverged, not merely slow.
DIVERGENCE_FACTOR = 2.0


def train(
    cell: Cell,
    *,
    data_root: Path,
    checkpoints: Path | None = None,
    checkpoint_every: float = 10.0,
    evaluations: int = 4,
    micro_batch: int | None = None,
    report: Callable[[Progress], None] | None = None,
    report_every: float = 2.0,
) -> Result:
    """Train a cell to its end, or on from its newest checkpoint, and return how it ended.

    Args:
        cell: what to train.
        data_root: folder of the packed token stores; the cell's own is made there when missing.
        checkpoints: folder of this cell's checkpoints; None keeps none.
        checkpoint_every: seconds between checkpoints.
        evaluations: evaluations on the validation set, evenly spaced, the last one at the last step.
        micro_batch: sequences worked on at once, a divisor of the batch; by default the whole batch.
        report: called with what is new, at most every `report_every` seconds.
        report_every: seconds.

    Raises:
        DataError: the data is missing, unusable, or no longer what the cell was planned with.
    """
    prepare_process()
    recipe = cell.recipe
    store = open_store(cell.data, context=recipe.context, root=data_root, key=cell.data_key)
    torch.manual_seed(cell.seed)
    micro_batch = micro_batch or recipe.batch
    if recipe.batch % micro_batch:
        raise InputError(f"micro_batch {micro_batch} does not divide the batch of {recipe.batch} sequences.")
    model = build_model(cell.shape, recipe, store.vocabulary, cell.seed)
    engine = build_engine(model, recipe, cell.lr, micro_batch)
    training = _Training(
        cell, store, engine, micro_batch, checkpoints, checkpoint_every, report, report_every
    )
    try:
        return training.run(evaluations)
    finally:
        engine.destroy()


class _Training:
    """The running state of one cell. One object, so that a checkpoint and a report see the same numbers."""

    def __init__(
        self,
        cell: Cell,
        store: TokenStore,
        engine: Any,
        micro_batch: int,
        checkpoints: Path | None,
        checkpoint_every: float,
        report: Callable[[Progress], None] | None,
        report_every: float,
    ) -> None:
        self.cell, self.store, self.engine = cell, store, engine
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.report, self.report_every = report, report_every
        self.micro_batch, self.device = micro_batch, device()
        self.step = 0
        self.seconds = 0.0
        self.first_loss: float | None = None
        self.points: list[Point] = []
        self.evaluations: list[Evaluation] = []
        self.notes: list[str] = []
        self.reported = (0, 0)
        self.resumed_from, self.resumed_seconds = 0, 0.0

    def run(self, evaluations: int) -> Result:
        self._resume()
        steps = self.cell.recipe.steps
        window = max(1, steps // CURVE_POINTS)
        evaluate_at = {round(steps * (i + 1) / evaluations) for i in range(evaluations)} | {steps}
        reason = None
        last_checkpoint = last_report = time.monotonic()
        while self.step < steps and reason is None:
            until = min(steps, self.step - self.step % window + window)
            until = min([until, *(s for s in evaluate_at if s > self.step)])
            reason = self._window(until)
            if self.step in evaluate_at and reason is None:
                self._evaluate()
            now = time.monotonic()
            if (
                self.checkpoints
                and reason is None
                and self.step < steps
                and now - last_checkpoint > self.checkpoint_every
            ):
                self._save()
                last_checkpoint = time.monotonic()
            if self.report and now - last_report > self.report_every:
                self._report()
                last_report = now
        return self._result(reason)

    def _window(self, until: int) -> str | None:
        """Train up to step `until`, add a point to the curve, and return why the cell must end, if it must."""
        recipe, engine = self.cell.recipe, self.engine
        start, first_step = time.perf_counter(), self.step
        total = torch.zeros((), device=self.device)
        norm = float("nan")
        pieces = recipe.batch // self.micro_batch
        while self.step < until:
            inputs, targets = self._batch()
            for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
                logits = engine(input_ids=x).logits
                loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.reshape(-1))
                engine.backward(loss)
                total += loss.detach() / pieces
                if (
                    self.step == until - 1
                    and engine.is_gradient_accumulation_boundary()
                    and recipe.precision == "fp32"
                ):
                    # DeepSpeed has no norm to give in fp32 at stage 0 (its issue 7255), and clips in the step below.
                    norm = _gradient_norm(engine)
                engine.step()
            self.step += 1
        if recipe.precision != "fp32":
            norm = float(engine.get_global_grad_norm())
        mean = float(total) / (until - first_step)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        rate = (until - first_step) * recipe.batch * recipe.context / seconds
        lr = float(engine.lr_scheduler.get_last_lr()[0])
        self.points.append(
            Point(step=self.step, train_loss=mean, lr=lr, grad_norm=norm, tokens_per_second=rate)
        )
        if self.first_loss is None:
            self.first_loss = mean
        if not math.isfinite(mean):
            return f"the training loss is {mean} at step {self.step}"
        if mean > DIVERGENCE_FACTOR * self.first_loss:
            return f"the training loss rose from {self.first_loss:.3f} to {mean:.3f} at step {self.step}"
        return None

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        recipe = self.cell.recipe
        x, y = batch(
            self.store, context=recipe.context, batch=recipe.batch, seed=self.cell.seed, step=self.step
        )
        return self._tensor(x), self._tensor(y)

    def _tensor(self, array: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _evaluate(self) -> None:
        """Loss over the whole validation set, each token once, in nats per token."""
        recipe, engine = self.cell.recipe, self.engine
        start = time.perf_counter()
        total, tokens = 0.0, 0
        engine.eval()
        with torch.no_grad():
            for x, y in validation_batches(self.store, context=recipe.context, batch=self.micro_batch):
                logits = engine(input_ids=self._tensor(x)).logits
                targets = self._tensor(y).view(-1)
                loss = functional.cross_entropy(
                    logits.view(-1, logits.shape[-1]).float(), targets, reduction="sum"
                )
                total, tokens = total + float(loss), tokens + targets.numel()
        engine.train()
        if not tokens:
            raise DataError(
                f"the validation set in {self.store.path} is empty; raise data.validation_fraction"
            )
        self.evaluations.append(Evaluation(step=self.step, loss=total / tokens))
        self.seconds += time.perf_counter() - start

    def _resume(self) -> None:
        if self.checkpoints is None:
            return
        state = checkpoint.load(self.engine, self.checkpoints, self.cell.key, self.notes)
        if state is not None:
            self.step = self.resumed_from = state.step
            self.seconds, self.first_loss = state.train_seconds, state.first_loss
            self.resumed_seconds = state.train_seconds
            self.points, self.evaluations = list(state.points), list(state.evaluations)

    def _save(self) -> None:
        assert self.checkpoints is not None
        state = TrainingState(
            cell=self.cell.key,
            step=self.step,
            train_seconds=self.seconds,
            first_loss=self.first_loss,
            points=tuple(self.points),
            evaluations=tuple(self.evaluations),
        )
        note = checkpoint.save(self.engine, self.checkpoints, state)
        if note:
            self.notes.append(note)

    def _report(self) -> None:
        assert self.report is not None
        points, evaluations = self.reported
        self.report(
            Progress(
                step=self.step,
                steps=self.cell.recipe.steps,
                train_seconds=self.seconds,
                points=tuple(self.points[points:]),
                evaluations=tuple(self.evaluations[evaluations:]),
            )
        )
        self.reported = (len(self.points), len(self.evaluations))

    def _result(self, reason: str | None) -> Result:
        cell, recipe = self.cell, self.cell.recipe
        loss = self.evaluations[-1].loss if self.evaluations else None
        if reason is None and (loss is None or not math.isfinite(loss)):
            reason = f"the validation loss is {loss} at step {self.step}"
        counts = parameters(cell.shape, self.store.vocabulary, recipe.context)
        tokens = self.step * recipe.batch * recipe.context
        rate = tokens / self.seconds
        cost = flops(cell.shape, self.store.vocabulary, recipe.context).training
        return Result(
            status="done" if reason is None else "diverged",
            reason=reason,
            loss=loss if reason is None else None,
            train_loss=self.points[-1].train_loss if self.points else None,
            step=self.step,
            tokens=tokens,
            params=cell.shape.budget_params,
            total_params=counts.total,
            vocabulary=self.store.vocabulary,
            floor=self.store.floor,
            bytes_per_token=self.store.bytes_per_token,
            train_seconds=self.seconds,
            tokens_per_second=rate,
            utilisation=rate * cost / matmul_flops_per_second(self.device, recipe.precision),
            memory_bytes=peak_memory(self.device),
            resumed_from=self.resumed_from,
            resumed_seconds=self.resumed_seconds,
            device=torch.cuda.get_device_name(0) if self.device.type == "cuda" else "cpu",
            notes=tuple(self.notes),
            points=tuple(self.points),
            evaluations=tuple(self.evaluations),
        )


def _gradient_norm(engine: Any) -> float:
    """The norm of the gradient before clipping."""
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))
