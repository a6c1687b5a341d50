"""`interplay theory`: bounds and thresholds of Levine et al. 2020, and separation ranks of random networks."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.errors import SpecError

if TYPE_CHECKING:
    from analysis.theory.separation_rank import Held, SeparationRank
    from analysis.theory.theorems import Bounds, MatchingWidth, SlopeComparison

#: Widths and depths listed by `threshold` by default.
WIDTHS = (256, 512, 768, 1024, 2048, 4096, 8192, 12288)
THRESHOLD_DEPTHS = tuple(range(1, 12))
#: Standard errors of a 95 % interval.
Z95 = 1.959964

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Show what the theory predicts for a shape: bounds, thresholds, and separation ranks of random networks.",
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


@app.command("threshold")
def threshold_verb(
    width: Annotated[
        list[int] | None, typer.Option("--width", metavar="D ...", help="widths: 768 12288")
    ] = None,
    more: Annotated[list[int] | None, typer.Argument(hidden=True)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the depth log3(width) up to which depth is efficient, and the sizes at which each depth reaches it."""
    from analysis.theory.theorems import threshold, threshold_params

    found = {d: threshold(d) for d in [*(width or ()), *(more or ())] or WIDTHS}
    sizes = {depth: threshold_params(depth) for depth in THRESHOLD_DEPTHS}
    if as_json:
        _print_json(
            {
                "widths": [{"width": d, "threshold": depth} for d, depth in found.items()],
                "depths": [{"depth": n, "width": 3**n, "params": size} for n, size in sizes.items()],
            }
        )
        return
    left = _table("width d", "threshold L")
    for d, depth in found.items():
        left.add_row(f"{d:,}", f"{depth:.2f}")
    right = _table("depth L", "width 3^L", "N")
    for depth, size in sizes.items():
        right.add_row(str(depth), f"{3**depth:,}", f"{size:,}")
    Console().print(_titled("depth is efficient below L = log3 d", left), Text())
    Console().print(_titled("size of each depth at its threshold, N = 12·L·9^L", right))


