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
from typing import ClassVar

import numpy as np
import pandas as pd

from analysis.curves.budgets import LINE_REACH, SHIFT, budget_of, budgets, common_size
from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans, shape_means
from analysis.law.advice import Advice, Direction, surface_advice
from analysis.law.loss_surfaces import (
    SurfaceFit,
    SurfaceForm,
    fit_surface,
    fit_surfaces,
    points_of,
    supported,
)

#: Rows of a run table (depth, params, seed, loss, and where known budget) -> the law's advice, or None if the law
#: cannot be fitted to them.
Trainer = Callable[[pd.DataFrame], Advice | None]

#: The baseline of the comparison: the depth that was best at the largest budget seen.
BASELINE = "nearest measured"
#: Budgets that must remain to train on.
TRAINING_BUDGETS = 3
#: Most training sets, and most sizes held out, evenly spread over all of them: each training set costs a whole fit, and
#: neighbours among hundreds of sizes add no information.
MOST_CUTS, MOST_SIZES = 4, 8


def surface_trainers(misfit_sd: float = 0.0, *, equal_tokens: bool = True) -> dict[str, Trainer]:
    """One trainer per surface, by its form; `misfit_sd` as in `points_of`, `equal_tokens` as in `fit_surfaces`."""

    def trainer(form: SurfaceForm) -> Trainer:
        def train(rows: pd.DataFrame) -> Advice:
            points = points_of(shape_means(rows), misfit_sd)
            return surface_advice(fit_surface(form, points, equal_tokens=equal_tokens))

        return train

    return {form: trainer(form) for form in ("additive", "response")}


@dataclass(frozen=True)
class Measured:
    """Losses of several depths, ascending, at one N, nats per token; their covariance if the noise is known."""

    params: float
    depths: tuple[int, ...]
    losses: Floats
    covariance: Floats | None

    @property
    def best(self) -> int:
        """The depth of the lowest loss; the shallower of two equals."""
        return self.depths[int(np.argmin(self.losses))]

    def regret(self, depth: float) -> tuple[float, float | None]:
        """Loss at `depth` less the lowest; straight in ln L between the measured depths, constant beyond them.

        Returns:
            Nats per token, and the standard error of the paired difference if the noise is known.
        """
        logs = np.log(self.depths)
        # Row i of the identity is the interpolation of depth i.
        weights = np.array([np.interp(math.log(depth), logs, row) for row in np.eye(len(logs))])
        weights[int(np.argmin(self.losses))] -= 1
        value = max(float(weights @ self.losses), 0.0)
        if self.covariance is None:
            return value, None
        return value, math.sqrt(max(float(weights @ self.covariance @ weights), 0.0))


def measured_losses(rows: pd.DataFrame, budget: float) -> Measured | None:
    """The losses of one budget at one common N; None if fewer than two depths can be compared.

    A depth with sizes on both sides of that N is interpolated between the nearest two, straight in ln N: the curves of
    `analysis.curves` also depend on the other sizes, and a law is judged by what was measured. A depth without such
    sizes (one size per depth, as in many published tables) is moved there along the best surface through all `rows`, by
    at most a factor `analysis.curves.budgets.SHIFT` in N. The error of that step is not part of the covariance.
    """
    means = shape_means(rows)
    trained = next((depths for name, depths in budgets(rows) if math.isclose(name, budget)), [])
    if not trained:
        return None
    x, between = common_size(means, math.log(budget), trained, LINE_REACH)
    alone = sorted(set(trained) - set(between))
    surface = _best_surface(means) if alone else None
    shift, matrix = {}, {}
    for depth in [*between, *alone]:
        own = means.at(depth)
        nearest = int(own[np.argmin(np.abs(means.x[own] - x))])
        weights = np.zeros(len(means.x))
        if depth in between:
            weights[own] = _interpolation(means.x[own], x)
            shift[depth] = 0.0
        elif surface is not None and abs(means.x[nearest] - x) <= math.log(SHIFT):
            weights[nearest] = 1.0
            here, there = surface.loss(np.exp([x, means.x[nearest]]), depth)
            shift[depth] = float(here - there)
        else:
            continue
        matrix[depth] = weights
    if len(matrix) < 2:
        return None
    depths = tuple(sorted(matrix))
    rows_of = np.vstack([matrix[depth] for depth in depths])
    losses = rows_of @ means.mean + np.array([shift[depth] for depth in depths])
    return Measured(math.exp(x), depths, losses, _covariance(means, rows_of) if means.noise.known else None)


