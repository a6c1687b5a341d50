"""`interplay theory`: what the theory of Levine et al. 2020 says of a shape, and what a random network shows of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.errors import SpecError

if TYPE_CHECKING:
    from analysis.theory.separation_rank import Arithmetic, Held, SeparationRank, SweepRow
    from analysis.theory.theorems import Bounds, MatchingWidth, MinimalDepth, SlopeComparison

#: Widths shown by `threshold` where none is asked for, and the depths whose sizes stand below them.
WIDTHS = (256, 512, 768, 1024, 2048, 4096, 8192, 12288)
THRESHOLD_DEPTHS = tuple(range(1, 12))
#: Standard errors of a 95 % interval.
Z95 = 1.959964

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="What the theory says of a shape: bounds, thresholds, and separation ranks of random networks.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="one JSON document on stdout and nothing else")]
DepthOption = Annotated[int, typer.Option("--depth", help="L, layers")]
WidthOption = Annotated[int, typer.Option("--width", help="d, the model's width")]
MemoryOption = Annotated[float, typer.Option("--memory", help="limit in GiB")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="of weights and inputs")]


@app.command("bounds")
def bounds_verb(
    depth: DepthOption,
    width: WidthOption,
    heads: Annotated[int, typer.Option("--heads", help="H; need not divide the width here")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Bound the separation rank of a shape (Theorems 1 and 2)."""
    from analysis.theory.theorems import COROLLARY_2, beta1, bounds, threshold

    found = bounds(depth, width, heads)
    share = beta1(depth, width) if found.regime == "depth-inefficient" else None
    if as_json:
        corollary = None if share is None else {"beta1": share, "beta2": None, "note": COROLLARY_2}
        _print_json({**found.to_json(), "threshold": threshold(width), "corollary_2": corollary})
    else:
        Console().print(_bounds_table(found, threshold(width), share))


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

    widths = [*(width or ()), *(more or ())] or list(WIDTHS)
    found = {d: threshold(d) for d in widths}
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
    """Show the least depth that a size calls for by the theory, where d = 3^L and N = 12·L·d²."""
    from analysis.theory.theorems import minimal_depth

    found = [minimal_depth(value) for value in [*params, *(more or ())]]
    if as_json:
        _print_json([item.to_json() for item in found])
    else:
        Console().print(_depth_table(found))


