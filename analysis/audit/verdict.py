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
from analysis.law.projection import Transition
from analysis.law.published import PublishedLaw, best_shapes_by, transition_of

Count = Literal["nonembedding", "exact"]
Verdict = Literal["too deep", "too shallow", "within the interval", "not settled"]


@dataclass(frozen=True)
class Audit:
    """The verdict on one model by one law.

    Attributes:
        model: its shape and source.
        law: source of the law.
        params: the N that entered the law.
        count: how N was counted: 12·L·d², as in the law (`nonembedding`), or the parameters of the blocks (`exact`).
        verdict: whether the interval of L* at fixed N contains its depth; the best whole depth counts as within. It is
            not settled if no best depth is stated and the interval is open.
        ratio: L/L*; None if L* is less than one layer or not stated. `ratio_interval`: an end is None if the law sets
            no limit.
        layers: L - L*; None if L* is not stated.
        best: the recommendation for the same N; a depth of None is not stated, `reason` is why.
        transition: N_transition of the model's depth by a published law; None by a study's fit.
        extrapolated: whether its depth or L* lies outside the depths of the law.
        warnings, notes: sentences for the reader: doubts about the answer, and how the model was read.
        near_optimal: see `analysis.law.near_optimal`; `lost` is what the model loses. None if not known.
    """

    model: ModelConfig
    law: str
    params: float
    count: Count
    verdict: Verdict
    ratio: float | None
    ratio_interval: Interval
    layers: float | None
    best: dict[str, Any]
    transition: Transition | None
    extrapolated: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    near_optimal: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types, the fields of the model among those of the audit."""
        model = {name: getattr(self.model, name) for name in _MODEL}
        own = {name: getattr(self, name) for name in _OWN}
        more = {
            "model": self.model.name,
            "family": self.model.family or None,
            "nonembedding_params": self.model.law_params,
            "best": {key: self.best[key] for key in _BEST if key in self.best},
            "n_transition": self.transition,
        }
        document: dict[str, Any] = to_json(
            model
            | own
            | more
            | {key: self.best[key] for key in ("level", "error_quoted") if key in self.best}
        )
        return document


#: Keys of the JSON of an audit: from the model, from the audit, and from the recommendation.
_MODEL = (
    *("depth", "width", "heads", "kv_heads", "head_dim", "d_ff", "gated", "vocabulary", "tied"),
    *("exact_params", "exact_reason"),
)
_OWN = (
    *("params", "count", "verdict", "ratio", "ratio_interval", "layers", "extrapolated", "law"),
    *("near_optimal", "warnings", "notes"),
)
_BEST = (
    *("depth", "width", "depth_exact", "width_exact", "depth_interval", "width_interval"),
    *("depth_error", "width_error", "unbounded", "source", "reason", "laws", "agree_to", "band", "measured"),
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


def audit(
    model: ModelConfig, law: PublishedLaw | Callable[[float], dict[str, Any]], count: Count = "nonembedding"
) -> Audit:
    """Compare a model with a law.

    Args:
        model: from `read_model_config` or `shape_of`.
        law: published, or N -> the best shape by a fit, with the keys of `analysis.law.combined.Projection.shape` and
            `law`, the source in words.
        count: see `Audit.count`. The law was fitted with `nonembedding`.

    Raises:
        InputError: `exact` without an exact count, a law with b <= 0, or a depth out of range or not counted by it.
    """
    if count == "exact" and model.exact_params is None:
        raise InputError(
            f"{model.name} has no exact count: {model.exact_reason}. Leave --count at nonembedding, which is 12·L·d²."
        )
    exact = model.exact_params if count == "exact" else None
    params = float(model.law_params if exact is None else exact)
    published = None if callable(law) else law
    best = law(params) if callable(law) else best_shapes_by(law, [params])[0]
    low, high = best["depth_interval"]
    star = best.get("depth_exact") or best["depth"]
    # A ratio to less than one layer is meaningless.
    some = star is None or star >= 1
    outside = published is not None and published.extrapolates(model.depth)
    return Audit(
        model=model,
        law=best["law"],
        params=params,
        count=count,
        verdict=_verdict(model.depth, best["depth"], low, high),
        ratio=model.depth / star if star and some else None,
        # The largest L* gives the smallest ratio.
        ratio_interval=(
            model.depth / high if some and high else None,
            model.depth / low if some and low else None,
        ),
        layers=None if star is None else model.depth - star,
        best=best,
        transition=None if published is None else transition_of(published, model.depth),
        extrapolated=best["extrapolated"] or outside,
        warnings=_warnings(model),
        notes=_notes(model, published, best, params, count),
    )


def _verdict(depth: int, best: int | None, low: float | None, high: float | None) -> Verdict:
    if depth != best and high is not None and depth > high:
        return "too deep"
    if depth != best and low is not None and depth < low:
        return "too shallow"
    return "not settled" if best is None and (low is None or high is None) else "within the interval"


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
    model: ModelConfig, law: PublishedLaw | None, best: dict[str, Any], params: float, count: Count
) -> tuple[str, ...]:
    notes = list(model.notes)
    if (best.get("depth_exact") or 1) < 1:
        notes.append(f"The law has no depth of one layer or more at N = {params:,.0f}, so there is no L/L*.")
    if best.get("reason"):
        notes.append(f"The laws of the study give no best depth at N = {params:,.0f}: {best['reason']}.")
    notes += _extrapolation(model, law, best)
    off = model.exact_params / model.law_params - 1 if model.exact_params else 0.0
    if abs(off) > 0.05 and count == "nonembedding":
        notes.append(
            f"Its blocks hold {abs(off):.0%} {'more' if off > 0 else 'fewer'} parameters than 12·L·d²; use --count "
            "exact to count those."
        )
    elif count == "exact":
        notes.append("N is the exact count of its blocks; the law was fitted with 12·L·d².")
    return tuple(notes)


def _extrapolation(model: ModelConfig, law: PublishedLaw | None, best: dict[str, Any]) -> list[str]:
    """Whether the answer lies outside the depths that were measured."""
    if law is None:
        what = (
            "Its best depth lies outside the depths of the study, or these are not known: an extrapolation."
        )
        return [what] if best["extrapolated"] else []
    low, high = law.depth_range
    far = {"depth": law.extrapolates(model.depth), "best depth": best["extrapolated"]}
    outside = [name for name, is_far in far.items() if is_far]
    if not outside:
        return []
    return [
        f"Its {' and its '.join(outside)} lie{'s' * (len(outside) == 1)} outside the depths {low:g} to {high:g} that "
        "the law was fitted on: an extrapolation."
    ]
