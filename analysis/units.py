"""The unit in which losses are stated: nats per token, or bits per byte of the text.

Every loss, difference of losses and threshold is computed in nats per token. Losses are converted when they are
written: in sentences, tables, figures and files. So a unit changes no crossing, no interval and no recommended shape.

A dataclass marks its fields that hold losses with `field(metadata=LOSS)`, so that `times` converts all of a document.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from core.numbers import digits, scientific

Value = TypeVar("Value")

UnitName = Literal["nats per token", "bits per byte"]
#: How an option names a unit.
UnitOption = Literal["nats", "bpb"]
UNITS: Mapping[UnitOption, UnitName] = MappingProxyType({"nats": "nats per token", "bpb": "bits per byte"})

#: Metadata of a field whose numbers are losses or differences of losses.
LOSS: Mapping[str, object] = MappingProxyType({"losses": True})


@dataclass(frozen=True)
class LossUnit:
    """A unit of losses.

    Attributes:
        name: of the unit.
        per_nat: what one nat per token is in this unit.
    """

    name: UnitName = "nats per token"
    per_nat: float = 1.0

    @classmethod
    def of(cls, name: UnitName, bytes_per_token: float | None) -> Self:
        """Return the unit for text with this mean number of bytes per token, which bits per byte need."""
        if name == "nats per token":
            return cls()
        if bytes_per_token is None or not 0 < bytes_per_token < math.inf:
            raise ValueError(f"bits per byte need the bytes per token, which are {bytes_per_token}")
        return cls(name, 1 / (math.log(2) * bytes_per_token))

    @property
    def short(self) -> str:
        """The unit behind a number in a sentence."""
        return "nats" if self.name == "nats per token" else self.name


NATS = LossUnit()

#: What a budget of training is counted in: floating-point operations, or minutes at the measured speed of each shape.
BudgetUnit = Literal["FLOPs", "minutes"]


def budget_number(value: float, unit: BudgetUnit, places: int = 2) -> str:
    """Return a budget of training as it stands in a table: `1.5e18`, or `5.0 min`."""
    return scientific(value, places) if unit == "FLOPs" else minutes_text(value)


def budget_text(value: float, unit: BudgetUnit) -> str:
    """Return a budget of training as it stands in a sentence: `1.5e18 FLOPs`, or `5.0 min`."""
    return f"{scientific(value)} FLOPs" if unit == "FLOPs" else minutes_text(value)


def minutes_text(minutes: float) -> str:
    """Return a duration with two digits, in seconds up to 100, else in minutes up to 100, else in hours."""
    if 60 * minutes < 100:
        return f"{digits(60 * minutes)} s"
    return f"{digits(minutes)} min" if minutes < 100 else f"{digits(minutes / 60)} h"


def bits_per_byte(nats: float | None, bytes_per_token: float | None) -> float | None:
    """Return a loss in nats per token as bits per byte of the text; None if it or its bytes per token are not known."""
    if nats is None or bytes_per_token is None:
        return None
    return LossUnit.of("bits per byte", bytes_per_token).per_nat * nats


@runtime_checkable
class HasLosses(Protocol):
    """A value whose losses are not whole fields."""

    def times(self, factor: float) -> Self:
        """Return the value with all losses multiplied."""


def times(value: Value, factor: float) -> Value:
    """Return nested dataclasses and tuples with all fields that are marked as losses multiplied by `factor`."""
    multiplied: Value = value if factor == 1 else _times(value, factor)
    return multiplied


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, HasLosses):
        return value.times(factor)
    if isinstance(value, tuple):
        return tuple(_times(item, factor) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.metadata.get("losses"):
            changed[field.name] = _multiplied(item, factor)
        elif (new := _times(item, factor)) is not item:
            changed[field.name] = new
    return replace(value, **changed)


def _multiplied(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_multiplied(item, factor) for item in value)
    return None if value is None else value * factor
