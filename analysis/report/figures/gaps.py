"""Figure: the loss gap of each pair of depths against N, with the crossing and its interval."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.curves.noise import Floats
from analysis.fit.document import Fit
from analysis.law.crossings import Crossing, gap_of
from analysis.report.figures import palette
from analysis.report.figures.canvas import WIDE, WIDTH, Axes, new_canvas, plot_values, set_ticks, size_axis
from analysis.report.figures.figure import Context, Figure, study_of_fit
from core.numbers import percent, short, span

#: Panels; more would be too small to read.
MAX_PANELS = 9
#: A crossing, its gap against N, and the sizes measured, see `gap_data`.
Panel = tuple[Crossing, pd.DataFrame, Floats]


def figure(context: Context) -> Figure | None:
    """The gap of each pair of depths; None if no two depths can be compared."""
    fit = context.fit
    panels = gap_data(fit)
    if not panels:
        return None
    region = (
        f"Grey: {percent(fit.level)} confidence region; shaded: interval of the crossing, up to the measured sizes."
        if fit.noise.is_measured
        else "There are no confidence regions, because there is no noise estimate."
    )
    caption = (
        f"Loss of the shallower model minus loss of the deeper one: above zero the deeper is better. {region}"
    )
    table = pd.concat([line for _, line, _ in panels], ignore_index=True)
    quantile, unit = study_of_fit(fit).crossings.quantile, fit.loss_unit.name

    def draw(width: float, most: int) -> Canvas:
        columns = min(len(panels), most)
        rows = math.ceil(len(panels) / columns)
        height = 0.35 + (2.7 if columns == 1 else 2.4) * rows
        canvas, grid = new_canvas(height, rows, columns, width=width, squeeze=False, sharex=True)
        drawn, rest = grid.flat[: len(panels)], grid.flat[len(panels) :]
        for axes, panel in zip(drawn, panels, strict=True):
            _draw_gap(axes, panel, quantile)
        for axes in rest:
            axes.set_visible(False)
        # After all panels are drawn, because they share one axis of N.
        for axes in drawn:
            size_axis(axes, columns=columns)
            axes.tick_params(labelbottom=True)
        for axes in drawn[-columns:]:
            axes.set_xlabel("N")
        canvas.supylabel(f"loss gap ({unit})", fontsize=10)
        return canvas

    title = "Where the deeper model takes the lead"
    return Figure("gaps", title, caption, table, lambda: draw(WIDE, 3), narrow=lambda: draw(WIDTH, 1))


def gap_data(fit: Fit) -> list[Panel]:
    """The first `MAX_PANELS` pairs with a common range of N; none if the tokens allow no comparison.

    Returns:
        The crossing; params, gap = loss(shallow) - loss(deep) and its standard error se (both in the unit of the fit),
        and the pair (shallow, deep, status); N of the sizes measured inside the common range.
    """
    curves, per_nat = study_of_fit(fit).curves, fit.loss_unit.per_nat
    panels: list[Panel] = []
    if not fit.tokens.comparable:
        return panels
    for item in fit.crossings:
        gap = gap_of(curves, item.shallow, item.deep)
        if gap is None:
            continue
        line = pd.DataFrame({"params": np.exp(gap.x), "gap": per_nat * gap.value, "se": per_nat * gap.se})
        line = line.assign(shallow=item.shallow, deep=item.deep, status=item.status)
        x = curves.x[np.concatenate([curves.at(item.shallow), curves.at(item.deep)])]
        inside = (x >= gap.x[0] - 1e-9) & (x <= gap.x[-1] + 1e-9)
        panels.append((item, line, np.exp(x[inside])))
    return panels[:MAX_PANELS]


def _draw_gap(axes: Axes, panel: Panel, quantile: float) -> None:
    item, line, sizes = panel
    x, gap, se = (line[name].to_numpy(dtype=float) for name in ("params", "gap", "se"))
    if item.params_interval is not None and item.params_interval != (None, None):
        low, high = item.params_interval
        axes.axvspan(low or x[0], high or x[-1], color=palette.ACCENT, alpha=0.16, linewidth=0)
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    # NaN without a noise estimate.
    reach = quantile * se
    axes.fill_between(x, gap - reach, gap + reach, color=palette.MUTED, alpha=0.28, linewidth=0)
    axes.plot(x, gap, color=palette.INK, linewidth=1.6)
    # Measured sizes as ticks on the frame: between them the curve is a fit.
    tick = {"marker": "|", "linestyle": "none", "markersize": 7, "color": palette.MUTED}
    axes.plot(sizes, np.zeros(len(sizes)), transform=axes.get_xaxis_transform(), **tick)
    if item.params is not None:
        text = f"N = {short(item.params)} ({span(item.params_interval, short)})"
        style = {"marker": "D", "color": palette.ACCENT, "markersize": 5.5, "zorder": 5}
        plot_values(axes, [item.params], [0], [text], **style)
    words = item.status.replace("_", "-") if item.params is None else f"N ≈ {short(item.params)}"
    # In the title, where no line runs through it.
    axes.set_title(f"{item.shallow} → {item.deep} layers: {words}")
    # Rounded, because a place beside zero would have the label -0.00.
    set_ticks(axes.yaxis, MaxNLocator(5), lambda y: f"{round(y, 9) + 0:g}")
