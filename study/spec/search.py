"""The sections `search` and `sensitivity`: which cells of the frontier are trained, and in which order."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from core.numbers import prefixed
from study.errors import SpecError
from study.spec.frontier import FrontierSection, FrontierShape, added_shapes
from study.spec.section import Budget, Distinct, Section, Seed
from study.spec.training import TableRate, TrainingSection
from trainables.cell import Cell
from trainables.layout import Layout

#: The quantities that the sampler `crossing` can estimate.
ObjectiveName = Literal["depth", "crossings"]
#: Samplers by short names: ours for this question, and Optuna's.
OPTUNA_NAMES = ("frontier", "tpe", "gp", "random")
#: Seeds per shape that the sampler `crossing` may train, unless `search.max_seeds` sets another number.
MOST_SEEDS = 8
#: Fewest depths whose crossings give an interval of the slope and of a projected depth: two crossings do not.
LEAST_DEPTHS = 4
_ESTIMATED = {"depth": "the projected depth", "crossings": "every crossing"}


class CostedCell(Protocol):
    """A planned cell, as a forecast reads it; see `study.plan.cells.PlannedCell`."""

    @property
    def cell(self) -> Cell:
        """What is trained."""

    @property
    def budget(self) -> float:
        """The target of N."""

    @property
    def lr_factor(self) -> float:
        """The multiple of the learning-rate rule."""

    @property
    def tokens(self) -> int:
        """Training tokens."""

    @property
    def flops(self) -> float:
        """Training FLOPs."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds."""

    @property
    def device_seconds(self) -> float:
        """Seconds summed over devices."""

    @property
    def layout(self) -> Layout:
        """How the cell is spread over devices."""


class SearchBase(Section):
    """What the sections of all samplers have in common: the answers of a grid, where a sampler has no other."""

    chooses_by_rows: ClassVar[bool] = True
    """Whether the next cell depends on the rows, so that the run table numbers them as they ended."""
    may_end_early: ClassVar[bool] = False
    """Whether fewer cells than planned may be trained, also of shapes and seeds that the spec does not list."""
    overrides_for_rates: ClassVar[tuple[str, ...]] = ()
    """Overrides of the spec without which several `lr_factors` are refused."""

    sampler: str
    lr_factors: Distinct[Annotated[float, Field(gt=0)]] = (1.0,)
    """multiples of the rule's learning rate, each for every shape"""

    @model_validator(mode="before")
    @classmethod
    def _no_keys_of_other_samplers(cls, values: Any) -> Any:
        given = values if isinstance(values, Mapping) else {}
        for tag, other in SECTIONS.items():
            foreign = other.model_fields.keys() - cls.model_fields.keys()
            if keys := ", ".join(f"`{key}`" for key in given if key in foreign):
                name = OPTUNA_NAMES[0] if tag == "optuna" else tag
                raise ValueError(
                    f"{keys} {'are' if ',' in keys else 'is'} for the sampler `{name}`, and the sampler is "
                    f"`{given.get('sampler', 'grid')}`; take {keys} out, or choose `sampler: {name}`"
                )
        return values

    @property
    def at_most(self) -> str:
        """`at most ` before the number of planned cells, if this is a limit; else empty."""
        return "at most " if self.may_end_early else ""

    def check_compute(self, key: str) -> None:
        """Raise a `ValueError` if the sampler cannot search a frontier of equal FLOPs or minutes, which `key` has."""
        raise ValueError(
            f"{key} compares depths by the least loss over their sizes, and `search.sampler: "
            f"{self.sampler}` chooses among shapes of equal N; set `search.sampler: grid`"
        )

    def check(self, frontier: FrontierSection, training: TrainingSection) -> None:
        """Raise a `ValueError` if the depths, seeds, tokens or rates of the study do not allow the search."""
        if training.has_levels:
            raise ValueError(
                f"`training.tokens` has several numbers, and `search.sampler: {self.sampler}` chooses among cells of "
                "equal tokens; set `search.sampler: grid`, or give one number"
            )

    def check_limits(self, cells: Sequence[CostedCell]) -> None:
        """Raise a `SpecError` if the limits allow none of the cells."""

    def most_seeds(self, training: TrainingSection) -> int:
        """Return how many seeds of a shape may be trained."""
        return len(training.seed_values)

    def added_shapes(self, frontier: FrontierSection) -> Sequence[FrontierShape]:
        """Return the shapes that may be trained in addition to those of the frontier."""
        return ()

    def trained_shares(self, cells: Sequence[CostedCell]) -> Mapping[float, float]:
        """Return the share of each budget's cells that is trained: expected, or the most that the limits allow."""
        return dict.fromkeys((planned.budget for planned in cells), 1.0)

    def cell_count(self, cells: Sequence[CostedCell]) -> int:
        """Return the number of cells that are trained, at most."""
        shares = self.trained_shares(cells)
        return round(math.fsum(shares[planned.budget] for planned in cells))

    def tokens(self, cells: Sequence[CostedCell]) -> float:
        """Return the training tokens of all cells that are trained: expected, or at most."""
        shares = self.trained_shares(cells)
        return math.fsum(shares[planned.budget] * planned.tokens for planned in cells)

    def work(self, cells: Sequence[CostedCell]) -> list[tuple[float, int]]:
        """Return the seconds and ranks of what is trained: expected, or at most."""
        shares = self.trained_shares(cells)
        return [(shares[planned.budget] * planned.seconds, planned.layout.ranks) for planned in cells]

    def describe(self, listed: Sequence[CostedCell], more: Sequence[CostedCell]) -> list[str]:
        """Return what the sampler does with the cells that are listed and with `more`, in sentences without a dot."""
        return []

    def _check_one_rate(self, does: str, instead: str) -> None:
        if len(self.lr_factors) > 1:
            raise ValueError(
                f"the sampler `{self.sampler}` {does} at one learning rate, and `lr_factors` has "
                f"{len(self.lr_factors)}; keep one, or {instead}"
            )


