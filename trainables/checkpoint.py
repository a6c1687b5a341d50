"""Checkpoints of a cell: saved whole or not at all, found again after a kill, only the newest two kept."""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from trainables.progress import Evaluation, Point

KEEP = 2
#: Written last, with the size of every other file: a checkpoint without it, or of other sizes, does not count.
MARKER = "complete.json"


class TrainingState(BaseModel):
    """Where a cell stands, beside its weights, optimizer and schedule."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    cell: str
    step: int
    train_seconds: float
    first_loss: float | None
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]


def save(engine: Any, folder: Path, state: TrainingState) -> str | None:
    """Save engine and state under `folder`; return a note for the row if the disk was full, else None.

    A full disk costs the checkpoint, not the training: what was half written is removed and the cell goes on.
    """
    tag = f"step-{state.step:09d}"
    target = folder / tag
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        engine.save_checkpoint(
            str(folder),
            tag=tag,
            client_state={"interplay": state.model_dump_json(), "rng": torch.get_rng_state()},
            save_latest=False,
        )
        sizes = {p.name: p.stat().st_size for p in target.iterdir()}
        marker = target / (MARKER + ".part")
        with marker.open("w") as file:
            file.write(json.dumps(sizes))
            file.flush()
            os.fsync(file.fileno())
        marker.replace(target / MARKER)
    except (OSError, RuntimeError) as error:
        if not _disk_full(error, folder):
            raise
        shutil.rmtree(target, ignore_errors=True)
        return f"no checkpoint at step {state.step}: the disk of {folder} is full"
    for old in _complete(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return None


def load(engine: Any, folder: Path, cell: str, notes: list[str]) -> TrainingState | None:
    """Bring the engine to the newest whole checkpoint of this cell; None where there is none.

    One that cannot be read (a disk that lost its contents) is passed over with a note for the row.
    """
    for target in _complete(folder):
        try:
            _, client = engine.load_checkpoint(str(folder), tag=target.name)
            state = TrainingState.model_validate_json(client["interplay"])
        except (
            OSError,
            EOFError,
            KeyError,
            RuntimeError,
            TypeError,
            pickle.UnpicklingError,
            ValidationError,
        ) as error:
            notes.append(f"the checkpoint {target.name} could not be read ({type(error).__name__})")
            continue
        if state.cell != cell:
            raise ValueError(f"the checkpoint {target} belongs to cell {state.cell}, not {cell}")
        torch.set_rng_state(client["rng"])
        return state
    return None


def remove(folder: Path) -> None:
    """Delete all checkpoints of a cell whose result is on record."""
    shutil.rmtree(folder, ignore_errors=True)


def _complete(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, newest first."""
    tags = sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []
    return [tag for tag in tags if _is_whole(tag)]


def _is_whole(tag: Path) -> bool:
    marker = tag / MARKER
    if not marker.is_file():
        return False
    try:
        sizes: dict[str, int] = json.loads(marker.read_text())
    except json.JSONDecodeError:
        # A power cut can leave a file of the right name and no contents.
        return False
    return all((tag / name).is_file() and (tag / name).stat().st_size == size for name, size in sizes.items())


def _disk_full(error: BaseException, folder: Path) -> bool:
    """Whether a failed write was for want of space; torch's zip writer hides the errno behind a RuntimeError."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not folder.is_dir():
        return False
    return shutil.disk_usage(folder).free < 1 << 20
