import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from tests.plain_gpt2 import PlainGPT2, PlainTrainer
from trainables import checkpoint
from trainables.__main__ import main
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.batches import batch, validation_batches
from trainables.data.spec import HierarchyData
from trainables.data.store import open_store
from trainables.errors import InputError
from trainables.loop import train
from trainables.model import build_model

DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=3000, validation_sequences=50)
CONTEXT = 32


def cell(**changes):
    recipe = {"steps": 60, "batch": 8, "context": CONTEXT, **changes.pop("recipe", {})}
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


class StoppedError(Exception):
    pass


def stop_after(step):
    """A report that ends the training, as a lost machine would, at the first report past `step`."""

    def report(progress):
        if progress.step >= step:
            raise StoppedError

    return report


def test_training_is_that_of_a_plain_loop_over_the_same_batches(root):
    one = cell()
    result = train(one, data_root=root)
    store = open_store(DATA, context=CONTEXT, root=root)
    model = PlainGPT2(2, 16, 2, store.vocabulary, CONTEXT)
    model.copy_from(build_model(one.shape, one.recipe, store.vocabulary, one.seed))
    plain = PlainTrainer(model, one.lr, 60, 6)
    losses = []
    for step in range(60):
        x, y = batch(store, context=CONTEXT, batch=8, seed=0, step=step)
        losses.append(plain.step(torch.from_numpy(x), torch.from_numpy(y)))
    assert [p.step for p in result.points] == list(range(1, 61))
    assert [p.train_loss for p in result.points] == pytest.approx(losses, rel=2e-5)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for x, y in validation_batches(store, context=CONTEXT, batch=7):
            logits = model(torch.from_numpy(x)).view(-1, store.vocabulary)
            total += float(functional.cross_entropy(logits, torch.from_numpy(y).view(-1), reduction="sum"))
            tokens += y.size
    assert tokens == 50 * CONTEXT
    assert result.loss == pytest.approx(total / tokens, rel=2e-5)
    assert [e.step for e in result.evaluations] == [15, 30, 45, 60]
    assert result.evaluations[-1].loss == result.loss
    assert store.floor < result.loss < result.evaluations[0].loss


def test_the_result_counts_what_was_done(root):
    result = train(cell(), data_root=root, evaluations=1)
    assert (result.status, result.reason, result.step, result.tokens) == ("done", None, 60, 60 * 8 * 32)
    assert (result.params, result.vocabulary, result.device) == (12 * 2 * 16**2, 9, "cpu")
    assert result.total_params == sum(
        p.numel() for p in build_model(cell().shape, cell().recipe, 9, 0).parameters()
    )
    assert result.train_seconds > 0
    assert result.tokens_per_second == pytest.approx(result.tokens / result.train_seconds)
    assert 0 < result.utilisation < 1
    assert result.memory_bytes > 1 << 20


def test_one_cell_has_one_result_and_seeds_differ(root):
    first, again, other = (train(cell(seed=seed), data_root=root, evaluations=1) for seed in (3, 3, 4))
    assert first.loss == again.loss
    assert [p.train_loss for p in first.points] == [p.train_loss for p in again.points]
    assert first.loss != other.loss


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_stopped_cell_goes_on_to_the_same_bits(root, tmp_path, dropout):
    one = cell(recipe={"dropout": dropout})
    whole = train(one, data_root=root)
    with pytest.raises(StoppedError):
        train(
            one,
            data_root=root,
            checkpoints=tmp_path / "c",
            checkpoint_every=0,
            report=stop_after(37),
            report_every=0,
        )
    resumed = train(one, data_root=root, checkpoints=tmp_path / "c")
    assert 0 < resumed.resumed_from < 60
    assert resumed.loss == whole.loss
    assert resumed.evaluations == whole.evaluations
    for ours, theirs in zip(resumed.points, whole.points, strict=True):
        assert (ours.step, ours.train_loss, ours.lr, ours.grad_norm) == (
            theirs.step, theirs.train_loss, theirs.lr, theirs.grad_norm
        )  # fmt: skip


