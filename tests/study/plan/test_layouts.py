"""How many devices a cell takes: the fewest its memory fits, what the spec says, and what is refused."""

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.errors import SpecError
from study.plan.cost import data_exchange_seconds, tensor_exchange_seconds
from study.plan.layouts import (
    GPUS_OF_A_MACHINE,
    PROCESS_BYTES,
    TOKENS_AT_ONCE,
    ClusterCapacity,
    LayoutPlanner,
    divisors,
)
from study.plan.plan import Plan, by_hand, make_plan, wall_seconds
from study.plan.table import plan_table
from study.spec.devices import DEVICES, usable_memory
from study.spec.resources import ResourcesSection
from study.spec.study import load_spec
from tests.named import assert_named, refused
from tests.study.small import SMALL
from trainables.cell import Cell, Recipe, Shape
from trainables.layout import Layout, default_zero
from trainables.model import counts
from trainables.model.counts import memory

VOCABULARY = 50_000
SHAPE = Shape(depth=6, width=8192, heads=128)
WIDE = """
name: wide
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 5, synonyms: 2, grammar_seed: 0}
frontier: {head_dim: 64, widths: {6: [512, 8192], 12: [8192]}}
training: {steps: 1000, batch: 64, context: 1024, lr: {rule: width, base: 0.3}, precision: bf16, seeds: 1}
resources: {device: a100-40gb, slots: 64, price_per_hour: 2}
"""


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"steps": 10, "batch": 64, "context": 1024, "precision": "bf16", **changes})


def layout_planner(one: Recipe | None = None, capacity: int = 64, **resources: Any) -> LayoutPlanner:
    """Under a section of resources, with room for so many ranks at a time."""
    section = ResourcesSection(**{"device": "a100-40gb", "shard_vocabulary": "never", **resources})
    return LayoutPlanner(section, DEVICES[section.device], capacity, one or recipe(), VOCABULARY)


def must_fit(planner: LayoutPlanner, shape: Shape) -> None:
    planner.check(shape, planner.choose(shape))


def refusal(shape: Shape, capacity: int = 64, **resources: Any) -> str:
    with pytest.raises(SpecError) as caught:
        must_fit(layout_planner(None, capacity, **resources), shape)
    return str(caught.value)


def wide(tmp_path: Path, *overrides: str) -> Plan:
    path = tmp_path / "wide.yaml"
    path.write_text(WIDE)
    return make_plan(load_spec(str(path), overrides)).trainable()


# The fewest devices that fit


@pytest.mark.parametrize(
    ("depth", "width", "heads"),
    [
        (2, 1024, 16),
        (6, 8192, 128),
        (12, 8192, 128),
        (6, 8192, 2),
        (12, 4608, 3),
        (24, 6144, 96),
        (3, 9216, 9),
    ],
)
@pytest.mark.parametrize("activation_checkpointing", ["never", "always", "auto"])
@pytest.mark.parametrize("zero", ["auto", 3])
def test_auto_is_the_first_that_fits_of_all_layouts_there_are(
    depth: int, width: int, heads: int, activation_checkpointing: str, zero: int | str
) -> None:
    shape, one, slots = Shape(depth=depth, width=width, heads=heads), recipe(), 16
    usable = usable_memory(DEVICES["a100-40gb"])
    kept = {"never": [False], "always": [True], "auto": [False, True]}[activation_checkpointing]
    # The plain truth: every combination whatever, the ones that can be trained, in the order of preference.
    fitting = [
        layout
        for tensor, data, again, micro in itertools.product(
            range(1, 9), range(1, 17), kept, [64, 32, 16, 8, 4, 2, 1]
        )
        if tensor * data <= slots and heads % tensor == 0 and 64 % data == 0 and 64 // data % micro == 0
        for layout in [
            Layout(
                tensor_parallel=tensor,
                data_parallel=data,
                zero=3 if zero == 3 else default_zero(one, tensor * data),
                micro_batch=micro,
                activation_checkpointing=again,
            )
        ]
        if memory(shape, VOCABULARY, one, layout, on_gpu=True).total <= usable
    ]
    order = sorted(
        fitting,
        key=lambda x: (x.ranks, x.tensor_parallel, x.activation_checkpointing, -(x.micro_batch or 0)),
    )
    planner = layout_planner(
        one, slots, activation_checkpointing=activation_checkpointing, zero=zero, compile="never"
    )
    if not order:
        with refused(f"depth {depth}, width {width}"):
            must_fit(planner, shape)
        return
    choice = planner.choose(shape)
    assert choice.layout == order[0]
    assert choice.cost.memory == memory(shape, VOCABULARY, one, order[0], on_gpu=True)
    choice.layout.check(shape, one)


