"""Figure: the map of excess loss over depth and width."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
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
from analysis.report.figures.frames import LINE, concat, drawn_law, stack, study_of_fit

NAME, TITLE = "frontier", "What a wrong shape costs"
#: A map needs this many shapes, and half of all, with another depth at their N.
LEAST_SHAPES = 4
#: Steps in width of one depth.
MAP_STEPS = 40
#: Bounds of the classes of excess loss, nats per token.
BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
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
    table = stack(shape=data.shapes, cell=data.cells, law=data.line, diverged=data.diverged)
    return Figure(NAME, TITLE, caption, table, lambda: draw_frontier(data))


def frontier_data(fit: Fit) -> FrontierData | None:
    """The map of excess loss; None if fewer than `LEAST_SHAPES`, or than half, have another depth at their N."""
    study = study_of_fit(fit)
    curves = study.curves
    widths = study.rows.groupby(["depth", "params"], sort=True)["width"].first().to_numpy(float)
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
    losses = np.full((len(curves.depths), len(x)), np.nan)
    for row, other in enumerate(curves.depths):
        there = np.ones(len(x), dtype=bool) if other == depth else enclosed(curves, other, x)
        losses[row, there] = curves.loss(other, x[there])
    several = np.isfinite(losses).sum(axis=0) > 1
    excess = losses[curves.depths.index(depth)] - np.nanmin(losses, axis=0)
    best = np.array(curves.depths, dtype=float)[np.nanargmin(losses, axis=0)]
    return np.where(several, excess, np.nan), np.where(several, best, np.nan)


def draw_frontier(data: FrontierData) -> Canvas:
    """Draw excess loss by classes, shapes with their numbers, the law's line, and the shapes that diverged."""
    canvas, axes = new_canvas(4.9)
    bounds = excess_bounds(float(np.nanmax([data.shapes["excess"].max(), data.cells["excess"].max()])))
    scale = ScalarMappable(
        BoundaryNorm(bounds, len(bounds) - 1), ListedColormap(palette.heat(len(bounds) - 1))
    )
    depths = sorted({int(depth) for depth in data.shapes["depth"]})
    edges = _edges(depths)
    for strip in strips(data.cells, bounds).to_dict("records"):
        left, right = edges[int(strip["depth"])]
        face = scale.cmap(int(strip["which"]))
        corner, height = (left, strip["low"]), strip["high"] - strip["low"]
        axes.add_patch(Rectangle(corner, right - left, height, facecolor=face, edgecolor="none", zorder=1))
    widths = pd.concat([data.shapes["width"], data.diverged["width"]]).to_numpy(dtype=float)
    axes.set_ylim(float(widths.min()) / 1.3, float(widths.max()) * 1.3)
    shown = [*depths, *data.diverged["depth"]]
    axes.set_xlim(min(edges[depths[0]][0], min(shown) / 1.15), max(edges[depths[-1]][1], max(shown) * 1.15))
    # After the limits: shapes of a single width span no range on a log axis.
    axes.set_xscale("log")
    axes.set_yscale("log")
    halo = [withStroke(linewidth=3.4, foreground=palette.PAPER)]
    lost = set(zip(data.diverged["depth"], data.diverged["width"], strict=True))
    for shape in data.shapes.to_dict("records"):
        if (shape["depth"], shape["width"]) not in lost:
            _draw_shape(axes, shape, len(data.shapes) <= MAX_NUMBERS)
    style = {"color": palette.BAD, "zorder": 6, "path_effects": halo}
    axes.scatter(data.diverged["depth"], data.diverged["width"], marker="x", s=70, linewidths=2.4, **style)
    axes.plot(data.line["depth"], data.line["width"], color=palette.ACCENT, linewidth=2, path_effects=halo)
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
    """Bounds of the classes of excess loss up to `worst`."""
    below = [bound for bound in BOUNDS if bound < worst]
    return [0.0, *below, BOUNDS[len(below)] if len(below) < len(BOUNDS) else worst]


def strips(cells: pd.DataFrame, bounds: list[float]) -> pd.DataFrame:
    """Depth, which class, low and high width: neighbouring cells of one class joined, so that no seam shows."""
    which = np.searchsorted(bounds, cells["excess"], side="right") - 1
    cells = cells.assign(which=np.clip(which, 0, len(bounds) - 2))
    gap = ~np.isclose(cells["width_low"], cells["width_high"].shift())
    first = gap | (cells[["depth", "which"]] != cells[["depth", "which"]].shift()).any(axis=1)
    groups = cells.groupby([first.cumsum(), "depth", "which"], sort=False)
    return groups.agg(low=("width_low", "first"), high=("width_high", "last")).reset_index(["depth", "which"])


def _edges(depths: list[int]) -> dict[int, tuple[float, float]]:
    """Left and right edge of each depth's strip: half-way to its neighbours on a log axis, at most 0.3 away in ln L."""
    steps = np.diff(np.log(depths)) / 2
    found = {}
    for depth, before, after in zip(depths, [0.3, *steps], [*steps, 0.3], strict=True):
        half = min(0.3, before, after)
        found[depth] = (depth * math.exp(-half), depth * math.exp(half))
    return found


def _draw_shape(axes: Axes, shape: Mapping[Any, Any], numbers: bool) -> None:
    """Draw the excess of a measured shape in thousandths of a nat; a star for the best depth, a ring without excess."""
    place, excess = (shape["depth"], shape["width"]), shape["excess"]
    rim = {"color": palette.PAPER, "markeredgecolor": palette.INK, "zorder": 5}
    if np.isnan(excess):
        axes.plot(*place, marker="o", markersize=4, **rim)
    elif shape["best_depth"] == shape["depth"]:
        axes.plot(*place, marker="*", markersize=11, markeredgewidth=0.7, **rim)
    elif numbers:
        text = f"{1000 * excess:.1f}" if excess < 0.00095 else f"{1000 * excess:.0f}"
        halo = [withStroke(linewidth=2.5, foreground=palette.PAPER)]
        style = {"ha": "center", "va": "center", "fontsize": 8.5, "path_effects": halo}
        axes.annotate(text, place, zorder=4, **style)
    else:
        axes.plot(*place, marker="o", markersize=3, color=palette.INK, zorder=4)
