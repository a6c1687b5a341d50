"""The hub without the hub: local folders for real data, dead and lying servers for real errors."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainables.data import data_key
from trainables.data.kinds.hub import HubData
from trainables.data.store.open import open_store
from trainables.errors import DataError


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "dataset"
    path.mkdir()
    for split, start in (("train", 0), ("test", 5000)):
        rows = [f"document number {i} of {split}\n" for i in range(start, start + 2000)]
        pq.write_table(pa.table({"text": rows, "id": list(range(2000))}), path / f"{split}-0.parquet")
    return path


@pytest.mark.parametrize("streaming", [True, False])
def test_a_data_set_is_read_row_by_row(folder, tmp_path, streaming, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    spec = HubData(name=str(folder), split="test", streaming=streaming)
    store = open_store(spec, context=16, root=tmp_path / "stores")
    text = bytes(store.train[store.train < 256].astype("uint8")).decode()
    assert "document number 5" in text
    assert "of train" not in text
    assert (store.train == 256).sum() + (store.validation == 256).sum() == 2000


def test_the_key_is_what_names_the_data_and_reads_no_network():
    def key(**fields):
        return data_key(HubData(**{"name": "owner/name", **fields}), 64)

    changes = [
        {"config": "x"},
        {"split": "test"},
        {"revision": "abc"},
        {"field": "body"},
        {"name": "owner/nam"},
    ]
    assert len({key(), *(key(**change) for change in changes)}) == len(changes) + 1
    assert key(streaming=False) == key()


def test_the_key_of_a_local_folder_follows_its_content(folder):
    spec = HubData(name=str(folder))
    before = data_key(spec, 64)
    assert data_key(spec, 64) == before
    pq.write_table(pa.table({"text": ["other"], "id": [1]}), folder / "train-0.parquet")
    assert data_key(spec, 64) != before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"field": "body"}, ["no field 'body'", "'id', 'text'", "data.field"]),
        ({"field": "id"}, ["holds int, not text"]),
        ({"split": "trian"}, ["trian", "data.split"]),
        ({"config": "nope"}, ["nope", "data.config"]),
    ],
)
def test_wrong_names_inside_a_data_set_are_errors(folder, tmp_path, fields, words):
    with pytest.raises(DataError) as error:
        open_store(HubData(name=str(folder), **fields), context=16, root=tmp_path / "stores")
    assert all(word in str(error.value) for word in words), str(error.value)


ASK = """
import json, sys
from pathlib import Path
from trainables.data.store.open import open_store
from trainables.data.kinds import hub
from trainables.data.kinds.hub import HubData
from trainables.errors import DataError
import datasets
hub.TIMEOUT = 1.0
load, loads = datasets.load_dataset, []
datasets.load_dataset = lambda *args, **options: loads.append(args) or load(*args, **options)
try:
    spec = HubData(**json.loads(sys.argv[2]))
    open_store(spec, context=16, root=Path(sys.argv[1]))
except DataError as error:
    print(json.dumps([len(loads), str(error)]))
"""


def ask(tmp_path, environment=None, **fields):
    """What an attempt asked `datasets` for, and its message; `datasets` tries for 23 s where there is no hub.

    In a process of its own, because the hub's settings are read at import.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and "_proxy" not in name.lower()
    } | {"HF_HOME": str(tmp_path / "hf"), **(environment or {})}
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            ASK,
            str(tmp_path / "stores"),
            json.dumps({"name": "owner/nmae", **fields}),
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert out.stdout, out.stderr
    return json.loads(out.stdout)


@pytest.mark.parametrize("streaming", [True, False])
def test_offline_is_said_at_once_with_the_ways_out(tmp_path, streaming):
    loads, message = ask(tmp_path, environment={"HF_HUB_OFFLINE": "1"}, streaming=streaming)
    assert loads == 1, "its cache is looked into, and it asks nobody"
    assert "'owner/nmae'" in message
    assert "kind: python-source" in message


def test_a_hub_that_cannot_be_reached_is_said_before_datasets_tries_it(tmp_path):
    # Nothing listens on the discard port; the same happens without a network.
    loads, message = ask(tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert loads == 0
    assert "HF_HUB_OFFLINE=1" in message


class _Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.server.silent:
            time.sleep(30)
            return
        self.send_response(404 if "revision" in self.path else 401)
        self.send_header("X-Error-Code", "RevisionNotFound" if "revision" in self.path else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def fake_hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.daemon_threads = True
    server.silent = False
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()


@pytest.mark.slow
def test_a_mistyped_name_and_a_wrong_revision_are_said(tmp_path, fake_hub):
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{fake_hub.server_port}"}
    _, message = ask(tmp_path, environment=environment)
    assert "'owner/nmae'" in message
    assert "correct data.name" in message
    _, message = ask(tmp_path, environment=environment, revision="v9")
    assert "'v9'" in message
    _, message = ask(tmp_path, environment=environment, name="a/b/c d")
    assert "correct data.name" in message


@pytest.mark.slow
def test_a_hub_that_is_silent_is_given_up(tmp_path, fake_hub):
    fake_hub.silent = True
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{fake_hub.server_port}"}
    loads, message = ask(tmp_path, environment=environment)
    assert loads == 0
    assert "the hub does not answer" in message
