"""Start, learning rate, decay and epsilon follow width and depth as the papers have it, and at the base shape not."""

import functools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from tests.trainables.export.test_weights import load, validation_loss
from trainables.cell import Base, Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.model.build import build_model
from trainables.model.parametrisation import attention_ratio, param_groups
from trainables.record import Keep
from trainables.train.loop import train

VOCABULARY, CONTEXT = 9, 16
DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=600, validation_sequences=20)
BASE = Base(depth=2, width=16, head_width=8)
SEEDS = range(2)


def recipe(parametrisation, **options):
    values = {"steps": 10, "batch": 4, "context": CONTEXT, "base": BASE, **options}
    return Recipe(parametrisation=parametrisation, **values)


def cell(shape, one, seed=0):
    return Cell(shape=shape, recipe=one, data=DATA, data_key=data_key(DATA, CONTEXT), lr=0.02, seed=seed)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def losses(root):
    """The losses of a cell by its shape and parametrisation, each trained once."""

    @functools.cache
    def of(depth, width, parametrisation):
        one = cell(Shape(depth=depth, width=width, heads=2), recipe(parametrisation))
        result = train(one, data_root=root, evaluations=1)
        return [*(p.train_loss for p in result.points), result.loss]

    return of


@pytest.mark.parametrize(("parametrisation", "depth"), [("completep", 2), ("mup", 2), ("mup", 3)], ids=str)
def test_at_the_base_shape_the_training_is_that_of_sp_bit_for_bit(losses, parametrisation, depth):
    assert losses(depth, 16, parametrisation) == losses(depth, 16, "sp")


def test_at_the_base_depth_completep_is_mup(losses):
    assert losses(2, 24, "mup") == losses(2, 24, "completep") != losses(2, 24, "sp")


