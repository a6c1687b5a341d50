"""Figure: the map of excess loss over depth and width."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from analysis.curves.budgets import enclosed
from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.document import Fit
from analysis.report.figures import palette
from analysis.report.figures.canvas import Axes, count_axis, depth_axis, new_canvas
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import LINE, concat, drawn_law, evidence_of, stack

NAME, TITLE = "frontier", "What a wrong shape costs"
#: A map needs this many shapes, and half of all, with another depth at their N.
LEAST_SHAPES = 4
#: Steps in width of one depth.
MAP_STEPS = 40
#: Bounds of the classes of excess loss, nats per token.
FINE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
COARSE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MAX_CLASSES = 8
#: Maximum number of measured shapes whose excess loss is written into the map.
MAX_NUMBERS = 48


@dataclass(frozen=True)
class FrontierData:
    """Excess loss over depth and width: above the best depth measured at the same N.

    Attributes:
        cells: depth, width_low, width_high, params, excess, best_depth: the curves in small steps of width.
        shapes: depth, width, params, excess, best_depth of the measured shapes; NaN if no other depth is measured
            at that N.
        line: depth, width of the law's best shapes; empty without a rising law.
        diverged: depth, width, params, diverged, of.
    """

    cells: pd.DataFrame
    shapes: pd.DataFrame
    line: pd.DataFrame
    diverged: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return stack(shape=self.shapes, cell=self.cells, law=self.line, diverged=self.diverged)


def figure(context: Context) -> Figure | Absent:
    """The map of excess loss."""
    data = frontier_data(context.fit)
    if data is None:
        reason = f"fewer than {LEAST_SHAPES}, or less than half, of the shapes have another depth at their N"
        return Absent(NAME, TITLE, reason)
    marks = "Numbers, in thousandths of a nat," if len(data.shapes) <= MAX_NUMBERS else "Dots"
    line = " The line is the best shape at each N by the threshold law." if len(data.line) else ""
    lost = " A cross marks a shape with rows that diverged." if len(data.diverged) else ""
    alone = int(data.shapes["excess"].isna().sum())
    single = f" {alone} shapes (small rings) have no other depth at their N." if alone else ""
    caption = (
        f"Loss above the best depth of the same N, read off the curves inside the measured range. {marks} mark the "
        f"measured shapes; a star marks the best at its N.{line}{lost}{single}"
    )
    return Figure(NAME, TITLE, caption, data, lambda: draw_frontier(data))


def frontier_data(fit: Fit) -> FrontierData | None:
    """The map of excess loss; None if fewer than `LEAST_SHAPES`, or than half, have another depth at their N."""
    evidence = evidence_of(fit)
    curves = evidence.curves
    widths = evidence.comparison.rows.groupby(["depth", "params"], sort=True)["width"].first().to_numpy(float)
    shapes, cells = [], []
    for depth in curves.depths:
        index = curves.at(depth)
        x, width = curves.x[index], widths[index]
        excess, best = _excess(curves, depth, x)
        measured = {"depth": depth, "width": width, "params": np.exp(x), "excess": excess, "best_depth": best}
        shapes.append(pd.DataFrame(measured))
        if len(index) < 2:
            continue
        edges = np.linspace(x[0], x[-1], MAP_STEPS + 1)
        middle = (edges[:-1] + edges[1:]) / 2
        excess, best = _excess(curves, depth, middle)
        # By the measured widths, not by sqrt(N / 12L): N may be counted in another way.
        ends = np.exp(np.interp(edges, x, np.log(width)))
        step = {"depth": depth, "width_low": ends[:-1], "width_high": ends[1:], "params": np.exp(middle)}
        cells.append(pd.DataFrame({**step, "excess": excess, "best_depth": best}).dropna())
    table = pd.concat(shapes, ignore_index=True)
    if table["excess"].notna().sum() < max(LEAST_SHAPES, len(table) / 2):
        return None
    law = drawn_law(fit)
    line = concat([], "depth", "width")
    if law is not None and law.b > 0:
        depths = np.geomspace(min(curves.depths) / 2, max(curves.depths) * 2, LINE)
        line = pd.DataFrame({"depth": depths, "width": np.exp(law.a + law.b * depths)})
    return FrontierData(
        concat(cells, "depth", "width_low", "width_high", "params", "excess", "best_depth"),
        table,
        line,
        pd.DataFrame(fit.diverged, columns=["depth", "width", "params", "diverged", "of"]),
    )


def _excess(curves: Curves, depth: int, x: Floats) -> tuple[Floats, Floats]:
    """Loss of `depth` above the lowest of the depths measured at each ln N, and that depth; NaN if it is alone."""
    excess, best = np.full(len(x), np.nan), np.full(len(x), np.nan)
    for place, value in enumerate(x):
        there = [other for other in curves.depths if other == depth or enclosed(curves, other, float(value))]
        if len(there) < 2:
            continue
        at = np.array([value])
        losses = [float(curves.loss(other, at)[0]) for other in there]
        lowest = int(np.argmin(losses))
        excess[place] = losses[there.index(depth)] - losses[lowest]
        best[place] = there[lowest]
    return excess, best


def draw_frontier(data: FrontierData) -> Canvas:
    """Draw excess loss by classes, shapes with their numbers, the law's line, and the shapes that diverged."""
    canvas, axes = new_canvas(4.9)
    worst = float(np.nanmax([data.shapes["excess"].max(), data.cells["excess"].max()]))
    bounds = excess_bounds(worst)
    colours = palette.heat(len(bounds) - 1)
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
    # After the limits: shapes of a single width span no range on a log axis.
    axes.set_xscale("log")
    axes.set_yscale("log")
    lost_shapes = set(zip(data.diverged["depth"], data.diverged["width"], strict=True))
    for shape in data.shapes.to_dict("records"):
        if (shape["depth"], shape["width"]) not in lost_shapes:
            _draw_shape(axes, shape, bounds, colours, len(data.shapes) <= MAX_NUMBERS)
    _draw_diverged(axes, data.diverged)
    if len(data.line):
        thick = [withStroke(linewidth=4.4, foreground=palette.PAPER)]
        line = data.line
        axes.plot(line["depth"], line["width"], color=palette.ACCENT, linewidth=2, path_effects=thick)
    scale: Any = ScalarMappable(norm=BoundaryNorm(bounds, len(colours)), cmap=ListedColormap(colours))
    bar = canvas.colorbar(scale, ax=axes, ticks=bounds, spacing="uniform", fraction=0.05, pad=0.02)
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
    """Draw the excess of a measured shape in thousandths of a nat; a star for the best depth, a ring without excess."""
    place, excess = (shape["depth"], shape["width"]), shape["excess"]
    if np.isnan(excess):
        hollow = {"color": palette.MUTED, "markerfacecolor": palette.PAPER}
        axes.plot(*place, marker="o", markersize=4, zorder=4, **hollow)
        return
    face = colours[_class(excess, bounds)]
    ink = palette.on(face)
    if shape["best_depth"] == shape["depth"]:
        star = {"color": "#fffffe", "markeredgecolor": "#000000", "linewidth": 0.7}
        axes.plot(*place, marker="*", markersize=11, zorder=5, **star)
    elif numbers:
        text = f"{1000 * excess:.1f}" if excess < 0.00095 else f"{1000 * excess:.0f}"
        # The smallest and largest shape lie on the ends of a strip; the halo extends its colour.
        halo = [withStroke(linewidth=5, foreground=face)]
        style = {"ha": "center", "va": "center", "fontsize": 8.5, "color": ink, "path_effects": halo}
        axes.annotate(text, place, zorder=4, **style)
    else:
        axes.plot(*place, marker="o", markersize=3, color=ink, zorder=4)


def _draw_diverged(axes: Axes, diverged: pd.DataFrame) -> None:
    style = {
        "color": palette.BAD,
        "zorder": 6,
        "path_effects": [withStroke(linewidth=3.4, foreground=palette.PAPER)],
    }
    axes.scatter(diverged["depth"], diverged["width"], marker="x", s=70, linewidths=2.4, **style)
    for shape in diverged.to_dict("records"):
        offset = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "fontsize": 8.5}
        words = f"{shape['diverged']:.0f} of {shape['of']:.0f} diverged"
        axes.annotate(words, (shape["depth"], shape["width"]), **offset, **style)
