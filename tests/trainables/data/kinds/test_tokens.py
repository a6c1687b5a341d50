"""Files of ids, written by hand from the specification of their format or by their own library, and packed."""

import io
import json
import math
import re
import shutil
import struct

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from interplay.verbs.export import loading
from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.recorder import measured
from study.spec.study import load_spec
from tests.named import assert_named
from tests.trainables.data.tokenizer_files import save
from trainables.data import data_key
from trainables.data.kinds.tokens import TokensData
from trainables.data.store.open import open_store
from trainables.errors import DataError
from trainables.record import Keep, read_record
from trainables.train.loop import train

VOCABULARY, END = 500, 499


def made_documents(count=1500):
    draw = np.random.default_rng(0)
    return [draw.integers(0, END, draw.integers(1, 40)).astype(np.uint16) for _ in range(count)]


DOCUMENTS = made_documents()
#: All documents with their end of text, as programs write them.
IDS = np.concatenate([np.append(document, END) for document in DOCUMENTS]).astype(np.uint16)


def write_llm_c(path, ids, magic=20240520):
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(ids)
    path.write_bytes(header.tobytes() + ids.tobytes())


def write_megatron(path, documents, code=8, dtype=np.uint16):
    """The `.bin`, and the `.idx`: magic, version, type, counts, lengths, byte offsets, documents."""
    path.write_bytes(b"".join(one.astype(dtype).tobytes() for one in documents))
    lengths = np.array([len(one) for one in documents], np.int32)
    offsets = np.cumsum([0, *lengths[:-1]]).astype(np.int64) * np.dtype(dtype).itemsize
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
        + lengths.tobytes()
        + offsets.tobytes()
        + np.arange(len(lengths) + 1, dtype=np.int64).tobytes()
    )


def write_parquet(path, documents, kind):
    pq.write_table(
        pa.table({"input_ids": pa.array([one.tolist() for one in documents], kind)}), path, row_group_size=400
    )


def with_end(documents):
    return [np.append(one, END) for one in documents]


#: By name: a function that writes the ids below a folder and returns the path, and other keys.
FORMS = {
    "nanogpt": (lambda at: IDS.tofile(at / "a.bin") or at / "a.bin", {}),
    "uint32": (lambda at: IDS.astype(np.uint32).tofile(at / "a.bin") or at / "a.bin", {"dtype": "uint32"}),
    "olmo": (lambda at: IDS.tofile(at / "a.npy") or at / "a.npy", {}),
    "npy": (lambda at: np.save(at / "a.npy", IDS.astype(np.int64)) or at / "a.npy", {}),
    "other ending": (lambda at: IDS.tofile(at / "a.ids") or at / "a.ids", {"format": "raw"}),
    "llm.c": (lambda at: write_llm_c(at / "a.bin", IDS) or at / "a.bin", {}),
    "llm.c 32": (lambda at: write_llm_c(at / "a.bin", IDS.astype(np.uint32), 20240801) or at / "a.bin", {}),
    "megatron": (lambda at: write_megatron(at / "a.bin", with_end(DOCUMENTS)) or at / "a.bin", {}),
    "megatron without ends": (
        lambda at: write_megatron(at / "a.bin", DOCUMENTS) or at,
        {"format": "megatron"},
    ),
    "megatron int32": (lambda at: write_megatron(at / "a.bin", DOCUMENTS, 4, np.int32) or at / "*.bin", {}),
    "parquet": (lambda at: write_parquet(at / "a.parquet", DOCUMENTS, pa.list_(pa.int32())) or at, {}),
    "parquet large": (
        lambda at: write_parquet(at / "a.parquet", with_end(DOCUMENTS), pa.large_list(pa.int64())) or at,
        {},
    ),
    "datasets": (
        lambda at: (
            datasets.Dataset.from_dict(
                {"input_ids": [one.tolist() for one in DOCUMENTS], "text": ["x"] * len(DOCUMENTS)}
            ).save_to_disk(str(at / "set"))
            or at / "set"
        ),
        {"format": "datasets"},
    ),
}


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


