"""A copy of a study's rows in Weights & Biases: one run per cell in the group of the study."""

import importlib.util
import os
import re
import shlex
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.command_line import relative
from study.errors import SpecError
from study.plan.rows import Row
from study.spec.resources import WandbSection
from study.tracking.cell_folders import CellFolders
from study.tracking.ledger import CurveUpdate
from study.tracking.mirror import final_metrics, row_tags

#: Seconds that W&B may take to begin or to send the rest of a run, also when the process ends.
PATIENCE = 60.0
#: Seconds after which the file of a run that was ended must have its end.
END_SECONDS = 60.0
#: Bytes of a block in the file of an offline run.
BLOCK = 32768


class WandbStudy(CellFolders[Any]):
    """The runs of a study in a project; offline they are folders, which `wandb sync` sends later."""

    def __init__(self, folder: Path, study: str, experiment: str, section: WandbSection) -> None:
        """Write runs of the group `study` below `folder`, whose name must be `wandb`, as W&B names it itself."""
        super().__init__(folder)
        self.study, self.entity, self.mode = study, section.entity, section.mode
        self.project = section.project or re.sub(r"[/\\#?%:]", "-", experiment)[:128]
        self.address = f"W&B's folder {relative(folder)}"
        runs = f"{shlex.quote(str(relative(folder)))}/offline-run-*"
        self.hint = ("Send to W&B: ", f"wandb sync {runs}") if self.mode == "offline" else None

    def open(self) -> None:
        """Check that W&B is installed and, online, has an API key; a SpecError if not."""
        module = importlib.util.find_spec("wandb")
        # Without an origin it is a folder of this name, such as one that W&B has made.
        if module is None or module.origin is None:
            raise SpecError(
                "`tracking.also` names wandb, and the package wandb is not installed; install it with "
                "`pip install 'wandb>=0.31,<1'`, or take wandb out of tracking.also."
            )
        # W&B would write into the home.
        os.environ.setdefault("WANDB_DIR", str(self.folder.parent))
        os.environ.setdefault("WANDB_CACHE_DIR", str(self.folder / ".cache"))
        if self.mode == "offline":
            # Online its settings are read, of which one is the address of the user's server.
            os.environ.setdefault("WANDB_CONFIG_DIR", str(self.folder / ".config"))
            return
        import wandb

        if not wandb.login(prompt=False, verify=False):
            raise SpecError(
                "`tracking.wandb.mode` is online, and W&B has no API key here; run `wandb login`, or set "
                "WANDB_API_KEY, or set tracking.wandb.mode=offline and send the runs later."
            )

    def begin(self, part: CurveUpdate | Row) -> tuple[Any, Path]:
        """Begin the run of a cell; one of the same id that W&B has is replaced, because nothing is resumed."""
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            mode=self.mode, entity=self.entity, project=self.project, group=self.study, id=part.cell, name=part.name,
            config={name: value for name, value in part.parameters.items() if value is not None},
            dir=str(self.folder.parent), reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, init_timeout=PATIENCE,
                finish_timeout=PATIENCE, finish_timeout_raises=True, x_disable_stats=True, x_disable_meta=True,
                x_disable_machine_info=True, x_save_requirements=False,
            ),
        )  # fmt: skip
        run.define_metric("*", step_metric="step")
        # `dir` is the folder `files` in that of the run.
        return run, Path(run.dir).parent

    def log(self, writer: Any, step: int, when: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step over the metric `step`, because W&B's own steps count calls."""
        writer.log({"step": step, **metrics})

    def flush(self, writer: Any) -> None:
        """W&B's own process writes what was logged."""

    def end(self, writer: Any, row: Row | None) -> None:
        """Write the summary of a row and end its run, as failed if its cell is, or as crashed if it did not end."""
        if row is None:
            writer.finish(exit_code=255)
            return
        loss = {} if row.loss is None else {"loss": row.loss}
        writer.summary.update({**loss, **final_metrics(row), **row_tags(row)})
        writer.finish(exit_code=1 if row.status == "failed" else 0)
        if self.mode == "offline":
            _await_end(next(Path(writer.dir).parent.glob("run-*.wandb")))


def _await_end(file: Path) -> None:
    """Wait until the file of an offline run has its end, which W&B's process may write after `finish`.

    Raises:
        TimeoutError: the end is not there after `END_SECONDS`, because the disk is full or the process was killed.
    """
    deadline = time.monotonic() + END_SECONDS
    while not any(record.HasField("exit") for record in records(file)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} has no end after {END_SECONDS:.0f} s")
        time.sleep(0.02)


def records(file: Path) -> Iterator[Any]:
    """Yield the whole records in the file of an offline run.

    After a head of 7 bytes it is a log of LevelDB: blocks of 32 KiB with parts, each after its checksum, its length and
    its kind (1 is a whole record, 2 to 4 the first, middle and last parts of one).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (rest := BLOCK - at % BLOCK) < 7:
            at += rest
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if at + 7 + length > len(content):
            return
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""