@app.command("example")
def example_verb(
    depth: Annotated[int | None, typer.Option("--depth", help="L of the deeper model")] = None,
    width: Annotated[int | None, typer.Option("--width", help="d of the deeper model")] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="H of both")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the width a shallower model needs to match a deeper one (Corollary 1): as printed, and recomputed."""
    from analysis.theory.theorems import EXAMPLE, bounds, matching_width

    deep = (
        depth if depth is not None else EXAMPLE[0],
        width if width is not None else EXAMPLE[1],
        heads if heads is not None else EXAMPLE[2],
    )
    bounds(*deep)  # refuses a shape that is none
    if deep[0] < 2:
        raise SpecError(
            f"The deeper model has depth {deep[0]}, and no model is shallower; take a --depth of 2 or more."
        )
    found = [matching_width(shallow, *deep) for shallow in range(1, deep[0])]
    if as_json:
        shape: dict[str, float] = dict(zip(("depth", "width", "heads"), deep, strict=True))
        shape["lower"] = found[0].needed
        _print_json({"deep": shape, "shallow": [item.to_json() for item in found]})
    else:
        Console().print(_example_table(deep, found))


@app.command("slope")
def slope_verb(
    fit_file: Annotated[Path | None, typer.Option("--fit", help="a fit.json of a study")] = None,
    law: Annotated[str | None, typer.Option("--law", help="a published law: levine2020")] = None,
    as_json: JsonOption = False,
) -> None:
    """Set the theory's slope ln 3 beside the slope b of a fitted threshold law ln d = a + b·L."""
    from analysis.theory.theorems import compare_slope

    if (fit_file is None) == (law is None):
        raise SpecError(
            "Say which slope to compare: --fit results/NAME/fit.json for a study's own law, or --law levine2020 for "
            "the published one (not both)."
        )
    if fit_file is not None:
        b, ends = _fitted_slope(fit_file)
        source = f"law of {fit_file}"
    else:
        from study.results.recommend import published_law

        named = published_law(str(law))
        error = named.covariance[1][1] ** 0.5
        b, ends = named.b, (named.b - Z95 * error, named.b + Z95 * error)
        source = f"law of {named.source}"
    found = compare_slope(b, ends)
    if as_json:
        _print_json({"source": source, **found.to_json()})
    else:
        Console().print(_slope_table(source, found))


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
    exact: Annotated[
        bool | None, typer.Option("--exact/--float", help="one kind of arithmetic only; by default both")
    ] = None,
    grid: Annotated[
        int | None, typer.Option("--grid", help="inputs on each side; by default doubled until it is enough")
    ] = None,
    memory: MemoryOption = 2.0,
    seconds: Annotated[float, typer.Option("--seconds", help="limit of time for each partition")] = 120.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the separation rank of a random network, beside its bounds."""
    from analysis.theory.separation_rank import held, partition_ranks
    from analysis.theory.theorems import bounds, equation_7, log3

    arithmetic: Arithmetic = "both" if exact is None else "exact" if exact else "float64"
    count = _partition_count(partitions)
    with Console(stderr=True).status("measuring"):
        ranks = partition_ranks(
            depth,
            width,
            heads,
            tokens,
            count=count,
            arithmetic=arithmetic,
            grid=grid,
            memory=memory,
            seconds=seconds,
            seed=seed,
        )
    best = max(ranks, key=lambda item: item.rank)
    limits, seven = bounds(depth, width, heads), equation_7(depth, width, heads)
    # Float64 alone settles nothing beyond two layers, so neither a bound.
    known = best.trusted != "none"
    checked = held(best.rank, best.saturated, limits.lower, limits.upper) if known else None
    checked_7 = held(best.rank, best.saturated, *seven) if known else None
    if as_json:
        _print_json(
            {
                "rank": best.rank,
                "log3_rank": log3(best.rank) if best.rank else None,
                "saturated": best.saturated,
                "trusted": best.trusted,
                "partitions": [item.to_json() for item in ranks],
                "agree": _agree(ranks),
                "bounds": limits.to_json(),
                "held": _held_json(checked),
                "formula_7": {"lower": seven[0], "upper": seven[1], "held": _held_json(checked_7)},
            }
        )
    else:
        Console().print(_rank_table(ranks, best, limits, checked, seven, checked_7))


@app.command("sweep")
def sweep_verb(
    depths: Annotated[str, typer.Option("--depths", metavar="L,...", help="depths")] = "1,2",
    widths: Annotated[str, typer.Option("--widths", metavar="D,...", help="widths")] = "2,3,4,5,6",
    heads: Annotated[str, typer.Option("--heads", metavar="H,...", help="heads")] = "1,2",
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="positions of all; by default 2·(d + 1) of each width")
    ] = None,
    memory: MemoryOption = 2.0,
    seconds: Annotated[float, typer.Option("--seconds", help="limit of time for each shape")] = 30.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the exact separation rank of many shapes, and say which theorem holds of each."""
    from analysis.theory.separation_rank import sweep

    chosen = (_whole(depths, "--depths"), _whole(widths, "--widths"), _whole(heads, "--heads"))
    with Console(stderr=True).status("measuring"):
        rows = sweep(*chosen, tokens, memory=memory, seconds=seconds, seed=seed)
    if as_json:
        _print_json([row.to_json() for row in rows])
    else:
        Console().print(_sweep_table(rows))


def _bounds_table(found: "Bounds", threshold: float, share: float | None) -> RenderableType:
    from analysis.theory.theorems import COROLLARY_2

    shape = f"depth {found.depth}, width {found.width}, heads {found.heads}"
    table = _table("", "log3 of the rank", "rank")
    for name, value in (("lower bound", found.lower), ("upper bound", found.upper)):
        table.add_row(name, "-" if value is None else _number(value), _rank_text(value))
    table.columns[0].justify = "left"
    relation = {"depth-efficient": "<", "boundary": "=", "depth-inefficient": ">"}[found.regime]
    theorem = f"Theorem {found.theorem}" if found.theorem else "no theorem"
    lines = [Text(f"L = {found.depth} {relation} log3 d = {threshold:.2f}: {found.regime}, {theorem}.")]
    if found.reason:
        lines.append(_warning(f"Missing: {found.reason}."))
    elif found.vacuous:
        lines.append(
            _warning("The lower bound says nothing: every function but zero has rank 1, log3 of it 0.")
        )
    if share is not None:
        lines.append(Text(f"Corollary 2: β1 = log3(d)/L = {share:.3f}. {COROLLARY_2}", style="dim"))
    return _titled(f"separation rank of {shape}", table, *lines)


