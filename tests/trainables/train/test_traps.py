"""What DeepSpeed 0.19.8 gets wrong without a word, or with a useless one, and that we keep out of its way.

Each `test_library_defect_...` fails when the library mends the defect, and says what can go then. Beside it stands
what we do instead.
"""

from pathlib import Path

import deepspeed
import pytest
import torch
import torch.distributed as dist

from core.errors import InputError
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.families.gpt2 import PARTITION_CONFIG, GPT2Family
from trainables.ranks.process_group import join
from trainables.train import loop
from trainables.train.engine import build_engine, deepspeed_config, whole_state
from trainables.train.loop import train

WIDTH, VOCABULARY, CONTEXT = 16, 11, 8
SHAPE = Shape(depth=2, width=WIDTH, heads=2)
#: Here the matrices have a larger part in the norm of the gradient, next to the embedding.
WIDE = Shape(depth=2, width=4 * WIDTH, heads=2)
TENSOR = Layout(tensor_parallel=2, zero=1)


def recipe(**changes):
    return Recipe(**{"steps": 20, "batch": 4, "context": CONTEXT, "grad_clip": 0.1, **changes})


def engine_of(layout=None, rate=1e-3, shape=SHAPE, **changes):
    """Our engine of the small model, in the process group this process is in."""
    ours = recipe(**changes)
    return build_engine(build_model(shape, ours, VOCABULARY, 0), shape, ours, rate, layout or Layout())


def library_engine(config=None, layout=None):
    """DeepSpeed's own engine of the same model, with nothing done before or after."""
    ours = recipe()
    model = build_model(SHAPE, ours, VOCABULARY, 0)
    config = {**deepspeed_config(ours, layout or Layout()), **(config or {})}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def tokens(step=0):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, VOCABULARY, (4, CONTEXT), generator=generator)


def train_steps(engine, steps=1):
    for step in range(steps):
        x = tokens(step)
        engine.backward(engine(input_ids=x, labels=x).loss)
        engine.step()


def rows(engine):
    return engine.module.transformer.h[0].attn.c_attn.weight.shape[0]


# Ranks of a gang: each function is called in every one.


def save_16bit(folder, rank_info, rendezvous):
    join(rank_info, rendezvous)
    engine = engine_of(TENSOR)
    said = engine.save_16bit_model(str(folder), "weights.bin")
    whole = whole_state(engine, TENSOR)
    return said, None if whole is None else {name: tuple(t.shape) for name, t in whole.items()}


def drift_when_seeded_by_rank(rank_info, rendezvous):
    """Largest difference of the ranks' replicated weights after 20 steps with masks of each rank's own."""
    join(rank_info, rendezvous)
    engine = engine_of(TENSOR, rate=0.01, dropout=0.1)
    torch.manual_seed(rank_info.rank)
    train_steps(engine, 20)
    mine = engine.module.transformer.wpe.weight.detach().clone()
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return float((both[0] - both[1]).abs().max())


def replicas_after_training(cell, root, rank_info, rendezvous):
    """What each rank has at the end of a cell of the weights that all ranks should have alike."""
    built = []

    def build(*args, **kwargs):
        built.append(build_engine(*args, **kwargs))
        return built[0]

    loop.build_engine = build
    try:
        train(cell, data_root=root, layout=TENSOR, rank_info=rank_info, rendezvous=rendezvous)
    finally:
        loop.build_engine = build_engine
    named = built[0].module.named_parameters()
    return {n: p.detach().clone() for n, p in named if not getattr(p, "tensor_model_parallel", False)}


def unmatched_specs(rank_info, rendezvous):
    """The library's rows of a matrix whose pattern matches nothing, and what our engine says of it."""
    join(rank_info, rendezvous)
    nothing = {
        **PARTITION_CONFIG,
        "layer_specs": [{**spec, "patterns": ["nothing"]} for spec in PARTITION_CONFIG["layer_specs"]],
    }
    tensor = {"autotp_size": 2, "partition_config": nothing}
    replicated = rows(library_engine({"tensor_parallel": tensor}, TENSOR))
    said = []
    for wrong in ({**nothing}, {**PARTITION_CONFIG, "layer_specs": PARTITION_CONFIG["layer_specs"][:2]}):
        GPT2Family.partition_config = wrong
        try:
            engine_of(TENSOR)
        except RuntimeError as error:
            said.append(str(error))
        finally:
            GPT2Family.partition_config = PARTITION_CONFIG
    return replicated, said


def heads_of_the_whole_width(rank_info, rendezvous):
    join(rank_info, rendezvous)
    engine = library_engine(layout=TENSOR)
    try:
        train_steps(engine)
    except ValueError as error:
        return str(error)
    return None


def width_of_logits(rank_info, rendezvous):
    join(rank_info, rendezvous)
    engine = engine_of(Layout(tensor_parallel=2, zero=1, shard_vocabulary=True))
    with torch.no_grad():
        return engine(input_ids=tokens()).logits.shape[-1]


def other_batches(first, rank_info, rendezvous):
    """Train on a batch of each rank's own at the first step, or at the second; say what was raised."""
    join(rank_info, rendezvous)
    engine = engine_of(TENSOR)
    if not first:
        train_steps(engine)
    x = tokens(100 + rank_info.rank)
    try:
        engine.backward(engine(input_ids=x, labels=x).loss)
        engine.step()
    except AssertionError as error:
        return str(error)
    return None


# Several ranks.


