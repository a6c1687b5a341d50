"""The plan of a study: every cell it may train, and what each costs. Trains and downloads nothing."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from study.errors import SpecError
from study.plan.layouts import PROCESS_BYTES, Choice, LayoutPlanner, gigabytes
from study.spec.devices import (
    DEVICES,
    LINK_SHARE,
    Device,
    cores,
    data_exchange_seconds,
    local_gpus,
    step_seconds,
    tensor_exchange_seconds,
    usable_memory,
)
from study.spec.frontier import FrontierShape, Miss, added_shapes, bottlenecked, misses, shapes
from study.spec.study import ResourcesSection, StudySpec
from study.workers.machines import ClusterCapacity
from trainables.cell import Cell, Precision, Recipe, Shape, digest
from trainables.data import data_key
from trainables.deepspeed_options import check_options
from trainables.diagnostics.names import check_diagnostics
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.model.counts import flops, parameters
from trainables.model.family import Flops, Parameters

#: Seeds of a shape that a search may train, where `search.max_seeds` does not say.
MOST_SEEDS = 8
#: Weights that take less of the disk are not worth a note.
NOTED_BYTES = 1e9


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell and what it is expected to cost."""

    cell: Cell
    budget: float
    """The target of N this shape was chosen for; with hand-written widths, the shape's own N."""
    lr_factor: float
    """The multiple of the learning-rate rule; the cell's `lr` has it in already."""
    parameters: Parameters
    tokens: int
    flops: float
    """Training FLOPs of the whole cell, evaluations left out."""
    memory_bytes: int
    """Peak of the tensors on one device, that of the rank that holds most."""
    layout: Layout
    """How the cell is spread over devices."""
    seconds: float
    """From start to end, all ranks side by side."""
    cost: float | None
    """Of all ranks, in the currency of `resources.price_per_hour`; None without a price."""
    flags: tuple[str, ...]
    """What a reader of the results should know of this shape."""
    arm: str = ""
    """What the cell is trained for beside the main study, such as `sensitivity`; empty for a cell of it."""

    @property
    def title(self) -> str:
        """The cell's name for people, with its learning-rate factor where that is not 1: `L2-d16-s0 lr×0.5`."""
        return self.cell.name if self.lr_factor == 1 else f"{self.cell.name} lr×{self.lr_factor:g}"

    @property
    def device_seconds(self) -> float:
        """Seconds of one device that the cell takes: its own time on each of its ranks."""
        return self.seconds * self.layout.ranks

    def row(self) -> dict[str, Any]:
        """Return the cell as one flat record of a table."""
        cell = self.cell
        return {
            "cell": cell.key,
            "name": self.title,
            "budget": self.budget,
            "depth": cell.shape.depth,
            "width": cell.shape.width,
            "heads": cell.shape.heads,
            "seed": cell.seed,
            "lr": cell.lr,
            "lr_factor": self.lr_factor,
            "params": cell.shape.budget_params,
            "embedding_params": self.parameters.embedding,
            "position_params": self.parameters.position,
            "non_embedding_params": self.parameters.non_embedding,
            "total_params": self.parameters.total,
            "tokens": self.tokens,
            "flops": self.flops,
            "parametrisation": cell.recipe.parametrisation,
            "memory_bytes": self.memory_bytes,
            "micro_batch": self.layout.sequences(cell.recipe),
            "tensor_parallel": self.layout.tensor_parallel,
            "data_parallel": self.layout.data_parallel,
            "zero": self.layout.zero,
            "activation_checkpointing": self.layout.activation_checkpointing,
            "shard_vocabulary": self.layout.shard_vocabulary,
            "ranks": self.layout.ranks,
            "seconds": self.seconds,
            "cost": self.cost,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class Plan:
    """All cells a study may train, in the order of budget, depth, learning-rate factor and seed."""

    name: str
    description: str
    device: str
    slots: int
    precision: Precision
    vocabulary: int
    entropy: float | None
    """Exact entropy of the data in nats a token, where it is known: no model can do better."""
    protocol: str
    """Digest of all that compared cells must share: content of the data, recipe, learning-rate rule."""
    sampler: str
    candidates: int | None
    """How many candidates (depth and learning rate) a search tries at each budget; None where all are trained."""
    cells: tuple[PlannedCell, ...]
    misses: tuple[Miss, ...]
    """Depths without a shape at a budget."""
    notes: tuple[str, ...]
    """What is assumed or doubtful, in sentences."""
    planner: "Planner" = field(repr=False, compare=False)
    """Plans cells that are not listed."""
    more: tuple[PlannedCell, ...] = ()
    """What a search may train beside `cells`, shapes at other budgets and more seeds, and what was trained besides."""
    stop_when: str | None = None
    """The certainty that ends a search, in words."""
    max_flops: float | None = None
    """Training FLOPs at which a search ends, and how many cells it trains at most; None for no such limit."""
    max_cells: int | None = None

    @cached_property
    def pool(self) -> tuple[PlannedCell, ...]:
        """All cells the study may train, those of its arms too as far as they are known."""
        return (*self.cells, *self.more)

    @cached_property
    def main(self) -> tuple[PlannedCell, ...]:
        """The cells of the pool without those of arms."""
        return tuple(planned for planned in self.pool if not planned.arm)

    @cached_property
    def _by_key(self) -> Mapping[str, PlannedCell]:
        return {planned.cell.key: planned for planned in self.pool}

    def by_key(self, key: str) -> PlannedCell | None:
        """Return the cell of a key, None for one the study does not list."""
        return self._by_key.get(key)

    def planned_for(
        self, shape: Shape, budget: float, lr_factor: float, seed: int, arm: str = ""
    ) -> PlannedCell:
        """Plan a cell that need not be listed.

        Args:
            shape: of any depth and width.
            budget: that it is counted for.
            lr_factor: multiple of the rule's learning rate.
            seed: of the cell.
            arm: see `PlannedCell.arm`.

        Raises:
            SpecError: the rule of the learning rate or the devices have no place for the shape.
        """
        return self.planner.cell(FrontierShape(budget, shape), lr_factor, seed, arm)

    @cached_property
    def tried(self) -> Mapping[float, float]:
        """The share of each budget's candidates that will be trained: 1 unless a search picks some.

        A search with limits of its own is counted at these, so that totals are upper bounds.
        """
        if self.sampler == "crossing":
            return dict.fromkeys((p.budget for p in self.main), self._most())
        listed: Counter[float] = Counter()
        for budget, _, _ in {(p.budget, p.cell.shape.depth, p.lr_factor) for p in self.cells}:
            listed[budget] += 1
        picked = self.candidates
        return {b: 1.0 if picked is None else min(1.0, picked / n) for b, n in listed.items()}

    def _most(self) -> float:
        """The largest share of the pool's work that the limits of a search allow."""
        costs = sorted((p.flops for p in self.main), reverse=True)
        most = math.fsum(costs[: self.max_cells])
        return min(most, self.max_flops or most) / math.fsum(costs)

    def expected(self, attribute: str) -> float:
        """Sum an attribute of the cells, those a search may leave out counted by their share."""
        return math.fsum(self.tried[p.budget] * (getattr(p, attribute) or 0) for p in self.main)

    @cached_property
    def cell_count(self) -> int:
        """How many cells will be trained; the plan lists more where a search picks some of them.

        For a search with limits of its own the most these allow, all of the cheapest.
        """
        if self.sampler != "crossing":
            return round(math.fsum(self.tried[p.budget] for p in self.cells))
        costs = sorted(p.flops for p in self.main)[: self.max_cells]
        spent = accumulate(costs)
        return sum(cost <= (self.max_flops or math.inf) for cost in spent)

    @property
    def tokens(self) -> float:
        """Training tokens of all cells that will be trained."""
        if self.sampler == "crossing":
            # Every cell reads the same, and the most cells are the cheapest ones, not those of the most work.
            return float(self.cell_count * self.planner.recipe.tokens)
        return self.expected("tokens")

    @property
    def flops(self) -> float:
        """Training FLOPs of all cells that will be trained."""
        return self.expected("flops")

    @property
    def device_hours(self) -> float:
        """Hours of one slot for all cells that will be trained, each rank counted."""
        return self.expected("device_seconds") / 3600

    @property
    def hours(self) -> float:
        """Hours from start to end with as many slots busy as the cells' ranks allow."""
        work = ((self.tried[p.budget] * p.seconds, p.layout.ranks) for p in self.main)
        longest = max((p.seconds for p in self.main), default=0.0)
        return max(wall_seconds(work, self.slots), longest) / 3600

    @property
    def cost(self) -> float | None:
        """Price of all cells that will be trained; None without `resources.price_per_hour`."""
        return None if any(p.cost is None for p in self.cells) else self.expected("cost")

    def cell(self, key: str) -> Cell:
        """Return a cell by its key or name; raises as `planned` does."""
        return self.planned(key).cell

    def planned(self, key: str) -> PlannedCell:
        """Return a cell and its costs by its key, or by its title or name where only one cell has it.

        Raises:
            SpecError: no cell, or several, answer to it.
        """
        exact = self.by_key(key)
        found = [exact] if exact else [p for p in self.pool if p.title == key]
        found = found or [p for p in self.pool if p.cell.name == key]
        if len(found) != 1:
            raise SpecError(
                f"{len(found)} cells of {self.name!r} are called {key!r}; "
                f"`interplay plan {self.name} --json` lists their keys and names."
            )
        return found[0]

    def rows(self) -> list[dict[str, Any]]:
        """Every cell as a flat record."""
        return [planned.row() for planned in self.cells]

    def to_json(self) -> dict[str, Any]:
        """Return the whole plan as one JSON document."""
        return {
            "name": self.name,
            "description": self.description,
            "protocol": self.protocol,
            "device": self.device,
            "slots": self.slots,
            "precision": self.precision,
            "vocabulary": self.vocabulary,
            "entropy": self.entropy,
            "sampler": self.sampler,
            "candidates": self.candidates,
            "stop_when": self.stop_when,
            "max_flops": self.max_flops,
            "max_cells": self.max_cells,
            "totals": {
                "cells": self.cell_count,
                "candidate_cells": len(self.pool),
                "tokens": self.tokens,
                "flops": self.flops,
                "device_hours": self.device_hours,
                "hours": self.hours,
                "cost": self.cost,
            },
            "cells": self.rows(),
            "more_cells": [planned.row() for planned in self.more],
            "misses": [
                {
                    "budget": miss.budget,
                    "depth": miss.depth,
                    "nearest_width": miss.nearest_width,
                    "deviation": miss.deviation,
                    "reason": miss.reason,
                }
                for miss in self.misses
            ],
            "notes": list(self.notes),
        }


def make_plan(
    spec: StudySpec, *, base: Path = Path(), to_read: bool = False, room: ClusterCapacity | None = None
) -> Plan:
    """Plan a study: exact parameters, FLOPs, memory, time and cost of every cell.

    Args:
        spec: the study.
        base: folder that relative paths of the data start from.
        to_read: for a study whose rows are only read: it need not fit the devices of this machine.
        room: what a cluster has for the study, where one was joined; else this machine is planned for.

    Raises:
        SpecError: a cell cannot be spread over the devices as `resources` says, or fits no number of them; or
            DeepSpeed does not take an option.
        DataError: the data cannot be found.
    """
    device = DEVICES[spec.resources.device]
    slots = room.devices if room else _slots(spec.resources, device)
    recipe = spec.recipe
    key = data_key(spec.data, spec.training.context, base)
    vocabulary = spec.data.vocabulary_size
    layout_planner = LayoutPlanner(spec.resources, device, slots, recipe, vocabulary, not to_read)
    if room:
        layout_planner = replace(layout_planner, share=room.memory, largest=room.together)
    planner = Planner(spec, recipe, key, _Estimator(spec, device, recipe, vocabulary, layout_planner))
    listed = shapes(spec.frontier)
    cells = tuple(planned for found in listed for planned in planner.cells(found, spec.training.seed_values))
    more, refused = _more(spec, listed, planner) if spec.search.sampler == "crossing" else ([], [])
    missed = tuple(misses(spec.frontier))
    if not to_read:
        _check_options((*cells, *more))
        _check_diagnostics(spec, (*cells, *more))
        _check_flops(spec, (*cells, *more))
    return Plan(
        name=spec.name,
        description=spec.description,
        device=device.name,
        slots=slots,
        precision=recipe.precision,
        vocabulary=vocabulary,
        entropy=spec.data.entropy,
        protocol=digest(
            {
                "data": key,
                "recipe": recipe.model_dump(mode="json"),
                "lr": spec.training.lr.model_dump(mode="json"),
            }
        ),
        sampler=spec.search.sampler,
        candidates=spec.search.candidates,
        cells=cells,
        misses=missed,
        notes=(*(miss.reason for miss in missed), *refused, *_notes(spec, device, recipe, cells)),
        planner=planner,
        more=tuple(more),
        stop_when=spec.search.stop_when.words if spec.search.stop_when else None,
        max_flops=spec.search.max_flops,
        max_cells=spec.search.max_cells,
    )


@dataclass(frozen=True)
class Planner:
    """Plans single cells of one spec."""

    spec: StudySpec
    recipe: Recipe
    data_key: str
    estimator: "_Estimator"

    def cells(self, found: FrontierShape, seeds: Iterable[int]) -> list[PlannedCell]:
        """Plan a shape with every learning-rate factor of the spec and these seeds."""
        seeds = tuple(seeds)
        return [self.cell(found, factor, seed) for factor in self.spec.search.lr_factors for seed in seeds]

    def cell(self, found: FrontierShape, factor: float, seed: int, arm: str = "") -> PlannedCell:
        """Plan one cell; raises as `Plan.planned_for` does."""
        shape = found.shape
        cost = self.estimator.estimate(shape)
        return PlannedCell(
            cell=Cell(
                shape=shape,
                recipe=self.recipe,
                data=self.spec.data,
                data_key=self.data_key,
                lr=self.spec.training.rate(shape) * factor,
                seed=seed,
            ),
            budget=found.budget,
            lr_factor=factor,
            parameters=cost.parameters,
            tokens=self.recipe.tokens,
            flops=cost.flops,
            memory_bytes=cost.choice.memory.total,
            layout=cost.choice.layout,
            seconds=cost.seconds,
            cost=cost.price,
            flags=cost.flags,
            arm=arm,
        )


def _more(
    spec: StudySpec, listed: Sequence[FrontierShape], planner: Planner
) -> tuple[list[PlannedCell], list[str]]:
    """What a search may train beside the cells of the frontier, and why some shapes it might have added are not."""
    search, given = spec.search, spec.training.seed_values
    most = max(len(given), MOST_SEEDS if search.max_seeds is None else search.max_seeds)
    others = [seed for seed in range(most) if seed not in given][: most - len(given)]
    cells = [planned for found in listed for planned in planner.cells(found, others)]
    if search.new_budgets == "none":
        return cells, []
    limits = search.limits
    added = added_shapes(
        spec.frontier,
        beyond=search.new_budgets == "beyond",
        low=limits.min if limits else None,
        high=limits.max if limits else None,
    )
    refused = []
    for found in added:
        try:
            cells += planner.cells(found, (*given, *others))
        except SpecError as error:
            shape = found.shape
            refused.append(f"the search adds no L{shape.depth} d{shape.width}: {error}")
    return cells, refused


@dataclass(frozen=True, slots=True)
class _Cost:
    """What every cell of one shape costs."""

    parameters: Parameters
    flops: float
    choice: Choice
    seconds: float
    price: float | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class _Estimator:
    """Costs of shapes under one spec, each worked out once."""

    spec: StudySpec
    device: Device
    recipe: Recipe
    vocabulary: int
    layout_planner: LayoutPlanner
    known: dict[Shape, _Cost] = field(default_factory=dict, repr=False, compare=False)

    def estimate(self, shape: Shape) -> _Cost:
        if shape not in self.known:
            self.known[shape] = self._estimate(shape)
        return self.known[shape]

    def _estimate(self, shape: Shape) -> _Cost:
        choice = self.layout_planner.choose(shape)
        seconds = self._seconds(shape, choice.layout)
        price = self.spec.resources.price_per_hour
        flags = choice.flags
        if bottlenecked(shape, self.vocabulary):
            flags = (f"width above the vocabulary of {self.vocabulary}", *flags)
        return _Cost(
            parameters=self._parameters(shape),
            flops=float(self._flops(shape).training * self.recipe.tokens),
            choice=choice,
            seconds=seconds,
            price=None if price is None else price * seconds * choice.layout.ranks / 3600,
            flags=flags,
        )

    def _parameters(self, shape: Shape) -> Parameters:
        recipe = self.recipe
        return parameters(shape, self.vocabulary, recipe.context, recipe.network, recipe.residual)

    def _flops(self, shape: Shape) -> Flops:
        return flops(shape, self.vocabulary, self.recipe.context, self.recipe.network)

    def _seconds(self, shape: Shape, layout: Layout) -> float:
        """From start to end of a cell, all of its ranks side by side."""
        recipe, resources, device = self.recipe, self.spec.resources, self.device
        work = self._flops(shape)
        per_token = work.training + (work.forward if layout.activation_checkpointing else 0)
        tokens = layout.sequences(recipe) * recipe.context
        degree = layout.tensor_parallel
        piece = step_seconds(
            device,
            shape,
            tokens / degree,
            per_token * tokens / degree,
            recipe.precision,
            resources.utilisation,
        ) + tensor_exchange_seconds(device, shape, tokens, recipe.precision, layout)
        count = self._parameters(shape).total
        step = layout.pieces(recipe) * piece + data_exchange_seconds(device, count, recipe.precision, layout)
        # An evaluation is forward only: a third of the work of training on as many tokens.
        validation = self.spec.data.held_out_tokens(recipe.context)
        evaluation = math.ceil(validation / (tokens * layout.data_parallel)) * piece / 3
        return recipe.steps * step + resources.evaluations * evaluation


def _slots(resources: ResourcesSection, device: Device) -> int:
    if resources.slots != "auto":
        return resources.slots
    if device.is_gpu:
        return max(1, local_gpus())
    by_memory = usable_memory(device) // (2 * PROCESS_BYTES)
    return max(1, min(int(cores() / resources.cpus_per_trial), by_memory))


def _check_flops(spec: StudySpec, cells: Sequence[PlannedCell]) -> None:
    most, cheapest = spec.search.max_flops, min((planned.flops for planned in cells), default=0.0)
    if most is not None and most < cheapest:
        raise SpecError(
            f"`search.max_flops` is {most:g}, and the cheapest cell takes {cheapest:.3g} training FLOPs, so that the "
            "search could train none; raise it, or train with fewer `training.steps`."
        )


def _check_options(cells: Sequence[PlannedCell]) -> None:
    """Let DeepSpeed look at the options it is given, at every ZeRO stage of the plan, before anything starts."""
    for options, zero in {p.layout.zero: (p.cell.recipe.deepspeed, p.layout.zero) for p in cells}.values():
        if options:
            try:
                check_options(options, zero)
            except InputError as error:
                raise SpecError(str(error)) from error


def _check_diagnostics(spec: StudySpec, cells: Sequence[PlannedCell]) -> None:
    for layout in dict.fromkeys(planned.layout for planned in cells):
        try:
            check_diagnostics(spec.diagnostics, layout, spec.recipe)
        except InputError as error:
            raise SpecError(str(error)) from error


def wall_seconds(work: Iterable[tuple[float, int]], slots: int) -> float:
    """The least time that cells of (seconds, ranks) take on so many slots.

    Two gangs of two cannot share three slots: cells of r ranks or more run at most slots div r at a time.
    """
    by_ranks: dict[int, float] = {}
    for seconds, ranks in work:
        by_ranks[ranks] = by_ranks.get(ranks, 0.0) + seconds
    total = sum(ranks * seconds for ranks, seconds in by_ranks.items()) / slots
    wide = (
        sum(seconds for ranks, seconds in by_ranks.items() if ranks >= least) / max(1, slots // least)
        for least in by_ranks
    )
    return max(total, *wide, 0.0)


def by_hand(layout: Layout) -> str:
    """The command that trains a cell in this layout without Ray, from the cell's file CELL.json."""
    started = f"torchrun --nproc-per-node {layout.ranks}" if layout.ranks > 1 else "python"
    words = [
        *(started, "-m trainables CELL.json"),
        *(("--tensor-parallel", layout.tensor_parallel) if layout.ranks > 1 else ()),
        *("--zero", layout.zero),
        *(("--micro-batch", layout.micro_batch) if layout.micro_batch else ()),
        *(("--activation-checkpointing",) if layout.activation_checkpointing else ()),
        *(("--shard-vocabulary",) if layout.shard_vocabulary else ()),
    ]
    return " ".join(map(str, words))


def _notes(spec: StudySpec, device: Device, recipe: Recipe, cells: Sequence[PlannedCell]) -> list[str]:
    notes = []
    gangs = [p for p in cells if p.layout.ranks > 1]
    if gangs:
        most = max(p.layout.ranks for p in gangs)
        share = f"{LINK_SHARE:.0%} of the data sheet" if device.is_gpu else "measured between two processes"
        notes.append(
            f"{len(gangs)} of {len(cells)} cells take several devices, up to {most}; their time assumes links of "
            f"{device.link / 1e9:.3g} GB/s ({share}) between all of a cell's devices, and no overlap with work"
        )
    if recipe.parametrisation != "sp":
        notes.append(
            f"under {recipe.parametrisation} `lr` is the rate of the base shape L{recipe.base.depth}-d"
            f"{recipe.base.width}; that of each weight follows from it and from the shape"
        )
    if recipe.deepspeed:
        notes.append("memory and time are estimated as if there were no options in `training.deepspeed`")
        if "zero_optimization" in recipe.deepspeed and any(p.layout.zero == 0 for p in cells):
            notes.append(
                "`training.deepspeed.zero_optimization` has no effect on cells at ZeRO stage 0; `resources.zero: 1` "
                "puts all cells at stage 1"
            )
    if device.is_gpu:
        if spec.resources.utilisation is None:
            notes.append(
                f"time assumes {device.utilisation:.0%} of the peak of {device.title}; nothing was measured"
            )
        if spec.resources.slots == "auto" and not local_gpus():
            notes.append(
                "no GPU is visible here, so time assumes one slot; set `resources.slots` to plan for more"
            )
    available = spec.data.training_tokens(recipe.context)
    if available is not None and recipe.tokens > available:
        notes.append(
            f"each cell reads {recipe.tokens:,} tokens of at most {available:,} there are: "
            f"{recipe.tokens / available:.1f} passes"
        )
    kept = sum(p.parameters.total for p in cells) * (2 if recipe.precision == "bf16" else 4)
    if spec.resources.keep_weights == "final" and kept >= NOTED_BYTES:
        notes.append(
            f"the final weights of all cells would take {gigabytes(kept)} of the results folder; "
            "`resources.keep_weights: none` keeps none"
        )
    return notes
