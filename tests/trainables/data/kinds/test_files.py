import bz2
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hub import HubData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.store.open import open_store
from trainables.errors import DataError


def documents(source):
    """The documents of a source as whole texts."""
    texts, current = [], ""
    for stretch in source.stretches():
        current += stretch.text
        if stretch.last:
            texts.append(current)
            current = ""
    assert not current
    return texts


@pytest.fixture
def corpus(tmp_path):
    """One folder with every format, in the order of their names."""
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_bytes("première\r\nligne\n".encode())
    (folder / "b" / "c.jsonl").write_text('{"text": "one", "n": 1}\n{"text": "two"}\n{"text": null}\n')
    pq.write_table(pa.table({"n": [1, 2], "text": ["three", "four"]}), folder / "d.parquet")
    (folder / "e.md.gz").write_bytes(gzip.compress(b"five"))
    (folder / "f.jsonl.bz2").write_bytes(bz2.compress(b'{"text": "six"}\n'))
    (folder / "g [1]*.txt").write_text("seven")
    (folder / "empty.txt").write_text("")
    (folder / "ignored.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("hidden")
    return folder


def test_every_format_is_read_in_the_order_of_the_names(corpus):
    source = FilesData(path="corpus").source(corpus.parent)
    texts = documents(source)
    assert texts == ["première\nligne\n", "one", "two", "three", "four", "five", "six", "seven"]
    assert [len(f["sha256"]) for f in source.record["files"]] == [64] * 7


def test_files_folders_globs_and_lists_name_what_to_read(corpus):
    base = corpus.parent
    names = {
        "corpus/a.txt": ["a.txt"],
        "corpus/*.txt": ["a.txt", "empty.txt", "g [1]*.txt"],
        "corpus/**/*.jsonl": ["c.jsonl"],
        str(corpus / "ignored.png"): ["ignored.png"],
        ("corpus/d.parquet", "corpus/a.txt", "corpus/a*"): ["d.parquet", "a.txt"],
    }
    for path, expected in names.items():
        listed = FilesData(path=path).source(base).record["files"]
        assert [Path(file["path"]).name for file in listed] == expected


def test_a_large_text_file_is_one_document(tmp_path, monkeypatch):
    text = "".join(f"line {i} é\n" for i in range(20_000))
    (tmp_path / "large.txt").write_text(text)
    (tmp_path / "small.txt").write_text("small")
    monkeypatch.setattr("trainables.data.kinds.files.READ", 1000)
    assert documents(FilesData(path=str(tmp_path)).source(tmp_path)) == [text, "small"]


def test_a_list_of_objects_in_a_json_file_is_read_like_lines(tmp_path):
    (tmp_path / "a.json").write_text('\n[{"text": "one\\n"},\n {"text": "two"}]')
    (tmp_path / "b.json").write_text('{"text": "three"}\n\n{"n": 1}\r\n{"text": "four"}')
    source = FilesData(path=str(tmp_path)).source(tmp_path)
    assert documents(source) == ["one\n", "two", "three", "four"]


def store(path, tmp_path, **options):
    return open_store(FilesData(path=str(path), **options), context=16, root=tmp_path / "stores")


def bad(tmp_path, kind):
    """A path that cannot be used, and the words that its error must have."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "corpus.txt").write_text("text " * 1000)
    if kind == "missing":
        return folder / "Corpsu.txt", ["does not exist", "did you mean", "corpus.txt"]
    if kind == "missing folder":
        return folder / "deep" / "er.txt", ["no 'deep' in", "holds corpus.txt"]
    if kind == "no match":
        return folder / "*.jsonl", ["no file matches", "*.jsonl"]
    if kind == "empty":
        (folder / "empty.txt").write_text("")
        return folder / "empty.txt", ["holds no text", "empty.txt"]
    if kind == "empty folder":
        (folder / "empty").mkdir()
        return folder / "empty", ["no usable file", "it is empty", ".jsonl"]
    if kind == "useless folder":
        (folder / "useless").mkdir()
        (folder / "useless" / "a.png").write_text("")
        return folder / "useless", ["1 files with .png", ".parquet"]
    if kind == "not UTF-8":
        (folder / "latin.txt").write_bytes("é".encode() * 700_000 + b"caf\xe9 ol\xe9")
        return folder / "latin.txt", ["latin.txt is not UTF-8", "byte 1400003 (0xe9)", "iconv"]
    if kind == "not UTF-8 in a group":
        (folder / "many").mkdir()
        for i in range(5):
            (folder / "many" / f"{i}.txt").write_bytes(b"ok" if i != 3 else b"0123\xff")
        return folder / "many", ["3.txt is not UTF-8", "byte 4 (0xff)"]
    if kind == "not UTF-8 JSONL":
        (folder / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
        return folder / "latin.jsonl", ["latin.jsonl is not UTF-8", "byte 13 (0xe9)"]
    if kind == "not JSON":
        (folder / "a.jsonl").write_text('{"text": "fine"}\nnot json\n')
        return folder / "a.jsonl", ["a.jsonl cannot be read as jsonl", "data.format"]
    if kind == "not Parquet":
        (folder / "a.parquet").write_text("hello " * 10)
        return folder / "a.parquet", ["a.parquet cannot be read as parquet", "magic bytes"]
    if kind == "not gzip":
        (folder / "a.jsonl.gz").write_text('{"text": "fine"}\n')
        return folder / "a.jsonl.gz", ["a.jsonl.gz cannot be read"]
    if kind == "no field":
        (folder / "a.jsonl").write_text('{"body": "x", "title": "y"}\n')
        return folder / "a.jsonl", ["no field 'text'", "'body', 'title'", "data.field"]
    if kind == "no field in Parquet":
        pq.write_table(pa.table({"content": ["x"]}), folder / "a.parquet")
        return folder / "a.parquet", ["no field 'text'", "'content'"]
    if kind == "numbers":
        (folder / "a.jsonl").write_text('{"text": 1}\n')
        return folder / "a.jsonl", ["holds int, not text", "row 0"]
    if kind == "nulls":
        (folder / "a.jsonl").write_text('{"text": null}\n{"text": ""}\n')
        return folder / "a.jsonl", ["holds no text", "data.field"]
    (folder / "tiny.txt").write_text("tiny\n")
    return folder / "tiny.txt", ["only 5 bytes", "too few to split", "data.validation_fraction"]


@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "missing folder",
        "no match",
        "empty",
        "empty folder",
        "useless folder",
        "not UTF-8",
        "not UTF-8 in a group",
        "not UTF-8 JSONL",
        "not JSON",
        "not Parquet",
        "not gzip",
        "no field",
        "no field in Parquet",
        "numbers",
        "nulls",
        "tiny",
    ],
)
def test_unusable_data_is_an_error_of_one_paragraph_and_leaves_nothing(tmp_path, kind):
    path, words = bad(tmp_path, kind)
    with pytest.raises(DataError) as error:
        store(path, tmp_path)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert not [p for p in (tmp_path / "stores").rglob("*") if p.suffix != ".lock" and p.name != "tmp"]


NOT_ALLOWED = """
import os, sys
from pathlib import Path
from trainables.data.sources.files import file_sha256
from trainables.data.kind import data_key
from trainables.data.kinds.files import FilesData
from trainables.errors import DataError
if os.getuid() == 0:
    # The superuser may read everything, so the question is asked by somebody else.
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    data_key(FilesData(path=sys.argv[1]), 16)
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="file permissions of POSIX systems")
def test_a_file_without_read_permission_is_named():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "secret.txt")
        file.write_text("secret")
        file.chmod(0o000)
        command = [sys.executable, "-c", NOT_ALLOWED, str(file)]
        out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "secret.txt" in out.stdout
    assert "chmod" in out.stdout


