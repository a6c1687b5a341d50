"""Models without feed-forward networks: N = 4·L·d², so the same shapes and losses have a third of the size."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from analysis.audit.recommend import fit_evidence
from analysis.fit.document import Fit, fit
from analysis.fit.limits import recommend_at_limit
from analysis.fit.recommendation import NamedFit, recommended
from analysis.law.at_limit import CostKind, Limit
from analysis.report.figures.excess import excess_data
from analysis.report.figures.transition import crossing_widths
from analysis.runs.costs import ShapeCosts
from analysis.runs.remarks import About
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4, 6))


@cache
def both() -> tuple[Fit, Fit]:
    """Fits of the same depths, widths and losses with feed-forward networks and without."""
    shapes = shapes_of(TRUTH.depths, np.geomspace(TRUTH.crossing(1) / 4, TRUTH.crossing(4) * 4, 6))
    frame = simulate(TRUTH, shapes, 3, np.random.default_rng(0))
    alone = frame.assign(d_ff=0, budget=frame["budget"] / 3)
    return fit(RunTable.from_frame(frame)), fit(RunTable.from_frame(alone))


def test_sizes_are_a_third_and_widths_the_same():
    given, alone = both()
    assert (given.layer_weights, alone.layer_weights) == (12, 4)
    for first, second in zip(given.crossings, alone.crossings, strict=True):
        assert second.status == first.status == "bracketed"
        assert second.params == pytest.approx(first.params / 3, rel=1e-6)
        assert second.params_interval == pytest.approx([end / 3 for end in first.params_interval], rel=1e-4)
        assert second.width == pytest.approx(first.width, rel=1e-6)
        assert second.width == pytest.approx(math.sqrt(second.params / (4 * second.shallow)))
    for first, second in zip(given.best, alone.best, strict=True):
        assert (second.depth, second.params) == (first.depth, pytest.approx(first.params / 3))
        widths = [[shape.width for shape in item.shapes] for item in (first, second)]
        assert widths[1] == pytest.approx(widths[0])
    widths = [crossing_widths(found)[["value", "low", "high"]].to_numpy() for found in both()]
    np.testing.assert_allclose(widths[1], widths[0], rtol=1e-3)
    tables = [excess_data(found) for found in both()]
    np.testing.assert_allclose(tables[1]["width"], tables[0]["width"], rtol=1e-6)
    np.testing.assert_allclose(tables[1]["params"], tables[0]["params"] / 3, rtol=1e-6)


def test_the_threshold_law_is_that_of_the_widths():
    given, alone = both()
    for first, second in zip((given.law, *given.alternatives), (alone.law, *alone.alternatives), strict=True):
        assert (second.a, second.b) == pytest.approx((first.a, first.b), rel=1e-3)
        assert second.a_interval == pytest.approx(first.a_interval, rel=2e-3)
        assert second.widths == pytest.approx(first.widths, rel=1e-6)
        assert second.best_depth(1e5) == pytest.approx(first.best_depth(3e5), rel=1e-3)
        assert second.interval(1e5) == pytest.approx(first.interval(3e5), rel=2e-3)
    assert alone.law.a_interval[0] < TRUTH.a < alone.law.a_interval[1]
    assert alone.law.transition(3).params == pytest.approx(given.law.transition(3).params / 3, rel=5e-3)
    assert alone.law.transition(3).width == pytest.approx(given.law.transition(3).width, rel=5e-3)


def test_a_recommended_shape_has_the_width_that_fills_n():
    given, alone = both()
    largest = given.reading.params[-1]
    for params in (given.reading.params[0], largest, 3 * largest):
        first, second = recommended(given, params), recommended(alone, params / 3)
        assert (second.depth, second.width, second.source) == (first.depth, first.width, first.source)
        if second.depth_exact:
            assert 4 * second.depth_exact * second.width_exact**2 == pytest.approx(params / 3)
    read = Fit.from_json(json.loads(json.dumps(alone.to_json())))
    assert recommended(read, largest) == recommended(alone, largest)


def test_the_size_of_a_shape_at_a_limit_of_cost_is_its_own():
    costs = [
        ShapeCosts(
            depth=depth, width=width, heads=1, kv_heads=1, params=1000, device="cpu", machine="M", precision="fp32",
            context=8, batch=1, decode_ms=depth * width / 100, date="2026-11-29", versions="torch",
        )
        for depth, width in both()[0].study.rows[["depth", "width"]].drop_duplicates().itertuples(index=False)
    ]  # fmt: skip
    # Shapes that were not trained count as well.
    costs += [
        replace(item, width=item.width + 1, decode_ms=item.depth * (item.width + 1) / 100) for item in costs
    ]
    limit = Limit(CostKind.LATENCY, 1e-3, 1)
    first, second = (recommend_at_limit(found.study, costs, limit) for found in both())
    assert second.best.depth == first.best.depth
    for one, other in zip(first.shapes, second.shapes, strict=True):
        assert other.params == pytest.approx(one.params / 3)
        assert other.width == pytest.approx(one.width)


def test_rows_that_were_counted_otherwise_are_named():
    alone = both()[1].study.runs.used
    kept = alone.assign(params=12 * alone["depth"] * alone["width"] ** 2)
    first, second = (fit(RunTable.of_records(rows.to_dict("records"), "rows")) for rows in (alone, kept))
    assert not any(item.about is About.COUNT_DIFFERS for item in first.remarks)
    (remark,) = (item for item in second.remarks if item.about is About.COUNT_DIFFERS)
    assert remark.values == (pytest.approx(2), 4)


def test_a_model_with_feed_forward_networks_is_not_audited_by_it():
    given, alone = both()
    assert fit_evidence(NamedFit("it", given), 0.005).best(1e4).depth
    with pytest.raises(InputError, match=r"4·L·d²"):
        fit_evidence(NamedFit("it", alone), 0.005)
