"""Compare laws by the regret of their advice at held-out sizes.

A law is judged by its regret: it sees the small budgets only, names a depth for a larger one, and pays the loss
measured at that depth less the lowest loss measured there. This needs no common likelihood, so a law through crossings,
a loss surface and a rule of thumb can be compared in one table. The regret of a perfect law is not zero: the lowest
of several measured losses is low partly by chance, and between two measured depths the loss is read off a straight
line, which lies above a valley. Both affect all laws alike, so compare laws with each other, not with zero.

A depth beyond the measured ones costs what the nearest measured depth costs. This is a lower bound: if the deepest
model measured is the best, every law that names a deeper one seems perfect. Read a mean regret together with the
number of such answers (`HeldOut.outside`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from analysis.curves.best_shapes import LINE_REACH, SHIFT, budget_of, budgets, common_size
from analysis.curves.shape_means import ShapeMeans, shape_means
from analysis.law.loss_surfaces import SurfaceFit, fit_surfaces, points_of, supported
from analysis.law.shape import Law

#: Rows of a run table (depth, params, seed, loss, and where known budget) -> the laws fitted to them, by form.
Trainer = Callable[[pd.DataFrame], Mapping[str, Law]]

#: The baseline of the comparison: the depth that was best at the largest budget seen.
BASELINE = "nearest measured"
#: Budgets that must remain to train on.
TRAINING_BUDGETS = 3
#: Most training sets, and most sizes held out, evenly spread over all of them: each training set costs a whole fit, and
#: neighbours among hundreds of sizes add no information.
MOST_CUTS, MOST_SIZES = 4, 8


@dataclass(frozen=True)
class Measured:
    """Losses of several depths, ascending, at one N, nats per token."""

    params: float
    depths: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def best(self) -> int:
        """The depth of the lowest loss; the shallower of two equals."""
        return self.depths[int(np.argmin(self.losses))]

    def regret(self, depth: float) -> float:
        """Loss at `depth` less the lowest, nats per token; straight in ln L between the depths, constant beyond."""
        return float(np.interp(math.log(depth), np.log(self.depths), self.losses)) - min(self.losses)


def measured_losses(rows: pd.DataFrame, budget: float) -> Measured | None:
    """The losses of one budget at one common N; None if fewer than two depths can be compared.

    A depth with sizes on both sides of that N is interpolated between the nearest two, straight in ln N: the curves of
    `analysis.curves` also depend on the other sizes, and a law is judged by what was measured. A depth without such
    sizes (one size per depth, as in many published tables) is moved there along the best surface through all `rows`, by
    at most a factor `analysis.curves.best_shapes.SHIFT` in N.
    """
    means = shape_means(rows)
    trained = next((depths for name, depths in budgets(rows) if math.isclose(name, budget)), [])
    if not trained:
        return None
    x, between = common_size(means, math.log(budget), trained, LINE_REACH)
    losses = {}
    for depth in between:
        own = means.at(depth)
        losses[depth] = float(np.interp(x, means.x[own], means.mean[own]))
    alone = sorted(set(trained) - set(between))
    surface = _best_surface(means) if alone else None
    for depth in alone:
        own = means.at(depth)
        nearest = int(own[np.argmin(np.abs(means.x[own] - x))])
        if surface is not None and abs(means.x[nearest] - x) <= math.log(SHIFT):
            here, there = surface.loss(np.exp([x, means.x[nearest]]), depth)
            losses[depth] = float(means.mean[nearest] + here - there)
    if len(losses) < 2:
        return None
    depths = tuple(sorted(losses))
    return Measured(math.exp(x), depths, tuple(losses[depth] for depth in depths))


def _best_surface(means: ShapeMeans) -> SurfaceFit | None:
    """The surface of lowest AICc; None if none can be fitted and judged."""
    best = next(iter(supported(fit_surfaces(points_of(means)))), None)
    return None if best is None or best.aicc is None else best


@dataclass(frozen=True)
class Trial:
    """One law, fitted to the budgets up to `trained_to` and evaluated at a larger one, at N = `params`.

    Attributes:
        best: the depth of the lowest measured loss.
        depth: the answer of the law; if None, `reason` is why, and there is no regret.
        regret: measured loss at `depth` less the lowest, nats per token.
        outside: the side on which `depth` lies beyond the measured ones; the regret is then a lower bound.
    """

    budget: float
    params: float
    trained_to: float
    best: int
    depth: float | None
    regret: float | None
    outside: Literal["shallower", "deeper"] | None
    reason: str | None


@dataclass(frozen=True)
class HeldOut:
    """The result of one law: every training set with every size held out from it."""

    JSON_PROPERTIES: ClassVar = ("mean_regret", "outside", "unanswered", "reasons")

    law: str
    trials: tuple[Trial, ...]

    @property
    def mean_regret(self) -> float | None:
        """Mean over the answered trials; comparable between laws that answered the same ones. See `outside`."""
        regrets = [trial.regret for trial in self.trials if trial.regret is not None]
        return float(np.mean(regrets)) if regrets else None

    @property
    def outside(self) -> int:
        """Number of answers beyond the measured depths, whose regret is only a lower bound."""
        return sum(trial.outside is not None for trial in self.trials)

    @property
    def unanswered(self) -> int:
        """Number of trials in which it named no depth."""
        return sum(trial.depth is None for trial in self.trials)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it named no depth, each reason once."""
        return tuple(dict.fromkeys(trial.reason for trial in self.trials if trial.reason is not None))


