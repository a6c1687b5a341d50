import errno
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.metadata import version

import psutil
import pytest
import torch

from core.errors import InputError
from tests.disks import small_disk
from trainables.cell import Base, Cell, Recipe, Shape
from trainables.checkpoint import checkpoint, universal
from trainables.checkpoint.checkpoint import MARKER
from trainables.data import data_key
from trainables.data.kind import digest
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.ranks.process_group import join, leave
from trainables.storage.storage import discard, open_storage
from trainables.train import loop
from trainables.train.loop import train

DATA = HierarchyData(vocabulary=8, branching=2, levels=4, synonyms=2, sequences=800, validation_sequences=20)
CONTEXT = 16
STEPS = 10
#: Saves at every step, so that this is also the step.
STOPPED = 6


def cell(seed=0, shape=Shape(depth=2, width=16, heads=2), **recipe):
    return Cell(
        shape=shape,
        recipe=Recipe(**{"steps": STEPS, "batch": 8, "context": CONTEXT, **recipe}),
        data=DATA,
        data_key=data_key(DATA, CONTEXT),
        lr=0.02,
        seed=seed,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


class StoppedError(Exception):
    pass


def train_rank(one, root, layout, folder=None, stop=None, rank_info=None, rendezvous=None):
    """Train on one rank; with `stop`, end at that save, as all ranks of a gang do when their machine is lost."""
    save, saves = checkpoint.save, 0

    def save_and_stop(*args):
        nonlocal saves
        saved = save(*args)
        saves += 1
        if saves == stop:
            saved.finish()
            raise StoppedError
        return saved

    checkpoint.save = save_and_stop
    try:
        return train(
            one,
            data_root=root,
            layout=layout,
            checkpoints=folder,
            checkpoint_every=0,
            rank_info=rank_info,
            rendezvous=rendezvous,
        )
    except StoppedError:
        return None
    finally:
        checkpoint.save = save
        if rank_info is not None:
            leave()


def run(pool, one, root, layout, folder=None, stop=None):
    """The result of rank 0, in this process where it is the only one."""
    if layout.ranks == 1:
        return train_rank(one, root, layout, folder, stop)
    return pool.gang(layout.ranks, train_rank, one, root, layout, folder, stop)[0]


#: Results of runs that nothing stopped, by cell and layout.
_WHOLE = {}


def uninterrupted(pool, one, root, layout):
    key = one.key, layout
    if key not in _WHOLE:
        _WHOLE[key] = run(pool, one, root, layout)
    return _WHOLE[key]


def numbers(result):
    points = [(p.step, p.train_loss, p.lr, p.grad_norm) for p in result.points]
    return result.loss, [(e.step, e.loss) for e in result.evaluations], points


def assert_same_bits(pool, one, root, layout, folder, at=STOPPED):
    whole = uninterrupted(pool, one, root, layout)
    assert run(pool, one, root, layout, folder, at) is None
    resumed = run(pool, one, root, layout, folder)
    assert (resumed.resumed_from, resumed.notes) == (at, ())
    assert numbers(resumed) == numbers(whole)
    return whole


ONE = [
    (Layout(), {}),
    (Layout(), {"dropout": 0.1}),
    (Layout(), {"precision": "bf16"}),
    (Layout(micro_batch=4), {"dropout": 0.1}),
    (Layout(), {"optimizer": "muon"}),
    (Layout(), {"network": "llama"}),
    (Layout(), {"network": "qwen3", "embeddings": "untied"}),
]
GANGS = [
    *((Layout(tensor_parallel=2, zero=zero), {}) for zero in (0, 1, 2, 3)),
    *((Layout(data_parallel=2, zero=zero), {"dropout": 0.1}) for zero in (0, 1, 3)),
    (Layout(tensor_parallel=2, zero=1), {"precision": "bf16"}),
    (
        Layout(
            tensor_parallel=2, zero=1, activation_checkpointing=True, micro_batch=4, shard_vocabulary=True
        ),
        {"dropout": 0.1},
    ),
    (
        Layout(tensor_parallel=2, zero=1, micro_batch=4, shard_vocabulary=True),
        {"network": "qwen3", "embeddings": "untied"},
    ),
]


def named(case):
    layout, recipe = case
    parts = [f"{k}={v}" for k, v in {**layout.model_dump(exclude_defaults=True), **recipe}.items()]
    return "-".join(parts) or "plain"


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE, ids=named)
def test_a_stopped_cell_of_one_rank_goes_on_to_the_same_bits(root, tmp_path, case):
    layout, recipe = case
    assert_same_bits(None, cell(**recipe), root, layout, tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("case", GANGS, ids=named)
def test_a_stopped_gang_goes_on_to_the_same_bits(ranks, root, tmp_path, case):
    layout, recipe = case
    assert_same_bits(ranks, cell(**recipe), root, layout, tmp_path / "c")


TP2, DP2 = {"tensor_parallel": 2}, {"data_parallel": 2}
MOVES = [
    (Layout(), Layout(zero=1)),
    (Layout(zero=1), Layout()),
    *(
        pytest.param(move, marks=pytest.mark.extended)
        for move in (
            (Layout(zero=2), Layout(zero=3)),
            (Layout(zero=3), Layout(zero=1)),
            (Layout(zero=3), Layout()),
        )
    ),
]
GANG_MOVES = [
    (Layout(**TP2, zero=1), Layout()),
    (Layout(), Layout(**TP2, zero=1)),
    (Layout(**TP2, zero=0), Layout(**DP2, zero=1)),
    (Layout(**DP2, zero=1), Layout(zero=1)),
    (Layout(**DP2, zero=3), Layout(**TP2, zero=2)),
    (Layout(**TP2, zero=3), Layout()),
    (Layout(**TP2, zero=1), Layout(**TP2, zero=3)),
    (Layout(**TP2, zero=2), Layout(**TP2, zero=0)),
    (Layout(**TP2, zero=1, shard_vocabulary=True), Layout()),
    (Layout(zero=1), Layout(**TP2, zero=1, shard_vocabulary=True)),
]


def assert_moved(pool, one, root, move, folder, tolerance, at=STOPPED):
    before, after = move
    whole = uninterrupted(pool, one, root, after)
    assert run(pool, one, root, before, folder, at) is None
    resumed = run(pool, one, root, after, folder)
    assert (resumed.resumed_from, resumed.notes) == (
        at,
        (f"resumed at step {at} from a checkpoint of another layout",),
    )
    ours, theirs = numbers(resumed), numbers(whole)
    assert ours[0] == pytest.approx(theirs[0], rel=tolerance)
    assert [p[:3] for p in ours[2]] == [
        (step, pytest.approx(loss, rel=tolerance), lr) for step, loss, lr, _ in theirs[2]
    ]
    assert [p[3] for p in ours[2]] == pytest.approx([p[3] for p in theirs[2]], rel=1e-3)


def interrupt_rank(one, root, layout, folder, at, rank_info=None, rendezvous=None):
    """Train on one rank, with a check at each step, until the check `at`, at which the cell saves."""
    every, checks = loop.CHECK_EVERY, itertools.count(1)
    loop.CHECK_EVERY = 0.0
    try:
        train(
            one, data_root=root, layout=layout, checkpoints=folder, checkpoint_every=1e9,
            interrupted=lambda: next(checks) == at, rank_info=rank_info, rendezvous=rendezvous,
        )  # fmt: skip
    except InterruptedTrainingError:
        return
    finally:
        loop.CHECK_EVERY = every
        leave()
    raise AssertionError("it was not interrupted")


@pytest.mark.slow
def test_a_point_that_begins_on_another_number_of_ranks_is_the_mean_of_its_steps(ranks, root, tmp_path):
    one, alone = cell(steps=120), Layout(zero=1)
    ranks.gang(2, interrupt_rank, one, root, Layout(data_parallel=2, zero=1), tmp_path / "c", 35)
    resumed = run(None, one, root, alone, tmp_path / "c")
    assert resumed.resumed_from == 35, "inside a window of two steps"
    # The point at step 36 and the next two; rounding grows from there on.
    expected = [point.train_loss for point in uninterrupted(None, one, root, alone).points[:20]]
    assert [point.train_loss for point in resumed.points[:20]] == pytest.approx(expected, rel=1e-5)


def between(move):
    return "-to-".join(named((layout, {})) for layout in move)


@pytest.mark.parametrize("move", MOVES, ids=between)
def test_a_cell_goes_on_at_another_stage(root, tmp_path, move):
    assert_moved(None, cell(weight_decay=0.3), root, move, tmp_path / "c", 1e-5)
    assert not list((tmp_path / "c").glob("universal-*"))


def test_in_bf16_another_stage_goes_on_from_the_same_weights(root, tmp_path):
    one, after = cell(precision="bf16"), Layout(zero=2)
    assert run(None, one, root, Layout(zero=1), tmp_path / "c", STOPPED) is None
    resumed = run(None, one, root, after, tmp_path / "c")
    assert resumed.resumed_from == STOPPED
    # On one rank stages 1 and 2 add up the same numbers; weights that had been rounded would show.
    assert numbers(resumed) == numbers(uninterrupted(None, one, root, after))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("recipe", "before", "after"),
    [
        ({"precision": "bf16"}, Layout(**TP2, zero=1), Layout()),
        ({"precision": "bf16"}, Layout(), Layout(**DP2, zero=3)),
        ({"optimizer": "muon"}, Layout(), Layout(**DP2)),
        ({"optimizer": "muon"}, Layout(**DP2), Layout()),
    ],
    ids=lambda value: between([value]) if isinstance(value, Layout) else "-".join(value.values()),
)
def test_a_cell_that_rounds_to_bf16_goes_on_in_another_layout(ranks, root, tmp_path, recipe, before, after):
    """Two layouts round in other places; Muon makes its matrices orthogonal in bf16."""
    one = cell(**recipe)
    assert run(ranks, one, root, before, tmp_path / "c", STOPPED) is None
    resumed, whole = run(ranks, one, root, after, tmp_path / "c"), uninterrupted(ranks, one, root, after)
    assert resumed.resumed_from == STOPPED
    assert [p.train_loss for p in resumed.points] == pytest.approx(
        [p.train_loss for p in whole.points], rel=2e-3
    )