@pytest.fixture
def packed(tmp_path):
    """Pack files of ids; return the store."""
    folder = tmp_path / "in"
    folder.mkdir()

    def pack(form="nanogpt", **options):
        path, keys = FORMS[form][0](folder), FORMS[form][1]
        data = TokensData(path=str(path), vocabulary=VOCABULARY, **{**keys, **options})
        return open_store(data, context=16, root=tmp_path / "stores")

    return pack


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_ids_and_the_same_split(packed, form):
    store = packed(form, end_of_text=END)
    assert (store.vocabulary, store.boundaries, store.bytes_per_token) == (VOCABULARY, (END, END), None)
    splits = [
        [tuple(one.tolist()) for one in np.split(ids, np.flatnonzero(ids == END) + 1) if len(one)]
        for ids in (store.train, store.validation)
    ]
    assert sorted([*splits[0], *splits[1]]) == sorted((*document.tolist(), END) for document in DOCUMENTS)
    # Whole documents, in their order, and no document in both.
    held_out = set(splits[1])
    assert splits[0] == [one for d in DOCUMENTS if (one := (*d.tolist(), END)) not in held_out]
    assert 40 <= len(splits[1]) <= 110
    assert store.manifest["sha256"] == SPLIT
    assert ("was put after" in " ".join(store.manifest["notes"])) == (
        form in ("megatron without ends", "megatron int32", "parquet", "datasets")
    )


#: The SHA-256 of the packed splits: a key of existing data must keep its content.
SPLIT = {
    "train": "86b0d45c4e6941b48a60f06687c5bfaa1b78a437c84fe8304b43da04ffe08b76",
    "validation": "3dad408fbb53f41a31cd7d45e4cecdc072510db0a90505b20b526ec7e89cf4df",
}


@pytest.mark.parametrize("form", ["nanogpt", "llm.c", "megatron", "parquet large"])
def test_without_documents_the_end_of_the_stream_is_held_out(packed, form):
    store = packed(form, validation_fraction=0.1)
    count = round(len(IDS) * 0.1)
    assert store.train.tolist() == IDS[:-count].tolist()
    assert store.validation.tolist() == IDS[-count:].tolist()
    assert store.boundaries == (None, None)
    assert "data.end_of_text" in store.manifest["notes"][0]


def test_few_documents_are_no_reason_to_hold_out_none(packed):
    store = packed(end_of_text=7, validation_fraction=0.001)
    assert "50000" in store.manifest["notes"][0]
    assert len(store.train) + len(store.validation) == len(IDS)


def test_limits_cut_both_splits(packed):
    store = packed(end_of_text=END, max_tokens=1000, validation_tokens=100)
    assert (len(store.train), len(store.validation)) == (1000, 100)
    for key in ("max_tokens", "validation_tokens"):
        with pytest.raises(DataError, match=rf"16 tokens.*data\.{key} "):
            packed(end_of_text=END, **{key: 16})
    whole = packed(end_of_text=END)
    assert store.train.tolist() == whole.train[:1000].tolist()
    assert store.validation.tolist() == whole.validation[:100].tolist()


