"""The plan of a study: every cell it may train, and what each costs. Trains and downloads nothing."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from study.devices import DEVICES, Device, cores, local_gpus, step_seconds, usable_memory
from study.errors import SpecError
from study.frontier import FrontierShape, Miss, bottlenecked, misses, shapes
from study.spec import ResourcesSection, StudySpec
from trainables.cell import Cell, Precision, Recipe, Shape, digest
from trainables.counts import Memory, Parameters, flops, memory, parameters
from trainables.data.spec import DataSpec, HierarchyData

#: ASSUMPTION: resident memory of a trial's process on CPU before its first tensor (measured 490 MB).
PROCESS_BYTES = 500_000_000


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
    """Peak of the tensors on one device."""
    micro_batch: int
    """Sequences the device works on at once; below the batch where the whole batch would not fit."""
    tensor_parallel: int
    seconds: float
    cost: float | None
    """In the currency of `resources.price_per_hour`; None without a price."""
    flags: tuple[str, ...]
    """What a reader of the results should know of this shape."""

    def row(self) -> dict[str, Any]:
        """Return the cell as one flat record of a table."""
        cell = self.cell
        return {
            "cell": cell.key,
            "name": cell.name,
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
            "memory_bytes": self.memory_bytes,
            "micro_batch": self.micro_batch,
            "tensor_parallel": self.tensor_parallel,
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
    floor: float | None
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

    @cached_property
    def tried(self) -> Mapping[float, float]:
        """The share of each budget's candidates that will be trained: 1 unless a search picks some."""
        listed: Counter[float] = Counter()
        for budget, _, _ in {(p.budget, p.cell.shape.depth, p.lr_factor) for p in self.cells}:
            listed[budget] += 1
        picked = self.candidates
        return {b: 1.0 if picked is None else min(1.0, picked / n) for b, n in listed.items()}

    def expected(self, attribute: str) -> float:
        """Sum an attribute of the cells, those a search may leave out counted by their share."""
        return math.fsum(self.tried[p.budget] * (getattr(p, attribute) or 0) for p in self.cells)

    @property
    def cell_count(self) -> int:
        """How many cells will be trained; the plan lists more where a search picks some of them."""
        return round(math.fsum(self.tried[p.budget] for p in self.cells))

    @property
    def tokens(self) -> float:
        """Training tokens of all cells that will be trained."""
        return self.expected("tokens")

    @property
    def flops(self) -> float:
        """Training FLOPs of all cells that will be trained."""
        return self.expected("flops")

    @property
    def device_hours(self) -> float:
        """Hours of one slot for all cells that will be trained."""
        return self.expected("seconds") / 3600

    @property
    def hours(self) -> float:
        """Hours from start to end with all slots busy; never less than the longest cell."""
        longest = max((p.seconds for p in self.cells), default=0.0) / 3600
        return max(self.device_hours / self.slots, longest)

    @property
    def cost(self) -> float | None:
        """Price of all cells that will be trained; None without `resources.price_per_hour`."""
        return None if any(p.cost is None for p in self.cells) else self.expected("cost")

    def cell(self, key: str) -> Cell:
        """Return a cell by its key, or by its name where only one cell has it.

        Raises:
            SpecError: no cell, or several, answer to it.
        """
        found = [p.cell for p in self.cells if key in (p.cell.key, p.cell.name)]
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
            "floor": self.floor,
            "sampler": self.sampler,
            "candidates": self.candidates,
            "totals": {
                "cells": self.cell_count,
                "candidate_cells": len(self.cells),
                "tokens": self.tokens,
                "flops": self.flops,
                "device_hours": self.device_hours,
                "hours": self.hours,
                "cost": self.cost,
            },
            "cells": self.rows(),
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


def make_plan(spec: StudySpec, *, base: Path = Path()) -> Plan:
    """Plan a study: exact parameters, FLOPs, memory, time and cost of every cell.

    Args:
        spec: the study.
        base: folder that relative paths of the data start from.

    Raises:
        SpecError: a cell does not fit the device even one sequence at a time.
        DataError: the data cannot be found.
    """
    # Imported here because `trainables.data` may load numpy; reading a spec must not.
    from trainables.data import data_key, vocabulary_size

    device = DEVICES[spec.resources.device]
    slots = _slots(spec.resources, device)
    recipe = spec.training.recipe(spec.precision)
    key = data_key(spec.data, spec.training.context, base)
    vocabulary = vocabulary_size(spec.data)
    estimator = _Estimator(spec, device, slots, recipe, vocabulary)
    cells = tuple(
        planned for found in shapes(spec.frontier) for planned in _cells(spec, found, recipe, key, estimator)
    )
    missed = tuple(misses(spec.frontier))
    return Plan(
        name=spec.name,
        description=spec.description,
        device=device.name,
        slots=slots,
        precision=recipe.precision,
        vocabulary=vocabulary,
        floor=_floor(spec.data),
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
        notes=(*(miss.reason for miss in missed), *_notes(spec, device, recipe)),
    )


def _cells(
    spec: StudySpec, found: FrontierShape, recipe: Recipe, data_key: str, estimator: "_Estimator"
) -> list[PlannedCell]:
    shape = found.shape
    cost = estimator.estimate(shape)
    rate = spec.training.lr.rate(shape)
    return [
        PlannedCell(
            cell=Cell(
                shape=shape, recipe=recipe, data=spec.data, data_key=data_key, lr=rate * factor, seed=seed
            ),
            budget=found.budget,
            lr_factor=factor,
            parameters=cost.parameters,
            tokens=recipe.tokens,
            flops=cost.flops,
            memory_bytes=cost.memory.total,
            micro_batch=cost.micro_batch,
            tensor_parallel=1,
            seconds=cost.seconds,
            cost=cost.price,
            flags=cost.flags,
        )
        for factor in spec.search.lr_factors
        for seed in spec.training.seed_values
    ]


