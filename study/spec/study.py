"""StudySpec: what a study compares, read from YAML and checked; one class a section.

`load_spec` reads a preset or a file, applies `--set` overrides, and turns every mistake into a `SpecError`
that names the key, the value, what is allowed and how to mend it. Importing this module loads no training
library.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from study.errors import SpecError
from study.spec import yaml_file as document
from study.spec.devices import DEVICES
from study.spec.frontier import misses, shapes, width_step
from trainables.cell import (
    Base,
    Initialisation,
    Parametrisation,
    Precision,
    Recipe,
    Residual,
    Shape,
    check_model,
)
from trainables.data.spec import DataSpec
from trainables.deepspeed_options import check_names
from trainables.diagnostics.names import Diagnostic
from trainables.model.family import family
from trainables.progress import evaluation_steps


class Section(BaseModel):
    """Base of all sections: immutable; unknown keys, infinities and truth values are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_values(cls, values: Any) -> Any:
        # Pydantic would read `seeds: true` as one seed. No section has a field of true or false.
        if isinstance(values, Mapping):
            for key, value in values.items():
                if isinstance(value, bool):
                    words = _words(cls, key)
                    raise ValueError(
                        f"`{key}` is {str(value).lower()}, and no key here is true or false"
                        + (f"; allowed: {', '.join(words)}" if words else "")
                    )
        return values


def _words(model: type[BaseModel], key: object) -> list[str]:
    """The words a field takes, where it takes a few words only."""
    field = model.model_fields.get(str(key))
    allowed = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
    return [str(word) for word in allowed]


#: Bounds no study reaches: they turn a slip of the keyboard into a refusal instead of an endless plan.
Budget = Annotated[float, Field(gt=0, le=1e15)]
Depth = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Degree = Annotated[int, Field(ge=1, le=10_000)]


class BudgetRange(Section):
    """Budgets from `min` to `max`, each the same factor above the one before."""

    min: Budget = Field(description="smallest budget")
    max: Budget = Field(description="largest budget")
    points: int = Field(ge=2, le=10_000, description="how many budgets, both ends counted")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"`min` {self.min:g} is not below `max` {self.max:g}; swap them")
        return self


def _list_or_table(value: Any) -> str:
    return "table" if isinstance(value, Mapping | BudgetRange) else "list"


def _list_or_count(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "count"


class FrontierSection(Section):
    """Which shapes are compared: budgets x depths, or the widths of each depth by hand."""

    budgets: (
        Annotated[
            Annotated[tuple[Budget, ...], Tag("list")] | Annotated[BudgetRange, Tag("table")],
            Discriminator(_list_or_table),
        ]
        | None
    ) = Field(default=None, description="targets of N = 12·L·d², as a list or as {min, max, points}")
    depths: tuple[Depth, ...] | None = Field(default=None, description="layers L")
    widths: dict[Depth, tuple[Width, ...]] | None = Field(
        default=None,
        description="instead of budgets: the widths of each depth; the budget of a shape is its own N. "
        "`depths`, if given, says which of them are used",
    )
    heads: int | None = Field(
        default=None, ge=1, le=10_000, description="attention heads of every layer (the paper: 2)"
    )
    head_dim: int | None = Field(
        default=None, ge=1, le=10_000, description="instead of heads: the width of one head"
    )
    tolerance: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="how far N of a shape may be from its budget, as a share of the budget",
    )
    width_multiple: int = Field(
        default=1, ge=1, le=10_000, description="widths are multiples of this, and of the heads"
    )

    @property
    def budget_values(self) -> tuple[float, ...]:
        """The budgets in ascending order; with `widths`, the N of every shape."""
        if self.widths is not None:
            return tuple(sorted({found.budget for found in shapes(self)}))
        if isinstance(self.budgets, BudgetRange):
            low, high, points = self.budgets.min, self.budgets.max, self.budgets.points
            ratio = high / low
            return (low, *(low * ratio ** (i / (points - 1)) for i in range(1, points - 1)), high)
        return tuple(sorted(self.budgets or ()))

    @property
    def depth_values(self) -> tuple[int, ...]:
        """The depths in ascending order."""
        return tuple(
            sorted(self.widths if self.depths is None and self.widths is not None else self.depths or ())
        )

    def head_width(self, width: int) -> float:
        """Width of one head of a shape of this width; a fraction where the heads do not divide it."""
        return float(self.head_dim) if self.head_dim is not None else width / (self.heads or 1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.heads is None) == (self.head_dim is None):
            given = "neither is" if self.heads is None else "both are"
            raise ValueError(f"give exactly one of `heads` and `head_dim`; {given} given")
        if self.widths is not None:
            self._check_widths(self.widths)
        else:
            self._check_budgets()
        return self

    def _check_widths(self, widths: Mapping[int, tuple[int, ...]]) -> None:
        if self.budgets is not None:
            raise ValueError("`widths` and `budgets` exclude each other; take one of them out")
        if not widths:
            raise ValueError("`widths` is empty; write `widths: {6: [128, 256], 12: [96, 192]}`")
        if self.depths is not None:
            _refuse_repeats("depths", self.depths)
            unknown = sorted(set(self.depths) - set(widths))
            if unknown or not self.depths:
                raise ValueError(
                    f"`depths` has {unknown or 'nothing'}, and `widths` has the depths {sorted(widths)}; "
                    f"choose among these, "
                    "or give widths for the others"
                )
        step = width_step(self)
        for depth, values in widths.items():
            if not values:
                raise ValueError(f"`widths` of depth {depth} is empty; give at least one width")
            _refuse_repeats(f"widths.{depth}", values)
            for width in values:
                if width % step:
                    low, high = width // step * step, (width // step + 1) * step
                    raise ValueError(
                        f"width {width} of depth {depth} is not a multiple of {step} "
                        f"({self._step_reason()}); "
                        f"take {f'{low} or ' if low else ''}{high}"
                    )

    def _check_budgets(self) -> None:
        if self.budgets is None or self.depths is None:
            missing = [f"`{name}`" for name in ("budgets", "depths") if getattr(self, name) is None]
            raise ValueError(
                f"{' and '.join(missing)} missing; give `budgets` and `depths`, or `widths` alone"
            )
        for name, values in (("budgets", self.budget_values), ("depths", self.depths)):
            if not values:
                raise ValueError(f"`{name}` is empty; give at least one value")
            _refuse_repeats(name, values)
        found, missed = shapes(self), misses(self)
        for depth in self.depth_values:
            if any(one.shape.depth == depth for one in found):
                continue
            best = min((miss for miss in missed if miss.depth == depth), key=lambda miss: abs(miss.deviation))
            if (
                best.taken_by is not None
            ):  # pragma: no cover - the budget that took it would be among the found
                continue
            raise ValueError(
                f"depth {depth} has no shape at any budget: widths are multiples of {width_step(self)} "
                f"({self._step_reason()}), and the nearest, width {best.nearest_width} for budget "
                f"{best.budget:g}, has "
                f"N = {12 * depth * best.nearest_width**2} ({best.deviation:+.0%}, tolerance "
                f"{self.tolerance:.0%}). "
                f"{self._way_out(best.deviation, depth)}"
            )

    def _way_out(self, deviation: float, depth: int) -> str:
        needed = math.ceil(abs(deviation) * 100) / 100
        if needed < 1:
            return f"Set `tolerance` to {needed:g} or more, change the budgets, or leave depth {depth} out"
        smallest = 12 * depth * width_step(self) ** 2
        return f"Raise the budgets to {smallest} or more, or leave depth {depth} out"

    def _step_reason(self) -> str:
        head = f"{self.heads} heads" if self.heads is not None else f"heads of {self.head_dim}"
        return head if self.width_multiple == 1 else f"{head}, `width_multiple` {self.width_multiple}"


