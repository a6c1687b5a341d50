"""Choose the number of training tokens at which losses are compared.

Several checkpoints of one shape differ in tokens, and one level of tokens is compared. If every shape was trained on
one number of tokens, shapes are comparable when those of one size have the same tokens, as with 20 tokens per
parameter: then the curves of two depths meet at equal N and equal tokens. If all shapes have one number of tokens per
parameter, crossings, laws and projections hold along that line of N and tokens, and for no other ratio. If tokens
differ from size to size in another way, as at several budgets of compute, losses are compared inside groups of equal N
and equal tokens. A study at equal FLOPs or equal training time names those of each run, and is compared at these. Only
ratios of tokens matter, not their unit.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs.columns import TABLE_PARAMS, TOKEN_GROUP, compute_unit, planned_compute
from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.remarks import About, Remark, first_names
from analysis.runs.words import text_of, texts_of
from analysis.units import BudgetUnit
from core.command_line import option
from core.errors import InputError

Floats = npt.NDArray[np.float64]
Rule = Literal[
    "unknown", "equal", "level", "ratio", "with_params", "equal_compute", "groups", "compute", "unequal"
]

#: Relative difference below which tokens are one level.
SAME_LEVEL = 0.01
#: Largest relative distance of a level from the requested tokens.
NEAR_LEVEL = 0.05
#: Relative difference below which tokens at similar N, tokens per parameter, and two N, are the same.
SAME_AT_N = 0.10
#: Relative distance from one number of tokens per parameter up to which a run has that ratio. Runs of whole steps are
#: nearer; a table farther away compares shapes at tokens of a planned size, which is not the N of each shape, and a
#: ratio that differs by 10 % moves a crossing by about .1 in ln N.
SAME_RATIO = 0.02
#: Absolute correlation of ln N and ln tokens from which their effects cannot be separated.
TOGETHER = 0.95
#: Relative difference of N, and of the tokens or of N·tokens, up to which rows are of one group.
SAME_GROUP_N, SAME_GROUP_TOKENS = 0.05, 0.02
#: Share of the shapes that must be in groups with another depth, so that the table is compared inside groups.
GROUPED_SHAPES = 0.5
#: Share of the shapes that must have a level of tokens, so that it is compared and the other shapes are left out.
MOST_SHAPES = 0.75
#: Fewest shapes from which a rule of two coefficients for their tokens is read.
LEAST_SHAPES = 5


_SHAPE = ["depth", "params"]
_RUN = [*_SHAPE, "seed", "lr"]


@dataclass(frozen=True)
class TokenRule:
    """The tokens at which losses are compared.

    Attributes:
        rule: `unknown` (no row has tokens), `equal` (all the same), `level` (one of several), `ratio` (one number of
            tokens per parameter), `with_params` (tokens rise with N, equal at equal N), `equal_compute` (N·tokens is
            the same, so tokens are equal at equal N), `groups` (compared inside groups of equal N and tokens),
            `compute` (a study at equal FLOPs or equal time: the best sizes of the depths are compared at each) or
            `unequal`.
        compared: the level compared, in the table's unit, for `ratio` the tokens per parameter; None if there is no
            single one.
        levels: all levels, ascending.
        remarks: how tokens are compared.
        refusal: why the table allows no answer beyond its sizes, if tokens differ between the shapes compared. No
            default: a file without it would be taken for one that allows an answer.
    """

    JSON_PROPERTIES: ClassVar = ("sentence", "no_extrapolation")

    rule: Rule
    compared: float | None
    levels: tuple[float, ...]
    remarks: tuple[Remark, ...]
    refusal: Remark | None

    @property
    def comparable(self) -> bool:
        """Whether depths of one N have the same tokens, as far as is known; else their losses show no crossing."""
        return self.rule not in ("compute", "unequal")

    @property
    def budget_unit(self) -> BudgetUnit:
        """The unit of the budgets at which a table of the rule `compute` is compared."""
        units = [remark.values[-1] for remark in self.remarks if remark.about is About.COMPUTES]
        return "minutes" if units == ["minutes"] else "FLOPs"

    @property
    def ratio(self) -> float | None:
        """The tokens per parameter at which alone statements about sizes hold; None if that is no condition."""
        return self.compared if self.rule == "ratio" else None

    @property
    def sentence(self) -> str:
        """The words of `remarks`, and of `refusal` if these do not have it."""
        refused = self.no_extrapolation if self.rule != "compute" else None
        more = [f"There is no projection beyond the measured sizes: {refused}."] if refused else []
        return " ".join([*texts_of(self.remarks), *more])

    @property
    def no_extrapolation(self) -> str | None:
        """The words of `refusal`."""
        return None if self.refusal is None else text_of(self.refusal)


@dataclass(frozen=True)
class TokenChoice:
    """Rows at comparable tokens, the reason of every other row by its number, and what a reader must know.

    The column `TOKEN_GROUP` of the rows numbers the groups inside which they are compared.
    """

    rule: TokenRule
    rows: pd.DataFrame
    left_out: dict[int, WhyNot]
    remarks: tuple[Remark, ...] = ()


def choose_tokens(used: pd.DataFrame, tokens: float | None) -> TokenChoice:
    """Choose the rows whose losses are compared.

    Args:
        used: usable rows (columns depth, width, params, seed, lr, tokens).
        tokens: compare at the level nearest to it; by default the largest that all shapes have, else the largest that
            most have.

    Raises:
        InputError: no level near `tokens`, or no tokens in the table.
    """
    planned = planned_compute(used) if tokens is None else None
    if planned is not None:
        values, at = np.unique(planned, return_inverse=True)
        about = Remark(About.COMPUTES, (float(values[0]), float(values[-1]), compute_unit(used)))
        rule = _unequal("compute", np.unique(used["tokens"]), about, Remark(About.DIFFER_AT_EQUAL_N))
        return TokenChoice(rule, used.assign(**{TOKEN_GROUP: at}), {})
    value = used["tokens"].where(np.isfinite(used["tokens"]) & (used["tokens"] > 0))
    optional = [TABLE_PARAMS] if TABLE_PARAMS in used else []
    table = used[["depth", "width", "params", "seed", "lr", *optional]].assign(
        tokens=value, level=_levels(value)
    )
    choice = _choose(table, tokens)
    group = choice.rows.get(TOKEN_GROUP, 0)
    return replace(choice, rows=used.loc[choice.rows.index].assign(**{TOKEN_GROUP: group}))


def _levels(values: pd.Series, same: float = SAME_LEVEL) -> npt.NDArray[np.int64]:
    """The level of every row, numbered in ascending order, -1 without a value; those of a level differ by `same`."""
    starts: list[float] = []
    for value in np.unique(values.dropna()):
        if not starts or value > starts[-1] * (1 + same):
            starts.append(value)
    return np.where(values.notna(), np.searchsorted(starts, values, side="right") - 1, -1)


def _choose(table: pd.DataFrame, tokens: float | None) -> TokenChoice:
    with_tokens = table[table["level"] >= 0]
    levels = with_tokens.groupby("level")["tokens"].max().to_numpy()
    if tokens is not None:
        nearest = _nearest_level(tokens, levels)
        if len(levels) > 1 or len(with_tokens) < len(table):
            return _at_level(table, levels, nearest, About.ASKED_TOKENS, tokens)
    if with_tokens.empty:
        rule = TokenRule("unknown", None, (), (Remark(About.TOKENS_UNKNOWN),), None)
        return TokenChoice(rule, table, {})
    missing = len(table) - len(with_tokens)
    remarks = (Remark(About.WITHOUT_TOKENS, (missing, len(table))),) if missing else ()
    if len(levels) == 1:
        level = float(levels[0])
        rule = TokenRule("equal", level, (level,), (Remark(About.EQUAL_TOKENS, (level,)),), None)
        return TokenChoice(rule, table, {}, remarks)
    if with_tokens.groupby([with_tokens[name] for name in _RUN], dropna=False)["level"].nunique().max() > 1:
        return _checkpoints(table, levels)
    if choice := _at_ratio(with_tokens, table, levels, 1.0):
        return replace(choice, remarks=remarks)
    shapes = with_tokens.drop_duplicates([*_SHAPE, "level"])
    held = np.bincount(shapes["level"])
    if held.max() >= MOST_SHAPES * len(with_tokens.drop_duplicates(_SHAPE)):
        # A few shapes that ended early, or were trained longer, must not decide how all the others are compared.
        return _at_level(table, levels, int(np.argmax(held)), About.USUAL_TOKENS)
    span = float(levels[0]), float(levels[-1])
    refusal = _no_extrapolation(with_tokens)
    groups = _groups(with_tokens, table, levels)
    if choice := _equal_compute(with_tokens, table, levels, several=groups is None):
        return replace(choice, remarks=(*remarks, *choice.remarks))
    if _follows_params(with_tokens):
        rule = _unequal("with_params", levels, Remark(About.WITH_PARAMS, span), refusal)
        return TokenChoice(rule, table, {}, remarks)
    if choice := _at_ratio(with_tokens, table, levels, MOST_SHAPES) or groups:
        return replace(choice, remarks=(*remarks, *choice.remarks))
    rule = _unequal(
        "unequal",
        levels,
        Remark(About.NO_COMMON_TOKENS, span),
        refusal or Remark(About.DIFFER_AT_SIMILAR_N),
        _other_count(with_tokens),
    )
    return TokenChoice(rule, table, {}, (*remarks, Remark(About.NOT_COMPARABLE)))


def _groups(with_tokens: pd.DataFrame, table: pd.DataFrame, levels: Floats) -> TokenChoice | None:
    """The rows in groups of equal N and equal tokens with two depths or more, if most shapes are in one.

    Where N·tokens is a budget of compute, sizes that differ by rounding differ in tokens too; their N·tokens is equal.
    """
    size = _levels(with_tokens["params"], SAME_GROUP_N)
    best = with_tokens.iloc[:0]
    for measure in (with_tokens["tokens"], with_tokens["params"] * with_tokens["tokens"]):
        frame = with_tokens.assign(size=size, along=-1)
        for _, part in frame.groupby("size"):
            frame.loc[part.index, "along"] = _levels(measure[part.index], SAME_GROUP_TOKENS)
        both = frame.groupby(["size", "along"])
        frame = frame.assign(**{TOKEN_GROUP: both.ngroup()})[both["depth"].transform("nunique") > 1]
        best = frame if len(frame) > len(best) else best
    numbers, best_group = np.unique(best.get(TOKEN_GROUP, ()), return_inverse=True)
    held = len(best.drop_duplicates(_SHAPE)) / len(with_tokens.drop_duplicates(_SHAPE))
    if len(numbers) < 2 or held < GROUPED_SHAPES:
        return None
    about = Remark(About.GROUPS, (len(numbers), float(levels[0]), float(levels[-1])))
    rule = _unequal("groups", levels, about, Remark(About.DIFFER_BETWEEN_GROUPS))
    odd = table.index.difference(best.index)
    why = WhyNot(RowReason.NO_OTHER_DEPTH)
    rows = table.drop(index=odd).assign(**{TOKEN_GROUP: pd.Series(best_group, index=best.index)})
    return TokenChoice(rule, rows, dict.fromkeys(odd, why), _left_out(len(odd), len(table), why))


def _equal_compute(
    with_tokens: pd.DataFrame, table: pd.DataFrame, levels: Floats, *, several: bool
) -> TokenChoice | None:
    """The largest N·tokens that most shapes have, if tokens shrink with N: shapes of one N then have equal tokens.

    `several` says whether it may be the largest of several.
    """
    compute = np.log(with_tokens["params"] * with_tokens["tokens"])
    place = np.unique(compute)
    budget = pd.Series(
        np.searchsorted(place[np.r_[True, np.diff(place) > math.log1p(SAME_AT_N)]], compute, side="right")
        - 1,
        index=with_tokens.index,
    )
    pairs = with_tokens.assign(budget=budget).drop_duplicates([*_SHAPE, "budget"])
    held = np.bincount(pairs["budget"])
    largest = int(np.flatnonzero(held == held.max())[-1])
    shapes = len(with_tokens.drop_duplicates(_SHAPE))
    rows = with_tokens[budget == largest]
    sizes = np.log(rows["params"])
    same = math.log1p(SAME_AT_N)
    if (
        (len(held) > 1 and not several)
        or held[largest] < MOST_SHAPES * shapes
        or np.ptp(sizes) <= same
        or np.ptp(compute[rows.index]) > same
    ):
        return None
    flops = 6 * float((rows["params"] * rows["tokens"]).median())
    most, fewest = float(rows["tokens"].max()), float(rows["tokens"].min())
    about = Remark(About.EQUAL_COMPUTE, (flops, len(held), most, fewest))
    why = WhyNot(RowReason.OTHER_COMPUTE, (flops,))
    rule = _unequal("equal_compute", levels, about, Remark(About.SHRINK_WITH_N))
    return TokenChoice(rule, rows, dict.fromkeys(table.index.difference(rows.index), why))


def _other_count(rows: pd.DataFrame) -> Remark | None:
    """The count of parameters that tokens follow if they do not follow N; None without one."""
    if TABLE_PARAMS in rows:
        each = np.log(rows["tokens"]) - np.log(rows[TABLE_PARAMS])
        if (each - each.median()).abs().max() <= math.log1p(SAME_RATIO):
            return Remark(About.TOKENS_BY_TABLE_COUNT, (math.exp(each.median()),))
    terms = rows[["params", "width"]].div(rows["tokens"], axis=0).to_numpy()
    ratio, by_width = np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)[0].tolist()
    if len(rows.drop_duplicates(_SHAPE)) < LEAST_SHAPES or min(ratio, by_width) <= 0:
        return None
    if np.abs(terms @ (ratio, by_width) - 1).max() > SAME_RATIO:
        return None
    return Remark(About.TOKENS_BY_WIDTH, (ratio, by_width / ratio))


def _at_ratio(
    with_tokens: pd.DataFrame, table: pd.DataFrame, levels: Floats, share: float
) -> TokenChoice | None:
    """The rows of one number of tokens per parameter, if at least this share of the shapes has it; else None."""
    each = np.log(with_tokens["tokens"]) - np.log(with_tokens["params"])
    rows = with_tokens[(each - each.median()).abs() <= math.log1p(SAME_RATIO)]
    shapes, held = (part.drop_duplicates(_SHAPE) for part in (with_tokens, rows))
    if len(held) < share * len(shapes) or np.ptp(np.log(rows["params"])) <= math.log1p(SAME_AT_N):
        return None
    ratio = math.exp(each.median())
    rule = TokenRule("ratio", ratio, tuple(levels.tolist()), (Remark(About.EQUAL_RATIO, (ratio,)),), None)
    odd = with_tokens.index.difference(rows.index)
    why = WhyNot(RowReason.OTHER_RATIO, (ratio,))
    remarks = _left_out(len(odd), len(with_tokens), why)
    return TokenChoice(rule, table.drop(index=odd), dict.fromkeys(odd, why), remarks)


def _left_out(rows: int, of: int, why: WhyNot) -> tuple[Remark, ...]:
    return (Remark(About.ROWS_LEFT_OUT, (rows, of, why.reason, *why.values)),) if rows else ()


def _unequal(
    rule: Rule, levels: Floats, about: Remark, refusal: Remark | None, count: Remark | None = None
) -> TokenRule:
    return TokenRule(rule, None, tuple(levels.tolist()), (about, count) if count else (about,), refusal)


def _nearest_level(tokens: float, levels: Floats) -> int:
    if not (math.isfinite(tokens) and tokens > 0):
        raise InputError(f"The tokens to compare at are {tokens:g}; give a positive number, as 1e11.")
    if len(levels) == 0:
        raise InputError(
            f"No row of the table has its training tokens, so none can be compared at {tokens:.4g}. Name the column "
            f"with {option('column', 'tokens=THEIRS')}, or leave out {option('tokens')}."
        )
    # Differences of logarithms, because a quotient of extreme numbers is zero.
    distance = np.abs(np.log(levels) - math.log(tokens))
    nearest = int(np.argmin(distance))
    if distance[nearest] > math.log1p(NEAR_LEVEL):
        near = ", ".join(f"{item:.4g}" for item in np.sort(levels[np.argsort(distance)[:10]]))
        raise InputError(
            f"No row is within {NEAR_LEVEL:.0%} of {tokens:.4g} training tokens. The table has {near}"
            f"{' and others' if len(levels) > 10 else ''}; give one of these with {option('tokens')}, in "
            "the unit of the table."
        )
    return nearest


def _checkpoints(table: pd.DataFrame, levels: Floats) -> TokenChoice:
    """Some shape has several levels: compare at the largest that the most shapes have."""
    shapes = len(table.drop_duplicates(_SHAPE))
    pairs = table.loc[table["level"] >= 0, [*_SHAPE, "level"]].drop_duplicates()
    held = np.bincount(pairs["level"])
    best = int(np.flatnonzero(held == held.max())[-1])
    common_end = pairs.groupby(_SHAPE)["level"].max().value_counts().max()
    groups = None
    if held[best] < MOST_SHAPES * shapes:
        with_tokens = table[table["level"] >= 0]
        groups = _groups(with_tokens, table, levels)
        if equal := _equal_compute(with_tokens, table, levels, several=groups is None):
            return equal
    if held[best] < shapes and common_end * 2 < shapes:
        # If the length of runs follows N, with checkpoints on the way, no level is common, but the ends are comparable.
        last = (table["level"] >= 0) & (table["level"] == table.groupby(_SHAPE)["level"].transform("max"))
        ends = table[last]
        left_out = dict.fromkeys(table.index[~last], WhyNot(RowReason.NOT_AT_END))
        if choice := _at_ratio(ends, ends, levels, 1.0):
            return replace(choice, left_out=left_out)
        if _follows_params(ends):
            span = float(ends["tokens"].min()), float(ends["tokens"].max())
            rule = _unequal(
                "with_params", levels, Remark(About.LAST_CHECKPOINTS, span), _no_extrapolation(ends)
            )
            return TokenChoice(rule, ends, left_out)
    if groups:
        return groups
    return _at_level(table, levels, best, About.MOST_TOKENS, int(held[best]), shapes)


def _at_level(table: pd.DataFrame, levels: Floats, chosen: int, about: About, *values: float) -> TokenChoice:
    """Rows at one level, the last of each model there; the values are those of the remark beside the levels."""
    compared = float(levels[chosen])
    tokens = table["tokens"].where(table["level"] == chosen)
    latest = tokens.groupby(
        [table[name] for name in ("depth", "params", "seed", "lr")], dropna=False
    ).transform("max")
    keep = tokens == latest
    without_tokens, without_loss = table["tokens"].isna(), latest.isna()
    left_out = {
        row: WhyNot(
            RowReason.NO_TOKENS
            if without_tokens[row]
            else RowReason.NO_LOSS_AT_TOKENS
            if without_loss[row]
            else RowReason.OTHER_TOKENS,
            (compared,),
        )
        for row in table.index[~keep]
    }
    count = keep.groupby([table["depth"], table["params"]]).transform("sum")
    without = table[count == 0].drop_duplicates(["depth", "params"])
    remarks: tuple[Remark, ...] = ()
    if len(without):
        names = [f"{depth}×{width}" for depth, width in zip(without["depth"], without["width"], strict=True)]
        shapes = len(table.drop_duplicates(["depth", "params"]))
        remarks = (Remark(About.SHAPES_LEFT_OUT, (len(names), shapes, compared, *first_names(names))),)
    level = compared, len(levels), float(levels[0]), float(levels[-1])
    rule = TokenRule("level", compared, tuple(levels.tolist()), (Remark(about, (*level, *values)),), None)
    return TokenChoice(rule, table[keep], left_out, remarks)


def _no_extrapolation(rows: pd.DataFrame) -> Remark | None:
    """Why nothing is projected from a table in which tokens change with size; None if they do not.

    Beyond the sizes a projection would need the tokens of that size, and the effect of size on the best depth cannot be
    separated from that of tokens. In public tables with a fixed number of tokens per parameter the logarithms are
    correlated by .98.
    """
    points = _points(rows)
    if points["x"].nunique() < 2 or points["y"].nunique() < 2:
        return None
    together = float(np.corrcoef(points["x"], points["y"])[0, 1])
    if abs(together) < TOGETHER:
        return None
    return Remark(About.CORRELATED, (together,))


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
