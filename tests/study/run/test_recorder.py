import math

import pytest

from study.plan import make_plan
from study.run.recorder import measured
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL


def test_bits_per_byte_are_recorded_of_a_finished_cell_whose_bytes_are_known() -> None:
    plan = make_plan(load_spec(SMALL))

    def recorded(**result: object) -> float | None:
        bits: float | None = measured("cpu", plan.cells[0], stub_result(**result))["bits_per_byte"]
        return bits

    assert recorded(loss=2.0, bytes_per_token=4.0) == pytest.approx(0.5 / math.log(2))
    assert recorded(loss=2.0) is None
    assert recorded(loss=2.0, bytes_per_token=4.0, status="diverged") is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_utilisation_is_the_share_of_the_data_sheets_peak_on_all_ranks(ranks: int) -> None:
    plan = make_plan(load_spec(SMALL, [f"resources.data_parallel={ranks}", "resources.slots=2"]))
    result = stub_result(flops_per_second=0.25 * ranks * 67e12)
    assert plan.precision == "fp32"
    assert measured("h100-80gb", plan.cells[0], result)["utilisation"] == pytest.approx(0.25)
