"""Another model family is one class: it is counted, built, trained and planned without a change of any module."""

from pathlib import Path

import pytest
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from core.errors import InputError
from study.plan.plan import make_plan
from study.spec.study import parse_spec
from tests.study.small import SMALL
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.layout import Layout
from trainables.model import family as families
from trainables.model.build import build_model
from trainables.model.counts import memory
from trainables.model.family import Flops, ModelFamily, Parameters, Role, family, family_names
from trainables.model.head import OnePassLoss
from trainables.model.parametrisation import attention_ratio
from trainables.train.loop import train

DATA = HierarchyData()
SHAPE = Shape(depth=2, width=24, heads=2)


class Llama(OnePassLoss, LlamaForCausalLM):
    pass


class TinyLlama(ModelFamily):
    """Llama with as many key-value heads as heads and an MLP of 3·d."""

    name = "tiny_llama"
    title = "Tiny Llama"

    def parameters(self, shape, recipe, vocabulary):
        width = shape.width
        return Parameters(vocabulary * width, 0, shape.depth * (13 * width**2 + 2 * width) + width)

    def matrices(self, shape):
        width = shape.width
        return [(width, width)] * 4 + [(3 * width, width)] * 2 + [(width, 3 * width)]

    def flops(self, shape, recipe, vocabulary):
        depth, width = shape.depth, shape.width
        return Flops(
            26 * depth * width**2,
            4 * depth * recipe.context * width,
            2 * vocabulary * width,
            10 * depth * width,
        )

    def rank_parameters(self, shape, recipe, vocabulary, layout):
        counts = self.parameters(shape, recipe, vocabulary)
        return counts.embedding + counts.non_embedding // layout.tensor_parallel

    def layer_activations(self, shape, recipe, layout):
        return 64 * shape.width // layout.tensor_parallel

    def role(self, name):
        layer = int(name.split(".")[2]) if ".layers." in name else None
        if "norm" in name:
            return Role("final_norm" if layer is None else "norm", False, layer)
        if layer is None:
            return Role("embedding", True)
        return Role("branch_output" if "o_proj" in name or "down_proj" in name else "hidden", True, layer)

    def build(self, shape, recipe, vocabulary):
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            intermediate_size=3 * shape.width,
            max_position_embeddings=recipe.context,
            tie_word_embeddings=True,
            use_cache=False,
        )
        model = Llama(config)
        model.loss_type = "ForCausalLM"
        for module in model.modules():
            if isinstance(module, LlamaAttention):
                module.scaling *= attention_ratio(shape, recipe)
        return model

    def exported(self, state, shape, recipe, vocabulary):
        raise NotImplementedError

    def is_huggingface(self, recipe):
        return False


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    # A module registers its family once, when it is imported: here before the registry is replaced.
    for name in family_names():
        family(name)
    monkeypatch.setattr(families, "_REGISTERED", dict(families._REGISTERED))
    families.register(TinyLlama)


def recipe(**changes):
    return Recipe(**{"steps": 6, "batch": 4, "context": 32, "network": "tiny_llama", **changes})


@pytest.mark.parametrize("name", ["analysed", "gpt2", "llama", "qwen3", "tiny_llama"])
@pytest.mark.parametrize("free", [{}, {"kv_heads": 2, "head_dim": 8, "d_ff": 53}])
def test_matrices_of_a_layer_are_those_of_the_model(name, free):
    shape = SHAPE.model_copy(update=free if name in ("llama", "qwen3") else {})
    shape = shape.model_copy(update={"heads": 4}) if free else shape
    model_family = family(name)
    model = build_model(shape, recipe(network=name), 9, 0)
    matrices = [
        tuple(parameter.shape)
        for parameter_name, parameter in model.named_parameters()
        if model_family.role(parameter_name).is_matrix and model_family.role(parameter_name).layer == 1
    ]
    assert sorted(matrices) == sorted(model_family.matrices(shape))


def test_the_built_in_families_are_found():
    assert family_names() == ["analysed", "gpt2", "llama", "qwen3", "tiny_llama"]
    with pytest.raises(
        InputError, match=r"`training.network`.*allowed: analysed, gpt2, llama, qwen3.*did you mean"
    ):
        family("gpt3")


def test_its_counts_are_those_of_its_model():
    model = build_model(SHAPE, recipe(), 9, seed=0)
    counts = family("tiny_llama").parameters(SHAPE, recipe(), 9)
    assert counts.total == model.num_parameters()
    linear = sum(
        m.weight.numel() for n, m in model.named_modules() if isinstance(m, nn.Linear) and "head" not in n
    )
    assert family("tiny_llama").flops(SHAPE, recipe(), 9).matrices == 2 * linear
    assert memory(SHAPE, 9, recipe(), Layout(zero=1)).weights >= 4 * counts.total


@pytest.mark.slow
@pytest.mark.parametrize("parametrisation", ["sp", "completep"])
def test_it_trains_under_a_parametrisation(tmp_path, parametrisation):
    one = Cell(
        shape=SHAPE,
        recipe=recipe(steps=15, parametrisation=parametrisation),
        data=DATA,
        data_key=data_key(DATA, 32),
        lr=0.01,
        seed=0,
    )
    result = train(one, data_root=tmp_path, evaluations=2)
    assert result.status == "done"
    assert result.total_params == family("tiny_llama").parameters(SHAPE, recipe(), result.vocabulary).total
    assert result.loss < result.points[0].train_loss


def test_a_spec_takes_it_and_refuses_unknown_ones():
    import yaml

    raw = yaml.safe_load(Path(SMALL).read_text())
    raw["training"]["network"] = "tiny_llama"
    spec = parse_spec(raw)
    assert spec.recipe.network == "tiny_llama"
    plan = make_plan(spec)
    assert [planned.parameters.position for planned in plan.cells] == [0] * len(plan.cells)
    assert any("Tiny Llama" in note and "13.0·d²" in note for note in plan.notes)
    raw["training"]["network"] = "tiny_lama"
    with pytest.raises(InputError, match="tiny_llama"):
        parse_spec(raw)
