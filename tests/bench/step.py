"""Step time of our trainer over a minimal hand-written GPT-2 loop: same shape, data, optimizer, one thread."""

import statistics
import time
from pathlib import Path

import torch

from tests.bench.figure import Figure
from tests.plain_gpt2 import PlainGPT2, PlainTrainer
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store.batches import batch
from trainables.data.store.open import open_store
from trainables.model.build import build_model
from trainables.train.loop import train

#: Depth, width, sequences, tokens of a sequence, steps of a round, rounds, and the ratio that must not be exceeded.
CASES = ((4, 128, 32, 128, 8, 7, 1.15), (2, 32, 16, 64, 200, 9, 1.5))


def measure(folder: Path) -> list[Figure]:
    """Return a figure a case: milliseconds of a step of both, and the median over rounds of their ratio."""
    return [_case(folder, *case) for case in CASES]


def _case(
    folder: Path, depth: int, width: int, sequences: int, context: int, steps: int, rounds: int, limit: float
) -> Figure:
    data = HierarchyData(sequences=steps * sequences, validation_sequences=sequences)
    cell = Cell(
        shape=Shape(depth=depth, width=width, heads=2),
        recipe=Recipe(steps=steps, batch=sequences, context=context),
        data=data,
        data_key=data_key(data, context),
        lr=0.003,
        seed=0,
    )
    ours, plain = [], []
    for _ in range(rounds):
        # In turn and in one process: the machine's speed drifts, and both must see the same of it.
        result = train(cell, data_root=folder, evaluations=1)
        # A validation set of one batch is a third of a step, and both loops are timed without it.
        points = [p for p in result.points if p.step > steps // 4]
        ours.append(statistics.median(sequences * context / p.tokens_per_second for p in points))
        plain.append(_plain_step(cell, folder))
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return Figure(
        what=f"step time, L={depth} d={width}, batch {sequences}x{context}",
        value=statistics.median(ratios),
        unit="ratio",
        limit=limit,
        ours=f"{1000 * statistics.median(ours):.2f} ms",
        rival=f"{1000 * statistics.median(plain):.2f} ms (hand-written GPT-2 in plain torch)",
    )


def _plain_step(cell: Cell, folder: Path) -> float:
    """Median seconds of a step of the hand-written loop, fed the very same batches."""
    recipe, shape = cell.recipe, cell.shape
    store = open_store(cell.data, context=recipe.context, root=folder, key=cell.data_key)
    model = PlainGPT2(shape.depth, shape.width, shape.heads, store.vocabulary, recipe.context)
    model.copy_from(build_model(shape, recipe, store.vocabulary, cell.seed))
    trainer = PlainTrainer(model, cell.lr, recipe.steps, round(recipe.warmup * recipe.steps))
    window = max(1, recipe.steps // 60)
    seconds = []
    while trainer.step_number < recipe.steps:
        start, first = time.perf_counter(), trainer.step_number
        while trainer.step_number < min(recipe.steps, first + window):
            x, y = batch(
                store, context=recipe.context, batch=recipe.batch, seed=cell.seed, step=trainer.step_number
            )
            trainer.step(torch.from_numpy(x), torch.from_numpy(y))
        if trainer.step_number > recipe.steps // 4:
            seconds.append((time.perf_counter() - start) / (trainer.step_number - first))
    return statistics.median(seconds)
