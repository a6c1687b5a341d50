"""One measured figure, its rival where it has one, and its limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value that must not exceed its limit; a ratio names the rival it was measured against in the same run."""

    what: str
    value: float
    unit: str
    limit: float
    ours: str = ""
    rival: str = ""

    @property
    def over(self) -> bool:
        return self.value > self.limit
