"""`interplay theory`: bounds and thresholds of Levine et al. 2020, and separation ranks of random networks."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.errors import SpecError

if TYPE_CHECKING:
    from analysis.theory.separation_rank import Held, SeparationRank
    from analysis.theory.theorems import Bounds, MatchingWidth

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Show what the theory predicts for a shape: bounds, and separation ranks of random networks.",
)

JsonOption = Annotated[
    bool, typer.Option("--json", help="print one JSON document on stdout and nothing else")
]
DepthOption = Annotated[int, typer.Option("--depth", help="L, number of layers")]
WidthOption = Annotated[int, typer.Option("--width", help="d, width of the model")]


@app.command("bounds")
def bounds_verb(
    depth: DepthOption,
    width: WidthOption,
    heads: Annotated[int, typer.Option("--heads", help="H; need not divide the width here")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Bound the separation rank of a shape (Theorems 1 and 2)."""
    from analysis.theory.theorems import COROLLARY_2, bounds, threshold

    found = bounds(depth, width, heads)
    share = threshold(width) / depth if found.regime == "depth-inefficient" else None
    if as_json:
        corollary = None if share is None else {"beta1": share, "beta2": None, "note": COROLLARY_2}
        _print_json({**asdict(found), "threshold": threshold(width), "corollary_2": corollary})
    else:
        Console().print(_bounds_view(found, threshold(width), share))


@app.command("example")
def example_verb(
    depth: Annotated[int | None, typer.Option("--depth", help="L of the deeper model")] = None,
    width: Annotated[int | None, typer.Option("--width", help="d of the deeper model")] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="H of both")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the width a shallower model needs to match a deeper one (Corollary 1): as printed, and recomputed."""
    from analysis.theory.theorems import EXAMPLE, check_shape, matching_width

    given = zip((depth, width, heads), EXAMPLE, strict=True)
    deep_depth, deep_width, both_heads = (own if value is None else value for value, own in given)
    check_shape(deep_depth, deep_width, both_heads)
    if deep_depth < 2:
        raise SpecError(
            f"The deeper model has depth {deep_depth}, and no model is shallower; take a --depth of 2 or more."
        )
    found = [matching_width(shallow, deep_depth, deep_width, both_heads) for shallow in range(1, deep_depth)]
    if as_json:
        deep = {"depth": deep_depth, "width": deep_width, "heads": both_heads, "lower": found[0].needed}
        _print_json({"deep": deep, "shallow": found})
    else:
        shape = f"depth {deep_depth}, width {deep_width}, heads {both_heads}"
        Console().print(_example_view(shape, found))


@app.command("rank")
def rank_verb(
    depth: DepthOption,
    width: WidthOption,
    heads: Annotated[int, typer.Option("--heads", help="H, which divides the width")] = 1,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", help="positions, even; by default 2·(d + 1), more change nothing"),
    ] = None,
    grid: Annotated[
        int, typer.Option("--grid", help="most inputs on each side; doubled from 32 until they are enough")
    ] = 2048,
    seed: Annotated[int, typer.Option("--seed", min=0, help="seed of weights and inputs")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the exact separation rank of a random network and compare it with its bounds."""
    from analysis.theory.separation_rank import held, separation_rank
    from analysis.theory.theorems import bounds, log3

    with Console(stderr=True).status("measuring"):
        found = separation_rank(depth, width, heads, tokens, grid=grid, seed=seed)
    limits = bounds(depth, width, heads)
    checked = held(found.rank, found.saturated, limits.lower, limits.upper)
    if as_json:
        log3_rank = log3(found.rank) if found.rank else None
        _print_json({**asdict(found), "log3_rank": log3_rank, "bounds": limits, "held": checked})
    else:
        Console().print(_rank_view(found, limits, checked))


def _bounds_view(found: "Bounds", threshold: float, share: float | None) -> RenderableType:
    from analysis.theory.theorems import COROLLARY_2

    table = _table("", "log3 of the rank", "rank", left=True)
    for name, value in (("lower bound", found.lower), ("upper bound", found.upper)):
        text = "-" if value is None else f"{value:,.3f}" if abs(value) < 1e6 else f"{value:.4g}"
        table.add_row(name, text, _rank_text(value))
    relation = {"depth-efficient": "<", "boundary": "=", "depth-inefficient": ">"}[found.regime]
    theorem = f"Theorem {found.theorem}" if found.theorem else "no theorem"
    lines = [Text(f"L = {found.depth} {relation} log3 d = {threshold:.2f}: {found.regime}, {theorem}.")]
    if found.reason:
        lines.append(_warning(f"Missing: {found.reason}."))
    elif found.vacuous:
        lines.append(
            _warning("The lower bound is vacuous: every function but zero has rank 1, log3 of it 0.")
        )
    if share is not None:
        lines.append(Text(f"Corollary 2: β1 = log3(d)/L = {share:.3f}. {COROLLARY_2}", style="dim"))
    shape = f"depth {found.depth}, width {found.width}, heads {found.heads}"
    return _titled(f"separation rank of {shape}", table, *lines)


