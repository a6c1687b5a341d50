"""The figures of a report: which ones the data allow, their words, and how they become files.

What a figure shows is in `analysis.report.figures.frames`, `kaplan_data`, `move_data`, `search_history` and `diagnostics_data`,
how it is drawn in `analysis.report.figures.canvas`, `drawing_kaplan`, `drawing_law`, `drawing_map`, `drawing_search` and
`drawing_diagnostics`.
"""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis.design.history import SearchData
from analysis.fit.crossing_shift import LEARNING_RATE
from analysis.fit.document import Fit
from analysis.fit.kaplan import NEAR
from analysis.fit.sentences import count_phrase, percent, seeds_phrase
from analysis.numbers import digits
from analysis.report.extras import drawing_accuracy, drawing_diagnostics, drawing_kaplan
from analysis.report.extras import search as drawing_search
from analysis.report.extras import series as drawing_series
from analysis.report.extras.accuracy import accuracy_data, graded_accuracy
from analysis.report.extras.diagnostics import diagnostics_data
from analysis.report.extras.drawing_kaplan import is_steep
from analysis.report.extras.kaplan import KaplanData, kaplan_data, no_kaplan
from analysis.report.extras.shifts import by_key, draw_shifts, shift_caption, shift_data
from analysis.report.figures import canvas as drawing
from analysis.report.figures import frontier_map as drawing_map
from analysis.report.figures import palette
from analysis.report.figures import transition as drawing_law
from analysis.report.figures.frames import (
    LEAST_SHAPES,
    evidence_of,
    frontier_data,
    gap_data,
    health_data,
    loss_data,
    no_residuals,
    profile_data,
    residual_data,
    rivals_data,
    training_data,
    transition_data,
)
from analysis.runs.table import RunTable

#: Family of curves -> words.
FAMILIES = {
    "power": "power laws with an offset and one exponent for all depths",
    "power-own": "power laws with an offset and an exponent for each depth",
    "quadratic": "quadratics in ln N",
    "spline": "monotone splines in ln N",
}


class Data(Protocol):
    """What a figure shows."""

    def table(self) -> pd.DataFrame:
        """The numbers, for a CSV."""
        ...


@dataclass(frozen=True)
class Figure:
    """One figure: its data, words, and how it is drawn.

    Attributes:
        name: of its files.
        title, caption: plain text, for the page.
        data: what it shows.
        draw: makes the drawing.
    """

    name: str
    title: str
    caption: str
    data: Data
    draw: Callable[[], Canvas]

    def render(self) -> tuple[bytes, bytes]:
        """(SVG, PNG) on white, the same bytes for the same data."""
        with mpl.rc_context({**drawing.STYLE, "svg.hashsalt": self.name}):
            canvas = self.draw()
            FigureCanvasAgg(canvas)
            svg, png = io.BytesIO(), io.BytesIO()
            # The layout holds for both files. It is found here because each saving would draw all once more to find it.
            engine = canvas.get_layout_engine()
            if engine is not None:
                engine.execute(canvas)
                canvas.set_layout_engine(None)
            # No date and no version: equal data give equal files.
            canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
            canvas.savefig(png, format="png", dpi=150, metadata={"Software": None}, facecolor="white")
        return svg.getvalue(), png.getvalue()


@dataclass(frozen=True)
class Absent:
    """A figure that the data do not allow, and why, as a clause."""

    name: str
    title: str
    reason: str


TITLES = {
    "loss": "Loss against size, one curve a depth",
    "accuracy": "Accuracy against size, one line a depth",
    "accuracy_graded": "Accuracy against depth, one line a difficulty",
    "gaps": "Where the deeper model takes the lead",
    "depth_profile": "Loss against depth at fixed size",
    "frontier": "What a wrong shape costs",
    "transition": "The width at which depth starts to pay",
    "residuals": "How well the law holds, and what each crossing does to it",
    "rivals": "The best depth by each law",
    "kaplan": "Size, shape and count, as Kaplan et al. 2020 drew them",
    "health": "Run health",
    "training": "Loss during training",
    "sensitivity": "The crossings at other learning rates",
    "parametrisation": "The crossings under other parametrisations",
    "search": "How the search went",
    "diagnostics": "Inside the models, layer by layer",
}

#: Changed key -> its figure.
SHIFT_FIGURES = {LEARNING_RATE: "sensitivity", "training.parametrisation": "parametrisation"}

#: Figures of what only some studies have; where they are absent nothing is missing.
OCCASIONAL = frozenset(
    {"accuracy", "accuracy_graded", "training", "sensitivity", "parametrisation", "search", "diagnostics"}
)


