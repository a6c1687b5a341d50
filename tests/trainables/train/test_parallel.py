"""A cell gives the same losses however it is spread over ranks, in real processes."""

import itertools
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from tests.trainables.pairs import cover
from trainables.cell import Base, Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.hops import HopsData
from trainables.layout import Layout
from trainables.model import head
from trainables.progress import Result
from trainables.record import Keep
from trainables.train import loop
from trainables.train.loop import train

pytestmark = pytest.mark.slow

#: Nine symbols with the start token: no degree divides them. Twenty validation sequences leave some group without
#: a batch in the last turn of every layout.
DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=600, validation_sequences=20)
CONTEXT, BATCH = 16, 8
#: At ten times the rate the training itself magnifies rounding: one rank with weights off by one part in 10^7, or
#: with its batch in two pieces, then ends 1e-4 from itself in norm. Here all such differences stay below 1e-6. The
#: gradient is clipped at every step, so that a wrong norm would also be a wrong step.
RATE, CLIP = 0.002, 0.5
#: In bf16 rounding is 10^5 times coarser, and is magnified to 1e-3 at that rate.
BF16_RATE = 0.001
DEGREES = {"tp2": (2, 1), "tp4": (4, 1), "tp1": (1, 1), "tp2xdp2": (2, 2), "dp2": (1, 2)}


def cell(rate=RATE, steps=50, shape=Shape(depth=2, width=32, heads=4), **recipe):
    return Cell(
        shape=shape,
        recipe=Recipe(**{"steps": steps, "batch": BATCH, "context": CONTEXT, "grad_clip": CLIP, **recipe}),
        data=DATA,
        data_key=data_key(DATA, CONTEXT),
        lr=rate,
        seed=0,
    )


def layout(degree, zero, pieces=False, activation_checkpointing=False, vocabulary=False):
    tensor, data = DEGREES[degree]
    return Layout(
        tensor_parallel=tensor,
        data_parallel=data,
        zero=zero,
        micro_batch=BATCH // data // 2 if pieces else None,
        activation_checkpointing=activation_checkpointing,
        shard_vocabulary=vocabulary,
    )


#: The layouts of the gate; all others are tested by `make test-all`.
GATE = [("tp2", 0, False, False, False), ("tp2", 1, True, True, True), ("dp2", 3, True, True, False)]
#: One rank as it is by default, after gangs: its bits are compared as well.
PLAIN = ("tp1", 0, False, False, False)
#: Values of the degree, the stage, the batch in pieces, recomputation and a shared vocabulary.
VALUES = (tuple(DEGREES), range(4), (True, False), (True, False), (True, False))


def is_feasible(case):
    """A vocabulary is shared by tensor-parallel ranks alone."""
    return DEGREES[case[0]][0] > 1 or not case[-1]


def cases():
    """A layout of each degree and stage; the degree changes from each to the next, one rank included."""
    groups = [(degree, zero) for zero in range(4) for degree in DEGREES]
    return cover(groups, list(itertools.product(*VALUES[2:])), is_feasible, [*GATE, PLAIN])


def name(case):
    degree, zero, *options = case
    named = [
        word
        for word, on in zip(("pieces", "activation_checkpointing", "vocabulary"), options, strict=True)
        if on
    ]
    return "-".join([degree, f"zero{zero}", *named])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def one_rank(ranks, root, one, rank=0, layout=None):
    """The result of the cell on one rank: its own layout where none is given."""
    return ranks.alone(train, one, data_root=root, layout=layout, evaluations=2, rank=rank)


def gang(ranks, root, one, layout, **options):
    """The result of every rank."""
    return ranks.gang(layout.ranks, train, one, data_root=root, layout=layout, evaluations=2, **options)


@pytest.fixture(scope="module")
def expected(ranks, root):
    result = one_rank(ranks, root, cell())
    assert [p.step for p in result.points] == list(range(1, 51)), "a point for every step"
    assert min(p.grad_norm for p in result.points) > CLIP
    assert result.loss < 0.8 * result.points[0].train_loss, "it learns"
    assert result.vocabulary == 9
    return result


