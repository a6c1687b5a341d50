"""What the runner asks for cells and what it says of them: ask, tell, done. Every search is one of these."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from study.plan.plan import PlannedCell


@dataclass(frozen=True)
class Outcome:
    """What the search needs to know of an ended cell: its loss, or None where it diverged or failed."""

    loss: float | None
    loss_se: float | None = None
    """Standard error of a loss that is a forecast, in nats; None for a loss that was measured."""
    share: float = 1.0
    """Of its steps that were trained."""
    status: Literal["done", "stopped", "diverged", "failed"] = "done"
    """How it ended; where it has no loss, `done` is taken for diverged."""

    @property
    def kind(self) -> str:
        """How it ended."""
        lost = self.loss is None or not math.isfinite(self.loss)
        return "diverged" if lost and self.status == "done" else self.status


@dataclass(frozen=True)
class Candidate:
    """A depth and a learning-rate factor of one budget, with one cell a seed."""

    budget: float
    depth: int
    lr_factor: float
    cells: tuple[PlannedCell, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its cells, one a seed."""
        return tuple(planned.cell.key for planned in self.cells)


class Source(Protocol):
    """What the runner asks for cells: `take` gives the next one, None to wait, and `done` says there are no more."""

    def take(self) -> PlannedCell | None:
        """Return the next cell to run, or None where nothing can be started now."""

    def tell(self, key: str, outcome: Outcome) -> None:
        """Say how a cell ended."""

    @property
    def done(self) -> bool:
        """Whether no cell will ever be given again."""
