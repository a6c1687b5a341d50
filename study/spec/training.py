"""The section `training`: how every cell is trained."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from study.errors import SpecError
from study.spec.section import Depth, Distinct, Section, Seed, Size, Width
from trainables.cell import Base, Precision, Recipe, RecipeFields, Shape
from trainables.errors import shortened, some


class FixedRate(Section):
    """The same learning rate for every shape."""

    rule: Literal["fixed"]
    """one rate for all shapes"""
    value: float = Field(gt=0)
    """peak learning rate"""

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        return self.value


class WidthRate(Section):
    """A power of the width: min(cap, base · d^exponent)."""

    rule: Literal["width"]
    """min(cap, base · d^exponent)"""
    base: float = Field(gt=0)
    """rate at a width of 1"""
    exponent: float = Field(default=-1.0, ge=-4, le=4)
    """-1 is muP's rule for hidden matrices under Adam"""
    cap: float | None = Field(default=None, gt=0)
    """largest rate"""

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape."""
        rate = self.base * math.pow(shape.width, self.exponent)
        return rate if self.cap is None else min(self.cap, rate)


class TableRate(Section):
    """A learning rate for each shape, for example from an earlier search."""

    rule: Literal["table"]
    """a rate for each shape"""
    values: dict[str, Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """rates by shape, such as `L2-d16: 0.02`"""

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.values:
            if not re.fullmatch(r"L[1-9]\d*-d[1-9]\d*", name):
                raise ValueError(f"`{shortened(name)}` names no shape; write depth and width as `L2-d16`")
        return self

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape; raises `SpecError` for a shape the table does not have."""
        name = f"L{shape.depth}-d{shape.width}"
        if name not in self.values:
            raise SpecError(
                f"`training.lr.values` has no rate for {name}, a shape of the frontier. It has: "
                f"{some(sorted(self.values))}. Add `{name}: <rate>`, or use `rule: width`."
            )
        return self.values[name]


def _fixed(value: Any) -> Any:
    """Read a bare number as the same rate for every shape."""
    if isinstance(value, str):
        raise ValueError(
            f"{shortened(value)!r} is no rate; write a number such as 0.01, or `rule: width` with its keys"
        )
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"rule": "fixed", "value": value} if is_number else value


_Rule = Annotated[FixedRate | WidthRate | TableRate, Field(discriminator="rule")]
LearningRate = Annotated[_Rule, BeforeValidator(_fixed, json_schema_input_type=float | _Rule)]


def _usual_rate(given: Mapping[str, Any]) -> FixedRate | WidthRate:
    """Return the rate of a study that names none; whether it suits the study is for `sensitivity` to check."""
    if given.get("optimizer") == "muon":
        return FixedRate(rule="fixed", value=0.02)
    return WidthRate(rule="width", base=0.3, exponent=-1, cap=0.01)


class BaseSection(Section):
    """The shape that the learning rate is given for under mup and completep; its heads are as in the frontier."""

    depth: Depth = 2
    """layers of the base shape; completep follows the depth from here"""
    width: Width = 64
    """its width; mup and completep follow the width from here"""


Seeds = Annotated[
    Annotated[int, Field(ge=1, le=10_000), Tag("count")] | Annotated[Distinct[Seed], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "count"),
]


class TrainingSection(Section, RecipeFields):
    """How every cell is trained: the fields of a recipe, and the rules its other fields follow from."""

    steps: int | None = Field(default=None, ge=1, le=10**12)
    """optimizer steps"""
    batch: int = Field(default=32, ge=1, le=10_000_000)
    """sequences of one step, over all ranks"""
    context: int = Field(default=128, ge=2, le=100_000_000)
    """tokens of a sequence, T"""
    tokens: Annotated[Size, Field(ge=1, le=1e18)] | None = None
    """instead of steps: training tokens, in whole steps; without both, 20 times the largest budget"""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """of AdamW"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is fp32 on CPU and bf16 on GPU"""
    base: BaseSection = Field(default_factory=BaseSection)
    """for mup and completep: the shape at which they are the same as sp, {depth: 2, width: 64}"""
    lr: LearningRate = Field(default_factory=_usual_rate)
    """peak learning rate, a number or a rule; by default min(0.01, 0.3/width), for muon 0.02"""
    seeds: Seeds = 3
    """how many (0, 1, …), or which"""

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
        """Peak learning rate of a shape; under mup and completep the rate of the base shape.

        mup and completep scale the rate by the width themselves. The rule `width` is therefore read at the width of the
        base shape, and all shapes share one base rate. The rates of a table are base rates, one per shape.

        Raises:
            SpecError: the table does not have the shape.
        """
        if self.parametrisation != "sp" and isinstance(self.lr, WidthRate):
            shape = Shape(depth=self.base.depth, width=self.base.width, heads=1)
        return self.lr.rate(shape)

    def recipe(self, precision: Precision, head_width: float) -> Recipe:
        """Return the recipe that all cells of a study share.

        Args:
            precision: the precision that replaces `auto`.
            head_width: width of one head of the base shape.
        """
        shared = {name: getattr(self, name) for name in RecipeFields.model_fields}
        return Recipe(
            **shared,
            steps=self.step_count,
            beta1=self.betas[0],
            beta2=self.betas[1],
            precision=precision,
            base=Base(depth=self.base.depth, width=self.base.width, head_width=head_width),
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("give exactly one of `steps` and `tokens`; both are given")
        if self.optimizer == "muon" and isinstance(self.lr, WidthRate):
            raise ValueError(
                "`optimizer: muon` needs no rate by width, because its steps have the same size in every shape; use "
                "`lr: {rule: fixed, value: 0.02}` with a value of your own"
            )
        return self