def curve(result):
    """What all ranks of a gang must agree on, to the last bit."""
    points = [(p.step, p.train_loss, p.lr, p.grad_norm) for p in result.points]
    return points, result.evaluations, result.loss, result.status, result.step


def assert_same(result, expected, *, loss, norm):
    assert result.status == "done"
    assert [(p.step, p.lr) for p in result.points] == [(p.step, p.lr) for p in expected.points]
    of = [p.train_loss for p in result.points], [p.train_loss for p in expected.points]
    assert of[0] == pytest.approx(of[1], rel=loss, abs=0)
    if norm is not None:
        of = [p.grad_norm for p in result.points], [p.grad_norm for p in expected.points]
        assert of[0] == pytest.approx(of[1], rel=norm, abs=0)
    assert [e.step for e in result.evaluations] == [e.step for e in expected.evaluations] == [25, 50]
    of = [e.loss for e in result.evaluations], [e.loss for e in expected.evaluations]
    assert of[0] == pytest.approx(of[1], rel=loss, abs=0)
    assert result.loss == result.evaluations[-1].loss


@pytest.mark.parametrize(
    ("index", "case"),
    [
        pytest.param(index, case, id=name(case), marks=() if case in GATE else pytest.mark.extended)
        for index, case in enumerate(cases())
    ],
)
def test_every_layout_gives_the_losses_and_norms_of_one_rank(ranks, root, expected, index, case):
    spread = layout(*case)
    if spread.ranks == 1:
        # Each process in turn: all but the first have been in fewer gangs.
        results = [one_rank(ranks, root, cell(), index % ranks.size, spread)]
    else:
        results = gang(ranks, root, cell(), spread)
    assert_same(results[0], expected, loss=2e-6, norm=1e-5)
    assert [curve(result) for result in results] == [curve(results[0])] * spread.ranks
    if spread == Layout():
        assert curve(results[0]) == curve(expected), "one rank after a gang gives the bits of one before it"


@pytest.fixture(scope="module")
def expected_in_bf16(ranks, root):
    return one_rank(ranks, root, cell(BF16_RATE, precision="bf16"))


@pytest.mark.parametrize(
    ("index", "case"),
    [
        pytest.param(index, case, id=name(case), marks=() if case == GATE[1] else pytest.mark.extended)
        for index, case in enumerate(cases())
    ],
)
def test_in_bf16_every_layout_gives_the_losses_of_one_rank(ranks, root, expected_in_bf16, index, case):
    spread, one = layout(*case), cell(BF16_RATE, precision="bf16")
    if spread.ranks == 1:
        results = [one_rank(ranks, root, one, index % ranks.size, spread)]
    else:
        results = gang(ranks, root, one, spread)
    assert_same(results[0], expected_in_bf16, loss=1e-3, norm=2e-2)
    assert [curve(result) for result in results] == [curve(results[0])] * spread.ranks


def train_in_one_pass(one, **options):
    """Train with chunks of one to eleven tokens, whose loss and gradients are computed in one pass."""
    with mock.patch.object(head, "ONE_PASS_LOGITS", 0), mock.patch.dict(head.CHUNK_LOGITS, cpu=100):
        return train(one, **options)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name(case), marks=() if case in (*GATE, PLAIN) else pytest.mark.extended)
        for case in cases()
    ],
)
def test_a_loss_in_one_pass_is_that_of_one_rank_with_whole_logits(ranks, root, expected, case):
    spread = layout(*case)
    options = {"data_root": root, "layout": spread, "evaluations": 2}
    if spread.ranks == 1:
        results = [ranks.alone(train_in_one_pass, cell(), **options)]
    else:
        results = ranks.gang(spread.ranks, train_in_one_pass, cell(), **options)
    assert_same(results[0], expected, loss=2e-6, norm=1e-5)
    assert [curve(result) for result in results] == [curve(results[0])] * spread.ranks


