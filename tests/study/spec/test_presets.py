"""Every preset plans with the real data layer, without a network, and compares what its claim is about."""

import socket

import pytest

from study.plan.plan import Plan, make_plan
from study.spec.study import load_spec, studies
from study.spec.yaml_file import preset_names
from trainables.cell import Cell


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_plans_without_a_network(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan must not open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    spec = load_spec(preset)
    for one in studies(spec):
        plan = make_plan(one)
        assert {planned.cell.shape.depth for planned in plan.cells} == set(one.frontier.depth_values)
        restored = [Cell.model_validate_json(planned.cell.model_dump_json()) for planned in plan.cells]
        assert [cell.key for cell in restored] == [planned.cell.key for planned in plan.cells]


def test_quickstart_compares_matched_sizes_in_minutes() -> None:
    spec = load_spec("quickstart")
    plan = make_plan(spec)
    assert spec.frontier.depth_values == (1, 2, 4)
    assert plan.misses == (), "every depth has a shape at every budget"
    budgets, seeds = len(spec.frontier.budget_values), len(spec.training.seed_values)
    assert budgets >= 4, "a crossing needs sizes on both sides"
    assert seeds >= 2, "without a second seed the noise is not known"
    assert plan.cell_count == len(plan.cells) == 3 * budgets * seeds
    for planned in plan.cells:
        assert abs(planned.cell.shape.budget_params / planned.budget - 1) <= spec.frontier.tolerance
    assert plan.device_hours / 2 * 60 < 15, "minutes on two cores, by a cautious estimate"


def test_quickstart_search_takes_less_than_its_grid() -> None:
    search, grid = load_spec("quickstart-search"), load_spec("quickstart-search", ["search.sampler=grid"])
    whole, part = make_plan(grid), make_plan(search)
    assert whole.misses == (), "every depth has a shape at every budget"
    assert part.protocol == whole.protocol, "rows of both are comparable"
    assert search.search.sampler == "crossing"
    # Cells that run count at their whole cost, so no search exceeds it.
    limit = search.search.max_flops
    assert limit is not None
    assert limit <= 0.8 * whole.flops


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
