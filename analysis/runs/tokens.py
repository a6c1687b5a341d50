"""Choose the number of training tokens at which losses are compared.

Several checkpoints of one shape differ in tokens, and one level of tokens is compared. If every shape was trained on
one number of tokens, shapes are comparable when those of one size have the same tokens, as with 20 tokens per
parameter: then the curves of two depths meet at equal N and equal tokens. Only ratios of tokens matter, not their unit.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.errors import InputError
from analysis.numbers import human

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Rule = Literal["unknown", "equal", "level", "with_params", "unequal"]

#: Relative difference below which tokens are one level.
SAME_LEVEL = 0.01
#: Largest relative distance of a level from the requested tokens.
NEAR_LEVEL = 0.05
#: Relative difference below which tokens at similar N, and two N, are the same.
SAME_AT_N = 0.10
#: Correlation of ln N and ln tokens from which size and tokens grow together.
TOGETHER = 0.95
#: Most levels that an error lists.
LISTED = 40


@dataclass(frozen=True)
class TokenRule:
    """The tokens at which losses are compared.

    Attributes:
        rule: `unknown` (no row has tokens), `equal` (all the same), `level` (one of several checkpoints), `with_params`
            (tokens follow N, equal at equal N) or `unequal`.
        compared: the level compared, in the table's unit; None if there is no single one.
        levels: all levels, ascending.
        no_projection: why the table allows no answer beyond its sizes, if tokens differ between the shapes compared.
    """

    rule: Rule
    compared: float | None
    levels: tuple[float, ...]
    sentence: str
    no_projection: str | None = None


@dataclass(frozen=True)
class TokenChoice:
    """Rows at comparable tokens, the reason of every other row by its number, and warnings for the reader."""

    rule: TokenRule
    rows: pd.DataFrame
    left_out: dict[int, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Table:
    """Usable rows with their tokens (NaN if unknown), shape and level (-1 without tokens); and all levels."""

    rows: pd.DataFrame
    value: Floats
    shape: Integers
    level: Integers
    levels: Floats

    def named(
        self, rule: Rule, sentence: str, compared: float | None = None, no_projection: str | None = None
    ) -> TokenRule:
        """A rule for this table."""
        more = f" There is no projection beyond the measured sizes: {no_projection}." if no_projection else ""
        return TokenRule(rule, compared, tuple(self.levels.tolist()), sentence + more, no_projection)


def choose_tokens(used: pd.DataFrame, tokens: float | None) -> TokenChoice:
    """Choose the rows whose losses are compared.

    Args:
        used: usable rows (columns depth, width, params, seed, lr, tokens).
        tokens: compare at the level nearest to it; by default the largest that all shapes have, else the largest that
            most have.

    Raises:
        InputError: no level near `tokens`, or no tokens in the table.
    """
    value = used["tokens"].to_numpy(dtype=float)
    value = np.where(np.isfinite(value) & (value > 0), value, np.nan)
    levels, level = _levels(value)
    shape = np.asarray(used.groupby(["depth", "params"]).ngroup(), dtype=np.int64)
    table = _Table(used, value, shape, level, levels)
    if tokens is not None:
        asked = _asked(tokens, levels)
        if len(levels) > 1 or np.any(level != asked):
            return _at_level(table, asked, f"the level nearest to the {_words(tokens)} asked for")
    if len(levels) == 0:
        words = "No row has its training tokens; losses are compared as if at equal tokens."
        return TokenChoice(table.named("unknown", words), used, {})
    missing = int(np.isnan(value).sum())
    gap = f"{missing} of {len(used)} rows have no training tokens; they are taken as comparable."
    warnings = (gap,) if missing else ()
    if len(levels) == 1:
        words = f"All losses are at {_words(levels[0])} training tokens."
        return TokenChoice(table.named("equal", words, float(levels[0])), used, {}, warnings)
    known = level >= 0
    pairs = np.unique(np.column_stack([shape[known], level[known]]), axis=0)
    if len(np.unique(pairs[:, 0])) < len(pairs):
        return _checkpoints(table, pairs)
    span = f"{levels[0]:.4g} to {levels[-1]:.4g}"
    if _follows_params(used[known], value[known]):
        words = f"Training tokens follow N ({span}) and are equal at equal N, where depths are compared."
        refusal = _no_projection(used[known], value[known])
        return TokenChoice(table.named("with_params", words, no_projection=refusal), used, {}, warnings)
    words = (
        f"Rows differ in training tokens ({span}) at similar N; losses are comparable only at equal tokens."
    )
    refusal = _no_projection(used[known], value[known]) or "tokens differ at similar N"
    rule = table.named("unequal", words, no_projection=refusal)
    return TokenChoice(rule, used, {}, (*warnings, rule.sentence))


def _levels(value: Floats) -> tuple[Floats, Integers]:
    """The levels (the largest tokens of each), ascending, and the level of every row, -1 without tokens."""
    known = np.isfinite(value)
    distinct, inverse = np.unique(value[known], return_inverse=True)
    label = np.zeros(len(distinct), dtype=np.int64)
    first = 0
    while first < len(distinct):
        end = int(np.searchsorted(distinct, distinct[first] * (1 + SAME_LEVEL), side="right"))
        label[end:] += 1
        first = end
    level = np.full(len(value), -1, dtype=np.int64)
    level[known] = label[inverse]
    last = np.flatnonzero(np.r_[label[1:] != label[:-1], True]) if len(label) else np.zeros(0, dtype=np.int64)
    return distinct[last], level


def _asked(tokens: float, levels: Floats) -> int:
    if not (math.isfinite(tokens) and tokens > 0):
        raise InputError(f"The tokens to compare at are {tokens:g}; give a positive number, as 1e11.")
    if len(levels) == 0:
        raise InputError(
            f"No row of the table has its training tokens, so none can be compared at {tokens:.4g}. Name the column "
            "with --column tokens=THEIRS, or leave out --tokens."
        )
    # Differences of logarithms, because a quotient of extreme numbers is zero.
    apart = np.abs(np.log(levels) - math.log(tokens))
    nearest = int(np.argmin(apart))
    if apart[nearest] > math.log1p(NEAR_LEVEL):
        shown = ", ".join(f"{item:.4g}" for item in levels[:LISTED])
        more = f" and {len(levels) - LISTED} more up to {levels[-1]:.4g}" if len(levels) > LISTED else ""
        raise InputError(
            f"No row is within {NEAR_LEVEL:.0%} of {tokens:.4g} training tokens. The table has {shown}{more}; give one "
            "of these with --tokens, in the unit of the table."
        )
    return nearest


def _checkpoints(table: _Table, pairs: Integers) -> TokenChoice:
    """Some shape has several levels: compare at the largest that the most shapes have; `pairs`: (shape, level)."""
    shape, level, levels = table.shape, table.level, table.levels
    shapes = int(shape.max()) + 1
    held = np.bincount(pairs[:, 1], minlength=len(levels))
    best = int(np.flatnonzero(held == held.max())[-1])
    last = np.full(shapes, -1)
    np.maximum.at(last, shape, level)
    if held[best] < shapes and np.bincount(last[last >= 0]).max() * 2 < shapes:
        # The length of runs follows N, with checkpoints on the way: no level is common, but the ends are comparable.
        ends = (level == last[shape]) & (level >= 0)
        if _follows_params(table.rows[ends], table.value[ends]):
            return _at_ends(table, ends)
    every = held[best] == shapes
    why = f"the most that {'all' if every else f'{held[best]} of the {shapes}'} shapes have"
    return _at_level(table, best, why)


def _at_level(table: _Table, chosen: int, why: str) -> TokenChoice:
    """Rows at one level, the last of each model there."""
    used, value, shape, levels = table.rows, table.value, table.shape, table.levels
    at = table.level == chosen
    model = used.groupby(["depth", "params", "seed", "lr"], dropna=False).ngroup().to_numpy(dtype=np.int64)
    latest = np.full(int(model.max()) + 1, -np.inf)
    np.maximum.at(latest, model[at], value[at])
    has = np.isfinite(latest)[model]
    keep = at & (value == latest[model])
    compared = float(levels[chosen])
    left_out = {}
    for row, tokens, other in zip(used.index[~keep], value[~keep], has[~keep], strict=True):
        if math.isnan(tokens):
            left_out[int(row)] = f"no training tokens; compared at {compared:.4g}"
        elif other:
            left_out[int(row)] = f"checkpoint at other tokens than the {compared:.4g} compared"
        else:
            left_out[int(row)] = f"at {tokens:.4g} tokens, with none at the {compared:.4g} compared"
    warnings = []
    without = np.setdiff1d(shape, shape[keep])
    if len(without):
        lost = used[np.isin(shape, without)].drop_duplicates(["depth", "params"])
        names = [f"{depth}×{width}" for depth, width in zip(lost["depth"], lost["width"], strict=True)]
        more = " ..." if len(names) > 5 else ""
        warnings.append(
            f"{len(names)} of {int(shape.max()) + 1} shapes have no loss at the {compared:.4g} training tokens "
            f"compared and are left out (depth×width {', '.join(names[:5])}{more})."
        )
    words = (
        f"Losses are compared at {_words(compared)} training tokens, {why} "
        f"({len(levels)} levels from {_words(levels[0])} to {_words(levels[-1])})."
    )
    return TokenChoice(table.named("level", words, compared), used[keep], left_out, tuple(warnings))


def _at_ends(table: _Table, ends: npt.NDArray[np.bool_]) -> TokenChoice:
    value = table.value
    left_out = {
        int(row): "no training tokens; the end of training is compared"
        if math.isnan(tokens)
        else "checkpoint before the end of training, which is compared"
        for row, tokens in zip(table.rows.index[~ends], value[~ends], strict=True)
    }
    words = (
        "Losses are compared at the last checkpoint of each shape: training tokens grow with N, from "
        f"{value[ends].min():.4g} to {value[ends].max():.4g}, and are equal at equal N."
    )
    refusal = _no_projection(table.rows[ends], value[ends])
    return TokenChoice(table.named("with_params", words, no_projection=refusal), table.rows[ends], left_out)


def _no_projection(rows: pd.DataFrame, value: Floats) -> str | None:
    """Why nothing is projected from a table in which size and tokens grow together; None if they do not.

    Beyond the sizes a projection would need the tokens of that size, and the effect of size on the best depth cannot be
    separated from that of tokens. In public tables with a fixed number of tokens per parameter the logarithms are
    correlated by .98.
    """
    frame = pd.DataFrame({"x": np.log(rows["params"]), "y": np.log(value), "depth": rows["depth"]})
    points = frame.groupby(["depth", "x"])["y"].max().reset_index()
    if points["x"].nunique() < 2 or points["y"].nunique() < 2:
        return None
    together = float(np.corrcoef(points["x"], points["y"])[0, 1])
    if together < TOGETHER:
        return None
    return (
        f"size and training tokens grow together (correlation of their logarithms {together:.2f}), so their effects "
        "on the best depth cannot be separated; train shapes of several sizes on equal tokens"
    )


def _follows_params(rows: pd.DataFrame, value: Floats) -> bool:
    """Whether tokens are a function of N: at each N that two depths share, theirs are within `SAME_AT_N`.

    The tokens of one depth are read at the N of the other from a straight line in logarithms, or from a shape of like
    N: the first is right if tokens follow N smoothly, the second if each budget has one number of tokens.
    """
    frame = pd.DataFrame({"depth": rows["depth"], "x": np.log(rows["params"]), "y": np.log(value)})
    points = frame.groupby(["depth", "x"])["y"].max().reset_index()
    curves = [(group["x"].to_numpy(), group["y"].to_numpy()) for _, group in points.groupby("depth")]
    if len(curves) == 1:
        return True
    same = math.log1p(SAME_AT_N)
    met = 0
    for (x, y), (other_x, other_y) in itertools.permutations(curves, 2):
        inside = (x >= other_x[0]) & (x <= other_x[-1])
        off = np.where(inside, np.abs(np.interp(x, other_x, other_y) - y), np.inf)
        nearest = np.argmin(np.abs(x[:, None] - other_x), axis=1)
        alike = np.abs(x - other_x[nearest]) <= same
        off = np.minimum(off, np.where(alike, np.abs(y - other_y[nearest]), np.inf))
        shared = inside | alike
        met += int(shared.sum())
        if np.any(off[shared] > same + 1e-9):
            return False
    return met > 0


def _words(tokens: float) -> str:
    return human(float(tokens), 3)