def _depth_table(found: "Sequence[MinimalDepth]") -> RenderableType:
    table = _table("N", "L", "d = 3^L", "L ceil", "d", "L nearest", "d")
    for item in found:
        table.add_row(
            f"{item.params:.3g}",
            f"{item.exact:.3f}",
            f"{item.width:,.0f}",
            str(item.ceil),
            f"{item.ceil_width:,.0f}",
            str(item.nearest),
            f"{item.nearest_width:,.0f}",
        )
    note = (
        "L solves 12·L·9^L = N; ceil is the least whole depth at or above it, nearest the whole depth next to it, and "
        "d beside them is sqrt(N/(12·L)). Measured thresholds are far deeper: the theory's slope is ln 3 a layer "
        "(`interplay theory slope`)."
    )
    return _titled("least depth of a size by the theory", table, Text(note, style="dim"))


def _example_table(deep: tuple[int, int, int], found: "Sequence[MatchingWidth]") -> RenderableType:
    shape = f"depth {deep[0]}, width {deep[1]}, heads {deep[2]}"
    printed = any(item.printed for item in found)
    table = _table(
        "depth",
        "width",
        *(["as printed"] if printed else []),
        "",
    )
    table.columns[-1].justify = "left"
    for item in found:
        if item.log10_width is None:
            width, note = "any", "the bounds do not tell them apart"
        else:
            width = _power_of_ten(item.log10_width)
            note = "" if item.binding else "the bounds do not tell them apart"
        cells = [f"{item.printed:.0e}" if item.printed else ""] if printed else []
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
            "As printed: in the paper's earlier revision. Those widths do not follow from its eq. 7; the recomputed "
            "ones are 27 and 2.6 times smaller, and the conclusion stands."
        )
        lines.append(_warning(text))
    return _titled(f"width at which a shallower model can match {shape}", table, *lines)


def _slope_table(source: str, found: "SlopeComparison") -> RenderableType:
    table = _table("slope of ln d a layer", "value", "95 %" if found.b_interval else "")
    table.columns[0].justify = "left"
    ends = found.b_interval
    table.add_row("theory, ln 3", f"{found.theory:.4f}", "")
    table.add_row("fitted, b", f"{found.b:.4f}", f"{ends[0]:.4f} – {ends[1]:.4f}" if ends else "no interval")
    if found.ratio is not None:
        ratios = found.ratio_interval
        text = ""
        if ratios:
            text = f"{ratios[0]:.1f} – {ratios[1]:.1f}" if ratios[1] is not None else f"{ratios[0]:.1f} – …"
        table.add_row("ln 3 / b", f"{found.ratio:.1f}", text)
    zero = found.b_interval is not None and found.b_interval[0] <= 0 <= found.b_interval[1]
    if found.ratio is None:
        verdict = "The fitted slope is not positive: these data show no exponential threshold."
        if zero:
            verdict += " But the slope cannot be told from zero: its interval includes 0."
    elif zero:
        nor, what = (", nor from ln 3", "both") if found.agrees else ("", "0")
        verdict = (
            f"The fitted slope cannot be told from zero{nor}: its interval includes {what}. "
            "These data do not show an exponential threshold."
        )
    elif found.agrees:
        verdict = "ln 3 lies inside the interval: these data do not contradict the theory's constant."
    else:
        side = "steeper" if found.ratio > 1 else "flatter"
        factor = found.ratio if found.ratio > 1 else 1 / found.ratio
        known = "" if found.b_interval else " (without an interval nothing is tested)"
        verdict = f"The theory is {factor:.1f} times {side} than the fit{known}."
    note = "What a fit can confirm is the exponential form. The constant comes from loose bounds and is not expected."
    return _titled(source, table, Text(verdict), Text(note, style="dim"))


