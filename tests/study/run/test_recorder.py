import math

import pytest

from study.plan import make_plan
from study.plan.rows import run_table
from study.run.recorder import cell_fields, has_ended, measured
from study.spec.study import load_spec
from tests.stubs import stub_result, stub_row
from tests.study.small import SMALL


def test_a_trunk_has_ended_when_no_cell_of_it_will_be_tried_again() -> None:
    tokens = "training.tokens=[1M, 2M]"
    overrides = ["training.schedule=wsd", "training.warmup_steps=9", "training.seeds=1", tokens]
    plan = make_plan(load_spec(SMALL, overrides))
    members = next(iter(plan.trunks.values()))
    short, long = (planned.cell.key for planned in members)

    def ended(*losses: float | None, status: str | None = None) -> bool:
        pairs = zip(members, losses, strict=False)
        return has_ended(members, {p.cell.key: stub_row(p, loss, status=status) for p, loss in pairs})

    assert short != long
    assert not ended()
    assert not ended(1.0)
    assert not ended(None, None, status="failed")
    assert ended(1.0, None), "the longer one diverged"


def test_the_tokens_that_a_cell_took_from_a_trunk_are_a_column_where_there_are_any() -> None:
    overrides = ["training.schedule=wsd", "training.warmup_steps=9", "training.tokens=[1024000, 2048000]"]
    plan = make_plan(load_spec(SMALL, overrides))
    rows = {}
    for planned in plan.cells:
        result = stub_result(trunk_steps=planned.trunk_steps)
        fields = {**cell_fields(plan, planned), **measured("cpu", planned, result)}
        rows[planned.cell.key] = stub_row(planned, 1.0).model_copy(update=fields)
    table = run_table(rows, "small").frame
    assert set(zip(table["tokens"], table["trunk_tokens"], strict=True)) == {(1024000, 0), (2048000, 819200)}
    shorter = {key: row for key, row in rows.items() if row.tokens == 1024000}
    assert "trunk_tokens" not in run_table(shorter, "small").frame


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
