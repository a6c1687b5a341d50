"""Commands and paths as messages show them: whole, short, and ready to paste into a shell."""

import shlex
from pathlib import Path


def relative(path: Path) -> Path:
    """Return a path relative to the working folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def command(verb: str, *words: str, results: Path | None = None) -> str:
    """Return a command of `interplay` with its arguments, quoted for a shell.

    `results`, the root of the results, is added as an option unless it is the default one.
    """
    where: list[str] = []
    if results is not None and results.resolve() != Path("results").resolve():
        where = ["--results", str(relative(results.resolve()))]
    return shlex.join(["interplay", verb, *words, *where])
