"""`costs.csv`: rows written are rows read, and a broken file is named with its line."""

import csv
import dataclasses

import pytest

from analysis.runs.costs import COLUMNS, ShapeCosts, read_costs, write_costs
from core.errors import InputError

ROW = ShapeCosts(
    depth=2, width=24, heads=2, kv_heads=1, params=16_000, device="cpu", machine='A "fast" CPU, 2 cores',
    precision="fp32", context=32, batch=1, train_tokens_per_second=12345.678901234567, prefill_ms=0.1 + 0.2,
    decode_ms=1e-3, kv_bytes_per_token=192, unsteady=("train", "decode"), date="2026-11-29",
    versions="torch 2.13.0, transformers 5.23.0",
)  # fmt: skip


def test_rows_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "study" / "costs.csv"
    assert read_costs(file) == []
    empty = dataclasses.replace(
        ROW, batch=8, train_tokens_per_second=None, prefill_ms=None, decode_ms=None, kv_bytes_per_token=None,
        unsteady=(),
    )  # fmt: skip
    gpu = dataclasses.replace(ROW, device="h100-80gb", machine="NVIDIA H100", depth=1)
    write_costs(file, [gpu, empty, ROW])
    assert read_costs(file) == [ROW, empty, gpu], "by device, size and batch"
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == COLUMNS
    assert rows[1]["decode_ms"] == ""
    assert [path.name for path in file.parent.iterdir()] == ["costs.csv"], "nothing is left of writing"


def test_a_file_that_is_not_replaced_whole_stays(tmp_path, monkeypatch):
    file = write_costs(tmp_path / "costs.csv", [ROW])
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_costs(file, [])
    assert read_costs(file) == [ROW]


def test_shapes_on_devices_differ_and_batches_do_not():
    def other(**changes):
        return dataclasses.replace(ROW, **changes).measured_as != ROW.measured_as

    same = {"batch": 8, "date": "2026-12-01", "decode_ms": 2.0, "versions": "torch 3", "unsteady": ()}
    assert not any(other(**{name: value}) for name, value in same.items())
    differ = {"depth": 3, "width": 8, "heads": 4, "kv_heads": 2, "params": 9, "device": "gpu", "machine": "B"}
    differ |= {"precision": "bf16", "context": 64}
    assert all(other(**{name: value}) for name, value in differ.items())
    fields = {field.name for field in dataclasses.fields(ROW)}
    assert fields - set(same) - set(differ) == {"train_tokens_per_second", "prefill_ms", "kv_bytes_per_token"}


LINE = "2,24,2,1,16000,cpu,M,fp32,32,1,,,1.5,192,,2026-11-29,torch"
HEADING = ",".join(COLUMNS)


def test_a_line_by_hand_is_a_row(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text(f"{HEADING}\n{LINE}\n")
    (row,) = read_costs(file)
    assert (row.depth, row.size(12), row.decode_ms, row.prefill_ms, row.unsteady) == (
        2,
        13_824,
        1.5,
        None,
        (),
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "columns"),
        ("depth,width\n2,24\n", "columns"),
        (f"{HEADING},colour\n{LINE},red\n", "colour"),
        (f"{HEADING}\n{LINE}\n{LINE},9\n", "line 3"),
        (f"{HEADING}\n{LINE[:40]}\n", "line 2"),
        (f"{HEADING}\n{LINE.replace('24', 'wide')}\n", "line 2: width"),
        (f"{HEADING}\n{LINE.replace('1.5', '-1.5')}\n", "line 2: decode_ms"),
        (f"{HEADING}\n{LINE.replace('1.5', 'inf')}\n", "line 2: decode_ms"),
        (f"{HEADING}\n{LINE.replace('cpu', '')}\n", "line 2: device"),
        (f'{HEADING}\n"{LINE}\n', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
    ids=[
        "empty",
        "columns",
        "more",
        "long",
        "short",
        "text",
        "negative",
        "infinite",
        "empty",
        "quote",
        "bytes",
    ],
)
def test_a_broken_file_is_refused_with_the_place_and_the_fix(tmp_path, text, part):
    file = tmp_path / "costs.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=part) as raised:
        read_costs(file)
    assert str(file) in str(raised.value)
    assert "Delete the file" in str(raised.value)
