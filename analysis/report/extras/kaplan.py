"""Figure, sentences and exponents for the questions of Kaplan et al. 2020: size, shape and count."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

from analysis.fit.document import Fit
from analysis.fit.kaplan import (
    NEAR,
    PUBLISHED_ALPHA,
    PUBLISHED_SCALE,
    Counted,
    Exponent,
    Form,
    Kaplan,
    Totals,
    totals_of,
)
from analysis.numbers import digits, ends, human, percent, scientific, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    WIDTH,
    Axes,
    count_axis,
    outside_legend,
    points_of_depths,
    set_ticks,
    size_axis,
)
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import LINE, by_depth, concat, shape_points, stack, study_of_fit
from analysis.tables import Column, Table

NAME, TITLE = "kaplan", "Size, shape and count, as drawn by Kaplan et al. 2020"
#: Form of a law through the best shapes -> formula, dashes, colour, name in the figure.
LAWS: Mapping[Form, tuple[str, object, str, str]] = {
    "power": ("(N_c/N)^α", (0, (5, 3)), palette.INK, "power law"),
    "entropy": ("E + (N_c/N)^α, E known", (0, (1, 1.4)), palette.ACCENT, "above the entropy"),
    "offset": ("E + (N_c/N)^α, E fitted", (0, (1, 1.4)), palette.ACCENT, "above a fitted offset"),
}
#: Ratio of losses beyond which the ticks are those of a log axis.
WIDE = 20.0


@dataclass(frozen=True)
class KaplanData:
    """Loss against two counts of parameters, and its increase against the aspect ratio.

    Attributes:
        points: depth, width, params, total_params (NaN where not known), loss (mean over seeds), low, high.
        curves: depth, counted (`own` or `total`), params, loss on the fitted curves.
        laws: counted, form, params, loss of the power laws through the best shapes.
        aspects: budget, params, depth, width, aspect (d/L), increase, low, high (percent; NaN where there is none).
    """

    points: pd.DataFrame
    curves: pd.DataFrame
    laws: pd.DataFrame
    aspects: pd.DataFrame

    @property
    def both(self) -> bool:
        """Whether there are total parameters."""
        return bool(self.points["total_params"].notna().all())


def figure(context: Context) -> Figure | Absent:
    """Loss by size and count, and what the shape costs."""
    fit = context.fit
    data = kaplan_data(fit)
    if data is None:
        return Absent(NAME, TITLE, no_kaplan(fit) or "")
    caption = (
        "Above: losses and curves against N and against all parameters, embeddings included"
        if data.both
        else "Above: losses against N (the table has no count of all parameters)"
    )
    caption += "; dashed and dotted lines are the power laws of the table below."
    if len(data.aspects):
        known = fit.noise.get("known")
        bars = f", with the {percent(fit.level)} interval of the paired difference" if known else ""
        caption += (
            " Below: loss above the best shape of the same N against the aspect ratio d/L, one line per budget"
            f"{bars}. The dotted line is {NEAR:g} %; above it the axis is logarithmic."
        )
    table = stack(point=data.points, curve=data.curves, law=data.laws, aspect=data.aspects)
    return Figure(NAME, TITLE, caption, table, lambda: draw_kaplan(data, context.colours, context.size_label))


def kaplan_data(fit: Fit) -> KaplanData | None:
    """The data of the figure; None if `no_kaplan` gives a reason."""
    found = fit.kaplan
    if found is None or no_kaplan(fit) is not None:
        return None
    study = study_of_fit(fit)
    totals = totals_of(study.rows, study.curves)
    points = shape_points(fit).assign(total_params=math.nan if totals is None else np.exp(totals.log))
    names = ["budget", "params", "depth", "width", "aspect", "increase"]
    rows = [
        (*(getattr(item, name) for name in names), *(item.interval or (math.nan, math.nan)))
        for item in found.aspects
    ]
    return KaplanData(
        points[["depth", "width", "params", "total_params", "loss", "low", "high"]],
        _curves(fit, totals),
        _laws(found, points),
        pd.DataFrame(rows, columns=[*names, "low", "high"]),
    )


def no_kaplan(fit: Fit) -> str | None:
    """Why there is nothing to draw beyond the loss against N, as a clause; None if there is."""
    if fit.kaplan is None:
        return "one depth has no other shape to be compared with"
    if not fit.kaplan.aspects and fit.kaplan.exponent("total", "power") is None:
        return "no two depths can be compared at one N, and the table has no count of all parameters"
    return None


def _curves(fit: Fit, totals: Totals | None) -> pd.DataFrame:
    """The curves of each depth over N, and over all parameters."""
    curves = study_of_fit(fit).curves
    parts = []
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low == high:
            continue
        x = np.linspace(low, high, LINE)
        lines = [("own", x, x)]
        if totals is not None:
            first, last = totals.log[curves.at(depth)][[0, -1]]
            size = np.linspace(first, last, LINE)
            # Only rounding can put an end outside the measured range.
            lines.append(("total", size, np.clip(totals.own[depth](size), low, high)))
        for counted, size, place in lines:
            line = {"params": np.exp(size), "loss": curves.loss(depth, place)}
            parts.append(pd.DataFrame({"depth": depth, "counted": counted, **line}))
    return concat(parts, "depth", "counted", "params", "loss")


def _laws(found: Kaplan, points: pd.DataFrame) -> pd.DataFrame:
    """The plain power law through the best shapes, and the one above the entropy of the data or an offset."""
    parts = []
    sizes: dict[Counted, str] = {"own": "params", "total": "total_params"}
    for counted, column in sizes.items():
        second: Form = "offset" if found.entropy is None else "entropy"
        for item in (found.exponent(counted, "power"), found.exponent(counted, second)):
            if item is not None and item.alpha is not None and item.scale is not None:
                grid = np.geomspace(points[column].min(), points[column].max(), LINE)
                line = {"counted": counted, "form": item.form, "params": grid, "loss": item.loss(grid)}
                parts.append(pd.DataFrame(line))
    return concat(parts, "counted", "form", "params", "loss")


def draw_kaplan(data: KaplanData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Draw the loss against N, and against all parameters if known (above), and the aspect ratios (below)."""
    shaped = len(data.aspects) > 0
    canvas = Canvas(figsize=(WIDTH, 7.0 if shaped else 4.0), dpi=100, layout="constrained")
    grid = canvas.add_gridspec(2 if shaped else 1, 2 if data.both else 1)
    left = canvas.add_subplot(grid[0, 0])
    _draw_losses(left, data, "own", colours)
    left.set_xlabel(size_label)
    left.set_ylabel("validation loss (nats per token)")
    if data.both:
        right = canvas.add_subplot(grid[0, 1], sharey=left)
        _draw_losses(right, data, "total", colours)
        right.set_xlabel("all parameters, embeddings included")
        right.tick_params(labelleft=False)
    handles, labels = left.get_legend_handles_labels()
    outside_legend(canvas, 5, handles=handles, labels=labels)
    if shaped:
        _draw_aspects(canvas.add_subplot(grid[1, :]), data.aspects)
    return canvas


