"""Stand-ins for parts a test or a benchmark does not look at."""

from collections.abc import Iterable
from typing import Any

from study.plan.cells import PlannedCell
from study.search import Outcome
from trainables.progress import Result


def stub_result(**changes: Any) -> Result:
    """The result of a cell that trained nothing."""
    values: dict[str, Any] = {
        "status": "done",
        "reason": None,
        "loss": 1.0,
        "train_loss": 1.0,
        "device": "cpu",
    }
    values |= dict.fromkeys(("step", "tokens", "params", "total_params", "memory_bytes"), 1)
    values |= {"epochs": 0.5, "vocabulary": 9, "entropy": None, "bytes_per_token": None, "train_seconds": 0.0}
    values |= {"tokens_per_second": 1.0, "flops_per_second": 1e9, "resumed_from": 0, "resumed_seconds": 0.0}
    values |= dict.fromkeys(("notes", "points", "evaluations"), ())
    return Result(**{**values, **changes})


class Cells:
    """A source that gives its cells in order, and remembers what it was told of each: the loss, once."""

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        self.cells, self.told = list(cells), dict[str, float | None]()

    @property
    def done(self) -> bool:
        return not self.cells

    def take(self) -> PlannedCell | None:
        return self.cells.pop(0) if self.cells else None

    def tell(self, key: str, outcome: Outcome) -> None:
        assert key not in self.told
        self.told[key] = outcome.loss