def make_figures(
    runs: RunTable,
    fit: Fit,
    *,
    entropy: float | None = None,
    curves: pd.DataFrame | None = None,
    search: SearchData | None = None,
    measures: pd.DataFrame | None = None,
) -> list[Figure]:
    """Every figure that the data allow, in the order of the report.

    Args:
        runs: the run table.
        fit: its fit, with its evidence.
        entropy: entropy of the data in nats a token, drawn as a dotted line.
        curves: training curves (cell, step, loss), optional.
        search: how the rows were chosen, optional.
        measures: of the layers (cell, step, name, layer, value), optional.

    Raises:
        ValueError: the fit was read from a file and has no evidence.
    """
    colours = depth_colours(runs)
    about = about_phrase(fit)
    figures: list[Figure] = []

    def add(name: str, caption: str, data: Data, draw: Callable[[], Canvas]) -> None:
        figures.append(Figure(name, TITLES[name], f"{caption} {about}", data, draw))

    loss = loss_data(fit, entropy)
    size_label = (
        "parameters N, the table's count" if fit.count == "table" else "non-embedding parameters N = 12·L·d²"
    )
    marks = (
        "Marks are mean losses over seeds; bars run from the lowest to the highest seed."
        if fit.noise.get("seeds", 1) > 1
        else "Each mark is the loss of one shape, from one seed."
    )
    told = " The dotted line is the exact entropy of the data, which no model can beat."
    end = "" if entropy is None else told
    add(
        "loss",
        f"{marks} {curves_phrase(fit)}{end}",
        loss,
        lambda: drawing.draw_loss(loss, colours, size_label),
    )
    accuracy = accuracy_data(fit)
    if accuracy is not None:
        add(
            "accuracy",
            "Share of the targets asked for in the validation set that the model puts first, mean over the seeds; bars "
            "run from the lowest to the highest seed.",
            accuracy,
            lambda: drawing_accuracy.draw_accuracy(accuracy, colours, size_label),
        )
    graded = graded_accuracy(fit)
    if graded is not None:
        key, by_depth = graded
        add(
            "accuracy_graded",
            by_depth.caption,
            by_depth,
            lambda: drawing_series.draw_measure(by_depth, key),
        )
    gaps = gap_data(fit)
    if gaps is not None:
        shown = (
            f" {len(gaps.panels)} of {_drawable(fit)} pairs are shown."
            if _drawable(fit) > len(gaps.panels)
            else ""
        )
        add(
            "gaps",
            "Loss of the shallower model minus loss of the deeper one: above zero the deeper is better. "
            f"{_noise_words(fit)}{_lead_words(fit)} Ticks at the foot are the sizes measured.{shown}",
            gaps,
            lambda: drawing_law.draw_gaps(gaps),
        )
    profile = profile_data(fit)
    if profile is not None:
        near = (
            "Shaded and ringed is the near-optimal set: depths that cannot be told from the best one (less than two "
            "standard errors of the paired difference)."
            if fit.noise.get("known")
            else "Which depths cannot be told from it is not known, because there is no noise estimate."
        )
        add(
            "depth_profile",
            f"One line a budget, read off the curves at one N. The filled mark is the lowest loss. {near}",
            profile,
            lambda: drawing.draw_profile(profile),
        )
    frontier = frontier_data(fit)
    if frontier is not None:
        line = " The line is the best shape at each N by the threshold law." if len(frontier.line) else ""
        lost = " A cross marks a shape with runs that diverged." if len(frontier.diverged) else ""
        few = len(frontier.shapes) <= drawing_map.MAX_NUMBERS
        numbers = "Numbers, in thousandths of a nat," if few else "Dots"
        alone = int(frontier.shapes["excess"].isna().sum())
        single = f" {alone} shapes (small rings) have no other depth at their N." if alone else ""
        add(
            "frontier",
            f"Loss above the best depth of the same N, read off the curves, where they are measured. {numbers} mark "
            f"the measured shapes; a star marks one that is the best at its N.{line}{lost}{single}",
            frontier,
            lambda: drawing_map.draw_frontier(frontier),
        )
    transition = transition_data(fit)
    if transition is not None:
        add(
            "transition",
            f"Width of the shallower model where the next deeper one overtakes it, with {percent(fit.level)} "
            "intervals; dashed bars run on beyond what was measured, arrows are bounds, hollow marks are not settled. "
            + (
                "The band holds every law that cannot be rejected (where it reaches the frame, the data set no limit); "
                "the dotted line is a power law through the same crossings. "
                if "width" in transition.line
                else ""
            )
            + "The dashed line is the published law for 6 to 48 layers on English text: another regime, shown for its "
            "slope, not as a prediction.",
            transition,
            lambda: drawing_law.draw_transition(transition, colours),
        )
    residuals = residual_data(fit)
    if residuals is not None:
        scatter = (
            f" The shaded span is the scatter beyond those intervals, ±{digits(residuals.scatter)}."
            if residuals.scatter > 0
            else ""
        )
        add(
            "residuals",
            f"Left: ln d of each crossing less the law, with its {percent(fit.level)} interval.{scatter} Right: the "
            "slope of the law through the other pairs only; the line and the shaded span are slope and interval with "
            "all.",
            residuals,
            lambda: drawing_law.draw_residuals(residuals),
        )
    rivals = rivals_data(fit)
    if rivals is not None:
        band = f" with its {percent(fit.level)} band" if len(rivals.band) else ""
        add(
            "rivals",
            f"The depth each law names for a size, from the same data{band}. Points are the best depths measured, "
            "bars the depths that cannot be told from them; the shaded range of N was measured, all beyond it is "
            "extrapolation.",
            rivals,
            lambda: drawing_map.draw_rivals(rivals),
        )
    shaped = kaplan_data(fit)
    if shaped is not None:
        add(
            "kaplan",
            kaplan_caption(shaped, fit),
            shaped,
            lambda: drawing_kaplan.draw_kaplan(shaped, colours, size_label),
        )
    health = health_data(runs, fit)
    add(
        "health",
        f"What became of all {len(runs.frame)} rows, and the training time of those that finished.",
        health,
        lambda: drawing.draw_health(health, colours),
    )
    training = None if curves is None else training_data(runs, curves)
    if training is not None and len(training.rows):
        add(
            "training",
            f"Every finished cell, coloured by depth ({training.rows['cell'].nunique()} cells).",
            training,
            lambda: drawing.draw_training(training, colours),
        )
    inside = None if measures is None else diagnostics_data(runs, measures)
    if inside is not None:
        add(
            "diagnostics",
            inside.caption,
            inside,
            lambda: drawing_diagnostics.draw_diagnostics(inside, colours),
        )
    _add_shifts(fit, add)
    if search is not None:
        add("search", search_caption(search), search, lambda: drawing_search.draw_search(search, colours))
    return figures


