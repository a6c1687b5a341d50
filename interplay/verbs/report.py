"""Write the report of a source."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from analysis.runs.table import Count
from analysis.units import UnitOption
from core.command_line import option, relative
from interplay.answer import refuse_report_folder, write_answer
from interplay.fit_files import FIT
from interplay.result import VerbResult
from interplay.study_fit import StudyRuns, answer_of
from interplay.terminal import pasteable
from interplay.verbs.read import Source, name_of_source, runs_of
from study.errors import SpecError
from study.tracking.study_paths import OtherStudyError, check_owner, study_paths


@dataclass(frozen=True, repr=False)
class ReportPage(VerbResult, os.PathLike[str]):
    """A page that was written: a path, so that `open` takes it."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return the path of the page."""
        return {"page": str(self.path)}

    def __rich__(self) -> RenderableType:
        return pasteable("Report: ", str(relative(self.path)))


def report(
    source: Source,
    *changes: str,
    out: str | Path | None = None,
    results: str | Path = "results",
    count: Count = "nonembedding",
    uri: str | None = None,
    level: float = 0.95,
    tokens: float | str | None = None,
    unit: UnitOption = "nats",
    where: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
) -> ReportPage:
    """Write the report of a source into a folder; the other arguments are those of `fit`.

        interplay.report("runs.csv", out="report", columns={"loss": "val_loss"}).path

    Args:
        source: see the package.
        *changes: as of `read`.
        out: folder of the report; of a spec by default its folder in `results`.
        results: as of `read`.
        count: as of `read`.
        uri: as of `read`.
        level: as of `fit`.
        tokens: as of `fit`.
        unit: as of `fit`.
        where: as of `read`.
        columns: as of `read`.

    Raises:
        SpecError: as of `fit`; or `out` is a file or the folder of a study, is missing for a source that is
            no spec, or the folder of the spec has the results of another study.
        InputError: as of `fit`.
        OSError: the folder cannot be written.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        refuse_report_folder(folder, FIT)
    options: dict[str, Any] = {
        "results": results,
        "count": count,
        "uri": uri,
        "where": where,
        "columns": columns,
    }
    runs = runs_of(source, *changes, **options, verb="report")
    if folder is None:
        if not isinstance(runs, StudyRuns):
            raise SpecError(
                f"{name_of_source(source)} is no study with a folder of its own; name the folder with "
                f"{option('out', 'DIR')}."
            )
        paths = study_paths(runs.plan.planner.spec, runs.results.resolve())
        try:
            check_owner(runs.plan, paths, paths.ledger.rows())
        except OtherStudyError as error:
            raise SpecError(f"{error} Name another folder with {option('out', 'DIR')}.") from error
        folder = paths.folder
    return ReportPage(write_answer(answer_of(runs, level=level, tokens=tokens, unit=unit), folder))
