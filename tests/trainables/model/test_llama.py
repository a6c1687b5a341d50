"""Llama and Qwen3: closed forms, weights, parametrisations, parts and exports against HuggingFace's own classes."""

import itertools
import os

import pytest
import torch
from torch import nn

from core.errors import InputError
from trainables.cell import Base, Recipe, Shape
from trainables.layout import Layout
from trainables.model.build import build_model, standard_deviation
from trainables.model.counts import kept_activations, memory
from trainables.model.family import family
from trainables.model.head import OnePassLoss
from trainables.model.parametrisation import param_groups, scale
from trainables.train.engine import preload

NETWORKS = ("llama", "qwen3")
SHAPES = {
    "plain": Shape(depth=2, width=32, heads=2),
    "one key-value head": Shape(depth=1, width=64, heads=4, kv_heads=1),
    "wide heads": Shape(depth=3, width=48, heads=2, head_dim=32),
    "d_ff": Shape(depth=2, width=96, heads=4, kv_heads=2, d_ff=333),
    "narrow": Shape(depth=2, width=8, heads=2),
}
CASES = [
    pytest.param(network, embeddings, shape, id=f"{network}-{embeddings}-{name}")
    for network, embeddings, (name, shape) in itertools.product(NETWORKS, ("tied", "untied"), SHAPES.items())
]


def recipe(network="llama", **changes):
    return Recipe(**{"steps": 1, "batch": 2, "context": 32, "network": network, **changes})


def plain(model, one):
    """HuggingFace's own class of a model, with its own norms, head and plan."""
    with torch.no_grad():
        other = family(one.network).huggingface()[1](model.config).eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(("network", "embeddings", "shape"), CASES)
@pytest.mark.parametrize(("vocabulary", "context"), [(9, 64), (257, 33)])
def test_parameters_and_matrices_are_those_of_the_model(network, embeddings, shape, vocabulary, context):
    one = recipe(network, embeddings=embeddings, context=context)
    with torch.device("meta"):
        model = family(network).build(shape, one, vocabulary)
    count = family(network).parameters(shape, one, vocabulary)
    assert count.total == model.num_parameters()
    assert count.embedding == model.model.embed_tokens.weight.numel()
    assert count.head == (0 if embeddings == "tied" else model.lm_head.weight.numel())
    linear = sum(
        m.weight.numel() for n, m in model.named_modules() if isinstance(m, nn.Linear) and "head" not in n
    )
    assert family(network).flops(shape, one, vocabulary).matrices == 2 * linear


@pytest.mark.parametrize(("network", "embeddings", "shape"), CASES)
def test_flops_are_those_of_deepspeeds_profiler(network, embeddings, shape, monkeypatch):
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.profiling.flops_profiler import get_model_profile

    one = recipe(network, embeddings=embeddings)
    tokens = torch.zeros(one.batch, one.context, dtype=torch.long)
    measured, _, _ = get_model_profile(
        build_model(shape, one, 99, seed=0),
        kwargs={"input_ids": tokens, "labels": tokens},
        print_profile=False,
        as_string=False,
        detailed=False,
        warm_up=0,
    )
    assert family(network).flops(shape, one, 99).forward * one.batch * one.context == measured


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize("width", [8, 16, 40, 48, 96, 256, 2048])
def test_a_layer_has_the_weights_that_n_counts(network, kv_heads, width):
    shape = Shape(depth=1, width=width, heads=2, kv_heads=kv_heads)
    assert family(network).layer_weights(shape, recipe(network)) == pytest.approx(12, rel=0.011)
    assert "d²" not in family(network).describe([shape], recipe(network))


def test_the_inner_width_is_that_of_published_configurations():
    """Qwen3-1.7B: width 2,048, 16 heads of 128, 8 key-value heads, inner width 6,144."""
    assert family("qwen3").d_ff(Shape(depth=28, width=2048, heads=16, kv_heads=8)) == 6144