def _add_shifts(fit: Fit, add: Callable[[str, str, Data, Callable[[], Canvas]], None]) -> None:
    """The crossings at other learning rates, and those under other parametrisations."""
    for key, studies in by_key(fit.shifts).items():
        data = shift_data(studies)
        if data is not None:
            add(SHIFT_FIGURES[key], shift_caption(studies), data, partial(draw_shifts, data))


def search_caption(search: SearchData) -> str:
    """What the three panels of a search show."""
    grid = (
        "The broken line is what the spec's whole grid is expected to reach, one seed after the other: the median of "
        "studies simulated from this study's own curves and noise."
        if len(search.grid)
        else "What a grid would have reached cannot be simulated from so few rows."
    )
    asked = " The dotted line is what was asked for." if search.stop_when is not None else ""
    return (
        "Above: every cell in the order they ended; hollow marks are forecasts of cells that were stopped, crosses "
        "cells without a loss. Below: what was known after them, left the estimate with its interval where that is "
        f"closed, right the half-width of the interval (a share of the value; for crossings, in ln N). {grid}{asked}"
    )


def kaplan_caption(data: KaplanData, fit: Fit) -> str:
    """What the two or three panels of Kaplan's figure show."""
    above = (
        "Above: the same losses and curves against N and against all parameters, embeddings included"
        if data.both
        else "Above: the losses against N; the table has no count of all parameters to draw them against as well"
    )
    laws = " broken and dotted lines are the power laws of the table below"
    text = f"{above}; both axes are logarithmic,{laws}."
    if data.aspects.empty:
        return text
    bars = (
        f"; bars are the {percent(fit.level)} interval of the paired difference"
        if fit.noise.get("known")
        else ""
    )
    steep = "; above it the axis is logarithmic" if is_steep(data) else ""
    return (
        f"{text} Below: how far the loss of each depth lies above that of the best one at the same N, against the "
        f"aspect ratio d/L of its shape, one line a budget{bars}. The dotted line is {NEAR:g} %{steep}."
    )