class FixedRate(Section):
    """The same learning rate for every shape."""

    rule: Literal["fixed"]
    value: float = Field(gt=0, description="peak learning rate")

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        return self.value


class WidthRate(Section):
    """A power of the width: min(cap, base · d^exponent)."""

    rule: Literal["width"]
    base: float = Field(gt=0, description="the rate a width of 1 would have")
    exponent: float = Field(
        default=-1.0, ge=-4, le=4, description="-1 is the rate of muP's hidden matrices under Adam"
    )
    cap: float | None = Field(default=None, gt=0, description="largest rate")

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        return self.at(shape.width)

    def at(self, width: int) -> float:
        """Peak learning rate of a width."""
        rate = self.base * math.pow(width, self.exponent)
        return rate if self.cap is None else min(self.cap, rate)


class TableRate(Section):
    """A learning rate for each shape, for example from an earlier search."""

    rule: Literal["table"]
    values: dict[str, Annotated[float, Field(gt=0)]] = Field(
        description="rates by shape, such as `L2-d16: 0.02`"
    )

    @model_validator(mode="after")
    def _names(self) -> Self:
        if not self.values:
            raise ValueError("`values` is empty; give a rate for each shape, such as `L2-d16: 0.02`")
        for name in self.values:
            if not re.fullmatch(r"L[1-9]\d*-d[1-9]\d*", name):
                raise ValueError(f"`{name}` names no shape; write depth and width as `L2-d16`")
        return self

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape; raises `SpecError` for a shape the table does not have."""
        name = f"L{shape.depth}-d{shape.width}"
        if name not in self.values:
            known = ", ".join(sorted(self.values))
            raise SpecError(
                f"`training.lr.values` has no rate for {name}, a shape of the frontier. It has: {known}. "
                f"Add `{name}: <rate>`, or use `rule: width`."
            )
        return self.values[name]


LearningRate = Annotated[FixedRate | WidthRate | TableRate, Field(discriminator="rule")]


class BaseSection(Section):
    """The shape whose learning rate all cells are given under mup and completep; its heads are as in the frontier."""

    depth: Depth = Field(
        default=2, description="layers of the base shape; completep follows the depth from here"
    )
    width: Width = Field(default=64, description="its width; mup and completep follow the width from here")


class TrainingSection(Section):
    """How every cell is trained. All compared cells share this."""

    steps: int | None = Field(default=None, ge=1, description="optimizer steps")
    tokens: float | None = Field(
        default=None,
        ge=1,
        description="instead of steps: training tokens, rounded to whole steps (at least one)",
    )
    batch: int = Field(ge=1, description="sequences of one step")
    context: int = Field(ge=2, description="tokens of a sequence")
    optimizer: Literal["adamw"] = "adamw"
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0, description="on matrices; biases and norms have none")
    warmup: float = Field(default=0.1, ge=0, le=1, description="linear warm-up, as a share of the steps")
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="end of the cosine, as a share of the peak rate"
    )
    grad_clip: float = Field(
        default=1.0, ge=0, description="largest norm of the gradient; 0 switches clipping off"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto is fp32 on CPU and bf16 on GPU"
    )
    init: Initialisation = Field(
        default="fan_in",
        description="fan_in: std 1/sqrt(fan in), residual outputs by 1/sqrt(2L); gpt2: std 0.02",
    )
    parametrisation: Parametrisation = Field(
        default="sp",
        description="sp: every shape is trained alike; mup: start, learning rates, decay and epsilon follow the "
        "width; completep: and the depth. The rule of the learning rate is then read at the base shape",
    )
    base: BaseSection = Field(
        default_factory=BaseSection,
        description="for mup and completep: the shape at which they are what sp is, {depth: 2, width: 64}",
    )
    residual: Residual = Field(
        default="pre",
        description="how branches join the residual stream: pre (GPT-2); sqrt, linear: times 1/sqrt(L), 1/L; "
        "scaled_norm: norms times 1/sqrt(layer); post: norms behind the sum; admin: post with weights on the stream",
    )
    network: str = Field(
        default="gpt2",
        description="gpt2; or analysed: that of the theory, attention alone without softmax, ReLU or norm",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)
    lr: LearningRate = Field(description="rule of the peak learning rate")
    seeds: Annotated[
        Annotated[int, Field(ge=1, le=10_000), Tag("count")]
        | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Tag("list")],
        Discriminator(_list_or_count),
    ] = Field(default=1, description="how many (0, 1, …), or which")
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="options for DeepSpeed itself, such as {zero_optimization: {overlap_comm: true}}; part of every "
        "cell, because some change the rounding of a loss",
    )

    @field_validator("deepspeed")
    @classmethod
    def _known_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_names(options)
        return options

    @property
    def step_count(self) -> int:
        """Optimizer steps of a cell."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.tokens or 0) / (self.batch * self.context)))

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds every shape is trained with; the same for all, so that differences are paired."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape; under mup and completep the base rate that its own rates follow from.

        A parametrisation follows the width itself, so the rule `width` is then read at the base's width and all
        shapes have one base rate. A table's rates are taken as base rates, each of its shape.

        Raises:
            SpecError: the table does not have the shape.
        """
        if self.parametrisation != "sp" and isinstance(self.lr, WidthRate):
            return self.lr.at(self.base.width)
        return self.lr.rate(shape)

    def recipe(self, precision: Precision, head_width: float) -> Recipe:
        """Return what the cells of a study have in common.

        Args:
            precision: no longer `auto`.
            head_width: of the base shape, where there is a parametrisation.
        """
        return Recipe(
            steps=self.step_count,
            batch=self.batch,
            context=self.context,
            optimizer=self.optimizer,
            beta1=self.betas[0],
            beta2=self.betas[1],
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            min_lr_ratio=self.min_lr_ratio,
            grad_clip=self.grad_clip,
            precision=precision,
            init=self.init,
            parametrisation=self.parametrisation,
            base=Base(depth=self.base.depth, width=self.base.width, head_width=head_width),
            residual=self.residual,
            network=self.network,
            dropout=self.dropout,
            deepspeed=self.deepspeed,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            given = "neither is" if self.steps is None else "both are"
            raise ValueError(f"give exactly one of `steps` and `tokens`; {given} given")
        check_model(self.parametrisation, self.residual)
        if isinstance(self.seeds, tuple):
            if not self.seeds:
                raise ValueError("`seeds` is empty; give a number of seeds or a list such as [0, 1, 2]")
            _refuse_repeats("seeds", self.seeds)
        return self


#: What a search of the sampler `crossing` is to find out, and how `stop_when` calls the certainty of it.
ObjectiveName = Literal["depth", "b", "crossings"]
HALFWIDTHS: dict[ObjectiveName, str] = {
    "depth": "projected_depth_halfwidth",
    "b": "b_halfwidth",
    "crossings": "crossing_halfwidth",
}


class StopWhenSection(Section):
    """The certainty at which a search ends: a half-width of a 95 % interval, as a share of the value itself."""

    projected_depth_halfwidth: float | None = Field(
        default=None, gt=0, le=10, description="of the best depth projected at `target_params`"
    )
    b_halfwidth: float | None = Field(default=None, gt=0, le=10, description="of the law's slope b")
    crossing_halfwidth: float | None = Field(
        default=None, gt=0, le=10, description="of every crossing, in ln N: 0.1 is about 10 % of N"
    )

    @property
    def objective(self) -> ObjectiveName:
        """What the certainty is of."""
        return next(objective for objective, key in HALFWIDTHS.items() if getattr(self, key) is not None)

    @property
    def halfwidth(self) -> float:
        """The half-width asked for."""
        value: float = getattr(self, HALFWIDTHS[self.objective])
        return value

    @property
    def words(self) -> str:
        """What is asked for, as part of a sentence."""
        of = {"depth": "the projected depth", "b": "the slope b", "crossings": "every crossing"}[
            self.objective
        ]
        return f"{of} is known to ±{100 * self.halfwidth:g} %"

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [key for key in HALFWIDTHS.values() if getattr(self, key) is not None]
        if len(given) != 1:
            said = f"it has {', '.join(given)}" if given else "it has none"
            raise ValueError(
                f"`stop_when` takes exactly one of {', '.join(HALFWIDTHS.values())}, and {said}; write for example "
                "`stop_when: {projected_depth_halfwidth: 0.1}`, or leave `stop_when` out"
            )
        return self


class LimitsSection(Section):
    """Bounds of N for the shapes a search may add."""

    min: Budget | None = Field(default=None, description="smallest N; by default the smallest budget")
    max: Budget | None = Field(default=None, description="largest N; by default the largest budget")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"`min` {self.min:g} is not below `max` {self.max:g}; swap them")
        return self


class SearchSection(Section):
    """Which of the frontier's shapes are trained, and with which multiples of the rule's learning rate."""

    sampler: Literal["grid", "tpe", "gp", "crossing"] = Field(
        default="grid",
        description="grid: all depths x lr_factors; tpe, gp: Optuna picks `candidates` of them a budget; crossing: the "
        "cells that tell most of where depths cross, for what they cost",
    )
    lr_factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1.0,), description="multipliers on the rule's learning rate"
    )
    candidates: int | None = Field(
        default=None,
        ge=1,
        description="for tpe and gp: how many pairs of depth and learning rate to try at each budget, each "
        "with every seed",
    )
    objective: ObjectiveName | None = Field(
        default=None,
        description="for crossing, what is sought: the best depth projected at `target_params`, the law's slope b, "
        "or all crossings alike; by default that of `stop_when`, else depth",
    )
    target_params: Budget | None = Field(
        default=None,
        description="for the objective depth: the N projected at; by default ten times the largest budget",
    )
    stop_when: StopWhenSection | None = Field(
        default=None, description="for crossing: the certainty that ends the search"
    )
    max_flops: float | None = Field(
        default=None,
        gt=0,
        description="for crossing: training FLOPs of all its cells, those of arms not counted",
    )
    max_cells: int | None = Field(default=None, ge=1, description="for crossing: how many cells at most")
    max_seeds: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="for crossing: seeds of one shape at most, those of `training.seeds` first; by default 8, or as "
        "many as these are",
    )
    new_budgets: Literal["none", "between", "beyond"] | None = Field(
        default=None,
        description="for crossing: shapes at budgets between those given (the default), also beyond them up to "
        "`limits`, or none",
    )
    limits: LimitsSection | None = Field(default=None, description="for crossing: bounds of new budgets")
    seed: int = Field(default=0, ge=0, description="of the sampler")

    @property
    def objective_name(self) -> ObjectiveName:
        """What a search is to find out: its own objective, else that of `stop_when`, else the projected depth."""
        return self.objective or (self.stop_when.objective if self.stop_when else "depth")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lr_factors:
            raise ValueError("`lr_factors` is empty; write [1.0] to use the rule's rate as it is")
        _refuse_repeats("lr_factors", self.lr_factors)
        if self.sampler == "crossing":
            self._check_crossing()
            return self
        foreign = [key for key in document.CROSSING_KEYS if getattr(self, key) is not None]
        if foreign:
            names = ", ".join(f"`{key}`" for key in foreign)
            raise ValueError(
                f"{names} {'is' if len(foreign) == 1 else 'are'} for the sampler `crossing`, and the sampler is "
                f"`{self.sampler}`; take {names} out, or choose `sampler: crossing`"
            )
        if self.sampler == "grid" and self.candidates is not None:
            raise ValueError(
                f"`candidates` is {self.candidates}, but the sampler `grid` trains every candidate; take "
                "`candidates` out, or choose `sampler: tpe` or `gp`"
            )
        if self.sampler != "grid" and self.candidates is None:
            raise ValueError(
                f"the sampler `{self.sampler}` needs `candidates`: how many pairs of depth and learning "
                "rate to try at each budget, for example `candidates: 8`"
            )
        return self

    def _check_crossing(self) -> None:
        if self.candidates is not None:
            raise ValueError(
                f"`candidates` is {self.candidates}, but the sampler `crossing` chooses cell by cell; take it out and "
                "set `max_cells`"
            )
        if self.stop_when is None and self.max_flops is None and self.max_cells is None:
            raise ValueError(
                "the sampler `crossing` needs an end, at least one of `stop_when`, `max_flops` and `max_cells`, such as "
                "`stop_when: {projected_depth_halfwidth: 0.1}`"
            )
        if (
            self.stop_when is not None
            and self.objective is not None
            and self.objective != self.stop_when.objective
        ):
            raise ValueError(
                f"`objective` is {self.objective}, but `stop_when` asks for {HALFWIDTHS[self.stop_when.objective]}; set `objective: {self.stop_when.objective}`, "
                f"or `stop_when: {{{HALFWIDTHS[self.objective]}: {self.stop_when.halfwidth:g}}}`"
            )
        if self.target_params is not None and self.objective_name != "depth":
            raise ValueError(
                f"`target_params` is for the objective depth, and the objective is {self.objective_name}; take it out"
            )
        if self.new_budgets == "beyond" and self.limits is None:
            raise ValueError(
                "`new_budgets: beyond` needs `limits`: how small or how large a shape may be, for example "
                "`limits: {max: 1e6}`"
            )
        if self.new_budgets == "none" and self.limits is not None:
            raise ValueError("`limits` bounds new budgets, and `new_budgets` is none; take one of them out")


class SensitivitySection(Section):
    """Cells about each crossing that are trained again at other learning rates, once the search has ended."""

    lr_factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(0.5, 2.0), description="multiples of each cell's learning rate"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lr_factors:
            raise ValueError("`lr_factors` is empty; write [0.5, 2], or take `sensitivity` out")
        _refuse_repeats("lr_factors", self.lr_factors)
        if 1 in self.lr_factors:
            raise ValueError("`lr_factors` has 1, which is the study itself; take it out")
        return self


class _Stopping(Section):
    """What both rules of early stopping share."""

    finished: int = Field(
        default=16, ge=12, description="cells that must be done before a loss is foretold, of one lr_factor"
    )
    whole_share: float = Field(
        default=0.25,
        ge=0.1,
        lt=1,
        description="share of the cells that are trained to their end whatever they show: they keep the forecasts "
        "honest and tell the noise",
    )


class ForecastStopping(_Stopping):
    """End a cell once its final loss can be foretold well enough."""

    rule: Literal["forecast"]
    halfwidth: float = Field(
        default=0.005,
        gt=0,
        lt=1,
        description="of the forecast's 95 % interval, relative to the loss, at which a cell ends",
    )
    least_share: float = Field(
        default=0.3, ge=0, lt=1, description="share of the steps before which no cell ends"
    )


class AshaStopping(_Stopping):
    """End cells that are not among the best of their budget, by successive halving."""

    rule: Literal["asha"]
    reduction: int = Field(default=3, ge=2, le=100, description="one in so many goes on past a rung")
    grace: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="share of the steps of the first rung; each next is `reduction` times it",
    )


EarlyStopping = Annotated[ForecastStopping | AshaStopping, Field(discriminator="rule")]
#: Share of the steps beyond which nothing is stopped: what is left saves less than it costs in certainty.
LATEST_STOP = 0.9


DeviceName = Literal[
    "cpu",
    "l4-24gb",
    "a10g-24gb",
    "l40s-48gb",
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h200-141gb",
    "b200-180gb",
]


class MinWidth(Section):
    """A degree by the width of the shape."""

    min_width: dict[Degree, Width] = Field(
        description="the least width of each degree, such as {2: 2048, 4: 8192}; narrower shapes have 1"
    )

    def degree(self, width: int) -> int:
        """The largest degree a width is enough for."""
        return max((degree for degree, least in self.min_width.items() if width >= least), default=1)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values and all(isinstance(key, int) for key in values):
            table = ", ".join(f"{degree}: {width}" for degree, width in values.items())
            raise ValueError(f"degrees by width stand under `min_width`; write {{min_width: {{{table}}}}}")
        return values

    @field_validator("min_width", mode="before")
    @classmethod
    def _no_true_widths(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and any(isinstance(width, bool) for width in table.values()):
            raise ValueError("a width is true or false; give the least width of each degree as a number")
        return table

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min_width:
            raise ValueError("`min_width` is empty; write {2: 2048, 4: 8192}, or a degree alone, or auto")
        steps = sorted(self.min_width.items())
        for (low, narrow), (high, wide) in pairwise(steps):
            if wide <= narrow:
                raise ValueError(
                    f"`min_width` gives degree {high} from width {wide} on, and degree {low} from {narrow}, so no "
                    f"shape would have {low}; a higher degree needs a larger width"
                )
        return self


def _degree_kind(value: Any) -> str:
    return "table" if isinstance(value, Mapping | MinWidth) else "one"


#: How many ranks share something of a cell.
DegreeRule = Annotated[
    Annotated[Literal["auto"] | Degree, Tag("one")] | Annotated[MinWidth, Tag("table")],
    Discriminator(_degree_kind),
]


class ResourcesSection(Section):
    """What a rank of a trial gets, how a cell is spread over ranks, and what the estimates assume."""

    device: DeviceName = Field(
        default="cpu", description="what a trial trains on; sets memory and speed of the plan"
    )
    slots: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        default="auto",
        description="devices in use at a time; a cell takes one a rank. auto is as many as there are cores or GPUs "
        "here, or ranks that the cluster holds and may grow to",
    )
    pool: str = Field(
        default="any",
        min_length=1,
        description="which machines of a cluster: a resource that marks them, such as spot, on_demand or wide, or any; "
        "for device cpu any is the pool without GPUs",
    )
    cpus_per_trial: float = Field(default=1, gt=0, description="CPU cores of each rank of a trial")
    gpus_per_trial: int = Field(
        default=0, ge=0, le=1, description="GPUs of each rank of a trial; by default 1 unless on cpu"
    )
    tensor_parallel: DegreeRule = Field(
        default="auto",
        description="ranks that share each matrix of a cell; auto is the fewest whose memory fits the device, or a "
        "number, or {min_width: {2: 2048, 4: 8192}}",
    )
    data_parallel: DegreeRule = Field(
        default="auto",
        description="groups of ranks that share each batch; auto is more than 1 only where the heads allow no more "
        "tensor parallelism",
    )
    zero: Literal["auto", 0, 1, 2, 3] = Field(
        default="auto",
        description="what data-parallel groups share: optimizer (1), gradients (2), weights (3); auto is the cheapest "
        "that is right, 1 for bf16 and for several ranks",
    )
    micro_batch: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        default="auto",
        description="sequences a group works on at once; auto is the most that fit the device",
    )
    activation_checkpointing: Literal["never", "always", "auto"] = Field(
        default="never",
        description="compute the activations inside a layer again in backward instead of keeping them: a third more "
        "work for less memory; auto is only where a cell does not fit without",
    )
    shard_vocabulary: Literal["never", "always"] = Field(
        default="never",
        description="also share the embedding and the logits among the tensor-parallel ranks, where there are several",
    )
    gang_timeout_seconds: float = Field(
        default=300, gt=0, description="how long ranks wait for one another before the trial is given up"
    )
    storage: str = Field(
        default="auto",
        min_length=1,
        description="where what all machines share is kept: packed data, checkpoints, final weights, a copy of the "
        "results. auto is INTERPLAY_STORAGE, else the results folder; or a folder or URI that every machine reaches, "
        "such as s3://BUCKET/FOLDER",
    )
    checkpoint_every_seconds: float = Field(default=30, gt=0, description="most work lost with a machine")
    capacity_timeout_seconds: float = Field(
        default=600,
        gt=0,
        description="how long a pool of a cluster may give no machine before this is said",
    )
    max_retries: int = Field(default=2, ge=0, description="new attempts after a lost process or machine")
    evaluations: int = Field(
        default=4, ge=1, description="evaluations during a cell, the last one at its end"
    )
    keep_weights: Literal["final", "none"] = Field(
        default="final",
        description="final: the weights of each cell that is done stay in the results folder, for `interplay export`",
    )
    price_per_hour: float | None = Field(default=None, ge=0, description="of one slot, in any currency")
    utilisation: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the device's peak to plan with, instead of the assumed one",
    )

    @model_validator(mode="before")
    @classmethod
    def _gpu_by_device(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "gpus_per_trial" not in values:
            device = DEVICES.get(str(values.get("device", "cpu")))
            return {**values, "gpus_per_trial": int(device is not None and device.is_gpu)}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        is_gpu = DEVICES[self.device].is_gpu
        if self.gpus_per_trial and not is_gpu:
            raise ValueError(
                f"`gpus_per_trial` is {self.gpus_per_trial}, but `device` is {self.device}; take "
                f"`gpus_per_trial` out, "
                f"or name the GPU: {', '.join(name for name in DEVICES if DEVICES[name].is_gpu)}"
            )
        if is_gpu and not self.gpus_per_trial:
            raise ValueError(
                f"`gpus_per_trial` is 0, but `device` is {self.device}, a GPU; set it to 1, or `device: cpu`"
            )
        parts = urlsplit(self.storage)
        # The spec is written to disk and to MLflow as it is, so a secret in it would leak.
        if "@" in parts.netloc or any(_SECRET.search(key) for key, _ in parse_qsl(parts.query, True)):
            raise ValueError(
                "`storage` holds a password or key, and specs are kept as files; take it out and set it in the "
                "environment of every machine (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
            )
        return self


#: Names of query parameters that hold a secret: `password`, `sslpassword`, `access_token`, `api_key`, …
_SECRET = re.compile(r"passw|pwd|token|secret|credential|(api|access|account|private).?key", re.IGNORECASE)

#: What lies in a results folder beside the studies' own folders.
RESERVED = ("data", "mlartifacts", "mlflow.db")


class TrackingSection(Section):
    """Where MLflow keeps the study."""

    uri: str = Field(
        default="auto", min_length=1, description="auto is SQLite in the results folder; or an MLflow URI"
    )
    experiment: str | None = Field(
        default=None, min_length=1, description="MLflow experiment; by default the name"
    )

    @model_validator(mode="after")
    def _usable_and_no_secret(self) -> Self:
        example = "write it as http://host:5000"
        try:
            parts = urlsplit(self.uri)
        except ValueError as error:
            raise ValueError(f"`uri` is no address ({error}); {example}") from None
        # The spec is written to disk and to MLflow as it is, so a secret in it would leak.
        secrets = [key for key, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(key)]
        if parts.password or secrets:
            where = f" (`{secrets[0]}`)" if secrets else ""
            raise ValueError(
                f"`uri` holds a password{where}, and specs are kept as files; take it out and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN; PGPASSWORD for "
                "a database) in the environment"
            )
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"`uri` has a port that is no number from 0 to 65535; {example}") from None
        if parts.scheme in ("http", "https") and not parts.hostname:
            raise ValueError(f"`uri` names no host; {example}")
        return self


#: What a key may be in each study of a series.
Value = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | str
#: Keys that tell studies of one series from each other, or say where they are kept.
NOT_VARIED = ("name", "description", "claim", "vary", "tracking", "diagnostics")


class StudySpec(Section):
    """A study: the data, the frontier of shapes, how each is trained, and how the whole is run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="letters, digits, `.`, `_`, `-`; the results' folder and the MLflow experiment",
    )
    description: str = Field(default="", description="one line for lists of studies")
    claim: str = Field(
        default="", description="what a source says the outcome should be, and which source; on the report"
    )
    data: DataSpec
    frontier: FrontierSection
    training: TrainingSection
    search: SearchSection = Field(default_factory=SearchSection)
    early_stopping: EarlyStopping | None = Field(
        default=None, description="whether cells may end before their last step; by default none does"
    )
    sensitivity: SensitivitySection | None = Field(
        default=None, description="whether the crossings are tried at other learning rates; by default not"
    )
    diagnostics: tuple[Diagnostic, ...] = Field(
        default=(),
        description="what is measured of the layers at the start and at each evaluation; nothing by default",
    )
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    tracking: TrackingSection = Field(default_factory=TrackingSection)
    vary: dict[str, tuple[Value, ...]] | None = Field(
        default=None,
        description="a key and its values, such as {data.hops: [1, 2, 4]}: a series of studies that differ in that "
        "alone, each of its own report, and one page that holds them against each other",
    )

    @property
    def experiment(self) -> str:
        """The MLflow experiment."""
        return self.tracking.experiment or self.name

    @property
    def precision(self) -> Precision:
        """The precision cells are trained in, on the device of `resources`."""
        if self.training.precision == "auto":
            return "bf16" if DEVICES[self.resources.device].is_gpu else "fp32"
        return self.training.precision

    @property
    def recipe(self) -> Recipe:
        """What the cells of this study have in common."""
        return self.training.recipe(self.precision, self.frontier.head_width(self.training.base.width))

    def to_yaml(self) -> str:
        """Return this very spec, all defaults written out; `load_spec` reads it back unchanged."""
        text: str = yaml.safe_dump(
            self.model_dump(mode="json"),
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=110,
        )
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        family(self.training.network).check(self.recipe)
        # Compared without case: on some file systems `Data` is the folder `data`.
        if self.name.lower() in RESERVED:
            raise ValueError(
                f"`name` is {self.name!r}, and the results folder keeps {', '.join(RESERVED)} for itself; "
                "take another name"
            )
        misfit = self.data.misfit(self.training.context)
        if misfit:
            raise ValueError(f"`training.context` {self.training.context} does not fit `data`: {misfit}")
        if self.data.measures_accuracy and self.resources.shard_vocabulary == "always":
            raise ValueError(
                f"`resources.shard_vocabulary` is always, but the accuracy of the task `{self.data.kind}` is computed "
                "from whole logits; set it to never: the vocabulary of a task is small"
            )
        _refuse_repeats("diagnostics", self.diagnostics)
        if self.early_stopping is not None:
            _check_stopping(self.early_stopping, self.training.step_count, self.resources.evaluations)
        if self.sensitivity is not None and len(self.search.lr_factors) > 1:
            raise ValueError(
                f"`sensitivity` asks what another learning rate does to the crossings, but `search.lr_factors` tries "
                f"{len(self.search.lr_factors)} of every shape already; take `sensitivity` out, or leave one factor"
            )
        if isinstance(self.training.lr, TableRate):
            for found in shapes(self.frontier):
                self.training.lr.rate(found.shape)
        if self.search.sampler == "crossing":
            _check_search(self)
        if self.vary is not None:
            members(self)
        return self