def test_a_model_that_n_does_not_count_says_so():
    shapes = [Shape(depth=1, width=64, heads=4, d_ff=224), Shape(depth=1, width=32, heads=4, d_ff=112)]
    assert "a layer has 14.5·d² weights" in family("llama").describe(shapes, recipe())
    assert "a layer has 4.0·d² weights" in family("analysed").describe(SHAPES.values(), recipe("analysed"))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize(("depth", "width", "vocabulary"), [(1, 64, 500), (4, 64, 257)])
def test_activations_are_what_autograd_saves(network, kv_heads, depth, width, vocabulary):
    one = recipe(network, batch=8, context=64)
    shape = Shape(depth=depth, width=width, heads=4, kv_heads=kv_heads)
    model = build_model(shape, one, vocabulary, seed=0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved, keep = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            keep.append(tensor)
        return tensor

    tokens = torch.zeros(one.batch, one.context, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens).loss
    assert loss.requires_grad
    log_softmax = one.batch * one.context * vocabulary * 4
    assert kept_activations(shape, one, Layout()) + log_softmax == pytest.approx(
        sum(saved.values()), rel=0.05
    )


def test_an_untied_embedding_has_a_gradient_of_the_lookup_alone():
    """A tied one has three of its size at the end of backward: the head's, the lookup's and their sum."""
    shape, vocabulary = SHAPES["plain"], 5000
    one = {"batch": 1, "context": 2}
    tied, untied = (
        memory(shape, vocabulary, recipe(embeddings=e, **one), Layout()) for e in ("tied", "untied")
    )
    size = 4 * vocabulary * shape.width
    # Weights, gradients and two moments of the head more; two gradients of the embedding less.
    assert untied.weights - tied.weights == size
    assert untied.optimizer - tied.optimizer == 2 * size
    assert tied.moment == "embedding"
    assert tied.gradients - untied.gradients == size


@pytest.mark.parametrize(("network", "embeddings", "shape"), CASES)
def test_it_computes_what_huggingfaces_class_computes_to_the_bit(network, embeddings, shape):
    one = recipe(network, embeddings=embeddings, rope_theta=500.0)
    model = build_model(shape, one, 99, seed=0).eval()
    tokens = torch.randint(0, 99, (2, 32), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(input_ids=tokens).logits, plain(model, one)(tokens).logits)
    assert isinstance(model, OnePassLoss)
    assert model.config.rope_parameters["rope_theta"] == 500.0
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (embeddings == "tied")


#: Twice as wide and deep as the base, so that all multipliers are powers of two and no rounding differs.
WIDE = Shape(depth=2, width=32, heads=2)
BASE = Base(depth=1, width=16, head_width=4)


def by_the_table(one, lr):
    """A model with the multipliers of table 8 of Yang et al. and table 1 of Dey et al. in its forward pass."""
    m, deep = 2, 2 if one.parametrisation == "completep" else 1
    model, groups = build_model(WIDE, one, 9, seed=0), []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_output = "o_proj" in name or "down_proj" in name
            if name == "model.norm.weight":
                parameter.fill_(1.0)
            # The multiplier of a branch stands before its last matrix.
            parameter.mul_(deep if is_output else 1)
            is_hidden = ".layers." in name and parameter.ndim == 2
            options = {
                "lr": lr / m if is_hidden else lr,
                "eps": 1e-8 / m / (deep if ".layers." in name else 1),
            }
            decay = 0.1 * m if is_hidden else 0.1 * (parameter.ndim == 2)
            groups.append({"params": [parameter], "weight_decay": decay, **options})
    for layer in model.model.layers:
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.register_forward_hook(lambda _, __, out: out / deep)
    model.lm_head.register_forward_hook(lambda _, __, out: out / m)
    return model, groups


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("embeddings", ["tied", "untied"])
@pytest.mark.parametrize("parametrisation", ["mup", "completep"])
def test_absorbed_multipliers_train_as_those_of_the_papers_tables(network, embeddings, parametrisation):
    one = recipe(network, embeddings=embeddings, parametrisation=parametrisation, base=BASE, weight_decay=0.1)
    ours = build_model(WIDE, one, 9, seed=0)
    assert ours.model.norm.weight.tolist() == [0.5] * WIDE.width
    assert ours.model.layers[0].self_attn.scaling == pytest.approx(4**0.5 / 16)
    theirs, groups = by_the_table(one, 0.01)
    losses = []
    for model, options in ((ours, param_groups(ours.named_parameters(), WIDE, one, 0.01)), (theirs, groups)):
        optimizer = torch.optim.AdamW(options, betas=(0.9, 0.95))
        losses.append([])
        for step in range(12):
            tokens = torch.randint(0, 9, (4, 32), generator=torch.Generator().manual_seed(step))
            targets = tokens.cumsum(1) % 9
            loss = model(input_ids=tokens, labels=targets, shift_labels=targets).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_scaled_norms_leave_the_norms_of_queries_and_keys_at_one():
    """They undo the scale of what they norm, so that their own gain would sharpen the attention instead."""
    one = recipe("qwen3", residual="scaled_norm")
    assert scale("model.layers.3.input_layernorm.weight", WIDE, one).start == 0.5
    assert scale("model.layers.3.self_attn.q_norm.weight", WIDE, one).start == 1


def test_the_last_matrix_of_a_branch_starts_at_its_own_fan_in():
    one = recipe()
    shape = SHAPES["d_ff"]
    down = standard_deviation("model.layers.0.mlp.down_proj.weight", 333, shape, one)
    assert down == pytest.approx(333**-0.5 / (2 * shape.depth) ** 0.5)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("parametrisation", ["sp", "mup", "completep"])
@pytest.mark.parametrize("embeddings", ["tied", "untied"])
def test_exported_weights_give_the_logits_of_the_trained_model(network, parametrisation, embeddings):
    one = recipe(network, parametrisation=parametrisation, base=BASE, embeddings=embeddings)
    shape = Shape(depth=2, width=32, heads=4, kv_heads=2)
    model = build_model(shape, one, 99, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
    config, tensors = family(network).exported(model.state_dict(), shape, one, 99)
    assert ("lm_head.weight" in tensors) == (embeddings == "untied")
    other = family(network).huggingface()[1](config).eval()
    other.load_state_dict(tensors, strict=False)
    other.tie_weights()
    tokens = torch.randint(0, 99, (2, 32), generator=generator)
    assert torch.allclose(other(tokens).logits, model(input_ids=tokens).logits, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_parts_are_those_of_the_model(network):
    shape, one = Shape(depth=3, width=32, heads=4, kv_heads=2), recipe(network)
    model = build_model(shape, one, 99, seed=0).eval()
    parts = family(network).parts(model, one)
    tokens = torch.randint(0, 99, (2, 32), generator=torch.Generator().manual_seed(0))
    stream, weights = parts.embedded(tokens), []
    for layer in parts.layers():
        weights.append(parts.attention_weights(layer, stream))
        stream = parts.feed(layer, parts.attention(layer, stream))
    assert torch.equal(parts.logits(stream), model(input_ids=tokens).logits)
    eager = plain(model, one)
    eager.set_attn_implementation("eager")
    for ours, theirs in zip(weights, eager(tokens, output_attentions=True).attentions, strict=True):
        assert ours.shape == (2, 4, 32, 32)
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"dropout": 0.1}, "dropout"), ({"residual": "admin"}, "residual")],
)
def test_recipes_that_the_families_cannot_train_are_refused(changes, word):
    for network in NETWORKS:
        with pytest.raises(ValueError, match=word):
            family(network).check(recipe(network, **changes))


