import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from core.errors import InputError
from tests.clouds import amazon
from tests.disks import small_disk
from tests.trainables.checkpoint.test_checkpoint import (
    assert_moved,
    assert_same_bits,
    cell,
    numbers,
    run,
    uninterrupted,
)
from trainables.checkpoint import checkpoint
from trainables.checkpoint.checkpoint import MARKER
from trainables.layout import Layout
from trainables.ranks.process_group import join, leave
from trainables.storage import storage
from trainables.storage.storage import Bucket, Folder, discard, joined, open_storage, redacted
from trainables.train import loop
from trainables.train.loop import train

SECRET = "Zm9yLXRlc3Rz"
#: Few steps, because each of them saves.
FEW = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server():
    """A real server that speaks S3, on loopback."""
    with amazon() as address:
        yield address


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
    """The URI of a folder in an empty bucket, and credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "machine").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "machine"))
    name = tmp_path.name.replace("_", "-").lower()
    urllib.request.urlopen(urllib.request.Request(f"http://{server}/{name}", method="PUT")).close()
    return f"s3://{name}/cells/c?endpoint_override={server}&scheme=http&region=us-east-1"


def left_on_this_machine():
    """Files of local copies; the two lock files of a folder stay until another process starts."""
    files = (path for path in Path(tempfile.gettempdir()).rglob("*") if path.is_file())
    return [path for path in files if path.name not in ("lock", "users")]


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request, tmp_path, monkeypatch):
    """An empty storage of each kind."""
    if request.param == "s3":
        return open_storage(request.getfixturevalue("bucket"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return open_storage(tmp_path / "c" if request.param == "folder" else f"memory://{tmp_path.name}/c")


def test_every_storage_gives_back_what_it_was_given_and_says_what_is_missing(store, tmp_path):
    store.check()
    (tmp_path / "weights").write_bytes(b"some weights")
    for tag in ("one", "two"):
        store.put(tag, "weights", tmp_path / "weights")
        store.write(tag, MARKER, b"{}")
    assert sorted(store.tags()) == ["one", "two"]
    assert store.read("one", MARKER) == b"{}"
    assert store.read("one", "nothing") is None
    store.fetch("one", ["weights"])
    assert (store.local / "one" / "weights").read_bytes() == b"some weights"
    if store.is_remote:
        with pytest.raises(FileNotFoundError):
            store.fetch("one", ["nothing"])
        store.release("one")
        assert not (store.local / "one").exists()
    store.remove("one", MARKER)
    assert store.tags() == ["two"]
    store.clear()
    assert store.tags() == []


@pytest.mark.parametrize("where", ["s3", pytest.param("memory", marks=pytest.mark.slow)])
def test_a_stopped_cell_goes_on_from_an_object_store(request, root, tmp_path, monkeypatch, where):
    """In the gate once more: on one machine, S3 and any store of fsspec differ below `Bucket` alone."""
    if where == "s3":
        uri = request.getfixturevalue("bucket")
    else:
        uri = "memory://cells/c"
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert_same_bits(None, cell(steps=FEW), root, Layout(), uri, at=3)
    assert len(open_storage(uri).tags()) == checkpoint.KEEP
    assert not left_on_this_machine()
    discard(uri)
    assert open_storage(uri).tags() == []


@pytest.mark.extended
def test_a_gang_goes_on_from_an_object_store_and_at_another_degree(ranks, root, bucket, server):
    # The ranks of the pool have an environment of their own.
    uri = bucket.replace("s3://", f"s3://nobody:{SECRET}@")
    layout = Layout(tensor_parallel=2, zero=1)
    assert_same_bits(ranks, cell(steps=FEW), root, layout, uri, at=3)
    discard(uri)
    assert_moved(ranks, cell(steps=FEW, weight_decay=0.3), root, (layout, Layout()), uri, 1e-5, at=3)
    assert not left_on_this_machine()


@pytest.mark.extended
def test_a_kill_between_the_upload_and_the_marker_costs_one_checkpoint(root, tmp_path, bucket):
    (tmp_path / "cell.json").write_text(cell(steps=FEW).model_dump_json())
    program = """
import os, sys
from trainables.storage.storage import Bucket
write = Bucket.write
def die(self, tag, name, content):
    if tag.startswith("step-000000004"):
        os.kill(os.getpid(), 9)
    write(self, tag, name, content)
