"""Tokenizers: bytes, byte-level BPE trained on the training split, or the user's own `tokenizer.json`."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainables.data.kind import BYTES_END
from trainables.data.packing.train_validation_split import Piece
from trainables.data.sources.tokenizer_file import TokenizerFile, load_tokenizer
from trainables.errors import DataError

Ids = NDArray[Any]

END_OF_TEXT = "<|endoftext|>"
#: Pieces, and bytes of them, that are encoded in one call of the library.
BATCH, BATCH_BYTES = 256, 1 << 20
#: Bytes of a document from which on it is cut for a tokenizer that treats the beginning of a text in its own way. The
#: offsets of as much text take about 100 MB.
LONGEST = 1 << 20
#: The beginning of a line that does not begin with white space, which tokenizers join to the line break before it.
_LINE = re.compile(rb"\n(?=\S)")
#: Two texts: a tokenizer gives their ids one after the other for the whole, unless the beginning of a text is special.
_HALVES = ("The first line, of 12 words:\n", "and the second. Then,\n")


class Encoded(NamedTuple):
    """The ids of a piece, with end of text if its document ends there."""

    ids: Ids
    piece: Piece
    encoding: Any = None

    def text_bytes(self, count: int) -> int:
        """Return the bytes of text of the first `count` ids.

        Up to three too many where the last of them ends inside a character.
        """
        if count >= len(self.ids) - self.piece.last:
            return len(self.piece.content)
        if self.encoding is None or not count:
            return count
        end = self.encoding.offsets[count - 1][1]
        return len(self.piece.content.decode()[:end].encode())


@dataclass(frozen=True)
class Encoder:
    """Turns text into token ids.

    Attributes:
        end_of_text: id that ends a document.
        tokenizer: the `tokenizers.Tokenizer`, or None for bytes.
        is_own: whether it is the user's own, which may lose text.
        whole: whether it gives other ids where a text is cut at a line break, so that it needs whole documents.
        counts: `cuts` of documents that were too long for that; `ends`, the ids of end of text that are text.
    """

    end_of_text: int
    tokenizer: Any = None
    is_own: bool = False
    whole: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def encode(self, pieces: Iterable[Piece]) -> Iterator[Encoded]:
        """Yield the ids of each piece, in order, with end of text where a document ends.

        For the user's own tokenizer pieces are joined and end at line breaks only, or with their documents.
        """
        waiting = self._lines(pieces) if self.is_own else iter(pieces)
        # Bytes need no batch; 256 pieces of validation text are read from 20 MB of a source.
        for batch in _batches(waiting, BATCH if self.tokenizer else 1):
            if self.tokenizer is None:
                coded: list[Any] = [None] * len(batch)
                encoded_ids: list[Ids] = [np.frombuffer(piece.content, np.uint8) for piece in batch]
            else:
                texts = [piece.content.decode() for piece in batch]
                coded = _encoded(self.tokenizer, texts)
                encoded_ids = [np.array(item.ids, np.uint32) for item in coded]
                if self.is_own:
                    self.counts["ends"] += sum(int((ids == self.end_of_text).sum()) for ids in encoded_ids)
            for piece, ids, encoding in zip(batch, encoded_ids, coded, strict=True):
                yield Encoded(np.append(ids, self.end_of_text) if piece.last else ids, piece, encoding)

    def loses(self, encoded: Encoded) -> bool:
        """Return whether the text of a piece does not come back from its ids."""
        if not self.tokenizer:
            return False
        text: str = self.tokenizer.decode(encoded.encoding.ids, skip_special_tokens=False)
        return text != encoded.piece.content.decode()

    def _lines(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Join pieces so that each ends where a line begins that has no indent, or where its document does."""
        rest = b""
        for piece in pieces:
            rest += piece.content
            if piece.last:
                yield Piece(rest, last=True)
                rest = b""
            elif not self.whole or len(rest) >= LONGEST:
                # The text of a piece may end at a line break.
                cut = max((match.end() for match in _LINE.finditer(rest)), default=0)
                if not cut and len(rest) >= LONGEST:
                    cut = len(rest)
                if cut:
                    self.counts["cuts"] += self.whole
                    yield Piece(rest[:cut], last=False)
                    rest = rest[cut:]
        if rest:
            yield Piece(rest, last=False)


def _encoded(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Return the encodings of texts; a DataError if the tokenizer has no ids for one of them."""
    try:
        encoded: list[Any] = tokenizer.encode_batch(texts, add_special_tokens=False)
    # The library raises plain `Exception`.
    except Exception as error:
        raise DataError(
            f"data.tokenizer cannot encode the text ({error}); take a tokenizer that has ids for every text: one of "
            "bytes, or one with an unknown token"
        ) from error
    return encoded


def _batches(pieces: Iterator[Piece], most: int) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) >= most or sum(len(waiting.content) for waiting in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def bytes_encoder() -> Encoder:
    """Return the encoder in which each byte of the UTF-8 text is a token; id 256 is end of text."""
    return Encoder(BYTES_END)


def file_encoder(file: TokenizerFile) -> Encoder:
    """Return the encoder of the user's own tokenizer; a DataError if it cannot be read."""
    tokenizer = load_tokenizer(file.path)
    first, second, whole = (encoding.ids for encoding in _encoded(tokenizer, [*_HALVES, "".join(_HALVES)]))
    return Encoder(file.end_of_text, tokenizer, is_own=True, whole=first + second != whole)


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
    # Text that merely spells the end-of-text token must stay text.
    tokenizer.encode_special_tokens = True
    return Encoder(tokenizer.token_to_id(END_OF_TEXT), tokenizer)
