"""Step time of our trainer over plain loops in torch: same shape, data, optimizer, one thread.

Of two shapes of GPT-2 over a minimal hand-written model; of the quickstart's and the evidence's larger shapes, and of a
vocabulary of 8,000 symbols, each family over HuggingFace's own class.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import nn

from benchmarks.figure import Figure
from tests.plain_gpt2 import PlainGPT2, PlainTrainer
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store.batches import batch
from trainables.data.store.open import open_store
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.train.loop import train

#: Depth, width, sequences, tokens of a sequence, symbols, steps of a round, rounds, and the ratio that must not be
#: exceeded.
CASES = ((4, 128, 32, 128, 8, 8, 7, 1.15), (2, 32, 16, 64, 8, 200, 9, 1.5))
#: The same for the quickstart at 28 thousand parameters, with heads of an even width, as rotary positions need.
QUICKSTART = tuple((depth, width, 64, 32, 8, 60, 5, 1.3) for depth, width in ((1, 48), (2, 36), (4, 24)))
#: The same for the evidence at 110 thousand parameters, and for a vocabulary whose loss is computed in one pass.
EVIDENCE = tuple((depth, width, 32, 64, 256, 40, 5, 1.15) for depth, width in ((1, 96), (2, 68), (4, 48)))
WORDS = ((2, 128, 16, 64, 8000, 20, 5, 1.0),)
FAMILIES = ("gpt2", "llama", "qwen3")


def measure(folder: Path) -> list[Figure]:
    """Return a figure per case: milliseconds of a step of both, and the median over rounds of their ratio."""
    hand_written = [_case(folder, "gpt2", _hand_written, *case) for case in CASES]
    return hand_written + [
        _case(folder, name, _huggingface, *case)
        for name in FAMILIES
        for case in (*QUICKSTART, *EVIDENCE, *WORDS)
    ]


def _case(
    folder: Path,
    network: str,
    rival: Callable[[Cell, int], nn.Module],
    depth: int,
    width: int,
    sequences: int,
    context: int,
    symbols: int,
    steps: int,
    rounds: int,
    limit: float,
) -> Figure:
    data = HierarchyData(
        vocabulary=symbols, sequences=min(600, steps * sequences), validation_sequences=sequences
    )
    cell = Cell(
        shape=Shape(depth=depth, width=width, heads=2),
        recipe=Recipe(steps=steps, batch=sequences, context=context, network=network),
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
        plain.append(_plain_step(cell, folder, rival))
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return Figure(
        what=f"step time of {network}, L={depth} d={width}, batch {sequences}x{context}, {symbols} symbols",
        value=statistics.median(ratios),
        unit="ratio",
        limit=limit,
        ours=f"{1000 * statistics.median(ours):.2f} ms",
        rival=f"{1000 * statistics.median(plain):.2f} ms ({rival.__doc__} in plain torch)",
    )


def _hand_written(cell: Cell, vocabulary: int) -> nn.Module:
    """hand-written GPT-2"""
    shape, recipe = cell.shape, cell.recipe
    model = PlainGPT2(shape.depth, shape.width, shape.heads, vocabulary, recipe.context)
    model.copy_from(build_model(shape, recipe, vocabulary, cell.seed))
    return model


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens).logits
        return logits


def _huggingface(cell: Cell, vocabulary: int) -> nn.Module:
    """HuggingFace's class"""
    shape, recipe = cell.shape, cell.recipe
    state = build_model(shape, recipe, vocabulary, cell.seed).state_dict()
    config, weights = family(recipe.network).exported(state, shape, recipe, vocabulary)
    config._attn_implementation = "sdpa"
    model = getattr(transformers, config.architectures[0])(config)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return _Logits(model.train())


def _plain_step(cell: Cell, folder: Path, rival: Callable[[Cell, int], nn.Module]) -> float:
    """Median seconds of a step of the plain loop, fed the very same batches."""
    recipe = cell.recipe
    store = open_store(cell.data, context=recipe.context, root=folder, key=cell.data_key)
    trainer = PlainTrainer(rival(cell, store.vocabulary), cell.lr, recipe.steps, recipe.warmup_end)
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
