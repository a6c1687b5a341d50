"""The sections `search` and `sensitivity`: which cells of the frontier are trained, and in which order."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from study.spec.frontier import FrontierSection
from study.spec.section import Budget, Distinct, Section, Seed
from study.spec.training import TableRate, TrainingSection

#: The quantities that the sampler `crossing` can estimate.
ObjectiveName = Literal["depth", "crossings"]
#: Samplers by short names: ours for this question, and Optuna's.
OPTUNA_NAMES = ("frontier", "tpe", "gp", "random")
#: Seeds per shape that the sampler `crossing` may train, unless `search.max_seeds` sets another number.
MOST_SEEDS = 8
#: Fewest depths whose crossings give an interval of the slope and of a projected depth: two crossings do not.
LEAST_DEPTHS = 4
_ESTIMATED = {"depth": "the projected depth", "crossings": "every crossing"}


class SearchBase(Section):
    """What the sections of all samplers have in common."""

    is_grid: ClassVar[bool] = False
    """Whether every cell is trained, so that there is nothing to search."""
    chooses_cells: ClassVar[bool] = False
    """Whether single cells are chosen, also of shapes and seeds that the spec does not list."""

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

    def _check_one_rate(self, does: str, instead: str) -> None:
        if len(self.lr_factors) > 1:
            raise ValueError(
                f"the sampler `{self.sampler}` {does} at one learning rate, and `lr_factors` has "
                f"{len(self.lr_factors)}; keep one, or {instead}"
            )


class GridSection(SearchBase):
    """All depths at all budgets, with all seeds and learning rates."""

    is_grid = True

    sampler: Literal["grid"] = "grid"
    """every cell"""


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


class CrossingSection(SearchBase):
    """Single cells that say most about the objective per FLOP, until a limit is reached."""

    chooses_cells = True

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
        """Raise a `ValueError` if the depths, seeds or rates of the study do not allow the search."""
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
