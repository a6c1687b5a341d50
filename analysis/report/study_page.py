"""The report of a study: one page that needs no network, and every number and figure as a file."""

from collections.abc import Mapping
from pathlib import Path

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
from analysis.report.extras.measures import needed_table
from analysis.report.extras.search import search_sentence
from analysis.report.extras.shifts import shift_sentence, shifts_table
from analysis.report.figures import palette
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import evidence_of
from analysis.report.html import write_page
from analysis.report.tables import (
    best_table,
    cost_table,
    crossings_table,
    diverged_table,
    laws_table,
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
        spec_text: the study's specification, printed as it is.
        search: objective and grid, if a search chose the rows and the table has their order.

    Returns:
        The path of `report.html`.

    Raises:
        InputError: the run table has no usable row.
        ValueError: the fit has no evidence to draw.
        OSError: the folder cannot be written.
    """
    evidence = evidence_of(fit)
    folder = Path(out)
    history = None if search is None else search_data(runs, search, level=fit.level)
    context = Context(runs, fit, entropy, curves, history, measures)
    sections = make_figures(context)
    graded = graded_accuracy(fit)
    colours = palette.variables(len(context.colours), len({item.budget for item in fit.best}))
    if graded is not None:
        colours |= palette.of_values(len(graded[1].axis.labels))
    pairs = _listed_pairs(fit)
    shapes, seeds = counted(len(evidence.curves.x), "shape"), counted(int(fit.noise.get("seeds", 1)), "seed")
    read = [fit.tokens.sentence, fit.epochs.sentence if fit.epochs else "", count_phrase(fit.count)]
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    return write_page(
        folder,
        "report.html.j2",
        [item for items in sections.values() for item in items if isinstance(item, Figure)],
        NAMES,
        colours,
        title=title,
        fit=fit,
        sections=sections,
        headlines=answers(fit),
        about=f"{fit.used} rows of {shapes}, {seeds}. {' '.join(filter(None, read))}.",
        law=law_sentence(fit),
        disagreements=disagreement_sentence(fit),
        noise=noise_sentence(fit),
        shift=shift_sentence(fit.shifts),
        inside_words=rank_sentence(None if measures is None else diagnostics_data(runs, measures)),
        search_words="" if history is None or search is None else search_sentence(history, search.ended),
        needed=None if graded is None else needed_table(*graded),
        shifts=shifts_table(fit.shifts),
        laws=laws_table(fit),
        best=best_table(fit) if fit.best else None,
        projected=projection_table(runs, fit),
        crossings=crossings_table(fit, pairs) if pairs else None,
        hidden=len(fit.crossings) - len(pairs),
        cost=cost_table(runs),
        diverged=diverged_table(fit) if fit.diverged else None,
        reasons=reasons_table(fit),
        seconds=float(runs.frame["train_seconds"].sum()),
        total=fit.used + len(fit.left_out),
        facts=dict(facts or {}),
        spec_text=spec_text,
    )


def _listed_pairs(fit: Fit) -> list[Crossing]:
    """The pairs of the table: those that cannot be compared only if they are few."""
    missing = [item for item in fit.crossings if item.status == "insufficient"]
    return [item for item in fit.crossings if item not in missing or len(missing) <= MOST_MISSING]