def test_a_validation_set_may_have_its_own_files_and_a_text_be_spread_over_several(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for index, part in enumerate(np.array_split(IDS[:20_000], 3)):
        part.tofile(folder / f"train_{index}.bin")
    IDS[20_000:].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(b"x")
    data = TokensData(
        path=str(folder / "train_*.bin"), validation_path=str(folder / "val.bin"), vocabulary=VOCABULARY
    )
    store = open_store(data, context=16, root=tmp_path / "stores")
    assert store.train.tolist() == IDS[:20_000].tolist()
    assert store.validation.tolist() == IDS[20_000:].tolist()
    assert store.manifest["notes"] == []
    assert "meta.pkl" in TokensData(path=str(folder), vocabulary=VOCABULARY).notes(tmp_path)[0]
    missing = data.model_copy(update={"validation_path": str(folder / "vali.bin")})
    with pytest.raises(DataError, match=r"data\.validation_path .*val\.bin"):
        data_key(missing, 16)


def test_documents_longer_than_a_piece_are_held_out_whole(tmp_path, monkeypatch):
    for name in ("trainables.data.sources.token_files.PIECE", "trainables.data.kinds.tokens.LOOKED_AT"):
        monkeypatch.setattr(name, 7)
    IDS.tofile(tmp_path / "a.bin")
    data = TokensData(path=str(tmp_path / "a.bin"), vocabulary=VOCABULARY, end_of_text=END)
    store = open_store(data, context=16, root=tmp_path / "stores")
    found = [
        tuple(one.tolist())
        for ids in (store.train, store.validation)
        for one in np.split(ids, np.flatnonzero(ids == END) + 1)
        if len(one)
    ]
    assert sorted(found) == sorted((*document.tolist(), END) for document in DOCUMENTS)


def test_the_key_is_of_the_content_and_not_of_the_place(tmp_path):
    IDS.tofile(tmp_path / "a.bin")
    shutil.copy(tmp_path / "a.bin", tmp_path / "b.bin")
    IDS[:999].tofile(tmp_path / "c.bin")
    save(tmp_path / "mine", "llama")

    def key(name="a.bin", base=tmp_path, **options):
        return data_key(TokensData(path=name, **{"vocabulary": VOCABULARY, **options}), 16, base)

    assert key() == key("b.bin")
    own = {"tokenizer": str(tmp_path / "mine"), "vocabulary": 700}
    others = [
        {"vocabulary": 600}, {"end_of_text": END}, {"validation_fraction": 0.1}, {"max_tokens": 100},
        {"bytes_per_token": 4.0}, {"dtype": "uint32"}, {"validation_path": "c.bin"}, own, {"vocabulary": 700},
    ]  # fmt: skip
    assert len({key(), *(key(**options) for options in others)}) == 1 + len(others)
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    assert key(**own) == key(**{**own, "tokenizer": str(tmp_path / "copy")})
    assert key(base=None, **own) == key("b.bin", None, **{**own, "tokenizer": "elsewhere"})


def refused(tmp_path, **options):
    def pack():
        data = TokensData(**{"path": str(tmp_path / "a.bin"), "vocabulary": VOCABULARY, **options})
        return open_store(data, context=16, root=tmp_path / "stores")

    with pytest.raises((ValidationError, DataError)) as error:
        pack()
    return str(error.value)


def test_what_cannot_be_read_as_ids_is_refused_with_the_fix(tmp_path):
    path = tmp_path / "a.bin"
    IDS.tofile(path)
    message = refused(tmp_path, vocabulary=499)
    assert_named(message, str(path), "id 499", f"position {len(DOCUMENTS[0])}", "data.vocabulary to 500")
    assert "position" in refused(tmp_path, dtype="uint32")
    IDS.astype(np.uint32).tofile(path)
    assert "uint32" in refused(tmp_path)
    path.write_bytes(b"odd")
    assert "no whole number of ids" in refused(tmp_path)
    write_llm_c(path, IDS)
    path.write_bytes(path.read_bytes()[:-2])
    assert f"{len(IDS):,} ids" in refused(tmp_path)
    write_megatron(path, DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-2])
    assert "index" in refused(tmp_path)
    path.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00")
    assert "the index" in refused(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    assert_named(refused(tmp_path, path=str(tmp_path / "a.npy")), "float64", "(2, 3)")
    np.save(tmp_path / "b.npy", np.array([1, -1]))
    assert_named(refused(tmp_path, path=str(tmp_path / "b.npy")), "id -1", "position 1")
    (tmp_path / "a.txt").write_text("words")
    assert "data.format: raw" in refused(tmp_path, path=str(tmp_path / "a.txt"))
    assert "data.format llm.c" in refused(tmp_path, path=str(tmp_path / "b.npy"), format="llm.c")
    pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    assert_named(refused(tmp_path, path=str(tmp_path / "a.parquet")), "'input_ids'", "n, text")
    rows = {"input_ids": [[1, 2, 0], [3, 4, 5]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}
    pq.write_table(pa.table(rows), tmp_path / "padded.parquet")
    assert "padding=False" in refused(tmp_path, path=str(tmp_path / "padded.parquet"))
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "padded"))
    assert "padding=False" in refused(tmp_path, path=str(tmp_path / "padded"))
    pq.write_table(pa.table({"input_ids": ["a"]}), tmp_path / "a.parquet")
    assert "type string" in refused(tmp_path, path=str(tmp_path / "a.parquet"))
    sets = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"input_ids": [[1]]})})
    sets.save_to_disk(str(tmp_path / "sets"))
    assert f"{tmp_path}/sets/train" in refused(tmp_path, path=str(tmp_path / "sets"))
    assert "`end_of_text` is 500" in refused(tmp_path, end_of_text=500)
    both = refused(tmp_path, validation_path="x", validation_fraction=0.1)
    assert "`validation_path` and `validation_fraction`" in both
    assert "`tokenizer` is bpe" in refused(tmp_path, tokenizer="bpe")


