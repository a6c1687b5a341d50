import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from filelock import FileLock
from tokenizers import Tokenizer

from core.errors import InputError
from tests.named import assert_named
from trainables.data import data_key
from trainables.data.kind import BPE_END, BYTES_END
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.kinds.repeats import RepeatsData
from trainables.data.packing import pack
from trainables.data.packing.pack import PackingProgress, estimate_bytes
from trainables.data.packing.tokenizer import train_bpe
from trainables.data.store.batches import validation_batches
from trainables.data.store.open import open_store
from trainables.data.store.token_store import read_store
from trainables.errors import DataError

SMALL = HierarchyData(sequences=300, validation_sequences=40)
HIERARCHY_FLOOR = (math.log(8) + 31 * math.log(2)) / 32


def prose(seed=0, lines=2000):
    draw = np.random.default_rng(seed)
    words = ["".join(chr(97 + c) for c in draw.integers(0, 20, 5)) for _ in range(300)]
    return "".join(" ".join(words[i] for i in draw.integers(0, 300, 9)) + "\n" for _ in range(lines))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(prose())
    return path


def test_a_hierarchy_store_has_rows_a_floor_and_no_bytes(tmp_path):
    store = open_store(SMALL, context=64, root=tmp_path)
    assert store.path == tmp_path / data_key(SMALL, 64)
    assert store.train.shape == (300 * 65,)
    assert store.validation.shape == (40 * 65,)
    assert store.train.dtype == np.uint8
    assert store.vocabulary == 9
    assert store.entropy == pytest.approx(HIERARCHY_FLOOR)
    assert store.bytes_per_token is None
    assert (store.train.reshape(-1, 65)[:, 0] == 8).all()
    assert sum(x.size for x, _ in validation_batches(store, context=64, batch=16)) == 40 * 64
    with pytest.raises(ValueError, match="read-only"):
        store.train[0] = 1


def test_a_store_of_a_task_has_inputs_targets_and_a_floor_of_nothing(tmp_path):
    # 255 ids fit a byte, and the mark of what is not scored is the 256th value.
    spec = RepeatsData(alphabet=254, sequences=300, validation_sequences=40)
    store = open_store(spec, context=32, root=tmp_path)
    assert (store.row, store.targets, store.entropy, store.bytes_per_token) == (64, True, 0.0, None)
    assert (store.vocabulary, store.train.dtype) == (255, np.uint8)
    assert (len(store.train), len(store.validation)) == (300 * 64, 40 * 64)
    wanted = [np.concatenate(list(spec.rows(32, validation=side))) for side in (False, True)]
    assert np.array_equal(store.train.reshape(-1, 64), wanted[0])
    assert np.array_equal(store.validation.reshape(-1, 64), wanted[1])
    wider = open_store(spec.model_copy(update={"alphabet": 255}), context=32, root=tmp_path)
    assert wider.train.dtype == np.uint16
    assert data_key(spec, 32) == store.path.name != data_key(spec, 64)
    assert estimate_bytes(spec, 32) == sum(path.stat().st_size for path in store.path.glob("*.bin"))


def test_a_store_from_before_tasks_has_the_key_and_targets_it_had(tmp_path):
    store = open_store(SMALL, context=64, root=tmp_path)
    assert store.path.name == "b58b053892ff8054"
    assert not store.targets