def test_zstandard_without_its_package_is_said(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install zstandard"):
        documents(FilesData(path="a.txt.zst").source(tmp_path))


def test_the_key_follows_the_content_and_not_the_place(tmp_path):
    text = "some text\n" * 50
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)
        (tmp_path / name / "b.jsonl").write_text(json.dumps({"text": text}))

    def key(path, context=16, base=tmp_path, **options):
        return data_key(FilesData(path=path, **options), context, base)

    first = key("one")
    assert key("two") == first
    assert key(str(tmp_path / "two"), base=tmp_path / "elsewhere") == first
    assert key("one", context=64) == first
    assert key(("one/a.txt", "one/b.jsonl")) == first
    assert key(("one/b.jsonl", "one/a.txt")) != first, "the order is part of the content"
    assert key("one/a.txt") != first
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "aa.txt")
    assert key("two") == first
    changes = [
        {"validation_fraction": 0.1},
        {"validation_tokens": 5},
        {"max_tokens": 5},
        {"field": "body"},
        {"tokenizer": "bpe", "vocabulary": 300},
        {"tokenizer": "bpe", "vocabulary": 301},
    ]
    assert len({first, *(key("one", **change) for change in changes)}) == len(changes) + 1
    assert key("one", vocabulary=257) == first, "bytes always have 257"
    (tmp_path / "two" / "aa.txt").write_text(text.replace("some", "same"))
    assert key("two") != first


