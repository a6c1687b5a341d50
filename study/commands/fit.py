"""`interplay fit` and `interplay report`: RUNS is a spec, a series, an MLflow experiment or a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from study.commands.output import refuse_file, relative, say, show
from study.errors import SpecError
from study.results.sources import Runs, read_source, series_of
from study.spec.study import StudySpec


@dataclass(frozen=True)
class Reading:
    """The options that name a run table, and how it is fitted."""

    runs: str
    overrides: Sequence[str]
    columns: Sequence[str]
    count: Literal["nonembedding", "table"]
    tokens: float | None
    results: Path
    uri: str | None
    level: float

    @property
    def series(self) -> StudySpec | None:
        """The series that RUNS names, if it names one."""
        return series_of(self.runs, self.overrides, self.columns, self.uri, self.count)

    @property
    def source(self) -> Runs:
        """The run table."""
        return read_source(self.runs, self.overrides, self.columns, self.results, self.uri, self.count)


def fit(reading: Reading, draws: int, out: Path | None, *, as_json: bool) -> None:
    """Fit a run table or every study of a series, print the fit and write it to a file.

    Args:
        reading: the run table, and how it is fitted.
        draws: how often the pipeline is repeated on simulated losses.
        out: a file for the fit as JSON.
        as_json: whether to print JSON.
    """
    from analysis.files import write_json

    if out and out.is_dir():
        raise SpecError(f"--out {out} is a folder; name the file to write, such as {out / 'fit.json'}.")
    series = reading.series
    document, view = _fit_table(reading, draws) if series is None else _fit_series(reading, series, draws)
    if out:
        write_json(out, document)
    show(document, view, as_json=as_json)


def _fit_table(reading: Reading, draws: int) -> tuple[object, RenderableType]:
    from analysis.fit.document import fit as fit_runs
    from study.results.tables import bootstrap_text, fit_table

    source = reading.source
    entropy = source.known.get("entropy")
    fitted = fit_runs(
        source.table, level=reading.level, tokens=reading.tokens, parametric_bootstrap=draws, entropy=entropy
    )
    result = fitted
    return result.to_json(), Group(fit_table(result), *([bootstrap_text(result)] if draws else []))


def _fit_series(reading: Reading, series: StudySpec, draws: int) -> tuple[object, RenderableType]:
    from study.commands.series import fits_json, read_series
    from study.results.tables import fit_table

    compared = read_series(
        series, reading.results, level=reading.level, tokens=reading.tokens, parametric_bootstrap=draws
    )
    parts: list[RenderableType] = []
    for one in compared:
        parts.append(Text(one.member.spec.name, style="bold"))
        parts.append(fit_table(one.fit) if one.fit else Text("nothing to fit: no row has a usable loss"))
    return fits_json(series, compared), Group(*parts)


def report(reading: Reading, out: Path) -> None:
    """Write the report of a run table, or the page of a series."""
    from analysis.fit.document import fit as fit_runs
    from analysis.report.study_page import write_report

    refuse_file(out, "--out")
    if (series := reading.series) is not None:
        from study.commands.series import report_series

        page = report_series(series, reading.results, out, level=reading.level, tokens=reading.tokens)
        say("Series: ", relative(page))
        return
    source = reading.source
    entropy = source.known.get("entropy")
    fitted = fit_runs(source.table, level=reading.level, tokens=reading.tokens, entropy=entropy)
    path = write_report(source.table, fitted, out, title=Path(reading.runs).name, **source.known)
    say("Report: ", relative(path))
