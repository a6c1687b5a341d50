"""The report of a study: one page that needs no network, and beside it every number and figure as a file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis import palette
from analysis.figures import Figure, inline_svg, make_figures
from analysis.files import write_bytes, write_json, write_text
from analysis.fit import Fit
from analysis.projection import recommend
from analysis.runs import RunTable
from analysis.wording import (
    crossing_sentence,
    digits,
    headlines,
    human,
    law_sentence,
    percent,
    short,
    short_range,
)

#: Left-out rows that are listed one by one on the page; all of them are in `fit.json`.
MAX_LISTED = 60


@dataclass(frozen=True)
class DrawnFigure:
    """A figure on the page: plain words and the `<svg>` element."""

    name: str
    title: str
    caption: str
    svg: Markup


def write_report(
    runs: RunTable,
    fit: Fit,
    out: str | Path,
    *,
    title: str = "Depth against width",
    facts: Mapping[str, str] | None = None,
    floor: float | None = None,
    curves: pd.DataFrame | None = None,
    recommendations: Sequence[Mapping[str, Any]] | None = None,
    spec_text: str | None = None,
) -> Path:
    """Write `report.html`, `fit.json`, `runs.csv` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files.

    Args:
        runs: the run table.
        fit: its fit.
        out: the folder, made when missing; files of an earlier report are replaced.
        title: of the page.
        facts: provenance to print, such as the git revision; plain text.
        floor: entropy of the data in nats a token, where known.
        curves: training curves with the columns cell, step, loss.
        recommendations: rows as `analysis.projection.recommend` gives them; by default for 3, 10
            and 100 times the largest measured budget, from this study's own law.
        spec_text: the study's specification, printed as it is.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: the run table has no usable row.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    rows = default_recommendations(runs, fit) if recommendations is None else list(recommendations)
    budgets = len({item.budget for item in fit.best})
    colours = palette.variables(len(set(runs.used["depth"])), budgets)
    drawn = [
        _write_figure(figure, folder / "figures", colours)
        for figure in make_figures(runs, fit, floor=floor, curves=curves)
    ]
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    # Twenty depths have 190 pairs: what is unknown about two that are not neighbours is only counted.
    shown = sorted(
        (item for item in fit.crossings if item.adjacent or item.status != "insufficient"),
        key=lambda item: (not item.adjacent, item.shallow, item.deep),
    )
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            headlines=headlines(fit),
            fit=fit,
            recommendations=rows,
            figures=drawn,
            colours=colours,
            crossings=shown,
            hidden=len(fit.crossings) - len(shown),
            law=law_sentence(fit),
            reasons=Counter(str(item["reason"]) for item in fit.left_out).most_common(),
            listed=fit.left_out[:MAX_LISTED],
            facts=dict(facts or {}),
            spec_text=spec_text,
            total=fit.used + len(fit.left_out),
            seconds=float(runs.frame["train_seconds"].sum()),
        )
    )
    return write_text(folder / "report.html", page)


def default_recommendations(runs: RunTable, fit: Fit) -> list[dict[str, Any]]:
    """Shapes for 3, 10 and 100 times the largest budget measured, or none without a rising law.

    Not for the measured budgets: there the data speak for themselves, and better than two numbers fitted to
        them.
    """
    law = fit.projection_law()
    if law is None or law.b <= 0 or runs.used.empty:
        return []
    largest = max((item.params for item in fit.best), default=float(runs.used["params"].max()))
    return recommend(law, [3 * largest, 10 * largest, 100 * largest], level=fit.level)


def _write_figure(figure: Figure, folder: Path, colours: Mapping[str, tuple[str, str]]) -> DrawnFigure:
    svg, png = figure.render()
    write_bytes(folder / f"{figure.name}.svg", svg)
    write_bytes(folder / f"{figure.name}.png", png)
    write_text(folder / f"{figure.name}.csv", figure.data.table().to_csv(index=False, lineterminator="\n"))
    # Safe to mark: made by matplotlib, which escapes every text, from numbers and words of this package only.
    return DrawnFigure(
        figure.name, figure.title, figure.caption, Markup(inline_svg(svg, figure.title, colours))
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "human": human,
        "short_range": short_range,
        "short": short,
        "digits": digits,
        "percent": percent,
        "span": _span,
        "sentence": crossing_sentence,
    }
    return environment


def _span(interval: Sequence[float | None] | None) -> str:
    """An interval of widths or depths, `15–18`; open ends are said."""
    if interval is None:
        return "–"
    low, high = interval
    if low is None:
        return "open" if high is None else f"below {digits(high)}"
    return f"above {digits(low)}" if high is None else f"{digits(low)}–{digits(high)}"
