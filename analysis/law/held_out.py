"""Laws compared by what their advice would have cost at sizes they have not seen, and where their advice parts.

A law is judged by its regret: it sees the small budgets only, names a depth for a larger one, and pays the
loss measured at that depth less the lowest loss measured there. This needs no common likelihood, so a law through
crossings, a loss surface and a rule of thumb can stand in one table. Regret is not zero for a perfect law: the lowest
of several measured losses is low partly by luck, and between two measured depths the loss is read off a
straight line, which lies above a valley. All laws pay both alike; compare laws, not one law with zero.

A depth beyond the measured ones costs what the nearest measured depth costs, which is a lower bound, not a
regret: where the deepest model measured is the best, every law that names a deeper one seems perfect. Read a mean regret
beside the number of such answers (`HeldOut.outside`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.budgets import LINE_REACH, SHIFT, budget_of, budgets, common_size
from analysis.curves.curves import loss_table
from analysis.curves.noise import Floats, Noise
from analysis.errors import InputError
from analysis.law.loss_surfaces import (
    SurfaceFit,
    SurfaceForm,
    fit_additive,
    fit_aspect,
    fit_response,
    fit_surfaces,
)

#: N -> best depth, or None where the law names none.
Advice = Callable[[float], float | None]
#: Rows of a run table (depth, params, loss, and where known seed and budget) -> a chooser, or None when the law cannot
#: be fitted to them.
Trainer = Callable[[pd.DataFrame], Advice | None]

#: The rule every law has to beat: the depth that was best at the largest budget seen.
BASELINE = "nearest measured"
#: Budgets that must remain to train on.
TRAINING_BUDGETS = 3
#: Training sets, and sizes held out, at most: a table of many sizes is asked at some, spread over them all, because
#: each training set costs a whole fit and neighbours among hundreds of sizes tell nothing new.
MOST_CUTS, MOST_SIZES = 4, 8
Direction = Literal["shallower", "deeper"]

#: Two laws part where one's depth exceeds the other's by this share of the reference's.
APART = 0.25


@runtime_checkable
class Predicts(Protocol):
    """A chooser that also predicts losses."""

    def loss(self, params: npt.ArrayLike, depth: npt.ArrayLike) -> Floats:
        """Nats a token at N and L, elementwise."""


@runtime_checkable
class Explains(Protocol):
    """A chooser that says why it names no depth."""

    def why(self, params: float) -> str | None:
        """The reason at this N; None where there is a depth."""


@dataclass(frozen=True)
class SurfaceChooser:
    """The advice of a loss surface: `Chooser`, `Predicts` and `Explains`."""

    fit: SurfaceFit

    def __call__(self, params: float) -> float | None:
        """See `SurfaceFit.best_depth`."""
        return self.fit.best_depth(params)

    def why(self, params: float) -> str | None:
        """See `SurfaceFit.best_depth_reason`."""
        return self.fit.best_depth_reason(params)

    def loss(self, params: npt.ArrayLike, depth: npt.ArrayLike) -> Floats:
        """See `SurfaceFit.loss`; NaN where the fit cannot be read."""
        if not self.fit.usable:
            return np.full(np.broadcast(params, depth).shape, np.nan)
        return self.fit.loss(params, depth)


def surface_trainers(misfit_sd: float = 0.0) -> dict[str, Trainer]:
    """One trainer a surface, by its form. A surface that cannot be fitted answers nothing and says why.

    Args:
        misfit_sd: scatter of the shapes beyond the seed noise (`analysis.curves.curves.Curves.misfit_rms`), nats a token; it
            belongs to the weights.
    """
    fits: dict[SurfaceForm, Callable[[pd.DataFrame], SurfaceFit]] = {
        "additive": fit_additive,
        "aspect": fit_aspect,
        "response": fit_response,
    }

    def trainer(fit: Callable[[pd.DataFrame], SurfaceFit]) -> Trainer:
        return lambda rows: SurfaceChooser(fit(_Shapes.of(rows).frame(misfit_sd)))

    return {form: trainer(fit) for form, fit in fits.items()}


@dataclass(frozen=True)
class Measured:
    """Losses of several depths at one size.

    Attributes:
        params: the N at which all are compared.
        depths: ascending.
        losses: nats a token, one a depth.
        covariance: of the losses, from the pooled seed noise; None when it is not known.
        moved: largest correction, in nats, of a loss that was measured at a slightly different N by a depth without
            sizes on both sides; 0 when every loss was measured or interpolated.
    """

    params: float
    depths: tuple[int, ...]
    losses: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...] | None
    moved: float

    @property
    def best(self) -> int:
        """The depth of the lowest loss; the shallower of two equals."""
        return self.depths[int(np.argmin(self.losses))]

    def regret(self, depth: float) -> tuple[float, float | None]:
        """Loss at `depth`, straight in ln L between the measured depths and held beyond them, less the lowest.

        Returns:
            Nats a token, and the standard error (that of the paired difference) where the noise is known.
        """
        logs = np.log(self.depths)
        # Row i of the identity is the interpolation of depth i.
        weights = np.array([np.interp(math.log(depth), logs, row) for row in np.eye(len(logs))])
        weights[int(np.argmin(self.losses))] -= 1
        value = max(float(weights @ np.array(self.losses)), 0.0)
        if self.covariance is None:
            return value, None
        return value, math.sqrt(max(float(weights @ np.array(self.covariance) @ weights), 0.0))


#: (rows, budget) -> the losses measured at that budget, from these rows alone; None when fewer than two depths compare.
LossAt = Callable[[pd.DataFrame, float], Measured | None]


def measured_losses(rows: pd.DataFrame, budget: float) -> Measured | None:
    """The losses of one budget at one common N; the default `LossAt`.

    A depth with sizes on both sides of that N is interpolated between the nearest two, straight in ln N: the
    smooth curves of `analysis.curves.curves` know the other sizes too, and a law is judged by what was measured. A depth of
    the budget that has no such sizes (one size a depth, as in many published tables) is moved there along the
    quadratic response surface of all `rows`, by at most a factor `analysis.curves.budgets.SHIFT` in N; `moved` says how far in
    nats. The error of that step is not part of the covariance.

    Args:
        rows: depth, params, loss; seed where there are several.
        budget: as `analysis.curves.budgets.budgets` names it.
    """
    points = _Shapes.of(rows)
    trained = next((depths for name, depths in budgets(rows) if math.isclose(name, budget)), [])
    if not trained:
        return None
    x, between = common_size(points, math.log(budget), trained, LINE_REACH)
    weights = {depth: points.interpolation(depth, x) for depth in between}
    moves = dict.fromkeys(between, 0.0)
    alone = sorted(set(trained) - set(between))
    surface = _best_surface(points) if alone else None
    for depth in alone:
        own = points.at(depth)
        nearest = int(own[np.argmin(np.abs(points.x[own] - x))])
        near = abs(points.x[nearest] - x) <= math.log(SHIFT)
        if near and surface is not None:
            here, there = surface.loss(np.exp([x, points.x[nearest]]), depth)
            weights[depth] = np.eye(len(points.x))[nearest]
            moves[depth] = float(here - there)
    if len(weights) < 2:
        return None
    depths = sorted(weights)
    matrix = np.vstack([weights[depth] for depth in depths])
    shift = np.array([moves[depth] for depth in depths])
    covariance = points.covariance(matrix)
    return Measured(
        params=math.exp(x),
        depths=tuple(depths),
        losses=tuple(float(value) for value in matrix @ points.mean + shift),
        covariance=tuple(tuple(float(value) for value in row) for row in covariance)
        if points.noise.known
        else None,
        moved=float(np.abs(shift).max()),
    )


def _best_surface(points: "_Shapes") -> SurfaceFit | None:
    """The surface of lowest AICc; None where none can be fitted and judged."""
    judged = [(fit.aicc, fit) for fit in fit_surfaces(points.frame()) if fit.usable and fit.aicc is not None]
    return min(judged, key=lambda item: item[0])[1] if judged else None


@dataclass(frozen=True)
class _Shapes:
    """The mean loss of every shape, ordered by depth, then N.

    As in `analysis.curves.curves.Curves` but without curves, which are fitted anew for every set of rows and would be most of
    the work here.
    """

    depth: npt.NDArray[np.int64]
    x: Floats
    mean: Floats
    count: npt.NDArray[np.int64]
    incidence: Floats
    noise: Noise
    forecast: Floats

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_Shapes":
        """Rows of one depth, N and seed are averaged first; without the column seed all are of one seed."""
        seeded = rows if "seed" in rows else rows.assign(seed=0)
        table = loss_table(seeded)
        present = np.isfinite(table.losses)
        count = present.sum(axis=1)
        return cls(
            depth=table.depth,
            x=np.log(table.params),
            mean=np.nanmean(table.losses, axis=1),
            count=count,
            incidence=present / count[:, None] if table.paired else np.zeros((len(count), 1)),
            noise=table.noise,
            forecast=table.forecast,
        )

    @property
    def depths(self) -> list[int]:
        return sorted({int(value) for value in self.depth})

    def covariance(self, matrix: Floats) -> Floats:
        """(rows, rows): of `matrix` times the mean losses, from seed noise, what seeds share, and forecasts."""
        scaled, rho = matrix * self.noise.sd_at(self.mean), self.noise.correlation
        shared = scaled @ self.incidence
        errors = matrix * self.forecast
        own = (1 - rho) * (scaled / self.count) @ scaled.T + errors @ errors.T
        return np.asarray(rho * shared @ shared.T + own)

    def at(self, depth: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.depth == depth)

    def range(self, depth: int) -> tuple[float, float]:
        x = self.x[self.at(depth)]
        return float(x[0]), float(x[-1])

    def interpolation(self, depth: int, x: float) -> Floats:
        """(points,): times the mean losses, the loss of `depth` at ln N = x inside its sizes."""
        index = self.at(depth)
        knots = self.x[index]
        result = np.zeros(len(self.x))
        right = int(np.clip(np.searchsorted(knots, x), 0, len(knots) - 1))
        left = max(right - 1, 0)
        share = (
            1.0 if right == left else float(np.clip((x - knots[left]) / (knots[right] - knots[left]), 0, 1))
        )
        result[index[left]] = 1 - share
        result[index[right]] += share
        return result

    def frame(self, misfit_sd: float = 0.0) -> pd.DataFrame:
        """For `analysis.law.loss_surfaces`: depth, params, loss, and weight where the noise is known."""
        frame = pd.DataFrame({"depth": self.depth, "params": np.exp(self.x), "loss": self.mean})
        if self.noise.known:
            variance = self.noise.sd_at(self.mean) ** 2 / self.count + self.forecast**2
            frame["weight"] = 1 / (variance + misfit_sd**2)
        return frame


@dataclass(frozen=True)
class Trial:
    """One law, trained below one size and asked at another.

    Attributes:
        budget: held out.
        params: the N the law was asked for, and at which the losses are compared.
        trained_budgets, trained_to: number of budgets the law saw, and the largest of them.
        best: the depth of the lowest measured loss at `params`.
        depth: what the law named, None when it named none; then `reason` says why, and there is no regret.
        regret: measured loss at `depth` less the lowest measured, nats a token.
        se: of the regret, where the noise is known.
        outside: the named depth lies beyond the measured ones, on that side; the regret is that of the nearest, a
            lower bound.
        moved: see `Measured`.
    """

    budget: float
    params: float
    trained_budgets: int
    trained_to: float
    best: int
    depth: float | None
    regret: float | None
    se: float | None
    outside: Direction | None
    moved: float
    reason: str | None


@dataclass(frozen=True)
class HeldOut:
    """How one law did at sizes it had not seen.

    Attributes:
        law: its name.
        trials: every training set with every size held out from it.
        rmse: of the predicted losses of all shapes held out, nats a token; None for a law that predicts none.
    """

    JSON_PROPERTIES: ClassVar = ("sizes", "regrets", "mean_regret", "outside", "unanswered", "reasons")

    law: str
    trials: tuple[Trial, ...]
    rmse: float | None

    @property
    def sizes(self) -> tuple[float, ...]:
        """The different N the law was asked for, ascending."""
        return tuple(sorted({trial.params for trial in self.trials}))

    @property
    def regrets(self) -> tuple[float, ...]:
        """Of the trials the law answered, nats a token."""
        return tuple(trial.regret for trial in self.trials if trial.regret is not None)

    @property
    def mean_regret(self) -> float | None:
        """Over the trials it answered; comparable between laws that answered the same ones. See `outside`."""
        return float(np.mean(self.regrets)) if self.regrets else None

    @property
    def outside(self) -> int:
        """Answers beyond the measured depths, whose regret is but a lower bound."""
        return sum(trial.outside is not None for trial in self.trials)

    @property
    def unanswered(self) -> int:
        """Trials in which it named no depth."""
        return sum(trial.depth is None for trial in self.trials)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, each reason once."""
        return tuple(dict.fromkeys(trial.reason for trial in self.trials if trial.reason is not None))


