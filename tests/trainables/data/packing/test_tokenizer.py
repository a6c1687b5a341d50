import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from trainables.data.kind import BPE_END
from trainables.data.packing.tokenizer import bytes_encoder, train_bpe
from trainables.data.packing.train_validation_split import Piece
from trainables.errors import DataError

WORDS = ["".join(random.Random(i).choices("abcdefghij", k=7)) for i in range(60)]


def text(seed=0, words=3000):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


TRICKY = "naïve 漢字 🙂\t\r\n\x00  <|endoftext|> def f(x):\n    return x\n"


def test_bytes_are_the_bytes_and_256_ends_a_document():
    encoder = bytes_encoder()
    first, second = encoder.encode([Piece(TRICKY.encode(), False), Piece(b"z", True)])
    assert bytes(first.ids.tolist()) == TRICKY.encode()
    assert second.ids.tolist() == [ord("z"), 256]
    assert [second.text_bytes(count) for count in range(3)] == [0, 1, 1]
    assert first.text_bytes(9) == 9


def test_bpe_has_the_vocabulary_asked_for_and_gives_any_text_back(tmp_path):
    encoder = train_bpe(iter([text()]), 350)
    assert encoder.tokenizer.get_vocab_size() == 350
    (encoded,) = encoder.encode([Piece(TRICKY.encode(), True)])
    ids = encoded.ids
    assert ids[-1] == BPE_END == encoder.end_of_text
    assert BPE_END not in ids[:-1]
    assert encoder.tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False) == TRICKY
    assert encoded.text_bytes(len(ids)) == encoded.text_bytes(len(ids) - 1) == len(TRICKY.encode())
    for count in range(len(ids)):
        # The bytes of ids in the byte-level alphabet, where a character of several ids counts with its first.
        size = sum(len(encoder.tokenizer.id_to_token(one)) for one in ids[:count].tolist())
        assert 0 <= encoded.text_bytes(count) - size <= 3
    file = tmp_path / "tokenizer.json"
    file.write_text(encoder.tokenizer.to_str())
    loaded = Tokenizer.from_file(str(file))
    assert loaded.get_vocab_size() == 350
    assert loaded.token_to_id("<|endoftext|>") == BPE_END
    assert loaded.encode(text(1)).ids == encoder.tokenizer.encode(text(1)).ids


def test_bpe_compresses_and_is_the_same_every_time():
    first, second = (train_bpe(iter([text()]), 400) for _ in range(2))
    assert first.tokenizer.to_str() == second.tokenizer.to_str()
    (encoded,) = first.encode([Piece(text(2).encode(), False)])
    assert len(encoded.ids) < 0.7 * len(text(2))


def test_a_vocabulary_too_large_for_the_text_names_the_largest():
    with pytest.raises(DataError, match=r"vocabulary 5000 is too large for the text.*at most (\d+)") as error:
        train_bpe(iter(["some little text, some little text"]), 5000)
    largest = int(str(error.value).split("at most ")[1].split(";")[0])
    encoder = train_bpe(iter(["some little text, some little text"]), largest)
    assert encoder.tokenizer.get_vocab_size() == largest


def test_pieces_keep_their_order_over_batches():
    encoder = train_bpe(iter([text()]), 300)
    pieces = [Piece(f"alpha{i} ".encode(), i % 3 == 0) for i in range(3000)]
    ids = np.concatenate([encoded.ids for encoded in encoder.encode(pieces)])
    assert (ids == BPE_END).sum() == 1000
    assert encoder.tokenizer.decode(ids.tolist(), skip_special_tokens=True) == "".join(
        p.content.decode() for p in pieces
    )
