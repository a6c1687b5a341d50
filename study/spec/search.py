"""The sections `search` and `sensitivity`. Each sampler is one subclass of `Sampler`, registered by `register`."""

import importlib
import math
import pkgutil
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator, model_validator
from pydantic_core import InitErrorDetails

from study.spec.frontier import shapes
from study.spec.section import Section, Seed, refuse_repeats

#: The quantities that a search can estimate.
ObjectiveName = Literal["depth", "b", "crossings"]
#: The package whose modules register the built-in samplers. It is above this one, so it is named by a string.
BUILT_IN = "study.search.samplers"

REGISTRY: dict[str, "type[Sampler]"] = {}
"""Samplers by name; `samplers` adds the built-in ones."""


class Sampler(Section):
    """The choice of cells to train, their order, and the multiples of the rule's learning rate.

    A subclass is one sampler: its keys of the section `search`, their checks, its text in the plan, and its search.
    It has a default for `sampler`, its name. The defaults are those of a sampler that trains every cell. A plan is a
    `study.plan.Plan`, a spec a `StudySpec`.
    """

    is_grid: ClassVar[bool] = False
    """Whether every cell is trained, so that there is nothing to search."""
    chooses_cells: ClassVar[bool] = False
    """Whether single cells are chosen, also of shapes and seeds that the spec does not list."""

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The keys of the spec that an override of a key of this section removes."""

    sampler: str = Field(
        description="grid: all depths x lr_factors; tpe, gp: Optuna picks `candidates` of them per budget; crossing: "
        "the cells with the most information about the crossings per FLOP"
    )
    lr_factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1.0,), description="multipliers on the rule's learning rate"
    )
    seed: Seed = Field(default=0, description="of the sampler")

    @model_validator(mode="before")
    @classmethod
    def _no_keys_of_other_samplers(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        foreign = [key for key in values if key not in cls.model_fields]
        for name, other in samplers().items():
            if keys := [f"`{key}`" for key in foreign if key in other.model_fields]:
                raise ValueError(
                    f"{', '.join(keys)} {'is' if len(keys) == 1 else 'are'} for the sampler `{name}`, and the sampler "
                    f"is `{cls.model_fields['sampler'].default}`; take {', '.join(keys)} out, or choose `sampler: "
                    f"{name}`"
                )
        return values

    @model_validator(mode="after")
    def _usable_factors(self) -> Self:
        if not self.lr_factors:
            raise ValueError("`lr_factors` is empty; write [1.0] to use the rule's rate as it is")
        refuse_repeats("lr_factors", self.lr_factors)
        return self

    def check(self, spec: Any) -> None:
        """Raise a `ValueError` if the sampler cannot search this study."""

    def shapes_and_seeds(self, spec: Any) -> tuple[int, int]:
        """Return the numbers of shapes and of seeds that the plan lists or the search may add."""
        return len(shapes(spec.frontier)), len(spec.training.seed_values)

    @property
    def objective_name(self) -> ObjectiveName:
        """The quantity that the search estimates."""
        return "depth"

    @property
    def wanted_halfwidth(self) -> float | None:
        """Relative half-width of the interval at which the search ends; None if it does not end by one."""
        return None

    def more_cells(self, planner: Any, listed: Any) -> tuple[list[Any], list[str]]:
        """Return cells the search may train besides those of the `listed` shapes, and notes on shapes it cannot add."""
        return [], []

    def check_cells(self, cells: Collection[Any]) -> None:
        """Raise a `SpecError` if the limits of the search allow none of the planned cells."""

    def plan_json(self) -> dict[str, Any]:
        """The limits of the search, as keys of the plan's JSON."""
        return {"candidates": None, "stop_when": None, "max_flops": None, "max_cells": None}

    def trained_shares(self, plan: Any) -> dict[float, float]:
        """Return the expected share of each budget's cells that is trained."""
        return dict.fromkeys((planned.budget for planned in plan.cells), 1.0)

    def cell_count(self, plan: Any) -> int:
        """Return how many cells are trained, at most."""
        return round(math.fsum(plan.trained_shares[planned.budget] for planned in plan.cells))

    def plan_notes(self, plan: Any) -> list[str]:
        """Return the lines below the table of the plan that describe the search."""
        return []

    def power_notes(self) -> list[str]:
        """Return how a simulated study of all listed cells differs from this search."""
        return []

    def make_search(self, plan: Any, spec: Any, known: Any, begun: Any, workers: int) -> Any:
        """Return the `study.search.Search` of a plan; `study.search.make_search` describes the arguments."""
        raise NotImplementedError


AnySampler = TypeVar("AnySampler", bound=Sampler)


def register(sampler: type[AnySampler]) -> type[AnySampler]:
    """Make a sampler known by its name; a class decorator."""
    REGISTRY[str(sampler.model_fields["sampler"].default)] = sampler
    return sampler


def samplers() -> Mapping[str, type[Sampler]]:
    """Return all samplers by name, the built-in ones and those that were registered."""
    package = importlib.import_module(BUILT_IN)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{BUILT_IN}.{module.name}")
    return REGISTRY


def parse_search(value: Any) -> Sampler:
    """Check a section `search` by the rules of the sampler it names; `grid` if it names none.

    Raises:
        ValidationError: there is no such sampler, or its keys are wrong.
    """
    if isinstance(value, Sampler):
        return value
    name = value.get("sampler", "grid") if isinstance(value, Mapping) else "grid"
    found = samplers().get(name) if isinstance(name, str) else None
    if found is None:
        expected = ", ".join(f"'{other}'" for other in samplers())
        mistake = InitErrorDetails(
            type="literal_error", loc=("sampler",), input=name, ctx={"expected": expected}
        )
        raise ValidationError.from_exception_data("search", [mistake])
    return found.model_validate(value)


#: The section of any sampler.
SearchSection = Annotated[SerializeAsAny[Sampler], WrapValidator(lambda value, _: parse_search(value))]


class SensitivitySection(Section):
    """Cells next to each crossing that are trained again at other learning rates, once the search has ended."""

    lr_factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(0.5, 2.0), description="multiples of each cell's learning rate"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lr_factors:
            raise ValueError("`lr_factors` is empty; write [0.5, 2], or take `sensitivity` out")
        refuse_repeats("lr_factors", self.lr_factors)
        if 1 in self.lr_factors:
            raise ValueError("`lr_factors` has 1, which is the study itself; take it out")
        return self