@pytest.mark.extended
@pytest.mark.parametrize("move", GANG_MOVES, ids=between)
def test_a_cell_goes_on_at_another_degree(ranks, root, tmp_path, move):
    assert_moved(ranks, cell(weight_decay=0.3), root, move, tmp_path / "c", 1e-5)
    assert not list((tmp_path / "c").glob("universal-*"))


#: The families that DeepSpeed shards by HuggingFace's plan, and an untied head, which is whole or shared by itself.
FAMILY_MOVES = [
    pytest.param(
        recipe,
        move,
        id=f"{recipe['network']}-{between(move)}",
        marks=pytest.mark.slow if n == 0 else pytest.mark.extended,
    )
    for n, (recipe, move) in enumerate(
        itertools.product(
            ({"network": "qwen3", "embeddings": "untied"}, {"network": "llama"}),
            (
                (Layout(**TP2, zero=1, shard_vocabulary=True), Layout()),
                (Layout(), Layout(**TP2, zero=1, shard_vocabulary=True)),
                (Layout(**DP2, zero=3), Layout()),
            ),
        )
    )
]


@pytest.mark.parametrize(("recipe", "move"), FAMILY_MOVES)
def test_cells_of_other_families_go_on_at_another_degree(ranks, root, tmp_path, recipe, move):
    shape = Shape(depth=2, width=16, heads=4, kv_heads=2)
    assert_moved(ranks, cell(shape=shape, weight_decay=0.3, **recipe), root, move, tmp_path / "c", 1e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    "move", [(Layout(zero=3), Layout()), (Layout(**TP2, zero=0), Layout(**DP2, zero=1))], ids=between
)
def test_each_group_of_a_parametrisation_keeps_its_rate_decay_and_epsilon(ranks, root, tmp_path, move):
    base = Base(depth=1, width=4, head_width=2)
    one = cell(parametrisation="completep", base=base, weight_decay=0.3, epsilon=1e-4)
    assert_moved(ranks, one, root, move, tmp_path / "c", 1e-5)


