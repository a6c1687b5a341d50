"""Figure, sentences and exponents for the questions of Kaplan et al. 2020: size, shape and count."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

from analysis.curves.noise import Floats
from analysis.fit.document import Fit
from analysis.fit.kaplan import (
    NEAR,
    PUBLISHED_ALPHA,
    PUBLISHED_SCALE,
    Counted,
    Exponent,
    Form,
    Kaplan,
    Scope,
    Totals,
    totals_of,
)
from analysis.numbers import digits, ends, human, layers, percent, scientific, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    WIDTH,
    Axes,
    count_axis,
    outside_legend,
    set_ticks,
    size_axis,
)
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import LINE, by_depth, concat, evidence_of, shape_points, stack
from analysis.tables import Column, Table

NAME, TITLE = "kaplan", "Size, shape and count, as drawn by Kaplan et al. 2020"
#: Form of a law through the best shapes -> dashes, colour, name.
LAWS = {
    "power": ((0, (5, 3)), palette.INK, "(N_c/N)^α through the best shapes"),
    "entropy": ((0, (1, 1.4)), palette.ACCENT, "the same above the entropy of the data"),
    "offset": ((0, (1, 1.4)), palette.ACCENT, "the same above a fitted offset"),
}


#: Maximum number of depths in the table; all are in `fit.json`.
MOST_DEPTHS = 8
#: Maximum number of depths with a label; more labels would fill the figure.
MOST_NAMES = 18


#: Maximum number of budgets with a label.
MOST_BUDGETS = 12


#: Ratio of losses beyond which the ticks are those of a log axis.
WIDE = 20.0


#: Increase, percent, beyond which the axis is straight up to `NEAR` only, and logarithmic above.
STEEP = 30.0


@dataclass(frozen=True)
class KaplanData:
    """Loss against two counts of parameters, and its increase against the aspect ratio.

    Attributes:
        points: depth, width, params, total_params (NaN where not known), loss (mean over seeds), low, high.
        curves: depth, counted (`own` or `total`), params, loss on the fitted curves.
        laws: counted, form, params, loss of the power laws through the best shapes.
        aspects: budget, params, depth, width, aspect (d/L), increase, low, high (percent; NaN where there is none).
        both: whether there are total parameters.
    """

    points: pd.DataFrame
    curves: pd.DataFrame
    laws: pd.DataFrame
    aspects: pd.DataFrame
    both: bool

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return stack(point=self.points, curve=self.curves, law=self.laws, aspect=self.aspects)


def figure(context: Context) -> Figure | Absent:
    """Loss by size and count, and what the shape costs."""
    data = kaplan_data(context.fit)
    if data is None:
        return Absent(NAME, TITLE, no_kaplan(context.fit) or "")
    caption = kaplan_caption(data, context.fit)
    return Figure(NAME, TITLE, caption, data, lambda: draw_kaplan(data, context.colours, context.size_label))


def kaplan_caption(data: KaplanData, fit: Fit) -> str:
    """Return the caption of the two or three panels."""
    losses = (
        "Above: losses and curves against N and against all parameters, embeddings included"
        if data.both
        else "Above: losses against N (the table has no count of all parameters)"
    )
    text = f"{losses}; dashed and dotted lines are the power laws of the table below."
    if data.aspects.empty:
        return text
    known = fit.noise.get("known")
    bars = f", with the {percent(fit.level)} interval of the paired difference" if known else ""
    steep = "; above it the axis is logarithmic" if is_steep(data) else ""
    return (
        f"{text} Below: loss above the best shape of the same N against the aspect ratio d/L, one line per budget"
        f"{bars}. The dotted line is {NEAR:g} %{steep}."
    )


def kaplan_data(fit: Fit) -> KaplanData | None:
    """The data of the figure; None if `no_kaplan` gives a reason."""
    found = fit.kaplan
    if found is None or no_kaplan(fit) is not None:
        return None
    evidence = evidence_of(fit)
    totals = totals_of(evidence.comparison.rows, evidence.curves)
    points = shape_points(fit).assign(total_params=math.nan if totals is None else np.exp(totals.log))
    names = ["budget", "params", "depth", "width", "aspect", "increase"]
    rows = [
        (*(getattr(item, name) for name in names), *(item.interval or (math.nan, math.nan)))
        for item in found.aspects
    ]
    aspects = pd.DataFrame(rows, columns=[*names, "low", "high"])
    return KaplanData(
        points[["depth", "width", "params", "total_params", "loss", "low", "high"]],
        _curves(fit, totals),
        _laws(found, points),
        aspects,
        totals is not None,
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
    curves = evidence_of(fit).curves
    parts = []
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low == high:
            continue
        x = np.linspace(low, high, LINE)
        parts.append(_part(depth, "own", x, curves.loss(depth, x)))
        if totals is not None:
            ends = totals.log[curves.at(depth)]
            size = np.linspace(ends[0], ends[-1], LINE)
            # Only rounding can put an end outside the measured range.
            place = np.clip(totals.own[depth](size), low, high)
            parts.append(_part(depth, "total", size, curves.loss(depth, place)))
    return concat(parts, "depth", "counted", "params", "loss")


def _part(depth: int, counted: Counted, size: Floats, loss: Floats) -> pd.DataFrame:
    return pd.DataFrame({"depth": depth, "counted": counted, "params": np.exp(size), "loss": loss})


def _laws(found: Kaplan, points: pd.DataFrame) -> pd.DataFrame:
    """The plain power law through the best shapes, and the one above the entropy of the data or an offset."""
    parts = []
    sizes: dict[Counted, str] = {"own": "params", "total": "total_params"}
    for counted, column in sizes.items():
        for item in (found.exponent(counted, "power"), second_law(found, counted)):
            if item is not None and item.alpha is not None and item.scale is not None:
                grid = np.geomspace(points[column].min(), points[column].max(), LINE)
                line = {"counted": counted, "form": item.form, "params": grid, "loss": item.loss(grid)}
                parts.append(pd.DataFrame(line))
    return concat(parts, "counted", "form", "params", "loss")


def second_law(found: Kaplan, counted: Counted) -> Exponent | None:
    """The law above the known entropy of the data, else above a fitted offset."""
    return found.exponent(counted, "entropy" if found.entropy is not None else "offset")


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
    handles, names = left.get_legend_handles_labels()
    if len(colours) > MOST_NAMES:
        laws = {look[2] for look in LAWS.values()}
        kept = [pair for pair in zip(handles, names, strict=True) if pair[1] in laws]
        handles, names = [handle for handle, _ in kept], [name for _, name in kept]
    outside_legend(canvas, 3, handles=handles, labels=names)
    if shaped:
        _draw_aspects(canvas.add_subplot(grid[1, :]), data)
    return canvas


def _draw_losses(axes: Axes, data: KaplanData, counted: Counted, colours: Mapping[int, str]) -> None:
    column = "params" if counted == "own" else "total_params"
    lines = data.curves[data.curves["counted"] == counted]
    for (depth, rows), mark in zip(by_depth(data.points), itertools.cycle(MARKS), strict=False):
        colour = colours[depth]
        axes.vlines(rows[column], rows["low"], rows["high"], color=colour, linewidth=1.4, alpha=0.45)
        dots = {"marker": mark, "markersize": 4, "linestyle": "none"}
        axes.plot(rows[column], rows["loss"], color=colour, label=layers(depth), **dots)
        line = lines[lines["depth"] == depth]
        axes.plot(line["params"], line["loss"], color=colour, linewidth=1.3)
    axes.set_yscale("log")
    low, high = float(data.points["low"].min()), float(data.points["high"].max())
    room = max(high / low, 1.02) ** 0.08
    axes.set_ylim(low / room, high * room)
    for form, rows in data.laws[data.laws["counted"] == counted].groupby("form", sort=False):
        dashes, colour, name = LAWS[str(form)]
        axes.plot(rows["params"], rows["loss"], color=colour, linestyle=dashes, linewidth=1.3, label=name)
    smallest, largest = float(data.points[column].min()), float(data.points[column].max())
    axes.set_xlim(smallest / 1.2, largest * 1.2)
    size_axis(axes, small=True)
    # Even steps would leave the foot of a long log axis without ticks.
    wide = high > WIDE * low
    locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(9, steps=[1, 2, 5, 10])
    set_ticks(axes.yaxis, locator, "{:g}".format)


def is_steep(data: KaplanData) -> bool:
    """Whether the axis of the increase is linear near the best shapes only."""
    return bool(data.aspects["increase"].max() > STEEP)


def _draw_aspects(axes: Axes, data: KaplanData) -> None:
    budgets = list(data.aspects.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_xscale("log")
    step = math.ceil(len(budgets) / MOST_BUDGETS)
    for rank, (colour, (_, rows)) in enumerate(zip(colours, budgets, strict=True)):
        axes.vlines(rows["aspect"], rows["low"], rows["high"], color=colour, linewidth=2.2, alpha=0.4)
        # Of very many budgets only every second, third ... has a name, and always the largest.
        name = None if (len(budgets) - 1 - rank) % step else f"N = {short(float(rows['params'].iloc[0]))}"
        style = {"color": colour, "marker": "o", "markersize": 4.5, "linewidth": 1.3}
        axes.plot(rows["aspect"], rows["increase"], label=name, **style)
    low, high = float(data.aspects["aspect"].min()), float(data.aspects["aspect"].max())
    reach = max(high / low, 2.0)
    axes.set_xlim(low / reach**0.05, high * reach**0.05)
    known = data.aspects[["increase", "low", "high"]].to_numpy(dtype=float)
    top = float(np.nanmax(known))
    axes.set_ylim(min(-0.05 * top, float(np.nanmin(known))), max(1.08 * top, NEAR * 1.1))
    if is_steep(data):
        axes.set_yscale("symlog", linthresh=NEAR)
        axes.set_ylim(min(-0.5, float(np.nanmin(known))), 5 * top)
        ticks = [tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000) if tick < 1.08 * top]
        set_ticks(axes.yaxis, FixedLocator(ticks), "{:g}".format)
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    axes.axhline(NEAR, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
    count_axis(axes.xaxis, math.log10(reach))
    axes.set_xlabel("aspect ratio d/L")
    axes.set_ylabel("loss above the best shape (%)")
    # Curves around a best shape are highest at both sides, so the top centre is free.
    axes.legend(loc="upper center", frameon=False, fontsize=8.5, ncols=3)


def kaplan_sentences(found: Kaplan | None) -> list[str]:
    """One sentence each on shape, exponent and count, as far as they are known."""
    if found is None:
        return []
    return [text for text in (_shape(found), _exponent(found), _count(found)) if text]


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
    plain = found.exponent("own", "power")
    if plain is None or plain.alpha is None:
        return ""
    if plain.alpha <= 0:
        return f"The loss of the best shapes does not fall with N: as N^−α it has α = {_alpha(plain, found.level)}."
    text = f"The loss of the best shapes falls as N^−α with α = {_alpha(plain, found.level)}"
    entropy = found.exponent("own", "entropy")
    if entropy is not None and entropy.alpha is not None:
        text += f", above the entropy of the data with α = {_alpha(entropy, found.level)}"
    return (
        f"{text}; Kaplan et al. 2020 found {PUBLISHED_ALPHA:g} on English web text up to 1.5 billion parameters, "
        "another regime."
    )


def _alpha(item: Exponent, level: float) -> str:
    assert item.alpha is not None
    interval = "" if item.interval is None else f" ({percent(level)}: {ends(item.interval)})"
    return f"{digits(item.alpha)}{interval}"


def _count(found: Kaplan) -> str:
    spread = found.spread
    if spread is None:
        return ""
    where = f"mean of {spread.budgets} budgets" if spread.budgets > 1 else "one budget"
    return (
        f"At equal N the losses of the depths differ by {digits(spread.own)} % (lowest to highest, {where}), at "
        f"equal total parameters by {digits(spread.total)} %."
    )


def exponents_table(found: Kaplan | None, *, noise: bool) -> Table | None:
    """The power laws of the loss in N and in all parameters; None if there are none.

    Args:
        found: the exponents.
        noise: whether there is a noise estimate.
    """
    keys = [] if found is None else _exponent_keys(found)
    if found is None or not keys:
        return None
    totalled = found.exponent("total", "power") is not None
    columns = [
        Column("losses of", right=False),
        Column("law", right=False),
        Column("rms misfit", under="law"),
    ]
    for axis in ("N", "all parameters")[: 1 + totalled]:
        alpha, scale = f"α in {axis}", "N_c" if axis == "N" else "N_c of all"
        columns += [
            Column(alpha, f"{percent(found.level)} interval"),
            Column(f"interval, {axis}", under=alpha),
            Column(scale, "and E"),
            Column(f"E, {axis}", under=scale, small="E = {}"),
        ]
    formulas = {
        "power": "(N_c/N)^α",
        "entropy": "E + (N_c/N)^α, E known",
        "offset": "E + (N_c/N)^α, E fitted",
    }
    names = {"best": "best shapes", "all": "all curves"}
    rows = []
    for scope, depth, form in keys:
        own = found.exponent("own", form, scope, depth)
        total = found.exponent("total", form, scope, depth)
        rows.append(
            (
                names.get(scope, layers(depth or 0)),
                "E_L + A_L·N^−α, one α" if scope == "all" else formulas[form],
                None if own is None or own.rms is None else f"misfit {own.rms:.4f} nats",
                *_exponent_cells(own),
                *(_exponent_cells(total) if totalled else ()),
            )
        )
    published = (digits(PUBLISHED_ALPHA), None, scientific(PUBLISHED_SCALE), None)
    rest = (None,) * (4 * totalled)
    rows.append(("Kaplan et al. 2020", "(N_c/N)^α, English web text", None, *published, *rest))
    source = "the noise of the losses" if noise else "the scatter of the losses about each law"
    note = (
        f"Intervals cover {source}, not the choice of formula: near the entropy a plain power law describes only the "
        "measured range, and a fitted E and its α trade off against each other. The misfit is a root mean square in N. "
        "The best shapes are the lowest of several depths at each budget."
    )
    return Table("exponents", tuple(columns), rows, note)


def _exponent_keys(found: Kaplan) -> list[tuple[Scope, int | None, Form]]:
    """Scope, depth and form of the rows; all curves of many depths would fill the table."""
    keys: list[tuple[Scope, int | None, Form]] = []
    for item in found.exponents:
        key = (item.scope, item.depth, item.form)
        if key not in keys and (item.scope == "best" or item.alpha is not None):
            keys.append(key)
    if len({depth for scope, depth, _ in keys if scope == "depth"}) > MOST_DEPTHS:
        keys = [key for key in keys if key[0] != "depth"]
    return keys


def _exponent_cells(item: Exponent | None) -> tuple[str | None, ...]:
    """α, its interval or the reason why there is none, N_c and E."""
    if item is None:
        return (None,) * 4
    if item.alpha is None:
        return (None, item.reason, None, None)
    return (
        digits(item.alpha),
        "no interval" if item.interval is None else ends(item.interval),
        None if item.scale is None else _scale(item.scale),
        None if item.offset is None else digits(item.offset, 3),
    )


def _scale(value: float) -> str:
    """N_c, which may have any magnitude."""
    return digits(value) if 1e-2 < value < 1e4 else scientific(value)
