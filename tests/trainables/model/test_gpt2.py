import math

import pytest
import torch
from transformers import GPT2LMHeadModel

from benchmarks.kernels import Counting
from tests.plain_gpt2 import PlainGPT2
from trainables.cell import Recipe, Shape
from trainables.model.build import build_model
from trainables.model.family import family, family_names
from trainables.model.gpt2 import conv1d_to_linear, model_config

RECIPE = Recipe(steps=10, batch=2, context=16)


def test_linear_layers_compute_what_conv1d_did():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(model_config(Shape(depth=2, width=24, heads=2), RECIPE, 11)).eval()
    x = torch.randint(0, 11, (3, 16))
    with torch.no_grad():
        before = model(input_ids=x).logits
        conv1d_to_linear(model)
        after = model(input_ids=x).logits
    assert torch.allclose(before, after, atol=1e-6)
    assert not [m for m in model.modules() if type(m).__name__ == "Conv1D"]


@pytest.mark.parametrize("network", family_names())
def test_a_model_draws_each_weight_once_and_from_its_own_generator(network):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    recipe = Recipe(steps=10, batch=2, context=16, network=network)
    with Counting() as counting:
        model = build_model(Shape(depth=2, width=24, heads=2), recipe, 11, seed=1)
    drawn = [p for n, p in model.named_parameters() if family(network).role(n).is_matrix]
    draws = {name: n for name, n in counting.counts.items() if name in ("aten::normal_", "aten::uniform_")}
    assert draws == {"aten::normal_": len(drawn)}
    assert torch.equal(torch.get_rng_state(), before)


def test_the_model_is_the_gpt2_of_a_plain_reference():
    model = build_model(Shape(depth=3, width=24, heads=4), RECIPE, 11, seed=1).eval()
    plain = PlainGPT2(3, 24, 4, 11, 16)
    plain.copy_from(model)
    x = torch.randint(0, 11, (3, 16))
    with torch.no_grad():
        assert torch.allclose(model(input_ids=x).logits, plain(x), atol=1e-5)


def test_embeddings_are_tied_and_survive_the_initialisation():
    model = build_model(Shape(depth=1, width=8, heads=2), RECIPE, 11, seed=0)
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("init", ["fan_in", "gpt2"])
def test_initialisation_has_the_stated_deviations(init):
    depth, width = 4, 256
    recipe = RECIPE.model_copy(update={"init": init})
    model = build_model(Shape(depth=depth, width=width, heads=2), recipe, 500, seed=3)
    block = model.transformer.h[1]
    fan_in = init == "fan_in"
    expected = {
        block.attn.c_attn.weight: 1 / math.sqrt(width) if fan_in else 0.02,
        block.mlp.c_fc.weight: 1 / math.sqrt(width) if fan_in else 0.02,
        block.attn.c_proj.weight: (1 / math.sqrt(width) if fan_in else 0.02) / math.sqrt(2 * depth),
        block.mlp.c_proj.weight: (1 / math.sqrt(4 * width) if fan_in else 0.02) / math.sqrt(2 * depth),
        model.transformer.wte.weight: 0.02,
    }
    for weight, std in expected.items():
        # The standard error of a standard deviation over n draws is std/sqrt(2n); five of them, plus the mean.
        error = 5 * std / math.sqrt(2 * weight.numel())
        assert abs(float(weight.detach().std()) - std) < error
        assert abs(float(weight.detach().mean())) < 5 * std / math.sqrt(weight.numel())
    assert float(block.attn.c_attn.bias.abs().max()) == 0
    assert float(block.ln_1.weight.min()) == float(block.ln_1.weight.max()) == 1


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    shape = Shape(depth=2, width=8, heads=2)
    first, again, other = (build_model(shape, RECIPE, 11, seed) for seed in (5, 5, 6))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_initialisation_does_not_depend_on_the_global_generator():
    shape = Shape(depth=1, width=8, heads=2)
    torch.manual_seed(1)
    first = build_model(shape, RECIPE, 11, 0)
    torch.manual_seed(2)
    assert torch.equal(first.lm_head.weight, build_model(shape, RECIPE, 11, 0).lm_head.weight)
