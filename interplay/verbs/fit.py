"""`interplay fit` and `interplay report`: RUNS is a spec, an MLflow experiment or a table."""

from pathlib import Path
from typing import Any

from core.files import write_json
from interplay.spec_argument import note_other_values
from interplay.terminal import fit_table, refuse_file, say, show, working
from interplay.verbs import series
from interplay.verbs.answer import Reading, StudyRuns, fit_source
from study.errors import SpecError
from study.tracking.study_paths import OtherStudyError, check_owner, refuse_results, study_paths


def fit(reading: Reading, out: Path | None, *, as_json: bool) -> None:
    """Fit a run table, print the fit and write it to `out`."""
    if out and out.is_dir():
        raise SpecError(f"--out {out} is a folder; name the file to write, such as {out / 'fit.json'}.")
    if out:
        refuse_results(out.parent, "--out")
    if spec := reading.spec:
        series.refuse_series(spec, "fit")
    with working("fitting"):
        fitted = fit_source(reading.source, level=reading.level, tokens=reading.tokens, unit=reading.unit)
    _note(reading)
    if out:
        write_json(out, fitted.to_json())
    show(fitted.to_json(), fit_table(fitted), as_json=as_json)


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
    options: dict[str, Any] = {"level": reading.level, "tokens": reading.tokens, "unit": reading.unit}
    if spec and spec.vary is not None:
        with working("writing the report"):
            page = series.write_page(
                spec,
                reading.results,
                out,
                renew=True,
                arguments=[reading.name, *reading.overrides],
                **options,
            )
        _note(reading)
        say("Series: ", page)
        return
    source = reading.source
    if out is None and spec is not None and isinstance(source, StudyRuns):
        paths = study_paths(spec, reading.results.resolve())
        try:
            check_owner(source.plan, paths, paths.ledger.rows())
        except OtherStudyError as error:
            raise SpecError(f"{error} Name another folder with --out DIR.") from error
        out = paths.folder
    assert out is not None
    with working("writing the report"):
        page = write_report(
            source.table, fit_source(source, **options), out, title=source.title, **source.known
        )
    _note(reading)
    say("Report: ", page)


def _note(reading: Reading) -> None:
    if reading.spec and isinstance(reading.runs, str):
        note_other_values(reading.verb, reading.runs, reading.overrides, reading.spec, reading.results)