@app.command("depth")
def depth_verb(
    params: Annotated[
        list[float],
        typer.Option("--params", metavar="N ...", help="sizes in non-embedding parameters: 1e9 7e9"),
    ],
    more: Annotated[list[float] | None, typer.Argument(hidden=True)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the smallest depth that does not waste width at a size by the theory, where d = 3^L and N = 12·L·d²."""
    from analysis.theory.theorems import minimal_depth

    found = [minimal_depth(value) for value in [*params, *(more or ())]]
    if as_json:
        _print_json(found)
        return
    table = _table("N", "L", "d = 3^L", "L ceil", "d", "L nearest", "d")
    for item in found:
        exact = (f"{item.params:.3g}", f"{item.exact:.3f}", f"{item.width:,.0f}")
        whole = ((item.ceil, item.ceil_width), (item.nearest, item.nearest_width))
        table.add_row(*exact, *(text for depth, width in whole for text in (str(depth), f"{width:,.0f}")))
    note = (
        "L solves 12·L·9^L = N; ceil is the smallest whole depth at or above it, nearest the whole depth closest to "
        "it, each with d = sqrt(N/(12·L)). Measured thresholds are far deeper: the theory's slope is ln 3 per layer "
        "(`interplay theory slope`)."
    )
    Console().print(_titled("smallest depth of a size by the theory", table, Text(note, style="dim")))


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


@app.command("slope")
def slope_verb(
    fit_file: Annotated[Path | None, typer.Option("--fit", help="fit.json of a study")] = None,
    law: Annotated[str | None, typer.Option("--law", help="published law: levine2020")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the theory's slope ln 3 with the slope b of a fitted threshold law ln d = a + b·L."""
    from analysis.theory.theorems import compare_slope
    from study.results.recommend import published_law

    if (fit_file is None) == (law is None):
        raise SpecError(
            "Give the slope to compare: --fit results/NAME/fit.json for the law of a study, or --law levine2020 for "
            "the published one (not both)."
        )
    if fit_file is not None:
        b, ends = _fitted_slope(fit_file)
        source = f"law of {fit_file}"
    else:
        named = published_law(str(law))
        error = named.covariance[1][1] ** 0.5
        b, ends = named.b, (named.b - Z95 * error, named.b + Z95 * error)
        source = f"law of {named.source}"
    found = compare_slope(b, ends)
    if as_json:
        _print_json({"source": source, **asdict(found)})
    else:
        Console().print(_slope_view(source, found))


@app.command("rank")
def rank_verb(
    depth: DepthOption,
    width: WidthOption,
    heads: Annotated[int, typer.Option("--heads", help="H, which divides the width")] = 1,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", help="positions, even; by default 2·(d + 1), more change nothing"),
    ] = None,
    partitions: Annotated[
        str, typer.Option("--partitions", metavar="all|K", help="balanced partitions to measure")
    ] = "1",
    grid: Annotated[
        int, typer.Option("--grid", help="most inputs on each side; doubled from 32 until they are enough")
    ] = 2048,
    seed: Annotated[int, typer.Option("--seed", min=0, help="seed of weights and inputs")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the exact separation rank of a random network and compare it with its bounds."""
    from analysis.theory.separation_rank import held, partition_ranks
    from analysis.theory.theorems import bounds, equation_7, log3

    if partitions != "all" and not partitions.isdecimal():
        raise SpecError(f"--partitions is {partitions!r}; it must be `all` or a whole number, as 6.")
    count = None if partitions == "all" else int(partitions)
    with Console(stderr=True).status("measuring"):
        ranks = partition_ranks(depth, width, heads, tokens, count=count, grid=grid, seed=seed)
    best = max(ranks, key=lambda item: item.rank)
    limits, seven = bounds(depth, width, heads), equation_7(depth, width, heads)
    checked = held(best.rank, best.saturated, limits.lower, limits.upper)
    checked_7 = held(best.rank, best.saturated, *seven)
    if as_json:
        _print_json(
            {
                "rank": best.rank,
                "log3_rank": log3(best.rank) if best.rank else None,
                "saturated": best.saturated,
                "partitions": ranks,
                "agree": _agree(ranks),
                "bounds": limits,
                "held": checked,
                "formula_7": {"lower": seven[0], "upper": seven[1], "held": checked_7},
            }
        )
        return
    name = f"Theorem {limits.theorem}" if limits.theorem else "no theorem (L = log3 d)"
    compared = [(name, limits.lower, limits.upper, checked)]
    if limits.theorem != 1:
        compared.append(("eq. 7 as a formula", *seven, checked_7))
    Console().print(_rank_view(ranks, best, compared))


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


def _slope_view(source: str, found: "SlopeComparison") -> RenderableType:
    table = _table("slope of ln d per layer", "value", "95 %" if found.b_interval else "", left=True)
    ends = found.b_interval
    table.add_row("theory, ln 3", f"{found.theory:.4f}", "")
    table.add_row("fitted, b", f"{found.b:.4f}", f"{ends[0]:.4f} – {ends[1]:.4f}" if ends else "no interval")
    if found.ratio is not None:
        low, high = found.ratio_interval or (None, None)
        text = "" if low is None else f"{low:.1f} – " + ("…" if high is None else f"{high:.1f}")
        table.add_row("ln 3 / b", f"{found.ratio:.1f}", text)
    note = "A fit can confirm the exponential form. The constant comes from loose bounds and is not expected to match."
    return _titled(source, table, Text(_slope_verdict(found)), Text(note, style="dim"))


def _slope_verdict(found: "SlopeComparison") -> str:
    zero = found.b_interval is not None and found.b_interval[0] <= 0 <= found.b_interval[1]
    if zero:
        both = "0 and ln 3" if found.agrees else "0"
        return f"The interval of the fitted slope includes {both}: these data do not show an exponential threshold."
    if found.ratio is None:
        return "The fitted slope is not positive: these data show no exponential threshold."
    if found.agrees:
        return "ln 3 lies inside the interval: these data do not contradict the theory's constant."
    side, factor = ("steeper", found.ratio) if found.ratio > 1 else ("flatter", 1 / found.ratio)
    untested = "" if found.b_interval else " (without an interval nothing is tested)"
    return f"The theory is {factor:.1f} times {side} than the fit{untested}."


def _rank_view(
    ranks: "Sequence[SeparationRank]",
    best: "SeparationRank",
    compared: "Sequence[tuple[str, float | None, float | None, Held]]",
) -> RenderableType:
    table = _table("positions in A", "rank", "grid", left=True)
    for item in ranks:
        rank = f"≥ {item.rank:,}" if item.saturated else f"{item.rank:,}"
        table.add_row(_positions(item.partition), rank, f"{item.grid:,}")
    beside = _table("bounds of the rank", "lower", "upper", "held", left=True)
    for name, lower, upper, checked in compared:
        sides = ((checked.lower, lower), (checked.upper, upper))
        marks = {True: "yes", False: "NO", None: "?"}
        text = ", ".join("-" if bound is None else marks[value] for value, bound in sides)
        beside.add_row(name, _rank_text(lower), _rank_text(upper), text)
    lines = []
    if best.saturated:
        lines.append(
            _warning(
                f"The rank fills the grid of {best.grid:,}, so it is only a lower bound; take a larger --grid."
            )
        )
    else:
        text = (
            f"Exact, modulo 2^31 - 1; too low by a bad draw with a probability below {best.odds_too_low:.0e}."
        )
        lines.append(Text(text, style="dim"))
    if len(ranks) > 1:
        verdict = {
            True: "All partitions have the same rank, as Proposition 1 states",
            False: "The ranks differ, against Proposition 1",
            None: "A full grid is a lower bound, so Proposition 1 is not tested",
        }[_agree(ranks)]
        lines.append(
            Text(f"{verdict}; the output is that of position 0, which is in A in some and in B in others.")
        )
    shape = f"depth {best.depth}, width {best.width}, heads {best.heads}, {best.tokens} tokens"
    return _titled(f"separation rank of {shape}", table, Text(), beside, *lines)


def _agree(ranks: "Sequence[SeparationRank]") -> bool | None:
    """Return whether all partitions have the same rank; None for one partition, or where a full grid leaves it open."""
    if len(ranks) < 2 or any(item.saturated for item in ranks):
        return None
    return len({item.rank for item in ranks}) == 1


def _fitted_slope(path: Path) -> tuple[float, tuple[float, float] | None]:
    """Read the slope of a fit file and its interval, None where that is open."""
    from study.results.recommend import read_fit

    law = read_fit(path).law
    if law.b is None:
        raise SpecError(
            f"The fit in {path} has no slope: {law.reason or 'no reason is given'}. Add depths, budgets or seeds to "
            "the study, or compare the published law with --law levine2020."
        )
    low, high = law.b_interval or (None, None)
    return law.b, None if low is None or high is None else (low, high)


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


def _positions(partition: tuple[int, ...]) -> str:
    """Write positions as ranges, such as 0-3,6."""
    ranges: list[list[int]] = []
    for position in partition:
        if ranges and ranges[-1][-1] == position - 1:
            ranges[-1].append(position)
        else:
            ranges.append([position])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in ranges)


def _print_json(document: object) -> None:
    from analysis.files import to_json

    print(json.dumps(to_json(document), indent=2, allow_nan=False))
