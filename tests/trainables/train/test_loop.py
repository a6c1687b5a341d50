import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch
from torch.nn import functional

from core.errors import InputError
from tests.plain_gpt2 import PlainGPT2, PlainTrainer
from trainables.__main__ import main
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.connectivity import ConnectivityData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.hops import HopsData
from trainables.data.store.batches import IGNORED, batch, validation_batches
from trainables.data.store.open import open_store
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.family import family
from trainables.train import loop
from trainables.train.loop import dropout_seed, next_stride, train

DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=3000, validation_sequences=50)
CONTEXT = 32
STEPS = 24


def cell(**changes):
    recipe = {"steps": STEPS, "batch": 8, "context": CONTEXT, **changes.pop("recipe", {})}
    values = {
        "shape": Shape(depth=2, width=16, heads=2),
        "recipe": Recipe(**recipe),
        "data": DATA,
        "data_key": data_key(DATA, CONTEXT),
        "lr": 0.02,
        "seed": 0,
    }
    return Cell(**{**values, **changes})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def plainly_trained(one, store):
    """The model after a plain loop over the cell's batches, and the loss of each."""
    model = PlainGPT2(2, 16, 2, store.vocabulary, CONTEXT)
    model.copy_from(build_model(one.shape, one.recipe, store.vocabulary, one.seed))
    plain = PlainTrainer(model, one.lr, STEPS, round(0.1 * STEPS))
    losses = []
    for step in range(STEPS):
        x, y = batch(store, context=CONTEXT, batch=8, seed=0, step=step)
        losses.append(plain.step(torch.from_numpy(x), torch.from_numpy(y)))
    return model, losses


def test_training_is_that_of_a_plain_loop_over_the_same_batches(root):
    one = cell()
    result = train(one, data_root=root)
    store = open_store(DATA, context=CONTEXT, root=root)
    model, losses = plainly_trained(one, store)
    assert [p.step for p in result.points] == list(range(1, STEPS + 1))
    assert [p.train_loss for p in result.points] == pytest.approx(losses, rel=2e-5)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for x, y in validation_batches(store, context=CONTEXT, batch=7):
            logits = model(torch.from_numpy(x)).view(-1, store.vocabulary)
            total += float(functional.cross_entropy(logits, torch.from_numpy(y).view(-1), reduction="sum"))
            tokens += y.size
    assert tokens == 50 * CONTEXT
    assert result.loss == pytest.approx(total / tokens, rel=2e-5)
    assert [e.step for e in result.evaluations] == [6, 12, 18, 24]
    assert result.evaluations[-1].loss == result.loss
    assert store.entropy < result.loss < result.evaluations[0].loss


@pytest.mark.parametrize(
    "data",
    [
        HopsData(hops=1, sequences=3000, validation_sequences=50),
        ConnectivityData(
            vertices=6, names=6, diameter=1, questions=4, sequences=3000, validation_sequences=50
        ),
        HopsData(hops=(1, 3), sequences=3000, validation_sequences=50),
    ],
)
def test_a_task_is_trained_and_measured_on_its_scored_targets_alone(root, data):
    one = cell(data=data, data_key=data_key(data, CONTEXT))
    result = train(one, data_root=root, layout=Layout(micro_batch=4))
    store = open_store(data, context=CONTEXT, root=root)
    model, losses = plainly_trained(one, store)
    assert [p.train_loss for p in result.points] == pytest.approx(losses, rel=2e-5)
    total, right, scored = 0.0, [], 0
    with torch.no_grad():
        for x, y in validation_batches(store, context=CONTEXT, batch=7):
            is_scored = torch.from_numpy(y != IGNORED)
            logits, targets = model(torch.from_numpy(x))[is_scored], torch.from_numpy(y)[is_scored]
            total += float(functional.cross_entropy(logits, targets, reduction="sum"))
            scored += len(targets)
            answers = (model(torch.from_numpy(x)).argmax(2).numpy() == y)[:, -data.asked(CONTEXT) :]
            right += [(name, share) for name, share in zip(x[:, 0], answers.mean(axis=1), strict=True)]
    assert scored == 50 * data.scored(CONTEXT)
    assert result.loss == pytest.approx(total / scored, rel=2e-5)
    shares = {"accuracy": np.mean([share for _, share in right])}
    if len(data.parts) > 1:
        first = data.vocabulary_size - 2
        for place, hops in enumerate(data.parts):
            shares[f"accuracy_hops_{hops}"] = np.mean(
                [share for name, share in right if name == first + place]
            )
    assert result.evaluations[-1].measures == pytest.approx(shares)
    assert 0 < shares["accuracy"] < 1, "the test tells"
    assert (result.entropy, result.vocabulary) == (0.0, data.vocabulary_size)