@pytest.fixture(scope="module")
def scaled(ranks, root):
    """A cell whose six groups of parameters differ in rate, decay and epsilon, and its result on one rank."""
    base = Base(depth=1, width=16, head_width=4)
    one = cell(parametrisation="completep", base=base, weight_decay=0.1, epsilon=1e-6)
    return one, one_rank(ranks, root, one)


@pytest.mark.extended
@pytest.mark.parametrize("case", [("tp2", 0), ("dp2", 2, True), ("tp2", 3, False, True, True)], ids=str)
def test_rates_of_a_parametrisation_are_those_of_one_rank(ranks, root, expected, scaled, case):
    one, alone = scaled
    assert alone.loss != pytest.approx(expected.loss, rel=1e-3), "the rates make a difference"
    assert_same(gang(ranks, root, one, layout(*case))[0], alone, loss=2e-6, norm=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("case", [("tp2", 0), ("tp2xdp2", 2, True, True)], ids=str)
def test_the_accuracy_of_a_task_is_that_of_one_rank(ranks, root, case):
    data = HopsData(hops=(1, 2), sequences=600, validation_sequences=20)
    one = cell().model_copy(update={"data": data, "data_key": data_key(data, CONTEXT)})
    alone = one_rank(ranks, root, one)
    results = gang(ranks, root, one, layout(*case))
    assert_same(results[0], alone, loss=2e-6, norm=1e-5)
    assert [e.measures for e in results[0].evaluations] == [e.measures for e in alone.evaluations]
    assert all(0 < e.measures["accuracy"] < 1 for e in alone.evaluations)
    assert all(set(e.measures) >= {"accuracy_hops_1", "accuracy_hops_2"} for e in alone.evaluations)
    assert [curve(result) for result in results] == [curve(results[0])] * len(results)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "case"),
    [
        ({"residual": "admin"}, ("tp2", 1, True, True, True)),
        ({"network": "analysed"}, ("tp2", 0)),
        ({"network": "analysed"}, ("dp2", 3)),
    ],
    ids=str,
)
def test_other_networks_than_gpt2_are_those_of_one_rank(ranks, root, change, case):
    one = cell(**change)
    assert_same(gang(ranks, root, one, layout(*case))[0], one_rank(ranks, root, one), loss=2e-6, norm=1e-5)


#: Shapes and recipes of the families that DeepSpeed shards by HuggingFace's plan, and of models without feed-forward
#: networks; no degree divides the d_ff of 53.
SHARED = Shape(depth=2, width=32, heads=4, kv_heads=2)
SHAPES = {
    "qwen3 untied": (SHARED, {"network": "qwen3", "embeddings": "untied"}),
    "llama": (Shape(depth=2, width=32, heads=4), {"network": "llama"}),
    "llama kv_heads": (SHARED, {"network": "llama"}),
    "llama head_dim": (Shape(depth=2, width=32, heads=4, head_dim=16), {"network": "llama"}),
    "llama d_ff": (SHARED.model_copy(update={"d_ff": 53}), {"network": "llama", "embeddings": "untied"}),
    "qwen3": (SHARED, {"network": "qwen3"}),
    "gpt2 without feed-forward": (Shape(depth=2, width=32, heads=4, d_ff=0), {"network": "gpt2"}),
    "llama without feed-forward": (SHARED.model_copy(update={"d_ff": 0}), {"network": "llama"}),
    "llama completep": (
        SHARED,
        {"network": "llama", "parametrisation": "completep", "base": Base(depth=1, width=16, head_width=4)},
    ),
}
#: An untied head that is whole, and one that is shared, with an embedding that is not.
IN_THE_GATE = [("qwen3 untied", GATE[0]), ("qwen3 untied", GATE[1])]


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(
            kind,
            case,
            id=f"{kind}-{name(case)}",
            marks=() if (kind, case) in IN_THE_GATE else pytest.mark.extended,
        )
        for kind in SHAPES
        for case in (*GATE[:2], ("tp2xdp2", 3, True, True, False))
    ],
)
def test_every_layout_of_other_families_and_shapes_gives_the_losses_of_one_rank(ranks, root, kind, case):
    shape, recipe = SHAPES[kind]
    one = cell(shape=shape, steps=30, **recipe)
    alone = one_rank(ranks, root, one)
    # The norm of an untied embedding's gradient is that of few rows; it is 2e-6 off.
    results = gang(ranks, root, one, layout(*case))
    of = [p.train_loss for p in results[0].points], [p.train_loss for p in alone.points]
    assert of[0] == pytest.approx(of[1], rel=2e-6, abs=0)
    of = [p.grad_norm for p in results[0].points], [p.grad_norm for p in alone.points]
    assert of[0] == pytest.approx(of[1], rel=1e-5, abs=0)
    assert results[0].loss == pytest.approx(alone.loss, rel=2e-6, abs=0)
    assert [curve(result) for result in results] == [curve(results[0])] * len(results)
    assert alone.loss < 0.95 * alone.points[0].train_loss, "it learns"


