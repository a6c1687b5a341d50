"""How branches join the residual stream: each variant against its formula, and what it does to a deep model."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.model.parametrisation import param_groups
from trainables.record import Keep
from trainables.train.loop import train

SHAPE, VOCABULARY, CONTEXT = Shape(depth=3, width=16, heads=2), 9, 16
DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=600, validation_sequences=20)


def recipe(residual, **options):
    return Recipe(**{"steps": 20, "batch": 4, "context": CONTEXT, "residual": residual, **options})


def cell(residual, depth=3):
    return Cell(
        shape=Shape(depth=depth, width=16, heads=2), recipe=recipe(residual), data=DATA,
        data_key=data_key(DATA, CONTEXT), lr=0.02, seed=0,
    )  # fmt: skip


def tokens():
    return torch.randint(VOCABULARY, (3, CONTEXT), generator=torch.Generator().manual_seed(5))


def norm(x, module):
    return functional.layer_norm(x, x.shape[-1:], module.weight, module.bias, module.eps)


def test_a_cell_of_before_has_the_key_it_had():
    plain = Recipe(steps=20, batch=4, context=CONTEXT)
    assert "residual" not in plain.model_dump(mode="json")
    assert "network" not in plain.model_dump(mode="json")
    assert cell("pre").key != cell("sqrt").key
    assert cell("pre").key == "3adf8cbad32a749b"


@pytest.mark.parametrize("residual", ["post", "admin"])
def test_norms_stand_behind_the_sums(residual):
    model = build_model(SHAPE, recipe(residual), VOCABULARY, seed=1).eval()
    body, x = model.transformer, tokens()
    with torch.no_grad():
        stream = body.wte(x) + body.wpe(torch.arange(CONTEXT))
        for block in body.h:
            attn, mlp = (block.omega_attn, block.omega_mlp) if residual == "admin" else (1.0, 1.0)
            stream = norm(stream * attn + block.attn(stream)[0], block.ln_1)
            stream = norm(stream * mlp + block.mlp(stream), block.ln_2)
        expected = norm(stream, body.ln_f) @ body.wte.weight.T
        assert torch.allclose(model(input_ids=x).logits, expected, atol=1e-5)


def test_admin_starts_with_the_variances_of_the_branches_before():
    model = build_model(SHAPE, recipe("admin"), VOCABULARY, seed=1).eval()
    blocks = model.transformer.h
    weights = [float(w.detach()[0]) for b in blocks for w in (b.omega_attn, b.omega_mlp)]
    assert weights[0] == 1.0
    assert all(late > early for early, late in itertools.pairwise(weights))
    plain = build_model(SHAPE, recipe("post"), VOCABULARY, seed=1).eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(VOCABULARY, (8, CONTEXT), generator=generator)
    total, body = 1.0, plain.transformer
    with torch.no_grad():
        stream = body.wte(x) + body.wpe(torch.arange(CONTEXT))
        for block, two in zip(body.h, zip(weights[::2], weights[1::2], strict=True), strict=True):
            for branch, after, weight in ((block.attn, block.ln_1, two[0]), (block.mlp, block.ln_2, two[1])):
                assert weight == pytest.approx(math.sqrt(total), rel=1e-5)
                added = branch(stream)[0] if branch is block.attn else branch(stream)
                total += float(added.var())
                stream = norm(stream + added, after)


@pytest.mark.parametrize(("residual", "power"), [("sqrt", 0.5), ("linear", 1.0)])
def test_scaled_branches_train_as_if_the_factor_stood_in_forward(residual, power):
    """Ten steps of AdamW on our absorbed weights, and on a plain model whose branches are multiplied in forward."""
    one = recipe(residual, grad_clip=0.0)
    ours = build_model(SHAPE, one, VOCABULARY, seed=2)
    factor = SHAPE.depth**-power
    plain = build_model(SHAPE, one, VOCABULARY, seed=2)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".c_proj." in name:
                parameter.div_(factor)
    for block in plain.transformer.h:
        block.attn.register_forward_hook(lambda _, __, out: (out[0] * factor, *out[1:]))
        block.mlp.register_forward_hook(lambda _, __, out: out * factor)
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim >= 2], "weight_decay": one.weight_decay},
        {"params": [p for p in plain.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    pairs = [
        (ours, torch.optim.AdamW(param_groups(ours.named_parameters(), SHAPE, one, 0.01))),
        (plain, torch.optim.AdamW(groups, lr=0.01, eps=one.epsilon)),
    ]
    x = tokens()
    losses = []
    for model, optimizer in pairs:
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)


def test_the_spread_of_a_branch_at_the_start_is_what_depth_makes_it():
    shape = Shape(depth=16, width=64, heads=2)
    std = {}
    for residual in ("pre", "sqrt", "linear", "post"):
        block = build_model(shape, recipe(residual), VOCABULARY, seed=0).transformer.h[0]
        std[residual] = float(block.attn.c_proj.weight.detach().std())
    assert std["pre"] == pytest.approx(1 / math.sqrt(64 * 32), rel=0.05)
    assert std["sqrt"] == pytest.approx(std["pre"], rel=1e-5)
    assert std["linear"] == pytest.approx(std["pre"] / 4, rel=1e-5)
    assert std["post"] == pytest.approx(1 / 8, rel=0.05)


def test_scaled_norms_shrink_with_the_layer():
    model = build_model(SHAPE, recipe("scaled_norm"), VOCABULARY, seed=0)
    for layer, block in enumerate(model.transformer.h, 1):
        for one in (block.ln_1, block.ln_2):
            assert torch.allclose(one.weight, torch.full((16,), layer**-0.5))
    assert torch.equal(model.transformer.ln_f.weight, torch.ones(16))


@pytest.mark.parametrize("residual", ["pre", "sqrt", "linear", "scaled_norm", "post", "admin"])
def test_the_count_of_parameters_is_the_models(residual):
    model = build_model(SHAPE, recipe(residual), VOCABULARY, seed=0)
    assert family("gpt2").parameters(SHAPE, recipe(residual), VOCABULARY).total == model.num_parameters()


def test_only_what_is_a_plain_gpt2_keeps_its_weights(tmp_path):
    for residual, kept in (("admin", False), ("sqrt", True)):
        folder = tmp_path / residual
        result = train(cell(residual, 1), data_root=tmp_path / "data", weights=Keep(folder), evaluations=1)
        assert result.status == "done"
        assert folder.exists() is kept


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"residual": "admin", "parametrisation": "mup"}, "`parametrisation: mup` and `residual: admin`"),
        ({"residual": "sqrt", "network": "analysed"}, "has no `residual: sqrt`"),
        ({"parametrisation": "mup", "network": "analysed"}, "needs `parametrisation: sp`"),
        ({"network": "analysed", "dropout": 0.1}, "`dropout: 0`"),
    ],
)
def test_two_changes_at_once_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        build_model(SHAPE, Recipe(steps=20, batch=4, context=CONTEXT, **options), VOCABULARY, seed=0)
