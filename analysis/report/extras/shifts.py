"""How far the crossings move at other learning rates and under other parametrisations: figures and sentences."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.crossing_shift import Contrast, Moved
from analysis.fit.learning_rate_shift import Shift, outstanding
from analysis.law.crossings import Crossing, Interval
from analysis.numbers import digits, ends, percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, size_axis
from analysis.report.figures.figure import Context, Figure

#: Colours of conditions beside the study's own.
_OTHERS = (palette.ACCENT, palette.LAWS["power"][0], palette.LAWS["response"][0], palette.LAWS["additive"][0])
#: What the bars of both figures mean.
_BARS = "a bar that reaches the frame is open there, a dashed one belongs to an inconclusive crossing."
#: Multiples of a learning rate that have a name.
_FACTORS = {0.5: "half", 2.0: "double"}


@dataclass(frozen=True)
class MoveData:
    """Where the crossings of neighbouring depths lie under several conditions.

    Attributes:
        rows: shallow, deep, condition, params, low, high (NaN where open or not known), settled (whether the crossing
            is bracketed, or for a shift known).
        conditions: their order, that of the study itself first.
    """

    rows: pd.DataFrame
    conditions: tuple[str, ...]

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


def sensitivity_figure(context: Context) -> Figure | None:
    """The crossings at other learning rates; None without sensitivity runs."""
    data = sensitivity_data(context.fit.crossings, context.fit.sensitivity)
    if data is None:
        return None
    caption = (
        f"Each crossing at the study's own learning rate with its {percent(context.fit.level)} interval, and at others "
        f"with the interval of the shift alone; {_BARS}"
    )
    title = "The crossings at other learning rates"
    return Figure("sensitivity", title, caption, data, lambda: draw_moves(data))


def contrast_figure(context: Context) -> Figure | None:
    """The crossings under other parametrisations; None without any."""
    data = contrast_data(context.fit.contrasts)
    if data is None:
        return None
    caption = (
        f"Each crossing with its {percent(context.fit.level)} interval under every parametrisation that has runs with "
        f"the same data and recipe; {_BARS}"
    )
    title = "The crossings under other parametrisations"
    return Figure("contrast", title, caption, data, lambda: draw_moves(data))


def sensitivity_data(crossings: Sequence[Crossing], shifts: Sequence[Shift]) -> MoveData | None:
    """The crossings at the study's own rate with their intervals, and at each other with that of the shift alone."""
    if not shifts:
        return None
    own = {(item.shallow, item.deep): item for item in crossings}
    rows = []
    for pair in sorted({(item.shallow, item.deep) for item in shifts}):
        found = own[pair]
        rows.append(_row(pair, "1 × rate", found.params, found.params_interval, found.status == "bracketed"))
        for item in shifts:
            # Of a pair without a run at that rate there is nothing to draw; the table says why.
            if (item.shallow, item.deep) == pair and item.shift_interval is not None:
                place = None if item.shift is None else item.params * math.exp(item.shift)
                low, high = (
                    None if end is None else item.params * math.exp(end) for end in item.shift_interval
                )
                rows.append(_row(pair, f"{item.factor:g} × rate", place, (low, high), item.shift is not None))
    factors = sorted({item.factor for item in shifts})
    return MoveData(pd.DataFrame(rows), ("1 × rate", *(f"{factor:g} × rate" for factor in factors)))


def contrast_data(contrasts: Sequence[Contrast]) -> MoveData | None:
    """The crossings of the study and of every other parametrisation, each with its own interval."""
    if not any(item.pairs for item in contrasts):
        return None
    rows, seen = [], set()
    for found in contrasts:
        for item in found.pairs:
            pair = (item.shallow, item.deep)
            if pair not in seen:
                seen.add(pair)
                rows.append(_row(pair, found.own, item.params, item.interval, item.status == "bracketed"))
            settled = item.other_status == "bracketed"
            rows.append(_row(pair, found.other, item.other_params, item.other_interval, settled))
    return MoveData(pd.DataFrame(rows), (contrasts[0].own, *(found.other for found in contrasts)))


def _row(
    pair: tuple[int, int], condition: str, params: float | None, interval: Interval | None, settled: bool
) -> dict[str, object]:
    low, high = interval or (None, None)
    ends = {"params": params, "low": low, "high": high}
    return {
        "shallow": pair[0],
        "deep": pair[1],
        "condition": condition,
        **{name: math.nan if value is None else value for name, value in ends.items()},
        "settled": settled,
    }


def draw_moves(data: MoveData) -> Canvas:
    """Each pair's crossing under every condition: a mark, and a bar for its interval that runs on where it is open."""
    pairs = list(data.rows.groupby(["shallow", "deep"], sort=True))
    room = len(data.conditions) + 0.8
    canvas = Canvas(figsize=(WIDTH, 1.2 + 0.24 * room * len(pairs)), dpi=100, layout="constrained")
    axes: Any = canvas.subplots()
    low, high = _frame(data)
    others = itertools.cycle(_OTHERS)
    colours = {name: next(others) if place else palette.INK for place, name in enumerate(data.conditions)}
    marks = {name: MARKS[place % len(MARKS)] for place, name in enumerate(data.conditions)}
    ticks = []
    for place, (_, rows) in enumerate(pairs):
        ticks.append(place * room + (len(data.conditions) - 1) / 2)
        for row in rows.to_dict("records"):
            name = row["condition"]
            y = place * room + data.conditions.index(name)
            left, right = (
                low if np.isnan(row["low"]) else row["low"],
                high if np.isnan(row["high"]) else row["high"],
            )
            style = {"color": colours[name], "linewidth": 1.6}
            axes.plot([left, right], [y, y], linestyle="-" if row["settled"] else (0, (4, 2)), **style)
            if np.isfinite(row["params"]):
                face = colours[name] if row["settled"] else palette.PAPER
                axes.plot(
                    [row["params"]], [y], marker=marks[name], markersize=6, markerfacecolor=face, **style
                )
    for name in data.conditions:
        axes.plot([], [], marker=marks[name], color=colours[name], label=name)
    axes.set_xlim(low, high)
    size_axis(axes)
    axes.set_yticks(ticks, [f"{shallow} → {deep}" for (shallow, deep), _ in pairs])
    axes.set_ylim(room * len(pairs) - 0.4, -0.8)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("N at the crossing")
    axes.legend(
        frameon=False, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.2
    )
    return canvas


