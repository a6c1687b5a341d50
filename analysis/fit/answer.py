"""The answer of a study: which depth to use at which size, from the crossings and the best measured shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.fit.compute import ComputeAnswer
from analysis.intervals import Interval
from analysis.law.reading import AtSize, Range, Reading
from analysis.law.shape import MOST_SHAPES, ComputeShape, buildable_width, near_words
from analysis.runs.tokens import TokenRule
from core.numbers import (
    counted,
    digits,
    human,
    human_range,
    layers,
    listed,
    listed_layers,
    percent,
    scientific,
    span,
)

#: Depths between which the runs do not decide; with more of them at all sizes there is no answer.
MOST_DEPTHS = 3
#: FLOPs of the forward and backward pass per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS = 6


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


@dataclass(frozen=True)
class Axis:
    """What the places of a reading are: the word for them, their unit, and how one and a range of them are written.

    `absent` is what a depth without a loss at a place lacks.
    """

    place: str
    unit: str
    one: Callable[[float], str]
    several: Callable[[Interval], str]
    absent: str


SIZES = Axis("size", "parameters", human, human_range, "were not measured")
COMPUTES = Axis(
    "compute",
    "FLOPs",
    scientific,
    lambda interval: span(interval, scientific),
    "have no least loss inside their sizes",
)


def use_sentence(reading: Reading, level: float, axis: Axis = SIZES) -> str:
    """Which depth to use at which size, or at which compute; empty if the losses do not give it."""
    ranges = reading.ranges
    if not ranges or (ranges[0].depths == ranges[-1].depths and len(ranges[0].depths) > MOST_DEPTHS):
        return ""
    tried, (smallest, largest) = reading.depths, (reading.params[0], reading.params[-1])
    if len(ranges) == 1 and (ranges[0].low, ranges[0].high) == (smallest, largest):
        sizes = axis.several((smallest, largest))
        return f"At every {axis.place} measured ({sizes} {axis.unit}) use {_depths(ranges[0], tried, axis)}."
    parts: list[str] = []
    end, named = smallest, False
    for index, item in enumerate(ranges):
        last, units = index == len(ranges) - 1, "" if parts else f" {axis.unit}"
        if item.low > end * (1 + 1e-9):
            where = f"from {axis.one(item.low)} to {axis.one(item.high)}{units}"
        elif last and item.high == largest:
            where = "above that"
        else:
            where = f"up to {axis.one(item.high)}{units}"
        if item.high_interval and not where.startswith("above"):
            prefix = "" if named else f"{percent(level)}: "
            where += f" ({prefix}{_border(item.high_interval, axis)})"
            named = True
        parts.append(f"{where} {'' if parts else 'use '}{_depths(item, tried, axis)}")
        end = item.high
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _border(interval: Interval, axis: Axis) -> str:
    """`3.0–4.1 million`, `up to 4.1 million`, `from 3.0 million on`: the sizes at which both depths are possible."""
    low, high = interval
    if low is not None and high is not None:
        return axis.several(interval)
    return f"up to {axis.one(high or 0.0)}" if low is None else f"from {axis.one(low)} on"


def _depths(item: Range, tried: Sequence[int], axis: Axis) -> str:
    """`at least 4 layers (4 was the deepest tried)`, `2 or 4 layers (the runs do not decide)`."""
    depths = item.depths
    first, notes = ", ".join(str(depth) for depth in depths[:-1]), []
    text = f"{first} or {layers(depths[-1])}" if first else layers(depths[0])
    if first:
        notes.append("the runs do not decide")
    if item.rivals:
        notes.append(
            f"{listed_layers(item.rivals)} {_are(item.rivals)} not excluded{' either' if first else ''}"
        )
    if depths[-1] == tried[-1]:
        text = text if first or item.rivals else f"at least {text}"
        notes.append(f"{tried[-1]} was the deepest tried")
    elif depths[0] == tried[0] > 1:
        text = text if first or item.rivals else f"at most {text}"
        notes.append(f"{tried[0]} was the shallowest tried")
    if item.missing:
        notes.append(
            f"beyond that {axis.place} {listed([layers(depth) for depth in item.missing])} {axis.absent}"
        )
    return text + (f" ({'; '.join(notes)})" if notes else "")


def _are(depths: Sequence[int]) -> str:
    """The verb of `1 layer` or `2 layers`."""
    return "is" if tuple(depths) == (1,) else "are"


def shape_sentence(best: AtSize) -> str:
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
    text += near_words(best.near)
    if best.missing:
        text += (
            f"; {listed([layers(depth) for depth in best.missing])} {_are(best.missing)} not measured there"
        )
    return f"{text}."


def largest(best: Sequence[AtSize]) -> list[AtSize]:
    """The largest size at which no depth that may be the best is missing, else the largest; empty without a size."""
    return ([item for item in best if not item.missing] or list(best))[-1:]


def short_answer(reading: Reading, best: Sequence[AtSize], level: float, tokens: TokenRule) -> list[str]:
    """Which depth to use at which size, and the best shape of the largest size; without what is not known."""
    use = tokens.qualified(use_sentence(reading, level))
    return [*filter(None, [use]), *map(shape_sentence, largest(best))]


def compute_sentences(compute: ComputeAnswer, level: float) -> list[str]:
    """The best shape of the largest budget with one, which depth to use at which compute, and why a budget has none."""
    use = use_sentence(compute.reading, level, COMPUTES)
    largest = compute.at(compute.budgets[-1])
    lines = [*(shape.sentence for shape in compute.best[-1:]), *filter(None, [use])]
    return lines if largest.depth else [*lines, largest.sentence]


def next_depth(rows: pd.DataFrame, best: Sequence[AtSize] | Sequence[ComputeShape]) -> NextDepth | None:
    """The depth to add if the deepest one is the best at the largest size and no other is near; None otherwise.

    Args:
        rows: the losses compared.
        best: of each size, or at equal FLOPs of each compute, ascending.
    """
    depths = sorted({int(depth) for depth in rows["depth"]})
    if not best or len(depths) < 2 or (best[-1].near or (best[-1].depth,)) != (depths[-1],):
        return None
    deepest_runs = rows[rows["depth"] == depths[-1]]
    tokens = deepest_runs["tokens"] if "tokens" in deepest_runs else pd.Series(dtype=float)
    flops = (
        float((FLOPS * deepest_runs["params"] * tokens).sum())
        if tokens.notna().all() and len(tokens)
        else None
    )
    return NextDepth(round(depths[-1] ** 2 / depths[-2]), len(deepest_runs), flops)
