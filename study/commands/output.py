"""The output of the verbs: JSON documents, sentences with a value to copy, paths."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from analysis.tables import Column, Table
from study.errors import SpecError
from study.results.tables import rich_table

#: Columns of output that goes to a file or a pipe.
FILE_COLUMNS = 120


def show(document: object, view: RenderableType, *, as_json: bool) -> None:
    """Print one JSON document, or its view for the terminal."""
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        # A file has no width; rich would take 80 columns.
        is_file = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        console = Console(highlight=False, width=FILE_COLUMNS if is_file else None)
        console.print(view, soft_wrap=isinstance(view, Text))


def text_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]
) -> RenderableType:
    """Return a table for the terminal; the columns in `left` are aligned to the left, the others to the right."""
    return rich_table(Table(title, tuple(Column(name, right=name not in left) for name in names), rows))


def say(text: str, value: object) -> None:
    """Print a sentence and a value to copy, without markup and on one line."""
    Console(highlight=False).print(Text.assemble(text, (str(value), "bold")), soft_wrap=True)


def relative(path: Path) -> Path:
    """Return a path relative to the working folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def refuse_file(folder: Path, option: str) -> None:
    """Raise a `SpecError` if an option names a file instead of a folder."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{option} {folder} is a file; name a folder, existing or not.")
