"""`interplay theory`: bounds and thresholds of Levine et al. 2020, and separation ranks of random networks."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from analysis.files import to_json
from analysis.tables import Column, Table
from analysis.theory.theorems import (
    COROLLARY_2,
    EXAMPLE,
    Bounds,
    MatchingWidth,
    bounds,
    check_shape,
    log3,
    matching_width,
    threshold,
)
from study.commands.output import show
from study.errors import SpecError
from study.results.tables import rich_table

if TYPE_CHECKING:
    from analysis.theory.separation_rank import SeparationRank

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
    found = bounds(depth, width, heads)
    share = threshold(width) / depth if found.regime == "depth-inefficient" else None
    corollary = None if share is None else {"beta1": share, "beta2": None, "note": COROLLARY_2}
    document = {**asdict(found), "threshold": threshold(width), "corollary_2": corollary}
    show(to_json(document), _bounds_view(found, share), as_json=as_json)


@app.command("example")
def example_verb(
    depth: Annotated[int, typer.Option("--depth", help="L of the deeper model")] = EXAMPLE[0],
    width: Annotated[int, typer.Option("--width", help="d of the deeper model")] = EXAMPLE[1],
    heads: Annotated[int, typer.Option("--heads", help="H of both")] = EXAMPLE[2],
    as_json: JsonOption = False,
) -> None:
    """Show the width a shallower model needs to match a deeper one (Corollary 1)."""
    check_shape(depth, width, heads)
    if depth < 2:
        raise SpecError(
            f"The deeper model has depth {depth}, and no model is shallower; take a --depth of 2 or more."
        )
    found = [matching_width(shallow, depth, width, heads) for shallow in range(1, depth)]
    deep = {"depth": depth, "width": width, "heads": heads, "lower": found[0].needed}
    view = _example_view(f"depth {depth}, width {width}, heads {heads}", found)
    show(to_json({"deep": deep, "shallow": found}), view, as_json=as_json)


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

    with Console(stderr=True).status("measuring"):
        found = separation_rank(depth, width, heads, tokens, grid=grid, seed=seed)
    limits = bounds(depth, width, heads)
    checked = dict(zip(("lower", "upper"), held(found, limits), strict=True))
    log3_rank = log3(found.rank) if found.rank else None
    document = {**asdict(found), "log3_rank": log3_rank, "bounds": limits, "held": checked}
    show(to_json(document), _rank_view(found, limits, checked), as_json=as_json)


def _bounds_view(found: Bounds, share: float | None) -> RenderableType:
    rows = []
    for name, value in (("lower bound", found.lower), ("upper bound", found.upper)):
        text = "-" if value is None else f"{value:,.3f}" if abs(value) < 1e6 else f"{value:.4g}"
        rows.append((name, text, _rank_text(value)))
    relation = {"depth-efficient": "<", "boundary": "=", "depth-inefficient": ">"}[found.regime]
    theorem = f"Theorem {found.theorem}" if found.theorem else "no theorem"
    lines = [
        Text(
            f"L = {found.depth} {relation} log3 d = {threshold(found.width):.2f}: {found.regime}, {theorem}."
        )
    ]
    if found.reason:
        lines.append(_warning(f"Missing: {found.reason}."))
    elif found.vacuous:
        lines.append(
            _warning("The lower bound is vacuous: every function but zero has rank 1, log3 of it 0.")
        )
    if share is not None:
        lines.append(Text(f"Corollary 2: β1 = log3(d)/L = {share:.3f}. {COROLLARY_2}", style="dim"))
    shape = f"depth {found.depth}, width {found.width}, heads {found.heads}"
    return _titled(f"separation rank of {shape}", ("", "log3 of the rank", "rank"), rows, *lines)


def _example_view(shape: str, found: Sequence[MatchingWidth]) -> RenderableType:
    rows = []
    for item in found:
        width = "any" if item.log10_width is None else _power_of_ten(item.log10_width)
        rows.append(
            (str(item.shallow), width, "" if item.binding else "the bounds do not separate the models")
        )
    note = (
        f"The deeper model's lower bound is log3 sep >= {found[0].needed:.3f} (eq. 7); below the width shown the "
        "shallower model's upper bound is less."
    )
    title = f"width at which a shallower model can match {shape}"
    return _titled(title, ("depth", "width", ""), rows, Text(note, style="dim"))


def _rank_view(found: "SeparationRank", limits: Bounds, checked: dict[str, bool | None]) -> RenderableType:
    def bound_row(side: str, limit: float | None) -> tuple[str, str, str]:
        held = {True: "yes", False: "NO", None: "?"}[checked[side]]
        return f"{side} bound", _rank_text(limit), "-" if limit is None else held

    measured = ("measured", f"{'≥ ' if found.saturated else ''}{found.rank:,}", "")
    rows = [bound_row("lower", limits.lower), measured, bound_row("upper", limits.upper)]
    theorem = f"Theorem {limits.theorem}" if limits.theorem else "no theorem (L = log3 d)"
    note = _warning(
        f"The rank fills the grid of {found.grid:,}, so it is only a lower bound; take a larger --grid."
    )
    if not found.saturated:
        odds = f"too low by a bad draw with a probability below {found.odds_too_low:.0e}"
        note = Text(f"Bounds: {theorem}. The rank is exact, modulo 2^31 - 1; {odds}.", style="dim")
    shape = f"depth {found.depth}, width {found.width}, heads {found.heads}, {found.tokens} tokens"
    return _titled(f"separation rank of {shape}", ("", "rank", "held"), rows, note)


def _titled(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], *notes: RenderableType
) -> RenderableType:
    """A title, a table and notes; the title has a line of its own, for rich breaks one at its table's width."""
    columns = tuple(Column(name, right=bool(name)) for name in names)
    return Group(Text(title, style="italic"), rich_table(Table("", columns, rows)), *notes)


def _warning(text: str) -> Text:
    return Text(text, style="yellow")


def _rank_text(log3_rank: float | None) -> str:
    """Write a rank given as log3 as a number; a bound of at most 1 is vacuous and shown as such."""
    if log3_rank is None:
        return "-"
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