def held_out(
    rows: pd.DataFrame,
    trainers: Mapping[str, Trainer],
    losses: LossAt = measured_losses,
    *,
    training_budgets: int = TRAINING_BUDGETS,
) -> tuple[HeldOut, ...]:
    """Hold out the largest budget, then the two largest, and so on; ask every law at every size held out.

    Of many budgets `MOST_CUTS` training sets and `MOST_SIZES` sizes are taken, evenly spread.

    Args:
        rows: the compared rows of a run table: depth, params, loss, and where known seed and budget. Their order does
            not matter.
        trainers: name -> law. Each sees only the rows of the smaller budgets.
        losses: where measured losses come from. It is called with all rows to score, and with the training rows for
            the baseline, so nothing held out can help it.
        training_budgets: least number of budgets to train on.

    Returns:
        One result a law, the baseline `BASELINE` (the best measured depth of the largest budget seen) first;
        empty when there are too few budgets to hold one out, or none of those held out has two depths to compare.

    Raises:
        InputError: a column is missing.
        ValueError: a trainer has the name of the baseline.
    """
    missing = [name for name in ("depth", "params", "loss") if name not in rows]
    if missing:
        raise InputError(f"The rows lack {', '.join(missing)}; laws are compared by depth, params and loss.")
    if BASELINE in trainers:
        raise ValueError(f"the name {BASELINE!r} is the baseline's")
    label = budget_of(rows)
    names = sorted(set(label))
    everyone: dict[str, Trainer] = {BASELINE: _nearest_measured(losses), **trainers}
    trials: dict[str, list[Trial]] = {law: [] for law in everyone}
    errors: dict[str, list[Floats]] = {law: [] for law in everyone}
    asked = _spread(range(training_budgets, len(names)), MOST_SIZES)
    scores = {names[index]: losses(rows, names[index]) for index in asked}
    for kept in reversed(_spread(asked, MOST_CUTS)):
        seen = rows[label < names[kept]]
        unseen = _Shapes.of(rows[label >= names[kept]]).frame()
        for law, trainer in everyone.items():
            advice = trainer(seen)
            for name, score in scores.items():
                if name >= names[kept] and score is not None:
                    trials[law].append(_ask(advice, score, name, kept, names[kept - 1]))
            errors[law].append(_errors(advice, unseen))
    if not any(trials.values()):
        return ()
    return tuple(HeldOut(law, tuple(found), _rmse(errors[law])) for law, found in trials.items())