def train_with_the_masks_of_one_group(one, **options):
    own = loop.dropout_seed
    loop.dropout_seed = lambda seed, step, group: own(seed, step, 0)
    try:
        return train(one, **options)
    finally:
        loop.dropout_seed = own


@pytest.mark.extended
def test_groups_draw_masks_of_their_own_and_always_the_same(ranks, root):
    one = cell(dropout=0.1)
    two = [curve(result) for result in gang(ranks, root, one, layout("dp2", 1))]
    assert two == [curve(result) for result in gang(ranks, root, one, layout("dp2", 1))]
    assert two[0] == two[1]
    assert two[0][2] == pytest.approx(one_rank(ranks, root, one).loss, rel=0.02)
    alike = ranks.gang(
        2, train_with_the_masks_of_one_group, one, data_root=root, layout=layout("dp2", 1), evaluations=2
    )
    assert alike[0].loss != two[0][2]


def ended_with_a_slow_disk(one, **options):
    """When this rank's training ended, where writing the weights takes longer than a collective waits."""
    own, began = loop.keep, time.monotonic()
    loop.keep = lambda *_: time.sleep(12)
    try:
        train(one, weights=Keep(Path("nowhere")), **options)
    finally:
        loop.keep = own
    return time.monotonic() - began


def test_the_other_ranks_wait_while_rank_0_writes_the_weights(ranks, root):
    """One that ended would make the supervisor think that rank 0 hangs."""
    two = ranks.gang(
        2, ended_with_a_slow_disk, cell(), data_root=root, layout=layout("tp2", 1), evaluations=1, timeout=8
    )
    assert min(two) > 12
    assert abs(two[0] - two[1]) < 4


