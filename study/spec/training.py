"""The section `training`: how every cell is trained."""

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from core.errors import shortened, some
from core.numbers import listed
from study.errors import SpecError
from study.spec.section import Depth, Distinct, Section, Seed, Size, Width, shape_name, shape_named
from trainables.cell import Base, Precision, Recipe, RecipeFields, Shape


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
            shape_named(name)
        return self

    def rate(self, shape: Shape) -> float:
        """Peak learning rate of a shape; raises `SpecError` for a shape the table does not have."""
        name = shape_name(shape.depth, shape.width)
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


#: The keys of which one says how long a cell is trained.
LENGTHS = ("steps", "tokens", "tokens_per_parameter")
#: Largest relative distance of whole steps from the tokens that `tokens_per_parameter` asks for. Two cells then differ
#: by 2 % at most, within which `analysis.runs.tokens` takes them for one number of tokens per parameter.
ROUNDING = 0.0099


def whole_steps(exact: float) -> int | None:
    """Return the nearest whole number of steps, at least 1; None if it misses the exact one by more than `ROUNDING`."""
    steps = max(1, round(exact))
    return None if abs(steps / exact - 1) > ROUNDING else steps


def largest_batch(sequences: float) -> int:
    """Return the largest batch in which a cell of so many sequences has whole steps within `ROUNDING`; 0 if none is.

    From 1 / (2 · ROUNDING) steps on, half a step is less than `ROUNDING`.
    """
    return math.floor(2 * ROUNDING * sequences)


#: Least ratio of two numbers of `tokens`, so that `--tokens` names one of them (`analysis.runs.tokens.NEAR_LEVEL`).
APART = 1.05

_Tokens = Annotated[Size, Field(ge=1, le=1e18)]
TokenCounts = Annotated[
    Annotated[_Tokens, Tag("number")] | Annotated[Distinct[_Tokens], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "number"),
]
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
    tokens: TokenCounts | None = None
    """instead of steps: training tokens, in whole steps; a list trains each shape at every one of them, and one is
    compared (`--tokens`). Without these three, 20 times the largest budget"""
    tokens_per_parameter: float | None = Field(default=None, gt=0, le=1e6)
    """instead of steps: training tokens over the N = 12·L·d² of each shape itself, in whole steps; larger shapes train
    longer, and all answers hold at this number of tokens per parameter"""
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
    def _fixed_steps(self) -> tuple[int, ...]:
        """The steps that do not depend on the shape, ascending."""
        if self.steps is not None:
            return (self.steps,)
        tokens = self.tokens if isinstance(self.tokens, tuple) else (self.tokens or 0,)
        return tuple(sorted(max(1, round(count / (self.batch * self.context))) for count in tokens))

    @property
    def has_levels(self) -> bool:
        """Whether every shape is trained for several numbers of tokens."""
        return isinstance(self.tokens, tuple) and len(self.tokens) > 1

    def step_counts(self, shape: Shape) -> tuple[int, ...]:
        """Optimizer steps of the cells of this shape, ascending: one number, or one per number of `tokens`.

        Raises:
            SpecError: whole steps miss `tokens_per_parameter` by more than `ROUNDING`.
        """
        if self.tokens_per_parameter is None:
            return self._fixed_steps
        tokens = self.tokens_per_parameter * shape.budget_params
        wanted = tokens / (self.batch * self.context)
        if (steps := whole_steps(wanted)) is None:
            most = largest_batch(tokens / self.context)
            least = math.ceil(self.context / (2 * ROUNDING * shape.budget_params))
            fix = f"set `training.batch: {most}` or less"
            if not most:
                fix = f"set `training.batch: 1` and `training.tokens_per_parameter: {least}` or more, or leave out the "
                fix += "smallest sizes"
            raise SpecError(
                f"`training.tokens_per_parameter` {self.tokens_per_parameter:g} gives L{shape.depth}-d{shape.width}, "
                f"N = {shape.budget_params:,}, {tokens:,.10g} tokens, which are {wanted:.3g} steps of {self.batch} × "
                f"{self.context}: with whole steps it would have another number of tokens per parameter than the "
                f"others. For the same, {fix}."
            )
        return (steps,)

    @property
    def length(self) -> int | str:
        """What decides how long the cells of a study are trained: their steps, or a rule such as `20 N` tokens.

        A list of `tokens` is `several`, so that a study keeps its protocol when a number is added.
        """
        if self.tokens_per_parameter is not None:
            return f"{self.tokens_per_parameter:.12g} N"
        return "several" if isinstance(self.tokens, tuple) else self._fixed_steps[0]

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

    def recipe(self, steps: int, precision: Precision, head_width: float) -> Recipe:
        """Return the recipe of a cell; those of a study differ in their steps alone.

        Args:
            steps: optimizer steps of the cell.
            precision: the precision that replaces `auto`.
            head_width: width of one head of the base shape.
        """
        shared = {name: getattr(self, name) for name in RecipeFields.model_fields}
        return Recipe(
            **shared,
            steps=steps,
            beta1=self.betas[0],
            beta2=self.betas[1],
            precision=precision,
            base=Base(depth=self.base.depth, width=self.base.width, head_width=head_width),
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [f"`{name}`" for name in LENGTHS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give exactly one of {listed(given)}, not several")
        for low, high in itertools.pairwise(self._fixed_steps):
            if high < APART * low:
                raise ValueError(
                    f"`tokens` has two numbers nearer to each other than {APART - 1:.0%}, {low:,} and {high:,} steps "
                    f"of {self.batch} × {self.context}; take one of them out"
                )
        if self.optimizer == "muon" and isinstance(self.lr, WidthRate):
            raise ValueError(
                "`optimizer: muon` needs no rate by width, because its steps have the same size in every shape; use "
                "`lr: {rule: fixed, value: 0.02}` with a value of your own"
            )
        return self
