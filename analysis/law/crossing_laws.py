"""Laws of the gap from the threshold laws through the crossings, beside the laws of the losses.

A threshold law says where a layer pays: the loss falls with ln L where N exceeds X(L) = 12·L·exp(2·(a + b·r(L))), with
r(L) = L, sqrt(L) or ln L, and rises below. With σ nats per e-fold of N and of L the slope in ln L is
-σ·(ln N - ln X(L)), so the loss is -σ·((ln N - ln 12 - 2a)·ln L - ln²L / 2 - 2b·R(L)), R the integral of r over ln L.
σ is the slope of the gaps at their crossings over ln(L₂/L₁). A crossing needs no form of the losses, but the law needs
three crossings with an estimate.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import qmc
from scipy.stats import t as student

from analysis.law.crossings import Crossings
from analysis.law.decision import GapForm, GapLaw, GapLaws
from analysis.law.gap_fit import DRAWS
from analysis.law.threshold_law import Form, ThresholdLaw

#: A rejected law is left out if minus twice its log-likelihood exceeds that of another law by this much.
DECISIVE = 10.0
_FORMS: dict[Form, GapForm] = {
    "log-linear": "crossings, log-linear",
    "root": "crossings, root",
    "power": "crossings, power",
}


def with_crossing_laws(gap_laws: GapLaws, laws: Sequence[ThresholdLaw], crossings: Crossings) -> GapLaws:
    """`gap_laws` with those of the threshold laws, if the crossings do not reject all of them.

    Each of the two kinds has half of the draws: one rests on the form of the losses and one on that of the crossings,
    and neither is known. In worlds whose valleys are steeper where models are larger, bounds of the former alone held
    in 14 of 34 studies, those of the latter in 36 of 36.

    Args:
        gap_laws: of a study.
        laws: through its crossings.
        crossings: with their gaps.
    """
    lines = [law for law in laws if law.usable]
    accepted = [law for law in lines if not law.rejected]
    if gap_laws.params_range is None or not accepted:
        return gap_laws
    if not all(law.status == "ok" and law.b_interval and (law.b_interval[0] or 0.0) > 0 for law in accepted):
        return gap_laws
    least = min(map(_misfit, accepted))
    # Where crossings scatter, a test may reject the true form and accept a wrong one by chance: in 23 % of the studies
    # with five crossings and a scatter of 0.2 in ln d. So a rejected law takes part unless it is much worse.
    kept = [law for law in lines if law in accepted or _misfit(law) - least < DECISIVE]
    share = 0.5 if gap_laws.used else 1.0
    drawn = tuple(
        GapLaw(
            _FORMS[law.form],
            "ok",
            parameters={"a": law.a or 0.0, "b": law.b or 0.0},
            p_value=law.p_value,
            weight=share / len(kept),
            draws=_draws(law, crossings, DRAWS // len(kept)),
        )
        for law in kept
    )
    others = tuple(replace(law, weight=law.weight * (1 - share)) for law in gap_laws.laws)
    return replace(gap_laws, laws=(*others, *drawn), reasons=())


def _misfit(law: ThresholdLaw) -> float:
    """Minus twice the log-likelihood of the crossings if the size of their errors is not known, but for a constant."""
    if law.chi2 is None or law.dof is None:
        return 0.0
    # Squares below their expectation are chance, and do not make a law better.
    return (law.dof + 2) * math.log(max(law.chi2, law.dof))


def _draws(law: ThresholdLaw, crossings: Crossings, count: int) -> tuple[tuple[float, ...], ...]:
    """(a, b, σ): the region of the law, filled by Student's t, with the σ of each pair in turn."""
    level, dof, quantile = law.level, crossings.dof, crossings.quantile
    if law.scatter_dof and law.scatter_dof > 1:
        dof = law.scatter_dof
        quantile = max(quantile, float(student.ppf((1 + level) / 2, dof)))
    boundary = np.array([(a, b) for a, b, _ in law.boundary(level)])
    best = np.array([law.a, law.b], dtype=float)
    place, radius = qmc.Halton(2, seed=0).random(count).T
    distance = np.sqrt(2 * fisher.ppf(radius, 2, min(dof, 1e9))) / quantile
    points = best + (boundary[(place * len(boundary)).astype(int)] - best) * distance[:, None]
    slopes = []
    for item, gap in zip(crossings.items, crossings.gaps, strict=True):
        if item.params is not None and gap is not None:
            slope = float(np.interp(math.log(item.params), gap.x, np.gradient(gap.value, gap.x)))
            slopes.append(max(slope, 0.0) / math.log(item.deep / item.shallow))
    sigma = np.resize(np.array(slopes), count)
    kept = points[:, 1] > 0
    return tuple(
        tuple(float(f"{value:.7g}") for value in row)
        for row in np.column_stack([points, sigma])[kept].tolist()
    )
