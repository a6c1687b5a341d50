"""The base classes of all kinds of data, and the registry that finds a kind by its name.

A kind is one pydantic class. Its fields are the keys of the section `data` of a spec; its methods answer the questions
of planning, packing, training and export. To add a kind, write a class in a module of `trainables.data.kinds` and
decorate it with `register`. Reading a spec must stay fast, so import numpy, torch and `datasets` inside methods only.
"""

import functools
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from core.errors import InputError
from trainables.data.sources.source import TextSource
from trainables.data.sources.tokenizer_file import TokenizerFile, read_tokenizer
from trainables.errors import DataError

if TYPE_CHECKING:
    from trainables.data.score import Score
    from trainables.data.sources.random_rows import Symbols

#: Token ids of the tokenizer `bytes`: 256 bytes, then end of text.
BYTES_VOCABULARY = 257
#: The id of end of text with the tokenizer `bytes`.
BYTES_END = 256
#: The id of end of text with BPE: special tokens come first.
BPE_END = 0
#: The tokenizers that need no file.
TOKENIZERS = ("bytes", "bpe")

#: Bounds of counts, of symbols and of anything else: far above any data, so that a typing error is refused.
MOST_SYMBOLS, MOST = 10_000_000, 10**15

#: All kinds of data by name.
KINDS: dict[str, type["DataKind"]] = {}

Kind = TypeVar("Kind", bound="DataKind")


