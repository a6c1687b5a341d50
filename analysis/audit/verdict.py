"""Compare an existing model with a threshold law: too deep, too shallow, or within the interval of the best depth.

Levine et al. 2020: a model with N above N_transition(L) is too shallow for its size, one below it too deep. At fixed N
this is the same as comparing L with the best depth L*.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from analysis.audit.model_config import ModelConfig
from analysis.errors import InputError
from analysis.files import to_json
from analysis.intervals import Interval
from analysis.law.projection import Law, Transition, n_transition, recommend

Count = Literal["nonembedding", "exact"]
Verdict = Literal["too deep", "too shallow", "within the interval"]


@dataclass(frozen=True)
class Audit:
    """The verdict on one model by one law.

    Attributes:
        model: its shape and source.
        law: source of the law.
        params: the N that entered the law.
        count: how N was counted: 12·L·d², as in the law (`nonembedding`), or the parameters of the blocks (`exact`).
        verdict: whether the interval of L* at fixed N contains its depth; the best whole depth counts as within.
        ratio: L/L*; None if L* is less than one layer. `ratio_interval`: an end is None if the law sets no limit.
        layers: L - L*.
        best: the recommendation for the same N.
        transition: N_transition of the model's depth.
        extrapolated: whether its depth or L* lies outside the depths of the law.
        warnings, notes: sentences for the reader: doubts about the answer, and how the model was read.
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

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types, the fields of the model among those of the audit."""
        model = {name: getattr(self.model, name) for name in _MODEL}
        own = {name: getattr(self, name) for name in _OWN}
        more = {
            "model": self.model.name,
            "family": self.model.family or None,
            "nonembedding_params": self.model.law_params,
            "best": {key: self.best[key] for key in _BEST},
            "n_transition": self.transition,
        }
        document: dict[str, Any] = to_json(
            model | own | more | {key: self.best[key] for key in ("level", "error_quoted")}
        )
        return document


#: Keys of the JSON of an audit: from the model, from the audit, and from the recommendation.
_MODEL = (
    *("depth", "width", "heads", "kv_heads", "head_dim", "d_ff", "gated", "vocabulary", "tied"),
    *("exact_params", "exact_reason"),
)
_OWN = (
    *("params", "count", "verdict", "ratio", "ratio_interval", "layers", "extrapolated", "law"),
    *("warnings", "notes"),
)
_BEST = (
    *("depth", "width", "depth_exact", "width_exact", "depth_interval", "width_interval"),
    *("depth_error", "width_error", "unbounded"),
)


def shape_of(depth: int, width: int, vocabulary: int | None = None) -> ModelConfig:
    """A model known by its shape only.

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
    """Compare a model with a law.

    Args:
        model: from `read_model_config` or `shape_of`.
        law: fitted or published.
        count: see `Audit.count`. The law was fitted with `nonembedding`.

    Raises:
        InputError: `exact` without an exact count, a law with b <= 0, or a depth out of range.
    """
    if count == "exact" and model.exact_params is None:
        raise InputError(
            f"{model.name} has no exact count: {model.exact_reason}. Leave --count at nonembedding, which is 12·L·d²."
        )
    exact = model.exact_params if count == "exact" else None
    params = float(model.law_params if exact is None else exact)
    (best,) = recommend(law, [params])
    transition = n_transition(law, model.depth)
    star, (low, high) = best["depth_exact"], best["depth_interval"]
    # A ratio to less than one layer is meaningless.
    some = star >= 1
    return Audit(
        model=model,
        law=law.source,
        params=params,
        count=count,
        verdict=_verdict(model.depth, best["depth"], low, high),
        ratio=model.depth / star if some else None,
        # The largest L* gives the smallest ratio.
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
    if depth != best and high is not None and depth > high:
        return "too deep"
    if depth != best and low is not None and depth < low:
        return "too shallow"
    return "within the interval"


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


def _notes(
    model: ModelConfig, law: Law, best: dict[str, Any], params: float, count: Count
) -> tuple[str, ...]:
    notes = list(model.notes)
    if best["depth_exact"] < 1:
        notes.append(f"The law has no depth of one layer or more at N = {params:,.0f}, so there is no L/L*.")
    low, high = law.depth_range
    if math.isnan(low):
        notes.append(
            "The file does not contain the depths of the law's fit: every answer is an extrapolation."
        )
    elif outside := [
        name
        for name, far in (("depth", law.extrapolates(model.depth)), ("best depth", best["extrapolated"]))
        if far
    ]:
        notes.append(
            f"Its {' and its '.join(outside)} lie{'s' * (len(outside) == 1)} outside the depths {low:g} to {high:g} "
            "that the law was fitted on: an extrapolation."
        )
    off = model.exact_params / model.law_params - 1 if model.exact_params else 0.0
    if abs(off) > 0.05 and count == "nonembedding":
        notes.append(
            f"Its blocks hold {abs(off):.0%} {'more' if off > 0 else 'fewer'} parameters than 12·L·d²; use --count "
            "exact to count those."
        )
    elif count == "exact":
        notes.append("N is the exact count of its blocks; the law was fitted with 12·L·d².")
    return tuple(notes)
