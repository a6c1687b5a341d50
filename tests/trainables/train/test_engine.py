import math

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional

from tests.plain_gpt2 import PlainGPT2, PlainTrainer
from tests.trainables.train import golden
from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model import head
from trainables.model.build import build_model
from trainables.ranks.process_group import join
from trainables.train.engine import LINEAR, build_engine, clip_gradients, close_engine, schedule
from trainables.train.loop import train


@pytest.fixture(autouse=True)
def _process():
    join()


def test_schedule_warms_up_linearly_and_ends_at_the_floor():
    factor = schedule(Recipe(steps=100, batch=1, context=2, warmup=0.1, min_lr_ratio=0.1))
    assert [factor(step) for step in range(10)] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert factor(99) == pytest.approx(0.1)
    assert factor(54) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.5)))
    rates = [factor(step) for step in range(10, 100)]
    assert rates == sorted(rates, reverse=True)


def test_schedule_without_warmup_starts_just_below_the_peak():
    factor = schedule(Recipe(steps=1000, batch=1, context=2, warmup=0.0))
    assert 0.999 < factor(0) < 1
    assert factor(999) == pytest.approx(0, abs=1e-12)


def test_wsd_is_constant_between_warmup_and_decay_and_falls_by_the_square_root():
    recipe = Recipe(
        steps=100, batch=1, context=2, schedule="wsd", warmup_steps=10, decay=0.25, min_lr_ratio=0.1
    )
    factor = schedule(recipe)
    assert [factor(step) for step in range(10)] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert {factor(step) for step in range(10, 75)} == {1.0}
    falling = [0.1 + 0.9 * (1 - math.sqrt(done / 25)) for done in range(1, 26)]
    assert [factor(step) for step in range(75, 100)] == pytest.approx(falling)
    assert factor(99) == pytest.approx(0.1)


def test_wsd_of_two_lengths_is_equal_until_the_shorter_decays():
    short, long = (
        schedule(Recipe(steps=steps, batch=1, context=2, schedule="wsd", warmup_steps=3))
        for steps in (50, 80)
    )
    equal = [short(step) == long(step) for step in range(50)]
    assert equal == [True] * 40 + [False] * 10


@pytest.mark.parametrize(("depth", "width", "heads"), [(1, 8, 2), (2, 16, 2), (3, 24, 4)])
def test_training_equals_a_plain_loop(depth, width, heads):
    steps, vocabulary = 30, 11
    recipe = Recipe(steps=steps, batch=4, context=16)
    shape = Shape(depth=depth, width=width, heads=heads)
    model = build_model(shape, recipe, vocabulary, seed=0)
    plain_model = PlainGPT2(depth, width, heads, vocabulary, 16)
    plain_model.copy_from(model)
    plain = PlainTrainer(plain_model, lr=0.01, steps=steps, warmup=3)
    engine = build_engine(model, shape, recipe, 0.01)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, vocabulary, (4, 17), generator=generator)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        logits = engine(input_ids=x).logits
        loss = functional.cross_entropy(logits.view(-1, vocabulary), y.view(-1))
        engine.backward(loss)
        clip_gradients(engine, Layout(), recipe.grad_clip)
        engine.step()
        losses.append((float(loss.detach()), plain.step(x, y)))
    close_engine(engine)
    ours, theirs = zip(*losses, strict=True)
    # Two orders of summation in fp32, amplified over 30 steps; the first step agrees to the last bits.
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(set(ours)) == steps


def _engine(precision="fp32", layout=Layout()):
    recipe = Recipe(steps=4, batch=2, context=8, precision=precision)
    shape = Shape(depth=1, width=8, heads=2)
    return build_engine(build_model(shape, recipe, 5, 0), shape, recipe, 1e-3, layout)


def _step(engine):
    x = torch.zeros(2, 8, dtype=torch.long)
    output = engine(input_ids=x)
    engine.backward(functional.cross_entropy(output.logits.view(-1, 5).float(), x.view(-1)))
    engine.step()
    return output


def gradient(precision, layout, batch=64, autocast=False):
    """The gradient of a batch, by an engine or, with `autocast`, by plain torch."""
    recipe = Recipe(steps=4, batch=batch, context=16, precision=precision, grad_clip=0)
    shape = Shape(depth=2, width=32, heads=4)
    model = build_model(shape, recipe, 9, 0)
    tokens = torch.randint(0, 9, (batch, 16), generator=torch.Generator().manual_seed(0))
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, shift_labels=tokens).loss
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])
    engine = build_engine(model, shape, recipe, 1e-3, layout)
    for x in tokens.chunk(layout.pieces(recipe)):
        engine.backward(engine(input_ids=x, labels=x, shift_labels=x).loss)
        if layout.zero:
            engine.step()
    if layout.zero:
        # From the first moment after one step.
        moments = [
            engine.optimizer.optimizer.state[flat]["exp_avg"].flatten()
            for flat in engine.optimizer.single_partition_of_fp32_groups
        ]
        found = torch.cat(moments) / (1 - recipe.beta1)
    else:
        found = torch.cat([p.grad.flatten() for p in engine.module.parameters()])
    close_engine(engine)
    return found


