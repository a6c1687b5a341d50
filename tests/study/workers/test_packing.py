"""Packing on a cluster gives the store that one process makes, to the last byte; Ray is private here, with two CPUs."""

import functools
import gc
import io
import json
import subprocess
import sys
import time
from array import array

import psutil
import pytest
import ray
from rich.console import Console

from study.errors import SpecError
from study.workers import distributed_encoding, packing
from study.workers.distributed_encoding import Reader, Workers, encode_on_workers
from study.workers.machines import Machine, Slots
from study.workers.packing import packed, shown, workers_of
from study.workers.ray_session import private_ray
from tests.environment import environment_without
from tests.trainables.data.store.test_open import prose
from trainables.data import data_key, open_store
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.packing import progress
from trainables.storage.storage import Bucket

CONTEXT = 64
SLOTS = Slots(2, 1, 0)
BPE = {"tokenizer": "bpe", "vocabulary": 400}


@pytest.fixture(scope="module")
def two_cpus():
    with private_ray(SLOTS):
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A text, another of longer words, and documents."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text(prose() + "<|endoftext|> is text here: ünïcödé, 日本語.\n" * 40)
    (folder / "b.txt").write_text(prose(seed=1, lines=600).replace(" ", ""))
    lines = [json.dumps({"text": f"document {i} " + "x" * (i % 7)}) for i in range(3000)]
    (folder / "c.jsonl").write_text("\n".join(lines))
    return folder


def mixture(texts, **options):
    parts = [
        {"weight": weight, "data": {"kind": "files", "path": str(texts / name)}}
        for weight, name in ((3, "a.txt"), (1, "b.txt"), (1, "c.jsonl"))
    ]
    return MixtureData.model_validate({"kind": "mixture", "parts": parts, **options})


CASES = {
    "bytes": lambda texts: FilesData(path=str(texts / "a.txt")),
    "bpe": lambda texts: FilesData(path=str(texts / "a.txt"), **BPE),
    "limits": lambda texts: FilesData(
        path=str(texts / "a.txt"), **BPE, max_tokens=9000, validation_tokens=700
    ),
    "mixture": lambda texts: mixture(texts, **BPE),
    "mixture with limits": lambda texts: mixture(texts, **BPE, max_tokens=20_000, validation_tokens=500),
}


def files(store):
    return {path.name: path.read_bytes() for path in store.path.iterdir()}


def all_is_free():
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_spread_over_workers_it_is_the_same_store_to_the_last_byte(
    two_cpus, texts, tmp_path, case, monkeypatch, capfd
):
    used = []
    encoded = distributed_encoding._encoded

    def noted(encoder, chunks, count, marks):
        used.append((len(chunks), count))
        return encoded(encoder, chunks, count, marks)

    monkeypatch.setattr(distributed_encoding, "_encoded", noted)
    data = CASES[case](texts)
    plain = open_store(data, context=CONTEXT, root=tmp_path / "plain")
    # More workers than there are CPUs: those that do not come are not waited for.
    encode = encode_on_workers(Workers(3), chunk=4000, per_worker=1000)
    ours = open_store(data, context=CONTEXT, root=tmp_path / "spread", encode=encode)
    assert files(ours) == files(plain)
    assert len(used) == 2, "both sides went over Ray"
    assert used[0][0] > 10
    assert used[0][1] == 3
    # Ray Data must not have machines of other pools started; it reads this when it first runs.
    from ray.data._internal.cluster_autoscaler import RateBasedClusterAutoscaler

    assert RateBasedClusterAutoscaler.DEFAULT_CLUSTER_SCALING_UP_MAX_RESOURCE_DELTA.cpu == 0
    all_is_free()
    assert not [path for path in (tmp_path / "spread" / "tmp").iterdir() if path.is_dir()]
    assert "Progress" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(two_cpus, texts, tmp_path, monkeypatch):
    data = CASES["bpe"](texts)
    plain = open_store(data, context=CONTEXT, root=tmp_path / "plain")
    killed = []

    def kill(stage, share):
        if share and not killed:
            ours = psutil.Process().children(recursive=True)
            workers = [process for process in ours if "ray::MapWorker" in " ".join(process.cmdline())]
            if not workers:
                return  # the text is still being read
            worker = workers[0]
            worker.kill()
            killed.append(worker.pid)

    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    encode = encode_on_workers(Workers(2), chunk=2000, per_worker=1000)
    ours = open_store(data, context=CONTEXT, root=tmp_path / "spread", encode=encode, on_progress=kill)
    assert killed
    assert files(ours) == files(plain)


