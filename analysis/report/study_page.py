"""The report of a study: one page that needs no network, and beside it every number and figure as a file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.design.history import SearchInfo, search_data
from analysis.files import write_json, write_text
from analysis.fit.document import Fit
from analysis.fit.kaplan import PUBLISHED_ALPHA, PUBLISHED_SCALE
from analysis.fit.measures import label
from analysis.fit.sentences import count_phrase, disagreement_sentence, law_sentence, noise_sentence
from analysis.law.crossings import Crossing
from analysis.report.answers import answers, search_sentence
from analysis.report.catalogue import SHIFT_FIGURES, TITLES, Figure, absent_figures, make_figures
from analysis.report.extras.accuracy import graded_accuracy
from analysis.report.extras.diagnostics import diagnostics_data
from analysis.report.extras.shifts import by_key, shift_sentence
from analysis.report.extras.wording_diagnostics import rank_sentence
from analysis.report.extras.wording_kaplan import exponent_rows, kaplan_sentences
from analysis.report.figures import palette
from analysis.report.figures.frames import evidence_of
from analysis.report.html import environment, write_figure
from analysis.report.tables import (
    BEYOND_USE,
    FAR,
    cost_table,
    default_recommendations,
    projection_table,
    rivals_table,
)
from analysis.runs.table import RunTable

#: Names of figures of the search that `study` makes, where it does.
MORE = ("search_history", "search_slices", "search_parallel")
#: Left-out rows that are listed one by one on the page; all of them are in `fit.json`.
MAX_LISTED = 60
#: Different reasons in the table of left-out rows.
MOST_REASONS = 20
#: Beyond so many pairs the table of crossings holds the neighbours only.
MOST_PAIRS = 30
#: Neighbours with too few sizes that are listed one by one.
MOST_MISSING = 6


def write_report(
    runs: RunTable,
    fit: Fit,
    out: str | Path,
    *,
    title: str = "Depth against width",
    facts: Mapping[str, str] | None = None,
    entropy: float | None = None,
    curves: pd.DataFrame | None = None,
    measures: pd.DataFrame | None = None,
    recommendations: Sequence[Mapping[str, Any]] | None = None,
    spec_text: str | None = None,
    search: SearchInfo | None = None,
    more: Sequence[Figure] = (),
) -> Path:
    """Write `report.html`, `fit.json`, `runs.csv` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files.

    Args:
        runs: the run table.
        fit: its fit, fresh and not read from a file.
        out: the folder, made when missing; files of an earlier report are replaced.
        title: of the page.
        facts: provenance to print, such as the git revision; plain text.
        entropy: entropy of the data in nats a token, where known.
        curves: training curves with the columns cell, step, loss.
        measures: of the layers, with the columns cell, step, name, layer, value.
        recommendations: rows as `analysis.law.projection.recommend` gives them; by default for the sizes of
            `report_tables.projection_sizes`, from this study's own law.
        spec_text: the study's specification, printed as it is.
        search: what the rows were chosen for, where a search chose them and the table says in which order.
        more: figures of the search that others made; their names are of `MORE`.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: the run table has no usable row.
        ValueError: the fit has no evidence to draw.
        OSError: the folder cannot be written.
    """
    evidence_of(fit)
    folder = Path(out)
    given = default_recommendations(runs, fit) if recommendations is None else list(recommendations)
    rival_names, projected = projection_table(runs, fit, given)
    budgets = len({item.budget for item in fit.best})
    graded = graded_accuracy(fit)
    colours = palette.variables(len(set(runs.used["depth"])), budgets)
    if graded is not None:
        colours |= palette.of_values(len(graded[1].axis.labels))
    told = None if search is None else search_data(runs, search, level=fit.level)
    figures = [
        *make_figures(runs, fit, entropy=entropy, curves=curves, search=told, measures=measures),
        *more,
    ]
    drawn = {figure.name: write_figure(figure, folder / "figures", colours) for figure in figures}
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    shown = _told_pairs(fit)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            headlines=answers(fit),
            fit=fit,
            projected=projected,
            far_factor=FAR,
            beyond_use=any(BEYOND_USE in row["rivals"] for row in projected),
            rival_names=rival_names,
            drawn=drawn,
            absent=absent_figures(fit, figures),
            more=[figure.name for figure in more],
            graded=graded,
            label=label,
            shifts=[
                (SHIFT_FIGURES[key], shift_sentence(studies), studies)
                for key, studies in by_key(fit.shifts).items()
            ],
            inside_words=rank_sentence(None if measures is None else diagnostics_data(runs, measures)),
            search_words="" if told is None or search is None else search_sentence(told, search.ended),
            colours=colours,
            crossings=shown,
            hidden=len(fit.crossings) - len(shown),
            law=law_sentence(fit),
            rivals=rivals_table(fit),
            disagreements=disagreement_sentence(fit),
            noise=noise_sentence(fit),
            kaplan_words=kaplan_sentences(fit.kaplan),
            exponents=exponent_rows(fit.kaplan),
            totalled=fit.kaplan is not None and fit.kaplan.exponent("total", "power") is not None,
            published={"alpha": PUBLISHED_ALPHA, "scale": PUBLISHED_SCALE},
            counting=count_phrase(fit.count),
            cost=cost_table(runs),
            most_reasons=MOST_REASONS,
            reasons=Counter(str(item["reason"]) for item in fit.left_out).most_common(),
            listed=fit.left_out[:MAX_LISTED],
            facts=dict(facts or {}),
            spec_text=spec_text,
            total=fit.used + len(fit.left_out),
            seconds=float(runs.frame["train_seconds"].sum()),
        )
    )
    path = write_text(folder / "report.html", page)
    # Only now: while the old page stands its files stand too.
    for name in {*TITLES, *MORE} - set(drawn):
        for kind in ("svg", "png", "csv"):
            (folder / "figures" / f"{name}.{kind}").unlink(missing_ok=True)
    return path


def _told_pairs(fit: Fit) -> list[Crossing]:
    """The pairs of the table, neighbours first: twenty depths have 190, and of most of them nothing is known."""
    known = [item for item in fit.crossings if item.status != "insufficient"]
    if len(known) > MOST_PAIRS:
        known = [item for item in known if item.adjacent]
    missing = [item for item in fit.crossings if item.adjacent and item.status == "insufficient"]
    told = [*known, *missing] if len(missing) <= MOST_MISSING else known
    return sorted(told, key=lambda item: (not item.adjacent, item.shallow, item.deep))
