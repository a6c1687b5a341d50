import pytest

from study.plan import make_plan
from study.run.recorder import measured
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_utilisation_is_the_share_of_the_data_sheets_peak_on_all_ranks(ranks: int) -> None:
    plan = make_plan(load_spec(SMALL, [f"resources.data_parallel={ranks}", "resources.slots=2"]))
    result = stub_result(flops_per_second=0.25 * ranks * 67e12)
    assert plan.precision == "fp32"
    assert measured("h100-80gb", plan.cells[0], result)["utilisation"] == pytest.approx(0.25)