@pytest.mark.extended
def test_four_ranks_go_on_to_the_same_bits_and_at_one_rank(ranks, root, tmp_path):
    four = Layout(tensor_parallel=2, data_parallel=2, zero=1)
    whole = assert_same_bits(ranks, cell(), root, four, tmp_path / "c")
    resumed = run(None, cell(), root, Layout(), tmp_path / "c")
    assert resumed.resumed_from == STEPS - 1
    assert resumed.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.fixture(scope="module")
def pristine(root, tmp_path_factory):
    """The checkpoints of the cell stopped at a step."""
    folder = tmp_path_factory.mktemp("pristine")
    assert run(None, cell(), root, Layout(), folder, STOPPED) is None
    return folder


@pytest.fixture
def stopped(pristine, tmp_path):
    """A copy of its two newest checkpoints, older first."""
    shutil.copytree(pristine, tmp_path / "c")
    tags = sorted(path for path in (tmp_path / "c").glob("step-*"))
    assert [int(path.name.split("-")[1]) for path in tags] == [STOPPED - 1, STOPPED]
    return tags


def truncate(tag):
    weights = next(tag.glob("*.pt"))
    weights.write_bytes(weights.read_bytes()[:-100])


def flip_a_bit(tag):
    weights = max(tag.glob("*.pt"), key=lambda path: path.stat().st_size)
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)