def test_a_shape_too_large_for_one_device_is_shared_among_the_fewest_it_fits_and_says_why() -> None:
    choice = layout_planner().choose(SHAPE)
    tensor, data = choice.layout.tensor_parallel, choice.layout.data_parallel
    assert tensor * data > 1
    assert choice.cost.memory.total <= usable_memory(DEVICES["a100-40gb"])
    alone = memory(SHAPE, VOCABULARY, recipe(), Layout(micro_batch=1), on_gpu=True).total / 1e9
    degrees = f"tensor parallel {tensor}" + (f" x data parallel {data}" if data > 1 else "")
    assert_named(choice.flags[0], degrees, f"{alone:.3g} GB", "36 GB")


def test_the_batch_is_cut_down_to_one_sequence_before_more_devices_are_taken() -> None:
    shape = Shape(depth=24, width=2048, heads=32)
    whole = memory(shape, VOCABULARY, recipe(), Layout(), on_gpu=True).total
    assert whole > usable_memory(DEVICES["a100-40gb"])
    choice = layout_planner().choose(shape)
    assert choice.layout.ranks == 1
    pieces = choice.layout.pieces(recipe())
    assert f"batch in {pieces} pieces of {choice.layout.micro_batch}" in choice.flags


def test_auto_takes_tensor_parallelism_only_where_a_device_does_not_hold_what_the_groups_do_not_share() -> (
    None
):
    shape = Shape(depth=6, width=8192, heads=2)
    choice = layout_planner(zero=3).choose(shape)
    assert (choice.layout.tensor_parallel, choice.layout.zero) == (1, 3)
    choice = layout_planner().choose(shape)
    assert (choice.layout.tensor_parallel, choice.layout.zero) == (2, 1), (
        "weights and gradients are whole in a group"
    )
    # The heads allow no more than two, so groups have to share the rest.
    assert choice.layout.data_parallel > 1
    assert choice.flags[0].startswith(f"tensor parallel 2 x data parallel {choice.layout.data_parallel}: ")


def test_auto_keeps_ranks_that_share_matrices_on_one_machine() -> None:
    shape = Shape(depth=16, width=8192, heads=128)
    assert layout_planner().choose(shape).layout.tensor_parallel == GPUS_OF_A_MACHINE
    assert layout_planner(tensor_parallel=16).choose(shape).layout.tensor_parallel == 16


def test_auto_takes_no_more_devices_together_than_a_cluster_has_in_one_machine() -> None:
    """On a pool of machines of one GPU it chose two that share matrices, and was then refused."""
    narrow = Shape(depth=16, width=4096, heads=64)

    def degrees(largest: int, shape: Shape = narrow, **asked: Any) -> tuple[int, int]:
        cluster = ClusterCapacity(devices=64, memory=0, together=largest)
        planner = replace(layout_planner(**asked), cluster=cluster)
        must_fit(planner, shape)
        layout = planner.choose(shape).layout
        return layout.tensor_parallel, layout.data_parallel

    assert degrees(1)[0] == 1
    assert degrees(1)[1] > 1
    assert degrees(2)[0] == 2
    assert degrees(1, tensor_parallel=4)[0] == 4, "what is asked for is looked at by `check_capacity`"
    with refused("16 devices"):
        degrees(1, Shape(depth=16, width=8192, heads=128), data_parallel=1)


