"""A note on the argument SPEC of the verbs: its study may have been run with other values."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.command_line import command
from study.spec.recorded import difference_note, file_note
from study.spec.study import load_spec


def note_other_values(verb: str, source: str, overrides: Sequence[str], results: Path) -> None:
    """Print in one line on stderr how a study was run if its spec is another one, and the command that takes that."""
    spec = load_spec(source, overrides, results)
    given = {text.partition("=")[0].strip() for text in overrides}
    note = file_note(source, overrides, spec, results) or difference_note(spec, given, results)
    if note:
        words, other = note
        text = f"note: {words}. To take these: {command(verb, other, results=results)}"
        Console(stderr=True, highlight=False).print(Text(text, style="yellow"), soft_wrap=True)
