"""The network of the theory: eq. 3 of the paper, a polynomial of degree 3^L, and a model that trains."""

import math

import pytest
import torch

from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.train.loop import train

CONTEXT, VOCABULARY = 16, 9
RECIPE = Recipe(steps=100, batch=16, context=CONTEXT, network="analysed")
DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=4000, validation_sequences=64)


def build(shape, seed=0):
    return build_model(shape, RECIPE, VOCABULARY, seed).double().eval()


def layer(x, attention, heads):
    """Eq. 3 by loops over positions and heads, with the mask and the scales of `trainables.model.analysed`."""
    width = x.shape[-1]
    query, key, value = attention.c_attn.weight.split(width)
    head_width = width // heads
    out = torch.zeros_like(x)
    for i in range(len(x)):
        for j in range(i + 1):
            for h in range(heads):
                rows = slice(h * head_width, (h + 1) * head_width)
                score = (query[rows] @ x[i]) @ (key[rows] @ x[j]) / math.sqrt(head_width)
                out[i] += attention.c_proj.weight[:, rows] @ (score * (value[rows] @ x[j])) / (i + 1)
    return out


def test_it_is_equation_3_of_the_paper():
    shape = Shape(depth=2, width=8, heads=2)
    model = build(shape)
    tokens = torch.randint(VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = model.transformer.wte(tokens) + model.transformer.wpe(torch.arange(CONTEXT))
        for block in model.transformer.h:
            x = x + layer(x, block.attn, 2)
        expected = x @ model.transformer.wte.weight.T / math.sqrt(8)
        found = model(input_ids=tokens[None]).logits[0]
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_its_output_is_a_polynomial_of_degree_3_to_the_depth(depth):
    """Along a line of inputs, finite differences of one order more than the degree vanish, and of the degree not."""
    model = build(Shape(depth=depth, width=8, heads=2))
    generator = torch.Generator().manual_seed(1)
    start, way = torch.randn(2, CONTEXT, 8, generator=generator, dtype=torch.float64)
    degree = 3**depth
    at = torch.linspace(-1, 1, degree + 2, dtype=torch.float64)
    with torch.no_grad():
        # Positions are added to the inputs, which leaves the degree along a line as it is.
        values = torch.stack(
            [model.transformer(inputs_embeds=(start + t * way)[None]).last_hidden_state[0] for t in at]
        )
    whole = torch.diff(values, n=degree + 1, dim=0).abs().max()
    below = torch.diff(values[:-1], n=degree, dim=0).abs().max()
    assert below > 1e-4
    assert whole < 1e-9 * below


def test_the_counts_are_the_models():
    shape = Shape(depth=3, width=16, heads=2)
    model = build_model(shape, RECIPE, VOCABULARY, 0)
    count = family("analysed").parameters(shape, RECIPE, VOCABULARY)
    assert count.total == model.num_parameters()
    assert count.non_embedding * 3 == shape.budget_params
    assert family("analysed").flops(shape, RECIPE, VOCABULARY).matrices == 2 * count.non_embedding


@pytest.mark.parametrize("depth", [1, 16])
def test_it_starts_at_a_sound_scale_at_every_depth(depth):
    model = build_model(Shape(depth=depth, width=32, heads=2), RECIPE, VOCABULARY, 0)
    tokens = torch.randint(VOCABULARY, (8, CONTEXT), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stream = model.transformer(tokens).last_hidden_state * math.sqrt(32)
    assert 0.7 < float(stream.std()) < 2


def test_it_trains(tmp_path):
    shape = Shape(depth=2, width=16, heads=2)
    cell = Cell(shape=shape, recipe=RECIPE, data=DATA, data_key=data_key(DATA, CONTEXT), lr=0.01, seed=0)
    result = train(cell, data_root=tmp_path, evaluations=1)
    assert result.status == "done"
    unigram = math.log(8)
    assert result.loss < unigram - 0.3, "it learns more than which symbols there are"
