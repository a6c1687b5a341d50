"""Base class of the sections of a spec, and helpers of several sections."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from study.errors import SpecError
from trainables.errors import some


class Section(BaseModel):
    """Base of all sections: immutable; unknown keys, infinities and booleans are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        # Pydantic would read `seeds: true` as one seed. No section has a boolean field.
        if isinstance(values, Mapping):
            for key, value in values.items():
                if isinstance(value, bool):
                    words = [str(word) for word in _allowed(cls, str(key))]
                    raise ValueError(
                        f"`{key}` is {str(value).lower()}, and no key here is true or false"
                        + (f"; allowed: {', '.join(words)}" if words else "")
                    )
        return values


def _allowed(model: type[BaseModel], key: str) -> tuple[object, ...]:
    """The values of a field that is a choice among a few words."""
    field = model.model_fields.get(key)
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


#: What the letter behind a size stands for.
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_size(value: Any) -> Any:
    """Return a size such as `2k`, `1.5M` or `7B` as a number; anything else unchanged."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s?([kMBT])", value) if isinstance(value, str) else None
    return round(float(found[1]) * _UNITS[found[2]], 3) if found else value


#: Bounds no study reaches: they turn a typing error into a refusal instead of an endless plan.
Budget = Annotated[
    float, BeforeValidator(read_size, json_schema_input_type=float | str), Field(ge=1, le=1e15)
]
Depth = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Degree = Annotated[int, Field(ge=1, le=10_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
#: The largest seed of Optuna's samplers, which use NumPy's `RandomState`.
Seed = Annotated[int, Field(ge=0, lt=2**32)]

#: Names of query parameters that hold a secret: `password`, `sslpassword`, `access_token`, `api_key`, …
SECRET = re.compile(r"passw|pwd|token|secret|credential|(api|access|account|private).?key", re.IGNORECASE)


def refuse_repeats(name: str, values: Sequence[float] | Sequence[str]) -> None:
    """Raise a `ValueError` if a list has a value more than once."""
    counts: Counter[Any] = Counter(values)
    repeated = sorted(value for value, count in counts.items() if count > 1)
    if repeated:
        shown = [value if isinstance(value, str) else f"{value:g}" for value in repeated]
        raise ValueError(f"`{name}` has {some(shown)} more than once; write each value once")


def from_environment(variable: str, section: type[Section], key: str) -> str | None:
    """Return an environment variable that replaces a key of a spec; None if it is unset or empty.

    The value must pass the checks of the key: neither may hold a secret, because both are printed and written to files.

    Raises:
        SpecError: the key does not accept the value.
    """
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        section.model_validate({key: value})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"the environment variable {variable}: {problem}.") from None
    return value
