import bz2
import gzip
import json
import lzma
import math

import numpy as np
import pandas as pd
import pytest

from analysis.runs.comparison import compare
from analysis.runs.files import is_table
from analysis.runs.left_out import RowReason, WhyNot, entry
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable, read_numbers, read_runs
from core.errors import InputError
from core.numbers import parse_number
from tests.remarks import remarks_about

FRAME = pd.DataFrame(
    {"depth": [2, 2, 4], "width": [46, 64, 32], "seed": [0, 1, 0], "lr": [0.001, 0.002, 0.001],
     "tokens": [10_000_000, 1_000, 10_000_000], "loss": [3.5663, 3.25, 3.125]}
)  # fmt: skip
READ = ["depth", "width", "seed", "lr", "tokens", "loss"]


def read(path):
    runs = read_runs(path)
    assert runs.frame[READ].to_numpy().ravel().tolist() == pytest.approx(
        FRAME[READ].to_numpy().ravel().tolist()
    )
    return runs


@pytest.mark.parametrize("orient", ["records", "columns", "split", "index", "list", "table", "lines"])
def test_json_is_read_as_pandas_and_people_write_it(tmp_path, orient):
    path = tmp_path / "runs.json"
    if orient == "list":
        path.write_text(json.dumps(FRAME.to_dict("list")))
    elif orient == "lines":
        FRAME.to_json(path, orient="records", lines=True)
    else:
        FRAME.to_json(path, orient=orient)
    read(path)
    if orient == "records":
        path.write_text(json.dumps({"runs": json.loads(path.read_text()), "version": 2}))
        read(path)


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "tsv", "json"])
def test_compressed_text_is_read(tmp_path, kind, ending, pack):
    text = {
        "csv": FRAME.to_csv(index=False), "tsv": FRAME.to_csv(index=False, sep="\t"),
        "jsonl": FRAME.to_json(orient="records", lines=True), "json": FRAME.to_json(orient="records"),
    }[kind]  # fmt: skip
    path = tmp_path / f"runs.{kind}.{ending}"
    path.write_bytes(pack(text.encode()))
    read(path)
    assert is_table(str(path))


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("above", ["", "# made by hand\n", "\n\n# a\n# b\n", "sep={}\n", "\ufeff"])
def test_separators_comments_and_marks_above_the_header(tmp_path, separator, above):
    path = tmp_path / "runs.csv"
    path.write_text(above.format(separator) + FRAME.to_csv(index=False, sep=separator), encoding="utf-8")
    notes = read(path).notes
    assert bool(remarks_about(notes, About.SEPARATOR)) == (separator != ",")
    assert bool(remarks_about(notes, About.LINES_ABOVE)) == bool(above.strip("\n\ufeff"))


def test_excels_unicode_text_is_read(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(FRAME.to_csv(index=False, sep="\t").encode("utf-16"))
    read(path)


@pytest.mark.parametrize("thousands", ["", "."])
def test_decimal_commas(tmp_path, thousands):
    lines = [";".join(READ)]
    for row in FRAME[READ].to_numpy().tolist():
        values = [
            f"{value:,.10g}".replace(",", "_").replace(".", ",").replace("_", thousands) for value in row
        ]
        lines.append(";".join(values))
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines).replace("3,125", "3,125 €"))
    runs = read(path)
    (note,) = remarks_about(runs.notes, About.DECIMAL_COMMA)
    assert "loss" in note.values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10M", 1e7), ("1.5T", 1.5e12), ("300k", 3e5), ("7 billion", 7e9), ("2.1bn", 2.1e9), ("20G", 2e10),
        ("1,156", 1156), ("7,000,000,000", 7e9), ("1_000_000", 1e6), ("10 000 000", 1e7), ("$1,200.50", 1200.5),
        ("1e9", 1e9), ("3e-4", 3e-4), (" 5 ", 5), (".5", 0.5), ("-2", -2), ("1.1M", 1_100_000),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text, value):
    assert parse_number(text) == value
    assert read_numbers(pd.Series([text]))[0].tolist() == [value]


@pytest.mark.parametrize("text", ["", "M", "5q", "1,2,3", "10M tokens", "0x", "1 2", "abc", "1,15", "--2"])
def test_what_is_no_number(text):
    with pytest.raises(ValueError):
        parse_number(text)


def test_a_comma_is_decimal_if_one_value_of_the_column_cannot_have_thousands():
    assert read_numbers(pd.Series(["1,156", "12,500"]))[0].tolist() == [1156, 12500]
    assert read_numbers(pd.Series(["3,566", "3,25"]))[0].tolist() == [3.566, 3.25]
    assert read_numbers(pd.Series(["0,001", "0,003"]))[0].tolist() == [0.001, 0.003]