def delete_a_file(tag):
    next(tag.glob("*.pt")).unlink()


def delete_the_marker(tag):
    (tag / MARKER).unlink()


def empty_the_marker(tag):
    (tag / MARKER).write_text("")


def change_the_marker(tag):
    text = (tag / MARKER).read_text()
    (tag / MARKER).write_text(text.replace('"train_seconds": ', '"train_seconds": 1'))


def age_the_format(tag):
    (tag / MARKER).write_text(json.dumps({path.name: path.stat().st_size for path in tag.glob("*.pt")}))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip_a_bit, "_model_states.pt is damaged"),
        (delete_the_marker, "not finished"),
        *(
            pytest.param(*spoilt, marks=pytest.mark.slow)
            for spoilt in (
                (truncate, "bytes instead of"),
                (delete_a_file, "is missing"),
                (empty_the_marker, "complete.json is damaged"),
                (change_the_marker, "complete.json is damaged"),
                (age_the_format, "complete.json is damaged"),
            )
        ),
    ],
)
def test_a_spoilt_checkpoint_is_passed_over_for_the_one_before(root, tmp_path, stopped, spoil, why):
    whole = uninterrupted(None, cell(), root, Layout())
    older, newest = stopped
    spoil(newest)
    resumed = run(None, cell(), root, Layout(), tmp_path / "c")
    assert resumed.resumed_from == STOPPED - 1
    (note,) = resumed.notes
    assert newest.name in note
    assert why in note
    assert numbers(resumed) == numbers(whole)
    # It is no longer there to be looked at again, and the newest two are the good ones.
    assert len(list((tmp_path / "c").glob("step-*"))) == checkpoint.KEEP
    assert not older.exists()


def test_another_cells_checkpoints_are_passed_over_and_left_alone(root, tmp_path, stopped):
    result = run(None, cell(seed=1), root, Layout(), tmp_path / "c")
    assert result.resumed_from == 0
    assert len(result.notes) == len(stopped)
    assert cell().key in result.notes[0]
    assert run(None, cell(), root, Layout(), tmp_path / "c").resumed_from == STOPPED


def test_all_spoilt_checkpoints_train_the_cell_anew(root, tmp_path, stopped):
    for tag in stopped:
        flip_a_bit(tag)
    result = run(None, cell(), root, Layout(), tmp_path / "c")
    assert (result.resumed_from, len(result.notes)) == (0, 2)
    assert result.loss == uninterrupted(None, cell(), root, Layout()).loss


