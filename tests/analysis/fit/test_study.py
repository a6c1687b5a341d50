import math

import pytest

from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from tests.isoflop import crossing, isoflop_table


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_table_of_several_budgets_of_compute_has_its_crossings_and_its_noise(seeds):
    found = study_of(RunTable.from_frame(isoflop_table(seeds)))
    assert found.comparison.tokens.rule == "groups"
    assert math.exp(found.curves.noise.log_sd) == pytest.approx(0.003, rel=0.25)
    assert [item.status for item in found.crossings.items[:2]] == ["left_censored", "bracketed"]
    for item in found.crossings.items:
        low, high = item.params_interval
        assert (low or 0) < crossing(item.shallow, item.deep) < (high or math.inf)
    low, high = found.crossings.items[1].params_interval
    assert high / low < 1.6
    assert found.refusal