def absent_figures(fit: Fit, drawn: list[Figure]) -> list[Absent]:
    """The figures a report should have and has not, each with its reason."""
    there = {figure.name for figure in drawn}
    no_pair = "no two depths have two sizes each and a common range of N"
    no_size = "no two depths can be compared at one N"
    law = fit.law.reason or "no law names a depth"
    reasons = {
        "gaps": no_pair,
        "depth_profile": no_size,
        "frontier": f"fewer than {LEAST_SHAPES}, or less than half, of the shapes have another depth at their N",
        "transition": "there is no law, and no pair of neighbouring depths has a settled crossing or a bound",
        "residuals": no_residuals(fit) or "",
        "rivals": law,
        "kaplan": no_kaplan(fit) or "",
    }
    return [Absent(name, TITLES[name], reason) for name, reason in reasons.items() if name not in there]


def depth_colours(runs: RunTable) -> dict[int, str]:
    """Depth -> colour (light edition), ordered by depth."""
    depths = sorted(set(runs.used["depth"]))
    return {int(d): light for d, (light, _) in zip(depths, palette.sequence(len(depths)), strict=True)}


def inline_svg(svg: bytes, label: str, colours: Mapping[str, tuple[str, str]]) -> str:
    """The `<svg>` element for an HTML page: no header, no fixed size, colours as CSS variables.

    Args:
        svg: as rendered.
        label: plain text for readers who cannot see it.
        colours: CSS name -> (light, dark), see `analysis.report.figures.palette.variables`.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    head, body = text[: text.index(">") + 1], text[text.index(">") + 1 :]
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    escaped = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    head = head.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1)
    # matplotlib's metadata block names vocabularies by address; the page shall name none.
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Several drawings share a page, so only ids that are referred to (and are hashes) may stay.
    used = set(re.findall(r"[\"(]#([^\")]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", body)
    for name, (light, _) in colours.items():
        body = body.replace(light, f"var(--{name})")
    body = body.replace("fill: #ffffff", "fill: var(--paper)").replace("'DejaVu Sans'", "inherit")
    return head + body


def about_phrase(fit: Fit) -> str:
    """Counts, seeds, tokens and the way parameters are counted, for every caption."""
    shapes = len(evidence_of(fit).curves.x)
    tokens = f" {fit.tokens.sentence}" if fit.tokens.sentence else ""
    return (
        f"{fit.used} runs of {shapes} shape{'' if shapes == 1 else 's'}, {seeds_phrase(fit.noise)}.{tokens} "
        f"{count_phrase(fit.count)}."
    )


def curves_phrase(fit: Fit) -> str:
    """The family of curves and how far the points stray from them."""
    curves = evidence_of(fit).curves
    if all(len(curves.at(depth)) < 2 for depth in curves.depths):
        return "No depth has two sizes, so there are no curves."
    family = FAMILIES.get(curves.smooth.family, curves.smooth.family)
    text = f"The curves are {family}"
    spare = len(curves.x) - curves.smooth.parameters
    if spare < 1:
        return f"{text}, with as many parameters as points: their fit cannot be tested."
    if curves.noise.source != "seeds" or curves.misfit_p is None:
        return f"{text}; the points stray from them by {float((curves.residual**2).mean()) ** 0.5:.2g} nats (rms)."
    if curves.misfit_rms == 0:
        return (
            f"{text}; the points stray from them by no more than the seed noise (p = {curves.misfit_p:.2g})."
        )
    return (
        f"{text}; the points stray from them by {curves.misfit_rms:.2g} nats beyond the seed noise "
        f"(lack of fit, p = {curves.misfit_p:.2g}), which every interval allows for."
    )


def _drawable(fit: Fit) -> int:
    return sum(item.status != "insufficient" for item in fit.crossings)


def _noise_words(fit: Fit) -> str:
    level = percent(fit.level)
    if not fit.noise.get("known"):
        return "There is no ribbon and no interval, because there is no estimate of the noise."
    source = (
        "the noise of all shapes and seeds and the misfit of the curves"
        if fit.noise.get("source") == "seeds"
        else "the scatter about the curves, because there is one seed"
    )
    return (
        f"The ribbon is the {level} confidence of the gap, from {source}; the shaded span, where zero lies inside the "
        f"ribbon, is the {level} interval of the crossing, and the bar on the zero line the same by the bootstrap "
        "(both end where the measured range ends)."
    )


def _lead_words(fit: Fit) -> str:
    delta = next((item.delta for item in fit.crossings if item.delta), None)
    if delta is None:
        return ""
    return f" The broken line is a lead of {percent(delta)} of the loss, the triangle where it is reached."