@dataclass(frozen=True)
class SeriesMember:
    """One study of a series: the value of the key that is varied, and the study with it."""

    value: int | float | str
    spec: StudySpec


def varied(spec: StudySpec) -> tuple[str, tuple[int | float | str, ...]]:
    """The key in which the studies of a series differ, and its values.

    Raises:
        ValueError: there is not one key, or it has fewer than two values, or may not be varied.
    """
    vary = spec.vary or {}
    if len(vary) != 1:
        raise ValueError(
            f"`vary` has {f'{len(vary)} keys' if vary else 'no key'}, and a series differs in one; write for example "
            "`vary: {training.tokens: [1e6, 3e6]}`"
        )
    ((key, values),) = vary.items()
    if key.split(".")[0] in NOT_VARIED:
        raise ValueError(
            f"`vary` has the key `{key}`, which no study of a series can have of its own; name a key of another "
            "section, such as `training.tokens`"
        )
    if len(values) < 2:
        raise ValueError(f"`vary.{key}` has fewer than two values; a series compares several studies")
    slugs = _slugs(key, values)
    repeated = sorted({slug for slug in slugs if slugs.count(slug) > 1})
    if repeated:
        raise ValueError(f"`vary.{key}` has {', '.join(repeated)} more than once; write each value once")
    return key, values


