"""The closed forms against the very model, DeepSpeed's profiler and torch's own account of saved tensors."""

import os

import pytest
import torch
from transformers import GPT2LMHeadModel

from trainables.cell import Precision, Recipe, Shape
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.counts import kept_activations, memory
from trainables.model.family import family
from trainables.model.gpt2 import model_config

GPT2 = family("gpt2")


def recipe(context: int, batch: int = 1) -> Recipe:
    return Recipe(steps=1, batch=batch, context=context)


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
@pytest.mark.parametrize(("width", "heads"), [(2, 1), (6, 2), (22, 2), (64, 4), (130, 13)])
@pytest.mark.parametrize(("vocabulary", "context"), [(9, 64), (257, 33), (2000, 128)])
def test_parameters_are_those_of_the_model(
    depth: int, width: int, heads: int, vocabulary: int, context: int
) -> None:
    shape = Shape(depth=depth, width=width, heads=heads)
    with torch.device("meta"):
        model = GPT2LMHeadModel(model_config(shape, recipe(context), vocabulary))
    count = GPT2.parameters(shape, recipe(context), vocabulary)
    assert count.total == model.num_parameters()
    assert count.embedding == model.transformer.wte.weight.numel()
    assert count.position == model.transformer.wpe.weight.numel()
    assert count.non_embedding == model.num_parameters() - count.embedding - count.position


def test_parameters_of_gpt2_small() -> None:
    # 124,439,808 is what `GPT2LMHeadModel.from_pretrained("gpt2").num_parameters()` says.
    assert GPT2.parameters(Shape(depth=12, width=768, heads=12), recipe(1024), 50257).total == 124_439_808


