"""The figures of a report: which ones the data allow, their words, and how they become files.

What a figure shows is in `analysis.figure_data`, how it is drawn in `analysis.drawing`.
"""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis import drawing, palette
from analysis.figure_data import (
    gap_data,
    health_data,
    loss_data,
    profile_data,
    training_data,
    transition_data,
)
from analysis.fit import Fit
from analysis.runs import RunTable
from analysis.wording import human, human_range, percent


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
            # No date and no version: equal data give equal files.
            canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
            canvas.savefig(png, format="png", dpi=150, metadata={"Software": None}, facecolor="white")
        return svg.getvalue(), png.getvalue()


def make_figures(
    runs: RunTable, fit: Fit, *, floor: float | None = None, curves: pd.DataFrame | None = None
) -> list[Figure]:
    """Every figure that the data allow, in the order of the report.

    Args:
        runs: the run table.
        fit: its fit.
        floor: entropy of the data in nats a token, drawn as a dotted line.
        curves: training curves (cell, step, loss), optional.
    """
    colours = depth_colours(runs)
    about = _about(runs, fit)
    loss = loss_data(runs, floor)
    figures = [
        Figure(
            "loss",
            "Loss against size, one line a depth",
            f"Mean loss over seeds; bars run from the lowest to the highest seed. {about}"
            + (
                " The dotted line is the exact entropy of the data, which no model can beat." if floor else ""
            ),
            loss,
            lambda: drawing.draw_loss(loss, colours),
        )
    ]
    gaps = gap_data(runs, fit)
    if gaps is not None:
        figures.append(
            Figure(
                "gaps",
                "Where the deeper net takes the lead",
                "Loss of the shallower net minus loss of the deeper one: above zero the deeper is better. "
                f"{_noise_words(fit)} {about}",
                gaps,
                lambda: drawing.draw_gaps(gaps),
            )
        )
    profile = profile_data(fit)
    if profile is not None:
        figures.append(
            Figure(
                "depth_profile",
                "Loss against depth at fixed size",
                "One line a budget, losses interpolated to one N. The filled mark is the lowest loss; ringed "
                f"marks cannot be told from it (less than two standard errors away). {about}",
                profile,
                lambda: drawing.draw_profile(profile),
            )
        )
    transition = transition_data(fit)
    if transition is not None:
        figures.append(
            Figure(
                "transition",
                "The width at which depth starts to pay",
                "Width of the shallower net where the next deeper one overtakes it, with "
                f"{percent(fit.level)} intervals; arrows are bounds, hollow marks are not settled. The "
                "dashed line is the published law for 6 to 48 layers on English text: another regime, shown "
                f"for its slope, not as a prediction. {about}",
                transition,
                lambda: drawing.draw_transition(transition, colours),
            )
        )
    training = None if curves is None else training_data(runs, curves)
    if training is not None and len(training.rows):
        figures.append(
            Figure(
                "training",
                "Loss during training",
                f"Every used cell, coloured by depth ({training.rows['cell'].nunique()} cells).",
                training,
                lambda: drawing.draw_training(training, colours),
            )
        )
    health = health_data(runs)
    figures.append(
        Figure(
            "health",
            "Run health",
            f"What became of all {len(runs.frame)} rows, and the training time of the used ones.",
            health,
            lambda: drawing.draw_health(health, colours),
        )
    )
    return figures


def depth_colours(runs: RunTable) -> dict[int, str]:
    """Depth -> colour (light edition), ordered by depth."""
    depths = sorted(set(runs.used["depth"]))
    return {int(d): light for d, (light, _) in zip(depths, palette.sequence(len(depths)), strict=True)}


def inline_svg(svg: bytes, label: str, colours: Mapping[str, tuple[str, str]]) -> str:
    """The `<svg>` element for an HTML page: no header, no fixed size, colours as CSS variables.

    Args:
        svg: as rendered.
        label: plain text for readers who cannot see it.
        colours: CSS name -> (light, dark), see `analysis.palette.variables`.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    head, body = text[: text.index(">") + 1], text[text.index(">") + 1 :]
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    escaped = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    head = head.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1)
    # matplotlib's metadata block names vocabularies by address; the page shall name none.
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for name, (light, _) in colours.items():
        body = body.replace(light, f"var(--{name})")
    body = body.replace("fill: #ffffff", "fill: var(--paper)").replace("'DejaVu Sans'", "inherit")
    return head + body


def _about(runs: RunTable, fit: Fit) -> str:
    """Counts, seeds, tokens and the way parameters are counted, for every caption."""
    used = runs.used
    tokens = used["tokens"].dropna().unique()
    said = ""
    if len(tokens) == 1:
        said = f", {human(float(tokens[0]))} training tokens each"
    elif len(tokens) > 1:
        said = f", {human_range((float(tokens.min()), float(tokens.max())))} training tokens"
    seeds = int(fit.noise.get("seeds", 1))
    replicates = f"{seeds} seed{'' if seeds == 1 else 's'}"
    return f"{fit.used} runs, {replicates}{said}; N counts non-embedding parameters, 12·L·d²."


def _noise_words(fit: Fit) -> str:
    if not fit.noise.get("known"):
        return "There is no ribbon and no interval, because one seed gives no estimate of the noise."
    return (
        "The ribbon is two standard errors either way, from the seed noise of all shapes; "
        f"the shaded span is the {percent(fit.level)} interval of the crossing."
    )
