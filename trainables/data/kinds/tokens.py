"""Files of token ids that another program has made."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from trainables.data.kind import MOST, MOST_SYMBOLS, TOKENIZERS, DataKind, Packer, register
from trainables.data.sources.files import file_sha256, files_sha256
from trainables.data.sources.tokenizer_file import find_tokenizer, largest_id, load_tokenizer
from trainables.errors import DataError

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Symbols
    from trainables.data.sources.token_files import IdFile

#: Share of the ids that is held out by default.
FRACTION = 0.05
#: Least expected number of documents in the smaller split if whole documents are held out, as of text.
DOCUMENTS_PER_SPLIT = 50
#: Ids from the beginning of a document that its hash covers, and of a file in which its end of text is looked for.
LOOKED_AT = 1 << 20


@register
class TokensData(DataKind):
    """Token ids made by another program: nanoGPT, llm.c, OLMo, Megatron, or a data set with `input_ids`.

    Files are one stream, in the order of their names. Where `end_of_text` is given and there are about 50 /
    `validation_fraction` documents, whole documents are held out by a hash; else the end of the stream is.
    """

    kind: Literal["tokens"] = "tokens"
    path: str | tuple[str, ...] = Field(
        description="a file, a folder, a pattern, or a list of these; a relative path starts from the file of the spec"
    )
    format: Literal["auto", "raw", "llm.c", "megatron", "datasets"] = Field(
        default="auto", description="of the files; auto is by their first bytes, else raw"
    )
    dtype: Literal["uint16", "uint32"] | None = Field(
        default=None, description="of raw ids; by default uint16 if the vocabulary fits, else uint32"
    )
    vocabulary: int = Field(ge=2, le=MOST_SYMBOLS, description="number of ids; each id must be less")
    end_of_text: int | None = Field(default=None, ge=0, description="the id that ends a document")
    validation_path: str | tuple[str, ...] | None = Field(
        default=None, description="the validation set, if it has files of its own"
    )
    validation_fraction: float | None = Field(
        default=None, gt=0, lt=1, description="share of the ids held out; 0.05 without `validation_path`"
    )
    validation_tokens: int = Field(
        default=65_536, ge=1, le=MOST, description="most tokens of the validation set"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=MOST, description="most training tokens that are packed"
    )
    bytes_per_token: float | None = Field(
        default=None, gt=0, le=1e6, description="mean bytes of text per validation token, for bits per byte"
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="a folder with the `tokenizer.json` of the ids, or that file, for exported models",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.validation_path is not None and self.validation_fraction is not None:
            raise ValueError("`validation_path` and `validation_fraction` exclude one another; take one out")
        if self.end_of_text is not None and self.end_of_text >= self.vocabulary:
            raise ValueError(
                f"`end_of_text` is {self.end_of_text}, but the ids end at {self.vocabulary - 1}; correct it, or raise "
                "`vocabulary`"
            )
        if self.tokenizer in TOKENIZERS:
            raise ValueError(
                f"`tokenizer` is {self.tokenizer}, but the files hold ids already; name the folder of their tokenizer, "
                "or take `tokenizer` out"
            )
        return self

    @property
    def vocabulary_size(self) -> int:
        """The key `vocabulary`."""
        return self.vocabulary

    @property
    def boundaries(self) -> tuple[int | None, int | None]:
        """End of text, which stands between documents and so precedes each of them."""
        return self.end_of_text, self.end_of_text

    @property
    def _fraction(self) -> float:
        return 0.0 if self.validation_path is not None else self.validation_fraction or FRACTION

    def training_windows(self, context: int, base: Path) -> int | None:
        """From the limit and the size of the files, whichever is less."""
        sizes = [self.max_tokens]
        if (count := self._count(self._files(base))) is not None:
            sizes.append(round(count * (1 - self._fraction)))
        most = min((size for size in sizes if size is not None), default=None)
        return None if most is None else max(1, (most - 1) // context)

    def held_out_tokens(self, context: int) -> int:
        """The limit."""
        return self.validation_tokens

    def most_packed(self, context: int, base: Path) -> int | None:
        """The limits, or all ids; and one end of text for each id at most."""
        count = self.max_tokens or self._count(self._files(base))
        if count is None:
            return None
        return (1 if self.end_of_text is None or self.max_tokens else 2) * count + self.validation_tokens

    def identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Format and SHA-256 of each file, and the limits."""
        options = self.model_dump(
            include={
                "end_of_text",
                "validation_fraction",
                "validation_tokens",
                "max_tokens",
                "bytes_per_token",
            }
        )
        files = validation = tokenizer = None
        if base is not None:
            files = self._hashed(base, validation=False)
            validation = self._hashed(base, validation=True)
            if any(path in files for path in validation):
                raise DataError(
                    "data.validation_path names ids that data.path names too, so that the models would be trained on "
                    "the validation set; take these files out of data.path, or take data.validation_path out"
                )
        if self.tokenizer is not None:
            tokenizer = "file" if base is None else file_sha256(self._tokenizer(base))
        source = {"kind": self.kind, "files": files, "validation": validation, "tokenizer": tokenizer}
        return {"source": source, "vocabulary": self.vocabulary, **options}

    def _hashed(self, base: Path, *, validation: bool) -> list[list[Any]]:
        return [
            [file.format, file.dtype, *files_sha256(file.files, "data.path")]
            for file in self._files(base, validation=validation)
        ]

    def _listed(self, base: Path, *, validation: bool = False) -> "tuple[list[IdFile], list[str]]":
        from trainables.data.sources.token_files import list_id_files

        paths = self.validation_path if validation else self.path
        if paths is None:
            return [], []
        default = "uint16" if self.vocabulary <= 1 << 16 else "uint32"
        try:
            return list_id_files(
                (paths,) if isinstance(paths, str) else paths, self.format, self.dtype, default, base
            )
        except DataError as error:
            if not validation:
                raise
            raise DataError(str(error).replace("data.path", "data.validation_path")) from error

    def _files(self, base: Path, *, validation: bool = False) -> "list[IdFile]":
        return self._listed(base, validation=validation)[0]

    def _count(self, files: "list[IdFile]") -> int | None:
        from trainables.data.sources.token_files import id_count

        counts = [id_count(file) for file in files]
        return None if None in counts else sum(filter(None, counts))

    def _tokenizer(self, base: Path) -> Path:
        file = find_tokenizer(self.tokenizer or "", base)
        most = largest_id(load_tokenizer(file))
        if most >= self.vocabulary:
            raise DataError(
                f"data.vocabulary is {self.vocabulary}, but {file} has ids up to {most}; raise data.vocabulary to "
                f"{most + 1}, or name the tokenizer of these ids"
            )
        return file

    def notes(self, base: Path) -> list[str]:
        """The files of folders that are left out."""
        from core.errors import some

        notes = []
        for key, validation in (("path", False), ("validation_path", True)):
            if others := self._listed(base, validation=validation)[1]:
                notes.append(f"data.{key}: not read: {some(others)} ({len(others)} in all)")
        return notes

    def describe(self) -> str:
        """File names only, because folders may name their owner."""
        paths = (self.path,) if isinstance(self.path, str) else self.path
        return "token ids of " + ", ".join(Path(path).name for path in paths)

    def packed(self, context: int, packer: Packer) -> dict[str, Any]:
        """As a stream of tokens: ids are checked and copied."""
        base, notes = Path(), self.notes(Path())
        files, held_out = (self._files(base, validation=validation) for validation in (False, True))
        if held_out:
            train, validation = self._stream(files, notes), self._stream(held_out, notes)
        elif self._has_documents(files):
            train, validation = (
                self._split(self._stream(files, notes if not held else []), held_out=held)
                for held in (False, True)
            )
        else:
            count = self._count(files)
            if count is None or self._inserts(files):
                count = sum(len(ids) for ids in self._stream(files, []))
            start = count - round(count * self._fraction)
            notes.append(
                f"data: the validation set is from the last {self._fraction:.3g} of the ids, because "
                + (
                    "data.end_of_text is not set"
                    if self.end_of_text is None
                    else f"there are fewer than {self._enough} documents"
                )
            )
            train, validation = (
                _between(self._stream(files, notes if not first else [], unchecked=first), first, last)
                for first, last in ((0, start), (start, count))
            )
        limits = {"validation": self.validation_tokens}
        if self.max_tokens is not None:
            limits["train"] = self.max_tokens
        written = packer.ids({"train": train, "validation": validation}, limits)
        if self.tokenizer is not None:
            written["sha256"]["tokenizer"] = packer.tokenizer(self._tokenizer(base))
        return {**written, "row": None, "bytes_per_token": self.bytes_per_token, "notes": notes}

    @property
    def _enough(self) -> int:
        return math.ceil(DOCUMENTS_PER_SPLIT / min(self._fraction, 1 - self._fraction))

    def _has_documents(self, files: "list[IdFile]") -> bool:
        """Whether there are enough documents to hold whole ones out; the files are read up to the last of these."""
        if self.end_of_text is None:
            return False
        count = 0
        for ids in self._stream(files, []):
            count += int((ids == self.end_of_text).sum())
            if count >= self._enough:
                return True
        return False

    def _inserts(self, files: "list[IdFile]") -> list["IdFile"]:
        """Return the files that have documents and no end of text, which is inserted."""
        from trainables.data.sources.token_files import read_ids

        problems = []
        for file in files if self.end_of_text is not None else ():
            if file.format not in ("megatron", "datasets"):
                continue
            read = 0
            for piece in read_ids(file):
                read += len(piece.ids)
                if (piece.ids == self.end_of_text).any():
                    break
                if read >= LOOKED_AT:
                    problems.append(file)
                    break
            else:
                problems.append(file)
        return problems

    def _stream(self, files: "list[IdFile]", notes: list[str], unchecked: int = 0) -> "Iterator[Symbols]":
        """Yield the ids of files, with end of text; a note on what is inserted is appended to `notes`.

        Ids are checked, except the first `unchecked` ones, which are only counted.
        """
        import numpy as np

        from trainables.data.sources.token_files import read_ids

        inserting = self._inserts(files)
        if inserting:
            notes.append(
                f"data.end_of_text: {self.end_of_text} was put after each document of "
                f"{', '.join(file.path.name for file in inserting[:5])} ({len(inserting)} in all), which have none"
            )
        place = 0
        for file in files:
            is_open = file in inserting
            for piece in read_ids(file):
                ids = np.append(piece.ids, self.end_of_text or 0) if is_open and piece.last else piece.ids
                place += len(ids)
                if place > unchecked:
                    self._check(piece.ids, file.path, piece.start)
                yield ids

    def _check(self, ids: "Symbols", path: Path, start: int) -> None:
        """Raise a DataError for the first id that is not in the vocabulary."""
        if not len(ids) or (ids.max() < self.vocabulary and ids.min() >= 0):
            return
        first = int(((ids >= self.vocabulary) | (ids < 0)).argmax())
        wrong = int(ids[first])
        fix = (
            f"set data.vocabulary to {wrong + 1} or more"
            if 0 <= wrong < MOST_SYMBOLS
            else "make the file again"
        )
        raise DataError(
            f"the file {path} has the id {wrong} at position {start + first}, and data.vocabulary is "
            f"{self.vocabulary}: {fix}, or set data.dtype (uint16 or uint32) or data.format if it is read wrongly"
        )

    def _split(self, stream: "Iterator[Symbols]", *, held_out: bool) -> "Iterator[Symbols]":
        """Yield the documents of one split, each with its end of text; equal documents are in the same split."""
        import numpy as np

        start: list[Symbols] = []
        waiting, side = 0, None
        for ids in stream:
            ends = np.flatnonzero(ids == self.end_of_text) + 1
            for part in np.split(ids, ends):
                if not len(part):
                    continue
                is_end = part[-1] == self.end_of_text
                if side is None:
                    start.append(part)
                    waiting += len(part)
                    if waiting >= LOOKED_AT or is_end:
                        whole = np.concatenate(start)
                        side = self._held_out(whole)
                        if side == held_out:
                            yield whole
                        start, waiting = [], 0
                elif side == held_out:
                    yield part
                if is_end:
                    side = None
        if start and self._held_out(whole := np.concatenate(start)) == held_out:
            yield whole

    def _held_out(self, document: "Symbols") -> bool:
        content = document[:LOOKED_AT].astype("<u4").tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        return int.from_bytes(digest) < self._fraction * 2**64


def _between(stream: "Iterator[Symbols]", first: int, last: int) -> "Iterator[Symbols]":
    """Yield the ids from one position of a stream to another."""
    place = 0
    for ids in stream:
        part = ids[max(0, first - place) : max(0, last - place)]
        place += len(ids)
        if len(part):
            yield part
        if place >= last:
            return
