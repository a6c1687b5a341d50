"""Base class of the sections of a spec, and helpers of several sections."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from core.errors import shortened, some
from core.numbers import parse_number
from study.errors import SpecError

Item = TypeVar("Item")


class Section(BaseModel):
    """Base of all sections: immutable; unknown keys, infinities and booleans are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        # Pydantic would read `seeds: true` as one seed. It refuses booleans itself where only a few words are allowed.
        for key, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(str(key))
            if isinstance(value, bool) and field and get_origin(field.annotation) is not Literal:
                raise ValueError(f"`{key}` is {str(value).lower()}, and no key here is true or false")
        return values


def read_size(value: Any) -> Any:
    """Return a size such as `2k`, `1.5M` or `7B` as a number; a value that is no text unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_number(value)
    except ValueError:
        raise ValueError(f"{shortened(value)} is no size; write it as 2000, 2k or 7B") from None


Size = Annotated[float, BeforeValidator(read_size, json_schema_input_type=float | str)]
#: Bounds no study reaches: they turn a typing error into a refusal instead of an endless plan.
Budget = Annotated[Size, Field(ge=1, le=1e15)]
#: Training FLOPs of one cell.
Compute = Annotated[Size, Field(ge=1, le=1e30)]
#: Training minutes of one cell.
Minutes = Annotated[float, Field(gt=0, le=1e7)]
Depth = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
#: The largest seed of Optuna's samplers, which use NumPy's `RandomState`.
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def shape_named(name: str) -> tuple[int, int]:
    """Return depth and width of a shape such as `L2-d16`; a ValueError if the name is none."""
    match = re.fullmatch(r"L([1-9]\d{0,4})-d([1-9]\d{0,6})", name)
    if match is None:
        raise ValueError(f"`{shortened(name)}` names no shape; write depth and width as `L2-d16`")
    return int(match[1]), int(match[2])


def shape_name(depth: int, width: int) -> str:
    """Return the name of a shape, such as `L2-d16`."""
    return f"L{depth}-d{width}"


def distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the values; raise a `ValueError` if one is there more than once."""
    if repeated := [value for value, count in Counter[Any](values).items() if count > 1]:
        shown = [value if isinstance(value, str) else f"{value:g}" for value in repeated]
        raise ValueError(f"{some(shown)} is there more than once; write each value once")
    return values


def _listed(values: tuple[Item, ...]) -> tuple[Item, ...]:
    if not values:
        raise ValueError("the list is empty; give at least one value")
    return distinct(values)


#: A list with at least one value and each value once.
Distinct = Annotated[tuple[Item, ...], AfterValidator(_listed)]


def from_environment(variable: str, section: type[Section], key: str) -> str | None:
    """Return an environment variable that replaces a key of a spec; None if it is unset or empty.

    The value must pass the checks of the key: neither may hold a secret, because both are printed and written to files.

    Raises:
        SpecError: the key does not accept the value.
    """
    if not (value := os.environ.get(variable)):
        return None
    try:
        section.model_validate({key: value})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"the environment variable {variable}: {problem}.") from None
    return value
