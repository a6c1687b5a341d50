"""Colours of the figures, in a light and a dark edition.

Figures are drawn in the light edition. In the report's page every colour of `VARIABLES` becomes a CSS
variable, so that one drawing serves both editions.
"""

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


def sequence(count: int, kind: str = "depth") -> list[tuple[str, str]]:
    """(light, dark) colours of an ordered quantity: shallow models are green, deep ones dark violet.

    Each has a contrast of at least 3:1 against the paper of its edition.

    Args:
        count: how many.
        kind: `depth` (viridis) or `budget` (a second ordered palette, not to be mistaken for the first).
    """
    name, light, dark = (
        ("viridis", (0.56, 0.04), (0.92, 0.38)) if kind == "depth" else ("magma", (0.65, 0.2), (0.86, 0.52))
    )
    colours = colormaps[name]
    steps = [index / max(count - 1, 1) for index in range(count)]
    return [
        (
            to_hex(colours(light[0] + step * (light[1] - light[0]))),
            to_hex(colours(dark[0] + step * (dark[1] - dark[0]))),
        )
        for step in steps
    ]


def variables(depths: int, budgets: int) -> dict[str, tuple[str, str]]:
    """CSS name -> (light, dark) of everything a report draws."""
    table = dict(BASE)
    table |= {f"depth-{index}": pair for index, pair in enumerate(sequence(depths))}
    table |= {f"budget-{index}": pair for index, pair in enumerate(sequence(budgets, "budget"))}
    return table


def of_values(count: int) -> dict[str, tuple[str, str]]:
    """CSS name -> (light, dark) of the values, one colour per line."""
    return {f"value-{index}": pair for index, pair in enumerate(sequence(count))}
