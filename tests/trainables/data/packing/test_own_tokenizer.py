"""Text packed with the user's own tokenizer has the ids that the library gives for each whole document."""

import json
import shutil

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.trainables.data.tokenizer_files import MADE, TEXT, save
from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.packing import tokenizer as packing
from trainables.data.packing.tokenizer import file_encoder
from trainables.data.packing.train_validation_split import Piece
from trainables.data.sources.tokenizer_file import read_tokenizer
from trainables.data.store.open import open_store
from trainables.errors import DataError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the folder of each tokenizer."""
    root = tmp_path_factory.mktemp("tokenizers")
    for name in MADE:
        save(root / name, name)
    return root


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """1,200 documents, so that whole documents are held out; some longer than a piece, some that spell a token."""
    path = tmp_path_factory.mktemp("text") / "notes.jsonl"
    texts = [
        TEXT[n * 7 : n * 7 + (9000 if n % 100 == 0 else 300)] + f" </s><|endoftext|>{n}" for n in range(1200)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, texts


def documents(ids, end):
    """The documents of a stream of ids, without the id that ends each."""
    ends = np.flatnonzero(ids == end)
    return [part[part != end].tolist() for part in np.split(ids, ends + 1)][: len(ends)]


@pytest.mark.parametrize("name", MADE)
def test_each_document_has_the_ids_of_the_library(saved, corpus, tmp_path, name):
    path, texts = corpus
    data = FilesData(path=str(path), tokenizer=str(saved / name))
    store = open_store(data, context=32, root=tmp_path)
    own = Tokenizer.from_file(str(saved / name / "tokenizer.json"))
    assert store.vocabulary == data.vocabulary == own.get_vocab_size()
    assert store.boundaries == (own.token_to_id(MADE[name][1]),) * 2
    own.encode_special_tokens = True
    expected = [own.encode(text, add_special_tokens=False).ids for text in texts]
    end = store.boundaries[0]
    # The spelled end of text is text: no document of the store ends early.
    found = [*documents(store.train, end), *documents(store.validation, end)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", MADE)
def test_bytes_per_token_are_those_of_the_validation_text_or_unknown_with_a_note(
    saved, corpus, tmp_path, name
):
    path, texts = corpus
    store = open_store(FilesData(path=str(path), tokenizer=str(saved / name)), context=32, root=tmp_path)
    notes = [note for note in store.manifest["notes"] if "bits per byte" in note]
    if name == "wordpiece":
        assert (store.bytes_per_token, len(notes)) == (None, 1)
        return
    assert notes == []
    own = Tokenizer.from_file(str(saved / name / "tokenizer.json"))
    own.encode_special_tokens = True
    by_ids = {tuple(own.encode(text, add_special_tokens=False).ids): len(text.encode()) for text in texts}
    held_out = documents(store.validation, store.boundaries[0])
    size = sum(by_ids[tuple(ids)] for ids in held_out)
    assert store.bytes_per_token == pytest.approx(size / len(store.validation), rel=1e-12)


@pytest.mark.parametrize("name", ["byte-level", "llama"])
def test_a_validation_set_that_ends_within_a_piece_counts_the_bytes_of_its_ids(saved, tmp_path, name):
    (tmp_path / "text.txt").write_text(TEXT)
    data = FilesData(path=str(tmp_path / "text.txt"), tokenizer=str(saved / name), validation_tokens=101)
    store = open_store(data, context=32, root=tmp_path / "stores")
    own = Tokenizer.from_file(str(saved / name / "tokenizer.json"))
    text = own.decode(store.validation.tolist(), skip_special_tokens=False)
    assert store.bytes_per_token * 101 == pytest.approx(len(text.encode()), abs=3)


@pytest.mark.parametrize("name", MADE)
def test_pieces_of_any_size_give_the_ids_of_the_whole(saved, name):
    encoder = file_encoder(read_tokenizer(str(saved / name), None, saved))
    assert encoder.whole == (name == "llama")
    (whole,) = encoder.encode([Piece(TEXT.encode(), last=True)])
    for size in (50, 3000):
        pieces = [
            Piece(TEXT[start : start + size].encode(), last=False) for start in range(0, len(TEXT), size)
        ]
        pieces[-1] = pieces[-1]._replace(last=True)
        found = list(encoder.encode(pieces))
        assert np.concatenate([one.ids for one in found]).tolist() == whole.ids.tolist()
        assert sum(one.text_bytes(len(one.ids)) for one in found) == len(TEXT.encode())
        assert (len(found) == 1) == encoder.whole
    assert not encoder.counts["cuts"]


def test_documents_too_long_for_one_call_are_cut_at_lines_and_counted(saved, monkeypatch, tmp_path):
    monkeypatch.setattr(packing, "LONGEST", 20_000)
    (tmp_path / "text.txt").write_text(TEXT)
    data = FilesData(path=str(tmp_path / "text.txt"), tokenizer=str(saved / "llama"), validation_fraction=0.2)
    store = open_store(data, context=32, root=tmp_path / "stores")
    (note,) = (note for note in store.manifest["notes"] if "were cut at" in note)
    assert int(note.split("cut at ")[1].split()[0]) >= len(TEXT) * 0.8 // 24_000
    assert store.bytes_per_token is not None


def test_what_a_file_does_besides_encoding_is_left_out(saved, tmp_path):
    """A tokenizer saved with truncation, padding and BPE dropout encodes the whole text, the same every time."""
    folder = shutil.copytree(saved / "byte-level", tmp_path / "odd")
    spoilt = Tokenizer.from_file(str(folder / "tokenizer.json"))
    spoilt.enable_truncation(8)
    spoilt.enable_padding(length=5000)
    spoilt.model.dropout = 0.5
    spoilt.save(str(folder / "tokenizer.json"))
    plain, odd = (file_encoder(read_tokenizer(str(at), None, saved)) for at in (saved / "byte-level", folder))
    ids = [
        [one.ids.tolist() for one in encoder.encode([Piece(TEXT.encode(), last=True)])]
        for encoder in (plain, odd)
    ]
    assert ids[0] == ids[1]


def test_the_key_is_of_the_content_and_not_of_the_place(saved, corpus, tmp_path):
    def key(tokenizer, base=tmp_path, **options):
        return data_key(FilesData(path=str(corpus[0]), tokenizer=str(tokenizer), **options), 32, base)

    copy = shutil.copytree(saved / "llama", tmp_path / "copy")
    keys = {key(saved / "llama"), key(copy), key(copy / "tokenizer.json")}
    assert len(keys) == 1
    assert key(copy, end_of_text="</s>") in keys
    assert key(copy, end_of_text="<s>") not in keys
    assert key(saved / "byte-level") not in keys
    assert key(copy, base=None) == key(saved / "llama", base=None)
    file = copy / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    assert key(copy) not in keys


def test_a_machine_without_the_tokenizer_opens_the_store_that_was_packed_with_it(saved, corpus, tmp_path):
    folder = shutil.copytree(saved / "llama", tmp_path / "mine")
    data = FilesData(path=str(corpus[0]), tokenizer=str(folder))
    key = data_key(data, 32)
    open_store(data, context=32, root=tmp_path, key=key)
    shutil.rmtree(folder)
    sent = FilesData.model_validate_json(data.model_dump_json())
    assert sent.vocabulary == data.vocabulary
    assert open_store(sent, context=32, root=tmp_path, key=key).vocabulary == data.vocabulary
    with pytest.raises(DataError, match=str(folder)):
        data_key(sent, 32)


def test_a_mixture_is_encoded_with_its_own_tokenizer(saved, corpus, tmp_path):
    part = {"weight": 1, "data": {"kind": "files", "path": str(corpus[0])}}
    other = {"weight": 1, "data": {"kind": "python-source", "max_bytes": 300_000}}
    store = open_store(
        MixtureData(parts=[part, other], tokenizer=str(saved / "llama"), max_tokens=20_000),
        context=32,
        root=tmp_path,
    )
    assert store.vocabulary == Tokenizer.from_file(str(saved / "llama" / "tokenizer.json")).get_vocab_size()
    assert [one["tokens"]["train"] for one in store.manifest["sources"]] == pytest.approx(
        [1e4, 1e4], rel=0.15
    )


def refused(**options):
    with pytest.raises((ValidationError, DataError)) as error:
        data_key(FilesData(path=__file__, **options), 32)
    return str(error.value)


def test_what_is_no_tokenizer_is_refused_with_the_fix(saved, tmp_path):
    bare = save(tmp_path / "bare", "llama", config=False)
    message = refused(tokenizer=str(bare))
    assert all(token in message for token in ("<unk>", "<s>", 'data.end_of_text: "</s>"'))
    assert FilesData(path="x", tokenizer=str(bare), end_of_text="</s>").vocabulary == 700
    assert "'<eos>'" in refused(tokenizer=str(bare), end_of_text="<eos>")
    (bare / "tokenizer_config.json").write_text("[]")
    assert "tokenizer_config.json" in refused(tokenizer=str(bare))
    (bare / "tokenizer.json").write_text('{"model": {}}')
    assert "tokenizer.json" in refused(tokenizer=str(bare))
    for other in ("[1]", "{}", '{"model": null}'):
        (bare / "tokenizer.json").write_text(other)
        assert "`model`" in refused(tokenizer=str(bare))
    for damaged in (b"", b"\xff\xfe", b'{"model": '):
        (bare / "tokenizer.json").write_bytes(damaged)
        assert "no JSON" in refused(tokenizer=str(bare))
    (tmp_path / "empty").mkdir()
    assert "AutoTokenizer" not in (message := refused(tokenizer=str(tmp_path / "empty")))
    assert str(tmp_path / "empty") in message
    (bare / "tokenizer.json").rename(bare / "tokenizer.model")
    assert "tokenizer.model" in (message := refused(tokenizer=str(bare)))
    assert f"AutoTokenizer.from_pretrained('{bare}').save_pretrained(" in message
    assert "`bytes`?" in refused(tokenizer="byte")
    assert "`end_of_text`" in refused(end_of_text="</s>")
    assert "699" in refused(tokenizer=str(saved / "llama"), vocabulary=650)


def test_text_that_a_tokenizer_has_no_ids_for_is_refused(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[SEP]": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = FilesData(path=__file__, tokenizer=str(tmp_path), end_of_text="[SEP]")
    with pytest.raises(DataError, match="unknown token"):
        open_store(data, context=32, root=tmp_path / "stores")


def test_text_that_is_encoded_as_end_of_text_is_counted(tmp_path):
    """The vocabulary of Unigram has its special tokens, so that text may be one of them."""
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((one, -2.0) for one in "a </s>")], 0)
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "a{" a" * n}"}}\n' for n in range(1200)) + '{"text": "</s>a</s>"}'
    )
    data = FilesData(path=str(tmp_path / "a.jsonl"), tokenizer=str(tmp_path), end_of_text="</s>")
    notes = open_store(data, context=32, root=tmp_path / "stores").manifest["notes"]
    assert "2 times" in next(one for one in notes if one.startswith("data.end_of_text"))


def test_ids_beyond_the_number_of_tokens_count(saved, tmp_path):
    """A vocabulary may have holes; models need its largest id + 1."""
    folder = shutil.copytree(saved / "byte-level", tmp_path / "holes")
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 1000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert FilesData(path="x", tokenizer=str(folder)).vocabulary == 1001
