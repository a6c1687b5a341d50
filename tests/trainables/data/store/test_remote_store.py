"""Stores that machines share: a machine is a cache folder here, the storage a real S3 server, or fsspec's memory."""

import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
import uuid

import pytest

from core.errors import InputError
from tests.clouds import amazon
from tests.disks import small_disk
from tests.named import assert_named
from tests.trainables.data.store.test_open import prose, said_at_once
from trainables.cell import Cell, Recipe, Shape
from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store import remote_store
from trainables.data.store.build import BUILDING
from trainables.data.store.open import open_store, packed_windows
from trainables.errors import DataError
from trainables.storage.storage import Bucket, open_storage
from trainables.train.loop import train

SMALL = HierarchyData(sequences=300, validation_sequences=40)
CONTEXT = 64


@pytest.fixture(scope="module")
def server():
    """A real server that speaks S3, on loopback."""
    with amazon() as address:
        yield address


@pytest.fixture
def bucket(server, monkeypatch):
    """The URI of a folder of stores in an empty bucket, and credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Zm9yLXRlc3Rz")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"stores-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"http://{server}/{name}", method="PUT")).close()
    return f"s3://{name}/interplay/data?endpoint_override={server}&scheme=http&region=us-east-1"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The URI of a storage in this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return f"memory://{uuid.uuid4().hex}/data"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Be another machine: one with a cache of its own."""

    def become(name):
        monkeypatch.setenv("INTERPLAY_CACHE", str(tmp_path / name))
        return tmp_path / name

    become("one")
    return become


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(prose())
    return FilesData(path=str(path), tokenizer="bpe", vocabulary=500)


def files(store):
    return {path.name: path.read_bytes() for path in store.path.iterdir()}


def there(uri):
    """The names of all objects of a storage."""
    from pyarrow.fs import FileSelector

    storage = open_storage(uri)
    found = storage.files.get_file_info(FileSelector(storage.path, recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"{storage.path}/") for info in found if info.is_file)


def test_a_store_packed_on_one_machine_is_the_same_bytes_on_another(tmp_path, machine, bucket, text):
    plain = open_store(text, context=CONTEXT, root=tmp_path / "plain")
    key = plain.path.name
    one = open_store(text, context=CONTEXT, root=bucket, key=key)
    assert one.path == tmp_path / "one" / key
    assert files(one) == files(plain)
    (tmp_path / "text.txt").unlink()
    machine("two")
    two = open_store(text, context=CONTEXT, root=bucket, key=key)
    assert two.path == tmp_path / "two" / key
    assert files(two) == files(plain)
    assert two.manifest == plain.manifest
    assert (two.train == plain.train).all()
    assert not two.train.flags.writeable


def test_a_copy_is_fetched_once_and_then_used_where_it_lies(machine, bucket, monkeypatch):
    open_store(SMALL, context=CONTEXT, root=bucket)
    machine("two")
    first = open_store(SMALL, context=CONTEXT, root=bucket)
    inode = (first.path / "train.bin").stat().st_ino
    monkeypatch.setattr(remote_store, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert (open_store(SMALL, context=CONTEXT, root=bucket).path / "train.bin").stat().st_ino == inode


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest"])
def test_a_damaged_copy_is_fetched_again(machine, memory, text, damage):
    packed = files(open_store(text, context=CONTEXT, root=memory))
    folder = machine("two") / data_key(text, CONTEXT)
    assert files(open_store(text, context=CONTEXT, root=memory)) == packed
    if damage == "flipped":
        with (folder / "train.bin").open("r+b") as file:
            file.seek(1001)
            byte = file.read(1)[0]
            file.seek(1001)
            file.write(bytes([byte ^ 1]))
        # The file system's clock may not have ticked since the fetch.
        later = (folder / "manifest.json").stat().st_mtime_ns + 10**9
        os.utime(folder / "train.bin", ns=(later, later))
    elif damage == "truncated":
        os.truncate(folder / "train.bin", 1000)
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "manifest.json").write_text("{}")
    assert files(open_store(text, context=CONTEXT, root=memory)) == packed
    assert not [path for path in (folder.parent / BUILDING).iterdir() if path.is_dir()]


