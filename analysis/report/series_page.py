"""The page of a series of studies that differ in one key: crossings, best depths and measures by its value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.fit.measures import TARGETS, MeasureData, label
from analysis.fit.sentences import needed_sentence
from analysis.fit.series import (
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
from analysis.report.html import Page, PageSection, provenance, write_page
from analysis.report.tables import (
    best_by_value,
    crossings_by_value,
    members_table,
    needed_table,
    shifts_by_value_table,
)
from analysis.report.words import (
    APART,
    BOUND,
    COMPARED,
    NOTHING,
    best_depths_sentence,
    compared_sentence,
    crossing_sentences,
)
from core.files import write_json
from core.numbers import counted


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
    data_of_measures = [measure_data(members, name, TARGETS.get(name)) for name in measures_of(members)]
    measures = [data for data in data_of_measures if data is not None]
    words = [needed_sentence(key, data) for data in measures]
    words += [
        compared_sentence(key, data, words_of_unit) for data in measures if comparable and data.name == "loss"
    ]
    words += [*crossing_sentences(key, crossings, level), shift_sentence(key, shifts, level)]
    words = list(filter(None, [*words, best_depths_sentence(key, best)])) or [f"{NOTHING} {key}."]
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
    by_depth = PageSection(
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
    by_value = PageSection(
        "Crossings and best depths",
        figures=[] if crossings is None else [crossings_figure(crossings, key, level)],
        tables=[None if best is None else best_by_value(key, best, unit)],
        folded=False,
    )
    numbers = None if crossings is None else crossings_by_value(key, crossings, level)
    sections = [
        # Measures with a target are what a task is about, so they come first.
        *((by_depth, by_value) if aimed else (by_value, by_depth)),
        PageSection("Crossings in numbers", tables=[numbers, shifts_by_value_table(key, shifts, level)]),
        PageSection(
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