def _frame(data: MoveData) -> tuple[float, float]:
    """Ends of the axis of N: a little beyond all that is known."""
    values = data.rows[["params", "low", "high"]].to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    if not len(known):
        return 1e3, 1e4
    return float(known.min()) / 1.25, float(known.max()) * 1.25


def factor_phrase(factor: float) -> str:
    """`half the learning rate`, `3 times the learning rate`."""
    return f"{_FACTORS.get(factor, f'{factor:g} times')} the learning rate"


def factor_interval(interval: Interval | None) -> Interval | None:
    """An interval of ln N as one of factors of N."""
    if interval is None:
        return None
    low, high = interval
    return (None if low is None else math.exp(low), None if high is None else math.exp(high))


def shift_sentence(item: Shift, level: float) -> str:
    """What one multiple of the learning rate does to one crossing."""
    start = f"At {factor_phrase(item.factor)} depth {item.deep} overtakes depth {item.shallow}"
    interval = factor_interval(item.shift_interval)
    if item.shift is None:
        told = f" ({percent(level)}: {ends(interval, 3)} times the N)" if interval and any(interval) else ""
        pair = f"{item.shallow} → {item.deep}"
        return f"At {factor_phrase(item.factor)} the shift of {pair} is not known: {item.reason}{told}."
    known = f" ({percent(level)}: {ends(interval, 3)})" if interval is not None else " (no noise estimate)"
    return f"{start} at {digits(math.exp(item.shift), 3)} times the N{known}."


def sensitivity_sentence(shifts: Sequence[Shift], level: float) -> str:
    """The whole arm in one sentence or two; empty without an arm."""
    if not shifts:
        return ""
    pairs = sorted({(item.shallow, item.deep) for item in shifts})
    moved = outstanding(shifts, level)
    told = [item for item in moved if item.shift is not None]
    if told:
        most = max(told, key=lambda item: abs(item.shift or 0.0))
        count = len({(item.shallow, item.deep) for item in moved})
        return (
            f"Another learning rate moves {count} of {len(pairs)} crossings. "
            f"The largest move: {_lower(shift_sentence(most, level))}"
        )
    if moved:
        return f"Another learning rate moves {moved[0].shallow} → {moved[0].deep}: {moved[0].reason}."
    bounds = [end for item in shifts for end in item.shift_interval or (None, None)]
    if all(item.shift_interval is None for item in shifts):
        return (
            "There is no noise estimate, so what another learning rate does to the crossings cannot be told."
        )
    together = f"{percent(level)}, {len(shifts)} comparisons together" if len(shifts) > 1 else percent(level)
    return f"No crossing moves with the learning rate beyond the noise ({together}){_excluded(bounds)}."


def contrast_sentence(found: Contrast) -> str:
    """Whether the threshold is a property of the shape or of the tuning, as far as two studies tell."""
    both = [item for item in found.pairs if item.shift_interval != (None, None)]
    if not both:
        return (
            f"Between {found.own} and {found.other} no crossing can be compared, because no pair of depths is settled "
            "under both: whether the threshold is a property of the shape or of the tuning stays open."
        )
    moved = [item for item in both if item.significant]
    if moved:
        parts = "; ".join(f"{item.shallow} → {item.deep} {ratio_phrase(item, found.level)}" for item in moved)
        rest = len(both) - len(moved)
        still = f" {rest} other{'s do' if rest > 1 else ' does'} not move beyond the noise." if rest else ""
        chance = f"{100 * (1 - found.level ** len(both)):.0f} %"
        doubt = (
            f" (One of {len(both)} stands out by chance in up to {chance} of studies.)"
            if len(both) > 1
            else ""
        )
        return (
            f"From {found.own} to {found.other} {len(moved)} of {len(both)} crossings move: {parts}.{still} There the "
            f"threshold is a property of the tuning too, not of the shape alone.{doubt}"
        )
    limit = _excluded([end for item in both for end in item.shift_interval])
    return (
        f"Between {found.own} and {found.other} no crossing moves beyond the noise ({percent(found.level)}){limit}: "
        "nothing here says that the threshold is a property of the tuning."
    )


def ratio_phrase(item: Moved, level: float) -> str:
    """`at 1.8 times the N (95 %: 1.2 to 2.6)`."""
    interval = factor_interval(item.shift_interval)
    assert interval is not None
    if item.shift is None:
        return f"at another N ({percent(level)}: {ends(interval, 3)} times ours)"
    return f"at {digits(math.exp(item.shift), 3)} times the N ({percent(level)}: {ends(interval, 3)})"


def _excluded(ends_: Sequence[float | None]) -> str:
    """How far a crossing might have moved unseen, from the ends of all intervals of its shift in ln N."""
    if None in ends_:
        return ", but how far one might is not bounded"
    most = max(abs(end or 0.0) for end in ends_)
    return f"; a move by more than a factor {digits(math.exp(most))} of N is excluded"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