def _damaged_megatron(path, at, value):
    """An index with one number replaced: its lengths begin at byte 34."""
    write_megatron(path, DOCUMENTS)
    index = bytearray(path.with_suffix(".idx").read_bytes())
    index[at : at + len(value)] = value
    path.with_suffix(".idx").write_bytes(index)


#: By what is wrong: a function that writes it into a folder, and what the error names.
DAMAGED = {
    "npy without its end": (
        lambda at: (at / "a.npy").write_bytes(npy(IDS)[:999]),
        r"a\.npy .*damaged.*numpy\.save",
    ),
    "npy without its head": (lambda at: (at / "a.npy").write_bytes(npy(IDS)[:20]), r"a\.npy .*damaged"),
    "npy of objects": (
        lambda at: np.save(at / "a.npy", np.array([[1], [2, 3]], object)),
        r"a\.npy .*numpy\.save",
    ),
    "raw int64": (lambda at: IDS.astype(np.int64).tofile(at / "a.bin"), r"int64.*numpy\.fromfile"),
    "megatron length": (
        lambda at: _damaged_megatron(at / "a.bin", 34, b"\xff\xff\xff\xff"),
        r"a\.idx is damaged",
    ),
    "megatron offset": (
        lambda at: _damaged_megatron(at / "a.bin", 34 + 4 * len(DOCUMENTS) + 8, b"\x03"),
        r"a\.idx is damaged",
    ),
    "megatron index": (lambda at: _damaged_megatron(at / "a.bin", 0, b"X"), r"data\.format: raw"),
    "index alone": (
        lambda at: _damaged_megatron(at / "a.bin", 34, b"") or (at / "a.bin").unlink(),
        r"a\.bin is not",
    ),
    "parquet without its end": (
        lambda at: (
            write_parquet(at / "b.parquet", DOCUMENTS, pa.list_(pa.int32()))
            or (at / "a.parquet").write_bytes((at / "b.parquet").read_bytes()[:999])
        ),
        r"a\.parquet cannot be read",
    ),
    "null id": (
        lambda at: pq.write_table(pa.table({"input_ids": [[1, 2], [], [3, None]]}), at / "a.parquet"),
        r"row 2 of .*a\.parquet",
    ),
    "data set without its end": (
        lambda at: _damaged_set(at, lambda file: file.read_bytes()[:-999]),
        "in/set cannot be",
    ),
    "data set without its state": (
        lambda at: _damaged_set(at, lambda file: b"") or (at / "set" / "state.json").write_text("{"),
        "in/set cannot be",
    ),
    "compressed": (lambda at: (at / "a.bin.gz").write_bytes(b"\x1f\x8b"), "compressed; unpack"),
    "nothing": (lambda at: None, "is empty; name the folder of the ids"),
}


def _damaged_set(at, content):
    datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 999}).save_to_disk(str(at / "set"))
    (file,) = (at / "set").glob("*.arrow")
    file.write_bytes(content(file))


