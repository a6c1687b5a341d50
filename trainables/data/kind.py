"""The base classes of all kinds of data, and the registry that finds a kind by its name.

A kind is one pydantic class. Its fields are the keys of the section `data` of a spec; its methods answer the questions
of planning, packing, training and export. To add a kind, write a class in a module of `trainables.data.kinds` and
decorate it with `register`. Reading a spec must stay fast, so import numpy, torch and `datasets` inside methods only.
"""

import functools
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from trainables.data.sources.source import Source
from trainables.errors import InputError

if TYPE_CHECKING:
    from trainables.data.score import Score
    from trainables.data.sources.random_rows import Symbols

#: Token ids of the tokenizer `bytes`: 256 bytes, then end of text.
BYTES_VOCABULARY = 257
#: The id of end of text with the tokenizer `bytes`.
BYTES_END = 256
#: The id of end of text with BPE: special tokens come first.
BPE_END = 0

#: Bounds of counts, of symbols and of anything else: far above any data, so that a typing error is refused.
MOST_SYMBOLS, MOST = 10_000_000, 10**15

#: All kinds of data by name.
KINDS: dict[str, type["DataKind"]] = {}

Kind = TypeVar("Kind", bound="DataKind")


class DataKind(BaseModel):
    """The data that a cell is trained on. A pure description: making one reads no data."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: Raise it when a code change alters what is packed from the same data, so that old stores are packed again.
    version: ClassVar[int] = 1
    #: Whether rows are inputs and as many targets, the share of which that is correct is measured (see `score`).
    has_targets: ClassVar[bool] = False

    kind: str

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Number of token ids, including end of text or the start tokens. Needs no data."""

    @property
    def stored_values(self) -> int:
        """Number of different values in a packed file: the ids and, with targets, a mark for those not scored."""
        return self.vocabulary_size + self.has_targets

    @property
    def entropy(self) -> float | None:
        """Exact entropy of the data in nats per target, a lower bound of every loss; None if it is unknown."""
        return None

    @property
    @abstractmethod
    def boundaries(self) -> tuple[int | None, int | None]:
        """The ids that a text begins after and ends with; None where there is no such id."""

    def misfit(self, context: int) -> str | None:
        """Return why sequences of `context` tokens cannot hold this data, and the fix; None if they can."""
        return None

    @abstractmethod
    def training_windows(self, context: int, base: Path) -> int | None:
        """Return the different training sequences there will be; None if that is unknown before packing.

        Of rows the number is exact. Of text it follows from the limits and from the size of the text, so that fewer
        may be found. Relative paths of the data start from `base`.
        """

    @abstractmethod
    def held_out_tokens(self, context: int) -> int:
        """Return the most tokens of the validation split."""

    @abstractmethod
    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Return everything that affects the packed data, for its key; without the content of files if `base` is None.

        Raises:
            InputError: the context does not fit.
        """

    def notes(self, base: Path) -> list[str]:
        """Return what of the data will not be trained on, in sentences. Relative paths start from `base`."""
        return []

    def score(self, context: int) -> "Score | None":
        """Return the counter of correct targets; None if only the loss is measured."""
        return None

    def describe(self) -> str:
        """Return a description of the data for a model card."""
        return self.kind

    def describe_ids(self) -> str:
        """Return a description of the token ids, for a model without tokenizer."""
        start, _ = self.boundaries
        words = "" if start is None else f" (a sequence begins with the id {start})"
        return f"the ids 0 to {self.vocabulary_size - 1}{words}"


def register(kind: type[Kind]) -> type[Kind]:
    """Class decorator: make a kind of data available in specs under the default of its field `kind`."""
    name = kind.model_fields["kind"].default
    if name in KINDS:
        raise ValueError(f"the kind of data {name!r} is registered already, by {KINDS[name].__name__}")
    KINDS[name] = kind
    return kind


def validate_kind(value: object, *, mixable: bool = False) -> DataKind:
    """Validate by the class that is registered for the key `kind`; `mixable`: of those a mixture may have as parts."""
    # The cells of a plan share data that is validated already; pydantic's union takes 5 microseconds to find that.
    if isinstance(value, DataKind) and not mixable and type(value) is KINDS.get(value.kind):
        return value
    kinds = (kind for kind in KINDS.values() if not mixable or (issubclass(kind, TextData) and kind.mixable))
    return _adapter(tuple(kinds)).validate_python(value)


@functools.lru_cache(maxsize=8)
def _adapter(kinds: tuple[type[DataKind], ...]) -> TypeAdapter[DataKind]:
    union: Any = Annotated[Union[kinds], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)


def data_key(data: DataKind, context: int, base: Path | None = Path()) -> str:
    """Return sixteen hex digits: the same content packed the same way has the same key, independent of its location.

    Files are hashed (streamed, and once per process while they do not change). A hub data set is identified by its
    name, configuration, split, revision and field, without network: name a revision to fix its content. Only rows (the
    hierarchy and tasks) depend on `context`, the tokens per sequence. Relative paths start from `base`; None leaves out
    the content of files, and specs whose keys then differ never have the same key.

    Raises:
        DataError: files are missing or may not be read.
        InputError: the grammar is impossible, or it or the task does not fit the context.
    """
    return digest({"version": data.version, **data.identity(context, base)})


def digest(value: object) -> str:
    """Sixteen hex digits of the SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TextData(DataKind):
    """Base of the kinds that are text: it is split, tokenized and packed as one stream of tokens."""

    #: 2: whole documents are held out where there are enough.
    version: ClassVar[int] = 2
    #: Whether a mixture may have this kind as a part.
    mixable: ClassVar[bool] = True

    tokenizer: Literal["bytes", "bpe"] = Field(
        default="bytes",
        description="bytes (256 + end of text), or byte-level BPE trained on the training split",
    )
    vocabulary: int | None = Field(
        default=None, ge=257, le=MOST_SYMBOLS, description="size of the BPE vocabulary"
    )
    validation_fraction: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="share of the text held out, in whole documents if it has about 50 / share of them",
    )
    validation_tokens: int = Field(
        default=65_536, ge=1, le=MOST, description="most tokens of the validation set"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=MOST, description="most training tokens that are packed"
    )

    @model_validator(mode="after")
    def _vocabulary_fits_the_tokenizer(self) -> Self:
        if self.tokenizer == "bpe" and self.vocabulary is None:
            raise ValueError("the tokenizer `bpe` needs `vocabulary`, its size, for example 1024")
        if self.tokenizer == "bytes" and self.vocabulary not in (None, BYTES_VOCABULARY):
            raise ValueError(
                f"`vocabulary` is {self.vocabulary}, but the tokenizer `bytes` always has {BYTES_VOCABULARY} "
                "symbols (256 and end of text); take `vocabulary` out, or set `tokenizer: bpe`"
            )
        return self

    @property
    def vocabulary_size(self) -> int:
        """The ids of the tokenizer."""
        return BYTES_VOCABULARY if self.tokenizer == "bytes" else self.vocabulary or 0

    @property
    def boundaries(self) -> tuple[int | None, int | None]:
        """End of text, which stands between documents and so precedes each of them."""
        end = BYTES_END if self.tokenizer == "bytes" else BPE_END
        return end, end

    def training_windows(self, context: int, base: Path) -> int | None:
        """From the limit and the size of the text, whichever is less: a token holds a byte or more."""
        size = self.text_bytes(base)
        share = [] if size is None else [round(size * (1 - self.validation_fraction))]
        most = min([*share, *([] if self.max_tokens is None else [self.max_tokens])], default=None)
        return None if most is None else max(1, (most - 1) // context)

    def text_bytes(self, base: Path) -> int | None:
        """Return the most bytes of text before it is split; None if they are unknown unless it is read."""
        return None

    def held_out_tokens(self, context: int) -> int:
        """The limit."""
        return self.validation_tokens

    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """The text, the tokenizer and the limits."""
        own = self.model_dump(include={"tokenizer", "validation_fraction", "validation_tokens", "max_tokens"})
        return {"source": self.source_identity(base), "vocabulary": self.vocabulary_size, **own}

    @abstractmethod
    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """Return the part of `identity` that describes the text, without tokenizer and limits."""

    def source(self, base: Path) -> Source:
        """Return the text of this data, ready to be read."""
        raise NotImplementedError(f"data of kind {self.kind} has several sources")

    def sources(self, base: Path) -> list[tuple[float, Source]]:
        """Return the sources of the text with their shares of the tokens."""
        return [(1.0, self.source(base))]


class RowData(DataKind):
    """Base of the kinds that are generated: rows of one sequence each, packed without a tokenizer.

    Rows are drawn in pieces of fixed size. A hash of a row decides its split, so equal rows are in the same split.
    """

    #: The error if a split does not fill: what is too few, and the fix.
    too_few: ClassVar[str]

    sequences: int = Field(default=40_000, ge=1, le=MOST, description="training sequences generated")
    validation_sequences: int = Field(
        default=512, ge=1, le=MOST, description="sequences of the fixed validation set"
    )

    def training_windows(self, context: int, base: Path) -> int:
        """One per row."""
        return self.sequences

    def held_out_tokens(self, context: int) -> int:
        """One sequence per row."""
        return self.validation_sequences * context

    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """All fields and the context."""
        if misfit := self.misfit(context):
            raise InputError(misfit)
        return {"source": {**self.model_dump(mode="json"), "context": context}}

    def describe(self) -> str:
        """The kind and its keys."""
        keys = self.model_dump(exclude={"kind", "sequences", "validation_sequences"})
        words = (
            f"{key} {' and '.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in keys.items()
        )
        return f"{self.kind} ({', '.join(words)})"

    def row_length(self, context: int) -> int:
        """Return the packed values per row: inputs and targets, or one sequence whose targets are its next tokens."""
        return 2 * context if self.has_targets else context + 1

    @abstractmethod
    def draw_piece(self, context: int, piece: int) -> "Symbols":
        """Return piece number `piece` of the endless sequence of rows, int64 [n, columns].

        The first `context` columns are what the hash is computed from.
        """

    def rows(self, context: int, *, validation: bool) -> Iterator["Symbols"]:
        """Yield the rows of one split, in pieces of int64 [n, row_length(context)].

        Raises:
            InputError: the split does not fill, because there are too few different rows.
        """
        from trainables.data.sources.random_rows import PATIENCE, ROWS_AT_A_TIME, held_out

        total = self.sequences + self.validation_sequences
        split = "validation" if validation else "training"
        wanted = self.validation_sequences if validation else self.sequences
        found, tried, piece = 0, 0, 0
        while found < wanted:
            if tried > PATIENCE * (total + ROWS_AT_A_TIME):
                raise InputError(
                    f"only {found} of the {wanted} {split} sequences were found in {tried} draws: {self.too_few}"
                )
            rows = self.draw_piece(context, piece)
            held = held_out(rows[:, :context], self.validation_sequences / total)
            chosen = rows[held == validation][: wanted - found]
            yield chosen
            found, tried, piece = found + len(chosen), tried + ROWS_AT_A_TIME, piece + 1
