"""Timing a few steps: real processes, and what `interplay try` and a run make of them."""

import json

import pytest

from study.plan import speed
from study.plan.plan import make_plan
from study.run.step_timing import is_worth_timing, tried_cells
from study.spec.study import load_spec

SMALL = ("quickstart", ["frontier.budgets=[1730, 15600]", "data.sequences=1000", "training.steps=100"])


def test_the_extreme_shapes_are_tried_once_each():
    plan = make_plan(load_spec("quickstart"))
    shapes = [planned.cell.shape for planned in tried_cells(plan)]
    every = {planned.cell.shape for planned in plan.cells}
    assert len(shapes) == len(set(shapes)) <= 4
    assert max(shape.depth for shape in shapes) == max(shape.depth for shape in every)
    assert max(shape.width for shape in shapes) == max(shape.width for shape in every)


def test_a_study_of_seconds_is_not_worth_it_and_no_study_twice(monkeypatch):
    assert not is_worth_timing(make_plan(load_spec("quickstart", ["training.steps=1"])))
    plan = make_plan(load_spec("quickstart", ["training.steps=100000"]))
    assert is_worth_timing(plan)
    assert not is_worth_timing(plan, left=1e-6)
    planner = plan.planner
    speed.keep(
        speed.Speed(
            step=1e-3, layer=1e-3, work=1.0, machine=speed.machine(planner.layouts.device), device="cpu",
            workers=plan.slots, recipe=speed.deciding(planner.recipe, planner.layouts.vocabulary), cells=[], date="",
        )
    )  # fmt: skip
    assert not is_worth_timing(make_plan(load_spec("quickstart", ["training.steps=100000"])))


def test_cells_of_several_devices_are_not_tried():
    plan = make_plan(load_spec("text", ["resources.tensor_parallel=2", "training.tokens=1e9"]))
    assert tried_cells(plan) == []
    assert not is_worth_timing(plan)


@pytest.mark.slow
def test_real_cells_are_timed_and_the_next_plan_follows_them(command):
    spec, changes = SMALL
    status, output, errors = command("try", spec, *changes, "--json")
    assert status == 0, errors
    document = json.loads(output)
    assert {cell["cell"] for cell in document["cells"]} == {"L4 d18", "L1 d12", "L4 d6", "L1 d36"}
    after = make_plan(load_spec(*SMALL))
    assert document["hours"] == after.hours != document["planned_hours"]
    planned = {
        f"L{p.cell.shape.depth} d{p.cell.shape.width}": after.planner.layouts.choose(
            p.cell.shape
        ).cost.step_seconds
        for p in after.cells
    }
    for cell in document["cells"]:
        assert 0 < cell["memory_bytes"] < 1e9
        # Three numbers fit four cells, up to what other work on the machine changes meanwhile.
        assert planned[cell["cell"]] == pytest.approx(cell["step_seconds"], rel=0.5)


@pytest.mark.parametrize(
    ("changes", "part"),
    [(["resources.tensor_parallel=2"], "several devices"), (["vary={training.batch: [1, 2]}"], "`try`")],
)
def test_what_cannot_be_tried_is_refused(command, changes, part):
    status, _, errors = command("try", "text", *changes)
    assert status == 2
    assert part in errors