@pytest.mark.extended
def test_what_goes_wrong_in_a_worker_is_raised_and_frees_the_cluster(two_cpus, texts, tmp_path, monkeypatch):
    text = texts / "gone.txt"
    text.write_text(prose(seed=2))
    monkeypatch.setattr(Reader, "chunk", lambda self, index: (b"\xff", array("q", [1]), b"\0"))
    encode = encode_on_workers(Workers(2), chunk=4000, per_worker=1000)
    with pytest.raises(Exception, match="can't decode byte 0xff"):
        open_store(FilesData(path=str(text), **BPE), context=CONTEXT, root=tmp_path, encode=encode)
    # The frames of the exception hold the workers until they are collected.
    gc.collect()
    all_is_free()
    assert not list(tmp_path.glob("tmp/*/"))


@pytest.mark.extended
def test_the_data_of_a_study_is_spread_where_the_cluster_has_other_machines(
    two_cpus, texts, tmp_path, monkeypatch
):
    small = functools.partial(encode_on_workers, chunk=4000, per_worker=1000)
    monkeypatch.setattr(packing, "encode_on_workers", small)
    counts = []
    encoded = distributed_encoding._encoded

    def noted(encoder, chunks, count, marks):
        counts.append((count, marks))
        return encoded(encoder, chunks, count, marks)

    monkeypatch.setattr(distributed_encoding, "_encoded", noted)
    data = CASES["bpe"](texts)
    key = data_key(data, CONTEXT)
    here = Machine({"CPU": 2.0}, ray.get_runtime_context().get_node_id())
    other = Machine({"CPU": 4.0}, "other")
    for machines in ([here], [here, other]):
        root = tmp_path / str(len(machines))
        packed(
            data,
            CONTEXT,
            root=root,
            key=key,
            base=texts,
            console=Console(file=io.StringIO()),
            slots=SLOTS,
            machines=machines,
        )
    assert files(open_store(data, context=CONTEXT, root=tmp_path / "1", key=key)) == files(
        open_store(data, context=CONTEXT, root=tmp_path / "2", key=key)
    )
    # Two slots of six are a third of six CPUs.
    assert counts == [(2, ())] * 2


LATE = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from study.workers.distributed_encoding import Workers, encode_on_workers
from trainables.data import open_store
from trainables.data.kinds.files import FilesData
text, root = sys.argv[1], Path(sys.argv[2])
small = {"object_store_memory": 80 << 20}
cluster = Cluster(True, head_node_args={"num_cpus": 0, **small})
cluster.add_node(num_cpus=2, resources={"wide": 1}, **small)
ray.init(address=cluster.address, log_to_driver=False)
said = []
def watch(stage, share):
    said.append((time.monotonic(), stage, share))
def pack():
    encode = encode_on_workers(Workers(4, ("spot",)), chunk=4000, per_worker=1000)
    data = FilesData(path=text, tokenizer="bpe", vocabulary=400)
    open_store(data, context=64, root=root, on_progress=watch, encode=encode)
packing = threading.Thread(target=pack, daemon=True)
packing.start()
while not any(stage.startswith("encoding") for _, stage, _ in said):
    time.sleep(0.1)