Bucket.write = die
from trainables.__main__ import main
main(sys.argv[1:])
"""
    arguments = [tmp_path / "cell.json", "--data", root, "--checkpoints", bucket, "--checkpoint-every", 0]
    killed = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "TMPDIR": tempfile.gettempdir()}, capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    assert left_on_this_machine()
    assert killed.returncode == -9, killed.stderr
    store = open_storage(bucket)
    assert store.read(max(store.tags()), MARKER) is None
    assert store.files.get_file_info(f"{store.path}/{max(store.tags())}/mp_rank_00_model_states.pt").size > 0
    resumed = run(None, cell(steps=FEW), root, Layout(), bucket)
    assert resumed.resumed_from == 3
    assert "was skipped: it was not finished" in resumed.notes[0]
    assert numbers(resumed) == numbers(uninterrupted(None, cell(steps=FEW), root, Layout()))
    assert not left_on_this_machine()


@pytest.mark.extended
def test_an_object_store_that_goes_away_costs_the_checkpoint_and_not_the_training(root, tmp_path, bucket):
    from moto.server import ThreadedMotoServer

    own = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    own.start()
    address = "{}:{}".format(*own.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"http://{address}/going", method="PUT")).close()
    publish = Bucket.publish

    def publish_and_go(self, tag, names):
        if tag.startswith("step-000000004"):
            own.stop()
        publish(self, tag, names)

    one = cell(steps=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "publish", publish_and_go)
        uri = f"s3://going/c?endpoint_override={address}&scheme=http&region=us-east-1"
        result = run(None, one, root, Layout(), uri)
    assert numbers(result) == numbers(run(None, one, root, Layout()))
    (note,) = result.notes
    assert note.startswith("no checkpoint at step 4: s3://going/c refused a file (OSError")


def test_training_goes_on_while_a_checkpoint_is_copied_to_the_store(root, monkeypatch):
    """The copy of each checkpoint ends only after the next batch; a save that waited for it would fail after 20 s."""
    published, publish, next_batch = [], Bucket.publish, loop._Training._batch
    trained = threading.Condition()

    def batch(self):
        with trained:
            published.append("batch")
            trained.notify_all()
        return next_batch(self)

    def slowly(self, tag, names):
        with trained:
            behind = published.count("batch")
            if not trained.wait_for(lambda: published.count("batch") > behind or behind == FEW, timeout=20):
                raise OSError(5, "training did not go on")
        publish(self, tag, names)
        published.append(tag)

    monkeypatch.setattr(loop._Training, "_batch", batch)
    monkeypatch.setattr(Bucket, "publish", slowly)
    uri = "memory://slow/c"
    result = run(None, cell(steps=FEW), root, Layout(), uri)
    assert result.notes == ()
    assert numbers(result) == numbers(uninterrupted(None, cell(steps=FEW), root, Layout()))
    tags = [name for name in published if name != "batch"]
    assert [int(tag.split("-")[1]) for tag in tags] == list(range(1, FEW))
    assert sorted(open_storage(uri).tags()) == tags[-checkpoint.KEEP :]


#: Of the cell in the next tests: the only step that saves, and the steps at which the copy of each rank ends.
SAVED, COPIED = 2, (4, 6)


class LostError(Exception):
    """The machine is taken away."""


def train_with_a_slow_store(one, root, layout, uri, at_risk, lost_at, rank_info=None, rendezvous=None):
    """Train with one save, whose copy ends at a later step; return the step at which the marker was written."""
    steps, written, next_batch = threading.Condition(), [], loop._Training._batch
    publish, write = Bucket.publish, Bucket.write
    rank = rank_info.rank if rank_info else 0
    training = None

    def batch(self):
        nonlocal training
        with steps:
            training = self
            steps.notify_all()
        if self.state.step == COPIED[rank]:
            # The thread that copies ends in this step.
            self.saved.thread.join(20)
        if self.state.step == lost_at:
            raise LostError
        return next_batch(self)

    def slowly(self, tag, names):
        with steps:
            assert steps.wait_for(lambda: training.state.step >= COPIED[rank], 20)
        publish(self, tag, names)

    def note(self, tag, name, content):
        write(self, tag, name, content)
        if name == MARKER:
            written.append(training.state.step)

    risks = iter([False, True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Training, "_batch", batch)
        patch.setattr(Bucket, "publish", slowly)
        patch.setattr(Bucket, "write", note)
        patch.setattr(loop, "next_stride", lambda *_: 1)
        # Only the second check finds a checkpoint due.
        patch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
        try:
            train(
                one, data_root=root, layout=layout, checkpoints=uri, checkpoint_every=1000,
                at_risk=lambda: next(risks, False) if at_risk else False,
                rank_info=rank_info, rendezvous=rendezvous,
            )  # fmt: skip
        except LostError:
            pass
        finally:
            leave()
    return written


@pytest.mark.parametrize(
    ("layout", "copied"),
    [(Layout(), COPIED[0]), pytest.param(Layout(data_parallel=2), COPIED[1], marks=pytest.mark.slow)],
)
def test_a_checkpoint_is_valid_once_all_ranks_have_copied_their_files(
    ranks, root, tmp_path, monkeypatch, layout, copied
):
    """At the next check, long before another checkpoint; a loss then costs no more than one interval."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, uri, lost_at = cell(), f"local://{tmp_path}/bucket", copied + 2
    arguments = train_with_a_slow_store, one, root, layout, uri, True, lost_at
    written = arguments[0](*arguments[1:]) if layout.ranks == 1 else ranks.gang(2, *arguments)[0]
    assert written == [copied + 1]
    store = open_storage(uri)
    assert [int(tag.split("-")[1]) for tag in store.tags()] == [SAVED]
    assert store.read(store.tags()[0], MARKER)
    resumed = run(ranks, one, root, layout, uri)
    assert (resumed.resumed_from, resumed.notes) == (SAVED, ())
    assert numbers(resumed) == numbers(uninterrupted(ranks, one, root, layout))


