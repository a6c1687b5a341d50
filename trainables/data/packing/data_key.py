"""The identity of packed data: a hash of its content and of everything that affects it, without packing anything."""

import hashlib
import json
from pathlib import Path

from trainables.data.kind import DataKind

#: Raise it when a code change alters what is packed from the same data, so that old stores are packed again.
DATA_VERSION = 1


def data_key(data: DataKind, context: int, base: Path = Path()) -> str:
    """Return sixteen hex digits: the same content packed the same way has the same key, independent of its location.

    Files are hashed (streamed, and once per process while they do not change). A hub data set is identified by its
    name, configuration, split, revision and field, without network: name a revision to fix its content.

    Args:
        data: the data.
        context: tokens per sequence; it matters only to the hierarchy and to tasks, whose rows depend on it.
        base: folder that relative paths start from.

    Raises:
        DataError: files are missing or may not be read.
        InputError: the grammar is impossible, or it or the task does not fit the context.
    """
    return _digest(data, context, base)


def outline(data: DataKind, context: int) -> str:
    """Return sixteen hex digits of the same identity without the content and path of files.

    Two specs of different outline never have the same key.
    """
    return _digest(data, context, None)


def _digest(data: DataKind, context: int, base: Path | None) -> str:
    identity = {"version": DATA_VERSION, **data.identity(context, base)}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