@pytest.mark.extended
def test_library_defect_save_16bit_model_writes_one_shard_and_says_true(ranks, tmp_path):
    """When this fails, `trainables.train.engine.whole_state` may use the public method."""
    (said, shapes), (_, other) = ranks.gang(2, save_16bit, tmp_path)
    written = torch.load(tmp_path / "weights.bin", weights_only=True)
    name = "transformer.h.0.attn.c_attn.weight"
    assert said is True
    assert [p.name for p in tmp_path.iterdir()] == ["weights.bin"]
    assert tuple(written[name].shape) == (3 * WIDTH // 2, WIDTH)
    assert shapes[name] == (3 * WIDTH, WIDTH), "what we keep is whole"
    assert other is None


@pytest.mark.extended
def test_library_defect_replicas_drift_when_ranks_draw_other_masks(ranks):
    """When this fails, DeepSpeed has a generator per tensor-parallel group, and the loop need not seed each step."""
    assert min(ranks.gang(2, drift_when_seeded_by_rank)) > 1e-3


@pytest.mark.extended
def test_replicas_do_not_drift_under_dropout_in_our_loop(ranks, tmp_path):
    data = HierarchyData(levels=3, sequences=300, validation_sequences=8)
    cell = Cell(
        shape=SHAPE,
        recipe=recipe(dropout=0.1),
        data=data,
        data_key=data_key(data, CONTEXT),
        lr=0.01,
        seed=0,
    )
    first, second = ranks.gang(2, replicas_after_training, cell, tmp_path)
    assert {"transformer.wpe.weight", "transformer.wte.weight", "transformer.ln_f.bias"} <= first.keys()
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name


@pytest.mark.extended
def test_library_defect_specs_that_match_nothing_leave_the_matrix_whole(ranks):
    """When this fails, `build_engine` need not check that all matrices are shared."""
    for replicated, said in ranks.gang(2, unmatched_specs):
        assert replicated == 3 * WIDTH
        assert said == [
            f"DeepSpeed did not shard transformer.h.0.{name}.weight" for name in ("attn.c_attn", "mlp.c_fc")
        ]


@pytest.mark.extended
def test_library_defect_autotp_leaves_attention_the_whole_width(ranks):
    """When this fails, `build_engine` need not set `split_size`."""
    assert all("not enough values to unpack" in said for said in ranks.gang(2, heads_of_the_whole_width))


@pytest.mark.extended
def test_library_defect_logits_are_the_ranks_shard_of_a_shared_vocabulary(ranks):
    """When this fails, an evaluation may use logits; until then it uses the loss alone."""
    assert ranks.gang(2, width_of_logits) == [6, 5]


@pytest.mark.extended
def test_library_defect_other_batches_in_a_tensor_parallel_group_are_seen_in_the_first_step_only(ranks):
    """When this fails, DeepSpeed guards what the loop now must: all ranks of a group take the same rows."""
    assert all("Data inconsistency" in said for said in ranks.gang(2, other_batches, True))
    assert ranks.gang(2, other_batches, False) == [None, None]


# One rank.


def attention_runs(engine):
    """How often a step runs the first block's attention: twice where backward computes it again."""
    count = []
    engine.module.transformer.h[0].attn.register_forward_hook(lambda *_: count.append(1))
    train_steps(engine)
    engine.destroy()
    return len(count)


def test_library_defect_activation_checkpointing_in_the_config_changes_nothing():
    """When this fails, `build_engine` may say so in the config."""
    join()
    config = {"activation_checkpointing": {"partition_activations": True, "number_checkpoints": 2}}
    assert attention_runs(library_engine(config)) == 1
    assert attention_runs(engine_of(Layout(activation_checkpointing=True))) == 2


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_library_defect_whole_weights_are_refused_where_every_rank_has_them(zero):
    """When this fails, `trainables.train.engine.whole_state` need not tell the layouts apart."""
    join()
    engine = engine_of(Layout(zero=zero))
    with pytest.raises(ValueError, match="consolidated_16bit_state_dict"):
        engine._consolidated_16bit_state_dict()
    assert rows(engine) == 3 * WIDTH
    assert whole_state(engine, Layout(zero=zero))["transformer.wte.weight"].shape == (VOCABULARY, WIDTH)
    engine.destroy()


def test_cells_that_share_a_process_have_the_losses_they_have_alone(tmp_path):
    """Stage 3 replaces torch's `linear`, with which a later cell in bf16 would round in another order."""
    data = HierarchyData(levels=3, sequences=300, validation_sequences=8)

    def loss(precision, layout):
        ours = recipe(precision=precision)
        cell = Cell(shape=SHAPE, recipe=ours, data=data, data_key=data_key(data, CONTEXT), lr=0.01, seed=0)
        return train(cell, data_root=tmp_path, layout=layout).loss

    alone = loss("bf16", Layout())
    loss("fp32", Layout(zero=3))
    assert loss("bf16", Layout()) == alone


def test_library_defect_more_shards_than_ranks_is_an_assertion_without_a_word(tmp_path):
    """When this fails, the library says what is wrong; ours names both numbers before it is asked."""
    join()
    with pytest.raises(AssertionError) as error:
        library_engine(layout=TENSOR)
    assert str(error.value) == ""
    data = HierarchyData(levels=3, sequences=100, validation_sequences=8)
    cell = Cell(shape=SHAPE, recipe=recipe(), data=data, data_key=data_key(data, CONTEXT), lr=0.01, seed=0)
    with pytest.raises(InputError, match=r"2 ranks \(tensor_parallel 2 x data_parallel 1\), but 1 were"):
        train(cell, data_root=Path(tmp_path), layout=TENSOR)
