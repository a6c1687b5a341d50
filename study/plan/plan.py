"""The plan of a study: every cell it may train, and its cost. Nothing is trained or downloaded."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.runs.epochs import repeated
from analysis.runs.words import texts_of
from analysis.units import budget_text
from core.command_line import call
from core.errors import InputError, shortened, some
from core.numbers import counted, digits
from study.errors import SpecError
from study.plan.cells import PlannedCell, Planner, by_trunk, describe_network, make_planner, with_trunks
from study.plan.layouts import ClusterCapacity, gigabytes
from study.plan.prices import money
from study.plan.saves import STATE_BYTES
from study.spec.devices import LINK_SHARE, local_gpus
from study.spec.frontier import LEAST_FACTORS, FrontierShape, Miss
from study.spec.search import SearchSection
from study.spec.study import StudySpec
from trainables.cell import Precision, Shape
from trainables.data.kind import digest
from trainables.deepspeed_options import check_options
from trainables.diagnostics import check_diagnostics
from trainables.layout import Layout
from trainables.model.family import family

#: Weights below this size get no note in the plan.
NOTED_BYTES = 1e9
#: Largest factor between the times by the plan and those of `frontier.minutes` without a note: cells that train side by
#: side take up to twice as long as alone.
OTHER_SPEED = 3.0
#: Cells of fewer steps get a note in the plan of a study by tokens per parameter.
FEW_STEPS = 200
#: What the JSON of a plan has of the plan, of its totals and of each `Miss`.
SHARED = ("protocol", "device", "slots", "precision", "vocabulary", "entropy")
TOTALS = ("tokens", "flops", "device_hours", "hours")
MISS = ("budget", "compute", "depth", "nearest_width", "deviation", "reason")


@dataclass(frozen=True)
class Plan:
    """All cells a study may train, in the order of compute, budget, depth, tokens, learning-rate factor and seed."""

    name: str
    device: str
    slots: int
    precision: Precision
    vocabulary: int
    entropy: float | None
    """Exact entropy of the data in nats per token, if known: the lowest loss any model can reach."""
    protocol: str
    """Digest of what compared cells share: content of the data, recipe, learning-rate rule."""
    cells: tuple[PlannedCell, ...]
    misses: tuple[Miss, ...]
    """Depths without a shape at a budget."""
    data_notes: tuple[str, ...]
    """Those of `notes` about the data."""
    planner: Planner = field(repr=False, compare=False)
    """Plans cells that are not listed."""
    more: tuple[PlannedCell, ...] = ()
    """Cells not in `cells` that a search may train: shapes at other budgets and more seeds."""
    left_out: tuple[str, ...] = ()
    """Why shapes that a search would add are not in `more`."""

    @property
    def search(self) -> SearchSection:
        """The section that says which of the cells are trained."""
        return self.planner.spec.search

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Assumptions and warnings, in sentences."""
        missed = (miss.reason for miss in self.misses)
        return (*missed, *self.left_out, *self.data_notes, *_notes(self.planner, self.cells))

    def trainable(self) -> "Plan":
        """Return the plan without the added shapes that fit no layout; who trains or prices cells asks for it.

        Raises:
            SpecError: a listed cell fits no layout that `resources` allows, the limits of the search allow no cell, or
                DeepSpeed or a diagnostic rejects an option.
        """
        # Memory does not depend on steps, so that each shape is checked once.
        listed = {planned.cell.shape: planned.costs for planned in self.cells}
        for costs in listed.values():
            costs.check()
        added = {planned.cell.shape: planned.costs for planned in self.more}
        refused: dict[Shape, str] = {}
        for shape in [shape for shape in added if shape not in listed]:
            try:
                added[shape].check()
            except SpecError as error:
                refused[shape] = _refused(shape, error)
        more = tuple(planned for planned in self.more if planned.cell.shape not in refused)
        _check(self.planner.spec, (*self.cells, *more))
        return replace(self, more=more, left_out=(*self.left_out, *refused.values()))

    @cached_property
    def pool(self) -> tuple[PlannedCell, ...]:
        """All cells the study may train, sensitivity runs not counted."""
        return (*self.cells, *self.more)

    @cached_property
    def _by_key(self) -> Mapping[str, PlannedCell]:
        return {planned.cell.key: planned for planned in self.pool}

    def by_key(self, key: str) -> PlannedCell | None:
        """Return the cell of a key; None for a cell the study does not list."""
        return self._by_key.get(key)

    def planned_for(
        self,
        shape: Shape,
        budget: float,
        lr_factor: float,
        seed: int,
        purpose: str = "",
        steps: int | None = None,
    ) -> PlannedCell:
        """Plan a cell that need not be listed; `budget` is the one it counts for, by default with the most steps.

        Raises:
            SpecError: the learning-rate rule has no rate for the shape.
        """
        return self.planner.cell(FrontierShape(budget, shape), lr_factor, seed, purpose, steps)

    @cached_property
    def trained_shares(self) -> Mapping[float, float]:
        """The share of each budget's cells that is trained: expected, or the most that the limits allow."""
        return self.search.trained_shares(self.pool)

    def expected(self, attribute: str) -> float:
        """Sum an attribute over the cells, weighted by the share that is trained."""
        return math.fsum(self.trained_shares[p.budget] * (getattr(p, attribute) or 0) for p in self.pool)

    @cached_property
    def cell_count(self) -> int:
        """Number of cells that are trained, at most."""
        return self.search.cell_count(self.pool)

    @property
    def tokens(self) -> float:
        """Training tokens of all cells that are trained; of a search with limits, at most.

        Those of a trunk count once: only a grid has cells that share one.
        """
        return self.search.tokens(self.pool) - math.fsum(p.tokens * p.trunk_share for p in self.pool)

    @property
    def flops(self) -> float:
        """Training FLOPs of all cells that are trained; each step of a trunk counts once."""
        return self.expected("flops") - math.fsum(p.flops * p.trunk_share for p in self.pool)

    @cached_property
    def trunks(self) -> Mapping[str, Sequence[PlannedCell]]:
        """The cells of each trunk that several share, by its key, ascending in steps."""
        return by_trunk(self.pool)

    @property
    def device_hours(self) -> float:
        """Hours summed over devices."""
        return self.expected("device_seconds") / 3600

    @cached_property
    def hours(self) -> float:
        """Hours from start to end."""
        return self.hours_on(self.slots)

    def hours_on(self, slots: int) -> float:
        """Return the hours from start to end with as many of these slots busy as the cells' ranks allow."""
        alone = (p.seconds for p in self.pool)
        # The cells of a trunk run one after another.
        in_turn = (sum(p.seconds for p in members) for members in self.trunks.values())
        longest = max((*alone, *in_turn), default=0.0)
        return max(wall_seconds(self.search.work(self.pool), slots), longest) / 3600

    @property
    def cost(self) -> float | None:
        """Dollars of all cells that are trained, for their devices alone; None without a price of the device."""
        return None if any(p.cost is None for p in self.cells) else self.expected("cost")

    def planned(self, key: str) -> PlannedCell:
        """Return a planned cell by its key, or by its title or name if that is unique.

        Raises:
            SpecError: no cell matches, or several do.
        """
        exact = self.by_key(key)
        matches = [exact] if exact else [p for p in self.pool if p.title == key]
        matches = matches or [p for p in self.pool if p.cell.name == key]
        if len(matches) > 1:
            keys = some([f"{p.cell.key} ({p.title})" for p in matches])
            raise SpecError(
                f"{len(matches)} cells of {self.name!r} are called {shortened(key)!r}: {keys}. Give the key of one."
            )
        if not matches:
            raise SpecError(
                f"no cell of {self.name!r} is called {shortened(key)!r}; "
                f"`{call('plan', self.name)}` lists them."
            )
        return matches[0]

    def to_json(self) -> dict[str, Any]:
        """Return the whole plan as one JSON document."""
        return {
            "name": self.name,
            "description": self.planner.spec.description,
            **{name: getattr(self, name) for name in SHARED},
            "epochs": self.planner.epochs,
            "search": self.search.model_dump(mode="json"),
            "totals": {
                "cells": self.cell_count,
                "candidate_cells": len(self.pool),
                **{name: getattr(self, name) for name in TOTALS},
                "cost_dollars": self.cost,
            },
            "cells": [planned.row() for planned in self.cells],
            "more_cells": [planned.row() for planned in self.more],
            "misses": [{name: getattr(miss, name) for name in MISS} for miss in self.misses],
            "notes": list(self.notes),
        }


