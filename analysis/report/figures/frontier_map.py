"""Drawing of the two maps: excess loss over depth and width, and the depth each law names against N."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from analysis.fit.sentences import law_name
from analysis.report.figures import palette
from analysis.report.figures.canvas import Axes, count_axis, depth_axis, new_canvas, size_axis
from analysis.report.figures.frames import FrontierData, RivalsData

#: Classes of excess loss, nats a token: bounds that a reader can remember.
FINE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
COARSE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MAX_CLASSES = 8
#: Measured shapes that have their number written in the map.
MAX_NUMBERS = 48
#: Dashes and marks of the laws: never told apart by colour alone.
DASHES: Mapping[str, Any] = {
    "log-linear": "-",
    "power": (0, (1, 1.4)),
    "additive": (0, (5, 2)),
    "aspect": (0, (2, 2)),
    "response": (0, (5, 2, 1, 2)),
}
#: Deepest model that is drawn; a law that names more leaves the frame.
DEEPEST = 2000.0


def draw_frontier(data: FrontierData) -> Canvas:
    """Excess loss by classes where it is measured, shapes with their numbers, the law's line, what diverged."""
    canvas, axes = new_canvas(4.9)
    worst = float(np.nanmax([data.shapes["excess"].max(), data.cells["excess"].max()]))
    bounds = excess_bounds(worst)
    colours = palette.heat(len(bounds) - 1)
    norm = BoundaryNorm(bounds, len(colours))
    depths = sorted({int(depth) for depth in data.shapes["depth"]})
    edges = _edges(depths)
    boxes, faces = [], []
    for depth, low, high, which in strips(data.cells, bounds):
        left, right = edges[depth]
        boxes.append(Rectangle((left, low), right - left, high - low))
        faces.append(colours[which])
    axes.add_collection(PatchCollection(boxes, facecolors=faces, edgecolors="none", zorder=1))
    widths = pd.concat([data.shapes["width"], data.diverged["width"]]).to_numpy(dtype=float)
    axes.set_ylim(float(widths.min()) / 1.3, float(widths.max()) * 1.3)
    lost = [int(depth) for depth in data.diverged["depth"]]
    first, last = min([*depths, *lost]), max([*depths, *lost])
    axes.set_xlim(min(edges[depths[0]][0], first / 1.15), max(edges[depths[-1]][1], last * 1.15))
    # After the limits: shapes of one width have no range of their own to set a log axis by.
    axes.set_xscale("log")
    axes.set_yscale("log")
    numbers = len(data.shapes) <= MAX_NUMBERS
    lost_shapes = set(zip(data.diverged["depth"], data.diverged["width"], strict=True))
    for shape in data.shapes.to_dict("records"):
        if (shape["depth"], shape["width"]) not in lost_shapes:
            _draw_shape(axes, shape, bounds, colours, numbers)
    halo = [withStroke(linewidth=3.4, foreground=palette.PAPER)]
    axes.scatter(
        data.diverged["depth"],
        data.diverged["width"],
        marker="x",
        s=70,
        color=palette.BAD,
        linewidths=2.4,
        zorder=6,
        path_effects=halo,
    )
    for shape in data.diverged.to_dict("records"):
        words = f"{shape['diverged']:.0f} of {shape['of']:.0f} diverged"
        place = (shape["depth"], shape["width"])
        axes.annotate(
            words,
            place,
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=palette.BAD,
            path_effects=halo,
            zorder=6,
        )
    if len(data.line):
        thick = [withStroke(linewidth=4.4, foreground=palette.PAPER)]
        axes.plot(
            data.line["depth"], data.line["width"], color=palette.ACCENT, linewidth=2, path_effects=thick
        )
    bar = canvas.colorbar(
        _scale(norm, colours), ax=axes, ticks=bounds, spacing="uniform", fraction=0.05, pad=0.02
    )
    bar.ax.set_yticklabels([f"{value:g}" for value in bounds])
    bar.set_label("loss above the best depth of the same N (nats)")
    bar.outline.set_visible(False)
    depth_axis(axes, depths)
    low, high = axes.get_ylim()
    count_axis(axes.yaxis, math.log10(high / low))
    axes.grid(visible=False)
    axes.set_xlabel("depth L (layers)")
    axes.set_ylabel("width d")
    return canvas


def excess_bounds(worst: float) -> list[float]:
    """Bounds of at most `MAX_CLASSES` classes of excess loss, the last of which holds `worst`."""
    for steps in (FINE, COARSE):
        below = [bound for bound in steps if bound < worst]
        if len(below) < MAX_CLASSES or steps is COARSE:
            last = steps[len(below)] if len(below) < len(steps) else worst
            return [0.0, *below[-(MAX_CLASSES - 1) :], last]
    raise AssertionError("the coarse steps end the loop")


