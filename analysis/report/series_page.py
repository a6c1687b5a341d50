"""The page of a series of studies that differ in one key: crossings, best depths and measures by its value."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.errors import InputError
from analysis.files import to_json, write_json, write_text
from analysis.fit.crossing_shift import ChangedStudy
from analysis.fit.measures import TARGETS, MeasureData, label
from analysis.fit.sentences import law_formula, percent
from analysis.fit.series import (
    BestData,
    CrossingData,
    Member,
    axis_of,
    best_data,
    crossing_data,
    in_order,
    measure_data,
    measures_of,
    shifts_by_value,
)
from analysis.report.catalogue import Data, Figure
from analysis.report.extras import series as drawing_series
from analysis.report.extras.wording_series import series_sentences
from analysis.report.figures import palette
from analysis.report.html import environment, write_figure

#: Confidence of the intervals where no member has a fit that says.
LEVEL = 0.95


def write_series(
    members: Sequence[Member],
    out: str | Path,
    *,
    title: str,
    key: str,
    facts: Mapping[str, str] | None = None,
    measures: Sequence[str] | None = None,
    targets: Mapping[str, float] | None = None,
    comparable: bool = False,
) -> Path:
    """Write `report.html`, `series.json` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files.

    Args:
        members: one study a value, in any order where the values are numbers.
        out: the folder, made when missing; files of an earlier page are replaced.
        title: of the page.
        key: that differs, as in the spec (`data.hops`, `training.tokens`).
        facts: provenance to print; plain text.
        measures: columns of the run tables that are shown against depth; by default `accuracy` and `loss` where the
            tables have them.
        targets: measure -> what is to be reached, for the depth that each value needs; by default 0.9 of accuracy.
        comparable: whether losses of different values may be compared, because all have the same data and tokens.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: a measure that was asked for is in no run table.
        ValueError: there is no member, two have one value, or a fit is of another level than the first.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    ordered = in_order(members)
    level = _level(ordered)
    crossings, best = crossing_data(ordered), best_data(ordered)
    shifts = shifts_by_value(key, ordered)
    wanted = measures_of(ordered) if measures is None else list(measures)
    objectives = TARGETS if targets is None else targets
    shown = [_measure(ordered, name, objectives.get(name)) for name in wanted]
    figures = _figures(key, level, crossings, best, shown)
    colours = _colours(ordered, crossings, best)
    drawn = {figure.name: write_figure(figure, folder / "figures", colours) for figure in figures}
    words = series_sentences(key, ordered, crossings, best, shifts, shown, level, comparable=comparable)
    document = series_json(ordered, key, title, crossings, best, shifts, shown, facts or {})
    document["answers"] = words
    write_json(folder / "series.json", document)
    page = (
        environment()
        .get_template("series.html.j2")
        .render(
            title=title,
            key=key,
            level=level,
            headlines=words,
            comparable=comparable,
            members=document["members"],
            drawn=drawn,
            colours=colours,
            crossings=document["crossings"],
            best=document["best"],
            studies=shifts,
            measures=shown,
            # What a task is about comes first.
            aimed=any(data.target is not None for data in shown),
            label=label,
            law_formula=law_formula,
            facts=dict(facts or {}),
        )
    )
    path = write_text(folder / "report.html", page)
    _drop_old(folder / "figures", set(drawn))
    return path