def make_plan(spec: StudySpec, *, base: Path = Path(), capacity: ClusterCapacity | None = None) -> Plan:
    """Plan a study: exact parameters, FLOPs, memory, time and cost of every cell.

    Layouts are chosen on first use, and the study need not fit the devices: `Plan.trainable` checks that.

    Args:
        spec: the study.
        base: folder of relative paths of the data.
        capacity: that of a joined cluster; without it the plan is for this machine.

    Raises:
        SpecError: the learning-rate rule has no rate for a listed shape.
        DataError: the data cannot be found.
    """
    planner = make_planner(spec, base=base, capacity=capacity)
    recipe, listed, missed = planner.recipe, spec.shapes, tuple(spec.misses)
    cells = with_trunks(
        [planned for sized in listed for planned in planner.cells(sized, spec.training.seed_values)]
    )
    more, left_out = _more_cells(planner, listed)
    shared = {
        "data": planner.data_key,
        # The rule of the steps, because each size has its own.
        "recipe": {**recipe.model_dump(mode="json"), "steps": spec.length},
        "lr": spec.training.lr.model_dump(mode="json"),
    }
    differ = len({planned.tokens for planned in cells}) > 1
    about = f"{planner.at_least}{'up to ' if differ and not planner.at_least else ''}"
    repeats = texts_of(repeated(planner.epochs or 0.0, about))
    return Plan(
        name=spec.name,
        device=planner.layouts.device.name,
        slots=planner.layouts.slots,
        precision=recipe.precision,
        vocabulary=planner.layouts.vocabulary,
        entropy=spec.data.entropy,
        protocol=digest(shared),
        cells=tuple(cells),
        misses=missed,
        data_notes=(*repeats, *spec.data.notes(base)),
        planner=planner,
        more=tuple(more),
        left_out=tuple(left_out),
    )


