"""Published rules of the shape of a model, judged on measured tables.

A rule gives the depth for a size N. What it loses at a size of a table is the loss at its depth less the lowest loss of
the depths measured there, by the joint posterior of the curves. Between two measured depths the loss is straight in
ln L: above the true one where the loss has its minimum between them, so that what a rule loses is an upper bound there.
A depth outside those measured at a size is not judged at that size.

A table without an estimate of its noise has no such intervals. It judges by the laws of the gaps between its depths
(`analysis.law.decision`), at sizes over its range, against the best depth by these laws; the interval is that of their
draws, and the error of their form on either side.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from analysis.audit.shipped_tables import TABLES
from analysis.curves.noise import Floats
from analysis.fit.document import fit
from analysis.fit.study import Study
from analysis.intervals import width_of
from analysis.law.decision import FORM_ERROR
from analysis.law.near_optimal import WITHIN
from analysis.law.published import LIU2026, PublishedLaw, least_shape, published_shape
from analysis.law.threshold_law import LEVINE2020
from core.numbers import human_range, span

#: Sizes at which the laws of a table judge a rule.
SIZES = 9


class Verdict(StrEnum):
    """What a table says about a rule."""

    HOLDS = "holds"
    """The rule loses less than `WITHIN` nats per token, by the interval."""
    LOSES = "loses"
    """It loses more, by the interval."""
    UNDECIDED = "undecided"
    """The interval of what it loses holds `WITHIN`."""
    OUTSIDE = "outside"
    """Its depths were not measured at any size of the table."""


@dataclass(frozen=True)
class Rule:
    """A published rule.

    Attributes:
        name: short.
        statement: what it says.
        source: where it was published.
        domain: the models that it was stated for, in words.
        params: smallest and largest N of these; None without a limit.
        depth: L, not rounded, for N = 12·L·d²; None where the rule has none.
    """

    name: str
    statement: str
    source: str
    domain: str
    params: tuple[float, float] | None
    depth: Callable[[float], float | None]


@dataclass(frozen=True)
class Judgement:
    """A rule on one table.

    Attributes:
        rule, table: their names.
        sizes, outside: number of sizes of the table at which the rule was judged, and was not.
        in_domain: whether the models of the table are of the sizes that the rule was stated for, at least in part.
        depths: of the rule at the smallest and at the largest size that was judged.
        lost: nats per token that it loses on average over these sizes.
        interval: of `lost`.
        worst: the size at which it loses most, and what it loses there.
        verdict: see `Verdict`.
    """

    rule: str
    table: str
    sizes: int
    outside: int
    in_domain: bool
    depths: tuple[float, float] | None
    lost: float | None
    interval: tuple[float, float] | None
    worst: tuple[float, float] | None
    verdict: Verdict


def by_width(depth_of: Callable[[float], float]) -> Callable[[float], float | None]:
    """The depth for N by a rule that gives the depth of a width."""

    def depth(params: float) -> float | None:
        def off(log_depth: float) -> float:
            return log_depth - math.log(depth_of(width_of(params, math.exp(log_depth))))

        # The depth rises and the width falls with L, so there is at most one; below one layer there is none.
        low, high = 0.0, math.log(params / 12)
        if high <= low or off(low) > 0 or off(high) < 0:
            return None
        return math.exp(float(brentq(off, low, high)))

    return depth


def by_ratio(width_over_depth: float) -> Callable[[float], float | None]:
    """The depth for N by a rule d = ratio · L, from N = 12·L·d²."""
    return lambda params: (params / 12) ** (1 / 3) * width_over_depth ** (-2 / 3)


def _by_law(law: PublishedLaw) -> Callable[[float], float | None]:
    return lambda params: published_shape(law, params).depth_exact


def _models_of(law: PublishedLaw) -> str:
    assert law.depth_range is not None
    assert law.params_range is not None
    return f"{span(law.depth_range)} layers, {human_range(law.params_range)} parameters"


RULES: tuple[Rule, ...] = (
    Rule(
        "threshold",
        f"ln d = {LEVINE2020.a:.3f} + {LEVINE2020.b:.4f}·L",
        "Levine et al. 2020, arXiv 2006.12467",
        _models_of(LEVINE2020),
        LEVINE2020.params_range,
        _by_law(LEVINE2020),
    ),
    Rule(
        "additive law",
        "loss = c_m·d^-α_m + c_l·L^-α_l",
        LIU2026.source,
        _models_of(LIU2026),
        LIU2026.params_range,
        _by_law(LIU2026),
    ),
    Rule(
        "log3(width)",
        "L = log3(d), the least depth by theory",
        "Levine et al. 2020, arXiv 2006.12467 v1",
        "no limit is stated",
        None,
        lambda params: least_shape(params).depth_exact,
    ),
    Rule(
        "d = 64·L",
        "a width of 64 per layer",
        "nanochat, Karpathy 2025",
        "4 to 32 layers",
        (12 * 4 * 256**2, 12 * 32 * 2048**2),
        by_ratio(64),
    ),
    Rule(
        "d = 128·L",
        "a width of 128 per layer",
        "GPT-3 and Llama, as of Brown et al. 2020 and Touvron et al. 2023",
        "12 to 96 layers",
        (12 * 12 * 768**2, 12 * 96 * 12288**2),
        by_ratio(128),
    ),
    Rule(
        "d = 19·L",
        "deep and thin: 30 layers of width 576",
        "MobileLLM, Liu et al. 2024, arXiv 2402.14905",
        "125 and 350 million parameters",
        (8e7, 4e8),
        by_ratio(576 / 30),
    ),
    Rule(
        "L = d^0.44",
        "at most d^0.44 layers",
        "StentorLabs 2026, The Depth Myth (not reviewed)",
        "up to 4096 wide",
        (12 * 16 * 576**2, 12 * 39 * 4096**2),
        by_width(lambda width: width**0.44),
    ),
    Rule(
        "L = 2.43·ln d",
        "the critical depth",
        "Fahim and Karim 2026, arXiv 2601.20994",
        "17 million to 7 billion parameters",
        (17e6, 7e9),
        by_width(lambda width: 2.43 * math.log(width) if width > 1.6 else 1.0),
    ),
    Rule(
        "32 layers",
        "32 layers, whatever the size",
        "codelion 2025, on models of 70 million parameters",
        "28 to 59 million parameters",
        (28e6, 59e6),
        lambda params: 32.0,
    ),
)


def judge(rule: Rule, table: str, study: Study) -> Judgement:
    """Judge a rule at the sizes of a table, by its curves, or by its laws if there is no estimate of its noise."""
    by_curves = math.isfinite(study.crossings.quantile)
    at, outside = _on_curves(rule, study) if by_curves else _by_laws(rule, study)
    if not at:
        return Judgement(rule.name, table, 0, outside, False, None, None, None, None, Verdict.OUTSIDE)
    if by_curves:
        weights = np.array([item.weights for item in at])
        lost, average = weights @ study.curves.values.ravel(), weights.mean(axis=0)
        mean = float(lost.mean())
        variance = max(float(average @ study.curves.covariance @ average), 0.0)
        error = study.crossings.quantile * math.sqrt(variance)
        low, high = mean - error, mean + error
    else:
        draws = np.array([item.weights for item in at])
        lost, average = draws.mean(axis=1), draws.mean(axis=0)
        mean = float(lost.mean())
        low, high = np.quantile(average, [(1 - study.crossings.level) / 2, (1 + study.crossings.level) / 2])
        low, high = max(float(low) - FORM_ERROR, 0.0), float(high) + FORM_ERROR
    verdict = Verdict.HOLDS if high <= WITHIN else Verdict.LOSES if low > WITHIN else Verdict.UNDECIDED
    worst = int(lost.argmax())
    low_size, high_size = rule.params or (0.0, math.inf)
    in_domain = any(low_size <= item.params <= high_size for item in at)
    ends, most = (at[0].depth, at[-1].depth), (at[worst].params, float(lost[worst]))
    return Judgement(rule.name, table, len(at), outside, in_domain, ends, mean, (low, high), most, verdict)


class _At(NamedTuple):
    """A rule at one size: its depth, and what it loses as weights of the curves, or as draws of the laws."""

    params: float
    depth: float
    weights: Floats


def _on_curves(rule: Rule, study: Study) -> tuple[list[_At], int]:
    """The sizes at which a rule has a depth between those measured, and the number of the others."""
    judged = []
    for best in study.best:
        depths = [shape.depth for shape in best.shapes]
        depth = rule.depth(best.params)
        if depth is None or not depths[0] <= depth <= depths[-1]:
            continue
        deep = next(other for other in depths if other >= depth)
        shallow = max(other for other in depths if other <= depth)
        share = 0.0 if shallow == deep else math.log(depth / shallow) / math.log(deep / shallow)
        x = np.array([math.log(best.params)])
        first, second, least = (study.curves.weights(item, x)[0] for item in (shallow, deep, best.depth))
        judged.append(_At(best.params, depth, (1 - share) * first + share * second - least))
    return judged, len(study.best) - len(judged)


def _by_laws(rule: Rule, study: Study) -> tuple[list[_At], int]:
    """The same at `SIZES` sizes over the range of the table, by the laws of the gaps between its depths."""
    laws, (shallowest, *_, deepest) = study.gap_laws, study.curves.depths
    if laws.params_range is None or not laws.used:
        return [], len(study.best)
    judged = []
    for params in np.geomspace(*laws.params_range, SIZES).tolist():
        depth = rule.depth(params)
        if depth is not None and shallowest <= depth <= deepest:
            judged.append(_At(params, depth, laws.lost(params, depth)))
    return judged, SIZES - len(judged)


def judge_rules(rules: Sequence[Rule] = RULES) -> list[Judgement]:
    """Judge rules on every shipped table, rule after rule; takes a few seconds."""
    studies = {}
    for name, table in TABLES.items():
        study = fit(table.read()).study
        assert study is not None
        studies[name] = study
    return [judge(rule, name, study) for rule in rules for name, study in studies.items()]