@pytest.mark.parametrize(
    ("depth", "width", "vocabulary", "context", "batch"),
    [(1, 32, 9, 64, 4), (3, 96, 2000, 128, 1)],
)
def test_flops_are_those_of_deepspeeds_profiler(
    depth: int, width: int, vocabulary: int, context: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.profiling.flops_profiler import get_model_profile

    shape = Shape(depth=depth, width=width, heads=2)
    model = build_model(shape, recipe(context, batch), vocabulary, seed=0)
    tokens = torch.zeros(batch, context, dtype=torch.long)
    measured, _, _ = get_model_profile(
        model,
        kwargs={"input_ids": tokens, "labels": tokens},
        print_profile=False,
        as_string=False,
        detailed=False,
        warm_up=0,
    )
    ours = GPT2.flops(shape, recipe(context), vocabulary)
    # The project promises 2 %; the same conventions as the profiler's make it exact.
    assert ours.forward * batch * context == measured
    assert ours.training == 3 * ours.forward


def test_flops_of_a_wide_model_are_two_per_parameter_and_token() -> None:
    shape = Shape(depth=48, width=4096, heads=32)
    count = GPT2.flops(shape, recipe(128), 2000)
    assert count.matrices == 2 * shape.budget_params
    assert count.forward == pytest.approx(2 * shape.budget_params, rel=0.01)


@pytest.mark.parametrize(("depth", "width", "vocabulary"), [(1, 64, 1000), (4, 64, 257), (6, 128, 32)])
def test_activations_are_what_autograd_saves(depth: int, width: int, vocabulary: int) -> None:
    """Sum the distinct storages autograd keeps for backward, the log-softmax with them."""
    context, batch = 64, 8
    shape = Shape(depth=depth, width=width, heads=2)
    model = build_model(shape, recipe(context, batch), vocabulary, seed=0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}
    keep = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            keep.append(tensor)  # so that no storage is used again under the same address
        return tensor

    tokens = torch.zeros(batch, context, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens).loss
    log_softmax = batch * context * vocabulary * 4
    assert loss.requires_grad
    estimate = kept_activations(shape, recipe(context, batch), Layout())
    assert estimate + log_softmax == pytest.approx(sum(saved.values()), rel=0.05)


def test_fp32_state_is_weights_gradients_and_both_moments() -> None:
    shape = Shape(depth=2, width=32, heads=2)
    model = build_model(shape, recipe(2), 64, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    held = list(model.parameters())
    held += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    held += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    needed = memory(shape, 64, recipe(2), Layout())
    # The peak is where backward ends, with two more gradients of the embedding: the head's and the lookup's.
    assert needed.moment == "embedding"
    assert needed.state == sum(tensor.nbytes for tensor in held) + 2 * 4 * 64 * 32


@pytest.mark.parametrize(("heads", "degree"), [(2, 2), (4, 4), (6, 3)])
@pytest.mark.parametrize("shard_vocabulary", [False, True])
def test_the_parameters_of_a_rank_are_those_of_a_model_shared_by_hand(
    heads: int, degree: int, shard_vocabulary: bool
) -> None:
    shape, vocabulary, context = Shape(depth=3, width=24 * heads, heads=heads), 257, 33
    model = build_model(shape, recipe(context), vocabulary, seed=0)
    count = 0
    for name, parameter in model.named_parameters():
        is_column = ".c_attn." in name or ".c_fc." in name
        is_row = name.endswith(".c_proj.weight")
        if is_column or (shard_vocabulary and "wte" in name):
            count += parameter.chunk(degree, dim=0)[0].numel()
        elif is_row:
            count += parameter.chunk(degree, dim=1)[0].numel()
        else:
            count += parameter.numel()
    layout = Layout(tensor_parallel=degree, shard_vocabulary=shard_vocabulary)
    assert GPT2.rank_parameters(shape, recipe(context), vocabulary, layout) == count


@pytest.mark.parametrize("depth", [1, 5])
def test_one_rank_has_all_parameters(depth: int) -> None:
    shape = Shape(depth=depth, width=48, heads=2)
    for network in ("gpt2", "analysed"):
        whole = family(network).rank_parameters(shape, recipe(33), 257, Layout())
        assert whole == family(network).parameters(shape, recipe(33), 257).total


@pytest.mark.parametrize(
    ("precision", "zero", "groups", "per_parameter"),
    [
        ("fp32", 0, 1, 4 + 4 + 8),
        ("fp32", 1, 1, 4 + 4 + 8 + 4 + 4),
        ("bf16", 0, 1, 4 + 4 + 8),
        ("bf16", 1, 1, 4 + 4 + 8 + 4 + 4),
        ("fp32", 0, 2, 4 + 4 + 8 + 4),
        ("fp32", 1, 2, 4 + (4 + 8) / 2 + 4 + 4),
        ("bf16", 1, 2, 4 + (4 + 8) / 2 + 4 + 4),
    ],
)
def test_the_state_of_each_stage(precision: Precision, zero: int, groups: int, per_parameter: float) -> None:
    shape = Shape(depth=2, width=256, heads=2)
    cell = recipe(2, groups).model_copy(update={"precision": precision})
    needed = memory(shape, 64, cell, Layout.model_validate({"zero": zero, "data_parallel": groups}))
    at_embedding = 2 * 4 * 64 * 256 if needed.moment == "embedding" else 0
    assert (needed.moment == "embedding") == (zero == 0 and groups == 1)
    assert needed.state - at_embedding == pytest.approx(
        per_parameter * GPT2.parameters(shape, cell, 64).total, rel=1e-6
    )
    assert needed.total == needed.state + round(0.05 * needed.state)


def test_more_ranks_never_need_more_each() -> None:
    shape = Shape(depth=4, width=512, heads=8)
    cell = recipe(128, 64).model_copy(update={"precision": "bf16"})

    def total(**layout: object) -> int:
        return memory(shape, 2000, cell, Layout.model_validate({"zero": 1, **layout})).total

    assert total() > total(tensor_parallel=2) > total(tensor_parallel=4)
    assert total(tensor_parallel=2) > total(tensor_parallel=2, shard_vocabulary=True)
    assert total() > total(data_parallel=2) > total(data_parallel=4)
    assert total() > total(micro_batch=16) > total(micro_batch=16, activation_checkpointing=True)
