import json

import numpy as np
import pytest

from trainables.data import data_key
from trainables.data.kind import BYTES_END
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.mixture import MixtureData
from trainables.data.kinds.python_source import PythonSourceData
from trainables.data.packing.pack import interleave
from trainables.data.store.open import open_store
from trainables.errors import DataError


def mixture(*parts, **options):
    return MixtureData(parts=[{"weight": w, "data": d} for w, d in parts], **options)


def texts(tokens):
    documents = bytes(np.where(tokens == BYTES_END, 0, tokens).astype(np.uint8)).split(b"\0")
    return [d.decode() for d in documents if d]


@pytest.fixture
def digits(tmp_path):
    path = tmp_path / "digits.txt"
    draw = np.random.default_rng(0)
    path.write_text("".join(f"{n}\n" for n in draw.integers(0, 10**9, 30_000)))
    return FilesData(path=str(path))


@pytest.fixture
def letters(tmp_path):
    draw = np.random.default_rng(1)
    rows = ["".join(map("abcdefgh".__getitem__, row)) for row in draw.integers(0, 8, (4000, 64)).tolist()]
    path = tmp_path / "letters.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return FilesData(path=str(path))


def test_interleaving_keeps_the_shares_at_every_moment_and_stops_with_the_first_exhausted():
    draw = np.random.default_rng(0)
    streams = [iter(draw.integers(1, 50, n).tolist()) for n in (3000, 400, 3000)]
    taken, seen = np.zeros(3), []
    for part, item in interleave(streams, [5, 1, 4], int):
        taken[part] += item
        seen.append(part)
        assert np.abs(taken - taken.sum() * np.array([0.5, 0.1, 0.4])).max() <= 50
    assert seen.count(1) == 400
    assert taken[1] / taken.sum() == pytest.approx(0.1, abs=0.01)


def test_one_stream_is_itself():
    assert [x for _, x in interleave([iter(range(5))], [1.0], int)] == list(range(5))


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bpe", "vocabulary": 400}])
def test_the_shares_of_the_tokens_are_the_weights(tmp_path, digits, letters, options):
    spec = mixture((3, digits), (1, letters), **options)
    store = open_store(spec, context=64, root=tmp_path / "stores")
    for part, share in zip(store.manifest["sources"], (0.75, 0.25), strict=True):
        assert part["tokens"]["train"] / len(store.train) == pytest.approx(share, abs=0.02)
        assert part["tokens"]["validation"] / len(store.validation) == pytest.approx(share, abs=0.05)
    if not options:
        for tokens in (store.train, store.validation):
            letters = ((tokens >= 97) & (tokens < 123)).sum() / (tokens < 256).sum()
            assert letters == pytest.approx(0.25, abs=0.05)
    assert store.entropy is None
    assert len(store.validation) == pytest.approx(0.05 * len(store.train), rel=0.5)


def test_parts_are_held_out_apart_and_never_overlap(tmp_path, digits, letters):
    store = open_store(mixture((1, digits), (1, letters)), context=8, root=tmp_path / "stores")
    train, validation = (
        {line for document in texts(tokens) for line in document.split("\n")}
        for tokens in (store.train, store.validation)
    )
    assert any(line.isdigit() for line in validation)
    assert any(line.isalpha() for line in validation)
    # Twelve characters or more: a document cut in two can leave two equal short ends.
    assert not {x for x in train & validation if x.isalpha()}
    assert not {x for x in train & validation if len(x) >= 9}


def test_weights_count_relatively_and_everything_else_is_in_the_key(digits, letters):
    one = data_key(mixture((1, digits), (1, letters)), 64)
    assert data_key(mixture((2, digits), (2, letters)), 64) == one
    others = [
        mixture((2, digits), (1, letters)),
        mixture((1, letters), (1, digits)),
        mixture((1, digits), (1, letters.model_copy(update={"field": "body"}))),
        mixture((1, digits), (1, letters), max_tokens=10**6),
        mixture((1, digits)),
    ]
    assert len({one, *(data_key(other, 64) for other in others)}) == len(others) + 1


def test_real_text_with_another_and_a_limit(tmp_path, letters):
    spec = mixture((1, PythonSourceData(max_bytes=300_000)), (1, letters), max_tokens=100_000)
    store = open_store(spec, context=64, root=tmp_path / "stores")
    assert len(store.train) == 100_000
    assert [p["kind"] for p in store.manifest["sources"]] == ["python-source", "files"]


def test_a_part_without_text_is_an_error(tmp_path, digits):
    (tmp_path / "empty.txt").write_text("")
    spec = mixture((1, digits), (1, FilesData(path=str(tmp_path / "empty.txt"))))
    with pytest.raises(DataError, match=r"empty.txt holds no text"):
        open_store(spec, context=64, root=tmp_path / "stores")


def test_a_part_that_is_much_too_small_is_blamed(tmp_path, digits):
    small = tmp_path / "small.jsonl"
    spec = mixture((1, digits), (1, FilesData(path=str(small))))
    small.write_text('{"text": "little"}\n')
    with pytest.raises(DataError, match=r"small.jsonl holds only 6 bytes of text, too few to split"):
        open_store(spec, context=64, root=tmp_path / "stores")
    # Both splits get some of these, but a block of the digits is longer than all of them.
    small.write_text("".join(f'{{"text": "{n}"}}\n' for n in range(30)))
    with pytest.raises(
        DataError, match=r"small.jsonl has only \d+ of the \d+ tokens .* share of 0.5, because its text"
    ):
        open_store(spec, context=64, root=tmp_path / "stores")


def test_the_smallest_part_sets_how_finely_a_mixture_is_cut(tmp_path, digits):
    (tmp_path / "small.txt").write_text("".join(f"{n}\n" for n in range(2000)))
    spec = mixture((1, digits), (1, FilesData(path=str(tmp_path / "small.txt"))))
    store = open_store(spec, context=64, root=tmp_path / "stores")
    for tokens, name in ((store.train, "train"), (store.validation, "validation")):
        for part in store.manifest["sources"]:
            assert part["tokens"][name] / len(tokens) == pytest.approx(0.5, abs=0.1)
