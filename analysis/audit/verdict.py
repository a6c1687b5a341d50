"""Where an existing model stands on a threshold law: too deep, too shallow, or as the law would have it.

The reading of the rule (Levine et al. 2020): a model with N above N_transition(L) is too shallow for its size, one
below it too deep. At fixed N that is the same as comparing L with the best depth L*, which is what the band is of.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from analysis.audit.model_config import ModelConfig
from analysis.errors import InputError
from analysis.files import to_json
from analysis.law.projection import Interval, Law, Transition, n_transition, recommend

Count = Literal["nonembedding", "exact"]
Verdict = Literal["too deep", "too shallow", "within the band"]


@dataclass(frozen=True)
class Audit:
    """One model beside a law.

    Attributes:
        model: its shape and where it was read from.
        params: the N that entered the law; `count` says which: 12·L·d², the law's own count (`nonembedding`), or
            the parameters of the blocks as they are (`exact`).
        verdict: the band at fixed N holds its depth or not; the best whole depth counts as within.
        ratio: L/L*, with `ratio_interval`, of which an end is None where the law sets no limit; None, and so both ends,
            where L* is less than one layer.
        layers: L - L*: positive where it has too many.
        best: what `recommend` says for the same N.
        transition: N_transition of its own depth.
        warnings, notes: sentences a reader must see: of what makes the answer doubtful, and of how it was read.
    """

    model: ModelConfig
    law: str
    params: float
    count: Count
    verdict: Verdict
    ratio: float | None
    ratio_interval: Interval
    layers: float
    best: dict[str, Any]
    transition: Transition
    extrapolated: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def law_params(self) -> int:
        """The law's own count, 12·L·d²."""
        return 12 * self.model.depth * self.model.width**2

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types, the fields of the model among those of the audit."""
        model = {name: getattr(self.model, name) for name in _MODEL}
        own = {name: getattr(self, name) for name in _OWN}
        document: dict[str, Any] = to_json(
            {
                **model,
                **own,
                "model": self.model.name,
                "family": self.model.family or None,
                "nonembedding_params": self.law_params,
                "best": {key: self.best[key] for key in _BEST},
                "n_transition": self.transition,
                "level": self.best["level"],
                "error_quoted": self.best["error_quoted"],
            }
        )
        return document


_MODEL = (
    *("depth", "width", "heads", "kv_heads", "head_dim", "d_ff", "gated", "vocabulary", "tied"),
    *("exact_params", "exact_reason"),
)
_OWN = (
    *("params", "count", "verdict", "ratio", "ratio_interval", "layers", "extrapolated", "law"),
    *("warnings", "notes"),
)
#: Of a recommendation, what an audit repeats.
_BEST = (
    *("depth", "width", "depth_exact", "width_exact", "depth_interval", "width_interval"),
    *("depth_error", "width_error", "unbounded"),
)


def shape_of(depth: int, width: int, vocabulary: int | None = None) -> ModelConfig:
    """A model of which only the shape is known.

    Raises:
        InputError: a number that is not positive.
    """
    for name, value in (("depth", depth), ("width", width), ("vocabulary", vocabulary)):
        if value is not None and value <= 0:
            raise InputError(f"--{name} is {value}; it must be a positive whole number.")
    return ModelConfig(
        name=f"{depth} × {width}",
        family="",
        depth=depth,
        width=width,
        vocabulary=vocabulary,
        exact_reason="only the shape is given",
    )


def audit(model: ModelConfig, law: Law, count: Count = "nonembedding") -> Audit:
    """Place a model on a law.

    Args:
        model: from `read_model_config` or `shape_of`.
        law: fitted or published.
        count: which N enters the law, see `Audit.params`. The law was fitted with `nonembedding`.

    Raises:
        InputError: no exact count although it is asked for, a law with b <= 0, or a depth beyond its numbers.
    """
    if count == "exact" and model.exact_params is None:
        raise InputError(
            f"{model.name} has no exact count: {model.exact_reason}. Leave --count at nonembedding, which is 12·L·d²."
        )
    exact = model.exact_params if count == "exact" else None
    params = float(12 * model.depth * model.width**2 if exact is None else exact)
    (best,) = recommend(law, [params])
    transition = n_transition(law, model.depth)
    star, (low, high) = best["depth_exact"], best["depth_interval"]
    # A share of less than a layer would be a large number that says nothing.
    some = star >= 1
    return Audit(
        model=model,
        law=law.source,
        params=params,
        count=count,
        verdict=_verdict(model.depth, best["depth"], low, high),
        ratio=model.depth / star if some else None,
        # The deepest best shape makes the model look shallowest.
        ratio_interval=(
            model.depth / high if some and high else None,
            model.depth / low if some and low else None,
        ),
        layers=model.depth - star,
        best=best,
        transition=transition,
        extrapolated=best["extrapolated"] or law.extrapolates(model.depth),
        warnings=_warnings(model),
        notes=_notes(model, law, best, params, count),
    )


def _verdict(depth: int, best: int, low: float | None, high: float | None) -> Verdict:
    if depth == best:
        return "within the band"
    if high is not None and depth > high:
        return "too deep"
    if low is not None and depth < low:
        return "too shallow"
    return "within the band"


def _warnings(model: ModelConfig) -> tuple[str, ...]:
    vocabulary = model.vocabulary or math.inf
    rank = min(vocabulary, model.embedding_width or math.inf)
    if model.width <= rank:
        return ()
    what = "vocabulary" if vocabulary == rank else "embedding, which is projected,"
    return (
        f"The width {model.width:,} exceeds the rank {rank:,} of its {what}: width beyond that rank adds less, so the "
        "best shape is deeper than the law says (Wies et al. 2021).",
    )


def _notes(
    model: ModelConfig, law: Law, best: dict[str, Any], params: float, count: Count
) -> tuple[str, ...]:
    notes = list(model.notes)
    best_extrapolates = best["extrapolated"]
    if best["depth_exact"] < 1:
        notes.append(f"The law has no depth of one layer or more at N = {params:,.0f}: there is no L/L*.")
    low, high = law.depth_range
    if math.isnan(low):
        notes.append(
            "The file does not say on which depths the law was fitted: every answer is an extrapolation."
        )
    elif best_extrapolates or law.extrapolates(model.depth):
        which = "Its best depth lies" if best_extrapolates else "Its depth lies"
        if best_extrapolates and law.extrapolates(model.depth):
            which = "Its depth and its best depth lie"
        notes.append(
            f"{which} outside the depths {low:g} to {high:g} that the law was fitted on: an extrapolation."
        )
    ours = 12 * model.depth * model.width**2
    off = model.exact_params / ours - 1 if model.exact_params else 0.0
    if abs(off) > 0.05 and count == "nonembedding":
        notes.append(
            f"Its blocks hold {abs(off):.0%} {'more' if off > 0 else 'fewer'} parameters than 12·L·d²; --count exact "
            "asks the law about those."
        )
    elif count == "exact":
        notes.append("N is the exact count of its blocks; the law was fitted with 12·L·d².")
    return tuple(notes)