def _interpolation(knots: Floats, x: float) -> Floats:
    """The weights of the values at `knots` in a straight line's value at x, inside the knots."""
    weights = np.zeros(len(knots))
    right = int(np.clip(np.searchsorted(knots, x), 0, len(knots) - 1))
    left = max(right - 1, 0)
    share = 1.0 if right == left else float(np.clip((x - knots[left]) / (knots[right] - knots[left]), 0, 1))
    weights[left] = 1 - share
    weights[right] += share
    return weights


def _covariance(means: ShapeMeans, matrix: Floats) -> Floats:
    """(rows, rows): covariance of `matrix` times the mean losses, from seed noise and shared seeds."""
    shared, own = means.errors
    return np.asarray((matrix @ shared) @ (matrix @ shared).T + (matrix * own**2) @ matrix.T)


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
        regret, se: measured loss at `depth` less the lowest, nats per token; its standard error if the noise is known.
        outside: the side on which `depth` lies beyond the measured ones; the regret is then a lower bound.
    """

    budget: float
    params: float
    trained_to: float
    best: int
    depth: float | None
    regret: float | None
    se: float | None
    outside: Direction | None
    reason: str | None


@dataclass(frozen=True)
class HeldOut:
    """The result of one law: every training set with every size held out from it.

    `rmse` is that of the predicted losses of all shapes held out, nats per token; None for a law that predicts none.
    """

    JSON_PROPERTIES: ClassVar = ("mean_regret", "outside", "unanswered", "reasons")

    law: str
    trials: tuple[Trial, ...]
    rmse: float | None

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


def held_out(rows: pd.DataFrame, trainers: Mapping[str, Trainer]) -> tuple[HeldOut, ...]:
    """Hold out the largest budget, then the two largest, and so on; evaluate every law at every held-out size.

    Returns one result per law, first that of `BASELINE`; none if there are too few budgets to hold one out, or none of
    those held out has two depths to compare.
    """
    label = budget_of(rows)
    names = sorted(set(label))
    everyone: dict[str, Trainer] = {BASELINE: _nearest_measured, **trainers}
    trials: dict[str, list[Trial]] = {law: [] for law in everyone}
    errors: dict[str, list[Floats]] = {law: [] for law in everyone}
    asked = _spread(range(TRAINING_BUDGETS, len(names)), MOST_SIZES)
    scores = {names[index]: measured_losses(rows, names[index]) for index in asked}
    for kept in reversed(_spread(asked, MOST_CUTS)):
        seen = rows[label < names[kept]]
        unseen = shape_means(rows[label >= names[kept]])
        for law, trainer in everyone.items():
            advice = trainer(seen)
            for name, score in scores.items():
                if name >= names[kept] and score is not None:
                    trials[law].append(_ask(advice, score, name, names[kept - 1]))
            if advice is not None and advice.loss is not None:
                errors[law].append(advice.loss(np.exp(unseen.x), unseen.depth) - unseen.mean)
    if not any(trials.values()):
        return ()
    return tuple(HeldOut(law, tuple(found), _rmse(errors[law])) for law, found in trials.items())


def _nearest_measured(rows: pd.DataFrame) -> Advice | None:
    found = measured_losses(rows, float(budget_of(rows).max()))
    return None if found is None else Advice(lambda params: float(found.best))


def _spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of `values`, evenly spread, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, most)]


def _ask(advice: Advice | None, score: Measured, budget: float, trained_to: float) -> Trial:
    depth = None if advice is None else advice(score.params)
    reason: str | None = None
    outside: Direction | None = None
    regret, se = None, None
    if advice is None:
        reason = "the law cannot be fitted to the smaller sizes"
    elif depth is None:
        reason = advice.reason(score.params) or "the law names no finite depth"
    else:
        regret, se = score.regret(depth)
        if depth < score.depths[0]:
            outside = "shallower"
        elif depth > score.depths[-1]:
            outside = "deeper"
    return Trial(budget, score.params, trained_to, score.best, depth, regret, se, outside, reason)


def _rmse(errors: Sequence[Floats]) -> float | None:
    """Over all predictions that could be made."""
    values = np.concatenate([np.empty(0), *errors])
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if len(values) else None
