"""Run a study: train its missing cells, fit, and write the report; or so on the terminal, also of a series."""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from core.command_line import relative
from core.numbers import counted
from interplay.terminal import Sentence, refuse_file, say
from interplay.verbs import series
from interplay.verbs.load_spec import load_spec, load_study
from study.errors import SpecError
from study.spec.study import StudySpec
from study.tracking.study_paths import OtherStudyError

if TYPE_CHECKING:
    from interplay.answer import Answer

#: Exit statuses: 0 done, 1 some cells failed, 130 stopped by the user (128 + SIGINT).
FAILED, STOPPED = 1, 130


def run(spec: str | Path | StudySpec, *changes: str, results: str | Path = "results") -> "Answer":
    """Train the missing cells of a study, write its report, and return the answer.

        interplay.run("quickstart").recommend(1e6)

    A cell that fails ends neither the study nor this call: `Answer.failed` has the reasons.

    Raises:
        KeyboardInterrupt: the study was stopped by Ctrl-C or a signal; its finished cells are kept, and the same call
            trains the others.
        SpecError: as of `load_spec`; the spec is a series, the folder belongs to another study, another process runs
            the study, or no cell has a usable loss: it names the cells that failed.
        DataError: the data cannot be used (an InputError of `trainables.errors`).
    """
    from interplay.answer import Answer, reasons
    from interplay.verbs.answer import fit_and_report, study_runs
    from study.run.runner import run_study

    study, folder = load_study(spec, *changes, results=results, doing="run"), Path(results)
    refuse_file(folder, "results")
    summary = run_study(study, folder, conclude=fit_and_report)
    if not summary.finished:
        raise KeyboardInterrupt(
            f"the study {study.name!r} was stopped; its finished cells are kept, and the same call trains the others"
        )
    runs = study_runs(study, folder)
    if summary.fit is None:
        failed = reasons(runs.failed) or "every cell diverged"
        raise SpecError(f"no cell of the study {study.name!r} has a usable loss: {failed}.")
    return Answer(runs.title, runs.table, summary.fit, runs.report_data, runs.failed)


def run_in_terminal(spec: str, overrides: Sequence[str], results: Path, default_results: Path) -> int:
    """Run a study or series and return the exit status; printed commands name another than the default folder."""
    from study.tracking.mlflow_store import tracking_uri

    loaded = load_spec(spec, *overrides, results=results)
    refuse_file(results, "results")
    tracking_uri(loaded.tracking.uri, results)  # refuses a folder MLflow cannot use before anything is made

    def command(verb: str, changes: Sequence[str] = overrides) -> str:
        where = [] if results == default_results else ["--results", str(results)]
        return shlex.join([*program(), verb, spec, *changes, *where])

    try:
        run_any = run_one if loaded.vary is None else series.run
        failed, empty = run_any(loaded, results, Console(highlight=False))
    except OtherStudyError as error:
        # A folder of its own: NAME-2 or the next that is free.
        name = next(
            free for n in itertools.count(2) if not (results / (free := f"{loaded.name}-{n}")).exists()
        )
        changes = [text for text in overrides if not text.startswith(("name=", "tracking.experiment="))]
        changes += [f"name={name}", *([f"tracking.experiment={loaded.experiment}"] if error.shares else [])]
        shared = ", with the finished cells of both" if error.shares else ""
        raise SpecError(
            f"{error} Run it in a folder of its own{shared}: {command('run', changes)}"
        ) from error
    if failed is None:
        say("Stopped. Nothing is lost; resume with: ", command("run"))
        return STOPPED
    if failed:
        first = next(iter(failed.values())).strip().rstrip(".")
        say(
            f"{counted(len(failed), 'cell')} failed, the first because: {first}. Try again with: ",
            command("run"),
        )
    if empty:
        rest = "all others diverged" if failed else "every cell diverged"
        say(
            f"Nothing to fit: no cell has a loss that can be used; {rest}. For each reason: ",
            command("status"),
        )
    return FAILED if failed or empty else 0


def run_one(spec: StudySpec, results: Path, console: Console) -> tuple[Mapping[str, str] | None, bool]:
    """Return why cells failed, by key, or None if the run was stopped; and whether there is nothing to fit."""
    from analysis.fit.sentences import answers
    from interplay.verbs.answer import fit_and_report
    from study.run import runner

    summary = runner.run_study(spec, results, console, fit_and_report)
    if not summary.finished:
        return None, False
    if summary.fit and summary.report:
        for line in answers(summary.fit):
            console.print(Sentence(line), crop=False)
        say("Report: ", summary.report)
        if summary.copy:
            say("A copy of all results: ", summary.copy)
    for words, hint in summary.hints:
        say(words, hint)
    return summary.failed, not summary.fit


def program() -> list[str]:
    """Return how this program was started: by a name on PATH, by a path, or as `python -m interplay`."""
    started = Path(sys.argv[0])
    as_module = started.name == "__main__.py"
    path = Path(sys.executable) if as_module else started
    # Not resolved: the `python` of a virtual environment is a link to one that lacks the packages.
    found = shutil.which(path.name)
    is_found = found and os.path.abspath(found) == os.path.abspath(path)  # noqa: PTH100
    if is_found or (path.parent == Path() and not path.exists()):
        shown = path.name
    else:
        below = relative(path.absolute())
        shown = str(below) if below.is_absolute() or len(below.parts) > 1 else f"./{below}"
    return [shown, *(["-m", "interplay"] if as_module else [])]
