"""Score the intervals of simulated studies against their truth."""

import math
import multiprocessing
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from analysis.fit.study import study_of
from analysis.intervals import Interval
from analysis.law.crossings import Crossing
from analysis.law.decision import Decision
from analysis.law.near_optimal import WITHIN
from analysis.law.shape import Projection
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.table import RunTable
from analysis.threads import single_threaded
from tests.coverage.worlds import WORLDS, World

#: Size of the decision over the largest size measured.
AHEAD = 10.0
Record = dict[str, Any]


def holds(interval: Interval | None, value: float) -> bool:
    """Whether an interval, with None for an open end, holds a value."""
    low, high = interval or (None, None)
    return (low is None or low <= value) and (high is None or value <= high)


@single_threaded
def score(name: str, number: int) -> Record:
    """Simulate a study of a world, fit it as a search does, and compare with the truth."""
    world = WORLDS[name]
    rows, curves = world.study(name, number)
    study = study_of(RunTable.from_frame(rows))
    found, law = study.crossings, study.laws[0]
    pairs = []
    for item in found.items:
        low, high = item.params_interval or (None, None)
        pairs.append(
            {
                "status": item.status,
                "interval": item.params_interval is not None,
                "held": holds(item.params_interval, world.true_crossing(curves, item.shallow)),
                "reached": world.reaches(item.shallow),
                "law_held": holds(item.params_interval, world.truth.crossing(item.shallow)),
                "length": None if low is None or high is None else math.log(high / low),
            }
        )
    attributed = _attributed(found.items, law)
    params = AHEAD * math.exp(world.span[1])
    low, high = law.b_interval or (None, None)
    return {
        "pairs": pairs,
        # Not of the line through the crossings as attributed, which moves with the depths they are attributed to.
        "a_held": None if law.a_interval is None else holds(law.a_interval, world.truth.a),
        "b_held": None if law.b_interval is None else holds(law.b_interval, _true_slope(world, attributed)),
        "b_significant": (low is not None and low > 0) or (high is not None and high < 0),
        "decision": _decision(world, study.predict(params), study.gap_laws.decide(params)),
    }


def _attributed(items: Sequence[Crossing], law: ThresholdLaw) -> dict[int, float]:
    """Shallow depth of each point of the law -> the depth to which the law attributes the crossing.

    N at the crossing is 12·L·d², so that depth follows from the width of the point, whatever the rule.
    """
    points = [item for item in items if item.params is not None and not item.contradicted]
    if len(points) != len(law.widths):
        return {}
    return {
        item.shallow: float(item.params or 0) / (12 * width**2)
        for item, width in zip(points, law.widths, strict=True)
    }


def _true_slope(world: World, attributed: dict[int, float]) -> float:
    """Slope of the straight line through the true crossings, attributed as the law attributes them."""
    sizes = [world.truth.crossing(shallow) for shallow in attributed]
    log_widths = [math.log(size / (12 * L)) / 2 for size, L in zip(sizes, attributed.values(), strict=True)]
    return statistics.linear_regression(list(attributed.values()), log_widths).slope


def _decision(world: World, found: Projection, decision: Decision | None) -> Record | None:
    """The depth for ten times the largest size; None if the laws are not asked or all rejected."""
    low, high = found.depth_interval
    if decision is None or low is None or high is None:
        return None
    truth = world.truth.best_depth(found.params) if "depth" in world.asks else math.nan
    return {
        "stated": decision.bound <= WITHIN,
        # Whole depths: one of the two beside the truth is the best.
        "held": low <= math.ceil(truth) and math.floor(truth) <= high if truth > 0 else None,
        "bound": decision.bound,
        "factor": high / low,
    }


def summary(world: World, records: Sequence[Record]) -> Record:
    """Counts and medians over the studies of a world; see `docs/coverage.md` for their meaning."""
    pairs = [pair for record in records for pair in record["pairs"]]
    closed = [pair for pair in pairs if pair["length"] is not None]
    bracketed = [pair for pair in pairs if pair["status"] == "bracketed"]
    intervals = [pair for pair in pairs if pair["interval"]] if "crossing" in world.asks else []
    law = {
        name: [{"held": record[f"{name}_held"]} for record in records if record[f"{name}_held"] is not None]
        for name in ("a", "b")
        if name in world.asks
    }
    decisions = [record["decision"] for record in records if record["decision"] is not None]
    asked = [item for item in decisions if item["held"] is not None]
    stated = [item for item in asked if item["stated"]]
    return {
        "studies": len(records),
        "pairs": len(pairs),
        "crossings": _count(intervals, "held"),
        "crossings_reached": _count([pair for pair in intervals if pair["reached"]], "held"),
        "crossings_law": _count(intervals, "law_held"),
        "bracketed": _count(bracketed, "held"),
        "closed": len(closed),
        "length": _median(pair["length"] for pair in closed),
        "intercepts": _count(law.get("a", []), "held"),
        "slopes": _count(law.get("b", []), "held"),
        "slopes_significant": sum(record["b_significant"] for record in records),
        "decided": len(decisions),
        "stated": sum(item["stated"] for item in decisions),
        "depths": _count(asked, "held"),
        "stated_depths": _count(stated, "held"),
        "bound": _median(item["bound"] for item in decisions),
        "factor": _median(item["factor"] for item in decisions),
    }


def _count(items: Sequence[Record], key: str) -> list[int]:
    """[how many hold, of how many]."""
    return [sum(item[key] for item in items), len(items)]


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.median(listed) if listed else None


@cache
def measured(name: str, studies: int) -> Record:
    """Score this many studies of a world, once in a process and without others: `pytest -n` has one for each core."""
    return summary(WORLDS[name], [score(name, number) for number in range(studies)])


def share(count: Sequence[int]) -> float:
    """How many of how many."""
    return count[0] / count[1]


def together(names: Iterable[str], studies: int, key: str) -> list[int]:
    """Add up a count over worlds."""
    return [sum(column) for column in zip(*(measured(name, studies)[key] for name in names), strict=True)]


def measure(names: Iterable[str], studies: int, processes: int = 2) -> Iterator[tuple[str, Record]]:
    """Score this many studies of each world; yields a world when its studies are done."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name in names:
            records = pool.starmap(score, [(name, number) for number in range(studies)], chunksize=5)
            yield name, summary(WORLDS[name], records)
