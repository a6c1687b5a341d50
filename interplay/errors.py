"""Errors that the functions of `interplay` share with the command."""

from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import InputError, OptionNeededError
from core.errors import InputError as AnalysisError

NOTE = "An option --name of the command is the argument `name` here; for --column OURS=THEIRS write OURS='THEIRS'."


@contextmanager
def explained() -> Iterator[None]:
    """Add to an error whose message names options of the command what they are in Python; also as a decorator."""
    try:
        yield
    except (InputError, AnalysisError) as error:
        if isinstance(error, OptionNeededError):
            named = [argument(option, *value.partition("=")[::2]) for option, value in error.options]
            if named:
                error.add_note(f"Here the missing arguments are {', '.join(named)}.")
        if "--" in str(error) and NOTE not in getattr(error, "__notes__", ()):
            error.add_note(NOTE)
        raise


def argument(option: str, name: str, value: str) -> str:
    """An option of the command as an argument of the functions: `--column loss=x` -> `loss='x'`."""
    return (
        f"{name}={value!r}"
        if option == "--column"
        else f"{option.removeprefix('--')}={{{name!r}: {value!r}}}"
    )