def by_hand(*arguments, ranks=2, program=("-m", "trainables")):
    """Start the cell as a person does; gloo is kept on loopback, and torchrun's own port is any that is free."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*launcher, *program, *arguments],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [[], ["--tensor-parallel", "2", "--shard-vocabulary"]], ids=["dp2", "tp2"]
)
def test_a_cell_is_trained_by_hand_under_torchrun(expected, root, tmp_path, options):
    (tmp_path / "cell.json").write_text(cell().model_dump_json())
    done = by_hand(str(tmp_path / "cell.json"), "--data", str(root), "--evaluations", "2", *options)
    assert done.returncode == 0, done.stderr
    result = Result.model_validate_json(done.stdout)  # one document: only rank 0 prints
    assert_same(result, expected, loss=2e-6, norm=1e-5)


END = """
import atexit
atexit.register(print, "late")
from trainables.__main__ import end
print("said")
end(3)
"""
THREADS = """
import sys
from pathlib import Path
from unittest import mock
from trainables.__main__ import end, main
status = main()
names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
# In one write: two ranks share the stream.
sys.stderr.write(" ".join(["threads:", *names]) + "\\n")
end(status)
"""


@pytest.mark.extended
def test_library_defect_threads_of_gloo_outlive_the_groups_of_zero_3(root, tmp_path):
    """When this fails, `trainables.__main__.end` need no longer end a rank at once."""
    (tmp_path / "cell.json").write_text(cell().model_dump_json())
    (tmp_path / "threads.py").write_text(THREADS)
    arguments = [str(tmp_path / "cell.json"), "--data", str(root), "--evaluations", "1", "--zero", "3"]
    done = by_hand(*arguments, program=(str(tmp_path / "threads.py"),))
    assert done.returncode == 0, done.stderr
    left = [line for line in done.stderr.splitlines() if line.startswith("threads:")]
    assert len(left) == 2, done.stderr
    assert all("gloo" in line for line in left), left


def train_with_trouble_on_rank_1(one, tmp, kind, **options):
    """Train with a notice, or a loss that is not finite, on rank 1 alone; return the result and the saved steps."""
    rank, saves, save, batch = options["rank_info"].rank, [], loop._Training._save, loop._Training._batch

    def poisoned(self):
        if self.rank == 1 and self.state.step == 3:
            self.loss_sum += math.nan
        return batch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "next_stride", lambda *_: 1)
        patch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
        patch.setattr(loop._Training, "_save", lambda self: (saves.append(self.state.step), save(self)))
        if kind == "loss":
            patch.setattr(loop._Training, "_batch", poisoned)
        risks = itertools.count(1)
        result = train(
            one, **options, checkpoints=tmp, checkpoint_every=1000 if kind == "notice" else 0,
            at_risk=lambda: kind == "notice" and rank == 1 and 3 <= next(risks) <= 5,
        )  # fmt: skip
    return result, saves


def test_a_notice_of_any_machine_of_a_gang_makes_it_save(ranks, root, tmp_path):
    spread = Layout(data_parallel=2)
    both = ranks.gang(
        2, train_with_trouble_on_rank_1, cell(), tmp_path, "notice", data_root=root, layout=spread
    )
    assert [saves for _, saves in both] == [[3, 4, 5]] * 2
    assert {result.status for result, _ in both} == {"done"}


def test_a_loss_of_any_rank_that_is_not_finite_ends_the_cell_at_the_next_check(ranks, root, tmp_path):
    """In the middle of a window of ten steps; no rank waits for another in a save."""
    both = ranks.gang(
        2, train_with_trouble_on_rank_1, cell(steps=600), tmp_path, "loss", data_root=root,
        layout=Layout(data_parallel=2),
    )  # fmt: skip
    assert [(result.status, result.step) for result, _ in both] == [("diverged", 4)] * 2
    assert [saves for _, saves in both] == [[1, 2, 3]] * 2


def notes_of(slow, one, root, layout, rank_info, rendezvous):
    """The notes of a cell, where a first collective counts as slow from `slow` seconds on."""
    with mock.patch.object(loop, "SLOW_COLLECTIVE", slow):
        return loop.train(
            one, data_root=root, layout=layout, evaluations=1, rank_info=rank_info, rendezvous=rendezvous
        ).notes


def test_a_slow_first_collective_is_noted(ranks, root):
    layout = Layout(data_parallel=2, zero=1)
    assert ranks.gang(2, notes_of, 60.0, cell(), root, layout)[0] == ()
    (note,) = ranks.gang(2, notes_of, -1.0, cell(), root, layout)[0]
    assert "first collective of 2 ranks" in note


@pytest.mark.parametrize(("ranks", "late"), [("1", "late\n"), ("2", "")])
def test_one_of_several_ranks_ends_at_once_with_all_it_said(ranks, late):
    done = subprocess.run(
        [sys.executable, "-c", END],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "WORLD_SIZE": ranks},
    )
    assert (done.returncode, done.stdout) == (3, f"said\n{late}")


@pytest.mark.extended
def test_a_wrong_degree_under_torchrun_ends_with_status_2_and_one_paragraph(root, tmp_path):
    (tmp_path / "cell.json").write_text(cell().model_dump_json())
    done = by_hand(str(tmp_path / "cell.json"), "--data", str(root), "--tensor-parallel", "3")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("error: --tensor-parallel 3 does not divide the 2 ranks that were started") == 1
    assert "exitcode  : 2" in done.stderr, "torchrun itself ends with 1, and tells the rank's status"
    assert "trainables/__main__.py" not in done.stderr, "no traceback of ours"
