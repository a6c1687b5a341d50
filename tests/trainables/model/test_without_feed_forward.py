"""Models without feed-forward networks (`frontier.d_ff: 0`): counted, built, exported and taken apart."""

import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from trainables.cell import Recipe, Shape
from trainables.diagnostics.rank import rank
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.counts import kept_activations
from trainables.model.family import family

NETWORKS = ("gpt2", "llama", "qwen3")
SHAPE = Shape(depth=3, width=32, heads=4, d_ff=0)
VOCABULARY = 99


def recipe(network, **changes):
    return Recipe(**{"steps": 1, "batch": 2, "context": 32, "network": network, "init": "fan_in", **changes})


def tokens():
    return torch.randint(0, VOCABULARY, (2, 32), generator=torch.Generator().manual_seed(1))


def disturbed(network):
    """A model whose gains and biases are not 1 and 0."""
    model = build_model(SHAPE, recipe(network), VOCABULARY, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return model


@pytest.mark.parametrize("network", NETWORKS)
def test_the_counts_are_those_of_the_model(network):
    counted, model = family(network), build_model(SHAPE, recipe(network), VOCABULARY, seed=0)
    count = counted.parameters(SHAPE, recipe(network), VOCABULARY)
    assert count.total == model.num_parameters()
    assert counted.rank_parameters(SHAPE, recipe(network), VOCABULARY, Layout()) == count.total
    assert counted.layer_weights(SHAPE, recipe(network)) == 4
    matrices = [
        tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if (role := counted.role(name)).is_matrix and role.layer == 1
    ]
    assert sorted(matrices) == sorted(counted.matrices(SHAPE))
    assert sum(rows * columns for rows, columns in matrices) == 4 * SHAPE.width**2
    assert not [name for name, _ in model.named_parameters() if ".mlp." in name]
    # Per layer: GPT-2 has four biases of the attention and a norm of two; Llama a gain; Qwen3 two more, of a head.
    vectors = {"gpt2": 6 * 32, "llama": 32, "qwen3": 32 + 2 * 8}[network]
    final = {"gpt2": 2 * 32}.get(network, 32)
    assert count.non_embedding == 3 * (4 * 32**2 + vectors) + final


@pytest.mark.parametrize("network", NETWORKS)
def test_flops_are_those_of_deepspeeds_profiler(network, monkeypatch):
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.profiling.flops_profiler import get_model_profile

    measured, _, _ = get_model_profile(
        build_model(SHAPE, recipe(network), VOCABULARY, seed=0),
        kwargs={"input_ids": tokens(), "labels": tokens()},
        print_profile=False,
        as_string=False,
        detailed=False,
        warm_up=0,
    )
    assert family(network).flops(SHAPE, recipe(network), VOCABULARY).forward * 2 * 32 == measured


def test_activations_are_what_autograd_saves():
    one = recipe("gpt2", batch=8, context=64)
    shape = Shape(depth=4, width=64, heads=2, d_ff=0)
    model = build_model(shape, one, 33, seed=0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved, kept = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # so that no storage is used again under the same address
        return tensor

    inputs = torch.zeros(8, 64, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=inputs, labels=inputs).loss
    assert loss.requires_grad
    log_softmax = 8 * 64 * 33 * 4
    estimate = kept_activations(shape, one, Layout()) + log_softmax
    assert estimate == pytest.approx(sum(saved.values()), rel=0.05)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_layer_adds_only_its_attention_to_the_stream(network):
    model = disturbed(network)
    parts = family(network).parts(model, recipe(network))
    stream = parts.embedded(tokens())
    for layer in parts.layers():
        after = parts.attention(layer, stream)
        assert torch.equal(parts.feed(layer, after), after)
        # Without its skip connection too, there is nothing behind the attention.
        assert torch.equal(parts.feed(layer, after, skip=False), after)
        stream = after
    assert torch.equal(parts.logits(stream), model(input_ids=tokens()).logits)
    with torch.no_grad():
        measures = rank(parts, tokens())
    for layer in (1, 2, 3):
        assert measures[f"rank_residual/{layer}"] == measures[f"rank_residual_noffn/{layer}"]


@pytest.mark.parametrize("network", NETWORKS)
def test_branch_outputs_are_divided_by_the_root_of_the_layers(network):
    """The model has one branch per layer, where others have two."""
    deep = Shape(depth=4, width=256, heads=4, d_ff=0)
    model = build_model(deep, recipe(network), VOCABULARY, seed=0)
    outputs = [
        parameter
        for name, parameter in model.named_parameters()
        if family(network).role(name).kind == "branch_output" and parameter.ndim == 2
    ]
    assert len(outputs) == 4
    for parameter in outputs:
        assert float(parameter.detach().std()) == pytest.approx(256**-0.5 / 4**0.5, rel=0.02)


@pytest.mark.parametrize("network", NETWORKS)
def test_plain_huggingface_loads_the_exported_folder_and_gives_the_same_logits(network, tmp_path):
    from safetensors.torch import save_file

    model = disturbed(network)
    config, tensors = family(network).exported(model.state_dict(), SHAPE, recipe(network), VOCABULARY)
    config.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(other).__module__.startswith("transformers.models.")
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.allclose(
        other.eval()(tokens()).logits, model(input_ids=tokens()).logits, atol=1e-6, rtol=1e-5
    )


def test_a_layer_trains_to_the_last_weight():
    model = build_model(SHAPE, recipe("gpt2"), VOCABULARY, seed=0)
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_gpt2_cannot_build_is_refused_with_the_fix():
    gpt2 = family("gpt2")
    gpt2.check_shape(SHAPE, recipe("gpt2"))
    with pytest.raises(ValueError, match=r"frontier.d_ff: 0.*network: llama"):
        gpt2.check_shape(SHAPE.model_copy(update={"d_ff": 99}), recipe("gpt2"))
    for residual in ("post", "admin"):
        with pytest.raises(ValueError, match=r"frontier.d_ff: 0"):
            gpt2.check_shape(SHAPE, recipe("gpt2", residual=residual))
    with pytest.raises(ValueError, match=r"frontier.d_ff"):
        family("analysed").check_shape(SHAPE, recipe("analysed"))