def test_shapes_that_the_families_cannot_build_are_refused_with_the_fix():
    llama = family("llama")
    with pytest.raises(ValueError, match=r"frontier.width_multiple: 4"):
        llama.check_shape(Shape(depth=1, width=6, heads=2), recipe())
    with pytest.raises(ValueError, match=r"set `frontier.head_dim: 4`$"):
        llama.check_shape(Shape(depth=1, width=32, heads=2, head_dim=3), recipe())
    with pytest.raises(ValueError, match=r"frontier.d_ff"):
        llama.check_shape(Shape(depth=1, width=8, heads=8, head_dim=64), recipe())
    with pytest.raises(ValueError, match="head_dim"):
        llama.check_shape(SHAPES["wide heads"], recipe(parametrisation="mup"))


@pytest.mark.parametrize("network", ["gpt2", "analysed"])
def test_gpt2_refuses_what_only_the_rotary_families_have(network):
    for changes in ({"embeddings": "untied"}, {"rope_theta": 100.0}):
        with pytest.raises(ValueError, match="network: llama"):
            family(network).check(recipe(network, **changes))
    for options in ({"kv_heads": 1}, {"head_dim": 32}, {"d_ff": 99}):
        with pytest.raises(ValueError, match="network: llama"):
            family(network).check_shape(Shape(depth=1, width=32, heads=2, **options), recipe(network))