def test_what_will_be_hashed_is_announced_once_and_only_if_it_is_long(corpus, monkeypatch, capsys):
    data = FilesData(path=str(corpus))
    key = data_key(data, 16)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("trainables.data.sources.files._known", {})
    monkeypatch.setattr("trainables.data.sources.files.ANNOUNCED_BYTES", 10)
    assert data_key(data, 16) == key
    assert re.search(r"data\.path: hashing [4-9] files of 0\.0 GB", capsys.readouterr().err)
    assert data_key(data, 16) == key
    assert capsys.readouterr().err == ""


def test_a_large_folder_is_counted_aloud_and_a_boundless_one_is_refused(corpus, monkeypatch, capsys):
    monkeypatch.setattr("trainables.data.sources.files.ANNOUNCED_FILES", 2)
    for path in (corpus, f"{corpus}/**"):
        data_key(FilesData(path=str(path)), 16)
        assert "data.path: 4 " in capsys.readouterr().err
    monkeypatch.setattr("trainables.data.sources.files.MOST_PATHS", 4)
    with pytest.raises(DataError, match=r"more than 4 "):
        data_key(FilesData(path=str(corpus)), 16)


@pytest.mark.parametrize("kind", [FilesData(path="/"), FilesData(path="/.."), HubData(name="/")])
def test_the_whole_file_system_is_refused(kind):
    with pytest.raises(DataError, match=r"data\.(path|name) '/.*'"):
        data_key(kind, 16)


@pytest.mark.parametrize("path", ["~no-such-user/a.txt", "x" * 5000, "a/" * 3000, "[" * 5000, "\0"])
def test_a_path_that_no_system_has_is_refused_in_one_short_paragraph(path, tmp_path):
    with pytest.raises(DataError) as caught:
        data_key(FilesData(path=path), 16, tmp_path)
    assert len(str(caught.value)) < 2000


def packed(path, tmp_path, **options):
    """The notes of a packed store."""
    return store(path, tmp_path, validation_fraction=0.3, **options).manifest["notes"]