def _draw_losses(axes: Axes, data: KaplanData, counted: Counted, colours: Mapping[int, str]) -> None:
    points = data.points if counted == "own" else data.points.assign(params=data.points["total_params"])
    points_of_depths(axes, points, "loss", colours)
    for depth, line in by_depth(data.curves[data.curves["counted"] == counted]):
        axes.plot(line["params"], line["loss"], color=colours[depth], linewidth=1.3)
    axes.set_yscale("log")
    laws = data.laws[data.laws["counted"] == counted]
    for form, (_, dashes, colour, name) in LAWS.items():
        line = laws[laws["form"] == form]
        if len(line):
            axes.plot(line["params"], line["loss"], color=colour, linestyle=dashes, linewidth=1.3, label=name)
    size_axis(axes, small=True)
    # Even steps would leave the foot of a long log axis without ticks.
    wide = points["high"].max() > WIDE * points["low"].min()
    locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(9, steps=[1, 2, 5, 10])
    set_ticks(axes.yaxis, locator, "{:g}".format)


def _draw_aspects(axes: Axes, aspects: pd.DataFrame) -> None:
    budgets = list(aspects.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_xscale("log")
    for colour, (_, rows) in zip(colours, budgets, strict=True):
        axes.vlines(rows["aspect"], rows["low"], rows["high"], color=colour, linewidth=2.2, alpha=0.4)
        style = {"color": colour, "marker": "o", "markersize": 4.5, "linewidth": 1.3}
        name = f"N = {short(float(rows['params'].iloc[0]))}"
        axes.plot(rows["aspect"], rows["increase"], label=name, **style)
    known = aspects[["increase", "low", "high"]].to_numpy(dtype=float)
    top = max(float(np.nanmax(known)), NEAR)
    # Linear near the best shapes, logarithmic above, with room for the names.
    axes.set_yscale("symlog", linthresh=NEAR)
    axes.set_ylim(min(-0.5, float(np.nanmin(known))), 5 * top)
    ticks = [tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000) if tick < 1.08 * top]
    set_ticks(axes.yaxis, FixedLocator(ticks), "{:g}".format)
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    axes.axhline(NEAR, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
    low, high = axes.get_xlim()
    count_axis(axes.xaxis, math.log10(high / low))
    axes.set_xlabel("aspect ratio d/L")
    axes.set_ylabel("loss above the best shape (%)")
    # Curves around a best shape are highest at both sides, so the top centre is free.
    axes.legend(loc="upper center", ncols=4)


def kaplan_sentences(found: Kaplan | None) -> list[str]:
    """One sentence each on shape and exponent, as far as they are known."""
    return [] if found is None else [text for text in (_shape(found), _exponent(found)) if text]


def _shape(found: Kaplan) -> str:
    if not found.ranges:
        return ""
    last = found.ranges[-1]
    near = f"d/L from {digits(last.low)} to {digits(last.high)}, a factor of {digits(last.high / last.low)}"
    if last.low == last.high:
        near = f"one of the aspect ratios only, d/L = {digits(last.low)}"
    return (
        f"At N ≈ {human(last.params)}, the largest at which depths are compared, the loss is within {NEAR:g} % "
        f"of the best for {near} (measured: {digits(last.least)} to {digits(last.most)}). Kaplan et al. 2020 found a "
        "factor of 40."
    )


def _exponent(found: Kaplan) -> str:
    plain, entropy = found.exponent("own", "power"), found.exponent("own", "entropy")
    if plain is None or plain.alpha is None:
        return ""
    alpha = _alpha(plain, found.level)
    if plain.alpha <= 0:
        return f"The loss of the best shapes does not fall with N: as N^−α it has α = {alpha}."
    if entropy is not None and entropy.alpha is not None:
        alpha += f", above the entropy of the data with α = {_alpha(entropy, found.level)}"
    return (
        f"The loss of the best shapes falls as N^−α with α = {alpha}; Kaplan et al. 2020 found {PUBLISHED_ALPHA:g} on "
        "English web text up to 1.5 billion parameters, another regime."
    )


def _alpha(item: Exponent, level: float) -> str:
    interval = "" if item.interval is None else f" ({percent(level)}: {ends(item.interval)})"
    return f"{digits(item.alpha or 0.0)}{interval}"


def exponents_table(found: Kaplan | None, *, noise: bool) -> Table | None:
    """The power laws of the loss in N and in all parameters, `noise` if there is an estimate; None with one depth."""
    if found is None:
        return None
    counts: dict[Counted, str] = {"own": "N"}
    if found.exponent("total", "power") is not None:
        counts["total"] = "all parameters"
    columns = [
        Column("law of the best shapes", right=False),
        Column("rms misfit", under="law of the best shapes"),
    ]
    for axis in counts.values():
        alpha, scale = f"α in {axis}", "N_c" if axis == "N" else "N_c of all"
        columns += [
            Column(alpha, f"{percent(found.level)} interval"),
            Column(f"interval, {axis}", under=alpha),
            Column(scale, "and E"),
            Column(f"E, {axis}", under=scale, small="E = {}"),
        ]
    rows: list[tuple[str | None, ...]] = []
    for form, (formula, *_) in LAWS.items():
        own = found.exponent("own", form)
        if own is not None:
            cells = [text for counted in counts for text in _exponent_cells(found.exponent(counted, form))]
            rows.append((formula, None if own.rms is None else f"misfit {own.rms:.4f} nats", *cells))
    published = (None, digits(PUBLISHED_ALPHA), None, scientific(PUBLISHED_SCALE), None)
    rest = (None,) * (4 * (len(counts) - 1))
    rows.append(("Kaplan et al. 2020: (N_c/N)^α, English web text", *published, *rest))
    source = "the noise of the losses" if noise else "the scatter of the losses about each law"
    note = (
        f"Intervals cover {source}, not the choice of formula: near the entropy a plain power law describes only the "
        "measured range, and a fitted E and its α trade off against each other. The misfit is a root mean square in N. "
        "The best shapes are the lowest of several depths at each budget."
    )
    return Table("exponents", tuple(columns), rows, note)


def _exponent_cells(item: Exponent | None) -> tuple[str | None, ...]:
    """α, its interval or the reason why there is none, N_c and E."""
    if item is None or item.alpha is None:
        return (None, None if item is None else item.reason, None, None)
    scale = item.scale
    return (
        digits(item.alpha),
        "no interval" if item.interval is None else ends(item.interval),
        # N_c may have any magnitude.
        None if scale is None else digits(scale) if 1e-2 < scale < 1e4 else scientific(scale),
        None if item.offset is None else digits(item.offset, 3),
    )