class Intruder:
    """Runs a command where a file is unpickled that has one."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("after", [Layout(), Layout(zero=1)], ids=["same layout", "another layout"])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_checkpoint_that_would_run_code_is_refused_and_runs_none(root, tmp_path, stopped, legacy, after):
    """Its checksums are right: who may write to the bucket can write them too."""
    newest, file = stopped[-1], next(stopped[-1].glob("*.pt"))
    content = torch.load(file, weights_only=True)
    torch.save(
        {**content, "more": Intruder(f"touch {tmp_path}/ran")},
        file,
        _use_new_zipfile_serialization=not legacy,
    )
    write_marker(newest, files={file.name: record(file)})
    before = contents(tmp_path / "c")
    with pytest.raises(InputError, match=rf"{newest.name}.*\(posix.system\)"):
        run(None, cell(), root, after, tmp_path / "c")
    assert not (tmp_path / "ran").exists()
    assert contents(tmp_path / "c") == before
    # The file is as dangerous as it looks, and other files are loaded as before.
    torch.load(file, weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("after", [Layout(), Layout(zero=1)], ids=["same layout", "another layout"])
def test_a_file_that_is_replaced_after_it_was_verified_runs_no_code(
    root, tmp_path, stopped, monkeypatch, after
):
    """In a shared folder others may write between the check of a checksum and the load."""
    file = next(stopped[-1].glob("*.pt"))
    load, convert = checkpoint.Found.load, universal.convert

    def replace_and_load(self, engine, notes):
        plant(stopped[-1], f"touch {tmp_path}/ran")
        load(self, engine, notes)

    def convert_and_replace(source, target, layout):
        convert(source, target, layout)
        for path in target.rglob("*.pt"):
            torch.save(Intruder(f"touch {tmp_path}/ran"), path)

    monkeypatch.setattr(checkpoint.Found, "load", replace_and_load)
    monkeypatch.setattr(universal, "convert", convert_and_replace)
    with pytest.raises(InputError, match=rf"{stopped[-1].name}.* would run code .*\(posix.system\)"):
        run(None, cell(), root, after, tmp_path / "c")
    assert file.exists()
    assert not (tmp_path / "ran").exists()


def test_the_refusal_of_classes_ends_with_the_load(tmp_path, monkeypatch):
    torch.save(Intruder("true"), tmp_path / "file.pt")
    # What users set for other programs, which torch refuses beside ours.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with universal.without_code(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "file.pt", weights_only=False)
    assert torch.load(tmp_path / "file.pt", weights_only=False) == 0
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def plant(tag, command):
    """Put a command into the model file of a checkpoint, and return the file."""
    file = next(tag.glob("*.pt"))
    torch.save({**torch.load(file, weights_only=True), "more": Intruder(command)}, file)
    return file


def record(path):
    return {"bytes": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}


def list_nothing(tag, command):
    plant(tag, command)
    write_marker(tag, files={})


def add_an_unlisted_file(tag, command):
    file = plant(tag, command)
    file.rename(tag / "mp_rank_01_model_states.pt")
    shutil.copyfile(next(tag.parent.glob(f"step-*{STOPPED - 1}-*/{file.name}")), file)
    write_marker(tag, files={file.name: record(file)})


def add_an_unlisted_folder(tag, command):
    (tag / "zero").mkdir()
    torch.save(Intruder(command), tag / "zero" / "optimizer_state.pt")


def list_an_absolute_path(tag, command):
    file = plant(tag, command)
    write_marker(tag, files={str(file): record(file)})


def list_a_path_upwards(tag, command):
    file = plant(tag, command)
    write_marker(tag, files={f"../{tag.name}/{file.name}": record(file)})


def list_the_folder_itself(tag, command):
    plant(tag, command)
    write_marker(tag, files={".": {"bytes": tag.stat().st_size, "crc32": 0}})


@pytest.mark.parametrize("where", ["folder", "object store"])
@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (list_nothing, "complete.json is damaged"),
        (add_an_unlisted_file, "does not list mp_rank_01_model_states.pt"),
        (add_an_unlisted_folder, "does not list zero"),
        (list_an_absolute_path, "complete.json is damaged"),
        (list_a_path_upwards, "complete.json is damaged"),
        (list_the_folder_itself, "complete.json is damaged"),
    ],
)
def test_only_files_that_the_marker_lists_are_fetched_and_loaded(
    one_rank, tmp_path, monkeypatch, stopped, forge, why, where
):
    """Checksums are right: who may write to the storage can write them too. The checkpoint before is found."""
    older, newest = stopped
    forge(newest, f"touch {tmp_path}/ran")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "machine"))
    (tmp_path / "machine").mkdir()
    storage = open_storage(tmp_path / "c" if where == "folder" else f"local://{tmp_path}/c")
    before, notes, damaged = contents(tmp_path / "c"), [], set()
    found = checkpoint.find(storage, cell().key, Layout(), notes, damaged)
    # A further object is not fetched from a store, so it does no harm there.
    is_harmless = where == "object store" and why.startswith("does not list")
    assert found.tag == (newest if is_harmless else older).name
    if not is_harmless:
        assert damaged == {newest.name}
        assert why in notes[0]
        assert len(notes) == 1
    assert contents(tmp_path / "c") == before
    fetched = {path.name for path in (storage.local / found.tag).iterdir()} - {MARKER}
    assert fetched == set(found.marker.files)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def one_rank():
    """A process group of this process."""
    join()
    yield
    leave()


@pytest.mark.parametrize("where", ["folder", "object store"])
def test_a_cell_with_a_forged_checkpoint_goes_on_from_the_one_before(root, tmp_path, stopped, where):
    list_nothing(stopped[1], f"touch {tmp_path}/ran")
    uri = tmp_path / "c" if where == "folder" else f"local://{tmp_path}/c"
    resumed = run(None, cell(), root, Layout(), uri)
    assert resumed.resumed_from == STOPPED - 1
    assert numbers(resumed) == numbers(uninterrupted(None, cell(), root, Layout()))
    assert not (tmp_path / "ran").exists()


def test_a_conversion_that_lies_in_a_shared_folder_is_made_anew(root, tmp_path, stopped):
    folder = tmp_path / "c" / f"universal-{stopped[1].name}"
    (folder / stopped[1].name).mkdir(parents=True)
    (folder / "done").touch()
    torch.save(Intruder(f"touch {tmp_path}/ran"), folder / stopped[1].name / "mp_rank_00_model_states.pt")
    assert run(None, cell(), root, Layout(zero=1), tmp_path / "c").resumed_from == STOPPED
    assert not (tmp_path / "ran").exists()


def contents(folder):
    """The bytes of all files of all checkpoints."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


