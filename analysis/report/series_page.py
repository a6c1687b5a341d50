"""The page of a series of studies that differ in one key: crossings, best depths and measures by its value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.files import to_json, write_json
from analysis.fit.crossing_shift import ChangedStudy
from analysis.fit.measures import TARGETS, MeasureData, label
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
from analysis.report.extras.measures import measure_figure, needed_table
from analysis.report.extras.series import (
    best_figure,
    best_table,
    crossings_figure,
    crossings_table,
    members_table,
    series_sentences,
)
from analysis.report.extras.shifts import shifts_table
from analysis.report.figures import palette
from analysis.report.html import remove_figures, write_figure, write_page

#: Confidence of the intervals if no member has a fit.
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
        members: one study per value, in any order if the values are numbers.
        out: the folder, made if missing; files of an earlier page are replaced.
        title: of the page.
        key: that differs, as in the spec (`data.hops`, `training.tokens`).
        facts: provenance to print; plain text.
        measures: columns of the run tables to show against depth; by default `accuracy` and `loss` if present.
        targets: measure -> value to reach, for the depth that each value of the key needs; by default 0.9 of accuracy.
        comparable: whether losses of different values may be compared, because all have the same data and tokens.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: a measure that was asked for is in no run table.
        ValueError: there is no member, two have one value, or a fit has another level than the first.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    ordered = in_order(members)
    level = _level(ordered)
    crossings, best = crossing_data(ordered), best_data(ordered)
    shifts = shifts_by_value(key, ordered)
    names = measures_of(ordered) if measures is None else list(measures)
    goals = TARGETS if targets is None else targets
    shown = [_measure(ordered, name, goals.get(name)) for name in names]
    figures = [
        *([] if crossings is None else [crossings_figure(crossings, key, level)]),
        *([] if best is None else [best_figure(best, key)]),
        *(measure_figure(data, key) for data in shown),
    ]
    colours = _colours(ordered, crossings, best)
    drawn = {figure.name: write_figure(figure, folder / "figures", colours) for figure in figures}
    words = series_sentences(key, ordered, crossings, best, shifts, shown, level, comparable=comparable)
    document = series_json(ordered, key, title, crossings, best, shifts, shown, facts or {})
    write_json(folder / "series.json", {**document, "answers": words})
    path = write_page(
        folder / "report.html",
        "series.html.j2",
        title=title,
        key=key,
        headlines=words,
        comparable=comparable,
        # Measures with a target are what a task is about, so they come first.
        aimed=any(data.target is not None for data in shown),
        used=sum(item["used"] for item in document["members"]),
        rows=sum(item["rows"] for item in document["members"]),
        count=len(ordered),
        drawn=drawn,
        colours=colours,
        members=members_table(key, ordered, document["members"], level),
        links=[(label(item.value), item.report) for item in ordered if item.report],
        crossings=None if crossings is None else crossings_table(key, crossings, level),
        best=None if best is None else best_table(key, best),
        shifts=shifts_table(shifts),
        measures=[(f"measure_{data.name}", needed_table(key, data)) for data in shown],
        facts=dict(facts or {}),
    )
    # Last: the old page needs its figures until it is replaced.
    remove_figures(folder / "figures", ("crossings", "best_depth", "measure_*"), drawn)
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
    fit, used = member.fit, member.runs.used
    law = ("status", "reason", "a", "b", "a_interval", "b_interval")
    return {
        "value": member.value,
        "report": member.report,
        "used": len(used) if fit is None else fit.used,
        "rows": len(member.runs.frame),
        "depths": sorted({int(depth) for depth in used["depth"]}),
        "params": [float(used["params"].min()), float(used["params"].max())] if len(used) else None,
        "seeds": int(used["seed"].nunique()) if len(used) else 0,
        "law": None if fit is None else {name: getattr(fit.law, name) for name in law},
    }


def _records(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    if table is None:
        return []
    return [{str(name): row[name] for name in row} for row in table.to_dict("records")]


def _measure(members: Sequence[Member], name: str, target: float | None) -> MeasureData:
    data = measure_data(members, name, target)
    if data is None:
        there = sorted({str(column) for member in members for column in member.runs.used.columns})
        raise InputError(
            f"No member of the series has a usable row with the measure {name!r}; its run tables have the columns "
            f"{', '.join(there)}."
        )
    return data


def _colours(
    members: Sequence[Member], crossings: CrossingData | None, best: BestData | None
) -> dict[str, tuple[str, str]]:
    """CSS name -> (light, dark): pairs of depths, budgets and values have their own sequences."""
    pairs = 0 if crossings is None else len(crossings.rows[["shallow", "deep"]].drop_duplicates())
    budgets = 0 if best is None else best.rows["budget"].nunique()
    return palette.variables(pairs, budgets) | palette.of_values(len(axis_of(members).labels))


def _level(members: Sequence[Member]) -> float:
    levels = [member.fit.level for member in members if member.fit is not None]
    if len(set(levels)) > 1:
        raise ValueError(f"the fits of a series have different levels: {', '.join(map(str, levels))}")
    return levels[0] if levels else LEVEL
