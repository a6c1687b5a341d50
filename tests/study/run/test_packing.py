"""The packing of a study's data: once, with a progress line and clear errors."""

import io

import pytest
from rich.console import Console

from study.errors import SpecError
from study.run import packing
from study.run.packing import packed, shown
from tests.trainables.data.store.test_open import prose
from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.storage.storage import Bucket

CONTEXT = 64


@pytest.mark.parametrize(
    "data", [FilesData(path="a.txt"), HierarchyData(sequences=300, validation_sequences=40)]
)
def test_data_is_packed_once(tmp_path, monkeypatch, data):
    texts = tmp_path / "texts"
    texts.mkdir()
    monkeypatch.chdir(texts)
    (texts / "a.txt").write_text(prose())
    key = data_key(data, CONTEXT)
    console = Console(file=io.StringIO())
    for _ in range(2):
        windows = packed(data, CONTEXT, tmp_path, key, console)
        tokens = (tmp_path / key / "train.bin").stat().st_size // 2
        assert windows == (300 if data.kind == "hierarchy" else (tokens - 1) // CONTEXT)
        assert (tmp_path / key / "manifest.json").is_file()
        # Packed is packed: the second time nothing is opened.
        monkeypatch.setattr(packing, "open_store", lambda *_, **__: pytest.fail("packed again"))


def test_a_storage_out_of_reach_is_an_error_of_the_study(monkeypatch):
    def gone(*_):
        raise OSError(5, "AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Bucket, "read", gone)
    data = HierarchyData(sequences=300, validation_sequences=40)
    key = data_key(data, CONTEXT)
    with pytest.raises(SpecError, match=r"memory://gone/data cannot be reached: .*NETWORK_CONNECTION"):
        packed(data, CONTEXT, "memory://gone/data", key, Console())


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