def members(spec: StudySpec) -> tuple[SeriesMember, ...]:
    """The studies of a series, in the order of their values; each is kept under the name `SERIES-KEY-VALUE`.

    Raises:
        ValueError: see `varied`; or the study is wrong with one of the values, which is named.
    """
    key, values = varied(spec)
    raw = spec.model_dump(mode="json", exclude={"vary"}, exclude_unset=True)
    found = []
    for value, slug in zip(values, _slugs(key, values), strict=True):
        try:
            # One experiment, so that MLflow shows the series in one table.
            raw_member = document.changed(raw, {key: value, "tracking.experiment": spec.experiment})
            raw_member["name"] = f"{spec.name}-{key.split('.')[-1]}-{slug}"
            found.append(SeriesMember(value, parse_spec(raw_member, f"with `{key}` {value}")))
        except SpecError as error:
            raise ValueError(str(error).rstrip(".")) from None
    return tuple(found)


def studies(spec: StudySpec) -> tuple[StudySpec, ...]:
    """The studies that a spec stands for: those of a series, else itself."""
    return (spec,) if spec.vary is None else tuple(member.spec for member in members(spec))


def _slugs(key: str, values: Sequence[float | str]) -> list[str]:
    """The values of a key as parts of names; of files the last parts, where these differ."""
    if document.VARIED_PATH.fullmatch(key):
        last = [_slug(Path(str(value)).name) for value in values]
        if len(set(last)) == len(last):
            return last
    return [_slug(value) for value in values]