ROWS = [{"text": f"some words of row {row}"} for row in range(120)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "broken", "number"),
    [
        ("a.jsonl", "a \\ud83d b", 1),
        ("b.json", "\\udc00\\ud83d\\ude00 \\ud83d", 2),
        ("c.jsonl.gz", "é \\ud83d\\ud83d 🙂", 2),
    ],
)
def test_a_half_of_a_surrogate_pair_is_replaced_and_counted(tmp_path, name, broken, number):
    text = lines(ROWS) + '{"text": "' + broken + '"}\n'
    if name.endswith(".json"):
        text = "[" + ",".join(text.splitlines()) + "]"
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    last = documents(FilesData(path=name).source(tmp_path))[-1]
    assert last.count("\ufffd") == number
    assert last.encode().decode() == last
    (note,) = packed(tmp_path / name, tmp_path)
    assert note.startswith(f"{number} characters of")
    assert name in note


def test_surrogates_in_parquet_are_replaced_and_other_bytes_refused(tmp_path):
    good = b"one \xed\xa0\xbd"
    for kind, view in ((pa.binary(), pa.string()), (pa.large_binary(), pa.large_string())):
        column = pa.array([good, None, b"two"], kind).view(view)
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        source = FilesData(path="a.parquet").source(tmp_path)
        assert documents(source) == ["one \ufffd", "two"]
    pq.write_table(
        pa.table({"text": pa.array([b"caf\xe9"], pa.binary()).view(pa.string())}), tmp_path / "b.parquet"
    )
    with pytest.raises(DataError, match=r"b\.parquet"):
        documents(FilesData(path="b.parquet").source(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.jsonl", lines(ROWS[:100]) + '{"text": "bro\n' + lines(ROWS[:5]), 101),
        ("b.jsonl", lines(ROWS[:7]) + "\n\n7\n" + lines(ROWS[:5]), 10),
        ("c.json", '[\n{"text": "one"},\n{"text": two}\n]', 3),
        ("d.jsonl", lines(ROWS[:3]) + "{'text': 'last'}", 4),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path, monkeypatch, name, text, line):
    (tmp_path / name).write_text(text)
    for size in (1 << 20, 50):
        monkeypatch.setattr("trainables.data.kinds.files.READ", size)
        with pytest.raises(DataError, match=rf"{name} .*line {line} .*sed -n {line}p"):
            documents(FilesData(path=name).source(tmp_path))


CLONES = {
    "rows and a page": (
        {"README.md": "a page", "dataset_infos.json": "{}", "data/a.jsonl": lines(ROWS)},
        ["data/a.jsonl"],
    ),
    "text and a page with metadata": (
        {
            "README.md": "---\nlicense: mit\n---\n",
            "LICENSE.txt": "MIT",
            "train.txt": "text",
            ".git/a.txt": "x",
        },
        ["train.txt"],
    ),
    "a saved data set": (
        {"dataset_dict.json": "{}", "train/dataset_info.json": "{}", "train/a.parquet": "", "NOTICE": "x"},
        ["train/a.parquet"],
    ),
    "text and the hub's own files": (
        {
            ".gitattributes": "x",
            "Readme.md": "a page",
            "b/train.txt": "text",
            ".cache/huggingface/b.txt": "y",
        },
        ["b/train.txt"],
    ),
    "documents": (
        {"README.md": "a document", "more/license.md": "another"},
        ["README.md", "more/license.md"],
    ),
}


@pytest.mark.parametrize("case", CLONES)
def test_what_describes_a_data_set_is_left_out_of_it_and_named(tmp_path, case):
    contents, kept = CLONES[case]
    for name, content in contents.items():
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    data = FilesData(path="clone")
    listed = [file["path"] for file in data.source(tmp_path).record["files"]]
    assert listed == [str(tmp_path / "clone" / name) for name in kept]
    others = sorted({name.split("/")[0] if name[0] == "." else name for name in contents} - set(kept))
    notes = data.notes(tmp_path)
    assert len(notes) == bool(others)
    assert all(f"({len(others)} in all)" in note and all(name in note for name in others) for note in notes)
    # A page that is named is read.
    (page,) = FilesData(path=f"clone/{next(iter(contents))}").source(tmp_path).record["files"]
    assert page["format"]


def archive(name, folder):
    (folder / "x.txt").write_text("text of an archive " * 100)
    path = folder / name
    if ".tar" in name or name.endswith((".tgz", ".txt")):
        mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(name.rsplit(".")[-1], "w")
        with tarfile.open(path, mode) as tar:
            tar.add(folder / "x.txt", "x.txt")
    else:
        with zipfile.ZipFile(path, "w") as file:
            file.write(folder / "x.txt", "x.txt")
    return path


@pytest.mark.parametrize(
    "name", ["a.tar", "a.tar.gz", "b.tgz", "c.tar.bz2", "d.tar.xz", "e.zip", "f.7z", "g.RAR", "tar.txt"]
)
def test_an_archive_is_refused_with_the_command_that_unpacks_it(tmp_path, name):
    path = archive(name, tmp_path)
    with pytest.raises(DataError, match=r"mkdir \w+ && (tar -xf|unzip|7z x) ") as error:
        documents(FilesData(path=name).source(tmp_path))
    command = str(error.value).partition("name the folder: ")[2]
    program = command.partition("&& ")[2].split()[0]
    assert program in ("tar", "unzip", "7z")
    if shutil.which(program) and program != "7z":
        subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)
        assert list(tmp_path.glob("*/x.txt"))
    (tmp_path / "in").mkdir()
    path.rename(tmp_path / "in" / name)
    (tmp_path / "in" / "a.md").write_text("text")
    if name != "tar.txt":
        assert documents(FilesData(path="in").source(tmp_path)) == ["text"]
        assert name in FilesData(path="in").notes(tmp_path)[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("latin text".encode("utf-16-le") * 9, "iconv -f UTF-16LE"),
        ("latin text".encode("utf-16-be") * 9, "iconv -f UTF-16BE"),
        (b"text " * 100 + b"\0more", "byte 500 is NUL.*tr -d"),
        (gzip.compress(b"text", mtime=0), "compressed with gzip"),
        (bz2.compress(b"text"), "compressed with bzip2"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"%PDF-1.4 text", "PDF"),
    ],
)
def test_binary_content_is_refused_with_the_fix(tmp_path, content, why):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=why):
        documents(FilesData(path="a.txt").source(tmp_path))


