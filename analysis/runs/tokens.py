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
from analysis.numbers import first_few, human

Floats = npt.NDArray[np.float64]
Rule = Literal["unknown", "equal", "level", "with_params", "unequal"]

#: Relative difference below which tokens are one level.
SAME_LEVEL = 0.01
#: Largest relative distance of a level from the requested tokens.
NEAR_LEVEL = 0.05
#: Relative difference below which tokens at similar N, tokens per parameter, and two N, are the same.
SAME_AT_N = 0.10
#: Correlation of ln N and ln tokens from which size and tokens grow together.
TOGETHER = 0.95


@dataclass(frozen=True)
class TokenRule:
    """The tokens at which losses are compared.

    Attributes:
        rule: `unknown` (no row has tokens), `equal` (all the same), `level` (one of several checkpoints), `with_params`
            (tokens follow N, equal at equal N) or `unequal`.
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
    if known.groupby(["depth", "params"])["level"].nunique().max() > 1:
        return _checkpoints(table, levels)
    span = f"{levels[0]:.4g} to {levels[-1]:.4g}"
    refusal = _no_extrapolation(known)
    if _follows_params(known):
        words = f"Training tokens follow N ({span}) and are equal at equal N, where depths are compared."
        return TokenChoice(_unequal("with_params", levels, words, refusal), table, {}, tuple(warnings))
    words = (
        f"Rows differ in training tokens ({span}) at similar N; losses are comparable only at equal tokens."
    )
    rule = _unequal("unequal", levels, words, refusal or "tokens differ at similar N")
    return TokenChoice(rule, table, {}, (*warnings, rule.sentence))


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
    shape = ["depth", "params"]
    shapes = len(table.drop_duplicates(shape))
    pairs = table.loc[table["level"] >= 0, [*shape, "level"]].drop_duplicates()
    held = np.bincount(pairs["level"])
    best = int(np.flatnonzero(held == held.max())[-1])
    common_end = pairs.groupby(shape)["level"].max().value_counts().max()
    if held[best] < shapes and common_end * 2 < shapes:
        # If the length of runs follows N, with checkpoints on the way, no level is common, but the ends are comparable.
        last = (table["level"] >= 0) & (table["level"] == table.groupby(shape)["level"].transform("max"))
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
    """Whether tokens are a function of N, within `SAME_AT_N`.

    They are if all shapes have the same tokens per parameter, or if neighbouring depths of similar N, of which there is
    at least one pair, have the same tokens.
    """
    points = _points(rows).sort_values(["x", "y"])
    same = math.log1p(SAME_AT_N) + 1e-9
    if points["depth"].nunique() == 1 or np.ptp(points["y"] - points["x"]) <= same:
        return True
    depth, x, y = points.to_numpy().T
    similar = (np.diff(x) <= same) & (np.diff(depth) != 0)
    return bool(similar.any() and np.all(np.abs(np.diff(y)[similar]) <= same))


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Depth, x = ln N and y = ln of the most tokens of every shape."""
    frame = pd.DataFrame({"depth": rows["depth"], "x": np.log(rows["params"]), "y": np.log(rows["tokens"])})
    return frame.groupby(["depth", "x"])["y"].max().reset_index()
