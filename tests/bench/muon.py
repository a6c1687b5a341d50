"""Muon against AdamW on two presets: loss, its spread over seeds and time of a step, each at the best of its rates."""

import statistics
from pathlib import Path

from study.plan import make_plan
from study.spec.study import load_spec
from tests.bench.figure import Figure
from trainables.cell import Cell
from trainables.progress import Result
from trainables.train.loop import train

#: A preset and one of its shapes.
CASES = {"quickstart": (2, 26), "text": (2, 34)}
#: Rates of Muon, the same for all shapes, and multiples of min(0.01, 0.3/width) for AdamW; the first seed chooses.
MUON_RATES = (0.005, 0.01, 0.02, 0.04)
ADAMW_FACTORS = (0.5, 1.0, 2.0)
SEEDS = 3


def measure(folder: Path) -> list[Figure]:
    """Return a figure a preset."""
    return [case(folder, preset, *shape) for preset, shape in CASES.items()]


def case(folder: Path, preset: str, depth: int, width: int) -> Figure:
    """Train a shape of a preset with both optimizers in turn."""
    planned = make_plan(load_spec(preset, ["training.seeds=1"])).cells
    cell = next(p.cell for p in planned if (p.cell.shape.depth, p.cell.shape.width) == (depth, width))
    muon, adamw = (
        cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"optimizer": name})})
        for name in ("muon", "adamw")
    )
    rivals = [_at(adamw, min(0.01, 0.3 / width) * factor) for factor in ADAMW_FACTORS]
    # In turn, so that both meet the same speed of the machine.
    theirs, ours = _best(folder, rivals), _best(folder, [_at(muon, rate) for rate in MUON_RATES])
    results: list[tuple[Result, Result]] = []
    for seed in range(SEEDS):
        pair = [train(_seeded(one, seed), data_root=folder, evaluations=1) for one in (ours, theirs)]
        results.append((pair[0], pair[1]))
    both = [[pair[i] for pair in results] for i in (0, 1)]
    return Figure(
        what=f"{preset}, {depth} layers of width {width}: time of a step with Muon",
        value=statistics.median(b.tokens_per_second / a.tokens_per_second for a, b in results),
        unit="ratio",
        limit=None,
        ours=f"{_losses(both[0])} at {ours.lr:.3g}",
        rival=f"{_losses(both[1])} at {theirs.lr:.3g} (AdamW)",
    )


def _at(cell: Cell, rate: float) -> Cell:
    return cell.model_copy(update={"lr": rate})


def _seeded(cell: Cell, seed: int) -> Cell:
    return cell.model_copy(update={"seed": seed})


def _best(folder: Path, cells: list[Cell]) -> Cell:
    losses = [train(cell, data_root=folder, evaluations=1).loss or float("inf") for cell in cells]
    return cells[losses.index(min(losses))]


def _losses(results: list[Result]) -> str:
    losses = [result.loss for result in results if result.loss is not None]
    return f"loss {statistics.mean(losses):.4f}, spread {statistics.stdev(losses):.4f}"