def npy(ids):
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(tmp_path, case):
    write, named = DAMAGED[case]
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder)
    paths = {
        "compressed": folder / "a.bin.gz",
        **dict.fromkeys([one for one in DAMAGED if one.startswith("data set")], folder / "set"),
    }
    path = paths.get(case, folder)
    assert re.search(named, refused(tmp_path, path=str(path)))


def test_int64_is_not_read_as_uint32_and_an_index_of_another_program_not_at_all(tmp_path):
    path = tmp_path / "a.bin"
    IDS.astype(np.int64).tofile(path)
    assert "int64" in refused(tmp_path, dtype="uint32")
    IDS.tofile(path)
    path.with_suffix(".idx").write_bytes(b"other")
    data = TokensData(path=str(path), vocabulary=VOCABULARY, format="raw")
    store = open_store(data, context=16, root=tmp_path / "stores")
    assert len(store.train) + len(store.validation) == len(IDS)


def test_the_validation_set_may_not_be_trained_on(tmp_path):
    IDS.tofile(tmp_path / "a.bin")
    shutil.copy(tmp_path / "a.bin", tmp_path / "b.bin")
    IDS[:999].tofile(tmp_path / "c.bin")
    assert "data.validation_path" in refused(tmp_path, validation_path=str(tmp_path / "b.bin"))
    data = TokensData(path="a.bin", validation_path="c.bin", vocabulary=VOCABULARY)
    assert data_key(data, 16, tmp_path)


def test_a_link_to_nothing_is_named(tmp_path):
    IDS.tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").symlink_to("missing.bin")
    assert "b.bin" in TokensData(path=".", vocabulary=VOCABULARY).notes(tmp_path)[0]
    assert "missing.bin" in refused(tmp_path, path=str(tmp_path / "b.bin"))


def test_ids_of_a_study_are_planned_trained_and_exported_with_their_tokenizer(tmp_path):
    save(tmp_path / "mine", "llama")
    IDS.tofile(tmp_path / "a.bin")
    ids = {"kind": "tokens", "path": "a.bin", "vocabulary": 704, "end_of_text": 2, "bytes_per_token": 3.5}
    (tmp_path / "ids.yaml").write_text(json.dumps({
        "data": {**ids, "tokenizer": "mine"},
        "frontier": {"depths": [1], "heads": 2, "widths": {1: [16]}},
        "training": {"steps": 3, "batch": 4, "context": 16, "lr": {"rule": "fixed", "value": 0.01}},
        "resources": {"device": "cpu"},
    }))  # fmt: skip
    plan = make_plan(load_spec(str(tmp_path / "ids.yaml")))
    planned = plan.cells[0]
    assert plan.vocabulary == 704
    result = train(planned.cell, data_root=tmp_path, weights=Keep(tmp_path / "model"), evaluations=1)
    row = measured("cpu", planned, result)
    assert row["bits_per_byte"] == pytest.approx(result.loss / math.log(2) / 3.5)
    names = {}
    record = read_record(tmp_path / "model")
    assert record.tokenizer == "file"
    exec("\n".join(loading(record, str(tmp_path / "model"))), names)
    assert names["tokenizer"].eos_token == "</s>"
    assert names["model"].config.eos_token_id == 2
    assert names["model"].config.vocab_size == 704


def test_an_override_turns_a_study_of_text_into_one_of_ids_without_its_tokenizer(tmp_path):
    IDS.tofile(tmp_path / "a.bin")
    given = ("data.kind=tokens", f"data.path={tmp_path}/a.bin", "data.vocabulary=500")
    data = load_spec("text", given).data
    assert isinstance(data, TokensData)
    assert (data.tokenizer, data.validation_fraction) == (None, None)
    recorded = tmp_path / "spec.yaml"
    recorded.write_text(load_spec("text", (*given, "data.validation_fraction=0.1")).to_yaml())
    other = load_spec(str(recorded), [f"data.validation_path={tmp_path}/a.bin"]).data
    assert (other.validation_fraction, other.validation_path) == (None, f"{tmp_path}/a.bin")
    with pytest.raises(SpecError, match=r"data\.vocabulary"):
        load_spec("text", given[:2])
