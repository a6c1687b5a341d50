"""`interplay fit` and `interplay report`: RUNS is a spec, an MLflow experiment or a table."""

from pathlib import Path
from typing import TYPE_CHECKING

from study.commands.output import refuse_file, relative, say, show
from study.commands.series import refuse_series
from study.commands.series import report as report_of_series
from study.errors import SpecError
from study.results.answer import study_fit
from study.results.sources import Reading, Runs, StudyRuns
from study.tracking.study_paths import OtherStudyError, check_owner, refuse_results, study_paths

if TYPE_CHECKING:
    from analysis.fit.document import Fit


def fit(reading: Reading, out: Path | None, *, as_json: bool) -> None:
    """Fit a run table, print the fit and write it to `out`."""
    from analysis.files import write_json
    from study.results.tables import fit_table

    if out and out.is_dir():
        raise SpecError(f"--out {out} is a folder; name the file to write, such as {out / 'fit.json'}.")
    if out:
        refuse_results(out.parent, "--out")
    if spec := reading.spec:
        refuse_series(spec, "fit")
    fitted = fit_source(reading.source, level=reading.level, tokens=reading.tokens)
    if out:
        write_json(out, fitted.to_json())
    show(fitted.to_json(), fit_table(fitted), as_json=as_json)


def fit_source(source: Runs, *, level: float, tokens: float | None) -> "Fit":
    """Fit a run table; of a study, with the check of its learning rate and the cost of what is missing."""
    from analysis.fit.document import fit as fit_runs

    if isinstance(source, StudyRuns):
        return study_fit(source.plan, source.table, level=level, tokens=tokens)
    return fit_runs(source.table, level=level, tokens=tokens)


def report(reading: Reading, out: Path | None) -> None:
    """Write the report of a run table, or the page of a series; of a spec by default into its results folder."""
    from analysis.report.study_page import write_report

    spec = reading.spec
    if out is not None:
        refuse_file(out, "--out")
        refuse_results(out, "--out")
    elif spec is None:
        raise SpecError(
            f"{reading.name} is no study with a folder of its own; name the folder with --out DIR."
        )
    if spec is not None and spec.vary is not None:
        page = report_of_series(spec, reading.results, out, level=reading.level, tokens=reading.tokens)
        say("Series: ", relative(page))
        return
    source = reading.source
    if out is None:
        assert spec is not None
        paths = study_paths(spec, reading.results.resolve())
        out = paths.folder
        assert isinstance(source, StudyRuns)
        try:
            check_owner(source.plan, paths, paths.ledger.rows())
        except OtherStudyError as error:
            raise SpecError(f"{error} Name another folder with --out DIR.") from error
    fitted = fit_source(source, level=reading.level, tokens=reading.tokens)
    path = write_report(source.table, fitted, out, title=source.title, **source.known)
    say("Report: ", relative(path))