class GridSection(SearchBase):
    """All depths at all budgets, with all seeds and learning rates."""

    chooses_by_rows = False

    sampler: Literal["grid"] = "grid"
    """every cell"""

    def check_compute(self, key: str) -> None:
        """Allow equal FLOPs and minutes."""

    def check(self, frontier: FrontierSection, training: TrainingSection) -> None:
        """Allow every study."""


class OptunaSection(SearchBase):
    """Some candidates of each budget, chosen by a sampler of Optuna; a candidate is a depth and a learning rate."""

    sampler: str = Field(
        description=f"{', '.join(OPTUNA_NAMES)}, or the import path of a sampler, as optuna.samplers.QMCSampler",
        json_schema_extra={"anyOf": [{"enum": list(OPTUNA_NAMES)}, {"pattern": r"\."}]},
    )
    candidates: int = Field(ge=1)
    """how many candidates of each budget are trained, each with every seed"""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of the sampler's class"""
    seed: Seed = 0
    """of the sampler"""

    @field_validator("sampler", mode="after")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OPTUNA_NAMES and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
            raise ValueError(
                f"{name} is no sampler; choose grid, crossing, {', '.join(OPTUNA_NAMES)}, or the import path of a "
                "sampler of Optuna, as optuna.samplers.QMCSampler"
            )
        return name

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.sampler == "frontier":
            self._check_one_rate("compares depths", "choose `tpe` or `gp`")
        return self

    def trained_shares(self, cells: Sequence[CostedCell]) -> Mapping[float, float]:
        """Return the share of each budget's candidates that is tried."""
        candidates = {(planned.budget, planned.cell.shape.depth, planned.lr_factor) for planned in cells}
        counts = Counter(budget for budget, *_ in candidates)
        return {budget: min(1.0, self.candidates / count) for budget, count in counts.items()}

    def describe(self, listed: Sequence[CostedCell], more: Sequence[CostedCell]) -> list[str]:
        """Return how many candidates are tried."""
        return [
            f"the search ({self.sampler}) tries {self.candidates} candidates per budget: {self.cell_count(listed)} of "
            f"the {len(listed)} cells listed; totals are for an average choice"
        ]