def held_out(rows: pd.DataFrame, train: Trainer) -> tuple[HeldOut, ...]:
    """Hold out the largest budget, then the two largest, and so on; evaluate every law at every held-out size.

    Returns one result per law, first that of `BASELINE`; none if there are too few budgets to hold one out, or none of
    those held out has two depths to compare.
    """
    label = budget_of(rows)
    names = sorted(set(label))
    trials: dict[str, list[Trial]] = {}
    asked = _thin(range(TRAINING_BUDGETS, len(names)), MOST_SIZES)
    scores = {names[index]: measured_losses(rows, names[index]) for index in asked}
    for kept in reversed(_thin(asked, MOST_CUTS)):
        seen = rows[label < names[kept]]
        laws: dict[str, Law] = {BASELINE: _Nearest.of(seen), **train(seen)}
        for form, law in laws.items():
            own = trials.setdefault(form, [])
            for name, score in scores.items():
                if name >= names[kept] and score is not None:
                    own.append(_ask(law, score, name, names[kept - 1]))
    if not any(trials.values()):
        return ()
    return tuple(HeldOut(law, tuple(items)) for law, items in trials.items())


@dataclass(frozen=True)
class _Nearest:
    """The baseline as a law: one depth at every N."""

    depth: int | None

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_Nearest":
        largest = measured_losses(rows, float(budget_of(rows).max()))
        return cls(None if largest is None else largest.best)

    def best_depth(self, params: float) -> float | None:
        return self.depth

    def why_not(self, params: float) -> str | None:
        return "the largest of the smaller sizes has no two depths to compare" if self.depth is None else None


def _thin(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of `values`, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, most)]


def _ask(law: Law, score: Measured, budget: float, trained_to: float) -> Trial:
    depth = law.best_depth(score.params)
    if depth is None:
        reason = law.why_not(score.params) or "the law names no finite depth"
        return Trial(budget, score.params, trained_to, score.best, None, None, None, reason)
    outside: Literal["shallower", "deeper"] | None = None
    if not score.depths[0] <= depth <= score.depths[-1]:
        outside = "shallower" if depth < score.depths[0] else "deeper"
    return Trial(budget, score.params, trained_to, score.best, depth, score.regret(depth), outside, None)
