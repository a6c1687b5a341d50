"""Figures: what each depth costs at fixed N, and the best depth against N, measured and by the laws of the study."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from analysis.fit.document import Fit
from analysis.fit.sentences import REACH
from analysis.law.near_optimal import WITHIN
from analysis.numbers import digits, layers, percent, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    count_axis,
    depth_axis,
    finish,
    looks,
    new_canvas,
    plot_values,
    set_ticks,
    shape_text,
    size_axis,
    stack,
)
from analysis.report.figures.figure import Context, Figure, study_of_fit

#: Points of the line per decade of N.
PER_DECADE = 12
#: Marks of the axis of excess losses, nats per token.
TICKS = (0, WITHIN, 0.01, 0.03, 0.1, 0.3, 1, 3)


def figure(context: Context) -> Figure | None:
    """The best depth against N; None if no size has two depths."""
    fit = context.fit
    if not fit.best:
        return None
    best, line = best_depths(fit), law_line(fit)
    low, high = measured_sizes(fit)
    caption = "Marks are the best measured depths, bars the depths statistically tied with them. "
    caption += (
        f"The line is the law with its {percent(fit.level)} interval, dashed beyond the measured sizes."
        if len(line)
        else "No line is drawn, because the data do not determine a law."
    )

    def draw() -> Canvas:
        canvas, axes = new_canvas(3.9)
        axes.set_yscale("log")
        drawn = np.concatenate([best["near_low"], best["near_high"], line["depth"]])
        bottom, top = max(0.8, float(drawn.min()) / 1.4), float(drawn.max()) * 1.5
        axes.axvspan(low, high, color=palette.MUTED, alpha=0.12, linewidth=0, label="measured sizes")
        if len(line):
            ends = line["low"].fillna(bottom), line["high"].fillna(top)
            axes.fill_between(line["params"], *ends, color=palette.ACCENT, alpha=0.14, linewidth=0)
            for rows, dashes, label in (
                (line[line["params"] <= high], "-", "law"),
                (line[line["params"] >= high], (0, (4, 2)), "extrapolated"),
            ):
                axes.plot(rows["params"], rows["depth"], color=palette.ACCENT, linestyle=dashes, label=label)
        axes.vlines(best["params"], best["near_low"], best["near_high"], color=palette.MUTED, linewidth=3)
        texts = [
            f"N = {short(row['params'])}: {layers(int(row['depth']))} best, tied from {row['near_low']:.0f} to "
            f"{layers(int(row['near_high']))}"
            for row in best.to_dict("records")
        ]
        style = {"marker": "o", "color": palette.INK, "markersize": 6, "linestyle": "none", "zorder": 5}
        plot_values(axes, best["params"], best["depth"], texts, label="best measured", **style)
        axes.set_ylim(bottom, top)
        axes.set_xlim(low / 1.3, float(max(high, line["params"].max() if len(line) else 0)) * 1.3)
        size_axis(axes)
        if len(line):
            count_axis(axes.yaxis, math.log10(top / bottom))
        else:
            set_ticks(
                axes.yaxis, FixedLocator(sorted({*best["depth"], *best["near_low"], *best["near_high"]}))
            )
        finish(canvas, axes, "parameters N", "best depth L (layers)")
        return canvas

    table = stack(measured=best, law=line)
    return Figure("best_depth", "Best depth against size", caption, table, draw)


def measured_sizes(fit: Fit) -> tuple[float, float]:
    """The smallest and the largest N measured."""
    params = study_of_fit(fit).comparison.rows["params"]
    return float(params.min()), float(params.max())


def best_depths(fit: Fit) -> pd.DataFrame:
    """params, depth, near_low, near_high (range of the depths statistically tied with it) of each budget."""
    near = [item.near or (item.depth,) for item in fit.best]
    rows = [
        (item.params, item.depth, min(tied), max(tied)) for item, tied in zip(fit.best, near, strict=True)
    ]
    return pd.DataFrame(rows, columns=["params", "depth", "near_low", "near_high"])


def law_line(fit: Fit) -> pd.DataFrame:
    """params, depth, low, high by the laws that are not rejected, where they state a depth.

    The sizes are a log grid from the smallest measured one to `REACH` times the largest.
    """
    low, high = measured_sizes(fit)
    # The largest size is a point, so that the solid line ends there and the dashed one begins.
    inside = np.geomspace(low, high, max(2, 1 + math.ceil(PER_DECADE * math.log10(high / low))))
    beyond = np.geomspace(high, REACH * high, 1 + PER_DECADE)[1:]
    found = [fit.predict(float(size)) for size in [*inside, *beyond]]
    rows = [(item.params, item.depth_exact, *item.depth_interval) for item in found if item.depth is not None]
    return pd.DataFrame(rows, columns=["params", "depth", "low", "high"], dtype=float)


def profile_figure(context: Context) -> Figure | None:
    """What each depth loses against the best one, one line per size; None if no size has two depths."""
    table = profile_data(context.fit)
    if table is None:
        return None
    tied = ", rings mark depths statistically tied with the best" if table["near"].any() else ""
    caption = (
        f"Loss above the lowest one of each size, in grey within {WITHIN:g} nats, and logarithmic above. Below zero "
        "are the sizes at which a depth is best and their d/L; an arrow marks a best depth that is the deepest "
        f"tried{tied}."
    )

    def draw() -> Canvas:
        canvas, axes = new_canvas(3.9)
        depths = sorted(set(table["depth"]))
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=WITHIN, linscale=0.8)
        # Room for the labels of the best depths and the arrow.
        axes.set_xlim(depths[0] / 1.35, depths[-1] * 1.6)
        axes.axhspan(0, WITHIN, color=palette.MUTED, alpha=0.12, linewidth=0)
        for (_, rows), colour, _ in looks(list(table.groupby("budget", sort=True)), "budget"):
            x, y = (rows[name].to_numpy(dtype=float) for name in ("depth", "excess"))
            near, best = rows["near"].to_numpy(dtype=bool), rows["best"].to_numpy(dtype=bool)
            if near.sum() > 1:
                axes.scatter(
                    x[near], y[near], s=110, color="none", edgecolors=colour, linewidths=1.1, zorder=3
                )
            texts = [
                f"{shape_text(row)}, d/L = {digits(row['aspect'])}: loss {row['loss']:.4f} (+{row['increase']:.2f} %)"
                for row in rows.to_dict("records")
            ]
            style = {"color": colour, "linewidth": 1.5, "marker": "o", "markersize": 4.5, "zorder": 3}
            name = f"N = {short(float(rows['params'].iloc[0]))}"
            plot_values(axes, x, y, texts, label=name, markerfacecolor=palette.PAPER, **style)
            at = int(best.argmax())
            filled = {"color": colour, "marker": "o", "markersize": 7, "zorder": 4}
            plot_values(axes, x[best], y[best], texts[at : at + 1], **filled)
        found = table[table["best"]]
        for depth, rows in found.groupby("depth"):
            sizes, aspects = (
                "–".join(dict.fromkeys(text(float(end)) for end in (rows[name].min(), rows[name].max())))
                for name, text in (("params", short), ("aspect", digits))
            )
            place = {"xytext": (0, -9), "textcoords": "offset points", "ha": "center", "va": "top"}
            axes.annotate(f"N {sizes}\nd/L {aspects}", (depth, 0), fontsize=8, **place)
        if found["depth"].max() == depths[-1]:
            arrow = {"arrowstyle": "-|>", "color": palette.INK, "linewidth": 1.6}
            axes.annotate("", (depths[-1] * 1.4, 0), xytext=(depths[-1], 0), arrowprops=arrow)
        top = max(float(table["excess"].max()), WITHIN)
        axes.set_ylim(-1.1 * WITHIN, 1.3 * top)
        set_ticks(axes.yaxis, FixedLocator([tick for tick in TICKS if tick <= top]), "{:g}".format)
        depth_axis(axes, depths)
        axes.grid(axis="x", visible=False)
        finish(canvas, axes, "depth L (layers)", "excess loss (nats per token)")
        return canvas

    return Figure("depth_profile", "What each depth costs at each size", caption, table, draw)


def profile_data(fit: Fit) -> pd.DataFrame | None:
    """The depths of each size; None if no size has two depths.

    Returns:
        budget, params, depth, width, loss, se, excess (over the best depth, nats), z, aspect (d/L), increase (over the
        best depth, percent), best, near (statistically tied with it).
    """
    rows = [
        {
            "budget": best.budget,
            "params": best.params,
            **{name: getattr(shape, name) for name in ("depth", "width", "loss", "se", "excess", "z")},
            "aspect": shape.width / shape.depth,
            "increase": 100 * shape.excess / best.loss,
            "best": shape.depth == best.depth,
            "near": best.near is not None and shape.depth in best.near,
        }
        for best in fit.best
        for shape in best.shapes
    ]
    return pd.DataFrame(rows) if rows else None