def test_linked_folders_are_followed_once_and_loops_end(tmp_path):
    for folder in ("corpus/own", "elsewhere/deep"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "corpus" / "own" / "a.txt").write_text("a")
    (tmp_path / "elsewhere" / "deep" / "b.txt").write_text("b")
    plain = data_key(FilesData(path="corpus"), 16, tmp_path)
    (tmp_path / "corpus" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "again").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "own" / "up").symlink_to("..")
    data = FilesData(path="corpus")
    assert sorted(documents(data.source(tmp_path))) == ["a", "b"]
    assert data_key(data, 16, tmp_path) != plain
    assert data.notes(tmp_path) == []


@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz"])
def test_rows_without_the_field_and_empty_ones_are_counted(tmp_path, suffix):
    rows = [*ROWS, {"other": 1}, {"text": ""}, {"body": "x"}, {"text": None}, {}]
    content = lines(rows)
    if suffix == "json":
        content = json.dumps(rows)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content.encode()) if suffix.endswith("gz") else content.encode())
    notes = packed(path, tmp_path)
    assert [note.split()[0] for note in notes] == ["3", "2"]


def test_notes_of_a_mixture_name_their_part(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([*ROWS, {"text": ""}]))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.txt").write_text("other words\n" * 500)
    (tmp_path / "b" / "c.png").write_text("")
    parts = [
        {"weight": 1, "data": {"kind": "files", "path": str(tmp_path / name)}} for name in ("a.jsonl", "b")
    ]
    data = MixtureData(parts=parts, validation_fraction=0.3)
    notes = open_store(data, context=16, root=tmp_path / "stores").manifest["notes"]
    assert ["c.png" in notes[0], "a.jsonl" in notes[1], len(notes)] == [True, True, 2]