def test_a_plan_for_a_cluster_knows_its_largest_machine(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(WIDE)
    spec = load_spec(str(path), ["resources.slots=auto", "resources.zero=3"])

    def most(together: int) -> tuple[int, bool]:
        plan = make_plan(spec, capacity=ClusterCapacity(64, 0, together))
        apart = any("need several machines" in note for note in plan.notes)
        return max(planned.layout.tensor_parallel for planned in plan.cells), apart

    assert (most(1), most(8)) == ((1, True), (8, False))


def test_activations_are_recomputed_where_nothing_else_fits_on_as_few_devices() -> None:
    shape = Shape(depth=48, width=1024, heads=16)
    one = recipe(context=16_384)
    assert layout_planner(one).choose(shape).layout.ranks > 1
    choice = layout_planner(one, activation_checkpointing="auto").choose(shape)
    assert choice.layout.ranks == 1
    assert choice.layout.activation_checkpointing
    assert any(flag.startswith("recomputed: ") for flag in choice.flags)
    assert (
        not layout_planner(activation_checkpointing="auto")
        .choose(Shape(depth=2, width=64, heads=2))
        .layout.activation_checkpointing
    )
    always = layout_planner(activation_checkpointing="always").choose(Shape(depth=2, width=64, heads=2))
    assert always.layout.activation_checkpointing
    assert "activations recomputed" in always.flags


def test_layers_are_compiled_where_the_time_pays_for_it_and_the_loss_stays() -> None:
    small, large = Shape(depth=2, width=64, heads=2), Shape(depth=24, width=2048, heads=32)
    hour = recipe(steps=10_000)

    def is_compiled(one: Recipe, shape: Shape, parts: str = "layers and loss", **resources: Any) -> bool:
        choice = layout_planner(one, capacity=8, **resources).choose(shape)
        flags = [flag.partition(" compiled")[0] for flag in choice.flags if " compiled" in flag]
        assert flags == ([parts] if choice.layout.compiled else [])
        is_refused = any(flag.startswith("nothing to compile") for flag in choice.flags)
        assert is_refused is (resources.get("compile") == "always" and not choice.layout.compiled)
        assert (choice.cost.compile_seconds > 0) is choice.layout.compiled
        return choice.layout.compiled

    assert is_compiled(hour, large)
    assert not is_compiled(recipe(), large)
    assert not is_compiled(recipe(steps=1000), small)
    assert not is_compiled(hour, large, compile="never")
    assert is_compiled(recipe(), small, compile="always")
    cpu = {"device": "cpu", "micro_batch": 1}
    assert not is_compiled(hour, small, **cpu)
    assert is_compiled(hour, small, **cpu, compile="always")
    assert not is_compiled(hour, large, compile="always", tensor_parallel=2, shard_vocabulary="always")
    for otherwise in ({"tensor_parallel": 2}, {"zero": 3, "data_parallel": 2}):
        assert is_compiled(hour, large, "loss", compile="always", **otherwise)
    assert is_compiled(recipe(steps=10_000, dropout=0.1), large, "loss", compile="always")
    assert not is_compiled(recipe(context=2), small, compile="always", tensor_parallel=2, micro_batch=1)


@pytest.mark.parametrize("measured", [None, 3.0, 40.0])
def test_cells_are_compiled_from_five_times_the_seconds_of_compiling_on_which_their_time_includes(
    measured: float | None,
) -> None:
    gpu = DEVICES["a100-40gb"]
    gpu = gpu if measured is None else replace(gpu, seconds_to_compile=measured)
    shape, planner = Shape(depth=12, width=768, heads=12), replace(layout_planner(), device=gpu)
    step = planner.choose(shape).cost.step_seconds
    most = int(5 * gpu.seconds_to_compile / step)
    short, long = (replace(planner, recipe=recipe(steps=steps)).choose(shape) for steps in (most, most + 1))
    assert (short.layout.compiled, long.layout.compiled) == (False, True)
    assert short.cost.seconds(0, 0) == pytest.approx(most * step)
    assert long.cost.seconds(0, 0) == pytest.approx((most + 1) * step + gpu.seconds_to_compile)
    (flag,) = set(long.flags) - set(short.flags)
    assert f"{gpu.seconds_to_compile:g} s" in flag


@pytest.mark.parametrize(
    ("precision", "width", "kernel"),
    [
        ("bf16", 512, "flash"), ("bf16", 2 * 264, "efficient"), ("bf16", 2 * 258, "math"),
        ("fp32", 2 * 264, ""), ("fp32", 2 * 258, "math"),
    ],
)  # fmt: skip
def test_heads_without_a_fast_kernel_are_flagged_on_a_gpu_and_their_scores_counted(
    monkeypatch: pytest.MonkeyPatch, precision: str, width: int, kernel: str
) -> None:
    shape, one = Shape(depth=4, width=width, heads=2), recipe(precision=precision, steps=1)
    choice = layout_planner(one).choose(shape)
    flags = [flag for flag in choice.flags if flag.startswith("heads ")]
    assert len(flags) == (kernel in ("efficient", "math"))
    needed = choice.cost.memory.total
    with monkeypatch.context() as patched:
        patched.setattr(counts, "attention_kernel", lambda *_: "flash")
        fused = memory(shape, VOCABULARY, one, choice.layout, on_gpu=True).total
    assert (needed > fused) == (kernel == "math")
    if flags:
        others = Shape(depth=6, width=width + 16, heads=2)
        assert flags[0] in layout_planner(one).choose(others).flags, "one line for all such shapes"
    assert not [
        flag for flag in layout_planner(one, 1, device="cpu").choose(shape).flags if flag.startswith("heads")
    ]
    analysed = recipe(precision=precision, steps=1, network="analysed")
    assert not [flag for flag in layout_planner(analysed).choose(shape).flags if flag.startswith("heads")]


def test_the_json_of_a_plan_has_the_seconds_of_compiling(tmp_path: Path) -> None:
    plans = [
        wide(tmp_path, f"resources.compile={choice}", "frontier.widths={6: [512]}")
        for choice in ("always", "never")
    ]
    (with_it, without) = (plan.to_json()["cells"][0] for plan in plans)
    assert (with_it["compile_seconds"], without["compile_seconds"]) == (12.0, 0.0)
    assert with_it["seconds"] - without["seconds"] == pytest.approx(12.0)


def test_the_vocabulary_is_shared_by_default_but_for_tasks(tmp_path: Path) -> None:
    two = ("frontier.widths={6: [8192]}", "resources.tensor_parallel=2", "resources.device=b200-180gb")
    task = "data={kind: hops, hops: [1, 2]}"
    layouts = [wide(tmp_path, *two, *more).cells[0].layout for more in ((), (task,))]
    assert [layout.shard_vocabulary for layout in layouts] == [True, False]
    assert not wide(tmp_path, *two, "resources.shard_vocabulary=never").cells[0].layout.shard_vocabulary
    assert not wide(tmp_path, two[0], two[2]).cells[0].layout.shard_vocabulary, "one rank"


def test_the_work_of_a_rank_counts_what_every_rank_computes() -> None:
    shape, one = Shape(depth=12, width=768, heads=12), recipe()
    planner = layout_planner()
    alone, two, shared = (
        planner.cost(shape, Layout(micro_batch=2, **layout))
        for layout in ({}, {"tensor_parallel": 2}, {"tensor_parallel": 2, "shard_vocabulary": True})
    )
    flops, tokens = alone.flops, 2 * one.context
    assert alone.rank_flops == tokens * flops.training
    assert shared.rank_flops == tokens * (flops.training + 3 * flops.norms) / 2
    assert two.rank_flops == shared.rank_flops + tokens * 3 * flops.head / 2
    # Layers may be computed again, logits never.
    again = planner.cost(shape, Layout(micro_batch=2, activation_checkpointing=True))
    assert again.rank_flops == tokens * (4 * flops.forward - flops.head)
    large = planner.cost(shape, Layout())
    assert large.rank_flops == one.batch * one.context * flops.training


def test_a_small_shape_stays_on_one_device() -> None:
    choice = layout_planner(recipe(context=128)).choose(Shape(depth=2, width=256, heads=4))
    assert choice.layout == Layout(micro_batch=64)
    assert choice.flags == ()


def test_ranks_on_a_cpu_share_its_memory_among_the_slots() -> None:
    planner = layout_planner(recipe(precision="fp32"), 4, device="cpu")
    assert planner.usable == usable_memory(DEVICES["cpu"], 4) - PROCESS_BYTES
    choice = planner.choose(Shape(depth=2, width=64, heads=2))
    assert choice.layout == Layout(zero=0, micro_batch=choice.layout.micro_batch)


# What the spec says


def test_degrees_of_the_spec_are_taken() -> None:
    shape = Shape(depth=2, width=256, heads=4)
    choice = layout_planner(
        tensor_parallel=2, data_parallel=4, zero=2, micro_batch=8, shard_vocabulary="always"
    ).choose(shape)
    assert choice.layout == Layout(
        tensor_parallel=2, data_parallel=4, zero=2, micro_batch=8, shard_vocabulary=True
    )
    assert choice.flags[0] == "tensor parallel 2 x data parallel 4, set in `resources`"
    assert "batch in 2 pieces of 8 in each of 4 groups" in choice.flags


def test_the_vocabulary_is_shared_only_where_there_are_ranks_to_share_it() -> None:
    planner = layout_planner(tensor_parallel={"min_width": {2: 512}}, shard_vocabulary="always")
    assert not planner.choose(Shape(depth=2, width=256, heads=4)).layout.shard_vocabulary
    assert planner.choose(Shape(depth=2, width=512, heads=4)).layout.shard_vocabulary


@pytest.mark.parametrize(("width", "degree"), [(256, 1), (508, 1), (512, 2), (1020, 2), (1024, 4), (4096, 4)])
def test_a_degree_by_width(width: int, degree: int) -> None:
    planner = layout_planner(tensor_parallel={"min_width": {4: 1024, 2: 512}})
    assert planner.choose(Shape(depth=2, width=width, heads=4)).layout.tensor_parallel == degree


def test_the_stage_is_the_cheapest_that_is_right_unless_said() -> None:
    shape, fp32 = Shape(depth=2, width=256, heads=4), recipe(precision="fp32")
    assert layout_planner(fp32).choose(shape).layout.zero == 0
    assert layout_planner(fp32, tensor_parallel=2).choose(shape).layout.zero == 1
    assert layout_planner().choose(shape).layout.zero == 0
    assert layout_planner(fp32, zero=0, tensor_parallel=2).choose(shape).layout.zero == 0


# What is refused


NARROW = Shape(depth=2, width=256, heads=4)
#: Shape, slots, resources, and what the refusal names: keys, numbers, the way out.
REFUSED: list[tuple[Shape, int, dict[str, Any], tuple[str, ...]]] = [
    (Shape(depth=6, width=4096, heads=2), 64, {"tensor_parallel": 4},
     ("tensor_parallel 4", "2 heads", "depth 6, width 4096", "`{min_width: {4: WIDTH}}`", "`frontier.head_dim: 64`")),
    # A head width of 64 would give fewer heads than two.
    (Shape(depth=6, width=64, heads=2), 64, {"tensor_parallel": 4}, ("a smaller `frontier.head_dim`",)),
    (SHAPE, 64, {"data_parallel": 3}, ("data_parallel 3", "64 sequences")),
    (NARROW, 64, {"micro_batch": 7}, ("micro_batch 7", "64 sequences")),
    (NARROW, 64, {"micro_batch": 32, "data_parallel": 4},
     ("micro_batch 32", "16 sequences", "batch of 64", "data_parallel 4")),
    (NARROW, 64, {"micro_batch": 128}, ("micro_batch 128",)),
    (SHAPE, 4, {"tensor_parallel": 4, "data_parallel": 2},
     ("`tensor_parallel` 4", "`data_parallel` 2", "8 devices", "depth 6, width 8192", "is 4 (auto", "`slots` to 8")),
    (Shape(depth=12, width=8192, heads=2), 8, {},
     ("a100-40gb", "depth 12, width 8192", "36 GB", "2 heads", "8 slots", "at most 8", "`frontier.head_dim: 64`")),
    (Shape(depth=48, width=20_000, heads=2), 2, {"device": "cpu"},
     ("`resources.device` cpu", "depth 48, width 20000", "2 slots")),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "slots", "resources", "named"), REFUSED)
