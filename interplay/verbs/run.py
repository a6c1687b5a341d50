"""Run a study: train its missing cells, fit, and write the report."""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from core.command_line import call, is_shell, relative
from core.numbers import counted
from interplay.terminal import Sentence, refuse_file, say
from interplay.verbs.load_spec import load_spec, name_of
from study.errors import SpecError
from study.spec.study import StudySpec
from study.tracking.study_paths import OtherStudyError

if TYPE_CHECKING:
    from interplay.answer import Answer
    from interplay.study_fit import Concluded
    from study.run.runner import Summary

#: Exit statuses: 0 done, 1 some cells failed, 130 stopped by the user (128 + SIGINT).
FAILED, STOPPED = 1, 130


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        summary: of the run.
        study: its spec.
        commands: by verb, the command that does this with the study.
    """

    summary: "Summary[Concluded]"
    study: StudySpec
    commands: Mapping[str, str]

    @property
    def status(self) -> int:
        """The exit status: 0 done, 1 some cells failed or nothing can be fitted, 130 stopped by the user."""
        if not self.summary.finished:
            return STOPPED
        return FAILED if self.summary.failed or not self.summary.conclusion else 0

    def say(self, console: Console) -> None:
        """Print the answer, where the report is, why cells failed, and the next command."""
        summary = self.summary
        if not summary.finished:
            say("Stopped. Nothing is lost; resume with: ", self.commands["run"])
            return
        failed = summary.failed
        if summary.conclusion:
            for line in summary.conclusion.answer.sentences:
                console.print(Sentence(line), crop=False)
            say("Report: ", summary.conclusion.page)
            if summary.copy:
                say("A copy of all results: ", summary.copy)
        for words, hint in summary.hints:
            say(words, hint)
        if failed:
            first = next(iter(failed.values())).strip().rstrip(".")
            say(
                f"{counted(len(failed), 'cell')} failed, the first because: {first}. Try again with: ",
                self.commands["run"],
            )
        if not summary.conclusion:
            rest = "all others diverged" if failed else "every cell diverged"
            say(
                f"Nothing to fit: no cell has a loss that can be used; {rest}. For each reason: ",
                self.commands["status"],
            )


def train(
    spec: str | Path | StudySpec,
    *changes: str,
    results: str | Path = "results",
    console: Console | None = None,
) -> Ended:
    """Train the missing cells of a study, fit, and write its report; progress is shown on the console, if any.

    Raises:
        SpecError: as of `load_spec`; the folder belongs to another study (it names the command with another name), or
            another process runs the study.
        DataError: the data cannot be used (an InputError of `trainables.errors`).
    """
    from interplay.study_fit import fit_and_report
    from study.run import runner
    from study.tracking.mlflow_store import tracking_uri

    study, folder = load_spec(spec, *changes, results=results), Path(results)
    refuse_file(folder, "results")
    tracking_uri(study.tracking.uri, folder)  # refuses a folder MLflow cannot use before anything is made

    def command(verb: str, given: Sequence[str] = changes) -> str:
        if not is_shell():
            return call(verb, name_of(spec), *given, results=folder)
        where = [] if folder == Path("results") else ["--results", str(folder)]
        return shlex.join([*program(), verb, name_of(spec), *given, *where])

    try:
        summary = runner.run_study(study, folder, console, fit_and_report)
    except OtherStudyError as error:
        # A folder of its own: NAME-2 or the next that is free.
        name = next(free for n in itertools.count(2) if not (folder / (free := f"{study.name}-{n}")).exists())
        given = [text for text in changes if not text.startswith(("name=", "tracking.experiment="))]
        given += [f"name={name}", *([f"tracking.experiment={study.experiment}"] if error.shares else [])]
        shared = ", with the finished cells of both" if error.shares else ""
        raise SpecError(f"{error} Run it in a folder of its own{shared}: {command('run', given)}") from error
    return Ended(summary, study, {verb: command(verb) for verb in ("run", "status")})


def run(spec: str | Path | StudySpec, *changes: str, results: str | Path = "results") -> "Answer":
    """Train the missing cells of a study, write its report, and return the answer.

        interplay.run("quickstart").recommend(1e6)

    A cell that fails ends neither the study nor this call: `Answer.failed` has the reasons.

    Raises:
        KeyboardInterrupt: the study was stopped by Ctrl-C or a signal; its finished cells are kept, and the same call
            trains the others.
        SpecError: as of `load_spec`; the folder belongs to another study, another process runs the study, or no cell
            has a usable loss: it names the cells that failed.
        DataError: the data cannot be used (an InputError of `trainables.errors`).
    """
    from interplay.answer import reasons

    ended = train(spec, *changes, results=results)
    study, summary = ended.study, ended.summary
    if not summary.finished:
        raise KeyboardInterrupt(
            f"the study {study.name!r} was stopped; its finished cells are kept, and the same call trains the others"
        )
    if summary.conclusion is None:
        failed = reasons(summary.failed) or "every cell diverged"
        raise SpecError(f"no cell of the study {study.name!r} has a usable loss: {failed}.")
    return summary.conclusion.answer


def program() -> list[str]:
    """Return how this program was started: by a name on PATH, by a path, or as `python -m interplay`."""
    started = Path(sys.argv[0])
    as_module = started.name == "__main__.py"
    path = Path(sys.executable) if as_module else started
    # Not resolved: the `python` of a virtual environment is a link to one that lacks the packages.
    on_path = shutil.which(path.name)
    is_found = on_path and os.path.abspath(on_path) == os.path.abspath(path)  # noqa: PTH100
    if is_found or (path.parent == Path() and not path.exists()):
        shown = path.name
    else:
        below = relative(path.absolute())
        shown = str(below) if below.is_absolute() or len(below.parts) > 1 else f"./{below}"
    return [shown, *(["-m", "interplay"] if as_module else [])]