PERMANENT = [TypeError("unknown class"), RuntimeError("unknown file"), FileNotFoundError("another name")]
PASSING = [
    OSError(errno.EIO, "the file server is away"),
    torch.distributed.DistNetworkError("reset by peer"),
    torch.AcceleratorError("device is lost"),
    torch.OutOfMemoryError("no room"),
]


@pytest.mark.parametrize("after", [Layout(), Layout(zero=1)], ids=["same layout", "another layout"])
def test_an_intact_checkpoint_whose_load_raises_is_kept_and_loaded_once_that_works(
    root, tmp_path, stopped, monkeypatch, after
):
    folder, before = tmp_path / "c", contents(tmp_path / "c")
    errors = [*PERMANENT, *PASSING] if after == Layout() else [PERMANENT[0], PASSING[0]]
    for error in errors:

        def fail(*args, error=error, **kwargs):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(torch, "load", fail)
            with pytest.raises(InputError if error in PERMANENT else type(error)) as found:
                run(None, cell(), root, after, folder)
        if error in PERMANENT:
            for part in (stopped[1].name, str(error), f"deepspeed {version('deepspeed')}", "or delete it"):
                assert part in str(found.value)
        else:
            assert found.value is error
        assert contents(folder) == before
    resumed = run(None, cell(), root, after, folder)
    assert resumed.resumed_from == STOPPED
    assert resumed.loss == pytest.approx(uninterrupted(None, cell(), root, after).loss, rel=1e-5)


