"""What text or token source a cell is trained on. Pure descriptions: nothing here reads or imports data."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainables.data.tasks.spec import ConnectivityData, ExpressionsData, HopsData, RepeatsData

#: Symbols of the tokenizer `bytes`: 256 bytes, then end of text.
BYTES_VOCABULARY = 257


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Text(_Data):
    """What all sources of text share."""

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


class HierarchyData(_Data):
    """The random hierarchy model: a fixed random grammar whose exact entropy is known.

    Cagnetta et al. 2024 (arXiv 2307.02129). A root symbol out of `vocabulary` is rewritten `levels` times: each
    symbol by one of its `synonyms` strings of `branching` symbols of the next level, all with equal probability.
    A sequence is a start token and as many strings of branching^levels symbols as fill `context` targets.
    """

    kind: Literal["hierarchy"] = "hierarchy"
    vocabulary: int = Field(default=8, ge=2, description="symbols of a level, v")
    branching: int = Field(default=2, ge=2, description="symbols a rule writes, s")
    levels: int = Field(default=5, ge=1, description="rewritings from root to leaves")
    synonyms: int = Field(
        default=2, ge=1, description="rules of a symbol, m; m*v <= v^s keeps parsing unambiguous"
    )
    grammar_seed: int = Field(default=0, ge=0)
    sequences: int = Field(default=40_000, ge=1, description="training sequences generated")
    validation_sequences: int = Field(default=512, ge=1, description="sequences of the fixed validation set")


class FilesData(_Text):
    """Local text, JSONL or Parquet; `path` is a file, a folder, a glob or a list of these."""

    kind: Literal["files"] = "files"
    path: str | tuple[str, ...]
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    field: str = Field(default="text", description="the field that holds the text (JSONL, Parquet)")


class HubData(_Text):
    """A data set of the Hugging Face hub, read through `datasets`."""

    kind: Literal["hub"] = "hub"
    name: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    revision: str | None = None
    streaming: bool = True


class PythonSourceData(_Text):
    """Python sources and docs of the running interpreter and its installed packages: real text on every machine."""

    kind: Literal["python-source"] = "python-source"
    max_bytes: int = Field(default=20_000_000, ge=1, description="stop taking files after this many bytes")


class MixturePart(_Data):
    """One source of a mixture and its share of the tokens (weights need not sum to one)."""

    weight: float = Field(gt=0)
    data: Annotated[HierarchyData | FilesData | HubData | PythonSourceData, Field(discriminator="kind")]


class MixtureData(_Text):
    """Several sources mixed by weight; the tokenizer and limits of the mixture hold for all of them."""

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _limits_are_the_mixtures(self) -> Self:
        for index, part in enumerate(self.parts):
            for name, field in _Text.model_fields.items():
                own = getattr(part.data, name, None) if isinstance(part.data, _Text) else None
                if own not in (None, field.default, getattr(self, name)):
                    raise ValueError(
                        f"part {index} sets `{name}` to {own}, but the mixture's own value, {getattr(self, name)}, "
                        f"holds for all parts; set `{name}` on the mixture"
                    )
        return self


DataSpec = Annotated[
    HierarchyData
    | FilesData
    | HubData
    | PythonSourceData
    | MixtureData
    | RepeatsData
    | HopsData
    | ConnectivityData
    | ExpressionsData,
    Field(discriminator="kind"),
]