def _more_cells(planner: Planner, listed: Sequence[FrontierShape]) -> tuple[list[PlannedCell], list[str]]:
    """Return more seeds of the listed shapes and shapes at new budgets, and why some of these are left out."""
    search, training = planner.spec.search, planner.spec.training
    given = training.seed_values
    most = search.most_seeds(training)
    others = [seed for seed in range(most) if seed not in given][: most - len(given)]
    cells = [planned for added in listed for planned in planner.cells(added, others)]
    left_out = []
    for added in search.added_shapes(planner.spec.frontier):
        try:
            cells += planner.cells(added, (*given, *others))
        except SpecError as error:
            left_out.append(_refused(added.shape, error))
    return cells, left_out


def _refused(shape: Shape, error: SpecError) -> str:
    return f"the search adds no L{shape.depth} d{shape.width}: {error}"


def _check(spec: StudySpec, cells: Sequence[PlannedCell]) -> None:
    """Check the limit of the search, DeepSpeed's options at every ZeRO stage, and diagnostics in every layout."""
    spec.search.check_limits(cells)
    layouts = dict.fromkeys(planned.layout for planned in cells)
    try:
        for zero in dict.fromkeys(layout.zero for layout in layouts) if spec.recipe.deepspeed else ():
            check_options(spec.recipe.deepspeed, zero)
        for layout in layouts:
            check_diagnostics(spec.diagnostics, layout, spec.recipe)
    except InputError as error:
        raise SpecError(str(error)) from error


