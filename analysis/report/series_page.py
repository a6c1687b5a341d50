"""The page of a series of studies that differ in one key: crossings, best depths and measures by its value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.fit.measures import TARGETS, MeasureData, label
from analysis.fit.sentences import grouped, needed_sentence
from analysis.fit.series import (
    ByValue,
    Member,
    best_data,
    crossing_data,
    in_order,
    measure_data,
    measures_of,
    shift_sentence,
    shifts_by_value,
    unit_of,
)
from analysis.report.figures import palette
from analysis.report.figures.by_value import crossings_figure, measure_figure
from analysis.report.html import Page, Section, provenance, write_page
from analysis.report.tables import (
    best_by_value,
    crossings_by_value,
    finite_ends,
    members_table,
    needed_table,
    shifts_by_value_table,
)
from core.files import write_json
from core.numbers import counted, digits, human, human_range, layers, percent

#: Maximum number of pairs of depths with a sentence.
MOST_PAIRS = 3
#: Text for an inconclusive number.
UNSETTLED = "inconclusive"
COMPARED = (
    "All members have the same data and number of tokens, so their losses may be compared; each shape has the best of "
    "its learning rates."
)
NOTHING = "No member of this series has two depths that can be compared, and none has a measure to show by"
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

    Raises:
        ValueError: there is no member, or two have one value.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    members = in_order(members)
    fits = [member.fit for member in members if member.fit is not None]
    level = next((fit.level for fit in fits), 0.95)
    crossings, best, shifts = crossing_data(members), best_data(members), shifts_by_value(members)
    unit = unit_of(members)
    words_of_unit = "" if unit == "nats per token" else f" ({unit})"
    found = [measure_data(members, name, TARGETS.get(name)) for name in measures_of(members)]
    measures = [data for data in found if data is not None]
    words = [needed_sentence(key, data) for data in measures]
    words += [
        compared_sentence(key, data, words_of_unit) for data in measures if comparable and data.name == "loss"
    ]
    words += [*crossing_sentences(key, crossings, level), shift_sentence(key, shifts, level)]
    words = list(filter(None, [*words, best_sentence(key, best)])) or [f"{NOTHING} {key}."]
    unchecked = [fit.learning_rate for fit in fits if fit.learning_rate and not fit.learning_rate.checked]
    if unchecked:
        words.append(f"In {counted(len(unchecked), 'member')}: {unchecked[-1].sentence}")
    epochs = [fit.epochs for fit in fits if fit.epochs is not None]
    if epochs and (repeated := max(epochs, key=lambda item: item.high).warning):
        words.append(repeated)
    about = [_about(member) for member in members]
    document = {
        "title": title,
        "key": key,
        "unit": unit,
        "members": about,
        "crossings": [] if crossings is None else crossings.table().to_dict("records"),
        "shifts": shifts,
        "best": [] if best is None else best.table().to_dict("records"),
        "measures": {data.name: _measure_json(data) for data in measures},
        "facts": dict(facts or {}),
        "answers": words,
    }
    write_json(folder / "series.json", document)
    aimed = any(data.target is not None for data in measures)
    by_depth = Section(
        "Measures against depth",
        [BOUND] if aimed else [],
        [
            measure_figure(
                data,
                key,
                f"measure_{data.name}",
                f"{data.name}{words_of_unit if data.name == 'loss' else ''} against depth, by {key}",
            )
            for data in measures
        ],
        [needed_table(key, data) for data in measures],
        folded=False,
    )
    by_value = Section(
        "Crossings and best depths",
        figures=[] if crossings is None else [crossings_figure(crossings, key, level)],
        tables=[None if best is None else best_by_value(key, best, unit)],
        folded=False,
    )
    numbers = None if crossings is None else crossings_by_value(key, crossings, level)
    sections = [
        # Measures with a target are what a task is about, so they come first.
        *((by_depth, by_value) if aimed else (by_value, by_depth)),
        Section("Crossings in numbers", tables=[numbers, shifts_by_value_table(key, shifts, level)]),
        Section(
            "The members",
            [
                f"The members differ in {key} only; nothing is fitted across them.",
                COMPARED if comparable else APART,
            ],
            tables=[members_table(key, about)],
            links={f"{key} {label(item.value)}": item.report for item in members if item.report},
        ),
        provenance(facts or {}, {"series.json: every number above": "series.json"}),
    ]
    pairs = 0 if crossings is None else len(crossings.rows[["shallow", "deep"]].drop_duplicates())
    colours = palette.variables(depth=pairs, value=len(members))
    return write_page(folder, Page(title, words, sections), ("crossings", "best_depth", "measure_*"), colours)


def _measure_json(data: MeasureData) -> dict[str, Any]:
    return {
        "better": "lower" if data.lower else "higher",
        "target": data.target,
        "shapes": data.shapes.drop(columns="place").to_dict("records"),
        "needed": data.needed.drop(columns="place", errors="ignore").to_dict("records"),
    }


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


def compared_sentence(key: str, data: MeasureData, unit: str) -> str:
    """The measure at the largest depth and size that all values have, the best value first; empty for one value.

    The best width of a depth counts, and the mean over the seeds of a shape. `unit` stands behind the name.
    """
    shapes = data.shapes.dropna(subset=["mean"])
    values = shapes["place"].nunique()
    counts = shapes.groupby(["depth", "params"])["place"].nunique()
    common = counts[counts == values]
    if values < 2 or common.empty:
        return ""
    depth, params = max(common.index)
    rows = shapes[(shapes["depth"] == depth) & (shapes["params"] == params)]
    rows = rows.sort_values("mean", ascending=data.lower)
    parts = [f"{digits(row['mean'], 4)} at {label(row['value'])}" for row in rows.to_dict("records")]
    where = f"{layers(int(depth))} at N ≈ {human(float(params))}"
    return f"Mean {data.name}{unit} of {where}, by {key}: {', '.join(parts)}."


def crossing_sentences(key: str, data: ByValue | None, level: float) -> list[str]:
    """The crossing at each value, for the first `MOST_PAIRS` pairs of depths that are settled at some value."""
    if data is None:
        return []
    bounds = {"left_censored": "below all sizes measured", "right_censored": "nowhere up to the largest size"}
    sentences = []
    for (_, deep), rows in data.rows.groupby(["shallow", "deep"], sort=True):
        if (rows["status"] == "bracketed").any():
            places = [
                f"N ≈ {human(row['params'])} ({percent(level)}: {human_range(finite_ends(row))})"
                if row["status"] == "bracketed"
                else bounds.get(row["status"], UNSETTLED)
                for row in rows.to_dict("records")
            ]
            parts = "; ".join(grouped(places, rows["value"]))
            sentences.append(f"{deep} layers overtake {layers(rows['shallow'].iloc[0])}, by {key}: {parts}.")
    nothing = "At no value does a crossing lie between two measured sizes; the table lists the bounds."
    return sentences[:MOST_PAIRS] or [nothing]


def best_sentence(key: str, data: ByValue | None) -> str:
    """The best depth by value, at the largest budget that most values have; empty if no two values share one."""
    if data is None or (counts := data.rows.groupby("budget").size()).max() < 2:
        return ""
    budget = float(counts[counts == counts.max()].index.max())
    rows = data.rows[data.rows["budget"] == budget].sort_values("place")
    parts = grouped([layers(depth) for depth in rows["depth"]], rows["value"], f"{key} ")
    return f"Lowest loss at a budget of N ≈ {human(budget)}: {', '.join(parts)}."
