"""The base classes of all kinds of data, and the registry that finds a kind by its name.

A kind is one pydantic class. Its fields are the keys of the section `data` of a spec; its methods answer the questions
of planning, packing, training and export. To add a kind, write a class in a module of `trainables.data.kinds` and
decorate it with `register`. Reading a spec must stay fast, so import numpy, torch and `datasets` inside methods only.
"""

import functools
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

#: All kinds of data by name.
KINDS: dict[str, type["DataKind"]] = {}

Kind = TypeVar("Kind", bound="DataKind")


class DataKind(BaseModel):
    """The data that a cell is trained on. A pure description: making one reads no data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Whether a mixture may have this kind as a part; if so, `source` and `source_identity` are defined.
    mixable: ClassVar[bool] = False
    #: Whether the share of correct targets is measured (see `score`).
    measures_accuracy: ClassVar[bool] = False

    kind: str

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Number of token ids, including end of text or the start tokens. Needs no data."""

    @property
    def stored_values(self) -> int:
        """Number of different values in a packed file."""
        return self.vocabulary_size

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

    def check(self, context: int) -> None:
        """Refuse a context that does not fit.

        Raises:
            InputError: names the reason and the fix.
        """
        misfit = self.misfit(context)
        if misfit:
            raise InputError(misfit)

    @abstractmethod
    def training_tokens(self, context: int) -> int | None:
        """Return the most tokens of the training split; None if there is no limit."""

    @abstractmethod
    def held_out_tokens(self, context: int) -> int:
        """Return the most tokens of the validation split."""

    @abstractmethod
    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Return everything that affects the packed data, for its key.

        Args:
            context: tokens per sequence.
            base: folder that relative paths start from; None leaves out the content of files.
        """

    def source_identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Return the part of `identity` that describes the text, without tokenizer and limits."""
        raise NotImplementedError(f"data of kind {self.kind} is not text")

    def source(self, context: int, base: Path) -> Source:
        """Return the text of this data, ready to be read."""
        raise NotImplementedError(f"data of kind {self.kind} is not text")

    def score(self, context: int) -> "Score | None":
        """Return the counter of correct targets; None if only the loss is measured."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the data for a model card."""

    def describe_ids(self) -> str:
        """Return a description of the token ids, for a model without tokenizer."""
        raise NotImplementedError(f"data of kind {self.kind} has a tokenizer")


def register(kind: type[Kind]) -> type[Kind]:
    """Class decorator: make a kind of data available in specs under the default of its field `kind`."""
    name = kind.model_fields["kind"].default
    if name in KINDS:
        raise ValueError(f"the kind of data {name!r} is registered already, by {KINDS[name].__name__}")
    KINDS[name] = kind
    return kind


def validate_kind(value: object) -> DataKind:
    """Validate by the class that is registered for the key `kind`."""
    return _adapter(tuple(KINDS.values())).validate_python(value)


def validate_part(value: object) -> DataKind:
    """Validate a part of a mixture."""
    return _adapter(tuple(kind for kind in KINDS.values() if kind.mixable)).validate_python(value)


@functools.lru_cache(maxsize=8)
def _adapter(kinds: tuple[type[DataKind], ...]) -> TypeAdapter[DataKind]:
    union: Any = Annotated[Union[kinds], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)


class TextData(DataKind):
    """Base of the kinds that are text: it is split, tokenized and packed as one stream of tokens."""

    mixable: ClassVar[bool] = True

    tokenizer: Literal["bytes", "bpe"] = Field(
        default="bytes",
        description="bytes (256 + end of text), or byte-level BPE trained on the training split",
    )
    vocabulary: int | None = Field(default=None, ge=257, description="size of the BPE vocabulary")
    validation_fraction: float = Field(default=0.05, gt=0, lt=1, description="share of the text held out")
    validation_tokens: int = Field(
        default=65_536, ge=1, description="most tokens of the fixed validation set"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="stop packing after this many training tokens"
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

    def training_tokens(self, context: int) -> int | None:
        """The limit, if any."""
        return self.max_tokens

    def held_out_tokens(self, context: int) -> int:
        """The limit."""
        return self.validation_tokens

    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """The text, the tokenizer and the limits."""
        return {
            "source": self.source_identity(context, base),
            "tokenizer": self.tokenizer,
            "vocabulary": self.vocabulary_size,
            "validation_fraction": self.validation_fraction,
            "validation_tokens": self.validation_tokens,
            "max_tokens": self.max_tokens,
        }

    def sources(self, context: int, base: Path) -> list[tuple[float, Source]]:
        """Return the sources of the text with their shares of the tokens."""
        return [(1.0, self.source(context, base))]


class RowData(DataKind):
    """Base of the kinds that are generated: rows of one sequence each, packed without a tokenizer.

    Rows are drawn in pieces of fixed size. A hash of a row decides its split, so equal rows are in the same split.
    """

    #: The error if a split does not fill: what is too few, and the fix.
    too_few: ClassVar[str]

    sequences: int = Field(default=40_000, ge=1, description="training sequences generated")
    validation_sequences: int = Field(default=512, ge=1, description="sequences of the fixed validation set")

    def training_tokens(self, context: int) -> int:
        """One sequence per row."""
        return self.sequences * context

    def held_out_tokens(self, context: int) -> int:
        """One sequence per row."""
        return self.validation_sequences * context

    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """All fields and the context.

        Raises:
            InputError: the context does not fit.
        """
        self.check(context)
        return {"source": {**self.model_dump(mode="json"), "context": context}}

    @abstractmethod
    def row_length(self, context: int) -> int:
        """Return the packed values per row."""

    def row_manifest(self, context: int) -> dict[str, Any]:
        """Return the fields of a store's manifest about its rows, apart from their length."""
        return {}

    @abstractmethod
    def draw_piece(self, context: int, piece: int) -> "Symbols":
        """Return piece number `piece` of the endless sequence of rows, int64 [n, columns].

        The first `context` columns are what the hash is computed from.
        """

    def rows(self, context: int) -> tuple[Iterator["Symbols"], Iterator["Symbols"]]:
        """Return training and validation rows, in pieces of int64 [n, row_length(context)].

        Raises:
            InputError: the context does not fit; or, while rows are drawn, a split does not fill.
        """
        self.check(context)
        return self._split(context, validation=False), self._split(context, validation=True)

    def _split(self, context: int, *, validation: bool) -> Iterator["Symbols"]:
        from trainables.data.sources.random_rows import one_split

        sizes = (self.validation_sequences, self.sequences)
        wanted, others = sizes if validation else sizes[::-1]
        return one_split(
            lambda piece: self.draw_piece(context, piece),
            wanted,
            others,
            validation=validation,
            content=context,
            too_few=self.too_few,
        )
