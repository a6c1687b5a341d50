"""Why a row of a run table is left out: what code compares and counts, and its words."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from core.files import to_json
from core.numbers import scientific


class RowReason(StrEnum):
    """Why a row is not used, or why its loss is not compared."""

    STATUS = "status"
    """The run is not done; its status, and the reason that the table gives, which may be empty."""
    UNREAD = "unread"
    """A column, the first value, has a text, the second, that is no number."""
    MISSING = "missing"
    """A column, the value, is empty."""
    NOT_WHOLE = "not_whole"
    """A column, the first value, has a number, the second, that is not positive and whole."""
    NOT_POSITIVE = "not_positive"
    """A column, the first value, has a number, the second, that is not positive and finite."""
    NEGATIVE_LOSS = "negative_loss"
    """The loss, the value, is not positive."""
    TINY_LOSS = "tiny_loss"
    """The loss, the value, is smaller than any in nats per token."""
    LARGE_LOSS = "large_loss"
    """The loss, the value, is larger than any in nats per token."""
    COPY = "copy"
    """The row repeats another one, the value."""
    AVERAGED = "averaged"
    """The row has the shape, seed and learning rate of another one, the value, and is averaged with it."""
    SENSITIVITY = "sensitivity"
    """The run checks the learning rate."""
    NO_OTHER_DEPTH = "no_other_depth"
    """No other depth has this N and these tokens."""
    OTHER_COMPUTE = "other_compute"
    """The row has another compute than that compared, the value, in FLOPs."""
    OTHER_RATIO = "other_ratio"
    """The row has another number of tokens per parameter than that compared, the value."""
    NOT_AT_END = "not_at_end"
    """The row is no checkpoint at the end of training."""
    NO_TOKENS = "no_tokens"
    """The row has no training tokens; the value is what is compared."""
    NO_LOSS_AT_TOKENS = "no_loss_at_tokens"
    """The model has no loss at the training tokens compared, the value."""
    OTHER_TOKENS = "other_tokens"
    """The row has other training tokens than those compared, the value."""
    OTHER_RATE = "other_rate"
    """Another learning rate of the shape, the value, has the lowest mean loss; None if it is not given."""
    IN_PARABOLA = "in_parabola"
    """The row is part of a parabola in ln lr, whose minimum is at the value."""
    FAR_RATE = "far_rate"
    """The learning rate is too far from the best for the parabola, whose minimum is at the value."""
    EARLIER = "earlier"
    """The row is an earlier step of a run; the value is the name of the step."""
    OTHER_SETTING = "other_setting"
    """Another value, the second, of a setting, the first, has the lowest mean loss of the shape."""
    NO_KIND = "no_kind"
    """A run in MLflow, the value, has no kind."""
    NO_STATUS = "no_status"
    """A run in MLflow, the first value, has no status of a cell; the second is that of MLflow."""
    OTHER_PROTOCOL = "other_protocol"
    """The protocol, the first value, is not that of the newest rows, the second."""


#: Reasons that are counted apart for each first value, such as the name of a column.
BY_FIRST_VALUE = (
    RowReason.STATUS,
    RowReason.UNREAD,
    RowReason.MISSING,
    RowReason.NOT_WHOLE,
    RowReason.EARLIER,
    RowReason.OTHER_SETTING,
    RowReason.OTHER_PROTOCOL,
)

WORDS: Mapping[RowReason, Callable[..., str]] = {
    RowReason.STATUS: lambda status, why: f"{status}: {why}" if why else status,
    RowReason.UNREAD: lambda name, text: f"{name} is {text!r}, not a number",
    RowReason.MISSING: "{} is missing".format,
    RowReason.NOT_WHOLE: "{} is {:g}, not a positive whole number".format,
    RowReason.NOT_POSITIVE: "{} is {:g}, not a positive number".format,
    RowReason.NEGATIVE_LOSS: "loss is {:g}; a loss in nats per token is positive".format,
    RowReason.TINY_LOSS: "loss is {:g}; no loss in nats per token is that small".format,
    RowReason.LARGE_LOSS: (
        "loss is {:g}, above ln(vocabulary) of any vocabulary, 13.8 nats per token".format
    ),
    RowReason.COPY: "duplicate of row {}".format,
    RowReason.AVERAGED: (
        "averaged with row {}: the same depth, N, seed and learning rate; if these are replicates, give each its seed"
    ).format,
    RowReason.SENSITIVITY: (
        "a sensitivity run: trained at another learning rate on purpose, so it enters no crossing".format
    ),
    RowReason.NO_OTHER_DEPTH: "no other depth has a loss at this N and these training tokens".format,
    RowReason.OTHER_COMPUTE: lambda flops: f"another compute than the {scientific(flops)} FLOPs compared",
    RowReason.OTHER_RATIO: (
        "another number of training tokens per parameter than the {:.3g} compared".format
    ),
    RowReason.NOT_AT_END: "no checkpoint at the end of training, which is compared".format,
    RowReason.NO_TOKENS: "no training tokens; compared at {:.4g}".format,
    RowReason.NO_LOSS_AT_TOKENS: "no loss at the {:.4g} training tokens compared".format,
    RowReason.OTHER_TOKENS: "at other training tokens than the {:.4g} compared".format,
    RowReason.OTHER_RATE: lambda rate: (
        f"another learning rate of this shape, {'the one not given' if rate is None else f'{rate:.4g}'}, was chosen "
        "(lowest mean loss)"
    ),
    RowReason.IN_PARABOLA: (
        "one of several learning rates of this shape and seed; compared is the minimum of a parabola in ln lr at {:.4g}"
    ).format,
    RowReason.FAR_RATE: (
        "a learning rate too far from the best for the parabola in ln lr, whose minimum is at {:.4g}".format
    ),
    RowReason.EARLIER: "an earlier {} of a run, whose last one is compared".format,
    RowReason.OTHER_SETTING: "another {} of this shape, {}, was chosen (lowest mean loss)".format,
    RowReason.NO_KIND: "MLflow run {} has no tag interplay.kind".format,
    RowReason.NO_STATUS: "MLflow run {} has no tag interplay.status; it is {}".format,
    RowReason.OTHER_PROTOCOL: "another protocol ({}) than the newest rows ({})".format,
}


@dataclass(frozen=True)
class WhyNot:
    """A reason with the values that its text names, as each member of `RowReason` lists them."""

    reason: RowReason
    values: tuple[int | float | str | None, ...] = ()

    @property
    def text(self) -> str:
        """The reason in words."""
        return WORDS[self.reason](*self.values)


def entry(row: int | str, cell: str, why: WhyNot) -> dict[str, Any]:
    """A row left out as JSON types: its number, its cell if there is one, the reason in words, and as code."""
    return {
        "row": row,
        **({"cell": cell} if cell else {}),
        "reason": why.text,
        "reasons": [to_json(why)],
    }


def is_sensitivity_run(left_out: Mapping[str, Any]) -> bool:
    """Whether a row is left out because it checks the learning rate."""
    return any(why["reason"] == RowReason.SENSITIVITY for why in left_out.get("reasons", ()))


def kind_of(left_out: Mapping[str, Any]) -> Hashable:
    """What the rows of one kind of reason have in common, see `BY_FIRST_VALUE`; the text where a file has no more."""
    if not left_out.get("reasons"):
        return str(left_out["reason"])
    (why,) = left_out["reasons"]
    return why["reason"], why["values"][0] if why["reason"] in BY_FIRST_VALUE else None
