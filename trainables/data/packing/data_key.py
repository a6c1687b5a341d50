"""The identity of packed data: a hash of its content and of everything that affects it, without packing anything."""

import hashlib
import json
from pathlib import Path

from trainables.data.kind import DataKind


def data_key(data: DataKind, context: int, base: Path | None = Path()) -> str:
    """Return sixteen hex digits: the same content packed the same way has the same key, independent of its location.

    Files are hashed (streamed, and once per process while they do not change). A hub data set is identified by its
    name, configuration, split, revision and field, without network: name a revision to fix its content.

    Args:
        data: the data.
        context: tokens per sequence; only rows (the hierarchy and tasks) depend on it.
        base: folder that relative paths start from. None leaves out the content of files; specs whose keys then differ
            never have the same key.

    Raises:
        DataError: files are missing or may not be read.
        InputError: the grammar is impossible, or it or the task does not fit the context.
    """
    return digest({"version": data.version, **data.identity(context, base)})


def digest(value: object) -> str:
    """Sixteen hex digits of the SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
