"""Numbers and findings in plain words: what a person reads first."""

import math

from analysis.crossings import Crossing, Interval
from analysis.fit import Fit

_UNITS = ((1e12, "trillion", "T"), (1e9, "billion", "B"), (1e6, "million", "M"), (1e3, "thousand", "k"))


def digits(value: float, significant: int = 2) -> str:
    """`value` to so many significant digits, never in exponent form between 0.001 and a million."""
    if value == 0:
        return "0"
    # Rounded before its digits are counted: 0.9996 is 1.0, not 1.00.
    rounded = float(f"{value:.{significant - 1}e}")
    places = max(0, significant - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{places}f}"


def human(value: float) -> str:
    """A count in words, such as `3.1 thousand`."""
    for size, word, _ in _UNITS:
        # 999.6 thousand is a million to two digits.
        if value >= 0.995 * size:
            return f"{digits(value / size)} {word}"
    return digits(value)


def short(value: float) -> str:
    """A count for an axis or a table, such as `3.1k`."""
    for size, _, letter in _UNITS:
        if value >= 0.995 * size:
            return f"{float(digits(value / size)):g}{letter}"
    return f"{float(digits(value)):g}"


def human_range(interval: Interval | None) -> str:
    """An interval of counts in words; open ends are said, not hidden."""
    if interval is None:
        return "no interval"
    low, high = interval
    if low is None and high is None:
        return "anywhere"
    if low is None:
        return f"below {human(high or 0.0)}"
    if high is None:
        return f"above {human(low)}"
    first, last = human(low), human(high)
    unit = last.partition(" ")[2]
    return f"{first.partition(' ')[0] if first.partition(' ')[2] == unit else first}–{last}"


def short_range(interval: Interval | None) -> str:
    """An interval for a table, such as `2.7k–3.9k`; open ends are said."""
    if interval is None:
        return "none"
    low, high = interval
    if low is None:
        return "open" if high is None else f"below {short(high)}"
    return f"above {short(low)}" if high is None else f"{short(low)}–{short(high)}"


def layers(depth: int) -> str:
    """`1 layer`, `2 layers`."""
    return f"{depth} layer" + ("" if depth == 1 else "s")


def percent(level: float) -> str:
    """A level such as `95 %`."""
    return f"{100 * level:g} %"


def crossing_sentence(item: Crossing, level: float) -> str:
    """What was found about one pair, in one sentence."""
    pair = f"Depth {item.deep} overtakes depth {item.shallow}"
    match item.status:
        case "bracketed":
            width = f", where the shallower net is {digits(item.width or 0.0)} wide"
            where = f"at N ≈ {human(item.params or 0.0)}"
            return f"{pair} {where} ({percent(level)}: {human_range(item.params_interval)}){width}."
        case "left_censored":
            low = item.range[0] if item.range else 0.0
            return (
                f"Depth {item.deep} is ahead of depth {item.shallow} at every size measured, "
                f"from N ≈ {human(low)} on{_aside(item)}."
            )
        case "right_censored":
            high = item.range[1] if item.range else 0.0
            return (
                f"Depth {item.deep} does not overtake depth {item.shallow} up to N ≈ {human(high)}, "
                f"the largest size measured{_aside(item)}."
            )
        case "ambiguous":
            if item.params is None:
                return (
                    f"Whether depth {item.deep} overtakes depth {item.shallow} is not settled: {item.reason}."
                )
            return f"{pair} perhaps near N ≈ {human(item.params)}, but this is not settled: {item.reason}."
        case "insufficient":
            return f"Depths {item.shallow} and {item.deep} cannot be compared: {item.reason}."


def law_sentence(fit: Fit) -> str:
    """The threshold law, or why there is none."""
    law = fit.law
    if law.status != "ok" or law.a is None or law.b is None or law.b_interval is None:
        return f"No threshold law: {law.reason}."
    low, high = law.b_interval
    sign = "+" if law.b >= 0 else "−"
    formula = f"ln d = {law.a:.2f} {sign} {abs(law.b):.3g}·L"
    text = f"Threshold law: {formula}, slope {percent(law.level)}: {digits(low)} to {digits(high)}"
    return f"{text} ({law.note})." if law.note else f"{text}."


def best_sentence(fit: Fit) -> str:
    """The best measured depth of each budget, in runs of equal depth."""
    if not fit.best:
        return "No budget has two depths that can be compared at one N, so no best shape can be named."
    groups: list[tuple[int, list[float]]] = []
    for item in fit.best:
        if groups and groups[-1][0] == item.depth:
            groups[-1][1].append(item.params)
        else:
            groups.append((item.depth, [item.params]))
    parts = [f"{layers(depth)} at {_sizes(sizes)}" for depth, sizes in groups]
    return "Lowest loss measured: " + ", ".join(parts) + "."


def headlines(fit: Fit) -> list[str]:
    """The answer, most important sentence first."""
    adjacent = [item for item in fit.crossings if item.adjacent]
    if not adjacent:
        return ["One depth only: a crossing needs two.", best_sentence(fit)]
    # What is settled comes first; within that, from shallow to deep.
    ordered = sorted(adjacent, key=lambda item: (item.status != "bracketed", item.shallow))
    sentences = [crossing_sentence(item, fit.level) for item in ordered if item.status != "insufficient"]
    missing = [item for item in adjacent if item.status == "insufficient"]
    if len(missing) > 2:
        lacking = (
            f"{len(missing)} of {len(adjacent)} pairs of neighbouring depths cannot be compared: "
            "each depth needs two sizes, and the two a common range."
        )
        return [*sentences, best_sentence(fit), law_sentence(fit), lacking]
    rest = [crossing_sentence(item, fit.level) for item in missing]
    return [*sentences, *rest, best_sentence(fit), law_sentence(fit)]


def _sizes(sizes: list[float]) -> str:
    if len(sizes) == 1:
        return f"N ≈ {human(sizes[0])}"
    return f"N ≈ {human_range((sizes[0], sizes[-1]))}"


def _aside(item: Crossing) -> str:
    return f" ({item.reason})" if item.reason and item.reason.startswith("one seed") else ""
