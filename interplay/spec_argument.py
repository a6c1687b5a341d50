"""The argument SPEC of the verbs: a preset, a YAML file, or a study of the results folder."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.command_line import command
from study.spec.recorded import difference_note, file_note
from study.spec.study import StudySpec, load_spec


def load(verb: str, source: str, overrides: Sequence[str], results: Path) -> StudySpec:
    """Load the spec of a verb, and note on stderr if its study was run with other values."""
    spec = load_spec(source, overrides, results)
    note_other_values(verb, source, overrides, spec, results)
    return spec


def note_other_values(
    verb: str, source: str, overrides: Sequence[str], spec: StudySpec, results: Path
) -> None:
    """Print in one line on stderr how a study was run if its spec is another one, and the command that takes that."""
    given = {text.partition("=")[0].strip() for text in overrides}
    found = file_note(source, overrides, spec, results) or difference_note(spec, given, results)
    if found:
        words, other = found
        text = f"note: {words}. To take these: {command(verb, other, results=results)}"
        Console(stderr=True, highlight=False).print(Text(text, style="yellow"), soft_wrap=True)