class Table:
    """Table 1 of Dey et al. 2025 to the letter: weights without multipliers, multipliers in forward."""

    def __init__(self, shape, one, seed):
        self.wide = shape.width / BASE.width
        self.deep = shape.depth / BASE.depth if one.parametrisation == "completep" else 1.0
        self.model = build_model(shape, one, VOCABULARY, seed)
        body = self.model.transformer
        with torch.no_grad():
            for block in body.h:
                for layer in (block.attn.c_proj, block.mlp.c_proj):
                    layer.weight.mul_(self.deep)
            body.ln_f.weight.fill_(1.0)
        for block in body.h:
            block.attn.register_forward_hook(lambda _, __, out: (out[0] / self.deep, *out[1:]))
            block.mlp.register_forward_hook(lambda _, __, out: out / self.deep)
        body.ln_f.register_forward_hook(lambda _, __, out: out / self.wide)

    def groups(self, one, lr):
        hidden, rest = [], []
        for name, parameter in self.model.named_parameters():
            (hidden if ".h." in name else rest).append((name, parameter))
        inside = one.epsilon / self.wide / self.deep
        weights = [p for n, p in hidden if p.ndim == 2]
        return [
            {"params": [p for _, p in rest if p.ndim == 2], "lr": lr, "weight_decay": one.weight_decay,
             "eps": one.epsilon / self.wide},
            {"params": [p for _, p in rest if p.ndim == 1], "lr": lr, "weight_decay": 0.0,
             "eps": one.epsilon / self.wide},
            {"params": weights, "lr": lr / self.wide, "weight_decay": one.weight_decay * self.wide, "eps": inside},
            {"params": [p for _, p in hidden if p.ndim == 1], "lr": lr, "weight_decay": 0.0, "eps": inside},
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("parametrisation", "shape"),
    [
        ("mup", (1, 8, 2)),
        ("completep", (6, 24, 2)),
        # The same rule at other ratios of width and depth.
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("mup", (6, 24, 2)),
                ("mup", (4, 48, 4)),
                ("completep", (1, 8, 2)),
                ("completep", (4, 48, 4)),
            ]
        ),
    ],
    ids=str,
)
def test_absorbed_multipliers_train_as_those_of_the_papers_table(parametrisation, shape):
    """Epsilon and decay are large enough to count; there is no clipping, whose norm is another."""
    depth, width, heads = shape
    shape = Shape(depth=depth, width=width, heads=heads)
    one = recipe(parametrisation, epsilon=1e-3, weight_decay=0.5)
    table = Table(shape, one, seed=3)
    model = build_model(shape, one, VOCABULARY, seed=3)
    optimizers = [
        torch.optim.AdamW(groups, betas=(0.9, 0.95))
        for groups in (param_groups(model.named_parameters(), shape, one, 0.02), table.groups(one, 0.02))
    ]
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(12):
        tokens = torch.randint(0, 3, (8, CONTEXT + 1), generator=generator)
        x, y = tokens[:, :-1], tokens[:, 1:].reshape(-1)
        for network, optimizer in zip((model, table.model), optimizers, strict=True):
            loss = functional.cross_entropy(network(input_ids=x).logits.view(-1, VOCABULARY), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[::2] == pytest.approx(losses[1::2], rel=2e-5)
    assert losses[-1] < 0.7 * losses[0]


def test_scores_of_attention_go_as_one_over_the_width_of_a_head():
    scales = {}
    for width, heads in ((16, 2), (64, 2), (64, 8)):
        shape = Shape(depth=1, width=width, heads=heads)
        model = build_model(shape, recipe("mup"), VOCABULARY, 0)
        found = {module.scaling for module in model.modules() if isinstance(module, GPT2Attention)}
        scales[width // heads] = found.pop()
        assert not found
    assert scales[8] == pytest.approx(1 / math.sqrt(8))
    assert scales[32] == pytest.approx(scales[8] * 8 / 32)


@pytest.mark.parametrize(
    ("precision", "close"), [("fp32", 1e-6), pytest.param("bf16", 1e-3, marks=pytest.mark.slow)]
)
def test_huggingface_gets_the_recorded_loss_of_a_model_with_another_scale_of_attention(
    root, tmp_path, precision, close
):
    one = cell(Shape(depth=3, width=40, heads=2), recipe("completep", precision=precision, weight_decay=0.1))
    assert attention_ratio(one.shape, one.recipe) == pytest.approx(math.sqrt(8 / 20))
    result = train(one, data_root=root, weights=Keep(tmp_path / "m"), evaluations=1)
    assert validation_loss(load(tmp_path / "m"), one, root) == pytest.approx(result.loss, rel=close)
    plain = build_model(one.shape, one.recipe, VOCABULARY, 0)
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, GPT2Attention):
                assert module.scaling != module.head_dim**-0.5, "the folder has to hold it in its weights"


# The coordinate check of Yang et al. 2022


def sentences():
    """Each symbol is followed by one and the same other in four cases of five."""
    generator = torch.Generator().manual_seed(7)
    after = torch.randperm(VOCABULARY, generator=generator)
    tokens = torch.randint(0, VOCABULARY, (8, 33), generator=generator)
    kept = torch.rand(8, 33, generator=generator) < 0.8
    for position in range(1, 33):
        tokens[:, position] = torch.where(
            kept[:, position], after[tokens[:, position - 1]], tokens[:, position]
        )
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


@functools.cache
def changes(parametrisation, depth, width, seed, steps=20, lr=0.01):
    """Root mean square of what some steps change: the embedded input, the residual stream at its end, the logits."""
    shape = Shape(depth=depth, width=width, heads=2)
    one = recipe(parametrisation, context=32)
    model = build_model(shape, one, VOCABULARY, seed)
    optimizer = torch.optim.AdamW(param_groups(model.named_parameters(), shape, one, lr), betas=(0.9, 0.95))
    x, y = sentences()
    seen = {}
    model.transformer.drop.register_forward_hook(
        lambda _, __, out: seen.update(embedded=out.detach().clone())
    )
    model.transformer.ln_f.register_forward_pre_hook(
        lambda _, inputs: seen.update(stream=inputs[0].detach().clone())
    )
    for step in range(steps + 1):
        logits = model(input_ids=x).logits
        seen["logits"] = logits.detach().clone()
        if step == 0:
            first = dict(seen)
        if step < steps:
            optimizer.zero_grad()
            functional.cross_entropy(logits.view(-1, VOCABULARY), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), one.grad_clip)
            optimizer.step()
    return [
        float((seen[key] - first[key]).square().mean().sqrt()) for key in ("embedded", "stream", "logits")
    ]


def exponents(parametrisation, axis):
    """The powers of the width (16 to 128 at 2 layers) or the depth (2 to 8 at width 32) that the changes follow."""
    shapes = [(2, width) for width in (16, 32, 64, 128)] if axis == "width" else [(n, 32) for n in (2, 4, 8)]
    logs = np.log(
        [np.mean([changes(parametrisation, *shape, seed) for seed in SEEDS], axis=0) for shape in shapes]
    )
    size = [width if axis == "width" else depth for depth, width in shapes]
    return dict(zip(("embedded", "stream", "logits"), np.polyfit(np.log(size), logs, 1)[0], strict=True))


@pytest.mark.parametrize(("parametrisation", "axis"), [("mup", "width"), ("completep", "depth")])
def test_what_training_changes_is_of_order_one_at_every_width_and_depth(parametrisation, axis):
    """Were the changes of the layers incoherent, the stream's would fall as 1/sqrt(L)."""
    found = exponents(parametrisation, axis)
    assert abs(found.pop("stream")) < 0.3
    assert all(abs(exponent) < 0.15 for exponent in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parametrisation", "axis", "least"), [("sp", "width", 0.7), ("sp", "depth", 0.5), ("mup", "depth", 0.5)]
)
def test_without_a_rule_for_it_the_residual_stream_changes_the_more_the_larger_the_model(
    parametrisation, axis, least
):
    assert exponents(parametrisation, axis)["stream"] > least