def test_what_no_layout_can_train_is_refused_with_its_keys_numbers_and_way_out(
    shape: Shape, slots: int, resources: dict[str, Any], named: tuple[str, ...]
) -> None:
    assert_named(refusal(shape, slots, **resources), *named)


def test_only_slots_that_are_not_set_are_named_auto() -> None:
    assert "(auto" not in refusal(SHAPE, 4, tensor_parallel=8, slots=4)


@pytest.mark.parametrize(
    ("shape", "slots", "resources"),
    [
        (SHAPE, 64, {"tensor_parallel": 1, "data_parallel": 1}),
        (Shape(depth=12, width=8192, heads=2), 4, {}),
        (Shape(depth=24, width=8192, heads=128), 8, {}),
        (SHAPE, 1, {}),
        (Shape(depth=48, width=1024, heads=16), 1, {"micro_batch": 64}),
    ],
)
def test_every_way_out_that_is_named_is_one(shape: Shape, slots: int, resources: dict[str, Any]) -> None:
    message = refusal(shape, slots, **resources)
    tried = 0
    for key, value in (
        *(
            ("tensor_parallel", "auto"),
            ("data_parallel", "auto"),
            ("micro_batch", "auto"),
            ("activation_checkpointing", "auto"),
        ),
        *(("shard_vocabulary", "always"), ("zero", 3), ("tensor_parallel", 16)),
    ):
        if f"`resources.{key}: {value}`" in message:
            must_fit(layout_planner(None, slots, **{**resources, key: value}), shape)
            tried += 1
    if "`resources.slots: " in message:
        more = int(message.split("`resources.slots: ")[1].split("`")[0])
        heads = shape.width // 64 if "`frontier.head_dim: 64`" in message else shape.heads
        must_fit(layout_planner(None, more, **resources), shape.model_copy(update={"heads": heads}))
        tried += 1
    if "a larger device (" in message:
        device = message.split("a larger device (")[1].split(",")[0].split(")")[0]
        must_fit(layout_planner(None, slots, **{**resources, "device": device}), shape)
        tried += 1
    assert tried


