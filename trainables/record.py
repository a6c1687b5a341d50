"""The record of exported weights, stored in the folder of HuggingFace's files. Imports no torch."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from core.errors import InputError
from trainables.cell import Cell, Frozen
from trainables.layout import Layout
from trainables.storage.storage import plain_name

#: Which tokenizer text has: `file` is the user's own.
Tokenization = Literal["bytes", "bpe", "file"]
#: The name of the record's file.
RECORD = "interplay.json"


@dataclass(frozen=True)
class Keep:
    """The folder or URI that the final weights of a cell replace atomically, and the revision of the code."""

    folder: str | Path
    revision: str | None = None


#: A record that is read from shared storage names no file outside its folder.
PlainName = Annotated[str, AfterValidator(plain_name)]


class FileSum(Frozen):
    """Size and SHA-256 of a file when it was written."""

    bytes: int
    sha256: str


class Record(Frozen):
    """The contents of `interplay.json`: the cell and training that gave the weights.

    `loss` is theirs on the validation set, in nats per token; `params` is N, see `Shape.budget_params`; `tokenizer` is
    None if tokens are symbols; `files` has all other files of the folder by name.
    """

    key: str
    cell: Cell
    loss: float
    step: int
    tokens: int
    vocabulary: int
    params: int
    total_params: int
    entropy: float | None
    bytes_per_token: float | None
    tokenizer: Tokenization | None
    layout: Layout
    revision: str | None
    versions: dict[str, str]
    files: Mapping[PlainName, FileSum]


class RecordError(InputError):
    """A folder has no readable record."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}.")
        self.what = what


def read_record(folder: Path) -> Record:
    """Read the record of a folder of weights; RecordError if that fails."""
    path = folder / RECORD
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        what = f"{folder} holds no weights of a cell: {path.name} cannot be read ({error.strerror})"
        raise RecordError(what, "use a folder that `--weights` has written") from error
    except ValueError as error:
        raise RecordError(
            f"{path} is damaged, or of another version of Interplay",
            f"remove {folder} and train the cell again with `python -m trainables CELL.json --weights DIR`",
        ) from error


def versions() -> dict[str, str]:
    """Return the versions of the libraries that determine the contents of weights."""
    return {name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "transformers")}


def sum_files(folder: Path) -> dict[str, FileSum]:
    """Return size and SHA-256 of a folder's files by name, without the record."""
    return {path.name: _sum(path) for path in sorted(folder.iterdir()) if path.name != RECORD}


def damage(folder: Path, record: Record) -> str | None:
    """Return how a folder differs from its record, else None; HuggingFace loads flipped bits without an error."""
    for name, written in record.files.items():
        path = folder / name
        try:
            hash_of_file = _sum(path)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if hash_of_file.bytes != written.bytes:
            return f"{path} has {hash_of_file.bytes:,} bytes and was written with {written.bytes:,}"
        if hash_of_file != written:
            return f"{path} differs from what was written (other SHA-256)"
    return None


def _sum(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileSum(bytes=file.tell(), sha256=digest.hexdigest())


def refuse_filled(folder: Path, option: str) -> None:
    """Raise an InputError if a folder to write to is a file or is not empty; links are followed.

    `option` is the option with the folder, as the reader gave it.
    """
    real = folder.resolve()
    if real.exists() and not (real.is_dir() and not any(real.iterdir())):
        what = "holds files already" if real.is_dir() else "is a file"
        raise InputError(
            f"{option} {what}, and a model needs its own folder; name an empty or new one, or remove it first."
        )
