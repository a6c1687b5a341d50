"""Muon: what updates which weight, the size of a step, and the state of both optimizers."""

import copy

import pytest
import torch
from torch.optim import AdamW, Muon

from benchmarks.muon import KERNELS, kernels
from core.errors import InputError
from trainables.cell import Recipe, Shape
from trainables.layout import Layout, default_zero
from trainables.model import counts
from trainables.model.build import build_model
from trainables.model.counts import memory
from trainables.model.parametrisation import param_groups
from trainables.ranks.process_group import join
from trainables.train import muon
from trainables.train.engine import build_engine
from trainables.train.muon import MuonAndAdamW, StackedMuon

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
    torchs = Muon(
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
        step = staticmethod(lambda: (torchs.step(), adamw.step()))
        zero_grad = staticmethod(lambda: plain.zero_grad())

    train(plain, Both, steps)
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other), name


#: Matrices of layers: GPT-2, and Llama with fewer key-value heads and a narrow gated network. Square, wide and tall.
GPT2_LAYER = [(96, 32), (32, 32), (128, 32), (32, 128)]
LLAMA_LAYER = [(48, 48), (16, 48), (16, 48), (48, 48), (120, 48), (120, 48), (48, 120)]


def random_matrices(shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def random_steps(optimizer, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
            for matrix in group["params"]:
                matrix.grad = torch.randn(matrix.shape, generator=generator) * 10.0**-step
        optimizer.step()


def muon_of(kind, matrices):
    return kind(matrices, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")


@pytest.mark.parametrize("bound", [1, 10_000, counts.MUON_STACK])
@pytest.mark.parametrize("shapes", [GPT2_LAYER * 3, LLAMA_LAYER * 3])
def test_stacks_of_any_size_have_the_bits_of_torchs_muon(shapes, bound, monkeypatch):
    monkeypatch.setattr(counts, "MUON_STACK", bound)
    ours, theirs = random_matrices(shapes), random_matrices(shapes)
    random_steps(muon_of(StackedMuon, ours), 0, 4)
    random_steps(muon_of(Muon, theirs), 0, 4)
    assert all(map(torch.equal, ours, theirs))
    assert not any(map(torch.equal, ours, random_matrices(shapes)))


@pytest.mark.parametrize("kinds", [(Muon, StackedMuon), (StackedMuon, Muon)])
def test_torchs_muon_and_ours_continue_each_others_state(kinds):
    whole = random_matrices(GPT2_LAYER * 2)
    random_steps(muon_of(Muon, whole), 0, 5)
    ours = random_matrices(GPT2_LAYER * 2)
    first = muon_of(kinds[0], ours)
    random_steps(first, 0, 3)
    second = muon_of(kinds[1], ours)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    random_steps(second, 3, 5)
    assert all(map(torch.equal, ours, whole))
    assert second.state_dict()["param_groups"][0].keys() == first.state_dict()["param_groups"][0].keys()
    assert {key for state in second.state.values() for key in state} == {"momentum_buffer"}


def test_a_matrix_without_a_gradient_keeps_its_weights():
    ours = random_matrices([(8, 8)] * 3)
    before = [matrix.detach().clone() for matrix in ours]
    optimizer = muon_of(StackedMuon, ours)
    ours[0].grad, ours[2].grad = torch.randn(8, 8), torch.zeros(8, 8)
    optimizer.step()
    assert [matrix in optimizer.state for matrix in ours] == [True, False, True]
    assert not torch.equal(ours[0], before[0])
    assert torch.equal(ours[1], before[1])
    # A gradient of 0 has no direction: weight decay alone.
    torch.testing.assert_close(ours[2].detach(), before[2] * (1 - 1e-3 * 0.1))


@pytest.mark.parametrize("network", KERNELS)
def test_a_step_starts_as_few_kernels_as_promised(network):
    ours, theirs = kernels(network, StackedMuon), kernels(network, Muon)
    assert theirs > 1000
    assert ours <= KERNELS[network] * theirs


def test_stacks_hold_equal_shapes_and_a_bounded_number_of_elements():
    shapes = [torch.Size(shape) for shape in [(4096, 4096), (8192, 4096), (64, 64)] * 3 + [(1024, 1024)] * 17]
    divided = muon.stacks(shapes)
    assert sorted(i for stack in divided for i in stack) == list(range(len(shapes)))
    for stack in divided:
        (shape,) = {shapes[i] for i in stack}
        assert len(stack) == 1 or len(stack) * shape.numel() <= counts.MUON_STACK
    # One matrix of 16,777,216 elements or more; all small ones; 16 of 1,048,576 fit, so 17 make a 9 and an 8.
    assert [len(stack) for stack in divided] == [1] * 6 + [3, 9, 8]


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
