"""Errors that the functions of `interplay` share with the command."""

from collections.abc import Iterator
from contextlib import contextmanager

from analysis.errors import InputError as AnalysisError
from trainables.errors import InputError

NOTE = "An option --name of the command is the argument `name` here; for --column OURS=THEIRS write OURS='THEIRS'."


@contextmanager
def explained() -> Iterator[None]:
    """Add to an error whose message names options of the command what they are in Python; also as a decorator."""
    try:
        yield
    except (InputError, AnalysisError) as error:
        if "--" in str(error) and NOTE not in getattr(error, "__notes__", ()):
            error.add_note(NOTE)
        raise