@pytest.mark.slow
def test_a_load_in_a_gang_that_fails_on_one_rank_fails_on_all_and_is_kept(ranks, root, tmp_path):
    layout, folder = Layout(data_parallel=2, zero=1), tmp_path / "c"
    assert run(ranks, cell(), root, layout, folder, STOPPED) is None
    before = contents(folder)
    errors = ranks.gang(2, load_with_an_error_on_rank_1, cell(), root, layout, folder)
    assert [name for name, _ in errors] == ["InputError", "InputError"]
    assert all("unknown class" in text for _, text in errors)
    assert contents(folder) == before
    assert run(ranks, cell(), root, layout, folder).resumed_from == STOPPED


def load_with_an_error_on_rank_1(one, root, layout, folder, rank_info=None, rendezvous=None):
    """The error of this rank's training; that of rank 1 comes after DeepSpeed has read its files."""
    own = checkpoint.Found._read

    def read(self, engine):
        found = own(self, engine)
        return TypeError("unknown class") if rank_info.rank else found

    checkpoint.Found._read = read
    try:
        train_rank(one, root, layout, folder, None, rank_info, rendezvous)
    except Exception as error:  # noqa: BLE001  # asserted in the test
        return type(error).__name__, str(error)
    finally:
        checkpoint.Found._read = own
    return "", ""


def write_marker(tag, **changes):
    """Change the marker of a checkpoint, with the checksum of the new content."""
    body = {**json.loads((tag / MARKER).read_text()), **changes}
    body.pop("checksum")
    (tag / MARKER).write_text(json.dumps({"checksum": digest(body), **body}))


def test_a_checkpoint_of_another_format_is_refused_and_kept(root, tmp_path, stopped):
    write_marker(stopped[1], format=checkpoint.FORMAT - 1)
    before = contents(tmp_path / "c")
    with pytest.raises(InputError, match=f"format {checkpoint.FORMAT - 1}"):
        run(None, cell(), root, Layout(), tmp_path / "c")
    assert contents(tmp_path / "c") == before


def test_a_checkpoint_of_other_versions_is_loaded_and_they_are_named_if_it_cannot_be(
    root, tmp_path, stopped, monkeypatch
):
    marker = json.loads((stopped[1] / MARKER).read_text())
    assert marker["versions"] == {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    write_marker(stopped[1], versions={**marker["versions"], "deepspeed": "0.1.2"})
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *_, **__: {}["other"])
        with pytest.raises(InputError, match=r"deepspeed 0\.1\.2, ") as error:
            run(None, cell(), root, Layout(), tmp_path / "c")
        assert f"deepspeed {version('deepspeed')}" in str(error.value), "the installed one"
    resumed = run(None, cell(), root, Layout(), tmp_path / "c")
    assert numbers(resumed) == numbers(uninterrupted(None, cell(), root, Layout()))


def test_a_save_deletes_no_later_checkpoint_that_its_run_did_not_see_damaged(root, tmp_path, stopped):
    """One of another driver, which still runs on a machine that was thought to be lost."""
    folder, later = tmp_path / "c", tmp_path / "c" / f"step-000000099-{cell().key}"
    saved = checkpoint.save
    copied = []

    def save_beside_another(*args):
        if not copied:
            copied.append(shutil.copytree(stopped[1], later))
        return saved(*args)

    checkpoint.save = save_beside_another
    try:
        train(cell(), data_root=root, checkpoints=folder, checkpoint_every=0)
    finally:
        checkpoint.save = saved
    assert later.is_dir()
    assert len(list(folder.glob("step-*"))) == checkpoint.KEEP + 1


def test_a_damaged_checkpoint_is_deleted_by_the_next_save_whatever_its_step(root, tmp_path, stopped):
    later = tmp_path / "c" / f"step-000000099-{cell().key}"
    flip_a_bit(stopped[1].rename(later))
    resumed = run(None, cell(), root, Layout(), tmp_path / "c")
    assert (resumed.resumed_from, len(resumed.notes)) == (STOPPED - 1, 1)
    assert not later.exists()


def test_notes_outlive_a_second_stop(root, tmp_path, stopped):
    truncate(stopped[1])
    assert run(None, cell(), root, Layout(), tmp_path / "c", 3) is None
    resumed = run(None, cell(), root, Layout(), tmp_path / "c")
    assert resumed.resumed_from == STOPPED + 2
    assert "bytes instead of" in resumed.notes[0]


