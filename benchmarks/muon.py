"""Muon against AdamW on two presets: loss, its spread over seeds and time of a step, each at the best of its rates.

And its kernels per step against torch's Muon, counted at the sizes of a model of 125M parameters.
"""

import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.figure import Figure
from benchmarks.kernels import Counting
from study.plan import make_plan
from study.spec.study import load_spec
from trainables.cell import Cell, Recipe, Shape
from trainables.model.family import family
from trainables.model.parametrisation import param_groups
from trainables.progress import Result
from trainables.train.loop import train
from trainables.train.muon import StackedMuon

#: A preset and one of its shapes.
CASES = {"quickstart": (2, 26), "text": (2, 34)}
#: Rates of Muon, the same for all shapes, and multiples of min(0.01, 0.3/width) for AdamW; the first seed chooses.
MUON_RATES = (0.005, 0.01, 0.02, 0.04)
ADAMW_FACTORS = (0.5, 1.0, 2.0)
SEEDS = 3
#: Kernels per step of Muon over those of torch's, of the blocks of `LARGE`.
KERNELS = {"gpt2": 0.15, "llama": 0.085}
LARGE = Shape(depth=12, width=768, heads=12)


def measure(folder: Path) -> list[Figure]:
    """Return the kernels of each network and the training of each preset."""
    figures = []
    for network, limit in KERNELS.items():
        ours, theirs = (kernels(network, optimizer) for optimizer in (StackedMuon, torch.optim.Muon))
        what = f"kernels per step of Muon, {network}, {LARGE.depth} layers of width {LARGE.width}"
        figures.append(Figure(what, ours / theirs, "ratio", limit, f"{ours}", f"{theirs} (torch.optim.Muon)"))
    return figures + [case(folder, preset, *shape) for preset, shape in CASES.items()]


def kernels(network: str, optimizer: Any) -> int:
    """Count the kernels of a step of Muon on the matrices of the blocks of `LARGE`, without computing them."""
    recipe = Recipe(steps=1, batch=1, context=1024, network=network, optimizer="muon")
    model = family(network).build(LARGE, recipe, 128).to("meta")
    groups = [g for g in param_groups(model.named_parameters(), LARGE, recipe, 0.01) if "momentum" in g]
    muon = optimizer(groups, adjust_lr_fn="match_rms_adamw")
    for group in groups:
        for matrix in group["params"]:
            matrix.grad = torch.zeros_like(matrix)
    muon.step()  # which creates the momenta
    with Counting() as counting:
        muon.step()
    return counting.counts.total()


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
        pair = [train(_seeded(variant, seed), data_root=folder, evaluations=1) for variant in (ours, theirs)]
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