@pytest.mark.slow
def test_a_killed_process_goes_on_from_the_checkpoint_copied_last(root, tmp_path):
    """The first checkpoint is valid long before the second one is due."""
    (tmp_path / "cell.json").write_text(cell(steps=100_000).model_dump_json())
    bucket = tmp_path / "bucket"
    command = [
        sys.executable, "-m", "trainables", tmp_path / "cell.json", "--data", root,
        "--checkpoints", f"local://{bucket}", "--checkpoint-every", "15",
    ]  # fmt: skip
    (tmp_path / "machine").mkdir()
    with subprocess.Popen(
        list(map(str, command)), env={**os.environ, "TMPDIR": str(tmp_path / "machine")},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            copied = wait_for(lambda: list(bucket.glob("step-*/*.pt")), process, 120)
            began = time.monotonic()
            wait_for(lambda: list(bucket.glob(f"step-*/{MARKER}")), process, 60)
            # Of one checkpoint: the next one is due after 15 s.
            assert time.monotonic() - began < 10
            assert len(list(bucket.iterdir())) == 1
            assert process.poll() is None
        finally:
            process.kill()
    store, notes = open_storage(f"local://{bucket}"), []
    join()
    try:
        found = checkpoint.find(store, cell(steps=100_000).key, Layout(), notes, set())
    finally:
        leave()
    assert found.tag == copied[0].parent.name
    assert not notes


def wait_for(what, process, seconds):
    """The first true value of a function, asked while a process runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if value := what():
            return value
        time.sleep(0.05)
    raise AssertionError(process.stderr.read().decode() if process.poll() is not None else "nothing came")


@pytest.mark.parametrize("lost", ["tags", "read"])
def test_a_store_lost_after_the_marker_costs_nothing(root, tmp_path, monkeypatch, caplog, lost):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    uri, marked, usual, write = f"memory://lost-{lost}/c", [], getattr(Bucket, lost), Bucket.write

    def note_and_write(self, tag, name, content):
        write(self, tag, name, content)
        marked.append(tag)

    def lose(self, *args):
        if len(marked) == 3:
            raise OSError(5, "AWS Error NETWORK_CONNECTION")
        return usual(self, *args)

    monkeypatch.setattr(Bucket, "write", note_and_write)
    monkeypatch.setattr(Bucket, lost, lose)
    result = run(None, cell(steps=FEW), root, Layout(), uri)
    assert numbers(result) == numbers(uninterrupted(None, cell(steps=FEW), root, Layout()))
    assert result.notes == ()
    assert f"memory://lost-{lost}/c " in caplog.text
    assert len(open_storage(uri).tags()) == checkpoint.KEEP
    assert not left_on_this_machine()


def test_too_little_room_to_fetch_to_is_said_and_freed(root, tmp_path, monkeypatch):
    uri = "memory://room/c"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(None, cell(steps=FEW), root, Layout(zero=1), uri, 3) is None
    with small_disk(tmp_path / "small", 64):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))
        with pytest.raises(InputError) as error:
            run(None, cell(steps=FEW), root, Layout(zero=1), uri)
        assert not left_on_this_machine()
    text = str(error.value)
    assert "memory://room/c" in text
    assert str(tmp_path / "small") in text
    assert "set INTERPLAY_SCRATCH" in text
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(None, cell(steps=FEW), root, Layout(zero=1), uri).resumed_from == 3


def test_a_bucket_that_is_not_there_is_refused_before_training_and_no_secret_told(root, bucket):
    uri = bucket.replace("s3://", f"s3://nobody:{SECRET}@no-").replace("/cells", "/some/cells")
    with pytest.raises(InputError) as error:
        run(None, cell(), root, Layout(), uri)
    text = str(error.value)
    assert "s3://no-" in text
    assert "/some/cells/c" in text
    assert "NO_SUCH_BUCKET" in text
    assert SECRET not in text
    assert "nobody" not in text


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("nowhere://who:Zm9yLXRlc3Rz@bucket/c", "Protocol not known: nowhere"),
        ("s3://who:Zm9yLXRlc3Rz@bucket/c?bad=1", "Unexpected query parameter in S3 URI: 'bad'"),
    ],
)
def test_a_uri_nobody_knows_is_refused(uri, why):
    with pytest.raises(InputError) as error:
        open_storage(uri)
    assert why in str(error.value)
    assert "://bucket/c" in str(error.value)
    assert SECRET not in str(error.value)


def test_paths_and_file_uris_are_folders_in_place(tmp_path):
    for where in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        store = open_storage(where)
        assert type(store) is Folder
        assert store.local == tmp_path


def test_a_name_inside_a_uri_stands_before_its_options():
    assert joined("s3://b/cells/?region=x", "k") == "s3://b/cells/k?region=x"
    assert joined("s3://b", "k") == "s3://b/k"
    assert joined("hdfs:///a?user=b", "k") == "hdfs:///a/k?user=b"
    assert redacted("hdfs:///a") == "hdfs:///a"
    assert redacted("/a?b") == "/a?b"
    assert joined("a/b", "k") == Path("a/b/k")
    assert joined(Path("a"), "k") == Path("a/k")
    assert redacted("s3://user:secret@b/k?token=secret") == "s3://b/k"


def test_a_local_folder_that_others_can_write_to_is_refused(bucket):
    own = Path(tempfile.gettempdir()) / f"interplay-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(InputError, match="others may write to it"):
        storage.open_storage(bucket).local  # noqa: B018  # its first use


@pytest.mark.parametrize("write", ["write", "put"])
def test_a_link_in_a_shared_folder_is_replaced_and_not_followed(tmp_path, write):
    """Whoever may write to the folder could name a file there that only this user may change."""
    victim, source, shared = (tmp_path / name for name in ("victim", "source", "shared"))
    victim.write_text("precious")
    source.write_text("new")
    (shared / "rows").mkdir(parents=True)
    for name in ("k.json", "k.json.part"):
        (shared / "rows" / name).symlink_to(victim)
    store = open_storage(shared)
    if write == "write":
        store.write("rows", "k.json", b"new")
    else:
        store.put("rows", "k.json", source)
    assert store.read("rows", "k.json") == b"new"
    assert not (shared / "rows" / "k.json").is_symlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["/{outside}", "../outside", "a/../../outside", "", ".", ".."])
def test_no_name_in_a_store_leads_out_of_the_folder(tmp_path, name):
    """The store has an object of that name: in a bucket any key is allowed."""
    name = name.format(outside=f"{tmp_path}/outside".lstrip("/"))
    (tmp_path / "bucket" / "tag" / "a").mkdir(parents=True)
    planted = tmp_path / "bucket" / "tag" / name.lstrip("/")
    if name not in ("", ".", ".."):
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text("payload")
    store = open_storage(f"local://{tmp_path}/bucket")
    with pytest.raises(ValueError, match="not the name of a file"):
        store.fetch("tag", [name], tmp_path / "machine")
    assert not (tmp_path / "outside").exists()
    assert not list((tmp_path / "machine").rglob("outside"))


def test_a_store_that_is_away_is_tried_again_for_a_while(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0))
    answers = iter([ConnectionError("away"), ConnectionError("away"), "there"])

    def work():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert storage.with_retries(work) == "there"
    answers = iter([ConnectionError("away")] * 3)
    with pytest.raises(ConnectionError, match="away"):
        storage.with_retries(work)
    answers = iter([InputError("wrong")])
    with pytest.raises(InputError, match="wrong"):
        storage.with_retries(work)


@pytest.mark.slow
@pytest.mark.parametrize("region", ["", "&region=us-east-1"])
def test_a_bucket_that_cannot_be_reached_is_told_in_one_paragraph(region, monkeypatch):
    """Without a region pyarrow asks for it as soon as the URI is read."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConnectionError, match="s3://no-such-bucket-here/x"):
        open_storage(f"s3://no-such-bucket-here/x?endpoint_override=127.0.0.1:1&scheme=http{region}").check()
