"""A cell with its costs, the planner that makes it of a shape under one spec, and the outcome of a trained cell."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.units import BudgetUnit, budget_text
from core.numbers import digits, short
from study.errors import SpecError
from study.plan.cost import Cost
from study.plan.layouts import (
    PROCESS_BYTES,
    ClusterCapacity,
    LayoutChoice,
    LayoutPlanner,
    divisors,
    gigabytes,
)
from study.plan.prices import GpuPrice, gpu_price
from study.plan.saves import save_seconds
from study.plan.speed import Speed, known_speed
from study.spec.devices import DEVICES, Device, cores, local_gpus, usable_memory
from study.spec.frontier import FrontierShape
from study.spec.resources import ResourcesSection
from study.spec.study import StudySpec
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kind import RowData
from trainables.layout import Layout
from trainables.model.family import OPTIONAL, Parameters, family

#: Most trials that share a GPU by `trials_per_gpu: auto`.
MOST_TRIALS = 8


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell and its estimated cost."""

    cell: Cell
    budget: float
    """The target of N this shape was chosen for; with hand-written widths, the shape's own N."""
    compute: float | None
    """The FLOPs or minutes at which depths are compared; None if they are compared at equal N."""
    lr_factor: float
    """The multiple of the learning-rate rule; the cell's `lr` includes it."""
    costs: "ShapeCost" = field(compare=False, repr=False)
    """What its shape costs by its recipe."""
    compute_unit: BudgetUnit | None = None
    """The unit of `compute`."""
    level: str = ""
    """The training tokens, or the compute, in words, if the study has several numbers of them."""
    trunk_steps: int = field(default=0, compare=False)
    """Steps that it takes from the trunk of the next shorter cell; see `trainables.cell.Cell.trunk`."""
    purpose: str = ""
    """Purpose of a cell outside the main study, such as `sensitivity`; empty for a cell of the main study."""

    @property
    def parameters(self) -> Parameters:
        """Counts of parameters."""
        return self.costs.of_any_layout.parameters

    @property
    def tokens(self) -> int:
        """Training tokens of the whole cell."""
        return self.cell.recipe.tokens

    @property
    def flops(self) -> float:
        """Training FLOPs of the whole cell, without evaluations."""
        return self.costs.of_any_layout.training_flops

    @property
    def trunk_share(self) -> float:
        """The share of its steps, so of its tokens and FLOPs, that it takes from the trunk of a shorter cell."""
        return self.trunk_steps / self.cell.recipe.steps

    @property
    def memory_bytes(self) -> int:
        """Peak of the tensors on one device, on the rank that holds most."""
        return self.costs.chosen.cost.memory.total

    @property
    def layout(self) -> Layout:
        """How the cell is spread over devices."""
        return self.costs.chosen.layout

    @property
    def seconds(self) -> float:
        """Wall-clock seconds from start to end, all ranks in parallel, without the steps taken from a trunk."""
        return self.costs.seconds(self.trunk_steps)

    @property
    def cost(self) -> float | None:
        """Dollars for all ranks for these seconds, by `Planner.hour`; None without a price."""
        hour, sharing = self.costs.planner.hour, self.costs.planner.spec.resources.sharing
        return None if hour is None else hour * self.device_seconds / sharing / 3600

    @property
    def flags(self) -> tuple[str, ...]:
        """Warnings about the shape and reasons for its layout."""
        return self.costs.flags

    @property
    def compile_seconds(self) -> float:
        """The part of `seconds` that compiling takes."""
        return self.costs.chosen.cost.compile_seconds

    @property
    def save_seconds(self) -> float:
        """Estimated seconds of a checkpoint until it is valid in an object store, before any was timed."""
        return save_seconds(self.parameters.total)

    @property
    def title(self) -> str:
        """The cell's name for people: `L2-d16-s0`, with a learning-rate factor other than 1, and with its level."""
        factor = "" if self.lr_factor == 1 else f" lr×{self.lr_factor:g}"
        return f"{self.cell.name}{factor}{self.level and f' {self.level}'}"

    @property
    def compared_at(self) -> float:
        """The budget, or with `frontier.flops` or `minutes` the compute, at which this cell is compared."""
        return self.budget if self.compute is None else self.compute

    @property
    def device_seconds(self) -> float:
        """Seconds summed over the cell's devices."""
        return self.seconds * self.layout.ranks

    def row(self) -> dict[str, Any]:
        """Return the cell as one flat record of a table."""
        cell = self.cell
        return {
            "cell": cell.key,
            "name": self.title,
            "budget": self.budget,
            **({} if self.compute is None else {"compute": self.compute}),
            **({"compute_unit": self.compute_unit} if self.compute_unit == "minutes" else {}),
            **cell.shape.model_dump(),
            **cell.recipe.model_dump(include={"network", *OPTIONAL}),
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
            **({"trunk_steps": self.trunk_steps} if self.trunk_steps else {}),
            "parametrisation": cell.recipe.parametrisation,
            "memory_bytes": self.memory_bytes,
            **self.layout.model_dump(),
            "micro_batch": self.layout.sequences(cell.recipe),
            "ranks": self.layout.ranks,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "cost_dollars": self.cost,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class ShapeCost:
    """What all cells of one shape and recipe cost; each number is computed on first use.

    Rows are read without a layout: parameters and FLOPs need none.
    """

    planner: "Planner"
    shape: Shape
    recipe: Recipe
    given: Layout | None = None
    """The layout; None for the one that the planner chooses."""

    @cached_property
    def of_any_layout(self) -> Cost:
        """The cost on one device, whose parameters and training FLOPs are those of every layout."""
        return self._layouts.cost(self.shape, Layout())

    @cached_property
    def chosen(self) -> LayoutChoice:
        """The layout with its cost."""
        layouts = self._layouts
        return (
            LayoutChoice(layouts.cost(self.shape, self.given), ())
            if self.given
            else layouts.choose(self.shape)
        )

    def check(self) -> None:
        """Raise a `SpecError` if the shape cannot be trained in any layout that `resources` allows."""
        self._layouts.check(self.shape, self.chosen)

    @property
    def _layouts(self) -> LayoutPlanner:
        return replace(self.planner.layouts, recipe=self.recipe)

    @cached_property
    def _whole_seconds(self) -> float:
        spec = self.planner.spec
        held_out = spec.data.held_out_tokens(self.recipe.context)
        return self.chosen.cost.seconds(spec.resources.evaluations, held_out)

    def seconds(self, trunk_steps: int) -> float:
        """See `PlannedCell.seconds`."""
        return self._whole_seconds - trunk_steps * self.chosen.cost.step_seconds

    @property
    def flags(self) -> tuple[str, ...]:
        """See `PlannedCell.flags`."""
        vocabulary = self.planner.layouts.vocabulary
        # The rank of the embedding is at most the vocabulary, so that more width adds less than its parameters suggest
        # (Wies, Levine, Jannai and Shashua 2021, arXiv 2105.03928).
        if self.shape.width > vocabulary:
            return (f"width above the vocabulary of {vocabulary} tokens", *self.chosen.flags)
        return self.chosen.flags


def by_trunk(cells: Iterable[PlannedCell]) -> dict[str, list[PlannedCell]]:
    """Return the cells of each trunk that several share, by its key, ascending in steps."""
    shared: dict[str, list[PlannedCell]] = {}
    for planned in cells:
        if planned.cell.trunk:
            shared.setdefault(planned.cell.trunk, []).append(planned)
    return {
        trunk: sorted(members, key=lambda planned: planned.cell.recipe.steps)
        for trunk, members in shared.items()
        # With a decay over all steps there is nothing to share.
        if len(members) > 1 and any(planned.cell.recipe.decay_start for planned in members)
    }


def with_trunks(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Return the cells with the steps that each takes from a trunk, if the cells of each trunk run one by one."""
    taken = {
        longer.cell.key: shorter.cell.recipe.decay_start
        for members in by_trunk(cells).values()
        for shorter, longer in itertools.pairwise(members)
        if shorter.cell.recipe.steps < longer.cell.recipe.steps
    }
    return [replace(planned, trunk_steps=taken.get(planned.cell.key, 0)) for planned in cells]


def describe_network(cells: Sequence[PlannedCell]) -> str:
    """Return the trained network of cells of one study in words."""
    recipe = cells[0].cell.recipe
    return family(recipe.network).describe((planned.cell.shape for planned in cells), recipe)


@dataclass(frozen=True)
class Planner:
    """Plans single cells of one spec; costs are computed once per shape."""

    spec: StudySpec
    recipe: Recipe
    """Of the longest cell; the others differ from it in their steps alone."""
    data_key: str
    layouts: LayoutPlanner
    windows: int | None = None
    """The different training sequences there will be; None if that is unknown before the data is packed."""
    speed: Speed | None = None
    """The measured speed of this machine that the times follow; None if it was not measured, or on a cluster."""
    price: GpuPrice | None = None
    """Of its device, by the table of prices."""
    _costs: dict[tuple[Shape, int], ShapeCost] = field(default_factory=dict, repr=False, compare=False)

    @property
    def epochs(self) -> float | None:
        """How often the longest cell reads its training data, of text at least; None if unknown before packing."""
        return None if self.windows is None else self.epochs_of(self.windows)

    def epochs_of(self, windows: int) -> float:
        """Return how often the longest cell reads training data of this many sequences."""
        return self.recipe.steps * self.recipe.batch / windows

    @property
    def epochs_words(self) -> str:
        """The epochs as part of a sentence."""
        if self.epochs is None:
            return "epochs unknown until the data is packed"
        return f"{self.at_least}{digits(self.epochs, 3)} epochs of the data"

    @property
    def at_least(self) -> str:
        """`at least ` for text, which may have fewer sequences than its size allows; empty for rows."""
        return "" if isinstance(self.spec.data, RowData) else "at least "

    @property
    def hour(self) -> float | None:
        """Dollars per hour of one device: as the spec has it, else of a GPU at AWS; None without a price."""
        stated = self.spec.resources.price_per_hour
        return stated if stated is not None or self.price is None else self.price.hour

    def cells(self, sized: FrontierShape, seeds: Iterable[int]) -> list[PlannedCell]:
        """Plan a shape with every number of tokens and learning-rate factor of the spec and these seeds."""
        steps, factors = self.spec.step_counts(sized), self.spec.search.lr_factors
        each = itertools.product(steps, factors, seeds)
        return [self.cell(sized, factor, seed, steps=length) for length, factor, seed in each]

    def cell(
        self, sized: FrontierShape, factor: float, seed: int, purpose: str = "", steps: int | None = None
    ) -> PlannedCell:
        """Plan one cell; see `Plan.planned_for`."""
        shape, steps = sized.shape, steps or self.spec.step_counts(sized)[-1]
        if (shape, steps) not in self._costs:
            self._costs[shape, steps] = ShapeCost(self, shape, self.spec.recipe_of(steps))
        costs = self._costs[shape, steps]
        return PlannedCell(
            cell=self.trained(shape, factor, seed, costs.recipe),
            budget=sized.budget,
            compute=sized.compute,
            compute_unit=None if sized.compute is None else self.spec.frontier.compute_unit,
            lr_factor=factor,
            costs=costs,
            level=_level(self.spec, sized, costs.recipe),
            purpose=purpose,
        )

    def trained(self, shape: Shape, factor: float, seed: int, recipe: Recipe) -> Cell:
        """Return what is trained, whose key decides which row is its own; this needs no layout.

        Raises:
            SpecError: the learning-rate rule has no rate for the shape.
        """
        rate = self.spec.training.rate(shape) * factor
        if not 0 < rate < math.inf:
            raise SpecError(
                f"the peak learning rate of depth {shape.depth}, width {shape.width} is {rate:g} by the rule "
                f"`training.lr` times the factor {factor:g} of `search.lr_factors`; choose others, so that it is a "
                "positive number."
            )
        return Cell(
            shape=shape, recipe=recipe, data=self.spec.data, data_key=self.data_key, lr=rate, seed=seed
        )


def _level(spec: StudySpec, sized: FrontierShape, recipe: Recipe) -> str:
    """See `PlannedCell.level`."""
    if sized.compute is not None:
        return budget_text(sized.compute, spec.frontier.compute_unit or "FLOPs")
    return f"{short(recipe.tokens, 3)} tokens" if spec.training.has_levels else ""


def make_planner(spec: StudySpec, *, base: Path = Path(), capacity: ClusterCapacity | None = None) -> Planner:
    """Return the planner of a study; `make_plan` describes the arguments."""
    spec = with_trials_per_gpu(spec)
    device, recipe = replace(DEVICES[spec.resources.device], trials=spec.resources.sharing), spec.recipe
    slots = capacity.devices if capacity else _slots(spec.resources, device)
    key = data_key(spec.data, spec.training.context, base)
    vocabulary = spec.data.vocabulary_size
    speed = None if capacity else known_speed(device, slots, recipe, vocabulary)
    resources = spec.resources
    if spec.data.has_targets:
        # The accuracy of a task is read off whole logits.
        resources = resources.model_copy(update={"shard_vocabulary": "never"})
    if speed:
        device = speed.of(device)
    layouts = LayoutPlanner(resources, device, slots, recipe, vocabulary, capacity)
    windows = spec.data.training_windows(recipe.context, base)
    return Planner(spec, recipe, key, layouts, windows, speed, gpu_price(device.name))


def with_trials_per_gpu(spec: StudySpec) -> StudySpec:
    """Return the spec with a number in place of `trials_per_gpu: auto`.

    It is the most for which the largest cell keeps the layout that it has alone: its memory fits as often, and it
    leaves the GPU idle, by the fixed times of a step, for as many others.
    """
    resources = spec.resources
    if resources.trials_per_gpu != "auto":
        return spec
    device, number = DEVICES[resources.device], 1
    if device.is_gpu:
        alone = LayoutPlanner(resources, device, 1, spec.recipe, spec.data.vocabulary_size)
        costs = [alone.choose(sized.shape).cost for sized in spec.shapes]
        number = min(MOST_TRIALS, *(min(alone.usable // cost.memory.total, _idle(cost)) for cost in costs))
    shared = resources.model_copy(update={"trials_per_gpu": max(1, number)})
    return spec.model_copy(update={"resources": shared})


def _idle(cost: Cost) -> int:
    """Number of trials that keep a GPU busy if each computes only for a part of its step."""
    fixed = cost.device.seconds_per_step + cost.shape.depth * cost.device.seconds_per_step_layer
    return int(cost.piece_seconds / (cost.piece_seconds - fixed))


def _slots(resources: ResourcesSection, device: Device) -> int:
    if resources.slots != "auto":
        return resources.slots
    if device.is_gpu:
        return max(1, local_gpus()) * device.trials
    by_memory = usable_memory(device) // (2 * PROCESS_BYTES)
    return max(1, min(int(cores() / resources.cpus_per_trial), by_memory))


def memory_remedy(planned: PlannedCell, slots: int, *, on_gpu: bool) -> str:
    """Return what was planned for a cell that ran out of memory, and what to set, in two sentences."""
    layout, recipe = planned.layout, planned.cell.recipe
    sequences = layout.sequences(recipe)
    process = "" if on_gpu else f", beside {gigabytes(PROCESS_BYTES)} of its process"
    remedies = []
    if not on_gpu and slots > layout.ranks:
        remedies.append(f"`resources.slots: {max(layout.ranks, slots // 2)}` (fewer cells at a time)")
    smaller = [n for n in divisors(layout.share(recipe)) if n < sequences]
    if smaller:
        remedies.append(f"`resources.micro_batch: {smaller[-1]}`")
    # On a CPU glibc keeps the blocks that it frees; see `LayoutPlanner._activation_checkpointing`.
    if on_gpu and not layout.activation_checkpointing:
        remedies.append("`resources.activation_checkpointing: always`")
    wider = [n for n in divisors(planned.cell.shape.key_value_heads) if layout.tensor_parallel < n <= slots]
    if on_gpu and wider:
        remedies.append(f"`resources.tensor_parallel: {wider[0]}`")
    advice = f"Set {', or '.join(remedies)}" if remedies else "Take smaller shapes, or more memory"
    return (
        f"The plan has {gigabytes(planned.memory_bytes)} of tensors per rank, {sequences} "
        f"{'sequence' if sequences == 1 else 'sequences'} at a time{process}. {advice}, and run the "
        "study again: finished cells stay."
    )
