"""Tokenizers: bytes, or byte-level BPE trained on the training split. Both are lossless for any text."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.kind import BYTES_END, BYTES_VOCABULARY
from trainables.data.packing.train_validation_split import Piece
from trainables.errors import DataError

Ids = NDArray[Any]

END_OF_TEXT = "<|endoftext|>"
#: Pieces encoded in one call of the BPE library: about a megabyte.
BATCH = 256


@dataclass(frozen=True)
class Encoder:
    """Turns text into token ids.

    Attributes:
        end_of_text: id that ends a document.
        lengths: int64 [vocabulary], bytes of text per id; 0 for end of text.
        bpe: the `tokenizers.Tokenizer`, or None for bytes.
    """

    end_of_text: int
    lengths: NDArray[np.int64]
    bpe: Any = None

    def encode(self, pieces: Iterable[Piece]) -> Iterator[Ids]:
        """Yield the ids of each piece, in order, with end of text where a document ends."""
        waiting = iter(pieces)
        # Bytes need no batch; 256 pieces of validation text are read from 20 MB of a source.
        while batch := list(itertools.islice(waiting, BATCH if self.bpe else 1)):
            if self.bpe is None:
                coded: list[Ids] = [np.frombuffer(piece.content, np.uint8) for piece in batch]
            else:
                texts = [piece.content.decode() for piece in batch]
                coded = [np.array(found.ids, np.uint32) for found in self.bpe.encode_batch(texts)]
            for piece, ids in zip(batch, coded, strict=True):
                yield np.append(ids, self.end_of_text) if piece.last else ids


def bytes_encoder() -> Encoder:
    """Return the encoder in which each byte of the UTF-8 text is a token; id 256 is end of text."""
    lengths = np.ones(BYTES_VOCABULARY, np.int64)
    lengths[BYTES_END] = 0
    return Encoder(BYTES_END, lengths)


def train_bpe(texts: Iterable[str], vocabulary: int) -> Encoder:
    """Train byte-level BPE of exactly `vocabulary` ids: end of text (id 0), 256 bytes, then merges.

    A pair is merged only if it occurs at least twice.

    Raises:
        DataError: the text does not give as many merges.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size != vocabulary:
        raise DataError(
            f"the vocabulary {vocabulary} is too large for the text: the training split gives a vocabulary of at most "
            f"{size}; set data.vocabulary to {size} or less, or give more text"
        )
    return bpe_encoder(tokenizer)


def bpe_encoder(tokenizer: Any) -> Encoder:
    """Return the encoder of a byte-level `tokenizers.Tokenizer` that has the end-of-text token."""
    # In the byte-level alphabet one character encodes one byte.
    ids = range(tokenizer.get_vocab_size())
    lengths = np.array([len(tokenizer.id_to_token(i)) for i in ids], np.int64)
    end = tokenizer.token_to_id(END_OF_TEXT)
    lengths[end] = 0
    # Text that merely spells the end-of-text token must stay text.
    tokenizer.encode_special_tokens = True
    return Encoder(end, lengths, tokenizer)
