"""Compare an existing model with a threshold law: too deep, too shallow, or within the interval of the best depth.

Levine et al. 2020: a model with N above N_transition(L) is too shallow for its size, one below it too deep. At fixed N
this is the same as comparing L with the best depth L*. By a study's fit there is one comparison only, that with L* and
its interval, because several laws give them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from analysis.audit.model_config import ModelConfig
from analysis.errors import InputError
from analysis.files import to_json
from analysis.intervals import Interval
from analysis.law.published import PublishedLaw
from analysis.law.shape import NearOptimal, Shape, Transition

Verdict = Literal["too deep", "too shallow", "within the interval", "not settled"]


@dataclass(frozen=True)
class Audit:
    """The verdict on one model by one law.

    Attributes:
        model: its shape and source.
        law: the source of the law in words.
        verdict: whether the interval of L* at fixed N contains its depth; the best whole depth counts as within. It is
            not settled if the interval is open on both sides, or on one and no best depth is stated.
        best: the recommendation for the same N.
        transition: N_transition of the model's depth by a published law; None by a study's fit.
        extrapolated: whether its depth or L* lies outside the depths of the law.
        warnings, notes: sentences for the reader: doubts about the answer, and how the model was read.
        near_optimal: see `analysis.law.near_optimal`; `lost` is what the model loses. None if not known.
    """

    model: ModelConfig
    law: str
    verdict: Verdict
    best: Shape
    transition: Transition | None
    extrapolated: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    near_optimal: NearOptimal | None = None

    @property
    def star(self) -> float | None:
        """The best depth L*, not rounded where the law gives that; None if not stated."""
        return self.best.depth_exact

    @property
    def ratio(self) -> float | None:
        """L/L*; None if L* is less than one layer, where it is meaningless, or not stated."""
        return self.model.depth / self.star if self.star is not None and self.star >= 1 else None

    @property
    def ratio_interval(self) -> Interval:
        """Ends of L/L*; None where the law sets no limit, and where L* is less than one layer."""
        # The largest L* gives the smallest ratio.
        low, high = self.best.depth_interval if self.star is None or self.star >= 1 else (None, None)
        return (self.model.depth / high if high else None, self.model.depth / low if low else None)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types, the fields of the model among those of the audit."""
        model = self.model
        document: dict[str, Any] = {
            **{name: getattr(model, name) for name in ("depth", "width", "vocabulary", "block_params")},
            **{name: getattr(self, name) for name in _FIELDS},
            "law": self.law,
            "model": model.name,
            "family": model.family or None,
            "nonembedding_params": model.law_params,
            "layers": None if self.star is None else model.depth - self.star,
            "best": self.best,
            "transition": self.transition,
        }
        return {key: to_json(value) for key, value in document.items()}


_FIELDS = ("verdict", "ratio", "ratio_interval", "extrapolated", "near_optimal", "warnings", "notes")


def shape_of(depth: int, width: int, vocabulary: int | None = None) -> ModelConfig:
    """A model known by its shape only.

    Raises:
        InputError: a number that is not positive.
    """
    for name, value in (("depth", depth), ("width", width), ("vocabulary", vocabulary)):
        if value is not None and value <= 0:
            raise InputError(f"--{name} is {value}; it must be a positive whole number.")
    return ModelConfig(name=f"{depth} × {width}", depth=depth, width=width, vocabulary=vocabulary)


def audit(model: ModelConfig, law: PublishedLaw | Callable[[float], Shape], source: str = "") -> Audit:
    """Compare a model from `read_model_config` or `shape_of` with a law.

    Args:
        model: its shape.
        law: published, or N -> `Audit.best` by a fit.
        source: of a fit, in words.

    Raises:
        InputError: a depth out of range or not counted by it.
    """
    published = None if callable(law) else law
    params = float(model.law_params)
    best = law(params) if callable(law) else law.shape(params)
    low, high = best.depth_interval
    return Audit(
        model=model,
        law=source or best.law,
        verdict=_verdict(model.depth, best.depth, low, high),
        best=best,
        transition=None if published is None else published.transition(model.depth),
        extrapolated=best.extrapolated or (published is not None and published.extrapolates(model.depth)),
        warnings=_warnings(model),
        notes=_notes(model, published, best),
    )


def _verdict(depth: int, best: int | None, low: float | None, high: float | None) -> Verdict:
    if depth != best and high is not None and depth > high:
        return "too deep"
    if depth != best and low is not None and depth < low:
        return "too shallow"
    is_open = low is None and high is None if best is not None else low is None or high is None
    return "not settled" if is_open else "within the interval"


def _warnings(model: ModelConfig) -> tuple[str, ...]:
    vocabulary = model.vocabulary or math.inf
    rank = min(vocabulary, model.embedding_width or math.inf)
    if model.width <= rank:
        return ()
    what = "vocabulary" if vocabulary == rank else "embedding, which is projected,"
    return (
        f"The width {model.width:,} exceeds the rank {rank:,} of its {what}: width beyond that rank adds less, so the "
        "best shape is deeper than by the law (Wies et al. 2021).",
    )


def _notes(model: ModelConfig, law: PublishedLaw | None, best: Shape) -> tuple[str, ...]:
    notes, size = list(model.notes), f"{model.law_params:,}"
    if best.depth_exact is not None and best.depth_exact < 1:
        notes.append(f"The law has no depth of one layer or more at N = {size}, so there is no L/L*.")
    if best.reason:
        notes.append(f"The laws of the study give no best depth at N = {size}: {best.reason}.")
    far = {"depth": law is not None and law.extrapolates(model.depth), "best depth": best.extrapolated}
    if outside := [name for name, is_far in far.items() if is_far]:
        range_ = (
            "of the study"
            if law is None
            else "{:g} to {:g} that the law was fitted on".format(*law.depth_range)
        )
        verb = "lies" if len(outside) == 1 else "lie"
        notes.append(f"Its {' and its '.join(outside)} {verb} outside the depths {range_}: an extrapolation.")
    off = model.block_params / model.law_params - 1 if model.block_params else 0.0
    if abs(off) > 0.05:
        notes.append(
            f"Its blocks hold {abs(off):.0%} {'more' if off > 0 else 'fewer'} parameters than 12·L·d²; recommend "
            f"{model.block_params} gives the best shape for those."
        )
    return tuple(notes)
