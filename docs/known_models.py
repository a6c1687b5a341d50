"""Draws the figure of docs/known-models.md: well-known models beside the depths that lose next to nothing by each law.

.venv/bin/python docs/known_models.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.audit.evidence import Evidence, published_evidence
from analysis.audit.known_models import KnownModel, known_models
from analysis.law.near_optimal import Within, within_words
from analysis.report.figures import palette
from analysis.report.figures.canvas import LINE, STYLE, count_axis, set_ticks
from core.numbers import short

#: Size in inches, at 100 dots per inch.
FIGURE_SIZE = (8.0, 5.2)
#: Models whose names are written in the figure; others share a place with one of them or are close to it.
NAMES_BELOW = (
    "GPT-2 124M", "Qwen2.5 0.5B", "Llama 3.2 1B", "SmolLM3 3B", "Gemma 7B", "Llama 3 8B", "Pythia 12B", "Qwen3 32B",
    "Llama 65B", "BLOOM 176B",
)  # fmt: skip
NAMES_ABOVE = ("SmolLM2 135M", "GPT-2 XL", "GPT-3 175B", "Gemma 2 9B", "Gemma 2 27B", "Llama 405B")


def known_figure(models: Sequence[KnownModel], within: Within) -> Figure:
    """Draw the models, the depths within `within` nats of the best by each law of the loss, and the law of depths.

    What lies outside the sizes of a law's models is hatched or dotted.
    """
    levine, *others = published_evidence()
    audited = [model.audit.model for model in models]
    sizes = [model.law_params for model in audited]
    ends = (min(sizes) / 1.5, max(sizes) * 3)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=FIGURE_SIZE, dpi=100, layout="constrained")
        axes = figure.subplots()
        for law, colour in zip(others, (palette.GOOD, palette.ACCENT), strict=True):
            for low, high, inside in _parts(law, ends):
                line = np.geomspace(low, high, LINE)
                ranges = [
                    (size, near.depths) for size in line if (near := law.losses(float(size), None, within))
                ]
                if not ranges:
                    continue
                places, depths = zip(*ranges, strict=True)
                look: dict[str, Any] = {"facecolor": "none", "alpha": 0.45, "hatch": "////"}
                if inside:
                    label = f"within {within_words(within)} of the best, {law.name}"
                    look = {"facecolor": colour, "alpha": 0.3, "label": label}
                lows, highs = zip(*depths, strict=True)
                axes.fill_between(places, lows, highs, edgecolor=colour, linewidth=0, **look)
        for low, high, inside in _parts(levine, ends):
            line = np.geomspace(low, high, LINE)
            best = [levine.best(float(size)).depth_exact or np.nan for size in line]
            named = f"best depth, {levine.name}" if inside else None
            axes.plot(line, best, "-" if inside else ":", color=palette.MUTED, label=named)
        axes.plot(sizes, [model.depth for model in audited], "o", color=palette.INK, markersize=5)
        offsets = {**dict.fromkeys(NAMES_BELOW, (5, -11)), **dict.fromkeys(NAMES_ABOVE, (-4, 6))}
        for model in audited:
            if offset := offsets.get(model.name):
                place = (model.law_params, model.depth)
                axes.annotate(model.name, place, offset, textcoords="offset points", fontsize=8.5)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(9, 260))
        axes.set(xlabel="N = 12·L·d²", ylabel="depth L (layers)")
        count_axis(axes.xaxis, 5)
        set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5)), short)
        axes.legend(loc="upper left", title="hatched, dotted: outside the data of the law", alignment="left")
    FigureCanvasAgg(figure)
    return figure


def _parts(law: Evidence, ends: tuple[float, float]) -> list[tuple[float, float, bool]]:
    """The ranges of N below, inside and above the sizes of a law that are not empty, and which is inside."""
    assert law.sizes is not None
    (left, right), (low, high) = ends, law.sizes
    inside = (max(left, low), min(right, high), True)
    parts = [(left, min(low, right), False), inside, (max(high, left), right, False)]
    return [part for part in parts if part[0] < part[1]]


if __name__ == "__main__":
    page = Path(__file__).with_name("known-models.png")
    # Without the version of the library, so that the same drawing is the same file.
    known_figure(known_models(), None).savefig(page, metadata={"Software": None})
    print(f"Wrote {page}")
