"""Writing files and JSON so that a killed process never leaves half of one, and no reader meets a NaN."""

import json
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` to `path` in one step: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Same folder, because a rename is atomic only inside one file system; a random name, because two
    # processes may write the same report.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, content: str) -> Path:
    """Write UTF-8 text in one step, see `write_bytes`."""
    return write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, value: object) -> Path:
    """Write strict JSON in one step, see `strict`."""
    return write_text(path, json.dumps(strict(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def strict(value: Any) -> Any:
    """`value` as plain JSON types; NaN and the infinities, which JSON has not, become null.

    Raises:
        TypeError: for a type that has no JSON form, rather than writing its `repr`.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.ndarray):
        return [strict(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")