def stopped_folder(root, folder, one):
    with pytest.raises(StoppedError):
        train(
            one, data_root=root, checkpoints=folder, checkpoint_every=0, report=stop_after(30), report_every=0
        )
    return sorted(folder.glob("step-*"))


def test_a_truncated_or_unmarked_checkpoint_is_passed_over_for_the_one_before(root, tmp_path):
    one = cell()
    whole = train(one, data_root=root)
    older, newest = stopped_folder(root, tmp_path, one)
    weights = next(p for p in newest.iterdir() if p.suffix == ".pt")
    weights.write_bytes(weights.read_bytes()[:-100])
    resumed = train(one, data_root=root, checkpoints=tmp_path)
    assert resumed.resumed_from == int(older.name.removeprefix("step-"))
    assert resumed.loss == whole.loss


def test_only_the_newest_two_checkpoints_are_kept_and_none_after_removal(root, tmp_path):
    assert len(stopped_folder(root, tmp_path / "c", cell())) == checkpoint.KEEP
    checkpoint.remove(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_another_cells_checkpoint_is_refused(root, tmp_path):
    stopped_folder(root, tmp_path, cell())
    with pytest.raises(ValueError, match="belongs to cell"):
        train(cell(seed=1), data_root=root, checkpoints=tmp_path)


def test_pieces_of_a_batch_add_up_to_the_batch(root):
    whole = train(cell(), data_root=root, evaluations=1)
    pieces = train(cell(), data_root=root, evaluations=1, micro_batch=2)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert [p.grad_norm for p in pieces.points[:5]] == pytest.approx(
        [p.grad_norm for p in whole.points[:5]], rel=1e-4
    )
    with pytest.raises(InputError, match="micro_batch 3 does not divide the batch of 8"):
        train(cell(), data_root=root, micro_batch=3)


def test_divergence_ends_a_cell_with_its_reason(root):
    result = train(cell(lr=100.0, recipe={"clip": 0.0, "warmup": 0.0}), data_root=root)
    assert (result.status, result.loss) == ("diverged", None)
    assert "training loss" in result.reason
    assert result.step < 60
    json.loads(result.model_dump_json())


def test_bf16_trains_close_to_fp32(root):
    full = train(cell(), data_root=root, evaluations=1)
    half = train(cell(recipe={"precision": "bf16"}), data_root=root, evaluations=1)
    assert half.loss == pytest.approx(full.loss, rel=0.02)
    assert half.loss != full.loss


def small_disk(folder, kilobytes):
    """A file system of so many kilobytes, or a skip where this user may mount none."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or subprocess.run(["mount", *options], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(root, tmp_path):
    folder = tmp_path / "small"
    small_disk(folder, 64)
    try:
        whole = train(cell(), data_root=root)
        result = train(cell(), data_root=root, checkpoints=folder / "c", checkpoint_every=0)
        assert result.status == "done"
        assert result.loss == whole.loss
        assert "disk" in result.notes[0]
        assert "is full" in result.notes[0]
        assert not list((folder / "c").glob("step-*"))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


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
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "latin.json").write_bytes(b'{"name": "caf\xe9"}')
    assert main([str(tmp_path / "latin.json")]) == 2
    assert "not a text file in UTF-8" in capsys.readouterr().err
    wrong = json.loads(cell().model_dump_json())
    wrong["shape"]["heads"] = 3
    wrong["recipe"]["stps"] = 5
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert main([str(tmp_path / "wrong.json")]) == 2
    error = capsys.readouterr().err
    assert "recipe.stps" in error
    assert "not divisible by 3 heads" in error


def test_data_that_changed_since_it_was_planned_is_refused(root):
    with pytest.raises(InputError, match="changed"):
        train(cell(data_key="0" * 16), data_root=root)
