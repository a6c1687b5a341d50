"""The page of studies that are compared: crossings, best depths and measures of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.fit.compared_studies import (
    ByValue,
    ComparedStudy,
    ShiftedStudy,
    SlopeDifference,
    best_data,
    crossing_data,
    in_order,
    measure_data,
    measures_of,
    not_compared,
    shift_sentence,
    shifts_by_value,
    slopes_by_value,
    unit_of,
)
from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, label
from analysis.fit.next_words import rate_sentence
from analysis.fit.words import needed_sentence
from analysis.report.figures import palette
from analysis.report.figures.by_value import crossings_figure, measure_figure
from analysis.report.html import Page, PageSection, provenance, write_page
from analysis.report.tables import (
    best_by_value,
    crossings_by_value,
    needed_table,
    shifts_by_value_table,
    slopes_table,
    studies_table,
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
from analysis.runs.table import RunTable
from analysis.runs.words import texts_of
from analysis.tables import Table
from analysis.units import UnitName
from core.files import to_json, write_json


@dataclass(frozen=True)
class StudyComparison:
    """Two or more studies, what is compared of them, and the sentences on it.

    Attributes:
        title: of the page.
        key: that differs, as in the spec (`data.hops`, `training.tokens`), or `study`.
        studies: one study per value, ascending if the values are numbers.
        comparable: whether losses of different values may be compared, because all have the same data and tokens.
        notes: what the reader must know first, such as the keys that differ.
        facts: provenance to print; plain text.

    Raises:
        ValueError: there is no study.
    """

    title: str
    key: str
    studies: Sequence[ComparedStudy]
    comparable: bool = False
    notes: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.studies:
            raise ValueError("there is no study to compare")
        object.__setattr__(self, "studies", in_order(self.studies))

    @property
    def _fits(self) -> list[Fit]:
        return [study.fit for study in self.studies if study.fit is not None]

    @property
    def level(self) -> float:
        """Of the intervals."""
        return next((fit.level for fit in self._fits), 0.95)

    @property
    def unit(self) -> UnitName:
        """In which losses are stated."""
        return unit_of(self.studies)

    @property
    def unit_words(self) -> str:
        """The unit behind the word loss; empty for nats."""
        return "" if self.unit == "nats per token" else f" ({self.unit})"

    @cached_property
    def crossings(self) -> ByValue | None:
        """The crossings of neighbouring depths; None without any."""
        return crossing_data(self.studies)

    @cached_property
    def shifts(self) -> tuple[ShiftedStudy, ...]:
        """The shifts of the crossings from those of the first study."""
        return shifts_by_value(self.studies)

    @cached_property
    def slopes(self) -> tuple[SlopeDifference, ...]:
        """The slopes of the threshold laws less that of the first study."""
        return slopes_by_value(self.studies)

    @cached_property
    def best(self) -> ByValue | None:
        """The best depth of each budget; None without two depths at one N."""
        return best_data(self.studies)

    @cached_property
    def measures(self) -> list[MeasureData]:
        """The measures against depth."""
        each = [measure_data(self.studies, name, TARGETS.get(name)) for name in measures_of(self.studies)]
        return [data for data in each if data is not None]

    @cached_property
    def about(self) -> list[dict[str, Any]]:
        """The rows, depths, sizes and law of each study."""
        return [_about(study) for study in self.studies]

    @cached_property
    def answers(self) -> list[str]:
        """What the comparison shows, and what it cannot show."""
        key, losses = self.key, [data for data in self.measures if self.comparable and data.name == "loss"]
        words = [needed_sentence(key, data) for data in self.measures]
        words += [compared_sentence(key, data, self.unit_words) for data in losses]
        words += crossing_sentences(key, self.crossings, self.level)
        words += [shift_sentence(key, self.shifts, self.level), best_depths_sentence(key, self.best)]
        words = list(filter(None, words)) or [f"{NOTHING} {key}."]
        words += not_compared(self.studies)
        unchecked = [
            fit.learning_rate for fit in self._fits if fit.learning_rate and not fit.learning_rate.checked
        ]
        if unchecked:
            words.append(
                f"In {len(unchecked)} of {len(self.studies)} studies: {rate_sentence(unchecked[-1], None)}"
            )
        epochs = [fit.epochs for fit in self._fits if fit.epochs is not None]
        if epochs:
            words += texts_of(max(epochs, key=lambda item: item.high).repeated)
        return [*self.notes, *words]

    def to_json(self) -> dict[str, Any]:
        """The content of `comparison.json`: every number, strict JSON types."""
        document: dict[str, Any] = to_json(
            {
                "title": self.title,
                "key": self.key,
                "unit": self.unit,
                "studies": self.about,
                "crossings": [] if self.crossings is None else self.crossings.table().to_dict("records"),
                "shifts": self.shifts,
                "slopes": self.slopes,
                "best": [] if self.best is None else self.best.table().to_dict("records"),
                "measures": {data.name: _measure_json(data) for data in self.measures},
                "facts": dict(self.facts),
                "answers": self.answers,
            }
        )
        return document

    def tables(self) -> list[Table]:
        """The studies, their crossings, shifts, slopes and best depths, for a terminal."""
        crossings = None
        if self.crossings is not None:
            crossings = crossings_by_value(self.key, self.crossings, self.level)
        best = None if self.best is None else best_by_value(self.key, self.best, self.unit)
        tables = [studies_table(self.key, self.about), crossings, *self.differences(), best]
        return [table for table in tables if table is not None]

    def differences(self) -> list[Table | None]:
        """The tables of the shifts and of the slopes; None for one without rows."""
        return [
            shifts_by_value_table(self.key, self.shifts, self.level),
            slopes_table(self.key, self.slopes, self.level),
        ]


def write_comparison(comparison: StudyComparison, out: str | Path) -> Path:
    """Write `report.html`, `comparison.json` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files. The folder is made
    if it is missing, and the files of an earlier page are replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    folder, key, level, unit = Path(out), comparison.key, comparison.level, comparison.unit
    crossings, best, measures = comparison.crossings, comparison.best, comparison.measures
    studies = comparison.studies
    words_of_unit = comparison.unit_words
    write_json(folder / "comparison.json", comparison.to_json())
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
        PageSection("Crossings in numbers", tables=[numbers, *comparison.differences()]),
        PageSection(
            "The studies",
            [
                "Nothing is fitted across the studies.",
                COMPARED if comparison.comparable else APART,
            ],
            tables=[studies_table(key, comparison.about)],
            links={f"{key} {label(item.value)}": item.report for item in studies if item.report},
        ),
        provenance(comparison.facts, {"comparison.json: every number above": "comparison.json"}),
    ]
    pairs = 0 if crossings is None else len(crossings.rows[["shallow", "deep"]].drop_duplicates())
    colours = palette.variables(depth=pairs, value=len(studies))
    return write_page(
        folder,
        Page(comparison.title, comparison.answers, sections),
        ("crossings", "best_depth", "measure_*"),
        colours,
    )


