"""Numbers and intervals as text: `human` in sentences, `short` in tables and figures, `scientific` for FLOPs.

`is_number` and `is_count` tell what a caller gave.
"""

import math
import re
from collections.abc import Callable, Sequence
from numbers import Integral, Real

_Ends = Sequence[float | None]
_UNITS = {"trillion": 1e12, "billion": 1e9, "million": 1e6, "thousand": 1e3}
#: What the letters or the word behind a number stand for, in lower case; `10M` are ten million.
_SUFFIXES = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9, "t": 1e12, "tn": 1e12} | _UNITS
_WRITTEN = re.compile(
    r"([+-]?(?:\d+|\d{1,3}(?:[,_' \u00a0\u202f\u2019]\d{3})+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s?([a-z]*)"
)


def parse_number(text: str) -> float:
    """Read a number as people write it: `2000`, `1e9`, `10M`, `1.5T`, `7 billion`, `1,156`, `$7,000`.

    Raises:
        ValueError: the text is no number.
    """
    plain = text.strip().strip("$€£¥").strip().lower()
    try:
        return float(plain.replace("_", "!"))  # Python reads 1_0 as ten
    except ValueError:
        match = _WRITTEN.fullmatch(plain)
        if match is None or not any(character.isdigit() for character in match[1]):
            raise
        if match[2] and match[2] not in _SUFFIXES:
            raise
        value = float(re.sub(r"[,_' \u00a0\u202f\u2019]", "", match[1]))
        # 1.1M is 1100000, not 1100000.0000000001.
        return round(value * _SUFFIXES[match[2]], 3) if match[2] else value


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
    for word, size in _UNITS.items():
        # 999.6 thousand is a million to two digits.
        if value >= (1 - 0.5 * 10**-significant) * size:
            return f"{digits(value / size, significant)} {word}"
    return digits(value, significant)


def short(value: float, significant: int = 2) -> str:
    """A count for an axis or a table, such as `3.1k`."""
    number, _, word = human(value, significant).partition(" ")
    return f"{float(number):g}{'k' if word == 'thousand' else word[:1].upper()}"


def scientific(value: float, significant: int = 2) -> str:
    """A number of FLOPs, such as `6.5e12`."""
    mantissa, _, exponent = f"{value:.{significant - 1}e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(share: float) -> str:
    """A share such as `95 %`."""
    return f"{100 * share:g} %"


def prefixed(value: float) -> str:
    """A number in three digits with its decimal prefix, such as `1.23M`."""
    for power, prefix in zip(range(24, 0, -3), "YZEPTGMk", strict=True):
        # From 999.5 on three digits are those of the next prefix.
        if value >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g}{prefix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """A duration in a fitting unit, such as `4.2 s`, `45 s`, `12 min`, `2.4 h` or `31 days`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:,.0f} days"


#: Seconds of each unit of a duration.
UNITS_OF_TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Read a duration in seconds: `5ms`, `90 s`, `30min`, `2h`, `1.5d`, or a number of seconds.

    Raises:
        ValueError: the text is no duration.
    """
    match = re.fullmatch(r"(\d+\.?\d*(?:e-?\d+)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or (match[2] or "s") not in UNITS_OF_TIME:
        raise ValueError(f"{text!r} is no duration")
    return float(match[1]) * UNITS_OF_TIME[match[2] or "s"]


def counted(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def layers(depth: int) -> str:
    """`1 layer`, `2 layers`."""
    return counted(depth, "layer")


def is_number(value: object) -> bool:
    """Whether a value that a caller gave is a real number, of Python or NumPy."""
    return isinstance(value, Real)


def is_count(value: object) -> bool:
    """Whether a value that a caller gave is a whole number of Python or NumPy, and positive."""
    return isinstance(value, Integral) and int(value) > 0


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def listed_layers(depths: Sequence[int]) -> str:
    """`1 layer`, `2 and 4 layers`."""
    return listed([*map(str, depths[:-1]), layers(depths[-1])])


def first_few(parts: Sequence[str], separator: str = ", ") -> str:
    """The first five parts, and dots for the others."""
    return separator.join(parts[:5]) + (" ..." if len(parts) > 5 else "")


def span(interval: _Ends | None, text: Callable[[float], str] = digits, between: str = "–") -> str:
    """An interval for a table, such as `15–18`; an open end, None, becomes `below ...` or `above ...`."""
    if interval is None:
        return "none"
    low, high = interval
    if low is None:
        return "no limit" if high is None else f"below {text(high)}"
    return f"above {text(low)}" if high is None else f"{text(low)}{between}{text(high)}"


def ends(interval: _Ends, significant: int = 2, between: str = " to ") -> str:
    """An interval of any two numbers in a sentence, such as `0.2 to 0.31`."""
    low, high = interval
    # Two different ends must not print as one number.
    while low is not None and high is not None and low != high and significant < 6:
        if digits(low, significant) != digits(high, significant):
            break
        significant += 1
    return span(interval, lambda value: digits(value, significant), between)


def human_range(interval: _Ends | None) -> str:
    """An interval of counts in a sentence, such as `2.7–3.9 thousand`: one unit is named once.

    An end below a thousand is counted in thousands if the other is above: 0.86–28 thousand, not 864–28 thousand.
    """
    low, high = interval or (None, None)
    if low and high and low < 1000 <= high:
        text = f"{digits(low / 1000)} thousand–{human(high)}"
    else:
        text = span(interval, human)
    return re.sub(r"^(\S+) (\w+)–(\S+) \2$", r"\1–\3 \2", text)


def factors(interval: _Ends | None) -> str:
    """An interval of logarithms as one of factors, such as `1.2 to 2.6`; `none` without one."""
    if interval is None:
        return "none"
    low, high = (None if end is None else math.exp(end) for end in interval)
    return ends((low, high), 3)
