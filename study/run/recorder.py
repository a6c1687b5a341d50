"""Records the events of cells: rows in the ledger, curves in the tracker."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from analysis.units import bits_per_byte
from study.plan import Plan, PlannedCell
from study.plan.rows import COLUMNS, CellFields, Row, Status
from study.revision import revision
from study.run.trial import trunk_folder
from study.spec.devices import DEVICES
from study.tracking.ledger import CurveUpdate
from study.tracking.mirror import Mirror
from study.tracking.study_paths import StudyPaths
from trainables.progress import Progress, Result
from trainables.storage.storage import discard, joined

#: Fields of a row that its cell's result has by the same name.
AS_MEASURED = (
    *("train_seconds", "tokens_per_second", "memory_bytes", "epochs", "start", "device", "trunk_steps"),
    *("resumed_from", "notes", "points", "evaluations"),
)


class Recorder:
    """A `study.run.cell_queue.CellRecorder` that makes rows of events for ledger and tracker."""

    def __init__(self, plan: Plan, rows: dict[str, Row], mirror: Mirror, paths: StudyPaths) -> None:
        """Begin with the rows of earlier runs, to which those of this one are added."""
        self.plan, self.rows, self.mirror, self.paths = plan, rows, mirror, paths
        self.ledger, self.unfinished = paths.ledger, paths.unfinished
        self.revision = revision()
        self.trained = 0
        self.wall_seconds = 0.0
        """Seconds from the start of Ray to the end of the last trial."""
        self.train_seconds = 0.0
        """Sum over the ranks of all trials of the time in their own training steps and evaluations."""
        self._last_end = max((row.ended for row in rows.values()), default=0.0)

    def started(self, planned: PlannedCell) -> None:
        """Record that a cell has started, or starts again after its trial was lost."""
        key, row = planned.cell.key, self.rows.get(planned.cell.key)
        lost = self.unfinished.lost_trials(key) or list(row.lost if row else ())
        self.unfinished.start(key, lost)
        self._send(planned, lost=tuple(lost))

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """Send a part of a running cell's curve."""
        points, evaluations = list(progress.points), list(progress.evaluations)
        self._send(planned, points=points, evaluations=evaluations, start=progress.start)

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        """Record and return the row of a cell that is done or diverged."""
        self.trained += 1
        self.train_seconds += (result.train_seconds - result.resumed_seconds) * planned.layout.ranks
        row = self._record(planned, result.status, result.reason, result)
        discard(joined(self.paths.checkpoints, planned.cell.key))
        trunk = planned.cell.trunk or ""
        if trunk in self.plan.trunks and has_ended(self.plan.trunks[trunk], self.rows):
            discard(joined(self.paths.checkpoints, trunk_folder(trunk)))
        return row

    def failed(self, planned: PlannedCell, reason: str) -> Row:
        """Record and return the row of a cell that failed and is not tried again in this run."""
        return self._record(planned, "failed", reason, None)

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """Record that a trial of a cell was lost, at once: the driver may be stopped before the cell ends."""
        self.unfinished.lose(planned.cell.key, reason)
        self._send(planned, lost=tuple(self.unfinished.lost_trials(planned.cell.key)))

    def notice(self, text: str) -> None:
        """Record nothing: a sentence about the run is for those who watch it."""

    def _send(self, planned: PlannedCell, **parts: Any) -> None:
        parameters = CellFields(**cell_fields(self.plan, planned)).parameters
        self.mirror.put(CurveUpdate(planned.cell.key, planned.title, parameters, **parts))

    def _record(self, planned: PlannedCell, status: Status, reason: str | None, result: Result | None) -> Row:
        # In milliseconds, and never the same twice: a search resumes from the rows in this order.
        self._last_end = max(round(time.time(), 3), round(self._last_end + 0.001, 3))
        row = Row(
            cell=planned.cell.key,
            name=planned.title,
            study=self.paths.name,
            protocol=self.plan.protocol,
            purpose=planned.purpose,
            status=status,
            reason=reason,
            ended=self._last_end,
            lost=tuple(self.unfinished.lost_trials(planned.cell.key)),
            revision=self.revision,
            **cell_fields(self.plan, planned),
            **(measured(self.plan.device, planned, result) if result else {}),
        )
        self.ledger.put(row)
        self.mirror.ended(row)
        self.unfinished.end(row.cell)
        self.rows[row.cell] = row.without_curves()
        return row


def has_ended(members: Iterable[PlannedCell], rows: Mapping[str, Row]) -> bool:
    """Whether all cells of a trunk have ended; failed ones are tried again."""
    of_members = (rows.get(planned.cell.key) for planned in members)
    return all(row is not None and row.status != "failed" for row in of_members)


def cell_fields(plan: Plan, planned: PlannedCell) -> dict[str, Any]:
    """Return the `CellFields` of a planned cell by name."""
    cell, record = planned.cell, planned.row()
    return {
        **{name: record[name] for name in COLUMNS if name in record},
        "vocabulary": plan.vocabulary,
        "data_key": cell.data_key,
        "recipe": {
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in cell.recipe.model_dump(mode="json").items()
        },
    }


def measured(device: str, planned: PlannedCell, result: Result) -> dict[str, Any]:
    """Return the fields of a row that describe the training of its cell."""
    peak = planned.layout.ranks * DEVICES[device].peak[planned.cell.recipe.precision]
    done = result.status == "done"
    loss = result.loss if done else None
    return {
        **{name: getattr(result, name) for name in AS_MEASURED},
        "loss": loss,
        "bits_per_byte": bits_per_byte(loss, result.bytes_per_token),
        "utilisation": result.flops_per_second / peak,
        "trained_share": result.step / planned.cell.recipe.steps,
        "measures": result.evaluations[-1].measures if done and result.evaluations else {},
    }