def _rank_table(
    ranks: "Sequence[SeparationRank]",
    best: "SeparationRank",
    limits: "Bounds",
    checked: "Held | None",
    seven: tuple[float | None, float],
    checked_7: "Held | None",
) -> RenderableType:
    shape = f"depth {best.depth}, width {best.width}, heads {best.heads}, {best.tokens} tokens"
    table = _table("positions in A", "rank", "exact", "float64", "grid")
    table.columns[0].justify = "left"
    for item in ranks:
        table.add_row(
            _positions(item.partition),
            _measured(item),
            "-" if item.exact is None else f"{item.exact:,}",
            "-" if item.float64 is None else f"{item.float64:,}",
            f"{item.grid:,}",
        )
    beside = _table("bounds of the rank", "lower", "upper", "held")
    beside.columns[0].justify = "left"
    name = f"Theorem {limits.theorem}" if limits.theorem else "no theorem (L = log3 d)"
    beside.add_row(
        name,
        _rank_text(limits.lower),
        _rank_text(limits.upper),
        _held_text(checked, limits.lower, limits.upper),
    )
    if limits.theorem != 1:
        beside.add_row(
            "eq. 7 as a formula", _rank_text(seven[0]), _rank_text(seven[1]), _held_text(checked_7, *seven)
        )
    lines = [_trust(best)]
    if best.saturated:
        lines.append(_warning(_full_grid(best)))
    if len(ranks) > 1:
        same = (
            "All agree, as Proposition 1 says"
            if _agree(ranks)
            else "They do not agree, against Proposition 1"
        )
        if _agree(ranks) is None:
            same = "The ranks are not settled, so nothing follows for Proposition 1"
        sides = "; position 0, whose output is looked at, is in A in some and in B in others."
        lines.append(Text(same + sides))
    return _titled(f"separation rank of {shape}", table, Text(), beside, *lines)


def _trust(item: "SeparationRank") -> Text:
    if item.trusted == "none":
        text = (
            f"Float64 is not to be trusted at depth {item.depth}: the output is a polynomial of degree "
            f"{3**item.depth} and its small singular values drown in rounding. Leave out --float."
        )
        return _warning(text)
    if item.trusted == "float64":
        return Text("By singular values in float64, which is right up to two layers.", style="dim")
    text = "The rank is the exact one, modulo 2^31 - 1, and never too high"
    text += (
        "."
        if item.saturated
        else f"; the odds that the draw made it too low are below {item.odds_too_low:.0e}."
    )
    if item.float64 not in (None, item.exact):
        text += f" Float64 finds {item.float64} and is wrong: rounding, at degree 3^{item.depth}."
    return Text(text, style="dim")


def _full_grid(item: "SeparationRank") -> str:
    way = {"memory": "--memory", "time": "--seconds", "grid": "a larger grid", None: "a larger grid"}[
        item.stopped_by
    ]
    return (
        f"The rank fills the grid of {item.grid:,}, so it is a lower bound of the separation rank and no more. "
        f"Allow more with {way}."
    )


def _sweep_table(rows: "Sequence[SweepRow]") -> RenderableType:
    table = _table("L", "d", "H", "rank", "theorem", "lower", "upper", "held", "eq. 7 upper")
    reasons: dict[str, list[str]] = {}
    full: list[str] = []
    for row in rows:
        shape = (str(row.depth), str(row.width), str(row.heads))
        if row.measured is None:
            reasons.setdefault(row.reason or "", []).append(f"L={row.depth} d={row.width} H={row.heads}")
            table.add_row(*shape, "-", "", "", "", "", "", style="dim")
            continue
        if row.measured.saturated:
            full.append(f"L={row.depth} d={row.width} H={row.heads}: {row.measured.stopped_by}")
        table.add_row(
            *shape,
            _measured(row.measured),
            str(row.bounds.theorem or "none"),
            _rank_text(row.bounds.lower),
            _rank_text(row.bounds.upper),
            _held_text(row.held, row.bounds.lower, row.bounds.upper),
            _rank_text(row.formula_7[1]),
        )
    note = (
        "Theorem 1 covers L < log3 d, Theorem 2 L > log3 d, none L = log3 d. A lower bound of 1 or less says nothing, "
        "- is undefined (d <= H, or no theorem). held: lower, upper; ? is not settled, - has no bound."
    )
    lines = [Text(note, style="dim")]
    if full:
        text = "≥: the rank fills its grid, which was stopped by its limit, so it is a lower bound only ("
        lines.append(_warning(text + "; ".join(full) + ")."))
    lines.extend(
        _warning(f"Not measured ({'; '.join(shapes)}): {reason}") for reason, shapes in reasons.items()
    )
    return _titled("exact separation ranks", table, *lines)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _titled(title: str, *parts: RenderableType) -> Group:
    """Parts under a title with a line of its own: rich breaks a table's title at the table's width."""
    return Group(Text(title, style="italic"), *parts)


