"""Colours of the figures, in a light and a dark edition.

Figures are drawn in the light edition. In the report's page every colour of `variables` becomes a CSS
variable, so that one drawing serves both editions.
"""

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

INK, MUTED, GRID, ACCENT, PAPER = "#1d2127", "#69727d", "#e4e7ea", "#b8431f", "#fefefe"
GOOD = "#2f7d54"

#: name -> (light, dark).
BASE = {
    "ink": (INK, "#e8eaed"),
    "muted": (MUTED, "#9aa4af"),
    "grid": (GRID, "#343a42"),
    "accent": (ACCENT, "#ff9466"),
    "paper": (PAPER, "#16191d"),
    "good": (GOOD, "#6cc495"),
}
#: Colour map, and its first and last place in the light and in the dark edition.
_MAP, _EDITIONS = "viridis", ((0.56, 0.04), (0.92, 0.38))


def sequence(count: int) -> list[tuple[str, str]]:
    """(light, dark) colours of an ordered quantity: shallow models are green, deep ones dark violet.

    Each has a contrast of at least 3:1 against the paper of its edition.
    """
    places = [np.linspace(first, last, count) for first, last in _EDITIONS]
    return [(to_hex(light), to_hex(dark)) for light, dark in zip(*map(colormaps[_MAP], places), strict=True)]


def variables(**counts: int) -> dict[str, tuple[str, str]]:
    """CSS name -> (light, dark) of everything a page draws; `counts` are those of each kind: depth, value."""
    parts = [(kind, *item) for kind, count in counts.items() for item in enumerate(sequence(count))]
    return BASE | {f"{kind}-{index}": pair for kind, index, pair in parts}