def test_a_copy_that_was_only_touched_is_hashed_and_kept(machine, memory, monkeypatch):
    open_store(SMALL, context=CONTEXT, root=memory)
    folder = machine("two") / data_key(SMALL, CONTEXT)
    open_store(SMALL, context=CONTEXT, root=memory)
    os.utime(folder / "train.bin")
    monkeypatch.setattr(remote_store, "_fetch", lambda *_: pytest.fail("fetched again"))
    open_store(SMALL, context=CONTEXT, root=memory)


def test_what_is_published_anew_replaces_the_copy(machine, memory):
    """Machines of one study must not train on different bytes, whatever each of them has kept."""
    open_store(SMALL, context=CONTEXT, root=memory)
    storage, key = open_storage(memory), data_key(SMALL, CONTEXT)
    machine("two")
    store = open_store(SMALL, context=CONTEXT, root=memory)
    other = bytes(reversed((store.path / "train.bin").read_bytes()))
    manifest = json.loads(storage.read(key, "manifest.json"))
    digest = hashlib.sha256(other).hexdigest()
    storage.write(key, f"train-{digest[:16]}.bin", other)
    manifest["sha256"]["train"] = digest
    storage.write(key, "manifest.json", json.dumps(manifest).encode())
    assert open_store(SMALL, context=CONTEXT, root=memory).train.tobytes() == other


@pytest.mark.parametrize(
    "damage", ["missing file", "short file", "other bytes", "bad manifest", "no manifest"]
)
def test_a_damaged_store_on_the_storage_packed_windows_and_published_again(machine, memory, text, damage):
    packed = files(open_store(text, context=CONTEXT, root=memory))
    storage, key = open_storage(memory), data_key(text, CONTEXT)
    part = next(name for name in there(memory) if "train-" in name)
    if damage == "missing file":
        storage.files.delete_file(f"{storage.path}/{part}")
    elif damage == "short file":
        storage.write(key, part.partition("/")[2], b"short")
    elif damage == "other bytes":
        storage.write(key, part.partition("/")[2], bytes(len(packed["train.bin"])))
    elif damage == "bad manifest":
        storage.write(key, "manifest.json", b'{"version": 1}')
    else:
        storage.files.delete_file(f"{storage.path}/{key}/manifest.json")
    machine("two")
    assert files(open_store(text, context=CONTEXT, root=memory)) == packed
    machine("three")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainables.data.packing.pack.pack", lambda *_: pytest.fail("packed again"))
        assert files(open_store(text, context=CONTEXT, root=memory)) == packed


def test_a_store_deleted_on_the_storage_is_published_from_the_copy(tmp_path, machine, memory, text):
    key = data_key(text, CONTEXT)
    packed = files(open_store(text, context=CONTEXT, root=memory, key=key))
    storage = open_storage(memory)
    storage.files.delete_dir(f"{storage.path}/{key}")
    (tmp_path / "text.txt").unlink()
    open_store(text, context=CONTEXT, root=memory, key=key)
    machine("two")
    assert files(open_store(text, context=CONTEXT, root=memory, key=key)) == packed


def test_a_store_that_is_not_packed_is_an_error_where_the_source_is_not(tmp_path, machine, memory, text):
    key = data_key(text, CONTEXT)
    (tmp_path / "text.txt").unlink()
    with pytest.raises(DataError, match=r"memory://.*text\.txt"):
        open_store(text, context=CONTEXT, root=memory, key=key)
    (tmp_path / "text.txt").write_text(prose(seed=1))
    with pytest.raises(DataError, match=key):
        open_store(text, context=CONTEXT, root=memory, key=key)
    assert there(memory) == []


