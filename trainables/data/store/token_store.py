"""The packed token store, and reading one that exists."""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.kind import DataKind, data_key
from trainables.data.sources.files import file_sha256, unreadable

Tokens = NDArray[Any]

_LOG = logging.getLogger(__name__)
#: Files of a store other than its manifest, by the name under which the manifest has their SHA-256.
FILES = {"train": "train.bin", "validation": "validation.bin", "tokenizer": "tokenizer.json"}


@dataclass(frozen=True)
class TokenStore:
    """Packed tokens of one data set.

    Attributes:
        path: folder of the store.
        train: read-only memory map of the training ids, unsigned integers [tokens].
        validation: the same for the fixed validation set.
        entropy: exact entropy of the data in nats per predicted token (hierarchy, and 0 for tasks); None if unknown.
        bytes_per_token: mean bytes of text per validation token, so that bits per byte is
            loss / ln 2 / bytes_per_token; None if tokens are not text.
        row: tokens per row if the data is made of rows (hierarchy: context + 1, tasks: 2·context); None for
            running text.
        boundaries: the ids that a text begins after and ends with; None where there is no such id.
        targets: whether a row is inputs and then a target for each, with the id one past the vocabulary for a target
            that is not scored; else targets are the inputs one token later.
    """

    path: Path
    train: Tokens
    validation: Tokens
    manifest: dict[str, Any]
    vocabulary: int
    entropy: float | None
    bytes_per_token: float | None
    row: int | None
    boundaries: tuple[int | None, int | None]
    targets: bool = False


def read_store(path: Path, data: DataKind, context: int, key: str) -> TokenStore | None:
    """Return the store at a path; None if there is none, or it is damaged or not what the spec describes.

    Raises:
        DataError: the system does not let us read it.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if not describes(manifest, data, context, key):
            return None
        dtype = np.dtype(manifest["dtype"])
        if dtype.kind != "u":
            # Objects would be pointers that whoever wrote the store has chosen.
            raise ValueError(f"its tokens are of {dtype}")
        damaged = _damaged_file(path, manifest, dtype.itemsize)
        if damaged:
            _LOG.warning("%s is damaged", damaged)
            return None
        # An empty file cannot be mapped.
        train, validation = (
            np.memmap(path / FILES[split], dtype, "r") if manifest["tokens"][split] else np.empty(0, dtype)
            for split in ("train", "validation")
        )
        fields = {name: manifest[name] for name in ("vocabulary", "entropy", "bytes_per_token", "row")}
        # End of text stands between documents and so precedes each of them.
        end = manifest.get("end_of_text")
        fields["boundaries"] = data.boundaries if end is None else (end, end)
        return TokenStore(path, train, validation, manifest, targets=manifest.get("targets", False), **fields)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path / "manifest.json", error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("%s has no readable manifest (%s)", path, error)
        return None


def describes(manifest: Mapping[str, Any], data: DataKind, context: int, key: str) -> bool:
    """Return whether a manifest is of the data that the spec describes."""
    identity = (manifest["version"], manifest["key"], manifest["outline"])
    return identity == (data.version, key, data_key(data, context, None))


def _damaged_file(path: Path, manifest: Mapping[str, Any], itemsize: int) -> Path | None:
    """The first file that is not as it was packed: of another size or, if newer than the manifest, another hash."""
    written = (path / "manifest.json").stat().st_mtime_ns
    hashed = False
    for name, sha256 in manifest["sha256"].items():
        file = path / FILES[name]
        status = file.stat()
        if name in manifest["tokens"] and status.st_size != manifest["tokens"][name] * itemsize:
            return file
        if status.st_mtime_ns > written:
            if file_sha256(file) != sha256:
                return file
            hashed = True
    if hashed:
        # Made newer, so that each file is hashed once; in another user's read-only store, once per process.
        with contextlib.suppress(OSError):
            os.utime(path / "manifest.json")
    return None