def test_a_shared_vocabulary_divides_an_untied_head_and_leaves_the_embedding_whole():
    shape, vocabulary = Shape(depth=2, width=32, heads=4, d_ff=53), 257
    layout = Layout(tensor_parallel=2, shard_vocabulary=True)
    count = family("qwen3").rank_parameters(shape, recipe(embeddings="untied"), vocabulary, layout)
    model = build_model(shape, recipe("qwen3", embeddings="untied"), vocabulary, seed=0)
    expected = 0
    for name, parameter in model.named_parameters():
        is_row = "o_proj" in name or "down_proj" in name
        is_shared = parameter.ndim == 2 and "embed" not in name
        expected += parameter.chunk(2, dim=int(is_row))[0].numel() if is_shared else parameter.numel()
    assert count == expected


def test_library_defect_huggingfaces_plan_shards_an_untied_head():
    """When this fails, `with_our_loss` need no longer empty the plan: its logits would be gathered, its loss whole."""
    for network in NETWORKS:
        huggingface = family(network).huggingface()[1]
        assert "lm_head" in huggingface._tp_plan
        assert (
            "lm_head" not in build_model(SHAPES["plain"], recipe(network, embeddings="untied"), 9, 0).tp_plan
        )


def test_norms_of_heads_have_no_decay_and_are_no_matrices_of_muon():
    one = recipe("qwen3", optimizer="muon", weight_decay=0.1)
    model = build_model(SHAPES["plain"], one, 9, seed=0)
    group_of = {
        id(p): g for g in param_groups(model.named_parameters(), WIDE, one, 0.01) for p in g["params"]
    }
    for name, parameter in model.named_parameters():
        group = group_of[id(parameter)]
        assert ("momentum" in group) == (".layers." in name and parameter.ndim == 2), name
        assert group["weight_decay"] == (0.1 if parameter.ndim == 2 else 0), name


@pytest.mark.parametrize("network", NETWORKS)
def test_the_model_that_loads_the_libraries_before_the_first_cell_can_be_built(network):
    preload(recipe(network), Layout())


def test_ranks_divide_the_key_value_heads():
    """DeepSpeed only warns of more ranks than key-value heads, and trains with idle ones."""
    shape = Shape(depth=1, width=64, heads=4, kv_heads=2)
    Layout(tensor_parallel=2).check(shape, recipe())
    with pytest.raises(
        InputError, match=r"tensor_parallel 4 does not divide the 2 key-value heads.*frontier.kv_heads"
    ):
        Layout(tensor_parallel=4).check(shape, recipe())