def strips(cells: pd.DataFrame, bounds: list[float]) -> list[tuple[int, float, float, int]]:
    """(depth, lowest width, highest width, class): neighbouring cells of one class joined, so that no seam shows."""
    found: list[tuple[int, float, float, int]] = []
    for cell in cells.to_dict("records"):
        depth, low, high = int(cell["depth"]), float(cell["width_low"]), float(cell["width_high"])
        which = _class(cell["excess"], bounds)
        if found and (found[-1][0], found[-1][3]) == (depth, which) and math.isclose(found[-1][2], low):
            found[-1] = (depth, found[-1][1], high, which)
        else:
            found.append((depth, low, high, which))
    return found


def _class(excess: float, bounds: list[float]) -> int:
    return int(np.clip(np.searchsorted(bounds, excess, side="right") - 1, 0, len(bounds) - 2))


def _edges(depths: list[int]) -> dict[int, tuple[float, float]]:
    """Left and right edge of each depth's strip: half-way to its neighbours on a log axis, at most 0.3 away in ln L."""
    logs = np.log(depths)
    found = {}
    for index, depth in enumerate(depths):
        gaps = [
            abs(logs[index] - logs[other]) for other in (index - 1, index + 1) if 0 <= other < len(depths)
        ]
        half = min([0.3, *(gap / 2 for gap in gaps)])
        found[depth] = (depth * math.exp(-half), depth * math.exp(half))
    return found


def _draw_shape(
    axes: Axes, shape: Mapping[Any, Any], bounds: list[float], colours: list[str], numbers: bool
) -> None:
    """The excess of a measured shape in thousandths of a nat; a ring where it is the best depth."""
    place, excess = (shape["depth"], shape["width"]), shape["excess"]
    if np.isnan(excess):
        axes.plot(
            *place, marker="o", markersize=4, color=palette.MUTED, markerfacecolor=palette.PAPER, zorder=4
        )
        return
    face = colours[_class(excess, bounds)]
    ink = palette.on(face)
    best = shape["best_depth"] == shape["depth"]
    if best:
        axes.plot(
            *place,
            marker="*",
            markersize=11,
            color="#fffffe",
            markeredgecolor="#000000",
            linewidth=0.7,
            zorder=5,
        )
    elif numbers:
        text = f"{1000 * excess:.1f}" if excess < 0.00095 else f"{1000 * excess:.0f}"
        # The smallest and largest shape lie on the ends of a strip; the halo carries its colour on.
        halo = [withStroke(linewidth=5, foreground=face)]
        axes.annotate(
            text, place, ha="center", va="center", fontsize=8.5, color=ink, zorder=4, path_effects=halo
        )
    else:
        axes.plot(*place, marker="o", markersize=3, color=ink, zorder=4)


def _scale(norm: BoundaryNorm, colours: list[str]) -> Any:
    return ScalarMappable(norm=norm, cmap=ListedColormap(colours))


def draw_rivals(data: RivalsData) -> Canvas:
    """Best depth against N by each law, with the band of ours, what was measured, and the measured range shaded."""
    canvas, axes = new_canvas(4.6)
    axes.set_yscale("log")
    axes.axvspan(*data.measured, color=palette.MUTED, alpha=0.16, linewidth=0)
    drawn = np.concatenate([data.lines["depth"].dropna(), data.best["near_low"], data.best["near_high"]])
    top = min(float(drawn.max()), DEEPEST) * 1.5
    bottom = max(0.5, float(drawn.min())) / 1.3
    if len(data.band):
        low, high = data.band["low"].fillna(bottom), data.band["high"].fillna(top)
        axes.fill_between(data.band["params"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
    for law, rows in data.lines.groupby("law", sort=False):
        name = str(law)
        inside = rows[(rows["depth"] <= top) & (rows["depth"] >= bottom)]
        if inside.empty:
            continue
        colour = palette.LAWS.get(name, (palette.INK, ""))[0]
        width = 2.2 if name == "log-linear" else 1.8
        dashes = DASHES.get(name, "-")
        axes.plot(
            rows["params"],
            rows["depth"],
            color=colour,
            linestyle=dashes,
            linewidth=width,
            label=law_name(name),
        )
    for point in data.best.to_dict("records"):
        near = [point["near_low"], point["near_high"]]
        axes.plot([point["params"]] * 2, near, color=palette.INK, linewidth=3.4, alpha=0.3)
    axes.plot(
        data.best["params"],
        data.best["depth"],
        marker="o",
        color=palette.INK,
        markersize=5,
        linestyle="none",
        zorder=5,
        label="best measured",
    )
    axes.set_ylim(bottom, top)
    low_n, high_n = float(data.lines["params"].min()), float(data.lines["params"].max())
    axes.set_xlim(low_n / 1.5, high_n * 1.5)
    size_axis(axes)
    axes.annotate(
        "measured",
        (math.sqrt(data.measured[0] * data.measured[1]), 0.985),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="top",
        fontsize=8.5,
        color=palette.MUTED,
    )
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.set_xlabel("parameters N")
    axes.set_ylabel("best depth L by each law")
    # A line may leave the frame, so its name cannot stand at its end.
    canvas.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=3, handlelength=3.2)
    return canvas
