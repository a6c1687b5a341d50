"""The answer of a study: which depth to use at which size, from the crossings and the best measured shapes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.curves.best_shapes import BestShape
from analysis.intervals import Interval, interval_of
from analysis.law.crossings import Crossing
from analysis.law.shape import buildable_width
from analysis.numbers import counted, digits, human, human_range, layers, listed, percent, scientific

#: Shapes beside the best one whose cost is given.
MOST_SHAPES = 3
#: Depths between which the runs do not decide; with more of them in one range the ranges are no answer.
MOST_DEPTHS = 3
#: FLOPs of the forward and backward pass per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS = 6


@dataclass(frozen=True)
class DepthRange:
    """A range of N with one best depth, or with several between which the runs do not decide.

    Attributes:
        depths: ascending.
        low, high: ends of the range; None at the ends of the measured sizes.
        high_interval: of the upper end.
    """

    depths: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    high_interval: Interval | None = None


@dataclass(frozen=True)
class NextDepth:
    """A depth beyond the deepest one, which is best at the largest size, and what it costs at the same sizes.

    Attributes:
        runs, flops: of the new depth with all seeds; FLOPs are None where tokens are not known.
        how: the option that adds it, empty without a spec.
    """

    depth: int
    runs: int
    flops: float | None
    how: str = ""

    @property
    def sentence(self) -> str:
        """What to train next."""
        cost = counted(self.runs, "run") + (f", {scientific(self.flops)} FLOPs" if self.flops else "")
        add = f"; add it with `{self.how}`" if self.how else ""
        return f"Next: train {layers(self.depth)} at the same sizes ({cost}){add}."


def depth_ranges(crossings: Sequence[Crossing]) -> tuple[DepthRange, ...]:
    """Ranges of N by best depth, ascending; neighbouring depths without a settled crossing share a range.

    Empty without crossings, or if a depth is never the best although both of its neighbours are: the crossing of
    those two is then not known.
    """
    if not crossings:
        return ()
    groups = [[crossings[0].shallow]]
    ends: list[tuple[float, Interval | None]] = []
    for item in crossings:
        place = _place(item)
        if place is None:
            groups[-1].append(item.deep)
        else:
            groups.append([item.deep])
            ends.append((place, item.params_interval if item.status == "bracketed" else None))
    places = [-math.inf, *(place for place, _ in ends), math.inf]
    if places != sorted(places):
        return ()
    intervals = [interval for _, interval in ends] + [None]
    return tuple(
        DepthRange(tuple(depths), *interval_of(low, high), interval if math.isfinite(high) else None)
        for depths, low, high, interval in zip(groups, places[:-1], places[1:], intervals, strict=True)
        if low < high
    )


def _place(item: Crossing) -> float | None:
    """N of a settled crossing; infinite if one depth is better at all sizes, None if the runs do not decide."""
    if not item.settled:
        return None
    return {"left_censored": -math.inf, "right_censored": math.inf}.get(item.status, item.params)


def use_sentence(crossings: Sequence[Crossing], level: float) -> str:
    """Which depth to use at which size; empty if the crossings do not give it."""
    ranges = depth_ranges(crossings)
    if not ranges or max(len(item.depths) for item in ranges) > min(MOST_DEPTHS, len(crossings)):
        return ""
    tried = [crossings[0].shallow, *(item.deep for item in crossings)]
    first, *others = ranges
    if not others:
        measured = [item.range for item in crossings if item.range]
        sizes = human_range((min(low for low, _ in measured), max(high for _, high in measured)))
        return f"At every size measured ({sizes} parameters) use {_depths(first.depths, tried)}."
    interval = f" ({percent(level)}: {human_range(first.high_interval)})" if first.high_interval else ""
    text = f"Up to {human(first.high or 0)} parameters{interval} use {_depths(first.depths, tried)}"
    for item in others:
        interval = f" ({human_range(item.high_interval)})" if item.high_interval else ""
        where = f"up to {human(item.high)}{interval}" if item.high else "above that"
        text += f", {where} {_depths(item.depths, tried)}"
    return f"{text}."


def _depths(depths: tuple[int, ...], tried: Sequence[int]) -> str:
    """`at least 4 layers (4 was the deepest tried)`, `2 or 4 layers (the runs do not decide)`."""
    first = ", ".join(str(depth) for depth in depths[:-1])
    text, notes = (
        (f"{first} or {layers(depths[-1])}", ["the runs do not decide"]) if first else (layers(depths[0]), [])
    )
    if depths[-1] == tried[-1]:
        text = f"at least {text}" if len(depths) == 1 else text
        notes.append(f"{tried[-1]} was the deepest tried")
    elif depths[0] == tried[0] > 1:
        text = f"at most {text}" if len(depths) == 1 else text
        notes.append(f"{tried[0]} was the shallowest tried")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def shape_sentence(best: BestShape) -> str:
    """The best shape of a size, what other depths cost, and which of them do not differ significantly.

    Widths are those nearest to N that can be built.
    """
    others = sorted(
        (shape for shape in best.shapes if shape.depth != best.depth), key=lambda item: item.excess
    )
    width = buildable_width(best.width, best.width_step)
    text = f"At {human(best.params)} parameters: {layers(best.depth)} × {width} wide"
    join, verb = ";", " costs"
    for shape in others[:MOST_SHAPES]:
        width, cost = buildable_width(shape.width, best.width_step), digits(100 * shape.excess / best.loss)
        text += f"{join} {shape.depth} × {width}{verb} +{cost} %"
        join, verb = ",", ""
    if best.near is None:
        return f"{text}; without a noise estimate no difference is tested."
    if len(best.near) > 1:
        near = listed([str(depth) for depth in best.near])
        return f"{text}; the losses of {near} layers do not differ significantly."
    return f"{text}."


def short_answer(crossings: Sequence[Crossing], best: Sequence[BestShape], level: float) -> list[str]:
    """Which depth to use at which size, and the best shape of the largest size; without what is not known."""
    return [*filter(None, [use_sentence(crossings, level)]), *(shape_sentence(item) for item in best[-1:])]


def next_depth(rows: pd.DataFrame, best: Sequence[BestShape]) -> NextDepth | None:
    """The depth to add if the deepest one is the best at the largest size; None otherwise.

    Args:
        rows: the losses compared.
        best: of each size, ascending.
    """
    depths = sorted({int(depth) for depth in rows["depth"]})
    if not best or len(depths) < 2 or best[-1].depth != depths[-1]:
        return None
    own = rows[rows["depth"] == depths[-1]]
    tokens = own["tokens"] if "tokens" in own else pd.Series(dtype=float)
    flops = float((FLOPS * own["params"] * tokens).sum()) if tokens.notna().all() and len(tokens) else None
    return NextDepth(round(depths[-1] ** 2 / depths[-2]), len(own), flops)
