"""What the section `search` does to a plan: the cells it may add, and how many of them are trained."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.planner import Planner
from study.spec.frontier import FrontierShape, added_shapes
from study.spec.search import CrossingSection, OptunaSection, SearchBase


def more_cells(planner: Planner, listed: Sequence[FrontierShape]) -> tuple[list[PlannedCell], list[str]]:
    """Return more seeds of the listed shapes and shapes at new budgets, and why some of these are left out."""
    search, training = planner.spec.search, planner.spec.training
    if not isinstance(search, CrossingSection):
        return [], []
    given = training.seed_values
    most = search.most_seeds(training)
    others = [seed for seed in range(most) if seed not in given][: most - len(given)]
    cells = [planned for found in listed for planned in planner.cells(found, others)]
    refused = []
    for found in [] if search.new_budgets == "none" else added_shapes(planner.spec.frontier):
        try:
            cells += planner.cells(found, (*given, *others))
        except SpecError as error:
            refused.append(f"the search adds no L{found.shape.depth} d{found.shape.width}: {error}")
    return cells, refused


def check_limits(search: SearchBase, cells: Collection[PlannedCell]) -> None:
    """Raise a `SpecError` if `max_flops` is less than any cell takes."""
    cheapest = min((planned.flops for planned in cells), default=0.0)
    limit = search.max_flops if isinstance(search, CrossingSection) else None
    if limit is not None and limit < cheapest:
        raise SpecError(
            f"`search.max_flops` is {limit:g}, and the cheapest cell takes {cheapest:.3g} training FLOPs, so that the "
            "search could train none; raise it, or train with fewer `training.steps`."
        )


def trained_shares(search: SearchBase, cells: Sequence[PlannedCell]) -> dict[float, float]:
    """Return the share of each budget's cells that is trained: expected, or the most that the limits allow."""
    if isinstance(search, OptunaSection):
        pairs = {(p.budget, p.cell.shape.depth, p.lr_factor) for p in cells}
        counts = Counter(budget for budget, *_ in pairs)
        return {budget: min(1.0, search.candidates / count) for budget, count in counts.items()}
    share = 1.0
    if isinstance(search, CrossingSection):
        costs = sorted((p.flops for p in cells), reverse=True)
        most = math.fsum(costs[: search.max_cells])
        share = min(most, search.max_flops or most) / math.fsum(costs)
    return dict.fromkeys((p.budget for p in cells), share)


def most_seconds(search: CrossingSection, cells: Sequence[PlannedCell]) -> float:
    """Return the most seconds of one device that cells within the limits of a search can take.

    Small cells take more seconds per FLOP than large ones: the limit of FLOPs alone gave a half of what a search of
    minutes took. With a price per FLOP in place of their limit the best cells are those with the largest gains. Every
    price gives an upper bound, and the lowest of these is the optimum of cells that may be trained in part.
    """
    limit = search.max_flops
    seconds, flops = (np.array([getattr(p, name) for p in cells]) for name in ("device_seconds", "flops"))
    if limit is None:
        return float(np.sort(seconds)[::-1][: search.max_cells].sum())

    def bound(price: float) -> float:
        gains = np.sort(np.maximum(seconds - price * flops, 0.0))[::-1]
        return float(gains[: search.max_cells].sum() + price * limit)

    # It is convex in the price.
    low, high = 0.0, float(np.max(seconds / flops))
    for _ in range(100):
        third = (high - low) / 3
        low, high = (low, high - third) if bound(low + third) <= bound(high - third) else (low + third, high)
    return bound(low)


def cell_count(search: SearchBase, cells: Sequence[PlannedCell]) -> int:
    """Return how many cells are trained, at most."""
    if isinstance(search, CrossingSection):
        spent = accumulate(sorted(p.flops for p in cells)[: search.max_cells])
        return sum(cost <= (search.max_flops or math.inf) for cost in spent)
    shares = trained_shares(search, cells)
    return round(math.fsum(shares[planned.budget] for planned in cells))
