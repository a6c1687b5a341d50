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
    assert bytes(first.tolist()) == TRICKY.encode()
    assert second.tolist() == [ord("z"), 256]
    assert len(encoder.lengths) == 257


def test_bpe_has_the_vocabulary_asked_for_and_gives_any_text_back(tmp_path):
    encoder = train_bpe(iter([text()]), 350)
    assert len(encoder.lengths) == 350
    (ids,) = encoder.encode([Piece(TRICKY.encode(), True)])
    assert ids[-1] == BPE_END == encoder.end_of_text
    assert BPE_END not in ids[:-1]
    assert encoder.bpe.decode(ids[:-1].tolist(), skip_special_tokens=False) == TRICKY
    assert int(encoder.lengths[ids].sum()) == len(TRICKY.encode())
    file = tmp_path / "tokenizer.json"
    file.write_text(encoder.bpe.to_str())
    loaded = Tokenizer.from_file(str(file))
    assert loaded.get_vocab_size() == 350
    assert loaded.token_to_id("<|endoftext|>") == BPE_END
    assert loaded.encode(text(1)).ids == encoder.bpe.encode(text(1)).ids


def test_bpe_compresses_and_is_the_same_every_time():
    first, second = (train_bpe(iter([text()]), 400) for _ in range(2))
    assert first.bpe.to_str() == second.bpe.to_str()
    (ids,) = first.encode([Piece(text(2).encode(), False)])
    assert len(ids) < 0.7 * len(text(2))


def test_a_vocabulary_too_large_for_the_text_names_the_largest():
    with pytest.raises(DataError, match=r"vocabulary 5000 is too large for the text.*at most (\d+)") as error:
        train_bpe(iter(["some little text, some little text"]), 5000)
    largest = int(str(error.value).split("at most ")[1].split(";")[0])
    assert len(train_bpe(iter(["some little text, some little text"]), largest).lengths) == largest


def test_pieces_keep_their_order_over_batches():
    encoder = train_bpe(iter([text()]), 300)
    pieces = [Piece(f"alpha{i} ".encode(), i % 3 == 0) for i in range(3000)]
    ids = np.concatenate(list(encoder.encode(pieces)))
    assert (ids == BPE_END).sum() == 1000
    assert encoder.bpe.decode(ids.tolist(), skip_special_tokens=True) == "".join(
        p.content.decode() for p in pieces
    )