def test_what_deepspeed_cannot_convert_is_refused_and_goes_on_in_its_layout(
    root, tmp_path, stopped, monkeypatch
):
    def refuse(*args):
        raise NotImplementedError("not this one")

    monkeypatch.setattr(universal, "_merge_plain", refuse)
    with pytest.raises(InputError, match="not this one"):
        run(None, cell(), root, Layout(zero=1), tmp_path / "c")
    assert run(None, cell(), root, Layout(), tmp_path / "c").resumed_from == STOPPED


def test_none_is_left_after_removal(tmp_path, stopped):
    discard(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_place_nothing_can_be_written_to_is_refused_before_training(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/c .*Not a directory"):
        run(None, cell(), root, Layout(), tmp_path / "file" / "c")


@pytest.mark.parametrize(
    "layout",
    [Layout(), pytest.param(Layout(tensor_parallel=2, zero=1), marks=pytest.mark.slow)],
    ids=["one rank", "two ranks"],
)
def test_a_full_disk_costs_the_checkpoint_and_not_the_training(ranks, root, tmp_path, layout):
    folder = tmp_path / "small"
    with small_disk(folder, 64):
        whole = uninterrupted(ranks, cell(), root, layout)
        result = run(ranks, cell(), root, layout, folder / "c")
        assert result.loss == whole.loss
        assert result.notes == (f"no checkpoint at step 1: the disk of {folder / 'c'} is full",)
        assert not list((folder / "c").glob("step-*"))


def train_with_slow_disk(one, root, layout, folder, seconds, rank_info=None, rendezvous=None):
    """Train on one rank; rank 0's disk takes so long for the first bytes."""
    usual, calls = checkpoint._Summed.write, []

    def slowly(self, data):
        if rank_info.rank == 0 and not calls:
            calls.append(data)
            time.sleep(seconds)
        return usual(self, data)

    checkpoint._Summed.write = slowly
    try:
        return train_rank(one, root, layout, folder, None, rank_info, rendezvous)
    finally:
        checkpoint._Summed.write = usual


@pytest.mark.extended
def test_a_write_may_take_longer_than_a_collective(ranks, root, tmp_path):
    one, layout = cell(steps=3), Layout(**DP2, zero=1)
    whole = uninterrupted(ranks, one, root, layout)
    result = ranks.gang(2, train_with_slow_disk, one, root, layout, tmp_path, 12.0, timeout=8.0)[0]
    assert numbers(result) == numbers(whole)
    assert result.notes == ()


@pytest.mark.extended
def test_at_stage_0_any_number_of_groups_reads_the_checkpoint_as_it_is(ranks, root, tmp_path):
    one, two = Layout(), Layout(data_parallel=2)
    assert run(ranks, cell(), root, two, tmp_path / "c", STOPPED) is None
    resumed = run(ranks, cell(), root, one, tmp_path / "c")
    assert (resumed.resumed_from, resumed.notes) == (STOPPED, ())
    assert resumed.loss == pytest.approx(uninterrupted(ranks, cell(), root, one).loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(tensor_parallel=2, zero=1)], ids=["one rank", "two ranks"]
)
def test_a_cell_killed_at_any_moment_goes_on_to_the_same_bits(ranks, root, tmp_path, layout):
    one, folder = cell(steps=60, dropout=0.1), tmp_path / "c"
    (tmp_path / "cell.json").write_text(one.model_dump_json())
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if layout.ranks > 1 else []
    options = ["--data", root, "--tensor-parallel", layout.tensor_parallel, "--checkpoints", folder]
    command = [sys.executable, *torchrun, "-m", "trainables", tmp_path / "cell.json", *options]
    killed = subprocess.Popen(
        [*map(str, command), "--checkpoint-every", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while len(list(folder.glob(f"step-*/{MARKER}"))) < checkpoint.KEEP:
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    family = [*psutil.Process(killed.pid).children(recursive=True), psutil.Process(killed.pid)]
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=30)
    killed.wait()
    resumed = run(ranks, one, root, layout, folder)
    assert 0 < resumed.resumed_from < 60
    assert numbers(resumed) == numbers(uninterrupted(ranks, one, root, layout))
