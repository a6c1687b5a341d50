"""The report of a study: one page that needs no network, and every number and figure as a file."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from analysis.design.history import SearchInfo, search_data
from analysis.files import write_json
from analysis.fit.document import Fit
from analysis.fit.sentences import count_phrase, disagreement_sentence, law_sentence, noise_sentence
from analysis.numbers import counted
from analysis.report.answers import findings, next_steps
from analysis.report.extras import accuracy, diagnostics, search, shifts
from analysis.report.extras.measures import needed_table
from analysis.report.figures import best_depth, depth_profile, gaps, loss, palette, training, transition
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import study_of_fit
from analysis.report.html import Page, Section, provenance, write_page
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

#: Names of all figures; those of an earlier page that are not drawn any more are removed.
NAMES = (
    *("depth_profile", "best_depth", "loss", "accuracy", "accuracy_graded", "transition", "diagnostics"),
    *("gaps", "search", "training"),
)
#: Neighbours with too few sizes that are listed one by one.
MOST_MISSING = 6
#: The words of the table of crossings.
STATUS_WORDS = (
    "From the N of a crossing on the deeper model has the lower loss. Bracketed: beyond the noise, the shallower model "
    "leads at the small end and the deeper one at the large end. Left-censored: the deeper model leads at every size "
    "measured; right-censored: at none. Ambiguous: inconclusive. The interval holds every N at which a gap of zero is "
    "not rejected, for these data, tokens and recipe; no curve is extrapolated."
)


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
        ValueError: the fit has no study to draw.
        OSError: the folder cannot be written.
    """
    study_of_fit(fit)
    folder = Path(out)
    history = None if search is None else search_data(runs, search, level=fit.level)
    context = Context(runs, fit, entropy, curves, history, measures)
    page = Page(
        title=title,
        answers=findings(fit),
        confidence=confidence(fit),
        figures=_made(context, depth_profile.figure, best_depth.figure),
        next_steps=next_steps(fit),
        warnings=fit.warnings,
        sections=study_sections(context, search, facts or {}, spec_text or ""),
    )
    colours = palette.variables(len(context.colours), len({item.budget for item in fit.best}))
    if (graded := accuracy.graded_accuracy(fit)) is not None:
        colours |= palette.of_values(len(graded[1].axis.labels))
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    return write_page(folder, page, NAMES, colours)


def study_sections(
    context: Context, search_info: SearchInfo | None, facts: Mapping[str, str], spec_text: str
) -> list[Section]:
    """The sections of a study below the answer; those without content are left out by the page."""
    runs, fit, history = context.runs, context.fit, context.search
    graded = accuracy.graded_accuracy(fit)
    layers = (
        None if context.measures is None else diagnostics.diagnostics_data(context.runs, context.measures)
    )
    measured = (loss.figure, accuracy.figure, accuracy.graded_figure, transition.figure, diagnostics.figure)
    missing = [item for item in fit.crossings if item.status == "insufficient"]
    pairs = [item for item in fit.crossings if item not in missing or len(missing) <= MOST_MISSING]
    hidden = len(fit.crossings) - len(pairs)
    return [
        Section(
            "What was measured",
            [_about(fit), diagnostics.rank_sentence(layers)],
            _made(context, *measured),
            folded=False,
        ),
        Section(
            "Shapes in numbers",
            tables=[
                None if graded is None else needed_table(*graded),
                best_table(fit) if fit.best else None,
                projection_table(runs, fit),
            ],
        ),
        Section(
            "Crossings",
            [
                STATUS_WORDS if pairs else "",
                f"{counted(hidden, 'more pair')} with too few sizes in common: see fit.json."
                if hidden
                else "",
            ],
            _made(context, gaps.figure),
            [crossings_table(fit, pairs)] if pairs else [],
        ),
        Section(
            "The law and its alternatives",
            [law_sentence(fit), disagreement_sentence(fit)] if fit.crossings else [],
            tables=[laws_table(fit) if fit.crossings else None],
        ),
        Section(
            "Shape or tuning",
            [shifts.shift_sentence(fit.shifts)],
            tables=[shifts.shifts_table(fit.shifts)],
        ),
        Section(
            "The search",
            []
            if history is None or search_info is None
            else [search.search_sentence(history, search_info.ended)],
            _made(context, search.figure),
        ),
        Section(
            "Runs and cost",
            [] if fit.left_out else ["Every row of the run table is used."],
            _made(context, training.figure),
            [
                cost_table(runs),
                diverged_table(fit) if fit.diverged else None,
                reasons_table(fit) if fit.left_out else None,
            ],
        ),
        provenance(
            facts, {"fit.json: every number above": "fit.json", "runs.csv: every row": "runs.csv"}, spec_text
        ),
    ]


def confidence(fit: Fit) -> tuple[str, str] | None:
    """`settled`, `partly settled` or `not settled`, and why; None without a pair of depths."""
    if not fit.crossings:
        return None
    settled = [item.settled for item in fit.crossings]
    checked = fit.learning_rate is not None and fit.learning_rate.checked
    word = "settled" if all(settled) and checked else "partly settled" if any(settled) else "not settled"
    rate = "checked" if checked else "not checked"
    return word, f"{sum(settled)} of {counted(len(settled), 'pair')} of depths settled; learning rate {rate}"


def _about(fit: Fit) -> str:
    """The rows, shapes, seeds, noise and tokens, and how N is counted."""
    shapes, seeds = len(study_of_fit(fit).curves.x), counted(int(fit.noise.get("seeds", 1)), "seed")
    rows = f"{fit.used} of {fit.used + len(fit.left_out)} runs of {counted(shapes, 'shape')}, {seeds}."
    count = f"{count_phrase(fit.count)}."
    epochs = fit.epochs.sentence if fit.epochs else ""
    return " ".join(filter(None, [rows, noise_sentence(fit), fit.tokens.sentence, epochs, count]))


def _made(context: Context, *makers: Callable[[Context], Figure | None]) -> list[Figure]:
    """The figures that the data allow."""
    return [figure for maker in makers if (figure := maker(context)) is not None]