# The plan


def test_the_plan_shows_degree_memory_and_why(tmp_path: Path) -> None:
    from rich.console import Console

    plan = wide(tmp_path, "resources.slots=8")
    degrees = {(p.cell.shape.depth, p.cell.shape.width): p.layout.tensor_parallel for p in plan.cells}
    assert degrees[6, 512] == 1
    assert 1 < degrees[6, 8192] <= degrees[12, 8192] <= 8
    for row, planned in zip(json.loads(json.dumps(plan.to_json()))["cells"], plan.cells, strict=True):
        assert row["tensor_parallel"] == planned.layout.tensor_parallel
        assert row["ranks"] == row["tensor_parallel"] * row["data_parallel"]
        assert row["activation_checkpointing"] is False
        assert row["shard_vocabulary"] is (row["tensor_parallel"] > 1)
        assert any("on one device" in flag for flag in row["flags"]) == (row["ranks"] > 1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(plan_table(plan))
    text = console.export_text()
    assert all(flag in " ".join(text.split()) for planned in plan.cells for flag in planned.flags)
    assert "TP: " in text
    narrow = wide(tmp_path, "resources.slots=8", "frontier.widths={6: [512]}")
    assert ["225 GB/s" in " ".join(of.notes) for of in (plan, narrow)] == [True, False], "the links of gangs"


def test_a_narrow_terminal_still_shows_degree_memory_and_time(tmp_path: Path) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    plan = wide(tmp_path, "resources.data_parallel=2", "resources.slots=16")
    console.print(plan_table(plan))
    lines = [line.split() for line in console.export_text().splitlines() if " d8192 " in line]
    assert len(lines) == 2
    for words, planned in zip(lines, plan.cells[1:], strict=True):
        assert f"{planned.layout.tensor_parallel}x2" in words
        assert f"{planned.memory_bytes / 1e9:.3g}GB" in words


def test_time_and_cost_count_every_rank(tmp_path: Path) -> None:
    narrow = "frontier.widths={6: [512]}"
    one, two = (wide(tmp_path, narrow, f"resources.tensor_parallel={n}").cells[0] for n in (1, 2))
    assert two.layout.ranks == 2
    assert two.device_seconds == 2 * two.seconds
    assert two.cost == pytest.approx(2 * two.device_seconds / 3600)
    assert one.cost == pytest.approx(2 * one.seconds / 3600)
    assert two.flops == one.flops
    plan = wide(tmp_path, narrow, "resources.tensor_parallel=2", "resources.slots=2", "training.seeds=3")
    assert plan.device_hours == pytest.approx(3 * two.device_seconds / 3600)
    assert plan.hours == pytest.approx(3 * two.seconds / 3600)


def test_a_large_cell_is_nearly_as_many_times_faster_as_it_has_ranks(tmp_path: Path) -> None:
    overrides = ("frontier.widths={6: [4096]}", "resources.device=h100-80gb")
    seconds = [
        wide(tmp_path, *overrides, f"resources.tensor_parallel={n}").cells[0].seconds for n in (1, 2, 4)
    ]
    assert 1.4 < seconds[0] / seconds[1] < 2
    assert 1.4 < seconds[1] / seconds[2] < 2
    again = wide(tmp_path, *overrides, "resources.activation_checkpointing=always").cells[0].seconds
    assert 1.2 < again / seconds[0] < 4 / 3 + 0.01


def test_exchanges_take_the_time_of_what_is_sent() -> None:
    device, shape = DEVICES["a100-80gb"], Shape(depth=10, width=1000, heads=10)
    alone = Layout(zero=1)
    assert tensor_exchange_seconds(device, shape, 1000, "bf16", alone) == 0
    assert data_exchange_seconds(device, 10**9, alone) == 0
    two = Layout(tensor_parallel=2, zero=1)
    sent = 10 * 1000 * 1000 * (2 * 2 + 2 * 4)
    expected = sent / (300e9 * 0.75) + 40 * device.seconds_per_exchange
    assert tensor_exchange_seconds(device, shape, 1000, "bf16", two) == pytest.approx(expected)
    grouped = Layout(tensor_parallel=2, data_parallel=4, zero=1)
    expected = 2 * 3 / 4 * 10**9 / 2 * 4 / (300e9 * 0.75) + device.seconds_per_exchange
    assert data_exchange_seconds(device, 10**9, grouped) == pytest.approx(expected)
    third = grouped.model_copy(update={"zero": 3})
    assert data_exchange_seconds(device, 10**9, third) == pytest.approx(1.5 * expected)


def test_by_hand_is_the_command_that_trains_the_layout() -> None:
    assert by_hand(Layout(tensor_parallel=2, zero=1, micro_batch=4)) == (
        "torchrun --nproc-per-node 2 -m trainables CELL.json --tensor-parallel 2 --zero 1 --micro-batch 4"
    )
    text = by_hand(
        Layout(
            tensor_parallel=2, data_parallel=2, zero=3, activation_checkpointing=True, shard_vocabulary=True
        )
    )
    assert "--nproc-per-node 4" in text
    assert text.endswith("--zero 3 --activation-checkpointing --shard-vocabulary")
    assert by_hand(Layout(compiled=True)) == "python -m trainables CELL.json --zero 0 --compiled"


def test_a_cell_comes_with_the_command_that_trains_it(command: Any, tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text(WIDE)
    options = ("wide.yaml", "frontier.widths={6: [512]}", "resources.compile=never", "--cell", "L6-d512-s0")
    status, out, err = command("plan", *options, "resources.tensor_parallel=2")
    assert status == 0
    cell = Cell.model_validate_json(out)
    assert cell.shape.width == 512
    assert err.startswith("torchrun --nproc-per-node 2 -m trainables CELL.json --tensor-parallel 2 --zero 1 ")
    alone = "python -m trainables CELL.json --zero 0 --micro-batch 64  # trains it, with the cell above in CELL.json\n"
    assert command("plan", *options) == (0, out, alone)


def test_gangs_that_cannot_share_the_slots_take_longer() -> None:
    # Two gangs of two on three devices: one at a time, and the third device idles beside them.
    assert wall_seconds([(10, 2), (10, 2)], 3) == 20
    assert wall_seconds([(10, 2), (10, 2)], 4) == 10
    # Unless narrow cells use it.
    assert wall_seconds([(10, 2), (10, 2), (20, 1)], 3) == 20
    assert wall_seconds([(10, 2), (10, 2), (50, 1)], 3) == 30
    assert wall_seconds([], 2) == 0


def test_a_study_is_read_where_it_could_not_be_trained(tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text(WIDE)
    spec = load_spec(str(tmp_path / "wide.yaml"), ["resources.tensor_parallel=8", "resources.slots=1"])
    with refused("8 devices"):
        make_plan(spec).trainable()
    whole = load_spec(str(tmp_path / "wide.yaml"))
    keys = [planned.cell.key for planned in make_plan(whole).cells]
    assert [planned.cell.key for planned in make_plan(spec).cells] == keys


def test_shapes_that_a_search_would_add_and_that_fit_no_layout_are_left_out_of_what_is_trained() -> None:
    search = "search={sampler: crossing, max_cells: 20}"
    frontier = "frontier={depths: [2, 8], head_dim: 4, budgets: [6144, 24576], tolerance: 0.12}"
    plan = make_plan(load_spec(SMALL, [search, frontier, "resources.tensor_parallel=2", "resources.slots=2"]))
    trainable = plan.trainable()
    odd = {planned.cell.shape for planned in plan.more if planned.cell.shape.heads % 2}
    assert {(shape.depth, shape.heads) for shape in odd} == {(2, 5), (2, 7)}
    assert trainable.cells == plan.cells
    assert trainable.more == tuple(planned for planned in plan.more if planned.cell.shape not in odd)
    assert (len(plan.left_out), len(trainable.left_out)) == (0, 2)
    for shape in odd:
        assert any(f"L{shape.depth} d{shape.width}" in note for note in trainable.notes)


@pytest.mark.parametrize(("number", "expected"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (49, [1, 7, 49])])
def test_divisors(number: int, expected: list[int]) -> None:
    assert divisors(number) == tuple(expected)


@pytest.mark.parametrize("batch", [1, 12, 64, 97, 720])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_first_layout_that_fits_is_that_of_a_search_through_all(batch: int, zero: int) -> None:
    """Of tensor and data parallel degrees in their order, the largest micro-batch whose memory fits, up to a bound."""
    checked = set()
    for width, context in itertools.product((256, 2048, 8192), (128, 4096, 65_536)):
        shape = Shape(depth=6, width=width, heads=8)
        planner = layout_planner(recipe(batch=batch, context=context), capacity=8, zero=zero)
        every = sorted(
            (tensor * data, tensor, data, -piece)
            for tensor in (1, 2, 4, 8)
            for data in range(1, 9)
            if tensor * data <= 8 and batch % data == 0
            for piece in range(1, batch // data + 1)
            if batch // data % piece == 0 and (piece == 1 or piece * context <= TOKENS_AT_ONCE)
        )
        layouts = (
            Layout(tensor_parallel=tensor, data_parallel=data, zero=zero, micro_batch=-piece)
            for _, tensor, data, piece in every
        )
        fitting = (one for one in layouts if planner.cost(shape, one).memory.total <= planner.usable)
        expected = next(fitting, None)
        found = planner._first_fit(shape)
        assert (found and found.layout) == expected
        checked.add(expected and expected.ranks)
    assert len(checked) > 1