class CrossingSection(SearchBase):
    """Single cells that say most about the objective per FLOP, until a limit is reached."""

    may_end_early = True
    overrides_for_rates = ("search.sampler=grid",)

    sampler: Literal["crossing"]
    """cells near the crossings"""
    objective: ObjectiveName = "crossings"
    """what is estimated: all crossings, or the best depth projected at `target_params`"""
    target_params: Budget | None = None
    """for the objective depth: the N projected at; default: ten times the largest budget"""
    halfwidth: float | None = Field(default=None, gt=0, le=10)
    """ends the search: half the 95 % interval of the objective, relative to it; for crossings in ln N"""
    max_flops: float | None = Field(default=None, gt=0)
    """training FLOPs of all its cells, sensitivity runs not counted"""
    max_cells: int | None = Field(default=None, ge=1)
    """how many cells at most"""
    max_seeds: int | None = Field(default=None, ge=1, le=1000)
    """seeds per shape at most, those of `training.seeds` first; by default 8, or as many as these are"""
    new_budgets: Literal["between", "none"] = "between"
    """whether shapes at budgets between those given may be added"""

    @property
    def goal_words(self) -> str | None:
        """The half-width as part of a sentence."""
        if self.halfwidth is None:
            return None
        return f"{_ESTIMATED[self.objective]} is known to ±{100 * self.halfwidth:g} %"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_one_rate("trains", "set `sampler: grid`")
        if self.halfwidth is None and self.max_flops is None and self.max_cells is None:
            raise ValueError(
                "the sampler `crossing` needs an end, at least one of `halfwidth`, `max_flops` and `max_cells`; write "
                "for example `halfwidth: 0.3`"
            )
        if self.target_params is not None and self.objective != "depth":
            raise ValueError(
                f"`target_params` is for the objective depth, and the objective is {self.objective}; take it out"
            )
        return self

    def most_seeds(self, training: TrainingSection) -> int:
        """Return how many seeds of a shape may be trained."""
        return max(len(training.seed_values), self.max_seeds or MOST_SEEDS)

    def check(self, frontier: FrontierSection, training: TrainingSection) -> None:
        """Raise a `ValueError` if the depths, seeds, tokens or rates of the study do not allow the search."""
        super().check(frontier, training)
        depths, seeds = len(frontier.depth_values), len(training.seed_values)
        least = 2 if self.objective == "crossings" else 3
        if depths < least:
            raise ValueError(
                f"`search.objective` is {self.objective}, which needs {least} depths or more, and `frontier.depths` "
                f"has {depths}; add depths{', or set `search.objective: crossings`' if depths == 2 else ''}"
            )
        if self.max_seeds is not None and self.max_seeds < seeds:
            raise ValueError(
                f"`search.max_seeds` is {self.max_seeds}, fewer than the {seeds} of `training.seeds`; raise the one "
                "or lower the other"
            )
        if isinstance(training.lr, TableRate) and self.new_budgets != "none":
            raise ValueError(
                "`training.lr` is a table of the frontier's shapes, which has no rate for shapes the search may add; "
                "set `search.new_budgets: none`, or use `rule: width`"
            )

    def check_limits(self, cells: Sequence[CostedCell]) -> None:
        """Raise a `SpecError` if `max_flops` allows none of the cells."""
        cheapest = min((planned.flops for planned in cells), default=0.0)
        if self.max_flops is not None and self.max_flops < cheapest:
            raise SpecError(
                f"`search.max_flops` is {self.max_flops:g}, and the cheapest cell takes {cheapest:.3g} training FLOPs, "
                "so that the search could train none; raise it, or train on fewer tokens."
            )

    def added_shapes(self, frontier: FrontierSection) -> Sequence[FrontierShape]:
        """Return the shapes at budgets between those given."""
        return () if self.new_budgets == "none" else added_shapes(frontier)

    def trained_shares(self, cells: Sequence[CostedCell]) -> Mapping[float, float]:
        """Return the largest share of the FLOPs of all cells that the limits allow."""
        costs = sorted((planned.flops for planned in cells), reverse=True)
        most = math.fsum(costs[: self.max_cells])
        share = min(most, self.max_flops or most) / math.fsum(costs)
        return dict.fromkeys((planned.budget for planned in cells), share)

    def cell_count(self, cells: Sequence[CostedCell]) -> int:
        """Return how many of the cheapest cells the limits allow."""
        spent = accumulate(sorted(planned.flops for planned in cells)[: self.max_cells])
        return sum(flops <= (self.max_flops or math.inf) for flops in spent)

    def tokens(self, cells: Sequence[CostedCell]) -> float:
        """Return an upper bound of the training tokens."""
        longest = sorted((planned.tokens for planned in cells), reverse=True)
        return min(math.fsum(longest[: self.cell_count(cells)]), self._most(cells, "tokens"))

    def work(self, cells: Sequence[CostedCell]) -> list[tuple[float, int]]:
        """Return an upper bound of the device seconds, as work of one rank."""
        return [(self._most(cells, "device_seconds"), 1)]

    def _most(self, cells: Sequence[CostedCell], attribute: str) -> float:
        """Return an upper bound of the sum of an attribute, such as `device_seconds`, within the limits.

        Small cells take more seconds per FLOP than large ones, so that the limit of FLOPs counts at the largest rate.
        """
        longest = sorted((getattr(planned, attribute) for planned in cells), reverse=True)
        most = math.fsum(longest[: self.max_cells])
        if self.max_flops is None:
            return most
        rate: float = max(getattr(planned, attribute) / planned.flops for planned in cells)
        return min(most, self.max_flops * rate)

    def describe(self, listed: Sequence[CostedCell], more: Sequence[CostedCell]) -> list[str]:
        """Return from how many cells the search chooses, when it ends, and whether it can reach its half-width."""
        pool, shapes = [*listed, *more], {planned.cell.shape for planned in listed}
        added = {planned.cell.shape for planned in more} - shapes
        sizes = f" and {len(added)} at other budgets" if added else ""
        first = f" when {self.goal_words}, at the latest" if self.goal_words else ""
        limits = [
            *([f"{prefixed(self.max_flops)} FLOPs"] if self.max_flops else []),
            *([f"{self.max_cells:,} cells"] if self.max_cells else []),
        ]
        last = f" at {' or '.join(limits)}" if limits else " with all of them trained"
        seeds = len({planned.cell.seed for planned in pool})
        lines = [
            f"the search (crossing) chooses from {len(pool):,} cells: these {len(shapes)} shapes{sizes} with up to "
            f"{seeds} seeds each; it ends{first}{last}; totals are upper bounds"
        ]
        depths = len({shape.depth for shape in shapes})
        if self.halfwidth and self.objective != "crossings" and depths < LEAST_DEPTHS:
            lines.append(
                f"`search.halfwidth` is never reached: {depths} depths have too few crossings for an interval of "
                f"{self.objective}; give four depths or more, or use `objective: crossings`"
            )
        return lines


SECTIONS: dict[str, type[SearchBase]] = {
    "grid": GridSection,
    "optuna": OptunaSection,
    "crossing": CrossingSection,
}


def search_tag(value: Any) -> str:
    """Return the key in `SECTIONS` of a section, given as a mapping or an object."""
    name = value.get("sampler", "grid") if isinstance(value, Mapping) else getattr(value, "sampler", "grid")
    return name if name in ("grid", "crossing") else "optuna"


SearchSection = Annotated[
    Annotated[GridSection, Tag("grid")]
    | Annotated[OptunaSection, Tag("optuna")]
    | Annotated[CrossingSection, Tag("crossing")],
    Discriminator(search_tag),
]


class SensitivitySection(Section):
    """Cells next to each crossing that are trained again at other learning rates, once the search has ended."""

    lr_factors: Distinct[Annotated[float, Field(gt=0)]] = (0.5, 2.0)
    """multiples of each cell's learning rate"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 1 in self.lr_factors:
            raise ValueError("`lr_factors` has 1, which is the study itself; take it out")
        return self
