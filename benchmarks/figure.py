"""One measured figure, its rival where it has one, and its limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value that must not exceed its limit, where it has one; a ratio names its rival in the same run."""

    what: str
    value: float
    unit: str
    limit: float | None
    ours: str = ""
    rival: str = ""

    @property
    def over(self) -> bool:
        return self.limit is not None and self.value > self.limit