def wall_seconds(work: Iterable[tuple[float, int]], slots: int) -> float:
    """Return the least time that cells of (seconds, ranks) take on a number of slots.

    Of cells with r ranks or more at most slots div r run at a time: two gangs of two cannot share three slots.
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
    """Return the command that trains a cell in this layout without Ray, from the file CELL.json."""
    started = f"torchrun --nproc-per-node {layout.ranks}" if layout.ranks > 1 else "python"
    words = [
        *(started, "-m trainables CELL.json"),
        *(("--tensor-parallel", layout.tensor_parallel) if layout.ranks > 1 else ()),
        *("--zero", layout.zero),
        *(("--micro-batch", layout.micro_batch) if layout.micro_batch else ()),
        *(("--activation-checkpointing",) if layout.activation_checkpointing else ()),
        *(("--shard-vocabulary",) if layout.shard_vocabulary else ()),
        *(("--compiled",) if layout.compiled else ()),
    ]
    return " ".join(map(str, words))


def _speed_notes(planner: Planner, cells: Sequence[PlannedCell]) -> list[str]:
    """A note if the times by the plan are far from those of `frontier.minutes`."""
    if planner.spec.frontier.minutes is None or not cells:
        return []
    ratios = sorted(planned.seconds / (60 * (planned.compute or 1.0)) for planned in cells)
    ratio = ratios[len(ratios) // 2]
    if 1 / OTHER_SPEED < ratio < OTHER_SPEED:
        return []
    return [
        f"cells take {digits(ratio)} times their training time by the plan: the speeds of `frontier.minutes` may be "
        "those of another machine or `training` section; `interplay init NAME --minutes 5` measures them here"
    ]


def _notes(planner: Planner, cells: Sequence[PlannedCell]) -> list[str]:
    spec, recipe, device, speed = planner.spec, planner.recipe, planner.layouts.device, planner.speed
    notes = []
    if recipe.network != "gpt2" or not cells[0].cell.shape.has_feed_forward:
        notes.append(f"network: {describe_network(cells)}")
    if family(recipe.network).is_rotary and spec.data.has_fixed_places:
        notes.append(
            f"strings of `{spec.data.kind}` begin at fixed positions, which rotary positions do not show (0.2 nats at "
            "2 layers of width 24); further layers infer them, so that crossings differ from those of text"
        )
    fewest = min(cells, key=lambda planned: planned.tokens, default=None)
    if spec.training.tokens_per_parameter and fewest and (steps := fewest.cell.recipe.steps) < FEW_STEPS:
        batch = steps * recipe.batch // FEW_STEPS
        fix = f"`training.batch: {batch}` gives at least {FEW_STEPS}" if batch else "longer ones have more"
        notes.append(f"{steps} steps: the shortest cells are mostly warm-up; {fix}")
    sizes = {(p.compute, p.cell.shape) for p in cells if p.compute is not None}
    each = Counter((compute, shape.depth) for compute, shape in sizes)
    unit = spec.frontier.compute_unit or "FLOPs"
    more = "a larger `frontier.tolerance` or a longer `frontier.spread` has more"
    more = more if unit == "FLOPs" else "add shapes with their speed to `frontier.minutes`"
    for (compute, depth), count in sorted(each.items()):
        if count < LEAST_FACTORS:
            notes.append(
                f"depth {depth} has {counted(count, 'size')} at {budget_text(compute, unit)}, and a least loss inside "
                f"its sizes needs {LEAST_FACTORS}; {more}"
            )
    notes += _speed_notes(planner, cells)
    gangs = [p for p in cells if p.layout.ranks > 1]
    if gangs:
        most = max(p.layout.ranks for p in gangs)
        share = f"{LINK_SHARE:.0%} of the data sheet" if device.is_gpu else "measured between two processes"
        notes.append(
            f"{len(gangs)} of {len(cells)} cells take several devices, up to {most}; their time assumes links of "
            f"{device.link / 1e9:.3g} GB/s ({share}) between all of a cell's devices, and no overlap with work"
        )
        if apart := sum(p.layout.ranks > planner.layouts.together for p in gangs):
            notes.append(
                f"{apart} of {len(cells)} cells need several machines; the network between these is slower than the "
                "links of one, which the time leaves out"
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
    if speed:
        busy = ", while it was busy with other work" if speed.busy else ""
        notes.append(
            f"time by {len(speed.cells)} cells that were timed on this machine on {speed.date}{busy}"
        )
    if device.is_gpu:
        if recipe.precision == "fp32":
            slower = device.peak["bf16"] / device.peak["fp32"]
            auto = "`training.precision: auto` takes bf16"
            notes.append(f"fp32 has 1/{slower:.0f} of the peak of bf16 on this device; {auto}")
        if spec.resources.utilisation is None and not speed:
            share = f"{device.utilisation:.0%} of the peak of {device.title}"
            notes.append(f"time assumes {share}; nothing was measured")
        if device.trials > 1:
            notes.append(
                f"{device.trials} trials share a GPU; time assumes that they leave it idle enough for each other"
            )
        if spec.resources.slots == "auto" and not local_gpus():
            notes.append(
                "no GPU is visible here, so time assumes one; set `resources.slots` to plan for more"
            )
    if planner.hour is not None:
        is_stated = spec.resources.price_per_hour is not None
        source = "`resources.price_per_hour`" if is_stated or not planner.price else planner.price.source
        more = "" if is_stated else "; `resources.price_per_hour` takes your own"
        notes.append(
            f"price: {money(planner.hour)} per device and hour ({source}) while it trains; a cluster's head, disks and "
            f"idle devices are extra, see `interplay cluster check FILE`{more}"
        )
    if trunks := by_trunk(cells).values():
        shared = math.fsum(p.flops * p.trunk_share for p in cells) / math.fsum(p.flops for p in cells)
        # A trunk keeps a checkpoint for each longer cell until all of its cells have ended.
        saved = sorted((len(members) - 1) * members[0].parameters.total * STATE_BYTES for members in trunks)
        notes.append(
            f"{counted(len(trunks), 'trunk')} of cells that differ in their tokens: the totals leave out {shared:.0%} "
            "of the cells' FLOPs, which longer cells take over from shorter ones; their checkpoints take up to "
            f"{gigabytes(sum(saved[-planner.layouts.slots :]))} of the storage at a time"
        )
    kept = sum(p.parameters.total for p in cells) * 4
    if spec.resources.keep_weights == "final" and kept >= NOTED_BYTES:
        notes.append(
            f"the final weights of all cells would take {gigabytes(kept)} of the results folder; "
            "`resources.keep_weights: none` keeps none"
        )
    return notes
