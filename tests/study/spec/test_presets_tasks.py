"""The presets of tasks: each plans, takes minutes, and compares what its claim is about."""

import pytest

from study.plan.plan import Plan, make_plan
from study.spec.study import load_spec, studies


def plans_of(preset: str) -> list[Plan]:
    return [make_plan(spec) for spec in studies(load_spec(preset))]


@pytest.mark.parametrize("preset", ["induction", "hops", "connectivity", "one-wide-layer"])
def test_a_preset_of_a_task_takes_less_than_ten_minutes_on_two_cores(preset: str) -> None:
    made = plans_of(preset)
    assert sum(plan.device_hours for plan in made) / 2 * 60 < 10
    for plan in made:
        assert plan.misses == ()
        assert plan.entropy == 0


def test_induction_and_one_wide_layer_compare_equal_sizes_and_hops_equal_widths() -> None:
    for preset, depths in (("induction", {1, 2}), ("one-wide-layer", {1, 4})):
        (plan,) = plans_of(preset)
        shapes = [planned.cell.shape for planned in plan.cells]
        assert {shape.depth for shape in shapes} == depths
        assert max(abs(p.cell.shape.budget_params / p.budget - 1) for p in plan.cells) < 0.05
    assert {shape.width // shape.heads for shape in shapes} == {8}, "heads of one width"
    for preset in ("hops", "connectivity"):
        for plan in plans_of(preset):
            assert len({planned.cell.shape.width for planned in plan.cells}) == 1
            assert len({planned.cell.shape.depth for planned in plan.cells}) >= 3
        assert len(load_spec(preset).data.parts) == 5