def _warning(text: str) -> Text:
    return Text(text, style="yellow")


def _number(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 1e6 else f"{value:.4g}"


def _rank_text(log3_rank: float | None) -> str:
    """A rank given as log3, as a number; a bound below 1 says nothing and is shown as such."""
    if log3_rank is None:
        return "-"
    from analysis.theory.theorems import log3

    return "≤ 1" if log3_rank < 1e-12 else _power_of_ten(log3_rank / log3(10))


def _power_of_ten(exponent: float) -> str:
    """10^exponent to three digits, however large it is."""
    if exponent < 6:
        return f"{10**exponent:,.4g}" if exponent < 4 else f"{10**exponent:,.0f}"
    if exponent < 1e6:
        whole = int(exponent)
        digits = f"{10 ** (exponent - whole):.2f}"
        return f"{digits}e{whole}" if digits != "10.00" else f"1.00e{whole + 1}"
    return f"10^({exponent:.4g})"


def _measured(item: "SeparationRank") -> str:
    if item.trusted == "none":
        return "?"
    return f"≥ {item.rank:,}" if item.saturated else f"{item.rank:,}"


def _positions(partition: tuple[int, ...]) -> str:
    """Positions as runs, such as 0-3,6."""
    runs: list[list[int]] = []
    for position in partition:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _held_text(found: "Held | None", lower: float | None, upper: float | None) -> str:
    """Whether each bound holds: - where there is none, ? where the rank does not settle it."""
    sides = ((found.lower if found else None, lower), (found.upper if found else None, upper))
    return ", ".join("-" if bound is None else _yes(value) for value, bound in sides)


def _yes(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "NO"


def _held_json(found: "Held | None") -> dict[str, bool | None] | None:
    return None if found is None else {"lower": found.lower, "upper": found.upper}


def _agree(ranks: "Sequence[SeparationRank]") -> bool | None:
    """Whether all partitions have one rank; None for one partition, or where a full grid or float64 leaves it open."""
    if len(ranks) < 2 or any(item.saturated or item.trusted == "none" for item in ranks):
        return None
    return len({item.rank for item in ranks}) == 1


def _partition_count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise SpecError(f"--partitions is {text!r}; it must be `all` or a whole number, as 6.")
    return int(text)


def _whole(text: str, option: str) -> list[int]:
    values = [part.strip() for part in text.split(",")]
    try:
        return [int(value) for value in values]
    except ValueError:
        raise SpecError(
            f"{option} is {text!r}; it must be whole numbers with commas between, as 1,2,3."
        ) from None


def _fitted_slope(path: Path) -> tuple[float, tuple[float, float] | None]:
    """The slope of a fit file and its interval."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SpecError(
            f"There is no file {path}. A study writes its fit to results/NAME/fit.json, and `interplay fit RUNS --out "
            "fit.json` writes that of a table."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path} is not JSON ({error}); name a fit.json, as `interplay fit` writes it."
        ) from None
    law = document.get("law") if isinstance(document, dict) else None
    if not isinstance(law, dict) or "b" not in law:
        raise SpecError(
            f"{path} has no `law` with a slope `b`; name a fit.json, as `interplay fit` writes it."
        )
    b, ends = law["b"], law.get("b_interval")
    if b is None:
        why = law.get("reason") or "it does not say why"
        raise SpecError(
            f"The fit in {path} has no slope: {why}. Add depths, budgets or seeds to the study, or compare the "
            "published law with --law levine2020."
        )
    if not _is_number(b) or not (
        ends is None or (isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends)))
    ):
        raise SpecError(
            f"In {path} the law's `b` is {b!r} and `b_interval` is {ends!r}; these must be a number, and two numbers "
            "or null."
        )
    return float(b), None if ends is None else (float(ends[0]), float(ends[1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _print_json(document: object) -> None:
    from analysis.files import strict

    print(json.dumps(strict(document), indent=2, allow_nan=False))
