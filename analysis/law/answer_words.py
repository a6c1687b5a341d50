"""Sentences about the depth to use: at which sizes or computes, and the best shape of one of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.intervals import Interval
from analysis.law.shape import ComputeShape, buildable_width
from analysis.runs.words import qualified
from analysis.units import minutes_text
from core.numbers import (
    digits,
    duration,
    human,
    human_range,
    layers,
    listed,
    listed_layers,
    percent,
    prefixed,
    scientific,
    span,
)

if TYPE_CHECKING:
    # A shape by a published law is printed without a numerical library.
    from analysis.law.at_limit import AtLimit, DepthAtLimit, Limit
    from analysis.law.reading import AtSize, DepthAt, Range, Reading
    from analysis.runs.tokens import TokenRule

#: Other depths whose cost is given beside the best one.
MOST_SHAPES = 3
#: Depths between which the runs do not decide; with more of them at all sizes there is no answer.
MOST_DEPTHS = 3


@dataclass(frozen=True)
class Axis:
    """What the places of a reading are: the word for them, their unit, and how they are written.

    `absent` is what a depth without a loss at a place lacks.
    """

    place: str
    unit: str
    number: Callable[[float], str]
    interval: Callable[[Interval], str]
    absent: str


SIZES = Axis("size", "parameters", human, human_range, "were not measured")


COMPUTES = Axis(
    "compute",
    "FLOPs",
    scientific,
    lambda interval: span(interval, scientific),
    "have no least loss inside their sizes",
)


TIMES = Axis(
    "training time",
    "of training",
    minutes_text,
    lambda interval: span(interval, minutes_text),
    COMPUTES.absent,
)


def use_sentence(reading: "Reading", level: float, axis: Axis = SIZES) -> str:
    """Which depth to use at which size, or at which compute; empty if the losses do not give it."""
    ranges = reading.ranges
    if not ranges or (ranges[0].depths == ranges[-1].depths and len(ranges[0].depths) > MOST_DEPTHS):
        return ""
    tried, (smallest, largest) = reading.depths, (reading.params[0], reading.params[-1])
    if len(ranges) == 1 and (ranges[0].low, ranges[0].high) == (smallest, largest):
        sizes = axis.interval((smallest, largest))
        return f"At every {axis.place} measured ({sizes} {axis.unit}) use {_depths(ranges[0], tried, axis)}."
    parts: list[str] = []
    end, named = smallest, False
    for index, item in enumerate(ranges):
        last, units = index == len(ranges) - 1, "" if parts else f" {axis.unit}"
        # Below the sizes a shallower depth may be best, if one was tried.
        if item.low > end * (1 + 1e-9) or (index == 0 and item.depths[0] > tried[0]):
            where = f"from {axis.number(item.low)} to {axis.number(item.high)}{units}"
        elif last and item.high == largest:
            where = "above that"
        else:
            where = f"up to {axis.number(item.high)}{units}"
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
        return axis.interval(interval)
    return f"up to {axis.number(high or 0.0)}" if low is None else f"from {axis.number(low)} on"


def _depths(item: "Range", tried: Sequence[int], axis: Axis) -> str:
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


def shape_sentence(best: "AtSize") -> str:
    """The best shape of a size, what other depths cost, and which of them do not differ significantly.

    Widths are those nearest to N that can be built.
    """
    width = buildable_width(best.width, best.width_step)
    text = f"At {human(best.params)} parameters: {layers(best.depth)} × {width} wide"
    others = [shape for shape in best.shapes if shape.depth != best.depth]
    text += _costs_words(others, best.loss, best.width_step) + _near_words(best.near)
    if best.missing:
        text += (
            f"; {listed([layers(depth) for depth in best.missing])} {_are(best.missing)} not measured there"
        )
    return f"{text}."


def _costs_words(others: "Sequence[DepthAt | DepthAtLimit]", loss: float, step: int | None) -> str:
    """`; 2 × 34 costs +2.3 %, 1 × 48 +6.2 %`: what other depths lose, least first, as a share of the best loss."""
    parts: list[str] = []
    for shape in sorted(others, key=lambda shape: shape.excess)[:MOST_SHAPES]:
        width, verb = buildable_width(shape.width, step), "" if parts else " costs"
        parts.append(f"{shape.depth} × {width}{verb} +{digits(100 * shape.excess / loss)} %")
    return f"; {', '.join(parts)}" if parts else ""


def largest(best: "Sequence[AtSize]") -> "list[AtSize]":
    """The largest size at which no depth that may be the best is missing, else the largest; empty without a size."""
    return ([item for item in best if not item.missing] or list(best))[-1:]


def short_answer(
    reading: "Reading", best: "Sequence[AtSize]", level: float, tokens: "TokenRule"
) -> list[str]:
    """Which depth to use at which size, and the best shape of the largest size; without what is not known."""
    use = qualified(use_sentence(reading, level), tokens.ratio)
    return [*filter(None, [use]), *map(shape_sentence, largest(best))]


def compute_sentence(shape: ComputeShape) -> str:
    """The shape of least loss for one budget, its tokens, and what other depths cost; or why none is stated.

    At equal time the tokens that other depths see are a part of their cost.
    """
    is_time = shape.budget_unit == "minutes"
    at = f"In {shape.budget_text} of training" if is_time else f"At {shape.budget_text}"
    if shape.depth is None or shape.params is None or shape.tokens is None:
        return f"{at} no depth is stated: {shape.reason}."
    text = (
        f"{at}: {layers(shape.depth)} × {shape.width} wide ({human(shape.params)} parameters), "
        f"{human(shape.tokens)} tokens"
    )
    if shape.loss is not None:
        costs: list[str] = []
        for other in shape.others[:MOST_SHAPES]:
            first = f"{layers(other.depth)} cost{'s' if other.depth == 1 else ''}"
            name = str(other.depth) if costs else first
            tokens = f" with {digits(other.tokens / shape.tokens)} times the tokens" if is_time else ""
            costs.append(f"{name} +{digits(100 * other.excess / shape.loss)} %{tokens}")
        text += f"; {', '.join(costs)}{_near_words(shape.near)}"
    return f"{text} ({shape.reason})." if shape.reason else f"{text}."


def limit_words(limit: "Limit") -> str:
    """`5 ms per token`, `8.0 ms per token in batches of 8`, `2.0 h of training`, `64k bytes of cache per token`."""
    match limit.kind:
        case "latency":
            batch = "" if limit.batch == 1 else f" in batches of {limit.batch}"
            return f"{digits(1e3 * limit.value, 3)} ms per token{batch}"
        case "train_time":
            return f"{duration(limit.value)} of training"
        case _:
            return f"{prefixed(limit.value)} bytes of cache per token"


def limit_sentence(answer: "AtLimit") -> str:
    """The best shape at a limit of cost, what other depths cost, and which depths cannot be compared there."""
    at, best = f"At {limit_words(answer.limit)}", answer.best
    without = "; ".join(
        f"{listed_layers(depths)} {words}"
        for depths, words in (
            (
                answer.too_large,
                f"{_have(answer.too_large)} no measured size that costs as much, and may be better",
            ),
            (answer.too_small, f"cost{_s(answer.too_small)} more at every measured size, and may be better"),
        )
        if depths
    )
    if not answer.shapes and not answer.too_small:
        return f"{at} no depth is stated: every measured shape costs less, and larger ones were not measured."
    if not answer.shapes and not answer.too_large:
        return (
            f"{at} no depth is stated: every measured shape costs more, and smaller ones were not measured."
        )
    if best is None:
        return f"{at} no depth is stated, because fewer than two depths have a size of this cost: {without}."
    text = f"{at}: {layers(best.depth)} × {answer.width} wide ({human(best.params)} parameters)"
    others = [shape for shape in answer.shapes if shape is not best]
    text += _costs_words(others, best.loss, answer.width_step) + _near_words(answer.near)
    if answer.excluded:
        verb = f"cost{_s(answer.excluded)} more, and lose{_s(answer.excluded)}"
        text += f"; {listed_layers(answer.excluded)} {verb} even at the smallest size measured"
    text = f"{text}; {without}." if without else f"{text}."
    if answer.unsteady:
        text += f" The costs of {listed_layers(answer.unsteady)} were unsteady when they were measured."
    return text


def _have(depths: Sequence[int]) -> str:
    return "has" if tuple(depths) == (1,) else "have"


def _s(depths: Sequence[int]) -> str:
    return "s" if tuple(depths) == (1,) else ""


def _near_words(near: Sequence[int] | None) -> str:
    """Which depths cannot be told apart, to append to the costs of the depths; empty if one is the best."""
    if near is None:
        return "; without a noise estimate no difference is tested"
    if len(near) < 2:
        return ""
    return f"; the losses of {listed([str(depth) for depth in near])} layers do not differ significantly"
