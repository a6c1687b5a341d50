"""The report of a study: one page that needs no network, and every number and figure as a file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.fit.document import Fit
from analysis.fit.next_runs import NextRuns
from analysis.fit.words import findings, law_sentence, next_steps
from analysis.report.figures import (
    at_budget,
    best_depth,
    diagnostics,
    excess,
    gaps,
    loss,
    palette,
    transition,
)
from analysis.report.figures import costs as cost_figure
from analysis.report.figures.by_value import measure_figure
from analysis.report.figures.figure import Context, Figure
from analysis.report.html import Page, PageSection, provenance, write_page
from analysis.report.tables import (
    best_table,
    compute_table,
    cost_table,
    crossings_table,
    diverged_table,
    gains_table,
    law_reasons_table,
    laws_table,
    needed_table,
    rate_shifts_table,
    reasons_table,
    unusual_table,
)
from analysis.report.words import STATUS_WORDS, about_sentences, confidence, search_sentence
from analysis.runs.table import RunTable
from core.files import write_json

#: Names of all figures; those of an earlier page that are not drawn any more are removed.
NAMES = (
    *("excess", "best_depth", "loss", "accuracy", "accuracy_graded", "transition", "diagnostics"),
    *("gaps", "search", "training", "costs"),
)


def write_report(
    runs: RunTable,
    fit: Fit,
    out: str | Path,
    *,
    title: str = "Depth against width",
    facts: Mapping[str, str] | None = None,
    spec_text: str = "",
    cells: tuple[int, int] | None = None,
    next_runs: NextRuns | None = None,
    **attributes: Any,
) -> Path:
    """Write `report.html`, `fit.json`, `runs.csv` and `figures/*.svg, *.png, *.csv` into a folder.

    Every file is replaced in one step and the page comes last, so a page that exists has its files.

    Args:
        runs: the run table.
        fit: its fit, fresh and not read from a file.
        out: the folder, made if missing; files of an earlier report are replaced.
        title: of the page.
        facts: provenance to print, such as the git revision; plain text.
        spec_text: the study's specification, printed as it is.
        cells: finished and planned ones of a study that is not finished.
        next_runs: the runs of the next steps by a plan; without it they are estimated.
        attributes: other attributes of `Context`: entropy, curves, measures, search and costs.

    Raises:
        InputError: the run table has no usable row.
        ValueError: the fit has no study to draw.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    context = Context(runs, fit, **attributes)
    links = {"fit.json: every number above": "fit.json", "runs.csv: every row": "runs.csv"}
    first = first_figure(context)
    page = Page(
        title=title,
        answers=findings(fit),
        confidence=confidence(fit),
        unfinished=cells,
        figures=[first],
        sizes=excess.sizes_json(first.table, fit) if first.name == "excess" else None,
        next_steps=next_steps(fit, next_runs),
        warnings=fit.warnings,
        sections=[*study_sections(context, first), provenance(facts or {}, links, spec_text)],
    )
    colours = palette.variables(
        depth=len(context.colours),
        value=len(context.graded[1].axis.labels) if context.graded else 0,
    )
    write_json(folder / "fit.json", fit.to_json(next_runs))
    runs.write_csv(folder / "runs.csv")
    return write_page(folder, page, NAMES, colours)


def study_figures(runs: RunTable, fit: Fit, **attributes: Any) -> list[Figure]:
    """Return every figure of the page, in its order; the arguments and the ValueError are those of `write_report`."""
    context = Context(runs, fit, **attributes)
    first = first_figure(context)
    sections = study_sections(context, first)
    return [first, *(figure for section in sections for figure in section.figures)]


def first_figure(context: Context) -> Figure:
    """The figure of the first screen: what each depth costs, or the losses if no two depths can be compared.

    Depths of a study at equal FLOPs or training time are compared at these, not at equal N.
    """
    few = "one depth only" if len(context.colours) == 1 else "too few sizes with two depths to compare"
    few = few if context.fit.tokens.comparable else "the training tokens differ, so no depths are compared"
    if context.fit.tokens.rule == "compute":
        few = f"at several {'FLOPs' if context.fit.tokens.budget_unit == 'FLOPs' else 'training times'}"
        if (drawn := at_budget.figure(context)) is not None:
            return drawn
    return excess.figure(context) or replace(loss.figure(context), title=f"Loss against size: {few}")


def study_sections(context: Context, first: Figure) -> list[PageSection]:
    """The sections below the answer, without the figure `first`; the page leaves out those without content."""
    runs, fit, graded = context.runs, context.fit, context.graded
    losses = () if first.name == "loss" else (loss.figure,)
    by_budget = () if first.name == "at_budget" else (at_budget.figure,)
    measured = (*losses, loss.accuracy_figure, _graded_figure, transition.figure, diagnostics.figure)
    needed = needed_table(*graded) if graded else None
    crossings = crossings_table(fit)
    # No law holds for crossings in FLOPs or time.
    has_laws = fit.crossings and fit.tokens.rule != "compute"
    laws = [laws_table(fit), law_reasons_table(fit)] if has_laws else []
    about_laws = [law_sentence(fit)] if laws else []
    used = [] if fit.left_out else ["Every row of the run table is used."]
    costs = [cost_table(runs), unusual_table(fit), diverged_table(fit), reasons_table(fit)]
    return [
        PageSection("What was measured", [about_sentences(fit)], _made(context, *measured), folded=False),
        PageSection(
            "Shapes in numbers", [], _made(context, *by_budget), [needed, compute_table(fit), best_table(fit)]
        ),
        PageSection(
            "What a depth gains, what it costs",
            figures=_made(context, cost_figure.figure),
            tables=[gains_table(fit, context.costs)],
        ),
        PageSection(
            "Crossings", [STATUS_WORDS] if crossings else [], _made(context, gaps.figure), [crossings]
        ),
        PageSection("The law and its alternatives", about_laws, _made(context, best_depth.figure), laws),
        PageSection("The learning rate", tables=[rate_shifts_table(fit)]),
        PageSection("The search", [search_sentence(context)]),
        PageSection("Runs and cost", used, _made(context, diagnostics.training_figure), costs),
    ]


def _graded_figure(context: Context) -> Figure | None:
    """Accuracy against depth by difficulty; None with fewer than two difficulties."""
    title = "Accuracy against depth, one line per difficulty"
    if context.graded is None:
        return None
    key, data = context.graded
    return measure_figure(data, key, "accuracy_graded", title)


def _made(context: Context, *makers: Callable[[Context], Figure | None]) -> list[Figure]:
    """The figures that the data allow."""
    return [figure for maker in makers if (figure := maker(context)) is not None]
