"""Numbers and intervals as text."""

import math
import re
from collections.abc import Callable, Sequence

#: Two ends; None is an open one.
Ends = Sequence[float | None]

_UNITS = ((1e12, "trillion", "T"), (1e9, "billion", "B"), (1e6, "million", "M"), (1e3, "thousand", "k"))


def digits(value: float, significant: int = 2) -> str:
    """`value` to a number of significant digits, never in exponent form between 0.001 and a million."""
    if value == 0:
        return "0"
    # Round before the digits are counted: 0.9996 is 1.0, not 1.00.
    rounded = float(f"{value:.{significant - 1}e}")
    places = max(0, significant - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{places}f}"


def human(value: float, significant: int = 2) -> str:
    """A count in words, such as `3.1 thousand`."""
    for size, word, _ in _UNITS:
        # 999.6 thousand is a million to two digits.
        if value >= (1 - 0.5 * 10**-significant) * size:
            return f"{digits(value / size, significant)} {word}"
    return digits(value, significant)


def short(value: float) -> str:
    """A count for an axis or a table, such as `3.1k`."""
    for size, _, letter in _UNITS:
        if value >= 0.995 * size:
            return f"{float(digits(value / size)):g}{letter}"
    return f"{float(digits(value)):g}"


def scientific(value: float, significant: int = 2) -> str:
    """`6.5e12`, `7e9`."""
    mantissa, _, exponent = f"{value:.{significant - 1}e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def params_text(value: float) -> str:
    """A number of parameters to three digits: `7e9`, `1.74e11`, `850`."""
    return scientific(value, 3) if value >= 1e4 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share such as `95 %`."""
    return f"{100 * share:g} %"


def times(shift: float) -> str:
    """A shift of ln N as a factor of N, such as `× 1.25`."""
    return f"× {digits(math.exp(shift), 3)}"


def duration(seconds: float) -> str:
    """A duration such as `2.5 h`."""
    if seconds >= 5400:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.1f} s"


def counted(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def layers(depth: int) -> str:
    """`1 layer`, `2 layers`."""
    return counted(depth, "layer")


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def ends(interval: Ends, significant: int = 2) -> str:
    """An interval of any two numbers, such as `0.2 to 0.31`."""
    low, high = interval
    # Two different ends must not print as one number.
    while low is not None and high is not None and low != high and significant < 6:
        if digits(low, significant) != digits(high, significant):
            break
        significant += 1
    return joined(interval, lambda value: digits(value, significant), " to ", "no limit")


def short_range(interval: Ends | None) -> str:
    """An interval of counts for a table, such as `2.7k–3.9k`."""
    return "none" if interval is None else joined(interval, short)


def span(interval: Ends | None) -> str:
    """An interval of widths or depths for a table, such as `15–18`."""
    return "–" if interval is None else joined(interval, digits)


def human_range(interval: Ends | None) -> str:
    """An interval of counts in words, such as `2.7–3.9 thousand`."""
    if interval is None:
        return "no interval"
    text = joined(interval, human, unbounded="anywhere")
    # One unit is named once.
    return re.sub(r"^(\S+) (\w+)–(\S+) \2$", r"\1–\3 \2", text)


def params_range(interval: Ends) -> str:
    """An interval of numbers of parameters, such as `2.7e9 – 3.9e9`."""
    # A model has at least one parameter, so an end below that limits nothing.
    known = [None if end is None or end < 1 else end for end in interval]
    return joined(known, params_text, " – ", "no limit")


def joined(
    interval: Ends, text: Callable[[float], str], separator: str = "–", unbounded: str = "open"
) -> str:
    """An interval with `text` of its ends; an open end becomes `below ...` or `above ...`."""
    low, high = interval
    if low is None:
        return unbounded if high is None else f"below {text(high)}"
    return f"above {text(low)}" if high is None else f"{text(low)}{separator}{text(high)}"


def factors(interval: Ends | None) -> Ends | None:
    """An interval of ln N as one of factors of N."""
    return None if interval is None else tuple(None if end is None else math.exp(end) for end in interval)