def test_rows_with_unequal_numbers_of_targets_are_not_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(RepeatsData, "scored", lambda self, context: 3)
    monkeypatch.setattr(RepeatsData, "draw_piece", uneven)
    with pytest.raises(RuntimeError, match=r"repeats .* 3 "):
        open_store(RepeatsData(sequences=300, validation_sequences=40), context=32, root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


def uneven(spec, context, piece):
    drawn = np.zeros((8192, 2 * context), np.int64)
    drawn[:, 0] = np.arange(8192)
    drawn[:, context:-3] = spec.vocabulary_size
    drawn[7, -3] = spec.vocabulary_size
    return drawn


def test_a_text_store_of_bytes_holds_the_text_and_its_splits_share_no_line(tmp_path, text_file):
    store = open_store(FilesData(path=str(text_file)), context=64, root=tmp_path / "stores")
    assert store.train.dtype == np.uint16
    assert store.entropy is None
    sides = []
    for tokens in (store.train, store.validation):
        assert tokens[-1] == BYTES_END
        sides.append(bytes(tokens[tokens != BYTES_END].astype(np.uint8)).decode().splitlines())
    assert sorted(sides[0] + sides[1]) == sorted(text_file.read_text().splitlines())
    assert not set(sides[0]) & set(sides[1])
    assert 0.02 < len(sides[1]) / 2000 < 0.1
    text_bytes = (store.validation != BYTES_END).sum()
    assert store.bytes_per_token == pytest.approx(text_bytes / len(store.validation))


def test_a_bpe_store_gives_its_text_back_through_its_tokenizer(tmp_path, text_file):
    spec = FilesData(path=str(text_file), tokenizer="bpe", vocabulary=500)
    store = open_store(spec, context=64, root=tmp_path / "stores")
    tokenizer = Tokenizer.from_file(str(store.path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == store.vocabulary == 500
    assert store.manifest["end_of_text"] == BPE_END
    whole = "".join(
        tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        for tokens in (store.train, store.validation)
    )
    assert sorted(whole.splitlines()) == sorted(text_file.read_text().splitlines())
    validation = tokenizer.decode(store.validation.tolist(), skip_special_tokens=True)
    assert store.bytes_per_token == pytest.approx(len(validation.encode()) / len(store.validation))
    assert store.bytes_per_token > 1.5


def test_the_tokenizer_learns_from_the_training_split_only(tmp_path, text_file):
    root = tmp_path / "stores"
    as_bytes = open_store(FilesData(path=str(text_file)), context=64, root=root)
    train, validation = (
        bytes(tokens[tokens != BYTES_END].astype(np.uint8)).decode()
        for tokens in (as_bytes.train, as_bytes.validation)
    )
    store = open_store(FilesData(path=str(text_file), tokenizer="bpe", vocabulary=800), context=64, root=root)
    packed = Tokenizer.from_file(str(store.path / "tokenizer.json")).get_vocab()
    assert packed == train_bpe(iter([train]), 800).tokenizer.get_vocab()
    assert packed != train_bpe(iter([train, validation]), 800).tokenizer.get_vocab()


def test_limits_hold_exactly_and_end_the_reading(tmp_path, text_file):
    for options in ({}, {"tokenizer": "bpe", "vocabulary": 300}):
        spec = FilesData(path=str(text_file), max_tokens=5000, validation_tokens=700, **options)
        store = open_store(spec, context=64, root=tmp_path / "stores")
        assert len(store.train) == 5000
        assert len(store.validation) == 700
        assert store.manifest["tokens"] == {"train": 5000, "validation": 700}
        assert store.manifest["sources"][0]["tokens"] == {"train": 5000, "validation": 700}


def test_documents_end_with_one_end_of_text(tmp_path):
    lines = [json.dumps({"text": f"document {i} " + "x" * (i % 7)}) for i in range(3000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    store = open_store(FilesData(path=str(tmp_path / "a.jsonl")), context=16, root=tmp_path / "stores")
    texts = []
    for tokens in (store.train, store.validation):
        *documents, rest = bytes(np.where(tokens == BYTES_END, 0, tokens).astype(np.uint8)).split(b"\0")
        assert rest == b""
        texts += documents
    assert sorted(texts) == sorted(json.loads(line)["text"].encode() for line in lines)


def numbered(lines, step):
    """Text without random numbers."""
    return "".join(f"{line * step % 9973} of {line} and {line * line % 7919}\n" for line in range(lines))


@pytest.fixture
def articles(tmp_path):
    """As many documents as are split whole at a fraction of 0.5, 100, and some more; up to 10 KB each."""
    texts = [f"article {i}\n{numbered(4 * i, 11 + i)}" for i in range(120)]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, texts


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bpe", "vocabulary": 300}])
def test_of_many_documents_each_is_whole_in_one_split(tmp_path, articles, options):
    path, texts = articles
    spec = FilesData(path=str(path), validation_fraction=0.5, validation_tokens=10**9, **options)
    store = open_store(spec, context=64, root=tmp_path / "stores")
    end = store.manifest["end_of_text"]
    decode = Tokenizer.from_file(str(store.path / "tokenizer.json")).decode if options else bytes.decode
    sides = []
    for tokens in (store.train, store.validation):
        ends = np.flatnonzero(tokens == end)
        assert ends[-1] == len(tokens) - 1
        parts = [part[part != end].tolist() for part in np.split(np.asarray(tokens), ends[:-1] + 1)]
        sides.append([decode(part if options else bytes(part)) for part in parts])
    train, validation = map(set, sides)
    assert sides[0] == [text for text in texts if text in train], "in the order of the file"
    assert sides[1] == [text for text in texts if text in validation]
    assert len(sides[0]) + len(sides[1]) == 120
    # Four standard deviations of the number, and of the tokens as the lengths are uniform.
    assert len(sides[1]) == pytest.approx(60, abs=22)
    assert len(store.validation) / (len(store.train) + len(store.validation)) == pytest.approx(0.5, abs=0.21)


@pytest.mark.parametrize("validation_tokens", [20_000, 120_000])
def test_the_validation_limit_is_reached_although_few_training_tokens_are_wanted(
    tmp_path, articles, validation_tokens
):
    limits = {"max_tokens": 5000, "validation_tokens": validation_tokens}
    spec = FilesData(path=str(articles[0]), validation_fraction=0.5, **limits)
    store = open_store(spec, context=64, root=tmp_path / "stores")
    assert store.manifest["tokens"] == {"train": 5000, "validation": validation_tokens}


def test_encoding_while_reading_gives_the_tokens_of_packing_a_copy(tmp_path):
    """The hashes are of the version that first wrote all text to disk; blocks were and are split alike."""
    (tmp_path / "a.txt").write_text(numbered(150_000, 7))
    texts = [numbered(1 + 371 * i % 3000, 11 + i) for i in range(100)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    a, b = (FilesData(path=str(tmp_path / name), validation_tokens=200_000) for name in ("a.txt", "b.jsonl"))
    parts = [{"weight": 2, "data": a}, {"weight": 1, "data": b}]
    for spec, hashes in (
        (a, ["4977c6ff140fae89", "1da27c85d6f6430d"]),
        (b, ["ac5fc8b874f55c3a", "98daa91706e8ddf8"]),
        (MixtureData(parts=parts, validation_tokens=200_000), ["ab77a42dd45d2772", "7691ca21126c131b"]),
    ):
        store = open_store(spec, context=64, root=tmp_path / "stores")
        assert [store.manifest["sha256"][split][:16] for split in ("train", "validation")] == hashes


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bpe", "vocabulary": 300}])
@pytest.mark.slow
def test_packing_takes_no_more_disk_than_estimated(tmp_path, monkeypatch, options):
    (tmp_path / "a.txt").write_text(numbered(150_000, 7))
    spec = FilesData(path=str(tmp_path / "a.txt"), **options)
    root, sizes = tmp_path / "stores", []

    def measure(*_):
        sizes.append(sum(path.stat().st_size for path in root.rglob("*") if path.is_file()))

    monkeypatch.setattr(PackingProgress, "share", measure)
    store = open_store(spec, context=64, root=root)
    text = (tmp_path / "a.txt").stat().st_size
    tokens = sum(path.stat().st_size for path in store.path.glob("*.bin"))
    # The text itself lies there only for BPE.
    assert max(sizes) == pytest.approx(tokens + (text if options else 0), rel=0.1)
    assert max(sizes) <= estimate_bytes(spec, 64) == text * (3 if options else 2)


def test_the_manifest_tells_what_was_packed(tmp_path, text_file):
    spec = FilesData(path=str(text_file))
    store = open_store(spec, context=64, root=tmp_path / "stores")
    manifest = json.loads((store.path / "manifest.json").read_text())
    assert manifest == store.manifest
    assert manifest["key"] == store.path.name == data_key(spec, 64)
    assert FilesData.model_validate(manifest["spec"]) == spec
    assert manifest["sources"][0]["files"][0]["path"] == str(text_file)
    assert len(manifest["sha256"]["train"]) == 64
    assert {p.name for p in store.path.iterdir()} == {"train.bin", "validation.bin", "manifest.json"}


def test_a_split_shorter_than_a_window_is_refused_at_once(tmp_path, text_file):
    with pytest.raises(DataError, match=r"validation .*50000"):
        open_store(FilesData(path=str(text_file)), context=50_000, root=tmp_path / "stores")


def test_an_impossible_grammar_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="multiple of 32"):
        open_store(SMALL, context=50, root=tmp_path)


# What happens to stores


def test_a_planned_store_is_opened_without_its_source_but_not_made_from_another(tmp_path, text_file):
    spec = FilesData(path=str(text_file))
    key = data_key(spec, 64)
    text_file.write_text(prose(seed=1))
    with pytest.raises(DataError, match=key):
        open_store(spec, context=64, root=tmp_path / "stores", key=key)
    assert not (tmp_path / "stores").exists()
    key = data_key(spec, 64)
    packed = open_store(spec, context=64, root=tmp_path / "stores", key=key)
    text_file.unlink()
    again = open_store(spec, context=64, root=tmp_path / "stores", key=key)
    assert again.manifest == packed.manifest


def test_a_key_does_not_open_the_store_of_another_spec(tmp_path, text_file):
    key = data_key(SMALL, 64)
    open_store(SMALL, context=64, root=tmp_path, key=key)
    with pytest.raises(DataError, match=key):
        open_store(SMALL.model_copy(update={"sequences": 301}), context=64, root=tmp_path, key=key)


def test_data_that_changes_while_it_is_packed_makes_no_store(tmp_path, text_file, monkeypatch):
    def pack_and_edit(*arguments):
        packed(*arguments)
        text_file.write_text(prose(seed=1))

    packed = pack.pack
    monkeypatch.setattr(pack, "pack", pack_and_edit)
    with pytest.raises(DataError, match="while it was being packed"):
        open_store(FilesData(path=str(text_file)), context=64, root=tmp_path / "stores")
    assert [p.name for p in (tmp_path / "stores").iterdir()] == ["tmp"]


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "bad manifest", "empty manifest", "no tokenizer"]
)
def test_a_damaged_store_is_packed_again(tmp_path, text_file, damage):
    spec = FilesData(path=str(text_file), tokenizer="bpe", vocabulary=300)
    root = tmp_path / "stores"
    store = open_store(spec, context=64, root=root)
    before, path = store.train.tobytes(), store.path
    del store
    if damage == "truncated":
        with (path / "train.bin").open("r+b") as file:
            file.truncate(len(before) - 1)
    elif damage == "flipped":
        with (path / "train.bin").open("r+b") as file:
            file.write(bytes([before[0] ^ 1]))
        # The file system's clock may not have ticked since the store was packed.
        later = (path / "manifest.json").stat().st_mtime_ns + 10**9
        os.utime(path / "train.bin", ns=(later, later))
    elif damage == "missing":
        (path / "validation.bin").unlink()
    elif damage == "no tokenizer":
        (path / "tokenizer.json").unlink()
    else:
        (path / "manifest.json").write_text('{"key": "x"}' if damage == "bad manifest" else "")
    again = open_store(spec, context=64, root=root, key=path.name)
    assert again.train.tobytes() == before
    assert (path / "tokenizer.json").exists()
    assert not [p for p in (root / "tmp").iterdir() if p.is_dir()]


@pytest.mark.parametrize("dtype", ["O", "V2", "f2", "i2", "u1,u1"])
def test_tokens_are_unsigned_integers_whatever_a_manifest_says(tmp_path, text_file, dtype):
    """Objects would be pointers: the bytes of the file would name the memory that is read as objects, and run."""
    spec = FilesData(path=str(text_file), tokenizer="bytes")
    path = open_store(spec, context=64, root=tmp_path).path
    manifest = json.loads((path / "manifest.json").read_text())
    size = np.dtype(dtype).itemsize
    for split in ("train", "validation"):
        count = (path / f"{split}.bin").stat().st_size // size
        os.truncate(path / f"{split}.bin", count * size)
        manifest["tokens"][split] = count
    (path / "manifest.json").write_text(json.dumps({**manifest, "dtype": dtype}))
    assert read_store(path, spec, 64, path.name) is None
    again = open_store(spec, context=64, root=tmp_path, key=path.name)
    assert again.train.dtype == manifest["dtype"]


OPEN_AT_ONCE = """
import json, sys, time
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.store.token_store import read_store
from trainables.data.kinds.files import FilesData
root, text, here, start = map(Path, sys.argv[1:])
here.touch()
while not start.exists():
    time.sleep(0.001)
store = open_store(FilesData(path=str(text), tokenizer="bpe", vocabulary=600), context=64, root=root)
print(json.dumps([store.manifest["sha256"], (store.path / "manifest.json").stat().st_ino]))
"""


def said_at_once(folder, count, program, *arguments):
    """What so many processes of a program print that wait for one another.

    Beside its arguments each is given a file to make when it is there, and one to wait for.
    """
    start, here = folder / "start", [folder / f"here{i}" for i in range(count)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments), str(mark), str(start)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for mark in here
    ]
    deadline = time.monotonic() + 60
    while not all(mark.exists() for mark in here):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    start.touch()
    return [worker.communicate(timeout=60)[0] for worker in workers]


def test_several_processes_want_it_at_once_and_one_packs(tmp_path, text_file):
    root = tmp_path / "stores"
    found = said_at_once(tmp_path, 4, OPEN_AT_ONCE, root, text_file)
    assert found[0]
    assert all(one == found[0] for one in found), "one store: the same bytes and the same file"
    assert len([p for p in root.iterdir() if p.name != "tmp"]) == 1


PACK = """
import sys
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.store.token_store import read_store
from trainables.data.kinds.hierarchy import HierarchyData
open_store(HierarchyData(sequences=int(sys.argv[2])), context=64, root=Path(sys.argv[1]))
"""


def _killed_while_packing(root, sequences):
    builder = subprocess.Popen([sys.executable, "-c", PACK, str(root), str(sequences)])
    try:
        deadline = time.monotonic() + 60
        while not list(root.glob("tmp/*/train.bin")):
            assert time.monotonic() < deadline
            assert builder.poll() is None
            time.sleep(0.002)
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    return list(root.glob("tmp/*/train.bin"))


def test_a_builder_killed_midway_leaves_nothing_that_is_mistaken_for_a_store(tmp_path):
    spec = HierarchyData(sequences=150_000)
    left = _killed_while_packing(tmp_path, spec.sequences)
    assert left, "it was killed midway"
    assert not (tmp_path / data_key(spec, 64)).exists()
    store = open_store(spec, context=64, root=tmp_path)
    assert len(store.train) == 150_000 * 65
    assert not [p for p in (tmp_path / "tmp").iterdir() if p.is_dir()]


def test_the_next_builder_of_other_data_clears_up_but_leaves_a_living_builder_alone(tmp_path):
    dead = tmp_path / "tmp" / "0123456789abcdef.1"
    living = tmp_path / "tmp" / "fedcba9876543210.1"
    dead.mkdir(parents=True)
    living.mkdir()
    (dead / "train.bin").write_text("half")
    held = FileLock(tmp_path / "tmp" / "fedcba9876543210.lock")
    with held:
        done = threading.Thread(target=open_store, args=(SMALL,), kwargs={"context": 64, "root": tmp_path})
        done.start()
        done.join(30)
    assert not done.is_alive()
    assert not dead.exists()
    assert living.exists()


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.store.token_store import read_store
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.errors import DataError
root, text = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root)], check=True)
for spec in (
    HierarchyData(),
    FilesData(path=text),
    FilesData(path=text, tokenizer="bpe", vocabulary=300),
):
    try:
        open_store(spec, context=64, root=root)
    except DataError as error:
        print(error)
    assert not [p for p in root.rglob("*") if p.suffix != ".lock" and p.name != "tmp"], "nothing half-built"
