"""Stand-ins for parts a test or a benchmark does not look at."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from study.plan.cells import PlannedCell
from study.plan.rows import COLUMNS, Row
from trainables.layout import Layout
from trainables.progress import Progress, Result


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


def stub_row(planned: PlannedCell, loss: float | None, share: float = 1.0, status: Any = None) -> Row:
    """The row of a cell that was not trained; without a loss it has diverged."""
    record = planned.row()
    return Row(
        cell=planned.cell.key,
        name=planned.title,
        protocol="p",
        purpose=planned.purpose,
        status=status or ("diverged" if loss is None else "done"),
        **{name: record[name] for name in COLUMNS if name in record},
        vocabulary=planned.costs.planner.layouts.vocabulary,
        data_key=planned.cell.data_key,
        loss=loss,
        trained_share=share,
    )


def in_layout(planned: PlannedCell, layout: Layout) -> PlannedCell:
    """The cell in a layout that the plan did not choose."""
    return replace(planned, costs=replace(planned.costs, given=layout))


class Cells:
    """A source that gives its cells in order, and remembers what it was told of each: the loss, once."""

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        self.cells, self.told = list(cells), dict[str, float | None]()

    @property
    def done(self) -> bool:
        return not self.cells

    def take(self) -> PlannedCell | None:
        return self.cells.pop(0) if self.cells else None

    def tell(self, row: Row) -> None:
        assert row.cell not in self.told
        self.told[row.cell] = row.loss


class Recorder:
    """A `study.run.cell_queue.CellRecorder` that keeps the events: kind, seed of the cell, text."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int | None, str]] = []

    def notice(self, text: str) -> None:
        self.events.append(("notice", None, text))

    def started(self, planned: PlannedCell) -> None:
        self.events.append(("started", planned.cell.seed, ""))

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        self.events.append(("progress", planned.cell.seed, ""))

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        self.events.append(("ended", planned.cell.seed, ""))
        return stub_row(planned, result.loss)

    def failed(self, planned: PlannedCell, reason: str) -> Row:
        self.events.append(("failed", planned.cell.seed, reason))
        return stub_row(planned, None, status="failed")

    def retried(self, planned: PlannedCell, reason: str) -> None:
        self.events.append(("retried", planned.cell.seed, reason))

    def of(self, kind: str) -> dict[int | None, str]:
        """The last text of each cell's events of one kind."""
        return {seed: reason for event, seed, reason in self.events if event == kind}