def _slug(value: float | str) -> str:
    """A value as part of a name: `4`, `1e06`, `gpt2`."""
    text = value if isinstance(value, str) else f"{value:g}".replace("+", "")
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)


def _check_search(spec: StudySpec) -> None:
    search, depths, seeds = spec.search, spec.frontier.depth_values, spec.training.seed_values
    least = 2 if search.objective_name == "crossings" else 3
    if len(depths) < least:
        raise ValueError(
            f"`search.objective` is {search.objective_name}, which needs {least} depths or more, and `frontier.depths` has "
            f"{len(depths)}; add depths"
            + (", or set `search.objective: crossings`" if len(depths) == 2 else "")
        )
    if search.limits is not None:
        _check_limits(spec.frontier, search.limits, beyond=search.new_budgets == "beyond")
    if search.max_seeds is not None and search.max_seeds < len(seeds):
        raise ValueError(
            f"`search.max_seeds` is {search.max_seeds}, fewer than the {len(seeds)} of `training.seeds`; raise the one "
            "or lower the other"
        )
    if isinstance(spec.training.lr, TableRate) and search.new_budgets != "none":
        raise ValueError(
            "`training.lr` is a table of the frontier's shapes, which has no rate for shapes the search may add; set "
            "`search.new_budgets: none`, or use `rule: width`"
        )