def test_whether_it_packed_windows_is_known_without_fetching(tmp_path, machine, memory):
    key = data_key(SMALL, CONTEXT)
    for root in (memory, tmp_path / "plain"):
        assert not packed_windows(SMALL, CONTEXT, root, key)
        open_store(SMALL, context=CONTEXT, root=root)
        empty = machine("empty")
        assert packed_windows(SMALL, CONTEXT, root, key)
        assert not packed_windows(SMALL.model_copy(update={"sequences": 301}), CONTEXT, root, key)
        assert not empty.exists()
        machine("one")


def test_a_manifest_with_other_files_counts_as_none_and_the_data_is_packed_again(
    tmp_path, machine, memory, caplog
):
    first, storage = open_store(SMALL, context=CONTEXT, root=memory), open_storage(memory)
    forged = {**first.manifest, "sha256": {**first.manifest["sha256"], "../../outside": "0" * 64}}
    storage.write(first.path.name, "manifest.json", json.dumps(forged).encode())
    machine("two")
    second = open_store(SMALL, context=CONTEXT, root=memory)
    assert "manifest" in caplog.text
    assert second.manifest["sha256"] == first.manifest["sha256"]
    assert second.path.parent == tmp_path / "two"


def test_a_file_uri_is_a_folder_in_place(tmp_path, machine):
    store = open_store(SMALL, context=CONTEXT, root=f"file://{tmp_path}/stores")
    assert store.path.parent == tmp_path / "stores"
    assert not (tmp_path / "one").exists()


def test_a_cell_trains_on_a_copy_as_it_does_on_the_store(tmp_path, machine, memory):
    data = HierarchyData(
        vocabulary=8, branching=2, levels=4, synonyms=2, sequences=500, validation_sequences=50
    )
    recipe = Recipe(steps=4, batch=8, context=32)
    shape = Shape(depth=1, width=16, heads=2)
    one = Cell(shape=shape, recipe=recipe, data=data, data_key=data_key(data, 32), lr=0.02, seed=0)
    open_store(data, context=32, root=memory, key=one.data_key)
    machine("two")
    losses = [train(one, data_root=root).loss for root in (memory, tmp_path / "plain")]
    assert losses[0] == losses[1]
    assert (tmp_path / "two" / one.data_key / "train.bin").is_file()


# Trouble


PUBLISH_AND_DIE = """
import os, sys
from trainables.data.store.open import open_store
from trainables.data.kinds.files import FilesData
from trainables.data.store import remote_store
from trainables.storage.storage import Bucket
put = Bucket.put
def die(self, tag, name, source):
    if name == sys.argv[3]:
        os.kill(os.getpid(), 9)
    put(self, tag, name, source)
Bucket.put = die
open_store(FilesData(path=sys.argv[1], tokenizer="bpe", vocabulary=500), context=64, root=sys.argv[2])
"""


@pytest.mark.parametrize("moment", ["a file", "the manifest"])
def test_a_killed_publisher_leaves_nothing_that_counts(tmp_path, machine, bucket, text, moment):
    plain = files(open_store(text, context=CONTEXT, root=tmp_path / "plain"))
    digest = json.loads(plain["manifest.json"])["sha256"]["validation"][:16]
    name = f"validation-{digest}.bin" if moment == "a file" else "manifest.json"
    command = [sys.executable, "-c", PUBLISH_AND_DIE, str(tmp_path / "text.txt"), bucket, name]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert there(bucket)
    key = data_key(text, CONTEXT)
    assert not packed_windows(text, CONTEXT, bucket, key)
    machine("two")
    assert files(open_store(text, context=CONTEXT, root=bucket)) == plain
    # The machine of the killed one has packed already and need not again.
    machine("one")
    assert files(open_store(text, context=CONTEXT, root=bucket)) == plain


