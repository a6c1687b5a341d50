"""Choose the number of training tokens at which losses are compared.

Several checkpoints of one shape differ in tokens, and one level of tokens is compared. If every shape was trained on
one number of tokens, shapes are comparable when those of one size have the same tokens, as with 20 tokens per
parameter: then the curves of two depths meet at equal N and equal tokens. Only ratios of tokens matter, not their unit.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.errors import InputError
from analysis.numbers import first_few, human, scientific

Floats = npt.NDArray[np.float64]
Rule = Literal["unknown", "equal", "level", "with_params", "equal_compute", "unequal"]

#: Relative difference below which tokens are one level.
SAME_LEVEL = 0.01
#: Largest relative distance of a level from the requested tokens.
NEAR_LEVEL = 0.05
#: Relative difference below which tokens at similar N, tokens per parameter, and two N, are the same.
SAME_AT_N = 0.10
#: Correlation of ln N and ln tokens from which size and tokens grow together.
TOGETHER = 0.95
#: Share of the shapes that must have a level of tokens, so that it is compared and the other shapes are left out.
MOST_SHAPES = 0.75


_SHAPE = ["depth", "params"]
_RUN = [*_SHAPE, "seed", "lr"]


@dataclass(frozen=True)
class TokenRule:
    """The tokens at which losses are compared.

    Attributes:
        rule: `unknown` (no row has tokens), `equal` (all the same), `level` (one of several), `with_params` (tokens
            rise with N, equal at equal N), `equal_compute` (N·tokens is the same, so tokens are equal at equal N) or
            `unequal`.
        compared: the level compared, in the table's unit; None if there is no single one.
        levels: all levels, ascending.
        no_extrapolation: why the table allows no answer beyond its sizes, if tokens differ between the shapes compared.
    """

    rule: Rule
    compared: float | None
    levels: tuple[float, ...]
    sentence: str
    no_extrapolation: str | None = None


@dataclass(frozen=True)
class TokenChoice:
    """Rows at comparable tokens, the reason of every other row by its number, and warnings for the reader."""

    rule: TokenRule
    rows: pd.DataFrame
    left_out: dict[int, str]
    warnings: tuple[str, ...] = ()


def choose_tokens(used: pd.DataFrame, tokens: float | None) -> TokenChoice:
    """Choose the rows whose losses are compared.

    Args:
        used: usable rows (columns depth, width, params, seed, lr, tokens).
        tokens: compare at the level nearest to it; by default the largest that all shapes have, else the largest that
            most have.

    Raises:
        InputError: no level near `tokens`, or no tokens in the table.
    """
    value = used["tokens"].where(np.isfinite(used["tokens"]) & (used["tokens"] > 0))
    table = used[["depth", "width", "params", "seed", "lr"]].assign(tokens=value, level=_levels(value))
    choice = _choose(table, tokens)
    return replace(choice, rows=used.loc[choice.rows.index])


def _levels(tokens: pd.Series) -> npt.NDArray[np.int64]:
    """The level of every row, numbered in ascending order, -1 without tokens."""
    starts: list[float] = []
    for value in np.unique(tokens.dropna()):
        if not starts or value > starts[-1] * (1 + SAME_LEVEL):
            starts.append(value)
    return np.where(tokens.notna(), np.searchsorted(starts, tokens, side="right") - 1, -1)


def _choose(table: pd.DataFrame, tokens: float | None) -> TokenChoice:
    known = table[table["level"] >= 0]
    levels = known.groupby("level")["tokens"].max().to_numpy()
    if tokens is not None:
        nearest = _nearest_level(tokens, levels)
        if len(levels) > 1 or len(known) < len(table):
            return _at_level(table, levels, nearest, f"the level nearest to the {human(tokens, 3)} asked for")
    if known.empty:
        words = "No row has its training tokens; losses are compared as if at equal tokens."
        return TokenChoice(TokenRule("unknown", None, (), words), table, {})
    warnings = []
    if len(known) < len(table):
        missing = f"{len(table) - len(known)} of {len(table)} rows have no training tokens"
        warnings.append(f"{missing}; they are taken as comparable.")
    if len(levels) == 1:
        words = f"All losses are at {human(levels[0], 3)} training tokens."
        rule = TokenRule("equal", float(levels[0]), tuple(levels.tolist()), words)
        return TokenChoice(rule, table, {}, tuple(warnings))
    if known.groupby([known[name] for name in _RUN], dropna=False)["level"].nunique().max() > 1:
        return _checkpoints(table, levels)
    shapes = known.drop_duplicates([*_SHAPE, "level"])
    held = np.bincount(shapes["level"])
    if held.max() >= MOST_SHAPES * len(known.drop_duplicates(_SHAPE)):
        # A few shapes that ended early, or were trained longer, must not decide how all the others are compared.
        return _at_level(table, levels, int(np.argmax(held)), "the number that most shapes have")
    span = f"{levels[0]:.4g} to {levels[-1]:.4g}"
    refusal = _no_extrapolation(known)
    if found := _equal_compute(known, table, levels):
        return replace(found, warnings=(*warnings, *found.warnings))
    if _follows_params(known):
        words = f"Training tokens rise with N ({span}) and are equal at equal N, where depths are compared."
        return TokenChoice(_unequal("with_params", levels, words, refusal), table, {}, tuple(warnings))
    words = (
        f"No number of training tokens is common to the shapes ({span}), and tokens differ at similar N; losses are "
        "comparable only at equal tokens."
    )
    rule = _unequal("unequal", levels, words, refusal or "tokens differ at similar N")
    return TokenChoice(rule, table, {}, (*warnings, rule.sentence))


def _equal_compute(known: pd.DataFrame, table: pd.DataFrame, levels: Floats) -> TokenChoice | None:
    """The largest N·tokens that most shapes have, if tokens shrink with N: shapes of one N then have equal tokens."""
    compute = np.log(known["params"] * known["tokens"])
    place = np.unique(compute)
    budget = pd.Series(
        np.searchsorted(place[np.r_[True, np.diff(place) > math.log1p(SAME_AT_N)]], compute, side="right")
        - 1,
        index=known.index,
    )
    pairs = known.assign(budget=budget).drop_duplicates([*_SHAPE, "budget"])
    held = np.bincount(pairs["budget"])
    largest = int(np.flatnonzero(held == held.max())[-1])
    shapes = len(known.drop_duplicates(_SHAPE))
    rows = known[budget == largest]
    sizes = np.log(rows["params"])
    same = math.log1p(SAME_AT_N)
    if held[largest] < MOST_SHAPES * shapes or np.ptp(sizes) <= same or np.ptp(compute[rows.index]) > same:
        return None
    flops = 6 * float((rows["params"] * rows["tokens"]).median())
    several = f", the largest of {len(held)} budgets" if len(held) > 1 else ""
    words = (
        f"Losses are compared at equal compute, {scientific(flops)} FLOPs (6·N·tokens){several}: training tokens "
        f"shrink with N, from {rows['tokens'].max():.4g} to {rows['tokens'].min():.4g}, and are equal at equal N."
    )
    reason = f"another compute than the {scientific(flops)} FLOPs compared"
    rule = _unequal("equal_compute", levels, words, "training tokens shrink as N grows")
    return TokenChoice(rule, rows, dict.fromkeys(table.index.difference(rows.index), reason))


def _unequal(rule: Rule, levels: Floats, words: str, refusal: str | None) -> TokenRule:
    if refusal:
        words += f" There is no projection beyond the measured sizes: {refusal}."
    return TokenRule(rule, None, tuple(levels.tolist()), words, refusal)


def _nearest_level(tokens: float, levels: Floats) -> int:
    if not (math.isfinite(tokens) and tokens > 0):
        raise InputError(f"The tokens to compare at are {tokens:g}; give a positive number, as 1e11.")
    if len(levels) == 0:
        raise InputError(
            f"No row of the table has its training tokens, so none can be compared at {tokens:.4g}. Name the column "
            "with --column tokens=THEIRS, or leave out --tokens."
        )
    # Differences of logarithms, because a quotient of extreme numbers is zero.
    distance = np.abs(np.log(levels) - math.log(tokens))
    nearest = int(np.argmin(distance))
    if distance[nearest] > math.log1p(NEAR_LEVEL):
        near = ", ".join(f"{item:.4g}" for item in np.sort(levels[np.argsort(distance)[:10]]))
        raise InputError(
            f"No row is within {NEAR_LEVEL:.0%} of {tokens:.4g} training tokens. The table has {near}"
            f"{' and others' if len(levels) > 10 else ''}; give one of these with --tokens, in the unit of the table."
        )
    return nearest


def _checkpoints(table: pd.DataFrame, levels: Floats) -> TokenChoice:
    """Some shape has several levels: compare at the largest that the most shapes have."""
    shapes = len(table.drop_duplicates(_SHAPE))
    pairs = table.loc[table["level"] >= 0, [*_SHAPE, "level"]].drop_duplicates()
    held = np.bincount(pairs["level"])
    best = int(np.flatnonzero(held == held.max())[-1])
    common_end = pairs.groupby(_SHAPE)["level"].max().value_counts().max()
    if held[best] < MOST_SHAPES * shapes and (
        equal := _equal_compute(table[table["level"] >= 0], table, levels)
    ):
        return equal
    if held[best] < shapes and common_end * 2 < shapes:
        # If the length of runs follows N, with checkpoints on the way, no level is common, but the ends are comparable.
        last = (table["level"] >= 0) & (table["level"] == table.groupby(_SHAPE)["level"].transform("max"))
        ends = table[last]
        if _follows_params(ends):
            words = (
                "Losses are compared at the last checkpoint of each shape: training tokens grow with N, from "
                f"{ends['tokens'].min():.4g} to {ends['tokens'].max():.4g}, and are equal at equal N."
            )
            rule = _unequal("with_params", levels, words, _no_extrapolation(ends))
            reason = "no checkpoint at the end of training, which is compared"
            return TokenChoice(rule, ends, dict.fromkeys(table.index[~last], reason))
    who = "all" if held[best] == shapes else f"{held[best]} of the {shapes}"
    return _at_level(table, levels, best, f"the most that {who} shapes have")


def _at_level(table: pd.DataFrame, levels: Floats, chosen: int, why: str) -> TokenChoice:
    """Rows at one level, the last of each model there."""
    compared = float(levels[chosen])
    tokens = table["tokens"].where(table["level"] == chosen)
    latest = tokens.groupby(
        [table[name] for name in ("depth", "params", "seed", "lr")], dropna=False
    ).transform("max")
    keep = tokens == latest
    reasons = np.select(
        [table["tokens"].isna(), latest.isna()],
        [
            f"no training tokens; compared at {compared:.4g}",
            f"no loss at the {compared:.4g} training tokens compared",
        ],
        f"checkpoint at other tokens than the {compared:.4g} compared",
    )
    left_out = dict(zip(table.index[~keep], reasons[~keep].tolist(), strict=True))
    count = keep.groupby([table["depth"], table["params"]]).transform("sum")
    without = table[count == 0].drop_duplicates(["depth", "params"])
    warnings = []
    if len(without):
        names = [f"{depth}×{width}" for depth, width in zip(without["depth"], without["width"], strict=True)]
        shapes = len(table.drop_duplicates(["depth", "params"]))
        warnings.append(
            f"{len(names)} of {shapes} shapes have no loss at the {compared:.4g} training tokens compared and are "
            f"left out (depth×width {first_few(names)})."
        )
    words = (
        f"Losses are compared at {human(compared, 3)} training tokens, {why} "
        f"({len(levels)} levels from {human(levels[0], 3)} to {human(levels[-1], 3)})."
    )
    rule = TokenRule("level", compared, tuple(levels.tolist()), words)
    return TokenChoice(rule, table[keep], left_out, tuple(warnings))


def _no_extrapolation(rows: pd.DataFrame) -> str | None:
    """Why nothing is projected from a table in which size and tokens grow together; None if they do not.

    Beyond the sizes a projection would need the tokens of that size, and the effect of size on the best depth cannot be
    separated from that of tokens. In public tables with a fixed number of tokens per parameter the logarithms are
    correlated by .98.
    """
    points = _points(rows)
    if points["x"].nunique() < 2 or points["y"].nunique() < 2:
        return None
    together = float(np.corrcoef(points["x"], points["y"])[0, 1])
    if together < TOGETHER:
        return None
    return (
        f"size and training tokens grow together (correlation of their logarithms {together:.2f}), so their effects "
        "on the best depth cannot be separated; train shapes of several sizes on equal tokens"
    )


def _follows_params(rows: pd.DataFrame) -> bool:
    """Whether tokens are a function of N, within `SAME_AT_N`, that rises with N.

    They are if all shapes have the same tokens per parameter, or if neighbouring depths of similar N, of which there is
    at least one pair, have the same tokens, and no shape has fewer tokens than a smaller one.
    """
    points = _points(rows).sort_values(["x", "y"])
    same = math.log1p(SAME_AT_N) + 1e-9
    if points["depth"].nunique() == 1 or np.ptp(points["y"] - points["x"]) <= same:
        return True
    depth, x, y = points.to_numpy().T
    similar = (np.diff(x) <= same) & (np.diff(depth) != 0)
    rises = np.all(y >= np.maximum.accumulate(y) - same)
    return bool(rises and similar.any() and np.all(np.abs(np.diff(y)[similar]) <= same))


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Depth, x = ln N and y = ln of the most tokens of every shape."""
    frame = pd.DataFrame({"depth": rows["depth"], "x": np.log(rows["params"]), "y": np.log(rows["tokens"])})
    return frame.groupby(["depth", "x"])["y"].max().reset_index()