def series_json(
    members: Sequence[Member],
    key: str,
    title: str,
    crossings: CrossingData | None,
    best: BestData | None,
    shifts: Sequence[ChangedStudy],
    measures: Sequence[MeasureData],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """Every number of the page as strict JSON types; absent numbers are null."""
    document: dict[str, Any] = to_json(
        {
            "title": title,
            "key": key,
            "members": [_about(member) for member in members],
            "crossings": _records(None if crossings is None else crossings.table()),
            "shifts": shifts,
            "best": _records(None if best is None else best.table()),
            "measures": {
                data.name: {
                    "better": "lower" if data.lower else "higher",
                    "target": data.target,
                    "shapes": _records(data.shapes.drop(columns="place")),
                    "needed": _records(data.needed.drop(columns="place") if len(data.needed) else None),
                }
                for data in measures
            },
            "facts": dict(facts),
        }
    )
    return document


def _about(member: Member) -> dict[str, Any]:
    """One line of the table of members."""
    fit, used = member.fit, member.runs.used
    return {
        "value": member.value,
        "report": member.report,
        "used": len(used) if fit is None else fit.used,
        "rows": len(member.runs.frame),
        "depths": sorted({int(depth) for depth in used["depth"]}),
        "params": [float(used["params"].min()), float(used["params"].max())] if len(used) else None,
        "seeds": int(used["seed"].nunique()) if len(used) else 0,
        "law": None if fit is None else _law(member),
    }


def _law(member: Member) -> dict[str, Any]:
    assert member.fit is not None
    law = member.fit.law
    return {
        "status": law.status,
        "reason": law.reason,
        "a": law.a,
        "b": law.b,
        "a_interval": law.a_interval,
        "b_interval": law.b_interval,
    }


def _records(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    return (
        [] if table is None else [{str(name): row[name] for name in row} for row in table.to_dict("records")]
    )


def _measure(members: Sequence[Member], name: str, target: float | None) -> MeasureData:
    data = measure_data(members, name, target)
    if data is None:
        there = sorted({str(column) for member in members for column in member.runs.used.columns})
        raise InputError(
            f"No member of the series has a usable row with the measure {name!r}; its run tables have the columns "
            f"{', '.join(there)}."
        )
    return data


def _figures(
    key: str,
    level: float,
    crossings: CrossingData | None,
    best: BestData | None,
    measures: Sequence[MeasureData],
) -> list[Figure]:
    figures: list[Figure] = []

    def add(name: str, title: str, caption: str, data: Data, draw: Callable[[], Canvas]) -> None:
        figures.append(Figure(name, title, caption, data, draw))

    if crossings is not None:
        add(
            "crossings",
            f"The crossings against {key}",
            f"N at which the deeper model of each pair of neighbouring depths takes the lead, with {percent(level)} "
            "intervals. Arrows are bounds: downwards the deeper model leads at every size measured, upwards at none. "
            "Hollow marks and broken bars are not settled, and lines join settled neighbours only.",
            crossings,
            lambda: drawing_series.draw_crossings(crossings, key),
        )
    if best is not None:
        add(
            "best_depth",
            f"The best depth against {key}",
            "Depth of the lowest loss at each budget, read off the curves of each member at one N. Bars run over the "
            "depths that cannot be told from it (less than two standard errors of the paired difference).",
            best,
            lambda: drawing_series.draw_best(best, key),
        )
    for data in measures:
        add(
            f"measure_{data.name}",
            f"{data.name} against depth, by {key}",
            data.caption,
            data,
            partial(drawing_series.draw_measure, data, key),
        )
    return figures


def _colours(
    members: Sequence[Member], crossings: CrossingData | None, best: BestData | None
) -> dict[str, tuple[str, str]]:
    """CSS name -> (light, dark) of everything drawn: pairs of depths, values and budgets have their own sequences."""
    pairs = 0 if crossings is None else len(crossings.rows[["shallow", "deep"]].drop_duplicates())
    budgets = 0 if best is None else best.rows["budget"].nunique()
    values = len(axis_of(members).labels)
    return palette.variables(pairs, budgets) | palette.of_values(values)


def _level(members: Sequence[Member]) -> float:
    levels = [member.fit.level for member in members if member.fit is not None]
    if len(set(levels)) > 1:
        raise ValueError(f"the fits of a series have different levels: {', '.join(map(str, levels))}")
    return levels[0] if levels else LEVEL


def _drop_old(folder: Path, drawn: set[str]) -> None:
    """Remove the figures of an earlier page that this one has not; only now, while the old page stood they did too."""
    for name in ("crossings", "best_depth", "measure_*"):
        for path in [path for kind in ("svg", "png", "csv") for path in folder.glob(f"{name}.{kind}")]:
            if path.stem not in drawn:
                path.unlink(missing_ok=True)
