"""The report of a study: one page that needs no network, and every number and figure as a file."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.design.objective import estimate_from
from analysis.fit.document import Fit
from analysis.fit.sentences import (
    count_phrase,
    findings,
    law_sentence,
    lowest_loss_sentence,
    next_steps,
    noise_sentence,
)
from analysis.report.figures import best_depth, diagnostics, excess, gaps, loss, palette, transition
from analysis.report.figures.by_value import measure_figure
from analysis.report.figures.figure import Context, Figure, study_of_fit
from analysis.report.html import Page, Section, provenance, write_page
from analysis.report.tables import (
    best_table,
    compute_table,
    cost_table,
    crossings_table,
    diverged_table,
    law_reasons_table,
    laws_table,
    needed_table,
    rate_shifts_table,
    reasons_table,
    unusual_table,
)
from analysis.runs.table import RunTable
from core.files import write_json
from core.numbers import counted, scientific

#: Names of all figures; those of an earlier page that are not drawn any more are removed.
NAMES = (
    *("excess", "best_depth", "loss", "accuracy", "accuracy_graded", "transition", "diagnostics"),
    *("gaps", "search", "training"),
)
#: Words of the table of crossings.
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
    spec_text: str = "",
    cells: tuple[int, int] | None = None,
    **known: Any,
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
        known: other attributes of `Context`: entropy, curves, measures and search.

    Raises:
        InputError: the run table has no usable row.
        ValueError: the fit has no study to draw.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    context = Context(runs, fit, **known)
    links = {"fit.json: every number above": "fit.json", "runs.csv: every row": "runs.csv"}
    first = first_figure(context)
    page = Page(
        title=title,
        answers=findings(fit),
        confidence=confidence(fit),
        unfinished=cells,
        figures=[first],
        sizes=excess.sizes_json(first.table, fit) if first.name == "excess" else None,
        next_steps=next_steps(fit),
        warnings=fit.warnings,
        sections=[*study_sections(context, first), provenance(facts or {}, links, spec_text)],
    )
    colours = palette.variables(
        depth=len(context.colours),
        value=len(context.graded[1].axis.labels) if context.graded else 0,
    )
    write_json(folder / "fit.json", fit.to_json())
    runs.write_csv(folder / "runs.csv")
    return write_page(folder, page, NAMES, colours)


def study_figures(runs: RunTable, fit: Fit, **known: Any) -> list[Figure]:
    """Return every figure of the page, in its order; the arguments and the ValueError are those of `write_report`."""
    context = Context(runs, fit, **known)
    first = first_figure(context)
    sections = study_sections(context, first)
    return [first, *(figure for section in sections for figure in section.figures)]


def first_figure(context: Context) -> Figure:
    """The figure of the first screen: what each depth costs, or the losses if no two depths can be compared."""
    few = "one depth only" if len(context.colours) == 1 else "too few sizes with two depths to compare"
    few = few if context.fit.tokens.comparable else "the training tokens differ, so no depths are compared"
    few = "at several FLOPs" if context.fit.tokens.rule == "compute" else few
    return excess.figure(context) or replace(loss.figure(context), title=f"Loss against size: {few}")


def study_sections(context: Context, first: Figure) -> list[Section]:
    """The sections below the answer, without the figure `first`; the page leaves out those without content."""
    runs, fit, graded = context.runs, context.fit, context.graded
    losses = () if first.name == "loss" else (loss.figure,)
    measured = (*losses, loss.accuracy_figure, _graded_figure, transition.figure, diagnostics.figure)
    needed = needed_table(*graded) if graded else None
    crossings = crossings_table(fit)
    laws = [laws_table(fit), law_reasons_table(fit)] if fit.crossings else []
    about_laws = [law_sentence(fit)] if laws else []
    used = [] if fit.left_out else ["Every row of the run table is used."]
    costs = [cost_table(runs), unusual_table(fit), diverged_table(fit), reasons_table(fit)]
    return [
        Section("What was measured", [_about(fit)], _made(context, *measured), folded=False),
        Section("Shapes in numbers", tables=[needed, compute_table(fit), best_table(fit)]),
        Section("Crossings", [STATUS_WORDS] if crossings else [], _made(context, gaps.figure), [crossings]),
        Section("The law and its alternatives", about_laws, _made(context, best_depth.figure), laws),
        Section("The learning rate", tables=[rate_shifts_table(fit)]),
        Section("The search", [search_sentence(context)]),
        Section("Runs and cost", used, _made(context, diagnostics.training_figure), costs),
    ]


def confidence(fit: Fit) -> tuple[str, str] | None:
    """`settled`, `partly settled` or `not settled`, and why; None without a pair of depths."""
    at_compute = fit.tokens.rule == "compute"
    crossings = fit.crossings if not at_compute else fit.compute.crossings if fit.compute else ()
    if not crossings:
        return None
    settled = [item.settled for item in crossings]
    checked = fit.learning_rate is not None and fit.learning_rate.checked
    word = "settled" if all(settled) else "partly settled" if any(settled) else "not settled"
    if all(settled) and not checked:
        word = "settled at these learning rates"
    rate = "checked" if checked else "not checked"
    return word, f"{sum(settled)} of {counted(len(settled), 'pair')} of depths settled; learning rate {rate}"


def search_sentence(context: Context) -> str:
    """The work of a search, the estimate of its objective, and why it ended; empty without one."""
    if context.search is None:
        return ""
    study = study_of_fit(context.fit)
    cells = study.runs.frame
    work = f" for {scientific(float(cells['flops'].sum()))} training FLOPs" if "flops" in cells else ""
    found = estimate_from(study, context.search.objective)
    ended = context.search.ended
    parts = [f"The search trained {counted(len(cells), 'cell')}{work}.", found.words]
    return " ".join([*parts, ended[:1].upper() + ended[1:]]).strip()


def _about(fit: Fit) -> str:
    """The rows, shapes, seeds, noise and tokens, and how N is counted."""
    shapes, seeds = len(study_of_fit(fit).curves.x), counted(int(fit.noise.get("seeds", 1)), "seed")
    rows = f"{fit.used} of {fit.used + len(fit.left_out)} runs of {counted(shapes, 'shape')}, {seeds}."
    epochs = fit.epochs.sentence if fit.epochs else ""
    parts = [rows, noise_sentence(fit), lowest_loss_sentence(fit), fit.tokens.sentence, epochs]
    parts.append(f"{count_phrase(fit.count)}.")
    return " ".join(filter(None, parts))


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