class Packer(Protocol):
    """What a kind of data is packed with."""

    def text(self, data: "TextData") -> dict[str, Any]:
        """Split, tokenize and write text; return the fields of the manifest about it."""

    def ids(
        self, splits: Mapping[str, Iterable["Symbols"]], limits: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Write pieces of ids as they are, each split up to its limit; return `tokens` and `sha256`."""

    def tokenizer(self, file: Path) -> str:
        """Keep the user's own tokenizer in the store, for the export; return the SHA-256 of the copy."""


class DataKind(BaseModel):
    """The data that a cell is trained on. A pure description: making one reads no data."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: Raise it when a code change alters what is packed from the same data, so that old stores are packed again.
    version: ClassVar[int] = 1
    #: Whether rows are inputs and as many targets, the share of which that is correct is measured (see `score`).
    has_targets: ClassVar[bool] = False
    #: Whether strings begin at the same positions in every row, which learned positions give and rotary ones do not.
    has_fixed_places: ClassVar[bool] = False

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
    def boundaries(self) -> tuple[int | None, int | None]:
        """The ids that a text begins after and ends with; None where there is no such id, or packing finds it."""
        return None, None

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

    @abstractmethod
    def most_packed(self, context: int, base: Path) -> int | None:
        """Return the most values of both packed files together; None if that is unknown beforehand."""

    @property
    def learns_vocabulary(self) -> bool:
        """Whether a vocabulary is learnt from the text before it is packed."""
        return False

    @abstractmethod
    def packed(self, context: int, packer: "Packer") -> dict[str, Any]:
        """Write both splits by the packer; return the fields of the manifest about them.

        These are `tokens` and `sha256` by split, `row`, `bytes_per_token` (see `TokenStore`) and, where there is one,
        the id `end_of_text`.
        """

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

    tokenizer: str = Field(
        default="bytes",
        min_length=1,
        description="`bytes` (256 + end of text), `bpe` (byte-level BPE trained on the training split), or the path of "
        "your own: a folder with `tokenizer.json`, or that file",
    )
    vocabulary: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SYMBOLS,
        description="size of the BPE vocabulary; of your own tokenizer it is its largest id + 1",
    )
    end_of_text: str | None = Field(
        default=None,
        min_length=1,
        description="the token of your own tokenizer that ends a document; by default the `eos_token` of its "
        "`tokenizer_config.json`",
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
        if self.tokenizer not in TOKENIZERS:
            if self.vocabulary is None:
                # In `__dict__`, so that it does not count as set: another tokenizer has another size. A machine that
                # lacks the file gets it with the cell.
                self.__dict__["vocabulary"] = read_tokenizer(
                    self.tokenizer, self.end_of_text, Path()
                ).vocabulary
            return self
        if self.end_of_text is not None:
            raise ValueError(
                f"`end_of_text` is {self.end_of_text!r}, but the tokenizer `{self.tokenizer}` has its own; take "
                "`end_of_text` out, or name the folder of a tokenizer"
            )
        if self.tokenizer == "bpe" and self.vocabulary is None:
            raise ValueError("the tokenizer `bpe` needs `vocabulary`, its size, for example 1024")
        if self.tokenizer == "bpe" and self.vocabulary is not None and self.vocabulary < BYTES_VOCABULARY:
            raise ValueError(
                f"`vocabulary` is {self.vocabulary}, but the tokenizer `bpe` has 256 bytes and end of text: it should "
                f"be greater than or equal to {BYTES_VOCABULARY}"
            )
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

    def tokenizer_file(self, base: Path) -> TokenizerFile | None:
        """Read the user's own tokenizer, None without one; a DataError if it has another size than `vocabulary`."""
        if self.tokenizer in TOKENIZERS:
            return None
        tokenizer = read_tokenizer(self.tokenizer, self.end_of_text, base)
        if self.vocabulary not in (None, tokenizer.vocabulary):
            raise DataError(
                f"data.vocabulary is {self.vocabulary}, but {tokenizer.path} has ids up to "
                f"{tokenizer.vocabulary - 1}; take data.vocabulary out, or name the tokenizer that has so many"
            )
        return tokenizer

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
        options = self.model_dump(
            include={"tokenizer", "validation_fraction", "validation_tokens", "max_tokens"}
        )
        if self.tokenizer not in TOKENIZERS:
            file = base and self.tokenizer_file(base)
            options["tokenizer"] = (
                {"sha256": file.sha256, "end_of_text": file.end_of_text} if file else "file"
            )
        return {"source": self.source_identity(base), "vocabulary": self.vocabulary_size, **options}

    @abstractmethod
    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """Return the part of `identity` that describes the text, without tokenizer and limits."""

    def source(self, base: Path) -> TextSource:
        """Return the text of this data, ready to be read."""
        raise NotImplementedError(f"data of kind {self.kind} has several sources")

    def sources(self, base: Path) -> list[tuple[float, TextSource]]:
        """Return the sources of the text with their shares of the tokens."""
        return [(1.0, self.source(base))]

    def most_packed(self, context: int, base: Path) -> int | None:
        """At most one id per byte of the text."""
        sizes = [source.bytes for _, source in self.sources(base)]
        return None if None in sizes else sum(filter(None, sizes))

    @property
    def learns_vocabulary(self) -> bool:
        """Of BPE only."""
        return self.tokenizer == "bpe"

    def packed(self, context: int, packer: Packer) -> dict[str, Any]:
        """As a stream of tokens."""
        return packer.text(self)


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

    def most_packed(self, context: int, base: Path) -> int:
        """All values of all rows."""
        return (self.sequences + self.validation_sequences) * self.row_length(context)

    def packed(self, context: int, packer: Packer) -> dict[str, Any]:
        """Row by row."""
        splits = {
            name: (piece.reshape(-1) for piece in self.rows(context, validation=name == "validation"))
            for name in ("train", "validation")
        }
        return {
            **packer.ids(splits),
            "row": self.row_length(context),
            "bytes_per_token": None,
            "targets": self.has_targets,
        }

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
        accepted, tried, piece = 0, 0, 0
        while accepted < wanted:
            if tried > PATIENCE * (total + ROWS_AT_A_TIME):
                raise InputError(
                    f"only {accepted} of the {wanted} {split} sequences were found in {tried} draws: {self.too_few}"
                )
            rows = self.draw_piece(context, piece)
            held = held_out(rows[:, :context], self.validation_sequences / total)
            chosen = rows[held == validation][: wanted - accepted]
            yield chosen
            accepted, tried, piece = accepted + len(chosen), tried + ROWS_AT_A_TIME, piece + 1
