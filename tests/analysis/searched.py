"""A simulated search: rows in the order they ended, and sensitivity runs."""

import numpy as np
import pandas as pd

from analysis.design.objective import Objective
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1.5e3, 6e4, 7))
TOKENS = 1e6
AIM = Objective("crossings")


def searched(seeds=3, seed=0):
    """Rows of a study, seed after seed, with the columns of a searched study."""
    rows = simulate(TRUTH, SHAPES, seeds, np.random.default_rng(seed))
    rows = rows.assign(
        cell=[f"{index:012d}" for index in range(len(rows))],
        lr=0.01,
        tokens=TOKENS,
        status="done",
        purpose="",
    )
    rows = rows.sort_values(["seed", "params"], kind="stable", ignore_index=True)
    return rows.assign(order=np.arange(1, len(rows) + 1), flops=6 * rows["params"] * TOKENS)


def with_sensitivity_runs(rows, factor=0.5, harm=0.01):
    """`rows`, and the sizes about 1 -> 2 again at another rate that harms depth 2."""
    where = TRUTH.crossing(1)
    near = rows[(rows["depth"] < 4) & rows["params"].between(where / 3, where * 3)]
    again = near.assign(
        loss=near["loss"] + harm * (near["depth"] == 2),
        lr=factor * near["lr"],
        purpose="sensitivity",
        cell="a" + near["cell"],
        order=np.arange(len(near)) + len(rows) + 1,
    )
    return pd.concat([rows, again], ignore_index=True)
