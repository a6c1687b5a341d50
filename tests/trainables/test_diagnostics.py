import itertools
import json
import math

import pytest
import torch
from torch.nn import functional

from core.errors import InputError
from trainables.__main__ import main
from trainables.cell import Cell, Recipe, Shape
from trainables.checkpoint import checkpoint
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store.batches import IGNORED, validation_batches
from trainables.data.store.open import open_store
from trainables.diagnostics import DIAGNOSTICS, check_diagnostics
from trainables.diagnostics.attention import attention, shares
from trainables.diagnostics.induction import after_same, induction, looked_at, scores
from trainables.diagnostics.probe import PROBE_TOKENS, layer_drop, mean_loss
from trainables.diagnostics.rank import rank, residual, token_cosine
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.train.loop import train

DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=800, validation_sequences=40)
CONTEXT = 16
STEPS = 10


def cell(depth=2, **recipe):
    return Cell(
        shape=Shape(depth=depth, width=16, heads=2),
        recipe=Recipe(**{"steps": STEPS, "batch": 8, "context": CONTEXT, **recipe}),
        data=DATA,
        data_key=data_key(DATA, CONTEXT),
        lr=0.02,
        seed=0,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def fresh(depth=3, width=16, context=32, vocabulary=9, **recipe):
    recipe = Recipe(steps=1, batch=1, context=context, **recipe)
    return build_model(Shape(depth=depth, width=width, heads=2), recipe, vocabulary, 0).eval()


def parts(model, **recipe):
    one = Recipe(steps=1, batch=1, context=32, **recipe)
    return family(one.network).parts(model, one)


def scattered(model, std=0.3):
    """With weights that a trained model might have: its branches matter, and its biases are not zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def tokens(batch=4, length=32, vocabulary=9, seed=0):
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def plain(measures):
    return {name: float(value) for name, value in measures.items()}


KINDS = [
    *({"parametrisation": kind} for kind in ("sp", "completep")),
    *({"residual": kind} for kind in ("scaled_norm", "post", "admin")),
    {"network": "analysed"},
    {"network": "llama"},
    {"network": "qwen3", "embeddings": "untied"},
]


@pytest.mark.parametrize("recipe", KINDS, ids=lambda recipe: "-".join(recipe.values()))
def test_the_layers_looked_into_are_those_of_the_model(recipe):
    model, inputs = scattered(fresh(**recipe)), tokens()
    with torch.no_grad():
        theirs = model(input_ids=inputs, output_hidden_states=True)
        cut = parts(model, **recipe)
        found = plain(rank(cut, inputs))
        states = cut.embedded(inputs)
        assert torch.allclose(states, theirs.hidden_states[0])
        # The last of theirs is behind the final norm.
        for layer, block in enumerate(cut.layers(), 1):
            states = cut.feed(block, cut.attention(block, states))
            if layer < 3:
                assert torch.allclose(states, theirs.hidden_states[layer], atol=1e-5)
            assert found[f"rank_residual/{layer}"] == pytest.approx(float(residual(states)), rel=1e-5)
            assert found[f"token_cosine/{layer}"] == pytest.approx(float(token_cosine(states)), rel=1e-4)
        targets = tokens(seed=1)
        loss = functional.cross_entropy(theirs.logits.transpose(1, 2), targets)
        assert float(mean_loss(cut, states, targets)) == pytest.approx(float(loss), abs=1e-5)


def test_the_paths_without_skips_and_feed_forward_are_those_of_a_net_without_them():
    model, inputs = scattered(fresh(depth=2)), tokens()
    with torch.no_grad():
        found = plain(rank(parts(model), inputs))
        start = parts(model).embedded(inputs)
        paths = dict.fromkeys(("noskip", "noffn", "attention"), start)
        for layer, block in enumerate(model.transformer.h, 1):
            paths["noskip"] = block.attn(block.ln_1(paths["noskip"]))[0]
            paths["noskip"] = block.mlp(block.ln_2(paths["noskip"]))
            paths["attention"] = block.attn(block.ln_1(paths["attention"]))[0]
            # A feed-forward network of zeros adds nothing.
            for parameter in block.mlp.parameters():
                parameter.zero_()
            paths["noffn"] = block(paths["noffn"])
            for name, states in paths.items():
                assert found[f"rank_residual_{name}/{layer}"] == pytest.approx(
                    float(residual(states)), rel=1e-5
                )


def test_the_distance_is_that_from_the_nearest_matrix_of_equal_rows():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    ones = torch.ones(7, 1, dtype=torch.float64)
    distances = []
    for one in states:
        nearest = torch.linalg.lstsq(ones, one).solution
        distances.append(float(torch.linalg.norm(one - ones @ nearest) / torch.linalg.norm(one)))
    assert float(residual(states)) == pytest.approx(sum(distances) / 3)
    # Tokens all alike, and tokens whose mean is nothing.
    row = torch.randn(1, 1, 5, generator=generator)
    assert float(residual(row.expand(2, 6, 5))) == pytest.approx(0, abs=1e-6)
    assert float(residual(torch.cat([row, -row], 1))) == pytest.approx(1)


def test_the_cosine_is_the_mean_over_pairs_of_different_tokens():
    states = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    pairs = [
        float(functional.cosine_similarity(one[i], one[j], dim=0))
        for one in states
        for i in range(6)
        for j in range(6)
        if i != j
    ]
    assert float(token_cosine(states)) == pytest.approx(sum(pairs) / len(pairs), rel=1e-5)
    assert float(token_cosine(torch.eye(4)[None])) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("init", ["fan_in", "gpt2"])
def test_attention_alone_makes_tokens_alike_exponentially_in_depth_and_skips_do_not(init):
    """Dong et al. 2021; at initialisation the causal mean halves the distance with each layer (see the module)."""
    with torch.no_grad():
        found = plain(rank(parts(fresh(depth=16, width=32, context=64, init=init)), tokens(16, 64)))
    alone = [found[f"rank_residual_attention/{layer}"] for layer in range(1, 17)]
    with_skips = [found[f"rank_residual/{layer}"] for layer in range(1, 17)]
    assert all(after < before for before, after in itertools.pairwise(alone))
    # From layer 4 on, where the start is forgotten: a factor of a half a layer, within a third of its logarithm.
    rate = math.log(alone[15] / alone[3]) / 12
    assert math.log(0.5) * 4 / 3 < rate < math.log(0.5) * 2 / 3
    assert alone[15] < 1e-3
    assert found["rank_residual_noskip/16"] < 0.02
    assert with_skips[15] > 0.25
    assert found["rank_residual_noffn/16"] > 0.15
    # With skips the second half of the layers takes next to nothing.
    assert with_skips[15] / with_skips[7] > 0.75


@pytest.mark.parametrize("scored", [32, 5], ids=["text", "a task"])
def test_what_a_layer_is_worth_is_the_loss_of_the_model_without_it(scored):
    model, inputs, targets = scattered(fresh(depth=3)), tokens(), tokens(seed=1)
    # Of a task only the last targets may be scored.
    targets[:, :-scored] = IGNORED
    with torch.no_grad():
        found = plain(layer_drop(parts(model), inputs, targets))

        def loss(left_out=None):
            other = scattered(fresh(depth=3))
            other.transformer.h = torch.nn.ModuleList(
                block for index, block in enumerate(other.transformer.h, 1) if index != left_out
            )
            other.config.n_layer = len(other.transformer.h)
            logits = other(input_ids=inputs).logits
            return float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

        whole = loss()
        expected = {f"layer_drop/{layer}": loss(layer) - whole for layer in (1, 2, 3)}
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(value, 3) for value in found.values()}) == 3


def test_the_place_after_the_same_token_is_found():
    row = [3, 1, 4, 1, 1, 3, 4, 4]
    expected = []
    for place, token in enumerate(row):
        earlier = [p for p in range(place) if row[p] == token]
        after = earlier[-1] + 1 if earlier else -1
        expected.append(after if 0 < after < place else -1)
    assert expected == [-1, -1, -1, 2, -1, 1, 3, -1]
    assert after_same(torch.tensor([row])).tolist() == [expected]
    block = tokens(2, 8, 100)
    twice = after_same(torch.cat([block, block], 1))
    assert twice[:, 8:15].tolist() == [list(range(1, 8))] * 2


def test_attention_is_that_of_the_model():
    model, inputs = scattered(fresh(depth=1)), tokens()
    with torch.no_grad():
        block = model.transformer.h[0]
        cut = parts(model)
        mine = cut.attention_weights(block, cut.embedded(inputs))
        model.set_attn_implementation("eager")
        theirs = model(input_ids=inputs, output_attentions=True).attentions[0]
    assert torch.allclose(mine, theirs, atol=1e-5)


def test_the_induction_score_of_equal_attention_is_known_and_that_of_a_made_head_is_one():
    model = fresh(depth=2, context=16, vocabulary=50)
    block = torch.arange(8)[None]
    inputs = torch.cat([block, block], 1)
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.attn.c_attn.weight.zero_()
        # Each of the last half looks at all before it and at itself alike.
        equal = sum(1 / (place + 1) for place in range(8, 16)) / 8
        found = plain(induction(parts(model), inputs))
        for name in ("induction_score/1", "induction_score/2", "induction_score"):
            assert found[name] == pytest.approx(equal, rel=1e-5)
        # Positions are unit vectors, and head 2 of the first layer asks at place p for place p - 7.
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.copy_(torch.eye(16))
        query, key = (
            model.transformer.h[0].attn.c_attn.weight[:16],
            model.transformer.h[0].attn.c_attn.weight[16:32],
        )
        for place in range(7, 15):
            query[8 + place - 7, place] = 100.0
            key[8 + place - 7, place - 7] = 1.0
        short = inputs[:, :15]
        found = plain(induction(parts(model), short))
    assert found["induction_score/1"] == pytest.approx(1, abs=0.02)
    assert found["induction_score/2"] < 0.2
    assert found["induction_score"] == found["induction_score/1"] == found["induction_score_shifted"]
    assert found["induction_shift"] == found["induction_shift/1"] == 0
    assert induction(parts(model), torch.arange(16)[None]) == {}


@pytest.mark.parametrize("shift", [0, 1, 3, 7])
def test_a_head_that_looks_farther_on_is_found_with_its_distance(shift):
    """Blocks of 10, 12 and 17 tokens that are repeated; head 2 of 3 looks where it would, the others at themselves."""
    inputs = torch.stack(
        [torch.arange(40) % 10, torch.arange(40) % 12, torch.tensor([*range(17), *range(17), *range(6)])]
    )
    weights = torch.eye(40).expand(3, 3, 40, 40).clone()
    for row, period in enumerate((10, 12, 17)):
        for place in range(20, 40):
            weights[row, 1, place] = 0
            back = period if shift < period else 2 * period
            weights[row, 1, place, place - back + 1 + shift] = 1
    found = scores(weights, looked_at(inputs))
    assert int(found.argmax()) == shift
    assert found[shift] == 1
    # A whole period farther on stands the same, in one of the three rows.
    assert sorted(found.tolist())[-2] < 0.4
    assert scores(torch.eye(40).expand(3, 3, 40, 40), looked_at(inputs)).max() == 0, (
        "attention to oneself is none"
    )


def test_the_position_behind_the_same_token_is_before_the_present_one():
    inputs = torch.tensor([[5, 6, 5, 5, 7, 5, 6]])
    assert after_same(inputs)[0].tolist() == [-1, -1, 1, -1, -1, 4, 2]
    # One and two behind: a token counts as the same where two or three more follow it, before the present one.
    assert after_same(inputs, 1)[0].tolist() == [-1, -1, -1, 2, -1, 4, 3]
    assert after_same(inputs, 2)[0].tolist() == [-1, -1, -1, -1, -1, 3, 4]


def test_the_shares_of_attention_are_those_of_a_loop_over_all_tokens():
    inputs = tokens(batch=3, length=9, vocabulary=4)
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(3, 2, 9, 9, generator=generator, dtype=torch.float64).tril()
    weights /= weights.sum(3, keepdim=True)
    sums = dict.fromkeys(("self", "previous", "first", "same"), 0.0)
    for row, head, place in itertools.product(range(3), range(2), range(2, 9)):
        paid = weights[row, head, place].tolist()
        sums["self"] += paid[place]
        sums["previous"] += paid[place - 1]
        sums["first"] += paid[0]
        sums["same"] += sum(paid[at] for at in range(place) if inputs[row, at] == inputs[row, place])
    expected = {f"attention_{name}": value / (3 * 2 * 7) for name, value in sums.items()}
    assert plain(shares(weights, inputs)) == pytest.approx(expected)


@pytest.mark.parametrize("recipe", [{}, {"network": "llama"}, {"residual": "post"}], ids=str)
def test_heads_without_preference_pay_each_token_alike_in_every_layer(recipe):
    model = fresh(depth=2, **recipe)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn" in name or "q_proj" in name:
                parameter.zero_()
        measures = plain(attention(parts(model, **recipe), torch.arange(9)[None]))
        assert attention(parts(model, **recipe), torch.arange(2)[None]) == {}
    equal = sum(1 / (place + 1) for place in range(2, 9)) / 7
    assert measures == pytest.approx(
        {
            f"attention_{name}/{layer}": 0 if name == "same" else equal
            for name in ("self", "previous", "first", "same")
            for layer in (1, 2)
        }
    )


def test_diagnostics_change_no_bit_of_a_cell(root):
    # Dropout draws random numbers, which nothing else may.
    one = cell(dropout=0.1)
    bare = train(one, data_root=root)
    looked = train(one, data_root=root, diagnostics=DIAGNOSTICS)
    assert looked.loss == bare.loss
    assert [(p.train_loss, p.grad_norm) for p in looked.points] == [
        (p.train_loss, p.grad_norm) for p in bare.points
    ]
    assert [e.loss for e in looked.evaluations] == [e.loss for e in bare.evaluations]
    assert bare.start == {}
    assert {tuple(e.measures) for e in bare.evaluations} == {()}
    layered = (
        "rank_residual",
        "rank_residual_noskip",
        "token_cosine",
        "layer_drop",
        "induction_score",
        "attention_self",
    )
    names = {f"{name}/{layer}" for name in layered for layer in (1, 2)}
    for measures in (looked.start, *(e.measures for e in looked.evaluations)):
        assert names | {"induction_score"} <= set(measures)


def test_the_start_and_the_end_are_those_of_the_models_at_hand(root, tmp_path):
    one = cell()
    result = train(one, data_root=root, diagnostics=["rank", "layer_drop"], evaluations=2)
    store = open_store(DATA, context=CONTEXT, root=root)
    x, y = next(validation_batches(store, context=CONTEXT, batch=PROBE_TOKENS // CONTEXT))
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    model = build_model(one.shape, one.recipe, store.vocabulary, one.seed).eval()
    with torch.no_grad():
        expected = plain(rank(parts(model), inputs)) | plain(layer_drop(parts(model), inputs, targets))
    assert result.start == pytest.approx(expected, abs=1e-6)
    end = result.evaluations[-1].measures
    assert set(end) == set(expected)
    assert end != pytest.approx(expected, abs=1e-2)


@pytest.mark.slow
def test_a_killed_cell_has_the_same_diagnostics(root, tmp_path, monkeypatch):
    whole = train(cell(), data_root=root, diagnostics=DIAGNOSTICS)
    save, saves = checkpoint.save, []

    def save_and_stop(*args):
        saves.append(save(*args))
        if len(saves) == 6:
            saves[-1].finish()
            raise KeyboardInterrupt
        return saves[-1]

    monkeypatch.setattr(checkpoint, "save", save_and_stop)
    options = {"data_root": root, "checkpoints": tmp_path, "checkpoint_every": 0, "diagnostics": DIAGNOSTICS}
    with pytest.raises(KeyboardInterrupt):
        train(cell(), **options)
    monkeypatch.undo()
    news = []
    monkeypatch.setattr("trainables.train.loop.REPORT_EVERY", 0)
    again = train(cell(), **options, report=news.append)
    assert again.resumed_from == 6
    assert again.start == whole.start
    assert again.evaluations == whole.evaluations
    assert again.loss == whole.loss
    # Told once, with the first points.
    assert [bool(progress.start) for progress in news] == [True] + [False] * (len(news) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "layout"),
    [
        ("fp32", Layout(micro_batch=2)),
        ("fp32", Layout(zero=1)),
        ("bf16", Layout(zero=1)),
    ],
    ids=["pieces", "zero1", "bf16"],
)
def test_every_layout_has_the_diagnostics_of_the_plain_one(root, expected, precision, layout):
    one = cell(steps=4, grad_clip=0.1, precision=precision)
    bare = train(one, data_root=root, layout=layout, evaluations=2)
    result = train(one, data_root=root, diagnostics=DIAGNOSTICS, layout=layout, evaluations=2)
    assert [p.train_loss for p in result.points] == [p.train_loss for p in bare.points]
    assert result.loss == bare.loss
    tolerance = {"rel": 1e-3, "abs": 1e-5} if precision == "fp32" else {"rel": 0.05, "abs": 0.005}
    for found, right in zip(measured(result), measured(expected), strict=True):
        if precision == "bf16":
            # The place of a maximum is not continuous.
            found, right = (
                {name: value for name, value in of.items() if not name.startswith("induction_shift")}
                for of in (found, right)
            )
        assert found == pytest.approx(right, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", KINDS[3:], ids=lambda recipe: "-".join(recipe.values()))
def test_other_networks_are_looked_into_without_a_bit_changed(root, recipe):
    is_analysed = recipe.get("network") == "analysed"
    # Its blocks have no weights of attention to look at.
    names = [name for name in DIAGNOSTICS if name not in ("induction", "attention") or not is_analysed]
    one = cell(steps=4, depth=3, **recipe)
    bare = train(one, data_root=root, evaluations=2)
    looked = train(one, data_root=root, evaluations=2, diagnostics=names)
    assert looked.loss == bare.loss
    assert [p.train_loss for p in looked.points] == [p.train_loss for p in bare.points]
    for name in ("rank_residual", "rank_residual_noskip", "token_cosine", "layer_drop"):
        for layer in (1, 2, 3):
            assert {f"{name}/{layer}"} <= set(looked.start)
            assert {f"{name}/{layer}"} <= set(looked.evaluations[-1].measures)
    if is_analysed:
        # It has no feed-forward networks.
        assert looked.start["rank_residual_noskip/3"] == looked.start["rank_residual_attention/3"]
        assert looked.start["rank_residual_noffn/3"] == looked.start["rank_residual/3"]


@pytest.fixture(scope="module")
def expected(root):
    """One rank in fp32."""
    return train(cell(steps=4, grad_clip=0.1), data_root=root, diagnostics=DIAGNOSTICS, evaluations=2)


def measured(result):
    return [result.start, *(evaluation.measures for evaluation in result.evaluations)]


def test_what_cannot_be_looked_into_is_refused(root):
    recipe = Recipe(steps=1, batch=2, context=16)

    def refusal(names, layout=None, recipe=recipe):
        with pytest.raises(InputError) as refused:
            check_diagnostics(names, layout or Layout(), recipe)
        return str(refused.value)

    shared = refusal(["rank"], Layout(tensor_parallel=2, zero=1))
    assert "tensor_parallel 2" in shared
    assert "Remove the diagnostics, or set tensor_parallel to 1" in shared
    assert "zero 3" in refusal(["rank"], Layout(zero=3))
    analysed = recipe.model_copy(update={"network": "analysed"})
    assert "no diagnostic induction" in refusal(["rank", "induction"], recipe=analysed)
    check_diagnostics(["rank", "layer_drop"], Layout(), analysed)
    with pytest.raises(InputError, match="zero 3"):
        train(cell(), data_root=root, diagnostics=["rank"], layout=Layout(zero=3))
    check_diagnostics([], Layout(tensor_parallel=2, zero=3), recipe)
    check_diagnostics(DIAGNOSTICS, Layout(data_parallel=2, zero=2), recipe)


def test_a_cell_trained_by_hand_has_diagnostics_too(root, tmp_path, capfd):
    path = tmp_path / "cell.json"
    path.write_text(cell(steps=4).model_dump_json())
    assert main([str(path), "--data", str(root), "--evaluations", "1", "--diagnostics", "rank"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert set(result["start"]) == set(result["evaluations"][0]["measures"])
    assert "token_cosine/2" in result["start"]


@pytest.mark.extended
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_ranks_that_share_a_batch_have_the_diagnostics_of_one(ranks, root, expected, zero):
    one = cell(steps=4, grad_clip=0.1)
    layout = Layout(data_parallel=2, zero=zero)
    two = ranks.gang(2, train, one, data_root=root, layout=layout, evaluations=2, diagnostics=DIAGNOSTICS)
    bare = ranks.gang(2, train, one, data_root=root, layout=layout, evaluations=2)
    assert [result.loss for result in two] == [result.loss for result in bare]
    for result in two:
        for found, right in zip(measured(result), measured(expected), strict=True):
            assert found == pytest.approx(right, rel=1e-3, abs=1e-5)