def test_a_publisher_that_was_killed_goes_on_from_what_it_packed(tmp_path, machine, bucket, text):
    command = [sys.executable, "-c", PUBLISH_AND_DIE, str(tmp_path / "text.txt"), bucket, "manifest.json"]
    assert (
        subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == -signal.SIGKILL
    )
    inode = (tmp_path / "one" / data_key(text, CONTEXT) / "train.bin").stat().st_ino
    store = open_store(text, context=CONTEXT, root=bucket)
    assert (store.path / "train.bin").stat().st_ino == inode
    assert packed_windows(text, CONTEXT, bucket, store.path.name)


FETCH = """
import json, sys, time
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store import remote_store
root, log, here, start = sys.argv[1], *map(Path, sys.argv[2:])
fetch = remote_store._fetch
def noted(*arguments):
    with log.open("a") as file:
        file.write("fetched\\n")
    return fetch(*arguments)
remote_store._fetch = noted
here.touch()
while not start.exists():
    time.sleep(0.001)
store = open_store(HierarchyData(sequences=300, validation_sequences=40), context=64, root=root)
print(store.manifest["sha256"]["train"])
"""


FETCH_AND_DIE = """
import os, sys
from trainables.data.store.open import open_store
from trainables.data.kinds.files import FilesData
from trainables.data.store import remote_store
def die(path):
    os.kill(os.getpid(), 9)
remote_store.file_sha256 = die
open_store(FilesData(path=sys.argv[1], tokenizer="bpe", vocabulary=500), context=64, root=sys.argv[2])
"""


def test_a_killed_fetcher_leaves_nothing_that_counts(tmp_path, machine, bucket, text):
    packed = files(open_store(text, context=CONTEXT, root=bucket))
    cache = machine("two")
    command = [sys.executable, "-c", FETCH_AND_DIE, str(tmp_path / "text.txt"), bucket]
    assert (
        subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == -signal.SIGKILL
    )
    key = data_key(text, CONTEXT)
    assert list(cache.glob(f"{BUILDING}/{key}.*/train.bin"))
    assert not (cache / key).exists()
    assert files(open_store(text, context=CONTEXT, root=bucket)) == packed
    assert not [path for path in (cache / BUILDING).iterdir() if path.is_dir()]


def test_one_process_of_a_machine_fetches_for_all(tmp_path, machine, bucket):
    expected = open_store(SMALL, context=CONTEXT, root=bucket).manifest["sha256"]["train"]
    machine("two")
    log = tmp_path / "log"
    found = said_at_once(tmp_path, 3, FETCH, bucket, log)
    assert [text.strip() for text in found] == [expected] * 3
    assert log.read_text() == "fetched\n"


def test_a_storage_that_went_away_is_an_error_unless_there_is_a_copy(
    tmp_path, machine, memory, monkeypatch, caplog
):
    store = open_store(SMALL, context=CONTEXT, root=memory)

    def gone(*_):
        raise OSError(5, "AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Bucket, "read", gone)
    assert files(open_store(SMALL, context=CONTEXT, root=memory)) == files(store)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    machine("two")
    with pytest.raises(ConnectionError, match="NETWORK_CONNECTION"):
        open_store(SMALL, context=CONTEXT, root=memory)
    with pytest.raises(ConnectionError, match="NETWORK_CONNECTION"):
        packed_windows(SMALL, CONTEXT, memory, store.path.name)


def test_a_storage_that_goes_away_while_it_is_fetched_from_leaves_nothing(machine, memory, monkeypatch):
    open_store(SMALL, context=CONTEXT, root=memory)
    cache = machine("two")

    def gone(*_):
        raise OSError(5, "AWS Error NETWORK_CONNECTION")

    read = Bucket.read

    def read_and_lose(self, tag, name):
        content = read(self, tag, name)
        self.files = type("Gone", (), {"open_input_stream": gone, "get_file_info": gone})()
        return content

    monkeypatch.setattr(Bucket, "read", read_and_lose)
    with pytest.raises(ConnectionError, match="NETWORK_CONNECTION"):
        open_store(SMALL, context=CONTEXT, root=memory)
    assert [path.name for path in cache.rglob("*") if path.suffix != ".lock"] == [BUILDING]


def test_a_storage_that_takes_nothing_is_an_error_before_packing(machine, server, bucket, monkeypatch):
    monkeypatch.setattr("trainables.data.packing.pack.pack", lambda *_: pytest.fail("packed in vain"))
    missing = bucket.replace("s3://stores", "s3://no-stores")
    with pytest.raises(InputError, match="s3://no-stores"):
        open_store(SMALL, context=CONTEXT, root=missing)


def test_what_could_not_be_published_is_published_by_the_next_run(machine, memory, monkeypatch):
    def refuse(self, tag, name, source):
        raise OSError(5, "AWS Error ACCESS_DENIED")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "put", refuse)
        with pytest.raises(ConnectionError, match="ACCESS_DENIED"):
            open_store(SMALL, context=CONTEXT, root=memory)
    monkeypatch.setattr("trainables.data.packing.pack.pack", lambda *_: pytest.fail("packed again"))
    assert packed_windows(SMALL, CONTEXT, memory, open_store(SMALL, context=CONTEXT, root=memory).path.name)


