"""The page of a series of studies that differ in one key: crossings, best depths and measures by its value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.files import write_json
from analysis.fit.measures import TARGETS, MeasureData, label
from analysis.fit.series import (
    BestData,
    CrossingData,
    Member,
    best_data,
    crossing_data,
    in_order,
    measure_data,
    measures_of,
    shifts_by_value,
)
from analysis.numbers import counted
from analysis.report.extras.measures import measure_figure, needed_table
from analysis.report.extras.series import (
    best_figure,
    crossings_figure,
    crossings_table,
    members_table,
    series_sentences,
)
from analysis.report.extras.shifts import shifts_table
from analysis.report.figures import palette
from analysis.report.html import Page, Section, provenance, write_page

#: Confidence of the intervals if no member has a fit.
LEVEL = 0.95
COMPARED = (
    "All members have the same data and number of tokens, so their losses may be compared; each shape has the best of "
    "its learning rates."
)
APART = "Members have different data or tokens, so their losses are not compared."
BOUND = (
    "The fewest layers that reach a target are those of the models trained here, with this recipe, these tokens and "
    "widths: an upper bound on the depth that the task needs."
)


def write_series(
    members: Sequence[Member],
    out: str | Path,
    *,
    title: str,
    key: str,
    facts: Mapping[str, str] | None = None,
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
        comparable: whether losses of different values may be compared, because all have the same data and tokens.

    Returns:
        The path of `report.html`.

    Raises:
        ValueError: there is no member, or two have one value.
        OSError: the folder cannot be written.
    """
    folder, facts = Path(out), dict(facts or {})
    ordered = in_order(members)
    level = next((member.fit.level for member in ordered if member.fit is not None), LEVEL)
    crossings, best = crossing_data(ordered), best_data(ordered)
    shifts = shifts_by_value(key, ordered)
    found = [measure_data(ordered, name, TARGETS.get(name)) for name in measures_of(ordered)]
    measures = {f"measure_{data.name}": data for data in found if data is not None}
    shown = list(measures.values())
    words = series_sentences(key, ordered, crossings, best, shifts, shown, level, comparable=comparable)
    fits = [member.fit for member in ordered if member.fit is not None]
    read = [fit.epochs for fit in fits if fit.epochs is not None]
    repeated = max(read, key=lambda epochs: epochs.high).warning if read else ""
    unchecked = [fit.learning_rate for fit in fits if fit.learning_rate and not fit.learning_rate.checked]
    words += [f"In {counted(len(unchecked), 'member')}: {unchecked[-1].sentence}"] if unchecked else []
    words += [repeated] if repeated else []
    about = [_about(member) for member in ordered]
    document = {
        "title": title,
        "key": key,
        "members": about,
        "crossings": _records(crossings),
        "shifts": shifts,
        "best": _records(best),
        "measures": {data.name: _measure_json(data) for data in shown},
        "facts": facts,
        "answers": words,
    }
    write_json(folder / "series.json", document)
    # Measures with a target are what a task is about, so they come first.
    aimed = any(data.target is not None for data in shown)
    by_depth = Section(
        "Measures against depth",
        [BOUND] if aimed else [],
        [
            measure_figure(data, key, name, f"{data.name} against depth, by {key}")
            for name, data in measures.items()
        ],
        [needed_table(key, data) for data in shown],
        folded=False,
    )
    crossed = Section(
        "Crossings and best depths",
        figures=[
            *([] if crossings is None else [crossings_figure(crossings, key, level)]),
            *([] if best is None else [best_figure(best, key)]),
        ],
        folded=False,
    )
    sections = [
        *((by_depth, crossed) if aimed else (crossed, by_depth)),
        Section(
            "Crossings in numbers",
            tables=[
                None if crossings is None else crossings_table(key, crossings, level),
                shifts_table(shifts),
            ],
        ),
        Section(
            "The members",
            [
                f"The members differ in {key} only; nothing is fitted across them. {COMPARED if comparable else APART}"
            ],
            tables=[members_table(key, ordered, about)],
            links={f"{key} {label(item.value)}": item.report for item in ordered if item.report},
        ),
        provenance(facts, {"series.json: every number above": "series.json"}),
    ]
    pairs = 0 if crossings is None else len(crossings.rows[["shallow", "deep"]].drop_duplicates())
    budgets = 0 if best is None else best.rows["budget"].nunique()
    colours = palette.variables(pairs, budgets) | palette.of_values(len(ordered))
    return write_page(folder, Page(title, words, sections), ("crossings", "best_depth", "measure_*"), colours)


def _measure_json(data: MeasureData) -> dict[str, Any]:
    return {
        "better": "lower" if data.lower else "higher",
        "target": data.target,
        "shapes": data.shapes.drop(columns="place").to_dict("records"),
        "needed": data.needed.drop(columns="place", errors="ignore").to_dict("records"),
    }


def _records(data: CrossingData | BestData | None) -> list[dict[Any, Any]]:
    return [] if data is None else data.table().to_dict("records")


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