small = HierarchyData(sequences=300, validation_sequences=40)
print(len(open_store(small, context=64, root=root).train))
"""


def _own_mounts():
    """The command that runs another with mounts of its own, or None where none is allowed."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        try:
            probe = subprocess.run(
                [*command, "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, check=False
            )
        except FileNotFoundError:
            return None
        if probe.returncode == 0:
            return command
    return None


def test_a_full_disk_is_an_error_that_says_how_much_is_needed_and_leaves_room(tmp_path):
    command = _own_mounts()
    if command is None:
        pytest.skip("neither `unshare -m` nor `unshare -rm` may mount a small disk here")
    root = tmp_path / "small-disk"
    root.mkdir()
    text = tmp_path / "text.txt"
    text.write_text(prose(lines=10_000))
    out = subprocess.run(
        [*command, sys.executable, "-c", FULL_DISK, str(root), str(text)], capture_output=True, text=True
    )
    *errors, trained = out.stdout.splitlines()
    assert len(errors) == 3, out.stdout + out.stderr
    assert_named(errors[0], "2.63 MB", str(root))
    # Ids of two bytes; and with BPE the text that is learnt from.
    for error, per_byte in zip(errors[1:], (2, 3), strict=True):
        assert f"{per_byte * text.stat().st_size / 1e6:.3g} MB" in error
        assert "and 0.2" in error, "what is free after clearing up"
    assert trained == str(300 * 65), "after the errors the disk has room again"


def test_other_troubles_of_the_disk_are_named(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "store")

    monkeypatch.setattr("trainables.data.packing.pack.pack", failing)
    with pytest.raises(DataError, match=r"Read-only file system \(store\)"):
        open_store(SMALL, context=64, root=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=str(tmp_path / "file")):
        open_store(SMALL, context=64, root=tmp_path / "file")


DETERMINED = """
import json, sys
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.store.token_store import read_store
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
for spec in (
    HierarchyData(sequences=300, validation_sequences=40),
    FilesData(path=sys.argv[2]),
    FilesData(path=sys.argv[2], tokenizer="bpe", vocabulary=700),
    FilesData(path=sys.argv[3], validation_fraction=0.5),
):
    store = open_store(spec, context=64, root=Path(sys.argv[1]))
    tokenizer = store.path / "tokenizer.json"
    print(store.path.name, store.manifest["sha256"], tokenizer.exists() and hash(tokenizer.read_bytes()) * 0)
"""


def test_two_processes_pack_the_same_bytes(tmp_path, text_file, articles):
    outputs, tokenizers = [], []
    for hash_seed in ("1", "2"):
        root = tmp_path / hash_seed
        out = subprocess.run(
            [sys.executable, "-c", DETERMINED, str(root), str(text_file), str(articles[0])],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(out.stdout)
        tokenizers += [path.read_bytes() for path in root.glob("*/tokenizer.json")]
    assert outputs[0] == outputs[1]
    assert len(tokenizers) == 2
    assert tokenizers[0] == tokenizers[1]