def test_losses_and_learning_rates_have_no_thousands():
    runs = RunTable.from_frame(FRAME.assign(loss=["3,566", "3,250", "3,125"], lr="1,000", tokens="1,000"))
    assert runs.used["loss"].tolist() == [3.566, 3.25, 3.125]
    assert set(runs.used["lr"]) == {1.0}
    assert set(runs.used["tokens"]) == {1000}
    table = FRAME.rename(columns={"loss": "ppl"}).assign(ppl=["3,566", "3,250", "3,125"])
    assert RunTable.from_frame(table).used["loss"].tolist() == pytest.approx(np.log([3566, 3250, 3125]))


def test_headings_of_several_levels_are_those_of_a_tracker():
    table = pd.concat({"config": FRAME.drop(columns="loss"), "summary": FRAME[["loss"]]}, axis=1)
    assert len(RunTable.from_frame(table).used) == len(FRAME)


def test_the_comma_of_a_loss_is_decimal_and_that_of_a_perplexity_stands_between_thousands():
    frame = pd.DataFrame({"depth": 2, "width": [8, 16], "loss": ["3,566", "2,750"]})
    assert RunTable.from_frame(frame).used["loss"].tolist() == [3.566, 2.75]
    assert RunTable.from_frame(frame, {"perplexity": "loss"}).used["loss"].tolist() == [
        math.log(3566),
        math.log(2750),
    ]


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_compressed_file_without_its_ending_is_named(tmp_path, ending, pack):
    path = tmp_path / "runs.csv"
    path.write_bytes(pack(FRAME.to_csv(index=False).encode()))
    with pytest.raises(InputError, match=f"mv {path} {path}.{ending}"):
        read_runs(path)


def test_tokens_that_are_not_positive_are_missing():
    frame = pd.DataFrame({"depth": 2, "width": [8, 16, 32], "loss": 2.5, "tokens": [-1, 0, 1e7]})
    assert RunTable.from_frame(frame).used["tokens"].notna().tolist() == [False, False, True]


def test_text_in_a_column_of_numbers_is_named_and_not_counted_as_missing():
    frame = FRAME.astype(object)
    frame.loc[0, "tokens"] = "10 parsec"
    frame.loc[1, "loss"] = "pending"
    runs = RunTable.from_frame(frame)
    assert runs.left_out == [entry(2, "", WhyNot(RowReason.UNREAD, ("loss", "pending")))]
    assert runs.left_out[0]["reason"] == "loss is 'pending', not a number"
    assert Remark(About.NOT_NUMBERS, ("tokens", 1, "10 parsec")) in runs.notes


@pytest.mark.parametrize("mark", ["#", "# "])
def test_a_header_may_begin_with_the_mark_of_a_comment(tmp_path, mark):
    path = tmp_path / "runs.csv"
    path.write_text(f"# by hand, loss\n{mark}{FRAME.to_csv(index=False)}")
    runs = read(path)
    assert runs.notes[0] == Remark(About.LINES_ABOVE, (1, 1))
    path.write_text(FRAME.to_csv(index=True, index_label="#"))
    assert read(path).frame["#"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("orient", ["columns", "index"])
def test_rows_of_json_may_have_names(tmp_path, orient):
    path = tmp_path / "runs.json"
    FRAME.set_axis(["first", "second", "third"]).to_json(path, orient=orient)
    read(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("runs.csv.gz", gzip.compress(FRAME.to_csv().encode(), mtime=0)[:20] + b"\xff" * 60),
        ("runs.csv", b"a" * 200_000 + b"\n1\n"),
        ("runs.json", b'{"columns": ["depth"], "data": [1]}'),
        ("runs.json", b'{"columns": [["a", "b"]], "data": [[1]]}'),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_runs(tmp_path / name)


def test_integers_of_any_length_and_lists_are_values_of_other_columns(tmp_path):
    rows = [
        {"depth": depth, "width": width, "loss": 4 - depth / 10 - width / 100, "id": 10**400, "betas": [0.9]}
        for depth in (2, 4)
        for width in (16, 32, 64)
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert len(compare(read_runs(path)).rows) == len(rows)
    with pytest.raises(InputError, match="no row whose id"):
        read_runs(path, where={"id": "1"})


def test_two_columns_of_one_name_are_refused():
    table = FRAME.assign(state="finished")
    table = pd.concat([table, table[["state"]]], axis=1)
    with pytest.raises(InputError, match="'state'"):
        RunTable.from_frame(table)
    with pytest.raises(InputError, match="'state'"):
        RunTable.from_frame(table, where={"state": "finished"})
