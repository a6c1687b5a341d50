"""The plan: cells and their costs, the protocol, totals, and what is refused."""

import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import study.plan.cells
import study.plan.layouts
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.plan.prices import gpu_price, money
from study.plan.table import plan_table
from study.search.source import seed_by_seed
from study.spec.devices import DEVICES, usable_memory
from study.spec.frontier import FrontierShape
from study.spec.study import load_spec
from tests.named import assert_named
from tests.study.small import SMALL
from trainables.cell import Shape
from trainables.model.counts import memory
from trainables.model.family import family


@pytest.fixture(autouse=True)
def _data_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give data a key by its description alone; the real key is tested with the data."""
    monkeypatch.setattr(study.plan.cells, "data_key", lambda spec, context, base: f"{spec!r}|{context}")


def plan_of(preset: str, *overrides: str) -> Plan:
    return make_plan(load_spec(preset, overrides)).trainable()


def refusal(preset: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        plan_of(preset, *overrides)
    return str(caught.value)


# Cells


def test_cells_are_shapes_times_seeds() -> None:
    plan = plan_of(SMALL)
    assert len(plan.cells) == plan.cell_count == 45
    assert len({planned.cell.key for planned in plan.cells}) == 45
    assert {planned.cell.seed for planned in plan.cells} == {0, 1, 2}
    assert len({planned.cell.shape for planned in plan.cells}) == 15
    assert plan.vocabulary == 9


def test_cells_are_in_the_order_of_budget_depth_factor_and_seed() -> None:
    plan = plan_of(SMALL, "search.lr_factors=[0.5, 2]")
    order = [(p.budget, p.cell.shape.depth, p.lr_factor, p.cell.seed) for p in plan.cells]
    assert order == sorted(order)
    assert len(order) == 90


def test_cells_of_one_shape_and_seed_are_told_apart_by_their_rate() -> None:
    plan = plan_of(SMALL, "search.lr_factors=[0.5, 1]")
    titles = [planned.title for planned in plan.cells]
    assert len(set(titles)) == len(titles) == 90
    half = next(p for p in plan.cells if p.lr_factor == 0.5)
    assert half.title == f"{half.cell.name} lr×0.5"
    assert plan.planned(half.title) is half
    assert plan.planned(half.cell.name).lr_factor == 1


def test_every_cell_carries_exact_counts() -> None:
    for planned in plan_of(SMALL).cells:
        cell = planned.cell
        assert planned.parameters == family("gpt2").parameters(cell.shape, cell.recipe, 9)
        assert planned.tokens == 1_228_800
        assert planned.flops == family("gpt2").flops(cell.shape, cell.recipe, 9).training * 1_228_800
        assert planned.memory_bytes == memory(cell.shape, 9, cell.recipe, planned.layout).total
        assert planned.layout.sequences(planned.cell.recipe) == 16
        assert planned.layout.ranks == 1
        assert abs(cell.shape.budget_params / planned.budget - 1) <= 0.12


def test_the_learning_rate_is_the_rule_times_the_factor() -> None:
    plan = plan_of(SMALL, "search.lr_factors=[0.5, 1, 4]")
    for planned in plan.cells:
        rule = min(0.04, 0.4 / planned.cell.shape.width)
        assert planned.cell.lr == pytest.approx(rule * planned.lr_factor)
    assert {planned.lr_factor for planned in plan.cells} == {0.5, 1.0, 4.0}


def test_rates_by_table_reach_the_cells() -> None:
    table = "{L1-d16: 0.01, L2-d12: 0.02}"
    plan = plan_of(
        SMALL,
        "frontier.budgets=[3200]",
        "frontier.depths=[1, 2]",
        "training.lr.rule=table",
        f"training.lr.values={table}",
    )
    assert {p.cell.name[:-3]: p.cell.lr for p in plan.cells} == {"L1-d16": 0.01, "L2-d12": 0.02}


def test_flags_mark_exactly_the_widths_above_the_vocabulary() -> None:
    for planned in plan_of(SMALL).cells:
        wide = planned.cell.shape.width > 9
        assert planned.flags == (("width above the vocabulary of 9 tokens",) if wide else ())
    assert not any("vocabulary" in flag for p in plan_of("levine2020").cells for flag in p.flags)


# Protocol


@pytest.mark.parametrize(
    "override",
    [
        "training.steps=1201",
        "training.lr.cap=0.03",
        "training.init=gpt2",
        "data.grammar_seed=1",
        "training.batch=8",
    ],
)
def test_the_protocol_changes_with_what_compared_cells_must_share(override: str) -> None:
    assert plan_of(SMALL, override).protocol != plan_of(SMALL).protocol


@pytest.mark.parametrize(
    "override",
    [
        "training.seeds=1",
        "frontier.depths=[1]",
        "name=other",
        "resources.slots=1",
        "search.lr_factors=[1, 2]",
    ],
)
def test_the_protocol_does_not_depend_on_shapes_seeds_or_machines(override: str) -> None:
    assert plan_of(SMALL, override).protocol == plan_of(SMALL).protocol


def test_the_same_cell_has_the_same_key_in_another_study() -> None:
    small = {p.cell.key for p in plan_of(SMALL, "frontier.depths=[1, 2]", "training.seeds=1").cells}
    assert small < {p.cell.key for p in plan_of(SMALL).cells}


def test_relative_paths_start_from_the_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Path] = []

    def data_key(spec: Any, context: int, base: Path) -> str:
        seen.append(base)
        return "key"

    monkeypatch.setattr(study.plan.cells, "data_key", data_key)
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    make_plan(load_spec("text", ["data.path=a.txt"]), base=tmp_path)
    assert seen == [tmp_path]


# Costs


def test_the_floor_is_the_entropy_of_the_grammar() -> None:
    assert plan_of(SMALL).entropy == pytest.approx((math.log(8) + 31 * math.log(2)) / 32)
    assert plan_of("text").entropy is None


def test_a_task_has_no_floor_and_says_how_often_its_sequences_are_seen() -> None:
    plan = plan_of(SMALL, "data={kind: hops, sequences: 500}")
    assert plan.entropy == 0
    assert plan.vocabulary == 6
    assert plan.to_json()["epochs"] == plan.cells[0].tokens / (500 * 64)


def test_a_batch_too_large_for_the_device_is_cut_into_equal_pieces_that_fit() -> None:
    usable = usable_memory(DEVICES["a100-80gb"])
    plan = plan_of("levine2020")
    assert {planned.layout.micro_batch for planned in plan.cells} > {512}
    for planned in plan.cells:
        shape, micro_batch = planned.cell.shape, planned.layout.sequences(planned.cell.recipe)
        assert planned.layout.ranks == 1
        assert 512 % micro_batch == 0
        assert planned.memory_bytes <= usable
        assert (
            planned.memory_bytes
            == memory(shape, 2000, planned.cell.recipe, planned.layout, on_gpu=True).total
        )
        if micro_batch < 512:
            larger = planned.layout.model_copy(update={"micro_batch": 2 * micro_batch})
            assert memory(shape, 2000, planned.cell.recipe, larger, on_gpu=True).total > usable
            assert f"batch in {512 // micro_batch} pieces of {micro_batch}" in planned.flags


def test_slots_are_the_cores_with_a_gigabyte_each_unless_said() -> None:
    cores = len(os.sched_getaffinity(0))
    memory_slots = usable_memory(DEVICES["cpu"]) // 10**9
    assert plan_of(SMALL).slots == min(cores, memory_slots)
    assert plan_of(SMALL, "resources.cpus_per_trial=1000").slots == 1
    assert plan_of(SMALL, "resources.slots=7").slots == 7


def test_hours_are_the_work_over_the_slots_but_never_below_the_longest_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (study.plan.cells, study.plan.layouts):
        monkeypatch.setattr(module, "usable_memory", lambda *_: 10**12)
    one, four, many = (plan_of(SMALL, f"resources.slots={n}") for n in (1, 4, 1000))
    assert one.hours == pytest.approx(sum(p.seconds for p in one.cells) / 3600)
    assert four.hours == pytest.approx(one.hours / 4)
    assert many.hours == pytest.approx(max(p.seconds for p in many.cells) / 3600)


def test_cost_is_the_price_times_the_hours() -> None:
    plan = plan_of(SMALL, "resources.price_per_hour=3")
    assert plan.cost == pytest.approx(3 * plan.device_hours)
    assert plan_of(SMALL).cost is None
    assert plan_of(SMALL, "resources.price_per_hour=0").cost == 0
    gpu = plan_of("one-gpu-night")
    assert gpu.cost == pytest.approx(gpu_price("h100-80gb").hour * gpu.device_hours)
    assert any("AWS" in note for note in gpu.notes)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(plan_table(gpu))
    (total,) = [line for line in console.export_text().splitlines() if line.strip().startswith("total")]
    assert total.split()[-1] == money(gpu.cost)


def test_measured_utilisation_replaces_the_assumed_one() -> None:
    assumed = plan_of("levine2020-wikipedia")
    measured = plan_of("levine2020-wikipedia", "resources.utilisation=0.1")
    assert any("35%" in note for note in assumed.notes)
    assert not any("35%" in note for note in measured.notes)
    assert measured.device_hours > 2 * assumed.device_hours


def test_totals_are_those_of_the_cells() -> None:
    plan = plan_of(SMALL)
    assert plan.tokens == 45 * 1_228_800
    assert plan.flops == pytest.approx(sum(p.flops for p in plan.cells))


def test_a_search_lists_all_candidates_and_counts_those_it_tries() -> None:
    overrides = ("search.lr_factors=[0.5, 1, 2]", "search.sampler=tpe", "search.candidates=4")
    plan = plan_of(SMALL, *overrides)
    assert len(plan.cells) == 5 * 3 * 3 * 3
    assert plan.cell_count == 5 * 4 * 3
    assert plan.to_json()["search"]["candidates"] == 4
    full = plan_of(SMALL, overrides[0])
    assert plan.tokens == pytest.approx(full.tokens * 4 / 9)
    more = plan_of(SMALL, *overrides[:2], "search.candidates=100")
    assert more.cell_count == len(more.cells)


#: 1, 2, 4 and 8 times the tokens of the shortest cells, 600 steps.
WSD = (
    "training.schedule=wsd",
    "training.warmup_steps=50",
    "training.tokens=[614400, 1228800, 2457600, 4915200]",
)


def test_totals_count_the_steps_of_a_trunk_once() -> None:
    overrides = ["training.seeds=2", "resources.price_per_hour=3"]
    plan, apart = make_plan(load_spec(SMALL, [*WSD, *overrides])), make_plan(load_spec(SMALL, overrides))
    taken = {600: 0, 1200: 480, 2400: 960, 4800: 1920}
    assert {(p.cell.recipe.steps, p.trunk_steps) for p in plan.cells} == set(taken.items())
    longest = [p for p in plan.cells if p.cell.recipe.steps == 4800]
    trained = sum(steps - taken[steps] for steps in taken)
    assert plan.flops / sum(p.flops for p in longest) == pytest.approx(trained / 4800)
    assert plan.flops / sum(p.flops for p in longest) <= 1.4
    assert plan.tokens == pytest.approx(trained * 16 * 64 * len(longest))
    assert sum(p.flops for p in plan.cells) / sum(p.flops for p in longest) == pytest.approx(15 / 8), (
        "of whole cells"
    )
    assert plan.device_hours == pytest.approx(sum(p.device_seconds for p in plan.cells) / 3600)
    assert plan.cost == pytest.approx(3 * plan.device_hours)
    for p in plan.cells:
        whole = p.costs.seconds(0)
        assert p.seconds == pytest.approx(whole - p.trunk_steps * p.costs.chosen.cost.step_seconds)
    assert all(p.trunk_steps == 0 for p in apart.cells)
    assert not apart.trunks


def test_a_study_takes_at_least_as_long_as_the_cells_of_a_trunk_in_turn() -> None:
    plan = make_plan(
        load_spec(SMALL, [*WSD, "training.seeds=1", "frontier.depths=[4]", "frontier.budgets=[24000]"])
    )
    assert len(plan.trunks) == 1
    assert plan.hours_on(100) == pytest.approx(sum(p.seconds for p in plan.cells) / 3600)


def test_the_share_of_a_trunk_and_the_space_of_its_checkpoints_are_noted() -> None:
    plan = make_plan(
        load_spec(SMALL, [*WSD, "training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[24000]"])
    )
    (note,) = (text for text in plan.notes if "trunk" in text)
    kept = 3 * plan.cells[0].parameters.total * 14 / 1e9
    assert_named(note, "1 trunk", f"{1 - 1.175 / 1.875:.0%}", f"{kept:.3g} GB")
    one = make_plan(load_spec(SMALL, [*WSD, "training.tokens=614400"]))
    assert not any("trunk" in text for text in one.notes)


def test_cells_of_a_trunk_are_trained_one_after_the_other_the_shortest_first() -> None:
    plan = make_plan(load_spec(SMALL, [*WSD, "training.seeds=2"]))
    order = seed_by_seed(plan)
    groups = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert all([p.cell.recipe.steps for p in group] == [600, 1200, 2400, 4800] for group in groups)
    assert all(len({p.cell.trunk for p in group}) == 1 for group in groups)
    assert [group[0].cell.seed for group in groups] == sorted(group[0].cell.seed for group in groups)


def test_epochs_stand_in_the_plan_with_a_warning_from_the_second_pass_on() -> None:
    once = plan_of(SMALL, "data.sequences=19200")
    assert once.to_json()["epochs"] == 1
    assert not any("epochs" in note for note in once.notes)
    twice = plan_of(SMALL, "data.sequences=9600")
    assert twice.to_json()["epochs"] == 2
    (note,) = twice.to_json()["notes"]
    assert "2.00" in note
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(plan_table(twice))
    assert "2.00 epochs" in console.export_text()


def test_the_epochs_of_text_follow_from_its_limits_and_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000)
    text = f"data={{kind: files, path: {tmp_path / 'a.txt'}, validation_fraction: 0.5}}"
    read = plan_of(SMALL).cells[0].tokens
    assert plan_of(SMALL, text).planner.epochs == pytest.approx(read / 50_000, rel=0.01)
    limited = plan_of(SMALL, text, "data.max_tokens=20000")
    assert limited.planner.epochs == read / (19_999 // 64 * 64)
    assert "at least" in limited.notes[0]
    unknown = plan_of(SMALL, "data={kind: hub, name: owner/text}")
    assert unknown.to_json()["epochs"] is None
    assert unknown.notes == ()


def test_depths_without_a_shape_are_listed_and_noted() -> None:
    plan = plan_of(SMALL, "frontier.tolerance=0.1")
    assert [(round(m.budget), m.depth, m.nearest_width) for m in plan.misses] == [(6197, 4, 12)]
    (note,) = (note for note in plan.notes if "depth 4" in note)
    assert_named(note, "6,197", "12%")
    assert plan.to_json()["misses"][0]["deviation"] == pytest.approx(0.115, abs=1e-3)


# Options of DeepSpeed


def test_options_are_in_every_cell_and_in_the_protocol_and_cells_without_any_keep_their_keys() -> None:
    plain, empty = plan_of(SMALL), plan_of(SMALL, "training.deepspeed={}")
    assert plain.protocol == empty.protocol
    assert [p.cell.key for p in plain.cells] == [p.cell.key for p in empty.cells]
    given = plan_of(SMALL, "training.deepspeed.zero_optimization.overlap_comm=true", "resources.zero=1")
    assert given.protocol != plain.protocol
    assert not {p.cell.key for p in given.cells} & {p.cell.key for p in plain.cells}
    assert {str(p.cell.recipe.deepspeed) for p in given.cells} == {
        "{'zero_optimization': {'overlap_comm': True}}"
    }
    assert any("`training.deepspeed`" in note for note in set(given.notes) - set(plain.notes))


def test_options_without_effect_are_noted() -> None:
    option = "training.deepspeed.zero_optimization.overlap_comm=true"
    assert any("stage 0" in note for note in plan_of(SMALL, option).notes)
    assert not any("stage 0" in note for note in plan_of(SMALL, option, "resources.zero=1").notes)


def test_what_deepspeed_does_not_take_is_refused_before_anything_starts() -> None:
    message = refusal(SMALL, "training.deepspeed.zero_optimization.overlap_com=true", "resources.zero=2")
    assert_named(message, "stage 2", "`overlap_com`")


# Output


def test_json_holds_everything_and_nothing_that_is_not_json() -> None:
    plan = plan_of(SMALL, "resources.price_per_hour=3")
    document = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert document["totals"]["cells"] == 45
    assert document["totals"]["cost_dollars"] == pytest.approx(plan.cost)
    assert [row["cell"] for row in document["cells"]] == [p.cell.key for p in plan.cells]
    row = document["cells"][0]
    assert (
        row["total_params"] == row["embedding_params"] + row["position_params"] + row["non_embedding_params"]
    )
    assert row["params"] == 12 * row["depth"] * row["width"] ** 2


def test_the_table_has_a_line_a_shape_and_fits_a_terminal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    plan = plan_of(SMALL)
    console.print(plan_table(plan))
    text = console.export_text()
    assert sum(" h2 " in line for line in text.splitlines()) == 15
    assert "…" not in text
    assert_named(text, "24,576", "27,808", *plan.cells[-1].flags)
    assert plan.cells[-1].flags


# Size


def test_thousands_of_cells_are_planned() -> None:
    spec = load_spec(
        SMALL,
        [
            "frontier.budgets={min: 1e7, max: 1e9, points: 100}",
            "frontier.depths=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]",
            "training.seeds=2",
            "resources.device=b200-180gb",
        ],
    )
    plan = make_plan(spec)
    keys = {planned.cell.key for planned in plan.cells}
    document = json.dumps(plan.to_json())
    assert len(keys) == len(plan.cells) == 2_000
    assert len(document) > 1_000_000


CROSSING = "search={sampler: crossing, max_cells: 20, objective: depth, halfwidth: 0.1}"


def test_a_search_may_train_more_seeds_and_shapes_between_the_budgets() -> None:
    grid, plan = plan_of(SMALL), plan_of(SMALL, CROSSING)
    assert [p.cell.key for p in plan.cells] == [p.cell.key for p in grid.cells]
    assert plan.protocol == grid.protocol
    keys = [p.cell.key for p in plan.pool]
    assert len(keys) == len(set(keys)) > len(plan.cells)
    assert {p.cell.seed for p in plan.pool} == set(range(8))
    new = {p.cell.shape for p in plan.more} - {p.cell.shape for p in plan.cells}
    assert new
    assert all(
        grid.cells[0].budget < p.budget < grid.cells[-1].budget for p in plan.more if p.cell.shape in new
    )
    assert plan.by_key(plan.more[-1].cell.key) is plan.more[-1]
    assert plan.planned(plan.more[-1].cell.key) is plan.more[-1]
    only = plan_of(SMALL, CROSSING, "search.new_budgets=none", "search.max_seeds=3")
    assert only.more == ()


@pytest.mark.parametrize(
    ("depths", "objective", "never"),
    [
        ("[1, 2, 4]", "depth", True),
        ("[1, 2, 4]", "crossings", False),
        ("[1, 2, 3, 4]", "depth", False),
    ],
)
def test_a_target_that_two_crossings_cannot_reach_is_noted(depths: str, objective: str, never: bool) -> None:
    search = f"search={{sampler: crossing, max_cells: 20, objective: {objective}, halfwidth: 0.1}}"
    plan = plan_of(SMALL, f"frontier.depths={depths}", search)
    notes = plan.search.describe(plan.cells, plan.more)
    assert any("`search.halfwidth`" in note for note in notes) == never


def test_the_seeds_of_a_search_begin_with_those_of_the_spec() -> None:
    plan = plan_of(SMALL, CROSSING, "training.seeds=[7, 30]", "search.max_seeds=4")
    assert {p.cell.seed for p in plan.cells} == {7, 30}
    assert {p.cell.seed for p in plan.pool} == {7, 30, 0, 1}


def test_totals_of_a_search_are_upper_bounds_by_its_limits() -> None:
    plan = plan_of(SMALL, CROSSING)
    costs = sorted((p.flops for p in plan.pool), reverse=True)
    assert plan.cell_count == 20
    assert plan.tokens == 20 * plan.cells[0].tokens
    assert plan.flops == pytest.approx(sum(costs[:20]))
    limited = plan_of(SMALL, CROSSING, f"search.max_flops={sum(costs[-5:])}")
    assert limited.flops == pytest.approx(sum(costs[-5:]))
    assert limited.cell_count == 5
    assert plan_of(SMALL, CROSSING, "search.max_cells=null").cell_count == len(plan.pool)


def test_the_time_of_a_search_is_the_most_that_its_limits_allow() -> None:
    plan = plan_of(SMALL, CROSSING, "resources.slots=1")
    slowest = sorted((p.seconds for p in plan.pool), reverse=True)
    assert plan.hours * 3600 == pytest.approx(sum(slowest[:20]))
    rate = max(p.seconds / p.flops for p in plan.pool)
    flops = 0.5 * sum(slowest[:20]) / rate
    limited = plan_of(SMALL, CROSSING, "resources.slots=1", f"search.max_flops={flops}")
    assert limited.hours * 3600 == pytest.approx(0.5 * sum(slowest[:20]))
    # No choice within both limits takes longer: here the cells with the most seconds per FLOP.
    spent = seconds = 0.0
    for planned in sorted(plan.pool, key=lambda p: p.seconds / p.flops, reverse=True)[:20]:
        if spent + planned.flops <= flops:
            spent, seconds = spent + planned.flops, seconds + planned.seconds
    assert 0 < seconds <= limited.hours * 3600


def test_a_plan_says_that_an_arm_follows(capsys) -> None:
    Console(width=400).print(plan_table(plan_of(SMALL, "sensitivity.lr_factors=[0.5, 2]")))
    assert "trained again at 0.5 and 2 times" in capsys.readouterr().out
    Console(width=400).print(plan_table(plan_of(SMALL)))
    assert "trained again" not in capsys.readouterr().out


def test_a_search_that_may_train_no_cell_at_all_is_refused() -> None:
    message = refusal(SMALL, "search={sampler: crossing, max_flops: 1e9}")
    cheapest = min(planned.flops for planned in plan_of(SMALL).cells)
    assert_named(message, "`search.max_flops` is 1e+09", f"{cheapest:.3g}")


def test_a_cell_that_is_not_listed_can_be_planned() -> None:
    plan = plan_of(SMALL)
    there = plan.cells[7]
    again = plan.planned_for(there.cell.shape, there.budget, there.lr_factor, there.cell.seed)
    assert again == there
    other = plan.planned_for(there.cell.shape, there.budget, 2.0, 99, purpose="sensitivity")
    assert other.cell.lr == 2 * there.cell.lr
    assert (other.cell.seed, other.purpose) == (99, "sensitivity")
    assert plan.by_key(other.cell.key) is None


def test_the_plan_of_a_search_says_what_it_chooses_from_and_what_ends_it(capsys) -> None:
    Console(width=400).print(plan_table(plan_of(SMALL, CROSSING)))
    text = capsys.readouterr().out
    assert_named(text, "15 shapes", "±10 %", "20 cells")


# Bounds


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["frontier.budgets={min: 1e3, max: 1e9, points: 10000}"], 30_000),
        ([f"frontier.depths={list(range(1, 9000))}"], 5 * 8999),
        (["training.seeds=10000"], 150_000),
        ([f"training.seeds={list(range(0, 40000, 2))}"], 300_000),
        ([f"search.lr_factors={list(range(1, 12001))}"], 540_000),
        (["search={sampler: crossing, max_cells: 9, max_seeds: 1000}", "training.seeds=1"], None),
    ],
)
def test_a_plan_of_too_many_cells_is_refused_before_it_is_made(
    overrides: list[str], count: int | None
) -> None:
    message = refusal(SMALL, *overrides)
    assert_named(message, "10,000", "`frontier.max_cells`")
    if count is not None:
        assert_named(message, f"{count:,} ", f"`frontier.max_cells: {count}`")


def test_the_bound_of_a_plan_can_be_raised_and_lowered() -> None:
    seeds = "training.seeds=700"
    assert "10,500 cells" in refusal(SMALL, seeds)
    assert len(plan_of(SMALL, seeds, "frontier.max_cells=10500").cells) == 10_500
    assert "`frontier.max_cells: 45`" in refusal(SMALL, "frontier.max_cells=44")
    assert len(plan_of(SMALL, "frontier.max_cells=45").cells) == 45


def test_a_bound_counts_the_cells_that_a_search_may_add() -> None:
    search = "search={sampler: crossing, max_cells: 9}"
    plan = plan_of(SMALL, search)
    assert len(plan.pool) > len(plan.cells)
    plan_of(SMALL, search, f"frontier.max_cells={len(plan.pool)}")
    assert f"`frontier.max_cells: {len(plan.pool)}`" in refusal(
        SMALL, search, f"frontier.max_cells={len(plan.pool) - 1}"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.lr.base=1e-323"],
        ["training.lr.base=1e-300", "search.lr_factors=[1e-300]"],
        ["training.lr={rule: fixed, value: 1e300}", "search.lr_factors=[1e300]"],
    ],
)
def test_a_learning_rate_that_is_no_positive_number_is_refused(overrides: list[str]) -> None:
    message = refusal(SMALL, *overrides)
    assert_named(message, "`training.lr`", "depth 1")


@pytest.mark.parametrize(
    "override",
    [
        *("resources.cpus_per_trial=1e-320", "resources.cpus_per_trial=.inf", "training.tokens=1e308"),
        *("resources.price_per_hour=1e308", "resources.utilisation=1e-320", "training.steps=" + "9" * 99),
        *("training.batch=1000000000000000003", "training.context=1073741824", "data.sequences=1e300"),
    ],
)
def test_absurd_numbers_are_refused_by_their_bound(override: str) -> None:
    assert f"`{override.partition('=')[0]}` is " in refusal(SMALL, override)


def test_a_plan_of_the_largest_numbers_has_finite_costs() -> None:
    plan = plan_of(
        SMALL,
        *(
            "training.batch=1",
            "training.tokens=1e18",
            "resources.price_per_hour=1e9",
            "resources.utilisation=1e-6",
        ),
    )
    json.dumps(plan.to_json(), allow_nan=False)
    assert plan.cost is not None
    assert math.isfinite(plan.cost)


def test_a_long_table_ends_with_the_number_of_shapes_that_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("study.plan.table.MOST_LINES", 4)
    printed = io.StringIO()
    Console(file=printed, width=120).print(plan_table(plan_of(SMALL)))
    assert "11 more shapes" in printed.getvalue()


@pytest.mark.parametrize(("precision", "warned"), [("fp32", True), ("bf16", False), ("auto", False)])
def test_fp32_on_a_gpu_is_noted_with_what_it_costs(precision: str, warned: bool) -> None:
    overrides = ["resources.device=h100-80gb", "resources.slots=1", f"training.precision={precision}"]
    notes = [note for note in make_plan(load_spec(SMALL, overrides)).notes if "fp32" in note]
    peak = DEVICES["h100-80gb"].peak
    assert len(notes) == warned
    assert not warned or f"1/{peak['bf16'] / peak['fp32']:.0f} of the peak" in notes[0]


def test_fp32_on_a_cpu_is_not_noted() -> None:
    assert not [
        note for note in make_plan(load_spec(SMALL, ["training.precision=fp32"])).notes if "fp32" in note
    ]


# Tokens per parameter

BY_RATIO = ("training.tokens_per_parameter=20", "training.batch=4")


def test_each_shape_trains_on_its_own_multiple_of_its_parameters_within_half_a_step() -> None:
    plan = plan_of(SMALL, *BY_RATIO)
    half_a_step = 4 * 64 / 2
    assert all(abs(p.tokens - 20 * p.cell.shape.budget_params) <= half_a_step for p in plan.cells)
    assert len({p.cell.recipe.steps for p in plan.cells}) > 5
    assert plan.tokens == sum(p.tokens for p in plan.cells)
    assert all(p.flops / p.tokens == pytest.approx(p.flops / p.cell.recipe.tokens) for p in plan.cells)
    assert plan.planner.epochs == max(p.cell.recipe.steps for p in plan.cells) * 4 / plan.planner.windows


def test_a_cell_by_tokens_per_parameter_is_the_cell_of_as_many_steps() -> None:
    plan = plan_of(SMALL, *BY_RATIO)
    for planned in (plan.cells[0], plan.cells[-1]):
        fixed = plan_of(SMALL, f"training.steps={planned.cell.recipe.steps}", "training.batch=4")
        same = fixed.by_key(planned.cell.key)
        assert same is not None
        assert (same.seconds, same.flops, same.layout) == (planned.seconds, planned.flops, planned.layout)


def test_the_protocol_of_a_study_by_tokens_per_parameter_has_the_ratio_and_not_the_largest_size() -> None:
    plan = plan_of(SMALL, *BY_RATIO)
    assert plan_of(SMALL, *BY_RATIO, "frontier.budgets.max=50k").protocol == plan.protocol
    assert plan_of(SMALL, "training.tokens_per_parameter=21", BY_RATIO[1]).protocol != plan.protocol


def test_the_table_of_unequal_tokens_has_those_of_each_shape_and_both_ends_and_small_cells_are_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of(SMALL, *BY_RATIO)
    Console(width=400).print(plan_table(plan))
    shown = capsys.readouterr().out
    assert_named(shown, "30,720 to 492k", "20 per parameter", "492k 98.7G")
    assert any(note.startswith("120 steps: ") and "`training.batch: 2`" in note for note in plan.notes)
    smaller = plan_of(SMALL, BY_RATIO[0], "training.batch=2")
    assert min(p.cell.recipe.steps for p in smaller.cells) >= 200
    assert not any("`training.batch: " in note for note in smaller.notes)


def test_searches_plan_cells_by_tokens_per_parameter() -> None:
    crossing = plan_of(SMALL, *BY_RATIO, "search={sampler: crossing, max_cells: 10}")
    ratios = [p.tokens / p.cell.shape.budget_params for p in crossing.pool]
    assert ratios == pytest.approx([20] * len(ratios), rel=0.01)
    assert crossing.tokens == sum(sorted((p.tokens for p in crossing.pool), reverse=True)[:10])
    frontier = plan_of(SMALL, *BY_RATIO, "search={sampler: frontier, candidates: 1}")
    assert frontier.tokens == pytest.approx(sum(p.tokens for p in frontier.cells) / 3)


def test_the_tokens_of_a_search_with_a_limit_of_flops_are_those_of_its_cells_if_all_are_equal() -> None:
    plan = plan_of(SMALL, "search={sampler: crossing, max_flops: 1e12}")
    assert 0 < plan.cell_count < len(plan.pool)
    assert plan.tokens == plan.cell_count * plan.planner.recipe.tokens


# Several numbers of tokens


LEVELS = "training.tokens=[200k, 400k, 800k]"


def test_several_numbers_of_tokens_give_a_cell_for_each_shape_number_and_seed_each_that_of_a_study_of_its_own() -> (
    None
):
    plan = plan_of(SMALL, LEVELS)
    assert len(plan.cells) == plan.cell_count == 3 * 45
    assert sorted({p.cell.recipe.steps for p in plan.cells}) == [195, 391, 781]
    assert len({p.title for p in plan.cells}) == len(plan.cells)
    assert plan.tokens == sum(p.tokens for p in plan.cells) == 45 * (195 + 391 + 781) * 1024
    order = [(p.budget, p.cell.shape.depth, p.tokens, p.cell.seed) for p in plan.cells]
    assert order == sorted(order)
    one = plan_of(SMALL, "training.tokens=400k")
    assert {p.cell.key for p in one.cells} <= {p.cell.key for p in plan.cells}
    assert plan.planned("L2-d16-s1 400k tokens").cell == one.planned("L2-d16-s1").cell
    with pytest.raises(SpecError, match="3 cells") as refused:
        plan.planned("L2-d16-s1")
    assert f"{one.planned('L2-d16-s1').cell.key} (L2-d16-s1 400k tokens)" in str(refused.value)


def test_the_protocol_stays_when_a_number_of_tokens_is_added() -> None:
    assert plan_of(SMALL, LEVELS).protocol == plan_of(SMALL, "training.tokens=[200k, 400k]").protocol
    assert plan_of(SMALL, LEVELS).protocol != plan_of(SMALL, "training.tokens=400k").protocol


def test_the_table_has_a_line_for_each_shape_and_number_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=400).print(plan_table(plan_of(SMALL, LEVELS)))
    shown = capsys.readouterr().out
    assert "200k, 400k and 800k" in shown
    assert shown.count("L4 d22 h2") == 3


# Equal FLOPs

AT_FLOPS = ("frontier.flops=[2e9, 8e9, 32e9]", "training.batch=4", "frontier.tolerance=0.25")


def test_every_cell_spends_its_compute_within_a_percent_by_the_exact_flops_of_its_shape() -> None:
    plan = plan_of(SMALL, *AT_FLOPS)
    assert {p.compute for p in plan.cells} == {2e9, 8e9, 3.2e10}
    for planned in plan.cells:
        cell = planned.cell
        per_token = family("gpt2").flops(cell.shape, cell.recipe, plan.vocabulary).training
        assert planned.flops == per_token * cell.recipe.tokens == pytest.approx(planned.compute, rel=0.01)
        assert planned.row()["compute"] == planned.compute
    assert "compute" not in plan_of(SMALL).cells[0].row()
    assert plan.tokens == sum(p.tokens for p in plan.cells)
    assert plan.planner.recipe.steps == max(p.cell.recipe.steps for p in plan.cells)


def test_a_shape_at_several_computes_has_a_cell_of_each_with_a_name_and_cost_of_its_own() -> None:
    plan = plan_of(SMALL, *AT_FLOPS)
    shapes = [p.cell.shape for p in plan.cells if p.cell.seed == 0]
    assert len(set(shapes)) < len(shapes)
    assert len({p.cell.key for p in plan.cells}) == len({p.title for p in plan.cells}) == len(plan.cells)
    several = [p for p in plan.cells if shapes.count(p.cell.shape) > 1 and p.cell.seed == 0]
    for one in several:
        alone = plan_of(SMALL, f"training.steps={one.cell.recipe.steps}", "training.batch=4")
        same = alone.planner.cell(FrontierShape(one.budget, one.cell.shape), 1.0, 0)
        assert (same.cell, same.flops, same.seconds) == (one.cell, one.flops, one.seconds)
    order = [(p.compute, p.budget, p.cell.shape.depth, p.cell.seed) for p in plan.cells]
    assert order == sorted(order)


def test_the_protocol_at_equal_flops_has_the_rule_and_neither_flops_nor_sizes() -> None:
    plan = plan_of(SMALL, *AT_FLOPS)
    more = ("frontier.flops=[2e9, 8e9]", "frontier.spread=[0.5, 1, 2]", "training.tokens_per_parameter=10")
    assert plan_of(SMALL, *AT_FLOPS, *more).protocol == plan.protocol
    assert plan.protocol not in (plan_of(SMALL).protocol, plan_of(SMALL, *BY_RATIO).protocol)


def test_the_table_at_equal_flops_has_a_block_for_each_compute(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(SMALL, *AT_FLOPS)
    Console(width=400).print(plan_table(plan))
    shown = capsys.readouterr().out
    assert "compute" in shown.splitlines()[2]
    assert "budget" not in shown
    assert [line.split()[0] for line in shown.splitlines() if re.match(r" *[\d.]+e\d+ +L", line)] == [
        "2e9",
        "8e9",
        "3.2e10",
    ]
    assert "equal FLOPs: 2e9 to 3.2e10" in shown
    assert plan.to_json()["cells"][0]["compute"] == 2e9


# Equal training time

IN_TIME = (
    "frontier.minutes={0.05: {L1-d8: 2e5, L1-d16: 150k, L2-d8: 1e5}, 0.5: {L1-d8: 2e5, L1-d16: 150k, L2-d8: 1e5}}",
    "training.batch=4",
)


def test_every_cell_has_the_tokens_of_its_minutes_at_the_speed_of_its_shape() -> None:
    plan = plan_of(SMALL, *IN_TIME)
    speeds = {(1, 8): 2e5, (1, 16): 1.5e5, (2, 8): 1e5}
    assert {p.compute for p in plan.cells} == {0.05, 0.5}
    for planned in plan.cells:
        shape = planned.cell.shape
        tokens = 60 * planned.compute * speeds[shape.depth, shape.width]
        assert planned.tokens == pytest.approx(tokens, rel=0.01)
        assert (planned.row()["compute"], planned.row()["compute_unit"]) == (planned.compute, "minutes")
    assert len({p.cell.key for p in plan.cells}) == len({p.title for p in plan.cells}) == len(plan.cells)
    assert any("depth 2 has 1 size at 3.0 s" in note for note in plan.notes)
    assert "compute_unit" not in plan_of(SMALL, *AT_FLOPS).cells[0].row()


def test_speeds_far_from_those_of_the_plan_are_noted() -> None:
    def noted(factor: float) -> bool:
        cells = plan_of(SMALL, *IN_TIME).cells
        speeds = {}
        for planned in cells:
            shape, tokens = planned.cell.shape, planned.tokens
            speeds[f"L{shape.depth}-d{shape.width}"] = factor * tokens / planned.seconds
        written = ", ".join(f"{name}: {speed}" for name, speed in speeds.items())
        plan = plan_of(SMALL, f"frontier.minutes={{0.05: {{{written}}}, 0.5: {{{written}}}}}", IN_TIME[1])
        return any(
            "the speeds of `frontier.minutes` may be those of another machine" in note for note in plan.notes
        )

    assert [noted(factor) for factor in (0.2, 1.0, 5.0)] == [True, False, True]


def test_another_speed_is_another_cell_and_the_same_protocol() -> None:
    faster = (IN_TIME[0].replace("L2-d8: 1e5", "L2-d8: 2e5"), IN_TIME[1])
    one, two = plan_of(SMALL, *IN_TIME), plan_of(SMALL, *faster)
    same = {p.cell.key for p in one.cells} & {p.cell.key for p in two.cells}
    assert same == {p.cell.key for p in one.cells if p.cell.shape.depth == 1}
    assert one.protocol == two.protocol != plan_of(SMALL, *AT_FLOPS).protocol


def test_the_table_at_equal_time_has_a_block_for_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=400).print(plan_table(plan_of(SMALL, *IN_TIME)))
    shown = capsys.readouterr().out
    assert re.findall(r"^ *([\d.]+ (?:s|min)) +L", shown, re.MULTILINE) == ["3.0 s", "30 s"]
    assert "equal training time: 3.0 s to 30 s at the measured speed" in shown
    assert "FLOPs per token" not in shown


# Networks


def notes(*overrides: str) -> str:
    return "\n".join(plan_of("llama-text", *overrides).notes)


def test_a_plan_names_the_network_and_weights_that_n_does_not_count() -> None:
    assert "network: Llama, tied embeddings" in notes()
    assert "d²" not in notes()
    assert "a layer has 14.5·d² weights" in notes("frontier.d_ff=3.5")
    without = "\n".join(plan_of(SMALL, "frontier.d_ff=0").notes)
    assert "network: GPT-2, tied embeddings; without feed-forward networks, N = 4·L·d²" in without
    assert "d²" not in "\n".join(plan_of(SMALL).notes)
    assert "network: Qwen3, untied embeddings, rotary base 500000" in notes(
        "training.network=qwen3", "training.embeddings=untied", "training.rope_theta=500_000"
    )


def test_a_grammar_with_fixed_positions_is_flagged_for_rotary_families_alone() -> None:
    def is_flagged(*overrides: str) -> bool:
        return any("rotary" in note for note in plan_of("quickstart", *overrides).notes)

    rotary = ["frontier.width_multiple=4", "frontier.tolerance=0.6"]
    assert is_flagged("training.network=llama", *rotary)
    assert not is_flagged()
    assert "rotary positions do not show" not in notes()


def test_options_of_a_network_are_columns_of_its_cells_and_of_no_others() -> None:
    row = plan_of("llama-text", "frontier.kv_heads=1", "training.embeddings=untied").cells[0].row()
    assert (row["network"], row["kv_heads"], row["embeddings"]) == ("llama", 1, "untied")
    assert not {"network", "kv_heads", "head_dim", "d_ff", "embeddings", "rope_theta"} & set(
        plan_of("quickstart").cells[0].row()
    )
    assert plan_of("quickstart", "frontier.d_ff=0").cells[0].row()["d_ff"] == 0
    exact = family("llama").parameters(
        Shape(depth=1, width=32, heads=2, kv_heads=1), plan_of("llama-text").planner.recipe, 257
    )
    assert row["total_params"] == exact.total + 257 * 32


def test_a_depth_with_too_few_sizes_at_a_compute_is_noted() -> None:
    few = plan_of(SMALL, *AT_FLOPS[:2], "frontier.tolerance=0.05", "training.seeds=1")
    sizes = [(p.compute, p.cell.shape.depth) for p in few.cells]
    short = {place for place in sizes if sizes.count(place) < 3}
    noted = [note for note in few.notes if "needs 3" in note]
    assert len(noted) == len(short) > 0
    assert not any("needs 3" in note for note in plan_of(SMALL, *AT_FLOPS).notes)
