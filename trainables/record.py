"""What the weights in a folder are: the record beside HuggingFace's own files. Light: it needs no torch."""

import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainables.cell import Cell
from trainables.errors import InputError
from trainables.layout import Layout

#: The name of the record's file.
RECORD = "interplay.json"


@dataclass(frozen=True)
class Keep:
    """Where the final weights of a cell go, and what is recorded with them."""

    folder: str | Path
    """Folder or URI; made as a whole, or not at all; what was there before is replaced."""
    revision: str | None = None
    """Of the code that trained the cell."""


class FileSum(BaseModel):
    """What a file held when it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Record(BaseModel):
    """What the weights in a folder are: `interplay.json` beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """Of the cell."""
    cell: Cell
    loss: float
    """Validation loss of these very weights, nats per token."""
    step: int
    tokens: int
    vocabulary: int
    params: int
    """12·L·d²."""
    total_params: int
    entropy: float | None
    bytes_per_token: float | None
    tokenizer: Literal["bytes", "bpe"] | None
    """None where tokens are symbols and no text."""
    layout: Layout
    revision: str | None
    versions: dict[str, str]
    files: Mapping[str, FileSum]
    """Every other file of the folder, by name."""


class RecordError(InputError):
    """A folder holds no record, or one that cannot be read."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}.")
        self.what = what


def read_record(folder: Path) -> Record:
    """Return what the weights in a folder are.

    Raises:
        RecordError: the folder holds no record, or one that cannot be read.
    """
    path = folder / RECORD
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = f"{folder} holds no weights of a cell, for {path.name} cannot be read ({error.strerror})"
        raise RecordError(what, "name a folder that `--weights` has written") from error
    except (ValidationError, UnicodeDecodeError, InputError) as error:
        raise RecordError(
            f"{path} is damaged, or of another version of Interplay",
            f"remove {folder} and train the cell again with `python -m trainables CELL.json --weights DIR`",
        ) from error


def versions() -> dict[str, str]:
    """Return the versions of the libraries that decide what weights and checkpoints hold."""
    return {name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "transformers")}


def sum_files(folder: Path) -> dict[str, FileSum]:
    """Return what the files of a folder hold, by name, the record left out."""
    return {path.name: _sum(path) for path in sorted(folder.iterdir()) if path.name != RECORD}


def damage(folder: Path, record: Record) -> str | None:
    """Say which file of a folder is not what it was when it was written, and how; None where all are.

    Reads all of them: safetensors opens, and HuggingFace loads, weights in which a bit was flipped.
    """
    for name, written in record.files.items():
        path = folder / name
        try:
            found = path.stat().st_size
            # The size first: it is known at once, and says more than a checksum.
            if found != written.bytes:
                return f"{path} has {found:,} bytes and was written with {written.bytes:,}"
            if _sum(path) != written:
                return f"{path} does not hold what was written (its SHA-256 is another)"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
    return None


def _sum(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileSum(bytes=file.tell(), sha256=digest.hexdigest())


def refuse_filled(folder: Path, option: str) -> None:
    """Refuse to write into a folder that holds anything; a link is the folder it names, there or not.

    Raises:
        InputError: names the folder and the way out.
    """
    real = Path(os.path.realpath(folder))
    if real.is_dir() and not any(real.iterdir()):
        return
    if real.exists() or real.is_symlink():
        what = "holds files already" if real.is_dir() else "is a file"
        raise InputError(
            f"{option} {folder} {what}, and a model needs a folder of its own; name one that is empty or not there "
            "yet, or remove it first."
        )
