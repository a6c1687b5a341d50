"""Reduce a table of several budgets of compute (isoFLOP) or of training time to the best size of each depth at each.

At one budget C, in FLOPs or in minutes, the loss of a depth is nearly a parabola in ln N (Hoffmann et al. 2022,
approach 2): small models have many tokens, large ones few. Its minimum gives the best size and the least loss of the
depth at C. These losses are compared at equal C as other tables are at equal N: with C in the column `params`, curves
and crossings are those in C.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs.columns import FLOPS, TOKEN_GROUP, compute_unit, numeric, planned_compute
from analysis.runs.learning_rates import choose_rates
from analysis.runs.remarks import About, Remark
from analysis.units import BudgetUnit

#: Factors of 6·N·tokens between which the column of FLOPs has the training FLOPs of a run.
LEAST_FLOPS, MOST_FLOPS = 0.3, 30.0
#: Relative difference of compute up to which runs have one budget.
SAME_COMPUTE = 0.10
#: Sizes farther from that of the lowest loss, as a factor, are not used: the loss is a parabola near its minimum only.
NEAR_MINIMUM = 4.5
#: Fewest sizes with which the fitted parabola gets a third power: the loss is steeper towards small models.
CUBIC_SIZES = 5
#: Fewest sizes of a depth at one budget for a parabola, and fewest budgets and depths for a comparison.
LEAST_SIZES, LEAST_BUDGETS, LEAST_DEPTHS = 3, 2, 2


@dataclass(frozen=True)
class BestSize:
    """The best size of a depth at a budget C, and the training tokens that it leaves.

    Attributes:
        level, slope: ln N = level + slope·ln C.
        per_token: (a, b, c), with a + b/sqrt(N) + c/N the budget per parameter and token, C / (N·tokens): (6, 0, 0)
            without a column of FLOPs. The FLOPs of attention and of the vocabulary grow with the width, as sqrt(N); of
            minutes, c is the time of a token that does not depend on the width.
    """

    depth: int
    level: float
    slope: float
    per_token: tuple[float, float, float]

    def params(self, compute: float) -> float:
        """N of least loss."""
        return math.exp(self.level + self.slope * math.log(compute))

    def tokens(self, compute: float) -> float:
        """Training tokens that the budget allows at this N."""
        params, (by_size, by_width, fixed) = self.params(compute), self.per_token
        return compute / (by_size * params + by_width * math.sqrt(params) + fixed)


@dataclass(frozen=True)
class ComputeTable:
    """The best sizes of a table of several budgets of compute.

    Attributes:
        unit: of the budgets.
        rows: one row per depth, budget and seed: `depth`, `params` (the budget C, in place of N), `n_best` (N of the
            minimum), `seed`, and `loss` (nats per token there).
        left_out: (depth, C) of the minima that there are not, each with why.
        lowest: (N, loss) of the lowest mean loss there, which a minimum would not exceed.
        sizes: of the depths with a minimum.
        sd: of ln N of one minimum about `BestSize.params`.
    """

    unit: BudgetUnit
    rows: pd.DataFrame
    left_out: dict[tuple[int, float], Remark]
    lowest: dict[tuple[int, float], tuple[float, float]]
    sizes: tuple[BestSize, ...]
    sd: float


def compute_minima(used: pd.DataFrame) -> ComputeTable | None:
    """Find the minimum of the loss over N for each compute, depth and seed.

    A run's budget is that planned by a study at equal FLOPs or equal time, else its column `flops`, else 6·N·tokens. A
    shape that was trained at several learning rates has the loss that `choose_rates` gives it.

    Args:
        used: usable rows of a run table (columns depth, width, params, seed, lr, tokens, loss; any flops).

    Returns:
        None if the table is no isoFLOP table: fewer than two budgets with three sizes each of two depths.
    """
    with_tokens = used[np.isfinite(used["tokens"]) & (used["tokens"] > 0)]
    if with_tokens.empty:
        return None
    compute, unit = _compute_of(with_tokens)
    log = np.log(compute)
    place = np.unique(log)
    starts = place[np.r_[True, np.diff(place) > math.log1p(SAME_COMPUTE)]]
    budget = np.searchsorted(starts, log, side="right") - 1
    frame = with_tokens.assign(compute=compute, **{TOKEN_GROUP: budget})
    if (
        frame.groupby(TOKEN_GROUP)["compute"].agg(lambda part: part.max() / part.min()).max()
        > 1 + SAME_COMPUTE
    ):
        return None
    frame["compute"] = frame.groupby(TOKEN_GROUP)["compute"].transform("median")
    sizes = frame.groupby(["compute", "depth"])["params"].nunique()
    several = sizes[sizes >= LEAST_SIZES].groupby("compute").size()
    if (several >= LEAST_DEPTHS).sum() < LEAST_BUDGETS:
        return None
    key = ["depth", "params", TOKEN_GROUP, "seed", "lr"]
    frame = frame.sort_values([*key, "loss"], kind="stable")
    frame["loss"] = frame.groupby(key, dropna=False)["loss"].transform("mean")
    frame = choose_rates(frame[~frame.duplicated(key)]).rows
    left_out: dict[tuple[int, float], Remark] = {}
    lowest: dict[tuple[int, float], tuple[float, float]] = {}
    rows = []
    for _, part in frame.groupby(["depth", "compute"]):
        depth, at = int(part["depth"].iloc[0]), float(part["compute"].iloc[0])
        minima = _minima(part, unit)
        if isinstance(minima, Remark):
            left_out[depth, at] = minima
            means = part.groupby("params")["loss"].mean()
            lowest[depth, at] = float(means.index[int(means.argmin())]), float(means.min())
            continue
        rows += [
            {"depth": depth, "params": at, "n_best": size, "seed": seed, "loss": loss}
            for seed, size, loss in minima
        ]
    if not rows:
        return None
    table = pd.DataFrame(rows)
    slope, levels, sd = _lines(table)
    sizes = tuple(
        BestSize(depth, level, slope, _per_token(frame[frame["depth"] == depth], unit))
        for depth, level in levels.items()
    )
    return ComputeTable(unit, table, left_out, lowest, sizes, sd)


def _compute_of(rows: pd.DataFrame) -> tuple[npt.NDArray[np.float64], BudgetUnit]:
    """The budget of every row, as planned if it was, and its unit."""
    planned = planned_compute(rows)
    if planned is not None:
        return planned.to_numpy(dtype=float), compute_unit(rows)
    plain = (6 * rows["params"] * rows["tokens"]).to_numpy(dtype=float)
    if FLOPS not in rows:
        return plain, "FLOPs"
    given = numeric(rows[FLOPS]).to_numpy(dtype=float)
    # A column of this name may also have FLOPs per token or per second.
    is_training = np.all((given > LEAST_FLOPS * plain) & (given < MOST_FLOPS * plain))
    return (given if is_training else plain), "FLOPs"


def _per_token(rows: pd.DataFrame, unit: BudgetUnit) -> tuple[float, float, float]:
    """See `BestSize.per_token`, of the rows of one depth."""
    params = rows["params"].to_numpy(dtype=float)
    each = rows["compute"].to_numpy() / (params * rows["tokens"].to_numpy(dtype=float))
    if np.ptp(each) <= SAME_COMPUTE * each.min():
        return float(np.median(each)), 0.0, 0.0
    powers = (0.0, -0.5) if unit == "FLOPs" else (0.0, -0.5, -1.0)
    # Relative errors: the time of a token of the smallest shape is many times that of the largest per parameter.
    design = np.column_stack([params**power / each for power in powers])
    by_size, by_width, fixed = (*np.linalg.lstsq(design, np.ones_like(each))[0].tolist(), 0.0)[:3]
    return by_size, by_width, fixed


def _minima(part: pd.DataFrame, unit: BudgetUnit) -> list[tuple[int, float, float]] | Remark:
    """(seed, N, loss) of the minimum of each seed of a depth at one compute, or why there is none.

    The curvature is common to the seeds, because that of few sizes is known badly, and so is the third power. Without
    it sizes that are not centred on the minimum bias the loss there, by up to a mnat between two depths. A minimum
    outside the sizes is none.
    """
    depth, budget = int(part["depth"].iloc[0]), float(part["compute"].iloc[0])
    x, loss = np.log(part["params"].to_numpy(dtype=float)), part["loss"].to_numpy(dtype=float)
    seeds, member, count = np.unique(part["seed"], return_inverse=True, return_counts=True)
    full = count >= LEAST_SIZES
    if not full.any():
        return Remark(About.FEW_SIZES_AT_COMPUTE, (depth, int(count.max()), LEAST_SIZES, budget, unit))
    kept = full[member]
    x, loss, member = x[kept], loss[kept], np.unique(member[kept], return_inverse=True)[1]
    sizes, of_size = np.unique(x, return_inverse=True)
    lowest = sizes[np.argmin(np.bincount(of_size, weights=loss) / np.bincount(of_size))]
    near = np.abs(x - lowest) <= math.log(NEAR_MINIMUM)
    if np.bincount(member[near], minlength=full.sum()).min() >= LEAST_SIZES:
        x, loss, member = x[near], loss[near], member[near]
    centre = x.mean()
    powers = [2, 3] if len(np.unique(x)) >= CUBIC_SIZES else [2]
    of_seed = np.eye(int(full.sum()))[member]
    design = np.column_stack(
        [of_seed, of_seed * (x - centre)[:, None], *((x - centre) ** power for power in powers)]
    )
    fitted = np.linalg.lstsq(design, loss)[0]
    levels, slopes = np.split(fitted[: -len(powers)], 2)
    curvature, skew = (*fitted[-len(powers) :].tolist(), 0.0)[:2]
    minima = []
    for seed, level, slope in zip(seeds[full], levels.tolist(), slopes.tolist(), strict=True):
        root = curvature + math.sqrt(max(curvature**2 - 3 * skew * slope, 0.0))
        place = -slope / root if root > 0 else math.inf
        if not x.min() - centre <= place <= x.max() - centre or curvature**2 < 3 * skew * slope:
            return Remark(About.LEAST_AT_END, (depth, budget, unit))
        value = level + slope * place + curvature * place**2 + skew * place**3
        minima.append((seed, math.exp(centre + place), value))
    return minima


def _lines(table: pd.DataFrame) -> tuple[float, dict[int, float], float]:
    """Slope, levels by depth, and standard deviation of the straight lines of ln N against ln C."""
    depths, member = np.unique(table["depth"], return_inverse=True)
    x, y = np.log(table["params"].to_numpy()), np.log(table["n_best"].to_numpy())
    design = np.column_stack([np.eye(len(depths))[member], x])
    fitted = np.linalg.lstsq(design, y)[0]
    residual = y - design @ fitted
    sd = math.sqrt(float(residual @ residual) / max(len(y) - design.shape[1], 1))
    return float(fitted[-1]), dict(zip(map(int, depths), map(float, fitted[:-1]), strict=True)), sd
