import os
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

import pytest
import torch

from core.errors import InputError
from trainables.checkpoint import checkpoint
from trainables.checkpoint.checkpoint import FORMAT, FileRecord, Marker, TrainingState
from trainables.layout import Layout
from trainables.ranks.process_group import join, leave
from trainables.storage import scratch
from trainables.storage.scratch import SCRATCH, claim, file_system, outside_memory, own_folder, scratch_root
from trainables.storage.storage import Bucket, open_storage

#: A process that uploads for ever, as one on a slow network does.
UPLOAD = """
import sys, threading
from trainables.storage.storage import open_storage
storage = open_storage(sys.argv[1])
(storage.local / "step-1").mkdir(parents=True)
(storage.local / "step-1" / "weights.pt").write_bytes(b"weights")
class Slow:
    def open(self, mode):
        print("uploading", flush=True)
        threading.Event().wait()
storage.put("step-1", "weights.pt", Slow())
"""


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """The folder for local copies of this test."""
    folder = tmp_path / "machine"
    monkeypatch.setenv(SCRATCH, str(folder))
    return folder


@pytest.fixture
def one_rank():
    join()
    yield
    leave()


def uploading(uri):
    process = subprocess.Popen([sys.executable, "-c", UPLOAD, uri], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "uploading\n"
    return process


def copies(machine):
    return list(machine.rglob("weights.pt"))


def test_copies_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(tmp_path, machine):
    killed, alive = (uploading(f"local://{tmp_path}/bucket/{name}") for name in ("killed", "alive"))
    try:
        assert len(copies(machine)) == 2
        killed.kill()
        killed.wait()
        # The machine's next cell is another one.
        assert not open_storage(f"local://{tmp_path}/bucket/next").local.exists()
        (kept,) = copies(machine)
        alive.kill()
        alive.wait()
        assert open_storage(f"local://{tmp_path}/bucket/alive").local == kept.parent.parent
        assert not copies(machine)
    finally:
        for process in (killed, alive):
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_folder_stays_while_one_of_its_ranks_lives(tmp_path, machine):
    uri = f"local://{tmp_path}/bucket/c"
    first, second = open_storage(uri), open_storage(uri)
    first.local.mkdir()
    assert first.local == second.local
    del first
    other = open_storage(f"local://{tmp_path}/bucket/other")
    assert other.local != second.local
    assert second.local.exists()
    folder = second.local
    (folder / "step-2").mkdir()
    second.release("step-1")
    scratch.remove_unused(own_folder())
    assert not folder.exists()
    assert other.lock.parent.exists()


def stored(tmp_path, name):
    """A checkpoint in a store, as the arguments of the function that fetches it."""
    key = name * 16
    tag = f"step-000000010-{key}"
    path = tmp_path / "bucket" / key / tag / "a.pt"
    path.parent.mkdir(parents=True)
    torch.save({"x": torch.zeros(1)}, path)
    marker = Marker(
        format=FORMAT, versions={}, layout=Layout(), state=TrainingState(cell=key, step=10),
        files={"a.pt": FileRecord(bytes=path.stat().st_size, crc32=zlib.crc32(path.read_bytes()))},
    )  # fmt: skip
    return f"local://{tmp_path}/bucket/{key}", tag, marker


def in_threads(work, items):
    results = []
    threads = [threading.Thread(target=lambda item=item: results.append(work(item))) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_cells_of_one_machine_fetch_at_the_same_time(one_rank, tmp_path, monkeypatch):
    """Each fetch ends only when all three are in theirs."""
    all_fetch, fetch = threading.Barrier(3), Bucket.fetch

    def meet(self, tag, names):
        all_fetch.wait(20)
        fetch(self, tag, names)

    monkeypatch.setattr(Bucket, "fetch", meet)
    cells = [stored(tmp_path, name) for name in "abc"]
    ready = in_threads(lambda one: checkpoint._ready(open_storage(one[0]), *one[1:]), cells)
    assert ready == [None, None, None]


def test_ranks_of_one_cell_on_one_machine_share_one_fetch(one_rank, tmp_path, monkeypatch):
    fetched, fetch, together, all_ask = [], Bucket.fetch, [], threading.Barrier(3)

    def note(self, tag, names):
        together.append(1)
        assert len(together) == 1
        fetched.extend(names)
        fetch(self, tag, names)
        together.pop()

    monkeypatch.setattr(Bucket, "fetch", note)
    uri, tag, marker = stored(tmp_path, "a")

    ranks = [open_storage(uri) for _ in range(3)]

    def ask(rank):
        all_ask.wait(20)
        return checkpoint._ready(rank, tag, marker)

    assert in_threads(ask, ranks) == [None, None, None]
    assert fetched == ["a.pt"]


def test_neither_release_nor_clear_removes_the_lock_that_a_rank_waits_for(tmp_path):
    storage, waiter = (open_storage(f"local://{tmp_path}/bucket/c") for _ in range(2))
    waiter.lock.touch()
    before = waiter.lock.stat().st_ino
    (storage.local / "step-1").mkdir(parents=True)
    storage.release("step-1")
    assert not storage.local.exists()
    storage.clear()
    open_storage(f"local://{tmp_path}/bucket/other").local  # noqa: B018  # removes unused folders
    assert waiter.lock.stat().st_ino == storage.lock.stat().st_ino == before


def test_compiled_layers_of_a_study_called_users_are_no_copy(machine):
    layers = own_folder() / "compiled" / "users"
    layers.mkdir(parents=True)
    assert claim("s3://bucket/cell").files.parent.parent == own_folder()
    assert layers.is_dir()


def test_only_this_user_may_write_to_the_folder(machine):
    own = own_folder()
    assert own == machine / f"interplay-{os.getuid()}"
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o770)
    with pytest.raises(InputError, match="others may write to it"):
        own_folder()
    own.rmdir()
    (machine / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(machine / "elsewhere")
    with pytest.raises(InputError, match="others may write to it"):
        own_folder()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(SCRATCH, str(tmp_path / "file" / "folder"))
    with pytest.raises(InputError, match=f"{tmp_path}/file/folder.*Set {SCRATCH}"):
        own_folder()


DISK = "/dev/sda1 / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n"
#: Debian 13 and Fedora.
IN_MEMORY = DISK + "tmpfs /tmp tmpfs rw,nosuid 0 0\n"
#: Somebody has mounted a disk over it.
COVERED = IN_MEMORY + "/dev/nvme1n1 /tmp xfs rw 0 0\n"
#: A live system: everything lies in memory.
LIVE = "tmpfs / tmpfs rw 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "kind", "folder"),
    [
        (DISK, "ext4", "/tmp"),
        (IN_MEMORY, "tmpfs", "/var/tmp"),
        (COVERED, "xfs", "/tmp"),
        (LIVE, "tmpfs", "/tmp"),
        ("", "", "/tmp"),
    ],
)
def test_copies_do_not_fill_memory(mounts, kind, folder):
    assert file_system(Path("/tmp"), mounts) == kind
    assert file_system(Path("/tmpfiles"), mounts) == (
        "" if not mounts else "tmpfs" if mounts == LIVE else "ext4"
    )
    assert outside_memory(Path("/tmp"), mounts) == Path(folder)


def test_the_other_folder_is_reported_once(caplog, tmp_path):
    outside_memory.cache_clear()
    for _ in range(3):
        assert outside_memory(Path("/tmp"), IN_MEMORY) == Path("/var/tmp")
        assert outside_memory(Path("/tmp"), IN_MEMORY, tmp_path / "missing") == Path("/tmp")
    assert len(caplog.records) == 1
    assert all(part in caplog.text for part in ("/var/tmp", "/tmp", "memory", SCRATCH))


def test_a_folder_that_the_user_names_is_used_wherever_it_lies(tmp_path, monkeypatch):
    assert scratch_root() == tmp_path / "machine"
    monkeypatch.delenv(SCRATCH)
    monkeypatch.setattr(scratch, "outside_memory", lambda folder, mounts: Path("/var/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    assert scratch_root() == Path("/var/tmp")
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert scratch_root() == Path("/tmp")
