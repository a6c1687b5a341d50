"""The report of a study: one page that needs no network, and every number and figure as a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.design.history import SearchInfo, search_data
from analysis.files import write_json
from analysis.fit.document import Fit
from analysis.fit.sentences import count_phrase, disagreement_sentence, law_sentence, noise_sentence
from analysis.law.crossings import Crossing
from analysis.numbers import counted
from analysis.report.answers import answers
from analysis.report.catalogue import NAMES, make_figures
from analysis.report.extras.accuracy import graded_accuracy
from analysis.report.extras.diagnostics import diagnostics_data, rank_sentence
from analysis.report.extras.kaplan import exponents_table, kaplan_sentences
from analysis.report.extras.measures import needed_table
from analysis.report.extras.search import search_sentence
from analysis.report.extras.shifts import shift_sentence, shifts_table
from analysis.report.figures import palette
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import evidence_of
from analysis.report.html import remove_figures, write_figure, write_page
from analysis.report.tables import (
    best_table,
    cost_table,
    crossings_table,
    default_recommendations,
    diverged_table,
    laws_table,
    left_out_table,
    projection_table,
    reasons_table,
)
from analysis.runs.table import RunTable

#: Pairs up to which the table of crossings holds all pairs, beyond it the neighbours only.
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
) -> Path:
    """Write `report.html`, `fit.json`, `runs.csv` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files.

    Args:
        runs: the run table.
        fit: its fit, fresh and not read from a file.
        out: the folder, made if missing; files of an earlier report are replaced.
        title: of the page.
        facts: provenance to print, such as the git revision; plain text.
        entropy: entropy of the data in nats per token, where known.
        curves: training curves with the columns cell, step, loss.
        measures: diagnostics of the layers, with the columns cell, step, name, layer, value.
        recommendations: rows of `analysis.law.projection.recommend`; by default `default_recommendations`.
        spec_text: the study's specification, printed as it is.
        search: objective and grid, if a search chose the rows and the table has their order.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: the run table has no usable row.
        ValueError: the fit has no evidence to draw.
        OSError: the folder cannot be written.
    """
    evidence_of(fit)
    folder = Path(out)
    history = None if search is None else search_data(runs, search, level=fit.level)
    sections = make_figures(Context(runs, fit, entropy, curves, history, measures))
    graded = graded_accuracy(fit)
    colours = palette.variables(len(set(runs.used["depth"])), len({item.budget for item in fit.best}))
    if graded is not None:
        colours |= palette.of_values(len(graded[1].axis.labels))
    figures = [item for items in sections.values() for item in items if isinstance(item, Figure)]
    drawn = {item.name: write_figure(item, folder / "figures", colours) for item in figures}
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    given = default_recommendations(runs, fit) if recommendations is None else recommendations
    path = write_page(
        folder / "report.html",
        "report.html.j2",
        title=title,
        fit=fit,
        sections=sections,
        drawn=drawn,
        colours=colours,
        inside_words=rank_sentence(None if measures is None else diagnostics_data(runs, measures)),
        search_words="" if history is None or search is None else search_sentence(history, search.ended),
        needed=None if graded is None else needed_table(*graded),
        projected=projection_table(runs, fit, given),
        cost=cost_table(runs),
        seconds=float(runs.frame["train_seconds"].sum()),
        facts=dict(facts or {}),
        spec_text=spec_text,
        **_of_fit(fit),
    )
    # Last: the old page needs its figures until it is replaced.
    remove_figures(folder / "figures", set(NAMES), drawn)
    return path


def _of_fit(fit: Fit) -> dict[str, Any]:
    """The sentences and tables of the page that need the fit only."""
    pairs = _listed_pairs(fit)
    return {
        "headlines": answers(fit),
        "about": about_phrase(fit),
        "law": law_sentence(fit),
        "disagreements": disagreement_sentence(fit),
        "noise": noise_sentence(fit),
        "kaplan_words": kaplan_sentences(fit.kaplan),
        "shift": shift_sentence(fit.shifts),
        "shifts": shifts_table(fit.shifts),
        "laws": laws_table(fit),
        "best": best_table(fit) if fit.best else None,
        "exponents": exponents_table(fit.kaplan, noise=bool(fit.noise.get("known"))),
        "crossings": crossings_table(fit, pairs) if pairs else None,
        "hidden": len(fit.crossings) - len(pairs),
        "diverged": diverged_table(fit) if fit.diverged else None,
        "reasons": reasons_table(fit),
        "left_out": left_out_table(fit),
        "total": fit.used + len(fit.left_out),
    }


def about_phrase(fit: Fit) -> str:
    """Counts, seeds, tokens and how parameters are counted."""
    shapes = counted(len(evidence_of(fit).curves.x), "shape")
    seeds = counted(int(fit.noise.get("seeds", 1)), "seed")
    tokens = f" {fit.tokens.sentence}" if fit.tokens.sentence else ""
    return f"{fit.used} rows of {shapes}, {seeds}.{tokens} {count_phrase(fit.count)}."


def _listed_pairs(fit: Fit) -> list[Crossing]:
    """The pairs of the table, neighbours first: twenty depths have 190 pairs, most of them without a result."""
    known = [item for item in fit.crossings if item.status != "insufficient"]
    if len(known) > MOST_PAIRS:
        known = [item for item in known if item.adjacent]
    missing = [item for item in fit.crossings if item.adjacent and item.status == "insufficient"]
    listed = [*known, *missing] if len(missing) <= MOST_MISSING else known
    return sorted(listed, key=lambda item: (not item.adjacent, item.shallow, item.deep))