def _check_stopping(rule: ForecastStopping | AshaStopping, last: int, evaluations: int) -> None:
    name, least = ("least_share", rule.least_share) if rule.rule == "forecast" else ("grace", rule.grace)
    if not any(least * last <= step <= LATEST_STOP * last for step in evaluation_steps(last, evaluations)):
        raise ValueError(
            f"`early_stopping` looks at evaluations between {least:.0%} (`{name}`) and {LATEST_STOP:.0%} of the steps, "
            f"and `resources.evaluations` {evaluations} puts none there; take 10 or more"
        )


def _check_limits(frontier: FrontierSection, limits: LimitsSection, *, beyond: bool) -> None:
    least, most = frontier.budget_values[0], frontier.budget_values[-1]
    low = least if limits.min is None else limits.min
    high = most if limits.max is None else limits.max
    if beyond and low >= least and high <= most:
        raise ValueError(
            f"`search.new_budgets` is beyond, but `search.limits` leaves nothing beyond the budgets, which go from "
            f"{least:g} to {most:g}; give a `min` below or a `max` above these, or choose `between`"
        )
    if not beyond and (low >= most or high <= least):
        raise ValueError(
            f"`search.limits` from {low:g} to {high:g} has none of the budgets, which go from {least:g} to {most:g}; "
            "widen it, or take it out and choose `new_budgets: none`"
        )


