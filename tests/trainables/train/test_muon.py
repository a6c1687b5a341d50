"""Muon: what updates which weight, the size of a step, and the state of both optimizers."""

import copy

import pytest
import torch
from torch.optim import AdamW, Muon

from trainables.cell import Recipe, Shape
from trainables.errors import InputError
from trainables.layout import Layout, default_zero
from trainables.model.build import build_model
from trainables.model.counts import memory
from trainables.model.parametrisation import param_groups
from trainables.ranks.process_group import join
from trainables.train.engine import MuonAndAdamW, build_engine

SHAPE = Shape(depth=2, width=32, heads=4)
RECIPE = Recipe(steps=9, batch=4, context=16, optimizer="muon", weight_decay=0.1, beta2=0.9)


def model():
    return build_model(SHAPE, RECIPE, 9, 0)


def groups(one, lr=0.01):
    return param_groups(one.named_parameters(), SHAPE, RECIPE, lr)


def train(one, optimizer, steps, first=0):
    for step in range(first, first + steps):
        tokens = torch.randint(0, 9, (4, 16), generator=torch.Generator().manual_seed(step))
        one(input_ids=tokens, labels=tokens, shift_labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def matrices(one):
    return {n for n, p in one.named_parameters() if ".h." in n and p.ndim == 2}


@pytest.mark.parametrize("steps", [1, 5])
def test_the_matrices_of_the_blocks_follow_torchs_muon_and_all_else_torchs_adamw(steps):
    ours, plain = model(), model()
    train(ours, MuonAndAdamW(groups(ours), (0.9, 0.9)), steps)
    blocks = matrices(plain)
    assert len(blocks) == 8
    muon = Muon(
        [p for n, p in plain.named_parameters() if n in blocks],
        lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    rest = [(n, p) for n, p in plain.named_parameters() if n not in blocks]
    adamw = AdamW(
        [{"params": [p for _, p in rest if p.ndim == 2], "weight_decay": 0.1},
         {"params": [p for _, p in rest if p.ndim < 2], "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.9), fused=True,
    )  # fmt: skip

    class Both:
        step = staticmethod(lambda: (muon.step(), adamw.step()))
        zero_grad = staticmethod(lambda: plain.zero_grad())

    train(plain, Both, steps)
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("width", [16, 64])
def test_a_step_changes_a_matrix_by_a_fifth_of_the_rate_in_every_shape(width):
    shape = Shape(depth=1, width=width, heads=2)
    recipe = RECIPE.model_copy(update={"weight_decay": 0.0})
    one = build_model(shape, recipe, 9, 0)
    before = copy.deepcopy(one.state_dict())
    generator = torch.Generator().manual_seed(0)
    for parameter in one.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    MuonAndAdamW(param_groups(one.named_parameters(), shape, recipe, 0.01), (0.9, 0.9)).step()
    for name in matrices(one):
        change = (one.state_dict()[name] - before[name]).square().mean().sqrt().item()
        # Newton-Schulz iterations in bf16 bring singular values near 1, not to it.
        assert change == pytest.approx(0.2 * 0.01, rel=0.25), name


def test_a_state_that_was_saved_goes_on_to_the_same_bits():
    whole = model()
    train(whole, MuonAndAdamW(groups(whole), (0.9, 0.9)), 6)
    begun = model()
    optimizer = MuonAndAdamW(groups(begun), (0.9, 0.9))
    train(begun, optimizer, 3)
    resumed = model()
    resumed.load_state_dict(begun.state_dict())
    other = MuonAndAdamW(groups(resumed), (0.9, 0.9))
    other.load_state_dict(optimizer.state_dict())
    train(resumed, other, 3, first=3)
    for (name, one), same in zip(resumed.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, same), name


def test_the_engine_schedules_the_rates_of_both():
    join()
    engine = build_engine(model(), SHAPE, RECIPE, 0.01)

    def rates():
        return {("momentum" in group, group["lr"]) for group in engine.optimizer.param_groups}

    assert rates() == {(False, 0.01), (True, 0.01)}, "the first of nine steps is the whole warm-up"
    engine.lr_scheduler.step()
    last = [rate for _, rate in rates()]
    assert last[0] == last[1] < 0.01
    engine.destroy()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(tensor_parallel=2), ("tensor_parallel 2", "stage 0")),
        (Layout(zero=1), ("ZeRO stage 1", "Use tensor_parallel 1 and stage 0")),
        (Layout(data_parallel=2, zero=3), ("ZeRO stage 3", "data_parallel")),
    ],
)
def test_a_layout_that_divides_matrices_is_refused_with_the_fix(layout, words):
    with pytest.raises(InputError) as error:
        layout.check(SHAPE, RECIPE)
    assert not [word for word in words if word not in str(error.value)]
    Layout(data_parallel=2).check(SHAPE, RECIPE)
    assert default_zero(RECIPE, 4) == 0


def test_other_parametrisations_are_refused():
    for parametrisation in ("mup", "completep"):
        with pytest.raises(ValueError, match=f"`optimizer: muon` and `parametrisation: {parametrisation}`"):
            Recipe(steps=9, batch=4, context=16, optimizer="muon", parametrisation=parametrisation)


def test_the_estimate_of_memory_counts_one_moment_of_a_matrix():
    adamw = RECIPE.model_copy(update={"optimizer": "adamw"})
    ours, theirs = (memory(SHAPE, 9, recipe, Layout()).optimizer for recipe in (RECIPE, adamw))
    held = sum(p.numel() for n, p in model().named_parameters() if n in matrices(model()))
    assert theirs - ours == 4 * held
