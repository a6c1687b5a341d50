"""The measured speed: recovered parts of a step, the file of records, and plans that follow it."""

import json
from dataclasses import replace

import pytest

from study.plan import speed
from study.plan.plan import make_plan
from study.plan.speed import Speed, fitted, keep, known_speed, machine
from study.spec.devices import DEVICES
from study.spec.study import load_spec

CPU = DEVICES["cpu"]
SPEC = ("quickstart", ["frontier.budgets=[1730, 15600]", "training.seeds=1"])


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "interplay" / "speed.json"


def costs(*names):
    plan = make_plan(load_spec(*SPEC))
    cells = {planned.cell.name: planned for planned in plan.cells}
    return [plan.planner.layouts.choose(cells[name].cell.shape).cost for name in names or cells]


def a_speed(plan, **changes):
    planner = plan.planner
    values = {
        "step": 4e-3, "layer": 2.6e-3, "work": 2.0, "machine": machine(CPU), "device": "cpu", "workers": plan.slots,
        "recipe": speed.timing_fields(planner.recipe, planner.layouts.vocabulary), "cells": ["L1-d12"],
        "date": "2026-11-26",
        "busy": False,
    }  # fmt: skip
    return Speed(**values | changes)


def test_the_parts_of_a_step_are_recovered_from_cells_that_tell_them_apart():
    known = replace(
        CPU, seconds_per_step=5e-3, seconds_per_step_layer=4e-3, seconds_per_value=CPU.seconds_per_value * 3,
        utilisation=CPU.utilisation / 3,
    )  # fmt: skip
    planned = costs()
    measured = [replace(cost, device=known).step_seconds for cost in planned]
    step, layer, work = fitted(planned, measured)
    again = replace(
        CPU, seconds_per_step=step, seconds_per_step_layer=layer, seconds_per_value=CPU.seconds_per_value * work,
        utilisation=CPU.utilisation / work,
    )  # fmt: skip
    for cost, seconds in zip(planned, measured, strict=True):
        assert replace(cost, device=again).step_seconds == pytest.approx(seconds, rel=0.03)


def test_one_cell_scales_the_parts_alike():
    (cost,) = costs("L2-d8-s0")
    step, layer, work = fitted([cost], [3 * cost.step_seconds])
    assert step == pytest.approx(3 * CPU.seconds_per_step, rel=0.5)
    assert layer == pytest.approx(3 * CPU.seconds_per_step_layer, rel=0.05)
    assert work == pytest.approx(3, rel=0.05)


def test_a_plan_follows_the_speed_of_its_machine_and_says_so():
    before = make_plan(load_spec(*SPEC))
    keep(a_speed(before))
    after = make_plan(load_spec(*SPEC))
    for cell, slow in zip(before.cells, after.cells, strict=True):
        assert slow.seconds > 1.9 * cell.seconds
        assert slow.cell.key == cell.cell.key
        assert slow.memory_bytes == cell.memory_bytes
    assert any("2026-11-26" in note for note in after.notes)
    assert not any("timed" in note for note in before.notes)


def test_a_plan_says_that_its_speed_was_measured_beside_other_work():
    plan = make_plan(load_spec(*SPEC))
    keep(a_speed(plan, busy=True))
    assert any("busy" in note for note in make_plan(load_spec(*SPEC)).notes)
    keep(a_speed(plan))
    assert not any("busy" in note for note in make_plan(load_spec(*SPEC)).notes)


def test_measured_seconds_of_compiling_replace_the_assumed_ones(cache):
    spec = (SPEC[0], [*SPEC[1], "resources.compile=always"])

    def compiling():
        return {planned.compile_seconds for planned in make_plan(load_spec(*spec)).cells}

    plan = make_plan(load_spec(*spec))
    assert compiling() == {CPU.seconds_to_compile}
    keep(a_speed(plan, compile_seconds=7.5))
    assert compiling() == {7.5}
    # Records of before have no such field.
    (record,) = json.loads(cache.read_text())
    del record["compile_seconds"]
    cache.write_text(json.dumps([record]))
    assert compiling() == {CPU.seconds_to_compile}
    assert make_plan(load_spec(*spec)).planner.speed == a_speed(plan)


def test_a_record_of_another_machine_or_number_of_workers_is_not_used():
    plan = make_plan(load_spec(*SPEC))
    keep(a_speed(plan, machine="another, 64 cores"))
    keep(a_speed(plan, workers=plan.slots + 1))
    assert make_plan(load_spec(*SPEC)).hours == plan.hours


def test_the_record_of_the_same_recipe_comes_before_a_newer_one_and_replaces_an_older_one(cache):
    plan = make_plan(load_spec(*SPEC))
    recipe, vocabulary = plan.planner.recipe, plan.planner.layouts.vocabulary
    keep(a_speed(plan, work=5.0))
    keep(a_speed(plan, work=7.0))
    keep(a_speed(plan, work=9.0, recipe={}))
    assert known_speed(CPU, plan.slots, recipe, vocabulary).work == 7.0
    assert known_speed(CPU, plan.slots, recipe, vocabulary + 1).work == 9.0
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"work": 2}]', '{"a": 1}'])
def test_a_damaged_file_counts_as_none_and_is_replaced(cache, text):
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    plan = make_plan(load_spec(*SPEC))
    assert plan.planner.speed is None
    keep(a_speed(plan))
    assert make_plan(load_spec(*SPEC)).planner.speed == a_speed(plan)
