"""Figure: residuals of the threshold law, and its slope without each crossing."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.document import Fit
from analysis.numbers import digits, percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import WIDTH, Axes
from analysis.report.figures.figure import Absent, Context, Figure

NAME, TITLE = "residuals", "Residuals of the law, and its slope without each crossing"
#: Least number of crossings for residuals about a line of two parameters.
LEAST_RESIDUALS = 3


@dataclass(frozen=True)
class ResidualData:
    """The distance of each crossing from the law, and the law without that crossing.

    Attributes:
        rows: shallow, deep, residual of ln d, low, high (the crossing's interval less the law, NaN where open), then
            from the law without the pair: a, b, predicted, measured (widths), z.
        b, b_interval, scatter: of the law through all crossings.
    """

    rows: pd.DataFrame
    b: float
    b_interval: tuple[float | None, float | None]
    scatter: float
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.assign(b_all=self.b, scatter=self.scatter)


def figure(context: Context) -> Figure | Absent:
    """Residuals and leave-one-out slopes."""
    fit = context.fit
    data = residual_data(fit)
    if data is None:
        return Absent(NAME, TITLE, no_residuals(fit) or "the law has no slope")
    scatter = (
        f" The shaded span is the scatter beyond the intervals, ±{digits(data.scatter)}."
        if data.scatter
        else ""
    )
    caption = (
        f"Left: ln d of each crossing minus the law, with its {percent(fit.level)} interval.{scatter} Right: the slope "
        "fitted without the pair; the line and the shaded span are slope and interval with all pairs."
    )
    return Figure(NAME, TITLE, caption, data, lambda: draw_residuals(data))


def residual_data(fit: Fit) -> ResidualData | None:
    """Residuals and leave-one-out fits of the law; None if `no_residuals` gives a reason."""
    law = fit.law
    if no_residuals(fit) or law.a is None or law.b is None:
        return None
    items = {item.shallow: item for item in fit.crossings if item.adjacent}
    rows = []
    for depth, residual, without in zip(law.depths, law.residuals, law.leave_one_out, strict=True):
        low, high = items[depth].width_interval or (None, None)
        predicted = law.a + law.b * depth
        rows.append(
            {
                "shallow": depth,
                "deep": items[depth].deep,
                "residual": residual,
                "low": math.nan if low is None else math.log(low) - predicted,
                "high": math.nan if high is None else math.log(high) - predicted,
                "a": without.a,
                "b": without.b,
                "predicted": without.width,
                "measured": without.measured,
                "z": without.z,
            }
        )
    interval = law.b_interval or (None, None)
    return ResidualData(pd.DataFrame(rows), law.b, interval, law.scatter or 0.0, law.level)


def no_residuals(fit: Fit) -> str | None:
    """Why there are no residuals to draw; None if there are some."""
    if fit.law.a is None:
        return f"there is no law ({fit.law.reason})"
    count = len(fit.law.depths)
    if count < LEAST_RESIDUALS:
        return f"a line of two parameters goes through {count} crossings; residuals need three or more"
    return None


def draw_residuals(data: ResidualData) -> Canvas:
    """Draw residuals of ln d with the intervals of the crossings (left), and the slope without each pair (right)."""
    rows = data.rows
    canvas = Canvas(figsize=(WIDTH, 1.5 + 0.34 * max(len(rows), 4)), dpi=100, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    y = np.arange(len(rows))
    _draw_residuals(left, data, y)
    _draw_slopes(right, data, y)
    left.set_yticks(y, [f"{int(s)} → {int(d)}" for s, d in zip(rows["shallow"], rows["deep"], strict=True)])
    left.set_ylim(len(rows) - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return canvas


def _draw_residuals(axes: Axes, data: ResidualData, y: "np.ndarray") -> None:
    residual = data.rows["residual"].to_numpy(dtype=float)
    ends = data.rows[["low", "high"]].to_numpy(dtype=float)
    reach = np.abs(np.concatenate([residual, ends[np.isfinite(ends)]])).max() * 1.15 or 1.0
    axes.axvline(0, color=palette.ACCENT, linewidth=1.6)
    if data.scatter > 0:
        axes.axvspan(-data.scatter, data.scatter, color=palette.ACCENT, alpha=0.14, linewidth=0)
    for place, value, (low, high) in zip(y, residual, ends, strict=True):
        bar = [low if np.isfinite(low) else -reach, high if np.isfinite(high) else reach]
        dashes = "-" if np.isfinite(low) and np.isfinite(high) else (0, (2, 2))
        axes.plot(bar, [place, place], color=palette.INK, linewidth=1.8, alpha=0.55, linestyle=dashes)
        axes.plot([value], [place], marker="o", color=palette.INK, markersize=6)
    axes.set_xlim(-reach, reach)
    axes.set_title("residual of ln d", fontweight="bold")
    axes.set_xlabel("crossing minus law")


def _draw_slopes(axes: Axes, data: ResidualData, y: "np.ndarray") -> None:
    b = data.rows["b"].to_numpy(dtype=float)
    axes.axvline(data.b, color=palette.ACCENT, linewidth=1.6)
    bottom, top = data.b_interval
    limits = [value for value in (bottom, top, data.b, *b) if value is not None]
    margin = 0.12 * (max(limits) - min(limits)) or 0.1
    frame = (min(limits) - margin, max(limits) + margin)
    # An open interval is shaded to the frame.
    first, last = frame[0] if bottom is None else bottom, frame[1] if top is None else top
    axes.axvspan(first, last, color=palette.ACCENT, alpha=0.14, linewidth=0)
    axes.plot(b, y, marker="s", linestyle="none", color=palette.INK, markersize=6)
    axes.set_xlim(*frame)
    axes.set_title("slope b without the pair", fontweight="bold")
    axes.set_xlabel("b")
