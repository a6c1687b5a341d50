"""The figure of the well-known models: depth against size, with what each law says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.errors import InputError
from analysis.law.threshold_law import LEVINE2020
from analysis.numbers import short
from analysis.report.figures import palette
from analysis.report.figures.canvas import LINE, STYLE, count_axis, set_ticks
from study.results.known_models import Evidence, KnownModel, evidence

#: Formats of the file, by its ending.
FORMATS = (".png", ".svg", ".pdf")
#: Inches, at 100 dots per inch.
SIZE = (8.0, 5.2)
#: Models whose names are written beside their marks; others share a place with one of them or stand close to it.
NAMED = (
    "GPT-2 124M", "SmolLM2 135M", "Qwen2.5 0.5B", "Llama 3.2 1B", "GPT-2 XL", "SmolLM3 3B", "Gemma 7B", "Llama 3 8B",
    "Gemma 2 9B", "Pythia 12B", "Gemma 2 27B", "Qwen3 32B", "Llama 65B", "GPT-3 175B", "BLOOM 176B", "Llama 405B",
)  # fmt: skip
ABOVE = ("SmolLM2 135M", "GPT-2 XL", "GPT-3 175B", "Gemma 2 9B", "Gemma 2 27B", "Llama 405B")


def known_figure(models: Sequence[KnownModel], within: float) -> Figure:
    """Draw the models, the depths within `within` nats of the best by each law of the loss, and the law of depths.

    What lies outside the sizes of a law's models is hatched or dashed.
    """
    levine, *others = evidence()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
        axes = figure.subplots()
        sizes = [known.model.law_params for known in models]
        ends = (min(sizes) / 1.5, max(sizes) * 3)
        for law, colour in zip(others, (palette.GOOD, palette.ACCENT), strict=True):
            _draw_band(axes, law, ends, within, colour)
        for (low, high), dashes in _parts(levine, ends):
            line = np.geomspace(low, high, LINE)
            depths = [LEVINE2020.best_depth(float(size)) or np.nan for size in line]
            label = f"best depth, {levine.name}" if dashes == "-" else None
            axes.plot(line, depths, dashes, color=palette.MUTED, label=label)
        axes.plot(sizes, [known.model.depth for known in models], "o", color=palette.INK, markersize=5)
        for known in models:
            if known.model.name in NAMED:
                place = (known.model.law_params, known.model.depth)
                offset = (-4, 6) if known.model.name in ABOVE else (5, -11)
                axes.annotate(known.model.name, place, offset, textcoords="offset points", fontsize=8.5)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(9, 260))
        axes.set(xlabel="N = 12·L·d²", ylabel="depth L (layers)")
        count_axis(axes.xaxis, 5)
        set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5)), short)
        axes.legend(loc="upper left", title="hatched, dotted: outside the data of the law", alignment="left")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending.

    Raises:
        InputError: another ending, or the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"--figure {path} must end in {', '.join(FORMATS)}, which names its format.")
    try:
        with mpl.rc_context({"svg.hashsalt": "known"}):
            metadata = {"Software": None} if path.suffix == ".png" else None
            figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)
    except OSError as error:
        raise InputError(f"The figure cannot be written to {path}: {error}. Name another file.") from error


def _draw_band(axes: Any, law: Evidence, ends: tuple[float, float], within: float, colour: str) -> None:
    for (low, high), dashes in _parts(law, ends):
        line = np.geomspace(low, high, LINE)
        found = [(size, near.depths) for size in line if law.losses and (near := law.losses(size, 1, within))]
        if not found:
            continue
        places, depths = zip(*found, strict=True)
        lows, highs = zip(*depths, strict=True)
        is_inside = dashes == "-"
        axes.fill_between(
            places, lows, highs, facecolor=colour if is_inside else "none", edgecolor=colour,
            alpha=0.3 if is_inside else 0.45, hatch=None if is_inside else "////", linewidth=0,
            label=f"within {within:g} nats of the best, {law.name}" if is_inside else None,
        )  # fmt: skip


def _parts(law: Evidence, ends: tuple[float, float]) -> list[tuple[tuple[float, float], str]]:
    """The ranges of N below, inside and above the sizes of a law, those that are not empty, and their line style."""
    (left, right), (low, high) = ends, law.sizes
    parts = [
        ((left, min(low, right)), ":"),
        ((max(left, low), min(right, high)), "-"),
        ((max(high, left), right), ":"),
    ]
    return [(part, dashes) for part, dashes in parts if part[0] < part[1]]
