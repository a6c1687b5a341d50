"""Every preset plans with the real data layer, without a network, and compares what its claim is about."""

import socket

import pytest

from interplay.verbs.plan import presets
from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.spec.yaml_file import PRESETS, preset_names
from trainables.cell import Cell


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_plans_without_a_network(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan must not open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    spec = load_spec(preset)
    plan = make_plan(spec)
    assert {planned.cell.shape.depth for planned in plan.cells} == set(spec.frontier.depth_values)
    restored = [Cell.model_validate_json(planned.cell.model_dump_json()) for planned in plan.cells]
    assert [cell.key for cell in restored] == [planned.cell.key for planned in plan.cells]


def test_a_preset_is_one_of_the_studies_from_which_its_result_was_recorded() -> None:
    recorded = [record for record in presets().records if record["result"] and "values" in record["result"]]
    assert len(recorded) == 4
    for record in recorded:
        ((key, values),) = record["result"]["values"].items()
        others = [load_spec(record["name"], [f"{key}={value}", "name=other"]) for value in values]
        protocols = [make_plan(spec).protocol for spec in others]
        assert len(set(protocols)) == len(values)
        assert make_plan(load_spec(record["name"])).protocol in protocols
        comment = (PRESETS / f"{record['name']}.yaml").read_text().partition("\nname:")[0]
        assert f"interplay run {record['name']} {key}=$x" in comment
        assert f"interplay compare {record['name']}" in comment


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


@pytest.mark.parametrize("preset", ["induction", "hops", "connectivity", "stairs", "one-wide-layer"])
def test_a_preset_of_a_task_takes_less_than_ten_minutes_on_two_cores(preset: str) -> None:
    plan = make_plan(load_spec(preset))
    assert plan.device_hours / 2 * 60 < 10
    assert plan.misses == ()
    assert plan.entropy == 0


def test_induction_and_one_wide_layer_compare_equal_sizes_and_hops_equal_widths() -> None:
    for preset, depths in (("induction", {1, 2}), ("one-wide-layer", {1, 4})):
        plan = make_plan(load_spec(preset))
        shapes = [planned.cell.shape for planned in plan.cells]
        assert {shape.depth for shape in shapes} == depths
        assert max(abs(p.cell.shape.budget_params / p.budget - 1) for p in plan.cells) < 0.05
    assert {shape.width // shape.heads for shape in shapes} == {8}, "heads of one width"
    for preset in ("hops", "connectivity", "stairs"):
        plan = make_plan(load_spec(preset))
        assert len({planned.cell.shape.width for planned in plan.cells}) == 1
        assert len({planned.cell.shape.depth for planned in plan.cells}) >= 3
        assert len(load_spec(preset).data.parts) == 5
