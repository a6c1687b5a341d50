"""Format numbers as text."""

import math

_UNITS = ((1e12, "trillion", "T"), (1e9, "billion", "B"), (1e6, "million", "M"), (1e3, "thousand", "k"))


def digits(value: float, significant: int = 2) -> str:
    """`value` to so many significant digits, never in exponent form between 0.001 and a million."""
    if value == 0:
        return "0"
    # Rounded before its digits are counted: 0.9996 is 1.0, not 1.00.
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
