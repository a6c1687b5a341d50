"""A copy of a study's rows for TensorBoard: one event file per cell, with its curves, final values and parameters."""

import shlex
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.command_line import relative
from study.plan.rows import Row
from study.tracking.cell_folders import CellFolders
from study.tracking.ledger import CurveUpdate
from study.tracking.mirror import final_metrics, last_step


@dataclass
class _EventFile:
    """The event file of a cell."""

    records: Any
    parameters: Mapping[str, str | int | float | None]


class TensorBoardStudy(CellFolders[_EventFile]):
    """The event files of a study, in a folder per cell. TensorBoard need not be installed to write them."""

    def __init__(self, folder: Path) -> None:
        """Write below `folder`."""
        super().__init__(folder)
        self.address = f"TensorBoard's folder {relative(folder)}"
        self.hint = ("TensorBoard: ", f"tensorboard --logdir {shlex.quote(str(relative(folder)))}")

    def begin(self, part: CurveUpdate | Row) -> tuple[_EventFile, Path]:
        """Begin the event file of a cell."""
        # Not a `SummaryWriter`: it writes from a thread, which hides a full disk, and puts parameters into a file of
        # their own.
        from tensorboardX import RecordWriter

        folder, now = self.folder / part.cell, time.time()
        folder.mkdir(parents=True)
        records = RecordWriter(str(folder / f"events.out.tfevents.{now:.0f}.{socket.gethostname()}"))
        file = _EventFile(records, part.parameters)
        _write(file, now, file_version="brain.Event:2")
        return file, folder

    def log(self, writer: _EventFile, step: int, when: float, metrics: Mapping[str, float]) -> None:
        """Write one event per metric."""
        from tensorboardX.summary import scalar

        for name, value in metrics.items():
            _write(writer, when, step=step, summary=scalar(name, value))

    def flush(self, writer: _EventFile) -> None:
        """Write the events to the disk."""
        writer.records.flush()

    def end(self, writer: _EventFile, row: Row | None) -> None:
        """Write the final values of a row as events of its last step, its parameters and texts as hyperparameters."""
        from tensorboardX.summary import hparams

        if row:
            final = {**final_metrics(row), **({"loss": row.loss} if row.loss is not None else {})}
            missing = final if not row.evaluations else {k: v for k, v in final.items() if k != "loss"}
            self.log(writer, last_step(row), row.ended, missing)
            texts = {"status": row.status, "reason": row.reason, "purpose": row.purpose or None}
            # The loss first: the table of hyperparameters has its columns in this order.
            metrics = {name: final[name] for name in sorted(final, key=lambda name: name != "loss")}
            for summary in hparams({**writer.parameters, **texts}, metrics):
                _write(writer, row.ended, summary=summary)
            self.flush(writer)
        writer.records.close()


def _write(file: _EventFile, when: float, **content: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    file.records.write(Event(wall_time=when, **content).SerializeToString())
