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

from study.commands.output import refuse_file, relative, say
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import StudySpec, load_spec, members, varied
from study.tracking.study_paths import SERIES, OtherStudyError, check_owner, check_series_owner, study_paths

#: Exit statuses: 0 done, 1 some cells failed, 130 stopped by the user (128 + SIGINT).
FAILED, STOPPED = 1, 130


def run(spec: str, overrides: Sequence[str], results: Path, default_results: Path) -> int:
    """Run a study or series and return the exit status; printed commands name another than the default folder."""
    from study.tracking.mlflow_store import tracking_uri

    loaded = load_spec(spec, overrides)
    refuse_file(results, "--results")
    tracking_uri(loaded.tracking.uri, results)  # refuses a folder MLflow cannot use before anything is made
    sets = [part for text in overrides for part in ("--set", text)]
    where = [] if results == default_results else ["--results", str(results)]
    again, status = (shlex.join([*program(), verb, spec, *sets, *where]) for verb in ("run", "status"))
    run_any = _run_study if loaded.vary is None else _run_series
    try:
        failed, empty = run_any(loaded, results)
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
    """Return the options of a study with a folder of its own, NAME-2 or the next free one, and rows that it shares."""
    name = next(free for n in itertools.count(2) if not (results / (free := f"{spec.name}-{n}")).exists())
    kept = [text for text in overrides if not text.startswith(("name=", "tracking.experiment="))]
    shared = [f"tracking.experiment={spec.experiment}"] if shares else []
    return [part for text in (*kept, f"name={name}", *shared) for part in ("--set", text)]


def _run_study(spec: StudySpec, results: Path) -> tuple[Mapping[str, str] | None, bool]:
    """Return why cells failed, by key, or None if the run was stopped; and whether there is nothing to fit."""
    from analysis.report.answers import answers
    from study.run import runner

    console = Console(highlight=False)
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


def _run_series(spec: StudySpec, results: Path) -> tuple[Mapping[str, str] | None, bool]:
    """As `_run_study` for each study of a series, one after the other; then write the page of the series."""
    from study.commands.series import FittedMember, page_words, text, write_page
    from study.results.sources import study_runs
    from study.run.runner import copy_results, run_study
    from study.workers.ray_session import joins

    console = Console(highlight=False)
    listed = members(spec)
    for member in listed:
        # Refuse what cannot run before hours of training; a cluster's machines are known only after joining it.
        plan = make_plan(member.spec, to_read=joins())
        place = study_paths(member.spec, results.resolve())
        check_owner(plan, place, place.ledger.rows())
    paths = study_paths(spec, results.resolve())
    folder = paths.folder
    check_series_owner(spec, folder)
    failed: dict[str, str] = {}
    fitted = []
    for number, member in enumerate(listed, 1):
        title = f"{varied(spec)[0]} {text(member.value)} ({number} of {len(listed)})"
        console.print(Text(title, style="bold"))
        summary = run_study(member.spec, results, console)
        if not summary.finished:
            return None, False
        failed.update(summary.failed)
        fitted.append(FittedMember(member, study_runs(member.spec, results), summary.fit, summary.report))
    page = write_page(spec, fitted, folder)
    if page is None:
        return failed, True
    written = [folder / name for name in (SERIES, "series.json", "report.html", "figures")]
    copy = copy_results(paths, written, console) if paths.is_shared else None
    for line in page_words(page):
        console.print(Text(line))
    say("Series: ", relative(page))
    if copy:
        say("A copy of its page: ", copy)
    return failed, False


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
