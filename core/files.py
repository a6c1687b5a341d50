"""Write files in one step and sync them; convert dataclasses to strict JSON and back."""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from core.errors import InputError

Value = TypeVar("Value")


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
    """Write strict JSON in one step, see `to_json`."""
    return write_text(path, json.dumps(to_json(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def fsync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_files(folder: Path) -> None:
    """Sync every file of a folder to disk, so that a later rename cannot survive a power cut without its contents."""
    for path in folder.iterdir():
        fsync(path)


def to_json(value: Any) -> Any:
    """Convert `value` to plain JSON types.

    A dataclass becomes an object with its fields, and with the properties that its class names in `JSON_PROPERTIES`.
    The key of a field is its name, or `json` of its metadata.
    NaN, the infinities and integers beyond the range of a double become null, because JSON has no such numbers.

    Raises:
        TypeError: the type has no JSON form.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if is_dataclass(value):
        keys = {field.name: field.metadata.get("json", field.name) for field in fields(value)}
        keys |= {name: name for name in getattr(value, "JSON_PROPERTIES", ())}
        return {key: to_json(getattr(value, name)) for name, key in keys.items()}
    # An array or a number of NumPy, which this module does not import: an audit needs none.
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, int | float):
        # A comparison with NaN is false.
        return value if abs(value) <= sys.float_info.max else None
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")


def from_json(cls: type[Value], value: object, name: str) -> Value:
    """Build the dataclass `cls` from JSON types; the inverse of `to_json`. Unknown keys are ignored.

    Raises:
        InputError: a key is missing or a value has another type; the document is then not a `name`.
    """
    try:
        # JSON lists are tuples here and whole numbers may be floats, which only the strict JSON mode allows.
        return TypeAdapter(cls).validate_json(json.dumps(to_json(value)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        message = first["msg"].removeprefix("Value error, ")
        text = f"This is not a {name}: {where}: {message} (it is {first['input']!r:.80})."
        raise InputError(text) from error
