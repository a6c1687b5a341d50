"""What the theory predicts for a shape. Each function imports `analysis.theory`, which loads NumPy."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from core.command_line import option
from core.files import to_json
from core.numbers import scientific
from interplay.result import View
from interplay.terminal import text_table

if TYPE_CHECKING:
    from analysis.theory import Bounds


def theory_bounds(depth: int, width: int, heads: int = 1) -> View:
    """Bound the separation rank of a shape (Theorems 1 and 2).

    Raises:
        InputError: a number is not positive.
    """
    from analysis.theory import bounds

    limits = bounds(depth, width, heads)
    rows = [("lower bound", limits.lower), ("upper bound", limits.upper)]
    note = _regime(limits)
    if limits.lower is None and limits.theorem:
        note += " The lower bound needs more width than heads."
    elif limits.lower is not None and limits.lower <= 0:
        note += " The lower bound is vacuous: every function but zero has rank 1."
    cells = [(name, "-" if value is None else f"{value:,.7g}", _rank_text(value)) for name, value in rows]
    title = f"separation rank of depth {depth}, width {width}, heads {heads}"
    return View(to_json(limits), _view(title, ("", "log3 of the rank", "rank"), cells, note))


def theory_example() -> View:
    """Show the width by which a shallower model matches a deeper. The example of Corollary 1."""
    from analysis.theory import EXAMPLE, bounds, matching_width

    deep = bounds(*EXAMPLE)
    widths = {shallow: matching_width(shallow) for shallow in range(1, deep.depth)}
    rows = [(str(shallow), _number(width) if width else "any") for shallow, width in widths.items()]
    note = f"At a width below {deep.width} the bounds do not separate the two models."
    title = f"width at which a shallower model can match depth {deep.depth}, width {deep.width}, heads {deep.heads}"
    shallower = [{"depth": shallow, "width": width or None} for shallow, width in widths.items()]
    return View(to_json({"deep": deep, "shallow": shallower}), _view(title, ("depth", "width"), rows, note))


def theory_rank(
    depth: int, width: int, heads: int = 1, *, tokens: int | None = None, grid: int = 2048
) -> View:
    """Compute the exact separation rank of a random network.

    Args:
        depth: L.
        width: d.
        heads: H, which divides the width.
        tokens: positions, even; 2·(d + 1) if not given.
        grid: most inputs on each side, doubled from 32 on.

    Raises:
        InputError: a number is wrong.
    """
    from analysis.theory import bounds, separation_rank

    limits = bounds(depth, width, heads)
    result = separation_rank(depth, width, heads, tokens, grid=grid)
    rank = f"{'≥ ' if result.saturated else ''}{result.rank:,}"
    rows = [["lower bound", _rank_text(limits.lower)], ["computed", rank]]
    rows.append(["upper bound", _rank_text(limits.upper)])
    note = f"The rank is exact, modulo 2^31 - 1; too low with a probability below {result.odds_too_low:.0e}."
    if result.saturated:
        note = f"The rank fills the grid of {grid:,}, so it is only a lower bound; take a larger {option('grid')}."
    title = f"separation rank of depth {depth}, width {width}, heads {heads}, {result.tokens} tokens"
    view = _view(title, ("", "rank"), rows, f"{_regime(limits)} {note}")
    return View(to_json({**vars(result), "bounds": limits}), view)


def _view(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> RenderableType:
    return Group(
        Text(title, style="italic"), text_table("", names, rows, left=("",)), Text(note, style="dim")
    )


def _regime(limits: "Bounds") -> str:
    sign = {1: "<", None: "=", 2: ">"}[limits.theorem]
    theorem = f"Theorem {limits.theorem}" if limits.theorem else "no theorem"
    return f"L = {limits.depth} {sign} log3 d = {limits.threshold:.2f}: {theorem}."


def _number(value: float) -> str:
    return scientific(value, 3) if value >= 1e4 else f"{value:.3g}"


def _rank_text(log3_rank: float | None) -> str:
    """Write a rank given as log3 as a number; a bound of at most 1 is vacuous and shown as such."""
    if log3_rank is None or log3_rank < 1e-12:
        return "-" if log3_rank is None else "≤ 1"
    # A float ends near 3^646.
    return f"10^{log3_rank * math.log10(3):.6g}" if log3_rank > 600 else _number(3.0**log3_rank)
