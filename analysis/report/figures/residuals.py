"""Figure: residuals of the threshold law, and its slope without each crossing."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.document import Fit
from analysis.intervals import width_of
from analysis.law.threshold import ThresholdFit
from analysis.numbers import digits, percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import WIDTH
from analysis.report.figures.figure import Absent, Context, Figure

NAME, TITLE = "residuals", "Residuals of the law, and its slope without each crossing"


def figure(context: Context) -> Figure | Absent:
    """Residuals and leave-one-out slopes."""
    fit = context.fit
    reason = no_residuals(fit)
    if reason:
        return Absent(NAME, TITLE, reason)
    scatter = (
        f" The shaded span is the scatter beyond the intervals, ±{digits(fit.law.scatter)}."
        if fit.law.scatter
        else ""
    )
    caption = (
        f"Left: ln d of each crossing minus the law, with its {percent(fit.level)} interval.{scatter} Right: the slope "
        "fitted without the pair; the line and the shaded span are slope and interval with all pairs."
    )
    table = residual_data(fit)
    numbers = table.assign(b_all=fit.law.b, scatter=fit.law.scatter or 0.0)
    return Figure(NAME, TITLE, caption, numbers, lambda: draw_residuals(table, fit.law))


def residual_data(fit: Fit) -> pd.DataFrame:
    """The distance of each crossing from the law, and the law without that crossing.

    Returns:
        shallow, deep, residual of ln d, low, high (the crossing's interval less the law, NaN where open), then from the
        law without the pair: a, b, predicted, measured (widths), z.
    """
    law = fit.law
    items = {item.middle: item for item in fit.crossings if item.adjacent}
    rows = []
    for depth, residual, without in zip(law.depths, law.residuals, law.leave_one_out, strict=True):
        predicted = (law.a or 0.0) + (law.b or 0.0) * depth
        low, high = (
            math.nan if end is None else math.log(width_of(end, depth)) - predicted
            for end in items[depth].params_interval or (None, None)
        )
        left_out = (without.a, without.b, without.width, without.measured, without.z)
        rows.append((items[depth].shallow, items[depth].deep, residual, low, high, *left_out))
    names = ["shallow", "deep", "residual", "low", "high", "a", "b", "predicted", "measured", "z"]
    return pd.DataFrame(rows, columns=names)


def no_residuals(fit: Fit) -> str | None:
    """Why there are no residuals to draw; None if there are some."""
    if fit.law.a is None or fit.law.b is None:
        return f"there is no law ({fit.law.reason})"
    count = len(fit.law.depths)
    if count < 3:
        return f"a line of two parameters goes through {count} crossings; residuals need three or more"
    return None


def draw_residuals(rows: pd.DataFrame, law: ThresholdFit) -> Canvas:
    """Draw residuals of ln d with the intervals of the crossings (left), and the slope without each pair (right)."""
    canvas = Canvas(figsize=(WIDTH, 1.5 + 0.34 * max(len(rows), 4)), dpi=100, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    y = np.arange(len(rows))
    residual, low, high = (rows[name].to_numpy(dtype=float) for name in ("residual", "low", "high"))
    reach = np.nanmax(np.abs([residual, low, high])) * 1.15 or 1.0
    scatter = law.scatter or 0.0
    left.axvspan(-scatter, scatter, color=palette.ACCENT, alpha=0.14, linewidth=0)
    bar = {"color": palette.INK, "linewidth": 1.8, "alpha": 0.55}
    is_open = np.isnan(low) | np.isnan(high)
    for kind, dashes in ((~is_open, "-"), (is_open, (0, (2, 2)))):
        first, last = np.where(np.isnan(low), -reach, low), np.where(np.isnan(high), reach, high)
        left.hlines(y[kind], first[kind], last[kind], linestyle=dashes, **bar)
    left.plot(residual, y, marker="o", linestyle="none", color=palette.INK, markersize=6)
    left.set_xlim(-reach, reach)
    left.set_title("residual of ln d")
    left.set_xlabel("crossing minus law")
    b = rows["b"].to_numpy(dtype=float)
    bottom, top = law.b_interval or (None, None)
    limits = [value for value in (bottom, top, law.b, *b) if value is not None]
    margin = 0.12 * (max(limits) - min(limits)) or 0.1
    frame = (min(limits) - margin, max(limits) + margin)
    # An open interval is shaded to the frame.
    span = (frame[0] if bottom is None else bottom, frame[1] if top is None else top)
    right.axvspan(*span, color=palette.ACCENT, alpha=0.14, linewidth=0)
    right.plot(b, y, marker="s", linestyle="none", color=palette.INK, markersize=6)
    right.set_xlim(*frame)
    right.set_title("slope b without the pair")
    right.set_xlabel("b")
    left.set_yticks(y, [f"{int(s)} → {int(d)}" for s, d in zip(rows["shallow"], rows["deep"], strict=True)])
    left.set_ylim(len(rows) - 0.5, -0.5)
    for axes, value in ((left, 0), (right, law.b)):
        axes.axvline(value, color=palette.ACCENT, linewidth=1.6)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return canvas