@dataclass(frozen=True, slots=True)
class _Cost:
    """What every cell of one shape costs."""

    parameters: Parameters
    flops: float
    memory: Memory
    micro_batch: int
    seconds: float
    price: float | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class _Estimator:
    """Costs of shapes under one spec."""

    spec: StudySpec
    device: Device
    slots: int
    recipe: Recipe
    vocabulary: int

    def estimate(self, shape: Shape) -> _Cost:
        recipe, resources = self.recipe, self.spec.resources
        per_token = flops(shape, self.vocabulary, recipe.context).training
        micro_batch, needed = self._micro_batch(shape)
        pieces = recipe.batch // micro_batch
        piece_tokens = micro_batch * recipe.context
        piece_seconds = step_seconds(
            self.device,
            shape,
            piece_tokens,
            per_token * piece_tokens,
            recipe.precision,
            resources.utilisation,
        )
        # An evaluation is forward only: a third of the work of training on as many tokens.
        evaluation = math.ceil(_validation_tokens(self.spec.data, recipe.context) / piece_tokens) / 3
        seconds = piece_seconds * (recipe.steps * pieces + resources.evaluations * evaluation)
        flags = []
        if bottlenecked(shape, self.vocabulary):
            flags.append(f"width above the vocabulary of {self.vocabulary}")
        if pieces > 1:
            flags.append(f"batch in {pieces} pieces of {micro_batch}")
        return _Cost(
            parameters=parameters(shape, self.vocabulary, recipe.context),
            flops=float(per_token * recipe.tokens),
            memory=needed,
            micro_batch=micro_batch,
            seconds=seconds,
            price=None if resources.price_per_hour is None else resources.price_per_hour * seconds / 3600,
            flags=tuple(flags),
        )

    def _micro_batch(self, shape: Shape) -> tuple[int, Memory]:
        """Return the largest divisor of the batch that fits the device, and its memory."""
        usable = usable_memory(self.device, self.slots) - (0 if self.device.is_gpu else PROCESS_BYTES)
        recipe = self.recipe
        needed = memory(shape, self.vocabulary, recipe.context, recipe.batch, recipe.precision)
        for micro_batch in sorted(_divisors(recipe.batch), reverse=True):
            needed = memory(shape, self.vocabulary, recipe.context, micro_batch, recipe.precision)
            if needed.total <= usable:
                return micro_batch, needed
        larger = [
            name
            for name, device in DEVICES.items()
            if device.memory is not None and needed.total <= usable_memory(device)
        ]
        remedy = f"a larger device ({', '.join(larger[:3])})" if larger else "smaller shapes"
        share = "usable memory" if self.device.is_gpu else f"memory for each of {self.slots} slots"
        raise SpecError(
            f"`resources.device` {self.device.name} cannot train depth {shape.depth}, width "
            f"{shape.width}: with one sequence "
            f"at a time it needs {_gigabytes(needed.total)} ({_gigabytes(needed.state)} of it weights, "
            f"gradients and "
            f"optimizer), and there are {_gigabytes(max(0, usable))} of {share}. Take {remedy}"
            + ("" if self.device.is_gpu or self.slots == 1 else ", fewer `resources.slots`")
            + ", or leave the largest budgets out."
        )


def _slots(resources: ResourcesSection, device: Device) -> int:
    if resources.slots != "auto":
        return resources.slots
    if device.is_gpu:
        return max(1, local_gpus())
    by_memory = usable_memory(device) // (2 * PROCESS_BYTES)
    return max(1, min(int(cores() / resources.cpus_per_trial), by_memory))


def _notes(spec: StudySpec, device: Device, recipe: Recipe) -> list[str]:
    notes = []
    if device.is_gpu:
        if spec.resources.utilisation is None:
            notes.append(
                f"time assumes {device.utilisation:.0%} of the peak of {device.title}; nothing was measured"
            )
        if spec.resources.slots == "auto" and not local_gpus():
            notes.append(
                "no GPU is visible here, so time assumes one slot; set `resources.slots` to plan for more"
            )
    available = _training_tokens(spec.data, recipe.context)
    if available is not None and recipe.tokens > available:
        notes.append(
            f"each cell reads {recipe.tokens:,} tokens of at most {available:,} there are: "
            f"{recipe.tokens / available:.1f} passes"
        )
    return notes


def _training_tokens(data: DataSpec, context: int) -> int | None:
    if isinstance(data, HierarchyData):
        return data.sequences * context
    return data.max_tokens


def _validation_tokens(data: DataSpec, context: int) -> int:
    return data.validation_sequences * context if isinstance(data, HierarchyData) else data.validation_tokens


def _floor(data: DataSpec) -> float | None:
    """Entropy of the grammar in nats a token: that of the root and of the rule at every inner node.

    Exact because distinct symbols write distinct strings, so a string has one tree (Cagnetta et al. 2024,
    section 2).
    """
    if not isinstance(data, HierarchyData):
        return None
    length: int = data.branching**data.levels
    inner = (length - 1) // (data.branching - 1)
    return (math.log(data.vocabulary) + inner * math.log(data.synonyms)) / length


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