def _spread(values: Sequence[int], most: int) -> list[int]:
    """At most so many of `values`, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, most)]


@dataclass(frozen=True)
class DisagreementSpan:
    """Sizes at which a law's depth differs from the reference's by more than `APART`.

    Attributes:
        low, high: ends in N; those of the range looked at where the laws are apart there.
        direction: whether the law is deeper or shallower than the reference.
    """

    low: float
    high: float
    direction: Direction


@dataclass(frozen=True)
class Disagreement:
    """The advice of one law over a range of sizes, against a reference law.

    Attributes:
        law: its name.
        params, depths: a log grid of N, and the depth it names at each, or None.
        spans: where it is apart from the reference, ascending. Two laws may meet again: a law may be shallower for
            small models and deeper for large ones.
        reason: why it names no depth at the smallest N where it names none, where it can tell.
    """

    JSON_PROPERTIES: ClassVar = ("parts_at", "direction")

    law: str
    params: tuple[float, ...]
    depths: tuple[float | None, ...]
    spans: tuple[DisagreementSpan, ...]
    reason: str | None

    @property
    def parts_at(self) -> float | None:
        """The smallest N of the range at which the two are apart; None when they are nowhere, or one names no depth."""
        return self.spans[0].low if self.spans else None

    @property
    def direction(self) -> Direction | None:
        """Whether the law is deeper or shallower than the reference at `parts_at`."""
        return self.spans[0].direction if self.spans else None


def disagreements(
    advices: Mapping[str, Advice],
    low: float,
    high: float = 1e13,
    *,
    reference: str = "log-linear",
    per_decade: int = 8,
) -> list[Disagreement]:
    """The depth every law names on a log grid of sizes, and the sizes at which each is apart from the reference.

    Args:
        advices: name -> fitted law, the reference among them.
        low: smallest N, as the smallest size measured.
        high: largest N.
        reference: the law the others are compared with, as the threshold law.
        per_decade: grid points; where laws part is found between them by bisection.

    Returns:
        One entry a law, in the order given.

    Raises:
        InputError: the range is empty or not positive, or the reference is not among the laws.
    """
    if not (0 < low < high and math.isfinite(high)):
        raise InputError(f"The sizes go from {low:g} to {high:g}; they must rise from a positive number.")
    if reference not in advices:
        raise InputError(f"There is no law {reference!r} to compare with; there are {', '.join(advices)}.")
    count = max(2, 1 + math.ceil(per_decade * math.log10(high / low)))
    grid = [float(value) for value in np.geomspace(low, high, count)]
    return [_part(law, advice, advices[reference], grid) for law, advice in advices.items()]


def _part(law: str, advice: Advice, reference: Advice, grid: Sequence[float]) -> Disagreement:
    def side(params: float) -> Direction | None:
        depth, other = _named(advice, params), _named(reference, params)
        if depth is None or other is None or abs(depth / other - 1) <= APART:
            return None
        return "deeper" if depth > other else "shallower"

    depths = tuple(_named(advice, params) for params in grid)
    silent = next((params for params, depth in zip(grid, depths, strict=True) if depth is None), None)
    sides = [side(params) for params in grid]
    spans: list[DisagreementSpan] = []
    start = grid[0]
    for index, here in enumerate(sides):
        last = index + 1 == len(grid)
        after = None if last else sides[index + 1]
        if not last and after == here:
            continue
        if here is not None:
            spans.append(
                DisagreementSpan(start, grid[-1] if last else _edge(side, grid[index], grid[index + 1]), here)
            )
        if after is not None:
            start = _edge(side, grid[index + 1], grid[index])
    return Disagreement(
        law=law,
        params=tuple(grid),
        depths=depths,
        spans=tuple(spans),
        reason=None if silent is None else _why(advice, silent),
    )


def _edge(side: Callable[[float], Direction | None], inner: float, outer: float) -> float:
    """The size next to `outer` that is still on the side of `inner`, by bisection in ln N."""
    kept = side(inner)
    # Depths vary slowly with N: 50 halvings of a step of the grid are far below what any law can mean.
    for _ in range(50):
        middle = math.sqrt(inner * outer)
        inner, outer = (middle, outer) if side(middle) == kept else (inner, middle)
    return inner


def _named(advice: Advice, params: float) -> float | None:
    """The depth a law names, None where it is no positive finite number."""
    depth = advice(params)
    return depth if depth is not None and math.isfinite(depth) and depth > 0 else None


def _nearest_measured(losses: LossAt) -> Trainer:
    def train(rows: pd.DataFrame) -> Advice | None:
        found = losses(rows, float(budget_of(rows).max()))
        return None if found is None else lambda params: float(found.best)

    return train


def _ask(advice: Advice | None, score: Measured, budget: float, kept: int, trained_to: float) -> Trial:
    depth = None if advice is None else _named(advice, score.params)
    reason: str | None = None
    outside: Direction | None = None
    regret, se = None, None
    if advice is None:
        reason = "the law cannot be fitted to the smaller sizes"
    elif depth is None:
        reason = _why(advice, score.params) or "the law names no finite depth"
    else:
        regret, se = score.regret(depth)
        if depth < score.depths[0]:
            outside = "shallower"
        elif depth > score.depths[-1]:
            outside = "deeper"
    return Trial(
        budget=budget,
        params=score.params,
        trained_budgets=kept,
        trained_to=trained_to,
        best=score.best,
        depth=depth,
        regret=regret,
        se=se,
        outside=outside,
        moved=score.moved,
        reason=reason,
    )


def _why(advice: object, params: float) -> str | None:
    return advice.why(params) if isinstance(advice, Explains) else None


def _errors(advice: object, points: pd.DataFrame) -> Floats:
    """Predicted less measured losses, NaN where there is none; empty for a law that predicts no losses."""
    if not isinstance(advice, Predicts):
        return np.empty(0)
    predicted = advice.loss(points["params"].to_numpy(), points["depth"].to_numpy())
    return np.asarray(predicted - points["loss"].to_numpy(dtype=float))


def _rmse(errors: Sequence[Floats]) -> float | None:
    """Over all predictions that could be made."""
    values = np.concatenate(errors)
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if len(values) else None