def test_a_store_too_short_for_a_window_is_refused_though_it_is_published(machine, memory, text):
    key = data_key(text, 50_000)
    with pytest.raises(DataError, match="50000"):
        open_store(text, context=50_000, root=memory)
    with pytest.raises(DataError, match=f"{key}.*50000"):
        packed_windows(text, 50_000, memory, key)


# Room


def of_size(sequences):
    return HierarchyData(sequences=sequences, validation_sequences=40)


def test_a_machine_without_room_to_fetch_is_no_fault_of_the_input_and_nothing_is_left(
    tmp_path, machine, memory
):
    """An InputError would end the cell for good, though another machine may have the room."""
    open_store(of_size(5000), context=CONTEXT, root=memory)
    machine("other")
    with small_disk(tmp_path / "small", 200):
        cache = machine("small")
        with pytest.raises(OSError, match=r"0\.328 MB") as error:
            open_store(of_size(5000), context=CONTEXT, root=memory)
        assert not isinstance(error.value, InputError | ConnectionError)
        assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(cache))
        # What the command line shows beside the folder.
        assert_named(error.value.strerror, socket.gethostname(), "0.205 MB", "INTERPLAY_CACHE")
        assert "max_tokens" not in str(error.value)
        assert [path.name for path in cache.rglob("*") if path.suffix != ".lock"] == [BUILDING]
        # Less data may fit when it is packed there, so that is an error of the input.
        with pytest.raises(DataError, match=r"max_tokens.*INTERPLAY_CACHE"):
            open_store(of_size(5001), context=CONTEXT, root=memory)
        assert len(open_store(SMALL, context=CONTEXT, root=memory).train) == 300 * 65


def test_a_disk_too_full_for_a_folder_is_told_by_what_was_asked_of_it(tmp_path, machine, memory):
    open_store(SMALL, context=CONTEXT, root=memory)
    with small_disk(tmp_path / "small", 200):
        subprocess.run(["mount", "-o", "remount,nr_inodes=1", str(tmp_path / "small")], check=True)
        cache = machine("small/cache")
        with pytest.raises(OSError, match="INTERPLAY_CACHE") as error:
            open_store(SMALL, context=CONTEXT, root=memory)
        assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(cache))


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INTERPLAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert remote_store.cache_folder() == tmp_path / ".cache" / "interplay" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert remote_store.cache_folder() == tmp_path / "x" / "interplay" / "data"
    monkeypatch.setenv("INTERPLAY_CACHE", "~/own")
    assert remote_store.cache_folder() == tmp_path / "own"


def test_a_cache_that_cannot_be_made_is_said_with_the_fix(tmp_path, memory, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INTERPLAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError, match="INTERPLAY_CACHE"):
        open_store(SMALL, context=CONTEXT, root=memory)
