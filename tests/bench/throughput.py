"""Tokens per second and MFU of our trainer on one GPU, over a plain torch loop of the very same HuggingFace model."""

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from study.spec.devices import DEVICES
from tests.bench.figure import Figure
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store.batches import batch
from trainables.data.store.open import open_store
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.train.engine import schedule
from trainables.train.loop import train

#: GPT-2 small and medium: 124 and 354 million parameters with a vocabulary of GPT-2's size.
SHAPES = (Shape(depth=12, width=768, heads=12), Shape(depth=24, width=1024, heads=16))
VOCABULARY, CONTEXT, BATCH, STEPS, ROUNDS = 50_304, 1024, 16, 60, 3
#: Seconds of a step over the rival's: the goal is 0.95 of its tokens per second.
LIMIT = 1 / 0.95


def measure(folder: Path) -> list[Figure]:
    """Return a figure a shape; none where there is no GPU, because a CPU needs hours for these shapes."""
    if not torch.cuda.is_available():
        return []
    recipe = Recipe(steps=STEPS, batch=BATCH, context=CONTEXT, precision="bf16")
    return [case(folder, shape, recipe, VOCABULARY, ROUNDS) for shape in SHAPES]


def case(folder: Path, shape: Shape, recipe: Recipe, vocabulary: int, rounds: int) -> Figure:
    """Train a shape with our trainer and with the plain loop in turn, and compare the time of their steps."""
    data = HierarchyData(
        vocabulary=vocabulary - 1, sequences=recipe.steps * recipe.batch, validation_sequences=recipe.batch
    )
    cell = Cell(
        shape=shape,
        recipe=recipe,
        data=data,
        data_key=data_key(data, recipe.context),
        lr=3e-4,
        seed=0,
    )
    ours, plain, memory = [], [], 0
    for _ in range(rounds):
        result = train(cell, data_root=folder, evaluations=1)
        memory = max(memory, result.memory_bytes)
        tokens = recipe.batch * recipe.context
        ours.append(
            statistics.median(tokens / p.tokens_per_second for p in result.points[len(result.points) // 2 :])
        )
        plain.append(_plain_step(cell, folder))
    step, rival = statistics.median(ours), statistics.median(plain)
    return Figure(
        what=f"GPU step, L={shape.depth} d={shape.width}, {recipe.precision}, {recipe.batch}x{recipe.context}",
        value=statistics.median(a / b for a, b in zip(ours, plain, strict=True)),
        unit="ratio",
        limit=LIMIT,
        ours=f"{_rate(cell, vocabulary, step)}, {memory / 1e9:.1f} GB",
        rival=f"{_rate(cell, vocabulary, rival)} (the same model in a plain torch loop)",
    )


def _rate(cell: Cell, vocabulary: int, seconds: float) -> str:
    """Tokens per second, and the share of the peak that the model's own FLOPs are."""
    recipe = cell.recipe
    rate = recipe.batch * recipe.context / seconds
    work = rate * family(recipe.network).flops(cell.shape, recipe, vocabulary).training
    return f"{rate:,.0f} tokens/s, MFU {work / _peak(recipe):.1%}"


def _peak(recipe: Recipe) -> float:
    """FLOP/s of the data sheet where the device is one we know, else of one thread of a CPU."""
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        for known in DEVICES.values():
            if known.is_gpu and known.name.split("-")[0].upper() in name.upper():
                return known.peak[recipe.precision]
    return DEVICES["cpu"].peak[recipe.precision]


def _plain_step(cell: Cell, folder: Path) -> float:
    """Median seconds of a step of what a careful person writes: fp32 weights, autocast, fused AdamW, clipping."""
    recipe = cell.recipe
    place = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    store = open_store(cell.data, context=recipe.context, root=folder, key=cell.data_key)
    model = build_model(cell.shape, recipe, store.vocabulary, cell.seed).to(place)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=cell.lr, betas=(recipe.beta1, recipe.beta2), fused=True
    )
    factor = schedule(recipe)
    seconds = []
    for step in range(recipe.steps):
        start = time.perf_counter()
        x, y = (
            torch.from_numpy(part).to(place)
            for part in batch(store, context=recipe.context, batch=recipe.batch, seed=cell.seed, step=step)
        )
        for group in optimizer.param_groups:
            group["lr"] = cell.lr * factor(step)
        with _autocast(place, recipe):
            loss = model(input_ids=x, labels=y, shift_labels=y).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        # Our trainer reads the loss at every point of its curve, which waits for the device.
        loss.item()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[len(seconds) // 2 :])


def _autocast(place: torch.device, recipe: Recipe) -> AbstractContextManager[object]:
    return torch.autocast(place.type, torch.bfloat16) if recipe.precision == "bf16" else nullcontext()