def test_bf16_is_autocast_over_fp32_weights():
    """At stage 0 the gradient has the bits of plain torch under `torch.autocast`, and is 1 % from that of fp32."""
    ours, plain = gradient("bf16", Layout()), gradient("bf16", Layout(), autocast=True)
    assert torch.equal(ours, plain)
    exact = gradient("fp32", Layout())
    assert 0.002 < float((ours - exact).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_in_bf16_weights_gradients_and_moments_are_fp32_at_every_stage(zero):
    engine = _engine("bf16", Layout(zero=zero))
    assert _step(engine).logits.dtype == torch.bfloat16
    assert {p.dtype for p in engine.module.parameters()} == {torch.float32}
    optimizer = engine.optimizer if zero == 0 else engine.optimizer.optimizer
    held = {v.dtype for state in optimizer.state.values() for k, v in state.items() if k != "step"}
    assert held == {torch.float32}
    close_engine(engine)


@pytest.mark.parametrize("pieces", [4, 16, 64])
@pytest.mark.parametrize("zero", [0, 1])
def test_in_bf16_pieces_of_a_batch_give_its_gradient_as_in_fp32(zero, pieces):
    """Sums of pieces are fp32: 4, 16 and 64 of them are 1.1e-3 from the whole, and no farther from fp32 than it is.

    The gradient of a matrix is rounded to bf16 for each piece, hence not the 2e-7 of fp32.
    """

    def apart(precision):
        whole = gradient(precision, Layout(zero=zero))
        found = gradient(precision, Layout(zero=zero, micro_batch=64 // pieces))
        return float((found - whole).norm() / whole.norm())

    assert apart("fp32") < 1e-6
    assert apart("bf16") < 2e-3


def test_library_defect_stage_3_leaves_its_own_linear_in_torch():
    """When this fails, `close_engine` need not restore it."""
    engine = _engine(layout=Layout(zero=3))
    assert functional.linear is not LINEAR
    engine.destroy()
    assert functional.linear is not LINEAR
    close_engine(_engine(layout=Layout(zero=3)))
    assert functional.linear is LINEAR


def test_a_cell_in_bf16_leaves_nothing_behind_for_the_next_in_fp32():
    """DeepSpeed keeps in the process that autocast was used, and would choose buffers of ZeRO by it."""
    before = gradient("fp32", Layout(zero=1))
    gradient("bf16", Layout(zero=1))
    assert torch.equal(gradient("fp32", Layout(zero=1)), before)


@pytest.mark.parametrize("largest", [0.0, 0.3, 1e3])
def test_gradients_are_clipped_to_a_norm(largest):
    engine = _engine()
    x = torch.zeros(2, 8, dtype=torch.long)
    engine.backward(functional.cross_entropy(engine(input_ids=x).logits.view(-1, 5), x.view(-1)))
    before = [p.grad.clone() for p in engine.module.parameters()]
    norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in before))
    factor = largest / norm if 0 < largest < norm else 1.0
    assert norm > 0.3
    assert float(clip_gradients(engine, Layout(), largest)) == pytest.approx(norm, rel=1e-6)
    for parameter, grad in zip(engine.module.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.grad, grad * factor, rtol=1e-5, atol=0)
    close_engine(engine)


def test_library_defect_deepspeed_has_no_gradient_norm_in_fp32_at_stage_0():
    """DeepSpeed issue 7255. When this fails, `trainables.train.engine.clip_gradients` can go."""
    engine = _engine()
    _step(engine)
    assert engine.get_global_grad_norm() is None
    close_engine(engine)


def test_library_defect_deepspeed_reduces_the_gradients_of_one_rank_with_itself():
    """When this fails, `build_engine` need not switch the reduction off."""
    import deepspeed

    model = build_model(Shape(depth=1, width=8, heads=2), Recipe(steps=4, batch=2, context=8), 5, 0)
    config = {"train_micro_batch_size_per_gpu": 2, "steps_per_print": 10**9}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config, dist_init_required=False
    )
    assert engine.enable_backward_allreduce
    close_engine(engine)


def test_library_defect_deepspeed_would_compile_an_op_on_the_cpu():
    """When this fails, `import_deepspeed` need not name every op unavailable."""
    import deepspeed.ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    assert "deepspeed_shm_comm" in ALL_OPS
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", ["gpt2", "analysed", "qwen3"])
def test_compiled_layers_share_one_code_and_have_the_losses_of_others(
    tmp_path, monkeypatch, network, precision
):
    monkeypatch.setattr(head, "ONE_PASS_LOGITS", 0)

    def losses(precision, **options):
        cell = golden.cell(depth=3, network=network, precision=precision)
        result = train(cell, data_root=tmp_path, evaluations=1, **options)
        assert not result.notes
        return np.array([*(point.train_loss for point in result.points), result.loss])

    exact = losses("fp32")
    plain = exact if precision == "fp32" else losses(precision)
    counters.clear()
    ours = losses(precision, layout=Layout(compiled=True))
    # One for the training of all layers and one for the loss, each without a break; evaluations are not compiled.
    assert (counters["stats"]["unique_graphs"], len(counters["graph_break"])) == (2, 0)
    if precision == "fp32":
        np.testing.assert_allclose(ours, plain, rtol=1e-6)
    else:
        # Both round to bf16, in another order: on another CPU by 1e-4 at one of 30 steps. Neither may be farther from
        # fp32 than rounding takes it.
        far_ours, far_plain = (np.sqrt(np.mean((values / exact - 1) ** 2)) for values in (ours, plain))
        assert far_ours <= 1.5 * far_plain < 1e-3


def test_a_machine_without_a_compiler_trains_and_notes_it(tmp_path, monkeypatch):
    cell = golden.cell()
    plain = train(cell, data_root=tmp_path, evaluations=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    counters.clear()
    ours = train(cell, data_root=tmp_path, layout=Layout(compiled=True), evaluations=1)
    assert not counters["stats"]
    assert ours.loss == plain.loss
    (note,) = ours.notes
    assert "C compiler" in note
