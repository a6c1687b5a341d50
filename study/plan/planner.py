"""Plans cells: the layout, cost and learning rate of each shape under one spec."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from analysis.numbers import digits
from analysis.runs.epochs import repeat_warning
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.cost import Cost
from study.plan.layouts import PROCESS_BYTES, Choice, ClusterCapacity, LayoutPlanner
from study.plan.speed import Speed, known_speed
from study.spec.devices import DEVICES, Device, cores, local_gpus, usable_memory
from study.spec.frontier import FrontierShape, shapes
from study.spec.resources import ResourcesSection
from study.spec.study import StudySpec
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kind import RowData

#: Most trials that share a GPU by `trials_per_gpu: auto`.
MOST_TRIALS = 8


@dataclass(frozen=True)
class Planner:
    """Plans single cells of one spec; costs are computed once per shape."""

    spec: StudySpec
    recipe: Recipe
    data_key: str
    layouts: LayoutPlanner
    windows: int | None = None
    """The different training sequences there will be; None if that is unknown before the data is packed."""
    speed: Speed | None = None
    """The measured speed of this machine that the times follow; None if it was not measured, or on a cluster."""
    _known: dict[Shape, Choice] = field(default_factory=dict, repr=False, compare=False)

    @property
    def epochs(self) -> float | None:
        """How often a cell reads its training data, of text at least; None if that is unknown before packing."""
        return None if self.windows is None else self.epochs_of(self.windows)

    def epochs_of(self, windows: int) -> float:
        """Return how often a cell reads training data of this many sequences."""
        return self.recipe.steps * self.recipe.batch / windows

    @property
    def epochs_words(self) -> str:
        """The epochs as part of a sentence."""
        if self.epochs is None:
            return "epochs unknown until the data is packed"
        return f"{self._at_least}{digits(self.epochs, 3)} epochs of the data"

    @property
    def repeat_note(self) -> str:
        """The warning about data that are read more than once; empty if none are known to be."""
        return repeat_warning(self.epochs or 0.0, self._at_least)

    @property
    def _at_least(self) -> str:
        return "" if isinstance(self.spec.data, RowData) else "at least "

    def cells(self, found: FrontierShape, seeds: Iterable[int]) -> list[PlannedCell]:
        """Plan a shape with every learning-rate factor of the spec and these seeds."""
        seeds = tuple(seeds)
        return [self.cell(found, factor, seed) for factor in self.spec.search.lr_factors for seed in seeds]

    def cell(self, found: FrontierShape, factor: float, seed: int, purpose: str = "") -> PlannedCell:
        """Plan one cell; see `Plan.planned_for`."""
        shape, resources = found.shape, self.spec.resources
        if shape not in self._known:
            self._known[shape] = self.layouts.choose(shape)
        choice = self._known[shape]
        cost, flags = choice.cost, choice.flags
        vocabulary = self.layouts.vocabulary
        # The rank of the embedding is at most the vocabulary, so that more width adds less than its parameters suggest
        # (Wies, Levine, Jannai and Shashua 2021, arXiv 2105.03928).
        if shape.width > vocabulary:
            flags = (f"width above the vocabulary of {vocabulary} tokens", *flags)
        rate = self.spec.training.rate(shape) * factor
        if not 0 < rate < math.inf:
            raise SpecError(
                f"the peak learning rate of depth {shape.depth}, width {shape.width} is {rate:g} by the rule "
                f"`training.lr` times the factor {factor:g} of `search.lr_factors`; choose others, so that it is a "
                "positive number."
            )
        seconds = cost.seconds(resources.evaluations, self.spec.data.held_out_tokens(self.recipe.context))
        price = resources.price_per_hour
        return PlannedCell(
            cell=Cell(
                shape=shape,
                recipe=self.recipe,
                data=self.spec.data,
                data_key=self.data_key,
                lr=rate,
                seed=seed,
            ),
            budget=found.budget,
            lr_factor=factor,
            parameters=cost.parameters,
            tokens=self.recipe.tokens,
            flops=cost.training_flops,
            memory_bytes=cost.memory.total,
            layout=choice.layout,
            seconds=seconds,
            cost=None if price is None else price * seconds * choice.layout.ranks / resources.sharing / 3600,
            flags=flags,
            purpose=purpose,
        )


def make_planner(
    spec: StudySpec, *, base: Path = Path(), to_read: bool = False, room: ClusterCapacity | None = None
) -> Planner:
    """Return the planner of a study; `make_plan` describes the arguments."""
    spec = with_trials_per_gpu(spec)
    device, recipe = replace(DEVICES[spec.resources.device], trials=spec.resources.sharing), spec.recipe
    slots = room.devices if room else _slots(spec.resources, device)
    key = data_key(spec.data, spec.training.context, base)
    vocabulary = spec.data.vocabulary_size
    speed = None if room else known_speed(device, slots, recipe, vocabulary)
    resources = spec.resources
    if spec.data.has_targets:
        # The accuracy of a task is read off whole logits.
        resources = resources.model_copy(update={"shard_vocabulary": "never"})
    layouts = LayoutPlanner(
        resources, speed.of(device) if speed else device, slots, recipe, vocabulary, not to_read
    )
    if room:
        layouts = replace(layouts, share=room.memory, largest=room.together)
    return Planner(spec, recipe, key, layouts, spec.data.training_windows(recipe.context, base), speed)


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
        alone = LayoutPlanner(resources, device, 1, spec.recipe, spec.data.vocabulary_size, must_fit=False)
        costs = [alone.choose(found.shape).cost for found in shapes(spec.frontier)]
        number = min(MOST_TRIALS, *(min(alone.usable // cost.memory.total, _idle(cost)) for cost in costs))
    shared = resources.model_copy(update={"trials_per_gpu": max(1, number)})
    return spec.model_copy(update={"resources": shared})


def _idle(cost: Cost) -> int:
    """How many trials a GPU that is busy with the work of a step only is busy with."""
    fixed = cost.device.seconds_per_step + cost.shape.depth * cost.device.seconds_per_step_layer
    return int(cost.piece_seconds / (cost.piece_seconds - fixed))


def _slots(resources: ResourcesSection, device: Device) -> int:
    if resources.slots != "auto":
        return resources.slots
    if device.is_gpu:
        return max(1, local_gpus()) * device.trials
    by_memory = usable_memory(device) // (2 * PROCESS_BYTES)
    return max(1, min(int(cores() / resources.cpus_per_trial), by_memory))
