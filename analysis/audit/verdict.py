"""A verdict on an existing model: what it loses against the best depth of its size, by every law that reaches it.

A law of the loss gives what the model loses. The law of Levine et al. 2020 gives depths only: a model with N above
N_transition(L) is too shallow for its size, one below it too deep, which at fixed N is the same as comparing L with the
best depth L*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from analysis.audit.evidence import Evidence
from analysis.audit.model_config import ModelConfig
from analysis.intervals import Interval
from analysis.law.near_optimal import Within
from analysis.law.shape import NearOptimal, Recommendation, Transition
from core.command_line import call, option
from core.errors import InputError
from core.files import to_json
from core.numbers import ends, is_count, listed

#: Of one law, and of all of them together.
Verdict = Literal[
    "near the best", "too shallow", "too deep", "within the interval", "not settled", "laws disagree", "no verdict"
]  # fmt: skip


#: What a verdict rests on, by `Recommendation.source`.
_SOURCES = {
    "published": "the law",
    "law": "the laws",
    "measured": "the losses measured near this N",
    "band": "the interval of the laws",
}


@dataclass(frozen=True)
class LawFinding:
    """One model by one law.

    Attributes:
        law, source: short, and in words.
        depth: of the model.
        beyond: factor by which N lies outside the sizes of the law's models; 1 inside.
        inside: the law was fitted on models of this size and depth.
        best: the best shape for the same N; its source is `none` if the law has no answer.
        near_optimal: the near-optimal depths, and what the model loses; None for a law of depths only.
        transition: N_transition of the model's depth by a published law.
    """

    JSON_PROPERTIES: ClassVar = ("ratio", "ratio_interval", "verdict")

    law: str
    source: str
    depth: int
    beyond: float
    inside: bool
    best: Recommendation
    near_optimal: NearOptimal | None
    transition: Transition | None

    @property
    def star(self) -> float | None:
        """The best depth L*, not rounded where the law gives that; None if not stated."""
        return self.best.depth_exact

    @property
    def lost(self) -> float | None:
        """Nats per token that the model loses; None if not known."""
        return self.near_optimal.lost if self.near_optimal else None

    @property
    def ratio(self) -> float | None:
        """L/L*; None if L* is less than one layer, where it is meaningless, or not stated."""
        return self.depth / self.star if self.star is not None and self.star >= 1 else None

    @property
    def ratio_interval(self) -> Interval:
        """Ends of L/L*; None where the law sets no limit, and where L* is less than one layer."""
        # The largest L* gives the smallest ratio.
        low, high = self.best.depth_interval if self.star is None or self.star >= 1 else (None, None)
        return (self.depth / high if high else None, self.depth / low if low else None)

    @property
    def verdict(self) -> Verdict:
        """The verdict, by what is lost where that is known: near the best, else the side of the interval of L*.

        Without losses the interval alone decides, and the best whole depth counts as within it. It is not settled if
        the interval is open on both sides, or on one and no best depth is stated.
        """
        if self.best.source == "none":
            return "no verdict"
        near, (low, high) = self.near_optimal, self.best.depth_interval
        if near is not None and near.lost is not None and near.lost <= near.within:
            return "near the best"
        if self.depth != self.best.depth and high is not None and self.depth > high:
            return "too deep"
        if self.depth != self.best.depth and low is not None and self.depth < low:
            return "too shallow"
        is_open = low is None and high is None if self.best.depth is not None else low is None or high is None
        return "not settled" if is_open or self.lost is not None else "within the interval"


@dataclass(frozen=True, repr=False)
class Audit:
    """The verdict on one model by all laws that it was compared with.

    Attributes:
        model: its shape and source.
        findings: one per law.
        warnings, notes: sentences for the reader: doubts about the answer, and how the model was read.
    """

    model: ModelConfig
    findings: tuple[LawFinding, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def deciding(self) -> tuple[LawFinding, ...]:
        """The findings that make the verdict: of the laws with an answer those with losses, of these those inside."""
        answered = [item for item in self.findings if item.best.source != "none"]
        answered = [item for item in answered if item.lost is not None] or answered
        return tuple([item for item in answered if item.inside] or answered)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the deciding laws, if they agree."""
        verdicts = {item.verdict for item in self.deciding}
        if not verdicts:
            return "no verdict"
        if len(verdicts) == 1:
            return verdicts.pop()
        return "not settled" if "not settled" in verdicts else "laws disagree"

    @property
    def verdict_words(self) -> str:
        """The verdict as its sentence has it."""
        words = {"laws disagree": "the laws disagree", "not settled": "it is not settled"}
        return words.get(self.verdict, self.verdict)

    @property
    def sentence(self) -> str:
        """The verdict, and what the model loses or where the best depth lies; or why there is no verdict."""
        name, deciding = self.model.name, self.deciding
        if not deciding:
            laws = "the law" if len(self.findings) == 1 else "every law"
            return f"{name} has no verdict: its size is more than ten times outside the sizes of {laws}."
        is_common = self.verdict not in ("laws disagree", "not settled")
        none = "has no common verdict," if len(deciding) > 1 else "has no verdict,"
        text = f"{name} {'is' if is_common else none} {self.verdict_words}"
        if self.lost is not None:
            low, high = (f"{value:.4f}" for value in self.lost)
            nats = low if low == high else f"{low} to {high}"
            laws = listed([finding.law for finding in deciding])
            return f"{text}: it loses {nats} nats per token against the best depth of its size, by {laws}."
        finding, best = deciding[0], deciding[0].best
        depth = finding.star
        stated = "not stated" if depth is None else f"{depth:.1f}" if depth >= 1 else "less than one layer"
        level = f"{100 * best.level:.3g} % " if best.level is not None else ""
        kind = ", by the errors of its parameters only" if best.source == "published" else ""
        return (
            f"{text}: by {_SOURCES[best.source]} of {finding.source}, the best depth for this N is {stated} ({level}"
            f"interval {ends(best.depth_interval)}{kind}); what the model loses is not known by it."
        )

    def __repr__(self) -> str:
        return self.sentence

    @property
    def extrapolated(self) -> bool:
        """Whether no deciding law was fitted on models of this size and depth."""
        return not any(item.inside for item in self.deciding)

    @property
    def lost(self) -> tuple[float, float] | None:
        """The least and the most nats per token that the model loses by a deciding law; None if not known."""
        values = [item.lost for item in self.deciding if item.lost is not None]
        return (min(values), max(values)) if values else None

    @property
    def least_depth(self) -> float:
        """log3 of the width: the depth below which theory has a layer gain most, see `least_shape`."""
        return math.log(self.model.width, 3)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types, the fields of the model among those of the audit."""
        model = self.model
        document: dict[str, Any] = {
            "model": model.name,
            "family": model.family or None,
            **{name: getattr(model, name) for name in ("depth", "width", "vocabulary", "block_params")},
            "nonembedding_params": model.law_params,
            **{name: getattr(self, name) for name in ("verdict", "lost", "extrapolated", "least_depth")},
            "warnings": self.warnings,
            "notes": self.notes,
            "laws": self.findings,
        }
        return {key: to_json(value) for key, value in document.items()}


def shape_of(depth: int, width: int, vocabulary: int | None = None) -> ModelConfig:
    """A model known by its shape only.

    Raises:
        InputError: a number that is not whole and positive.
    """
    for name, value in (("depth", depth), ("width", width), ("vocabulary", vocabulary)):
        if value is not None and not is_count(value):
            raise InputError(f"{option(name)} is {value!r}; it must be a positive whole number.")
    return ModelConfig(name=f"{depth} × {width}", depth=depth, width=width, vocabulary=vocabulary)


def audit(model: ModelConfig, evidence: Sequence[Evidence], within: Within) -> Audit:
    """Compare a model from `read_model_config` or `shape_of` with each law.

    Args:
        model: its shape.
        evidence: the laws.
        within: nats per token up to which a loss counts as that of the best depth.

    Raises:
        InputError: a size or depth out of range of a law.
    """
    findings = tuple(_finding(model, item, within) for item in evidence)
    draft = Audit(model, findings, _warnings(model), ())
    return Audit(model, findings, draft.warnings, _notes(draft))


def _finding(model: ModelConfig, item: Evidence, within: Within) -> LawFinding:
    params = float(model.law_params)
    best = item.best(params)
    answered = best.source != "none"
    return LawFinding(
        law=item.name,
        source=item.source,
        depth=model.depth,
        beyond=item.beyond(params),
        inside=item.holds(params, model.depth) and not (item.sizes is None and best.extrapolated),
        best=best,
        near_optimal=item.losses(params, model.depth, within) if answered else None,
        transition=item.law.transition(model.depth) if item.law is not None and answered else None,
    )


def _warnings(model: ModelConfig) -> tuple[str, ...]:
    vocabulary = model.vocabulary or math.inf
    rank = min(vocabulary, model.embedding_width or math.inf)
    if model.width <= rank:
        return ()
    what = "vocabulary" if vocabulary == rank else "projected embedding"
    return (
        f"The width {model.width:,} exceeds the rank {rank:,} of its {what}: width beyond that rank adds less, so the "
        "best shape is deeper than by the law (Wies et al. 2021).",
    )


def _notes(audit: Audit) -> tuple[str, ...]:
    model = audit.model
    notes, size = list(model.notes), f"{model.law_params:,}"
    for item in audit.findings:
        if item.star is not None and item.star < 1:
            notes.append(f"{item.law} has no depth of one layer or more at N = {size}, so there is no L/L*.")
        if item.best.reason:
            law = "The fit" if item.best.source not in ("none", "published") else item.law
            notes.append(f"{law} gives no best depth at N = {size}: {item.best.reason}.")
    if audit.deciding and audit.extrapolated:
        notes.append("The verdict is an extrapolation: none of its laws has models of this size and depth.")
    # The logarithm of a power of three may exceed the whole number by its rounding.
    side = "above" if model.depth >= audit.least_depth - 1e-9 else "below"
    notes.append(
        f"Its depth {model.depth} lies {side} log3(width) = {audit.least_depth:.1f}, the least depth by theory."
    )
    off = model.block_params / model.law_params - 1 if model.block_params else 0.0
    if abs(off) > 0.05:
        notes.append(
            f"Its blocks hold {abs(off):.0%} {'more' if off > 0 else 'fewer'} parameters than 12·L·d²; "
            f"`{call('recommend', model.block_params)}` gives the best shape for those."
        )
    return tuple(notes)