def _measure_json(data: MeasureData) -> dict[str, Any]:
    return {
        "better": "lower" if data.lower else "higher",
        "target": data.target,
        "shapes": data.shapes.drop(columns="place").to_dict("records"),
        "needed": data.needed.drop(columns="place", errors="ignore").to_dict("records"),
    }


def _about(study: ComparedStudy) -> dict[str, Any]:
    fit = study.fit
    law = ("status", "reason", "a", "b", "a_interval", "b_interval")
    return {
        "value": study.value,
        "report": study.report,
        **(_about_fit(fit) if study.runs is None else _about_rows(study.runs, fit)),
        "law": None if fit is None else {name: getattr(fit.law, name) for name in law},
    }


def _about_rows(runs: RunTable, fit: Fit | None) -> dict[str, Any]:
    used = runs.used
    return {
        "used": len(used) if fit is None else fit.used,
        "rows": len(runs.frame),
        "depths": sorted({int(depth) for depth in used["depth"]}),
        "params": [float(used["params"].min()), float(used["params"].max())] if len(used) else None,
        "seeds": int(used["seed"].nunique()) if len(used) else 0,
    }


def _about_fit(fit: Fit | None) -> dict[str, Any]:
    """The same of a fit without its rows."""
    if fit is None:
        return {"used": 0, "rows": 0, "depths": [], "params": None, "seeds": 0}
    return {
        "used": fit.used,
        "rows": fit.used + len(fit.left_out),
        "depths": sorted({depth for item in fit.crossings for depth in (item.shallow, item.deep)}),
        "params": list(fit.sizes) if fit.sizes else None,
        "seeds": fit.noise.seeds,
    }