def test_the_rate_of_a_point_is_that_of_its_last_step(root, monkeypatch):
    used, step = [], torch.optim.AdamW.step

    def recorded(self, *arguments, **options):
        used.append(self.param_groups[0]["lr"])
        return step(self, *arguments, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    result = train(cell(recipe={"steps": 180}), data_root=root, evaluations=1)
    assert [point.step for point in result.points] == list(range(3, 181, 3))
    assert [point.lr for point in result.points] == [used[point.step - 1] for point in result.points]
    assert max(used) == 0.02


def test_text_has_no_measure_of_a_task(root):
    assert train(cell(recipe={"steps": 2}), data_root=root, evaluations=1).evaluations[0].measures == {}


def test_a_task_under_a_sharded_vocabulary_is_refused_before_anything_is_packed(tmp_path):
    one = cell(data=HopsData(), data_key=data_key(HopsData(), CONTEXT))
    with pytest.raises(InputError, match=r"hops .*`shard_vocabulary`"):
        train(one, data_root=tmp_path, layout=Layout(tensor_parallel=2, zero=1, shard_vocabulary=True))
    assert not list(tmp_path.iterdir())


def test_the_result_counts_what_was_done(root):
    result = train(cell(), data_root=root, evaluations=1)
    assert (result.status, result.reason, result.step, result.tokens) == ("done", None, STEPS, STEPS * 8 * 32)
    assert (result.params, result.vocabulary, result.device) == (12 * 2 * 16**2, 9, "cpu")
    assert result.total_params == sum(
        p.numel() for p in build_model(cell().shape, cell().recipe, 9, 0).parameters()
    )
    assert result.train_seconds > 0
    assert result.tokens_per_second == statistics.median(p.tokens_per_second for p in result.points)
    # The evaluation takes part of the time.
    assert result.tokens_per_second > result.tokens / result.train_seconds
    per_token = family("gpt2").flops(cell().shape, cell().recipe, 9).training
    assert result.flops_per_second == pytest.approx(result.tokens_per_second * per_token)
    # Weights, gradients and two moments in fp32; what else it takes may come from what the process has already.
    assert result.memory_bytes >= 16 * result.total_params


@pytest.mark.parametrize(("sequences", "steps"), [(30, 12), (96, 12), (100, 12), (96, 9)])
def test_epochs_are_what_the_loop_read(tmp_path, monkeypatch, sequences, steps):
    read = []

    def recorded(*arguments, **options):
        x, y = batch(*arguments, **options)
        read.extend(row.tobytes() for row in x)
        return x, y

    monkeypatch.setattr("trainables.train.loop.batch", recorded)
    data = DATA.model_copy(update={"sequences": sequences})
    one = cell(data=data, data_key=data_key(data, CONTEXT), recipe={"steps": steps})
    result = train(one, data_root=tmp_path, evaluations=1)
    assert result.epochs == len(read) / sequences
    assert len(set(read)) == min(sequences, len(read))
    assert (result.epochs > 1) == (len(read) > len(set(read)))


def test_one_cell_has_one_result_and_seeds_differ(root):
    first, again, other = (train(cell(seed=seed), data_root=root, evaluations=1) for seed in (3, 3, 4))
    assert first.loss == again.loss
    assert [p.train_loss for p in first.points] == [p.train_loss for p in again.points]
    assert first.loss != other.loss


def test_pieces_of_a_batch_add_up_to_the_batch(root):
    # Twelve steps: over 60, one CPU's rounding of fp32 grew to 2e-5 of the loss.
    short = cell(recipe={"steps": 12})
    whole = train(short, data_root=root, evaluations=1)
    pieces = train(short, data_root=root, evaluations=1, layout=Layout(micro_batch=2))
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert [p.grad_norm for p in pieces.points[:5]] == pytest.approx(
        [p.grad_norm for p in whole.points[:5]], rel=1e-4
    )
    with pytest.raises(InputError, match=r"micro_batch 3 .*8 sequences"):
        train(cell(), data_root=root, layout=Layout(micro_batch=3))


@pytest.mark.slow
def test_many_cells_in_one_process_leave_nothing_open(root):
    """Trial processes are reused for hundreds of cells.

    The process of the tests may itself open or free a file meanwhile (seen: 1), a leak is one more for every cell.
    """
    process, held, cells = psutil.Process(), [], 8
    for seed in range(cells):
        train(cell(seed=seed, recipe={"steps": 2}), data_root=root, evaluations=1)
        held.append((process.num_fds(), process.num_threads()))
    # The first cells import what they need.
    assert all(last - early < (cells - 2) / 2 for last, early in zip(held[-1], held[1], strict=True)), held


@pytest.mark.parametrize(("share", "saves"), [(0, STEPS - 1), (1e6, 1)])
def test_slow_checkpoints_are_made_less_often(root, tmp_path, monkeypatch, share, saves):
    counted = []
    save = loop._Training._save
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", share)
    monkeypatch.setattr(loop, "next_stride", lambda *_: 1)
    monkeypatch.setattr(loop._Training, "_save", lambda training: counted.append(save(training)))
    result = train(cell(), data_root=root, checkpoints=tmp_path, evaluations=1)
    assert result.status == "done"
    assert len(counted) == saves


def test_masks_are_a_function_of_seed_step_and_group():
    seeds = {dropout_seed(seed, step, group) for seed in range(3) for step in range(50) for group in range(4)}
    assert len(seeds) == 600
    assert dropout_seed(1, 2, 3) == dropout_seed(1, 2, 3)


def test_divergence_ends_a_cell_with_its_reason(root):
    result = train(cell(lr=100.0, recipe={"grad_clip": 0.0, "warmup": 0.0}), data_root=root)
    assert (result.status, result.loss) == ("diverged", None)
    assert "training loss" in result.reason
    assert result.step < STEPS
    json.loads(result.model_dump_json())


@pytest.mark.slow
def test_a_cell_is_trained_by_hand_without_ray(root, tmp_path):
    one = cell(recipe={"steps": 10})
    (tmp_path / "cell.json").write_text(one.model_dump_json())
    # As if neither were installed: any import of them fails.
    program = (
        "import sys; sys.modules.update(ray=None, mlflow=None, optuna=None);"
        "from trainables.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "cell.json"), "--data", str(root)],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loss"] == train(one, data_root=root).loss


def test_wrong_cell_files_end_with_status_2_and_say_why(tmp_path, capsys):
    assert main([str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err
    (tmp_path / "latin.json").write_bytes(b'{"name": "caf\xe9"}')
    assert main([str(tmp_path / "latin.json")]) == 2
    assert "latin.json" in capsys.readouterr().err
    wrong = json.loads(cell().model_dump_json())
    wrong["shape"]["heads"] = 3
    wrong["recipe"]["stps"] = 5
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert main([str(tmp_path / "wrong.json")]) == 2
    error = capsys.readouterr().err
    assert "recipe.stps" in error
    assert "3 heads" in error
    (tmp_path / "right.json").write_text(cell().model_dump_json())
    assert main([str(tmp_path / "right.json"), "--compiled", "--shard-vocabulary"]) == 2
    assert capsys.readouterr().err.startswith("error: shard_vocabulary")


def test_data_that_changed_since_it_was_planned_is_refused(root):
    with pytest.raises(InputError, match="changed"):
        train(cell(data_key="0" * 16), data_root=root)


@pytest.mark.parametrize(
    "layout", [Layout(), pytest.param(Layout(zero=1, micro_batch=4), marks=pytest.mark.slow)]
)
def test_an_interrupted_cell_saves_inside_a_window_and_goes_on_to_the_same_bits(
    layout, root, tmp_path, monkeypatch
):
    """A window of an eight-day cell takes three hours, and was lost whole."""
    monkeypatch.setattr("trainables.train.loop.CHECK_EVERY", 0.0)
    one = cell(recipe={"steps": 120})
    whole = train(one, data_root=root, layout=layout)
    assert whole.points[1].step - whole.points[0].step == 2
    options = {"data_root": root, "layout": layout, "checkpoints": tmp_path, "checkpoint_every": 1e9}
    for first, stopped_at in ((0, 35), (35, 71)):
        checks = iter(range(first + 1, 200))
        with pytest.raises(InterruptedTrainingError, match=rf"step {stopped_at}$"):
            train(one, **options, interrupted=lambda at=stopped_at, checks=checks: next(checks) == at)
    resumed = train(one, **options)
    assert resumed.resumed_from == 71, "35 and 71 are inside windows of two steps"
    assert resumed.loss == whole.loss
    assert [(p.step, p.train_loss, p.grad_norm) for p in resumed.points] == [
        (p.step, p.train_loss, p.grad_norm) for p in whole.points
    ]
    assert [e.loss for e in resumed.evaluations] == [e.loss for e in whole.evaluations]


def test_a_machine_at_risk_saves_as_often_as_by_default(root, tmp_path, monkeypatch):
    """Whatever the interval is, and no longer once the risk is over."""
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
    monkeypatch.setattr(loop, "next_stride", lambda *_: 1)
    risks, saves, save = itertools.count(1), [], loop._Training._save
    monkeypatch.setattr(
        loop._Training, "_save", lambda training: (saves.append(training.state.step), save(training))
    )
    train(
        cell(), data_root=root, checkpoints=tmp_path, checkpoint_every=1000,
        at_risk=lambda: 5 <= next(risks) <= 8,
    )  # fmt: skip
    assert saves == [5, 6, 7, 8]


@pytest.mark.slow
def test_a_stopped_process_saves_and_the_same_command_continues(root, tmp_path):
    one, file = cell(recipe={"steps": 100_000}), tmp_path / "cell.json"
    file.write_text(one.model_dump_json())
    command = [
        sys.executable, "-m", "trainables", file, "--data", root, "--checkpoints", tmp_path / "kept",
        "--checkpoint-every", "1000",
    ]  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stderr.readline()
        while "step" not in line:
            line = process.stderr.readline()
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 143
        assert not output
        assert "Traceback" not in errors
    steps = [
        int(step) for step in re.findall(r"step-(\d+)", " ".join(map(str, (tmp_path / "kept").iterdir())))
    ]
    assert 0 < max(steps) < 100_000
    assert f"step {max(steps)}" in errors


def test_a_cell_without_storage_ends_when_it_is_interrupted(root):
    with pytest.raises(InterruptedTrainingError):
        train(cell(), data_root=root, interrupted=lambda: True)


@pytest.mark.parametrize(
    ("seconds", "between", "checks"), [(5e-3, 200, 307), (0.3, 3, 20_001), (20.0, 1, 60_000)]
)
def test_checks_are_about_a_second_or_one_step_apart(seconds, between, checks):
    step, strides = 0, [1]
    while step < 60_000:
        step += strides[-1]
        strides.append(next_stride(strides[-1], strides[-1], strides[-1] * seconds))
    assert strides[-1] == between
    assert len(strides) - 1 == checks, "1, 2, 4, ... steps, then as many as take a second"