def _example_view(shape: str, found: "Sequence[MatchingWidth]") -> RenderableType:
    printed = any(item.printed for item in found)
    table = _table("depth", "width", *(["as printed"] if printed else []), "")
    table.columns[-1].justify = "left"
    for item in found:
        width = "any" if item.log10_width is None else _power_of_ten(item.log10_width)
        cells = [f"{item.printed:.0e}" if item.printed else ""] if printed else []
        note = "" if item.binding else "the bounds do not separate the models"
        table.add_row(str(item.shallow), width, *cells, note)
    lines = [
        Text(
            f"The deeper model's lower bound is log3 sep >= {found[0].needed:.3f} (eq. 7); below the width shown the "
            "shallower model's upper bound is less.",
            style="dim",
        )
    ]
    if printed:
        text = (
            "As printed: in an earlier revision of the paper. Those widths do not follow from its eq. 7; the "
            "recomputed ones are 27 and 2.6 times smaller, and the conclusion is the same."
        )
        lines.append(_warning(text))
    return _titled(f"width at which a shallower model can match {shape}", table, *lines)


def _rank_view(found: "SeparationRank", limits: "Bounds", checked: "Held") -> RenderableType:
    table = _table("", "rank", "held", left=True)
    table.add_row("lower bound", _rank_text(limits.lower), _held_text(limits.lower, checked.lower))
    table.add_row("measured", f"{'≥ ' if found.saturated else ''}{found.rank:,}", "")
    table.add_row("upper bound", _rank_text(limits.upper), _held_text(limits.upper, checked.upper))
    theorem = f"Theorem {limits.theorem}" if limits.theorem else "no theorem (L = log3 d)"
    note = _warning(
        f"The rank fills the grid of {found.grid:,}, so it is only a lower bound; take a larger --grid."
    )
    if not found.saturated:
        odds = f"too low by a bad draw with a probability below {found.odds_too_low:.0e}"
        note = Text(f"Bounds: {theorem}. The rank is exact, modulo 2^31 - 1; {odds}.", style="dim")
    shape = f"depth {found.depth}, width {found.width}, heads {found.heads}, {found.tokens} tokens"
    return _titled(f"separation rank of {shape}", table, note)


def _held_text(bound: float | None, held: bool | None) -> str:
    return "-" if bound is None else {True: "yes", False: "NO", None: "?"}[held]


def _table(*columns: str, left: bool = False) -> Table:
    """Make a table with right-justified columns; with `left` the first is left-justified."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if left and index == 0 else "right")
    return table


def _titled(title: str, *parts: RenderableType) -> Group:
    """Put a title above parts, on a line of its own: rich breaks a table's title at the table's width."""
    return Group(Text(title, style="italic"), *parts)


def _warning(text: str) -> Text:
    return Text(text, style="yellow")


def _rank_text(log3_rank: float | None) -> str:
    """Write a rank given as log3 as a number; a bound of at most 1 is vacuous and shown as such."""
    if log3_rank is None:
        return "-"
    from analysis.theory.theorems import log3

    return "≤ 1" if log3_rank < 1e-12 else _power_of_ten(log3_rank / log3(10))


def _power_of_ten(exponent: float) -> str:
    """Write 10^exponent to three digits, however large it is."""
    if exponent < 6:
        return f"{10**exponent:,.4g}" if exponent < 4 else f"{10**exponent:,.0f}"
    if exponent < 1e6:
        whole = int(exponent)
        digits = f"{10 ** (exponent - whole):.2f}"
        return f"{digits}e{whole}" if digits != "10.00" else f"1.00e{whole + 1}"
    return f"10^({exponent:.4g})"


def _print_json(document: object) -> None:
    from analysis.files import to_json

    print(json.dumps(to_json(document), indent=2, allow_nan=False))
