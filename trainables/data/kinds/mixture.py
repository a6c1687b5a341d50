"""A mixture of several sources of text."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, SerializeAsAny, model_validator

from trainables.data.kind import DataKind, TextData, register, validate_kind
from trainables.data.sources.source import TextSource


class MixturePart(BaseModel):
    """One source of a mixture and its share of the tokens (weights need not sum to one)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float = Field(gt=0, le=1e15, description="share of the tokens, relative to the other parts")
    data: Annotated[SerializeAsAny[TextData], PlainValidator(partial(validate_kind, mixable=True))] = Field(
        description="another kind of text"
    )


@register
class MixtureData(TextData):
    """Several sources mixed by weight; the tokenizer and limits of the mixture hold for all of them."""

    mixable: ClassVar[bool] = False

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = Field(min_length=1, description="each with `weight` and `data`")

    @model_validator(mode="after")
    def _parts_have_no_limits_of_their_own(self) -> Self:
        limits = [name for name in TextData.model_fields if name not in DataKind.model_fields]
        for index, part in enumerate(self.parts):
            for name in limits:
                option = getattr(part.data, name)
                if option not in (None, TextData.model_fields[name].default, getattr(self, name)):
                    raise ValueError(
                        f"part {index} sets `{name}` to {option}, but the mixture's own value, {getattr(self, name)}, "
                        f"holds for all parts; set `{name}` on the mixture"
                    )
        return self

    @property
    def _shares(self) -> list[tuple[float, TextData]]:
        total = sum(part.weight for part in self.parts)
        return [(part.weight / total, part.data) for part in self.parts]

    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """The shares and the identities of the parts."""
        parts = [{"share": share, "source": data.source_identity(base)} for share, data in self._shares]
        return {"kind": self.kind, "parts": parts}

    def sources(self, base: Path) -> list[tuple[float, TextSource]]:
        """One source per part."""
        return [(share, data.source(base)) for share, data in self._shares]

    def notes(self, base: Path) -> list[str]:
        """The notes of the parts."""
        return [note for part in self.parts for note in part.data.notes(base)]

    def describe(self) -> str:
        """The parts with their shares."""
        return "a mixture: " + ", ".join(f"{share:.0%} {data.describe()}" for share, data in self._shares)
