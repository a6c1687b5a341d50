"""The answer of a fit."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import RenderableType

from analysis.fit.document import Fit
from analysis.fit.next_runs import NextRuns
from analysis.fit.words import answers
from analysis.law.near_optimal import Within
from analysis.runs.table import RunTable
from core.command_line import option
from core.errors import InputError, shortened
from core.numbers import counted
from interplay.fit_files import COMPARISON, FIT
from interplay.recommended import Recommended
from interplay.result import VerbResult
from interplay.terminal import fit_table, refuse_file
from study.errors import SpecError
from study.tracking.study_paths import refuse_results

#: Most failed cells and characters of a reason that are shown.
MOST_FAILED, MOST_REASON = 3, 120


def reasons(failed: Mapping[str, str]) -> str:
    """The number of failed cells and why the first ones failed; empty without any."""
    if not failed:
        return ""
    shown = [f"{cell}: {shortened(reason, MOST_REASON)}" for cell, reason in [*failed.items()][:MOST_FAILED]]
    more = [f"{len(failed) - MOST_FAILED} more"] if len(failed) > MOST_FAILED else []
    return f"{counted(len(failed), 'cell')} failed ({'; '.join([*shown, *more])})"


@dataclass(frozen=True, repr=False, eq=False)
class Answer(VerbResult):
    """The answer of a fit.

    Attributes:
        title: of the report.
        table: the run table.
        fit: every number, as in `fit.json`.
        next_runs: the runs of the next steps by the plan of a study; None of any other table: they are estimated.
        report_data: what a report adds for a study, such as its provenance.
        failed: of a study, the cells that failed, such as `L2-d16-s0`, with the reason; `run` tries them again.
    """

    title: str
    table: RunTable
    fit: Fit
    next_runs: NextRuns | None = None
    report_data: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What was found, and what to do next."""
        return answers(self.fit, self.next_runs)

    @cached_property
    def best(self) -> pd.DataFrame:
        """The shape of lowest loss at each size, and the depths that are statistically tied with it."""
        columns = ["params", "depth", "width", "loss", "tied"]
        per_nat = self.fit.loss_unit.per_nat
        rows = [
            (best.params, best.depth, best.width, per_nat * best.loss, best.near) for best in self.fit.best
        ]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def crossings(self) -> pd.DataFrame:
        """Where each depth overtakes the next shallower one: N and its interval."""
        columns = ["shallow", "deep", "status", "params", "low", "high"]
        rows = [
            (
                crossing.shallow,
                crossing.deep,
                crossing.status,
                crossing.params,
                *(crossing.params_interval or (None, None)),
            )
            for crossing in self.fit.crossings
        ]
        return pd.DataFrame(rows, columns=columns)

    def recommend(
        self,
        params: float | str | None = None,
        within: Within = None,
        *,
        flops: float | str | None = None,
        train_time: float | str | None = None,
    ) -> Recommended:
        """Return the best shape of N non-embedding parameters, of a compute in FLOPs, or of a training time.

        Numbers, or text such as "7B"; a time, which a study at equal training time has, in seconds or as "5min".

        Raises:
            InputError: not one of these is given, it is no size or time, or the fit has no answer there.
        """
        from analysis.audit.recommend import recommend_in_time, recommend_one
        from analysis.fit.recommendation import NamedFit

        named = NamedFit(self.title, self.fit, self.next_runs)
        if train_time is not None:
            if any(value is not None for value in (params, flops, within)):
                raise InputError(
                    f"{option('train-time')} takes the place of a size and of FLOPs; give it alone."
                )
            return Recommended(recommend_in_time(named, train_time), f"losses of {self.title}")
        source, shape = recommend_one(named, None, params, flops, within)
        return Recommended(shape, source)

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the report by the names of their files; those that the data do not allow are absent."""
        from analysis.report.study_page import study_figures

        names = ("entropy", "curves", "measures", "search", "costs")
        data = {name: self.report_data[name] for name in names if name in self.report_data}
        return {drawn.name: drawn.canvas() for drawn in study_figures(self.table, self.fit, **data)}

    def report(self, out: str | Path) -> Path:
        """Write `report.html`, `fit.json`, `runs.csv` and the figures into a folder; return the page.

        Raises:
            SpecError: the folder is a file, or that of a study, which `run` alone writes.
            OSError: the folder cannot be written.
        """
        refuse_report_folder(Path(out), FIT)
        return write_answer(self, Path(out))

    def to_json(self) -> dict[str, Any]:
        """Return the content of `fit.json`."""
        return self.fit.to_json(self.next_runs)

    def __rich__(self) -> RenderableType:
        return fit_table(self.fit, self.next_runs)

    @property
    def _lines(self) -> list[str]:
        return [*self.sentences, *([f"{reasons(self.failed)}."] if self.failed else [])]

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self._lines)
        return lines + self.best.to_html(index=False, max_rows=20)


def write_answer(answer: Answer, folder: Path) -> Path:
    """Write the files of `Answer.report`, whatever the folder is; return the page."""
    from analysis.report.study_page import write_report

    title, next_runs = answer.title, answer.next_runs
    return write_report(
        answer.table, answer.fit, folder, title=title, next_runs=next_runs, **answer.report_data
    )


def refuse_report_folder(folder: Path, numbers: str) -> None:
    """Refuse `--out`, the folder of a page, if another kind of page would be replaced there.

    Args:
        folder: the folder.
        numbers: the file that the page has beside it, `FIT` or `COMPARISON`.

    Raises:
        SpecError: it is a file, the folder of a study, or has a page with another file of numbers.
    """
    refuse_file(folder, "out")
    refuse_results(folder, "out")
    other = COMPARISON if numbers == FIT else FIT
    if (folder / other).is_file():
        raise SpecError(
            f"{option('out', folder)} has the page of {other}, which would be replaced; name another folder."
        )
