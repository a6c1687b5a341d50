"""`interplay run`: train the missing cells of a study or series, and print the next step."""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from study.commands import series
from study.commands.output import refuse_file, relative, say
from study.errors import SpecError
from study.spec.study import StudySpec, load_spec
from study.tracking.study_paths import OtherStudyError

#: Exit statuses: 0 done, 1 some cells failed, 130 stopped by the user (128 + SIGINT).
FAILED, STOPPED = 1, 130


def run(spec: str, overrides: Sequence[str], results: Path, default_results: Path) -> int:
    """Run a study or series and return the exit status; printed commands name another than the default folder."""
    from study.tracking.mlflow_store import tracking_uri

    loaded = load_spec(spec, overrides)
    refuse_file(results, "--results")
    tracking_uri(loaded.tracking.uri, results)  # refuses a folder MLflow cannot use before anything is made
    where = [] if results == default_results else ["--results", str(results)]
    again, status = (shlex.join([*program(), verb, spec, *overrides, *where]) for verb in ("run", "status"))
    run_any = _run_study if loaded.vary is None else series.run
    try:
        failed, empty = run_any(loaded, results, Console(highlight=False))
    except OtherStudyError as error:
        new = _own_folder(loaded, overrides, results, shares=error.shares)
        own = shlex.join([*program(), "run", spec, *new, *where])
        shared = ", with the finished cells of both" if error.shares else ""
        raise SpecError(f"{error} Run it in a folder of its own{shared}: {own}") from error
    if failed is None:
        say("Stopped. Nothing is lost; resume with: ", again)
        return STOPPED
    if failed:
        first = next(iter(failed.values())).strip().rstrip(".")
        count = "1 cell" if len(failed) == 1 else f"{len(failed)} cells"
        say(f"{count} failed, the first because: {first}. Try again with: ", again)
    if empty:
        others = "all others diverged" if failed else "every cell diverged"
        say(f"Nothing to fit: no cell has a loss that can be used; {others}. For each reason: ", status)
    return FAILED if failed or empty else 0


def _own_folder(spec: StudySpec, overrides: Sequence[str], results: Path, *, shares: bool) -> list[str]:
    """Return the overrides of a study with a folder of its own, NAME-2 or the next free one; rows may be shared."""
    name = next(free for n in itertools.count(2) if not (results / (free := f"{spec.name}-{n}")).exists())
    kept = [text for text in overrides if not text.startswith(("name=", "tracking.experiment="))]
    shared = [f"tracking.experiment={spec.experiment}"] if shares else []
    return [*kept, f"name={name}", *shared]


def _run_study(spec: StudySpec, results: Path, console: Console) -> tuple[Mapping[str, str] | None, bool]:
    """Return why cells failed, by key, or None if the run was stopped; and whether there is nothing to fit."""
    from analysis.fit.sentences import answers
    from study.run import runner

    summary = runner.run_study(spec, results, console)
    if not summary.finished:
        return None, False
    if summary.fit and summary.report:
        for line in answers(summary.fit):
            console.print(Text(line))
        say("Report: ", relative(summary.report))
        if summary.copy:
            say("A copy of all results: ", summary.copy)
    return summary.failed, not summary.fit


def program() -> list[str]:
    """Return how this program was started: by a name on PATH, by a path, or as `python -m study`."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [*_program_at(Path(sys.executable)), "-m", "study"]
    return _program_at(started)


def _program_at(path: Path) -> list[str]:
    found = shutil.which(path.name)
    if path.parent == Path() and not path.exists():
        return [path.name]
    # Not resolved: the `python` of a virtual environment is a link to one that lacks the packages.
    if found and os.path.abspath(found) == os.path.abspath(path):  # noqa: PTH100
        return [path.name]
    shown = relative(path.absolute())
    return [str(shown) if shown.is_absolute() or len(shown.parts) > 1 else f"./{shown}"]