# Long enough that a worker which took the machine of another pool would have begun.
time.sleep(15)
came = time.monotonic()
cluster.add_node(num_cpus=2, resources={"spot": 1}, **small)
packing.join(90)
done = [when for when, stage, share in said if stage.startswith("encoding") and share]
if not packing.is_alive() and min(done) > came:
    print("packed")
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.extended
def test_workers_are_waited_for_and_come_from_their_pool_alone(texts, tmp_path):
    """Raylets of this machine, as machines; in a process of its own, for Ray keeps its token."""
    data = CASES["bpe"](texts)
    plain = open_store(data, context=CONTEXT, root=tmp_path / "plain")
    kept = environment_without("RAY_")
    done = subprocess.run(
        [sys.executable, "-c", LATE, data.path, str(tmp_path / "late")],
        capture_output=True,
        text=True,
        env={**kept, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=300,
        check=False,
    )
    assert "packed" in done.stdout, done.stderr
    assert files(open_store(data, context=CONTEXT, root=tmp_path / "late")) == files(plain)


def test_workers_are_the_share_of_the_machines_that_the_slots_are(monkeypatch):
    class InProcessSender:
        def get_node_id(self):
            return "head"

    monkeypatch.setattr(ray, "get_runtime_context", InProcessSender)
    head = Machine({"CPU": 0.0}, "head")
    spot = Machine({"CPU": 4.0, "GPU": 1.0, "spot": 1.0}, None, "spot")
    wide = Machine({"CPU": 96.0, "GPU": 8.0, "wide": 1.0}, None, "wide")
    assert workers_of(Slots(3, 1, 1, ("spot",)), [head, spot, spot, spot, wide]) == Workers(12, ("spot",))
    assert workers_of(Slots(2, 1, 1, ("spot",)), [head, spot, spot, spot, wide]) == Workers(8, ("spot",))
    assert workers_of(Slots(8, 1, 1, ("wide",)), [head, spot, wide]) == Workers(96, ("wide",))
    assert workers_of(Slots(2, 1, 0), [Machine({"CPU": 2.0}, "head")]) is None
    assert workers_of(Slots(2, 1, 0), [Machine({"CPU": 2.0}, "head"), Machine({"CPU": 2.0}, "b")]) == Workers(
        2
    )


@pytest.mark.parametrize(
    "data", [FilesData(path="a.txt"), HierarchyData(sequences=300, validation_sequences=40)]
)
def test_what_costs_little_is_packed_here(texts, tmp_path, monkeypatch, data):
    monkeypatch.setattr(packing, "workers_of", lambda *_: pytest.fail("asked for workers"))
    key = data_key(data, CONTEXT, texts)
    console = Console(file=io.StringIO())
    for _ in range(2):
        packed(data, CONTEXT, root=tmp_path, key=key, base=texts, console=console, slots=SLOTS)
        assert (tmp_path / key / "manifest.json").is_file()
        # Packed is packed: the second time nothing is opened.
        monkeypatch.setattr(packing, "open_store", lambda *_, **__: pytest.fail("packed again"))


def test_a_storage_out_of_reach_is_an_error_of_the_study(tmp_path, monkeypatch):
    def gone(*_):
        raise OSError(5, "AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Bucket, "read", gone)
    data = HierarchyData(sequences=300, validation_sequences=40)
    key = data_key(data, CONTEXT)
    with pytest.raises(SpecError, match=r"memory://gone/data cannot be reached: .*NETWORK_CONNECTION"):
        packed(data, CONTEXT, root="memory://gone/data", key=key, base=tmp_path, console=Console())


def test_one_line_says_how_far_it_is_and_how_long_it_takes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(packing.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with shown(Console(file=out, width=40)) as watch:
        for second, stage, share in (
            (1, "reading the text", None),
            (31, "reading the text", 0.5),
            (61, "encoding the train text", None),
            # Machines start for five minutes; they are not counted in what is left.
            (361, "encoding the train text", 0.1),
            (371, "encoding the train text", 0.15),
            (400, "encoding the train text", 0.3),
        ):
            now[0] = second
            watch(stage, share)
    assert out.getvalue().splitlines() == [
        "packing the data: reading the text, 50%",
        "packing the data: encoding the train text",
        "packing the data: encoding the train text, 10%",
        # A fifth in 39 s, 70 % to go.
        "packing the data: encoding the train text, 30%, about 2 min left",
        "packed the data in 7 min",
    ]