def _refuse_repeats(name: str, values: Sequence[float] | Sequence[str]) -> None:
    repeated = sorted({value for value in values if list(values).count(value) > 1})
    if repeated:
        shown = (value if isinstance(value, str) else f"{value:g}" for value in repeated)
        raise ValueError(f"`{name}` has {', '.join(shown)} more than once; write each value once")


def from_environment(variable: str, section: type[Section], key: str) -> str | None:
    """Return what a machine says in its environment in the place of a key of a spec; None where it says nothing.

    It is held to what the spec is held to: neither may hold a secret, because both are printed and kept in files.

    Raises:
        SpecError: the key would not take such a value.
    """
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        section.model_validate({key: value})
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"the environment variable {variable}: {told}.") from None
    return value


def load_spec(source: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a preset (`quickstart`) or a YAML file, apply overrides (`training.seeds=5`), and check the whole.

    Values of overrides are YAML. An override wins over what it excludes: `data.path` on a preset whose data
    has no path turns the data into `files` and keeps tokenizer and limits; a new `data.kind` or
    `training.lr.rule` keeps only the keys both kinds know; `training.tokens` replaces `steps`,
    `frontier.head_dim` replaces `heads`, and so on. A preset wins over a file of the same name; write
    `./quickstart` for the file.

    A relative `data.path` starts from the folder of the YAML file it is written in, and from the working folder
    in an override. The spec that comes back has absolute paths, so it means the same wherever it is kept.

    Raises:
        SpecError: whatever is wrong, at most five mistakes at once.
    """
    origin, raw = document.read(source)
    if source not in document.preset_names():
        document.resolve_relative_paths(raw, Path(source).resolve().parent)
    changed = document.override(raw, overrides)
    document.resolve_relative_paths(changed, Path.cwd())
    return parse_spec(changed, origin)


def parse_spec(raw: Mapping[str, Any], origin: str = "the spec") -> StudySpec:
    """Check a spec given as nested mappings; `origin` names it in errors."""
    try:
        return StudySpec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(document.explain(error, raw, StudySpec, origin)) from None


def presets() -> dict[str, str]:
    """Return the presets that come with the package and their descriptions, by name."""
    return {name: str(document.preset(name).get("description", "")) for name in document.preset_names()}
