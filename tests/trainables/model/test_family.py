"""Another model family is one class: it is counted, built, trained and planned without a change of any module."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from study.spec.study import parse_spec
from tests.study.small import SMALL
from trainables.cell import Base, Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.model import family as families
from trainables.model.build import build_model
from trainables.model.chunked_loss import ChunkedLoss
from trainables.model.counts import memory
from trainables.model.family import Flops, ModelFamily, Parameters, Role, family, family_names
from trainables.model.parametrisation import attention_ratio, param_groups
from trainables.train.loop import train

DATA = HierarchyData()
SHAPE = Shape(depth=2, width=24, heads=2)


class Llama(ChunkedLoss, LlamaForCausalLM):
    pass


class TinyLlama(ModelFamily):
    """Llama with as many key-value heads as heads and an MLP of 3·d."""

    name = "tiny_llama"

    def parameters(self, shape, recipe, vocabulary):
        width = shape.width
        return Parameters(vocabulary * width, 0, shape.depth * (13 * width**2 + 2 * width) + width)

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
    monkeypatch.setattr(families, "_REGISTERED", dict(families._REGISTERED))
    families.register(TinyLlama)


def recipe(**changes):
    return Recipe(**{"steps": 6, "batch": 4, "context": 32, "network": "tiny_llama", **changes})


def test_the_built_in_families_are_found():
    assert {"analysed", "gpt2", "tiny_llama"} <= set(family_names())
    with pytest.raises(InputError, match=r"`training.network`.*allowed: analysed, gpt2.*did you mean"):
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


#: Twice as wide and deep as the base.
BASE = Base(depth=1, width=12, head_width=6)


def by_the_table(parametrisation, lr):
    """A model, its multiplier of the logits and its groups, by table 8 of Yang et al. and table 1 of Dey et al."""
    m, deep = 2, 2 if parametrisation == "completep" else 1
    one = recipe(parametrisation=parametrisation, base=BASE)
    model = build_model(SHAPE, one, 9, seed=0)
    groups = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_output = "o_proj" in name or "down_proj" in name
            if name == "model.norm.weight":
                parameter.fill_(1.0)
            # The multiplier of a branch stands before its last matrix.
            parameter.mul_(deep if is_output else 1)
            is_hidden = ".layers." in name and parameter.ndim == 2
            groups.append(
                {
                    "params": [parameter],
                    "lr": lr / m if is_hidden else lr,
                    "weight_decay": 0.1 * m if is_hidden else 0.1 * (parameter.ndim == 2),
                    "eps": 1e-8 / m / (deep if ".layers." in name else 1),
                }
            )
    for layer in model.model.layers:
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.register_forward_hook(lambda _, __, out: out / deep)
    model.lm_head.register_forward_hook(lambda _, __, out: out / m)
    return model, groups


@pytest.mark.parametrize("parametrisation", ["mup", "completep"])
def test_its_absorbed_multipliers_train_as_those_of_the_papers_tables(parametrisation):
    """Norms too: Llama's are no `LayerNorm`, and the last one has a gain of 1/m and learns at 1/m of the rate."""
    one, lr = recipe(parametrisation=parametrisation, base=BASE, weight_decay=0.1), 0.01
    ours = build_model(SHAPE, one, 9, seed=0)
    assert ours.model.norm.weight.tolist() == [0.5] * SHAPE.width
    theirs, groups = by_the_table(parametrisation, lr)
    losses = []
    for model, options in (
        (ours, param_groups(ours.named_parameters(), SHAPE, one, lr)),
        (theirs, groups),
    ):
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
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    assert losses[0][-1] < losses[0][0]


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
    assert parse_spec(raw).recipe.network == "tiny_llama"
    raw["training"]["network"] = "tiny_lama"
    with pytest.raises(InputError, match="tiny_llama"):
        parse_spec(raw)
