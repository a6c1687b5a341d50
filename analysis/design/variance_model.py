"""Variance of an objective after further cells: the algebra behind `analysis.design.next_cells`.

Near the fit its curves are linear in their parameters, and the fit weights the mean loss of each shape by its own noise
and lack of fit. So the covariance of the parameters can be computed for any set of cells: M^-1 from the shapes' own
errors, plus one term per seed for the noise that all shapes of that seed share (as in `Curves.covariance`). One more
cell of a shape changes only the weight of that shape. This is a change of rank one, so the gains of all options are
computed at once.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.design.candidates import Key
from analysis.design.objective import Objective
from analysis.intervals import between
from analysis.law.crossings import roots
from analysis.law.projection import solve_depth

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Number of places in ln N at which gaps are evaluated.
PLACES = 121
#: Standard deviation of the prior over that of a seed: so weak that it only keeps the first steps finite.
VAGUE = 30.0
#: Standard deviation in ln d of a crossing that is not measured, and of a crossing about the line through the others.
UNKNOWN, ABOUT = 1.0, 0.25
#: Least scatter of ln d about the law.
SCATTER = 0.01
#: Mean weighted square of the crossings about the line from which they are measured further; from 1 on the fit counts
#: it as scatter.
DOUBTFUL = 0.7
#: Confidence of the bounds on the noise in `sure_noise`.
SURE = 0.8
#: Required distance of a gap from zero at the ends of the measured sizes, in standard errors, and largest distance of
#: these ends from the crossing, in ln N. 2 would be the test itself, which half of the crossings would then fail.
CLEAR = 2.5
FARTHEST = 0.9
#: Largest cost of completing a side, as a share of what was spent before: later its position is known better.
AFFORDED = 0.5


@dataclass(frozen=True)
class Step:
    """The next step of a search.

    Attributes:
        option: its index. If several options help only together it is the first of them; once that is taken, the next
            ones gain more per cost.
        gain: relative reduction of the variance of the objective.
        pair: the crossing it is for: the one that weighs most in the objective, or that lacks a side.
        kind: a `run` of most gain, or one for a missing `side` of the crossing.
    """

    option: int
    gain: float
    pair: tuple[int, int]
    kind: Literal["run", "side"]


@dataclass(frozen=True)
class _State:
    """Quantities that follow from a set of cells.

    Attributes:
        inverse: M^-1, (parameters, parameters).
        loads: (shapes, seeds), weights of the shared noise of each seed in the weighted losses; `moved` M^-1 J' loads.
        weight, runs: (shapes,), inverse variance and number of cells.
        lacking: by pair, each side of the crossing that is not measured far enough: (depth, side, ln N to reach).
        parts: weights of the crossings in the objective, (objectives, pairs).
        value: the variance to minimise if every crossing were measured on both sides; `stated` with those that are.
    """

    inverse: Floats
    loads: Floats
    moved: Floats
    weight: Floats
    runs: Floats
    lacking: tuple[tuple[tuple[int, int, float], ...], ...]
    parts: Floats
    value: float
    stated: float


class VarianceModel:
    """A linearised study, its options, and the objective."""

    def __init__(
        self,
        curves: Curves,
        shapes: Sequence[Key],
        measured: Floats,
        begun: Floats,
        shape_of: Integers,
        seed_of: Integers,
        cost: Floats,
        spent: float,
        objective: Objective,
    ) -> None:
        """Linearise the study at its fit.

        Args:
            curves: the fit so far; the noise must be known, and every depth of `shapes` have a curve.
            shapes: (depth, N) of all cells that are measured, running, or options.
            measured: (shapes, seeds), 1 where a cell has a loss.
            begun: the same for running cells.
            shape_of: row of every option in these.
            seed_of: column of every option in these.
            cost: of every option.
            spent: cost of all that is measured or running.
            objective: of the search.
        """
        self.objective, self.shape_of, self.seed_of = objective, shape_of, seed_of
        self.taken = np.maximum(measured, begun)
        self.free = np.ones(len(shape_of), dtype=bool)
        self.cost, self.spent = cost, spent
        self.depth = np.array([depth for depth, _ in shapes])
        self.x = np.log(np.array([params for _, params in shapes]))
        self._linearise(curves)
        self._locate(measured)
        self.state = self._follow(self.taken)

    def _linearise(self, curves: Curves) -> None:
        """Evaluate curves, derivatives and noise at the shapes, and the gaps of the pairs at places in ln N."""
        smooth, noise = curves.smooth, curves.noise
        every = list(zip(self.depth.tolist(), self.x, strict=True))
        self.jacobian = np.vstack([smooth.jacobian(depth, np.array([x])) for depth, x in every])
        loss = np.array([smooth.loss(depth, np.array([x]))[0] for depth, x in every])
        # An extrapolated curve may fall below zero; the noise is not extrapolated that far.
        loss = np.clip(loss, curves.mean.min() / 2, curves.mean.max() * 2)
        self.sd = noise.sd_at(loss)
        self.rho, self.misfit = sure_noise(curves)
        self.places = np.linspace(float(self.x.min()), float(self.x.max()), PLACES)
        tables = {depth: smooth.jacobian(depth, self.places) for depth in curves.depths}
        values = {depth: smooth.loss(depth, self.places) for depth in curves.depths}
        self.pairs = list(itertools.pairwise(curves.depths))
        self.middle = np.array([between(*pair) for pair in self.pairs])
        self.gap = np.vstack([values[s] - values[d] for s, d in self.pairs])
        self.table = np.stack([tables[s] - tables[d] for s, d in self.pairs])
        vague = np.vstack(list(tables.values())) / (VAGUE * float(np.median(self.sd)) * math.sqrt(PLACES))
        prior = vague.T @ vague
        # An exponent at the end of its range or a spline coefficient at zero has no derivative; M stays invertible.
        self.prior = prior + 1e-9 * float(np.mean(np.diag(prior))) * np.eye(len(prior))

    def _locate(self, measured: Floats) -> None:
        """Compute the crossing of each pair, its slope there, and the law, shrinking uncertain crossings to the line.

        Only measured cells are used, so that a choice does not depend on which cells happen to be running.
        """
        inverse, _, moved, _, _ = self._covariance(measured)
        found = roots(self.places, self.gap)
        low, high = self.places[0], self.places[-1]
        rise = np.gradient(self.gap, self.places, axis=1)
        pair = np.arange(len(self.pairs))

        def at(x: Floats) -> Integers:
            return np.asarray(np.clip(np.searchsorted(self.places, x), 0, PLACES - 1))

        inside = np.isfinite(found)
        x = np.clip(found, low, high)
        slopes = rise[pair, at(x)]
        steep = slopes[inside & (slopes > 0)]
        least = 0.3 * float(np.median(steep)) if len(steep) else 0.2 * float(np.median(self.sd))
        rows = self.table[pair, at(x)] / (2 * np.maximum(slopes, least))[:, None]
        joint = rows @ inverse @ rows.T + (rows @ moved) @ (rows @ moved).T
        offset = np.log(12 * self.middle)
        log_width = (x - offset) / 2
        own = np.where(inside, np.diag(joint), np.inf)
        a, b = self._line(log_width, own)
        by_law = a + b * self.middle
        share = ABOUT**2 / (ABOUT**2 + own)
        share = np.where(inside, share, 0.0) if inside.sum() >= 2 else np.ones(len(x))
        log_width = share * log_width + (1 - share) * by_law
        self.cross = np.clip(offset + 2 * log_width, low, high)
        # A pair that cannot cross at any allowed size takes no part.
        self.possible = (offset + 2 * log_width >= low - 1e-9) & (offset + 2 * log_width <= high + 1e-9)
        self.rise = np.maximum(rise[pair, at(self.cross)], least)
        self.rows = self.table[pair, at(self.cross)] / (2 * self.rise)[:, None]
        self.a, self.b = a, b
        self.doubt = self._doubt(np.flatnonzero(inside), (found - offset) / 2, joint)

    def _doubt(self, inside: Integers, log_width: Floats, joint: Floats) -> Floats:
        """Return (pairs,) the combination of crossings that deviates most from the line, in standard errors, or zeros.

        Deviations larger than the errors count as scatter, which makes the intervals of the fit twice as wide or more.
        They are mostly chance; better measurements of those crossings decide.
        """
        result = np.zeros(len(self.pairs))
        if len(inside) < 3:
            return result
        matrix = joint[np.ix_(inside, inside)] + 1e-12 * np.eye(len(inside))
        design = np.column_stack([np.ones(len(inside)), self.middle[inside]])
        solved = np.linalg.solve(matrix, design)
        law = np.linalg.solve(design.T @ solved, solved.T @ log_width[inside])
        residual = log_width[inside] - design @ law
        towards = np.linalg.solve(matrix, residual)
        square = float(residual @ towards)
        if square > DOUBTFUL * len(inside):
            result[inside] = towards / math.sqrt(square)
        return result

    def _line(self, log_width: Floats, variance: Floats) -> tuple[float, float]:
        """Fit ln d = a + b·L to the crossings, with a positive b, because only then a depth can be projected."""
        weight = 1 / (variance + ABOUT**2)
        spread = float(np.ptp(self.middle)) or float(self.pairs[0][1] - self.pairs[0][0])
        flattest = 0.2 / spread
        if np.sum(weight > 0) < 2:
            known = int(np.argmax(weight))
            b = 1 / spread
            return float(log_width[known] - b * self.middle[known]), b
        design = np.column_stack([np.ones_like(self.middle), self.middle])
        a, b = np.linalg.solve(design.T @ (weight[:, None] * design), design.T @ (weight * log_width))
        if b < flattest:
            b = flattest
            a = float(np.average(log_width - b * self.middle, weights=weight))
        return float(a), float(b)

    def _covariance(self, taken: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Return M^-1, the loads of the seeds, M^-1 J' loads, weights and numbers of cells."""
        runs = np.asarray(taken.sum(axis=1))
        weight = self._weights(runs)
        inverse = np.asarray(
            np.linalg.inv(self.prior + self.jacobian.T @ (weight[:, None] * self.jacobian)), dtype=np.float64
        )
        loads = (self._load(weight, runs))[:, None] * taken
        return inverse, loads, inverse @ (self.jacobian.T @ loads), weight, runs

    def _weights(self, runs: Floats) -> Floats:
        """Return the inverse variance of each shape's mean about its curve, without shared noise; 0 without cells."""
        own = (1 - self.rho) * self.sd**2 / np.maximum(runs, 1) + (self.misfit * self.sd) ** 2
        return np.asarray(np.where(runs > 0, 1 / own, 0.0))

    def _load(self, weight: Floats, runs: Floats) -> Floats:
        return np.asarray(weight * self.sd * math.sqrt(self.rho) / np.maximum(runs, 1))

    def _follow(self, taken: Floats) -> _State:
        inverse, loads, moved, weight, runs = self._covariance(taken)
        covered, lacking = self._sides(inverse, moved, runs)
        crossings = self._crossing_covariance(inverse, moved)
        parts, value = self._objective_parts(crossings, self.possible)
        _, stated = self._objective_parts(crossings, covered)
        return _State(inverse, loads, moved, weight, runs, lacking, parts, value, stated)

    def _sides(
        self, inverse: Floats, moved: Floats, runs: Floats
    ) -> tuple[Flags, tuple[tuple[tuple[int, int, float], ...], ...]]:
        """Return which crossings are measured on both sides, and the missing sides of the others."""
        variance = np.vecdot(self.table @ (inverse + moved @ moved.T), self.table)
        z = self.gap / np.sqrt(variance)
        there = runs > 0
        open_to = there.copy()
        open_to[self.shape_of[self.free]] = True
        # Smallest and largest ln N of each depth: of measured shapes, and of possible ones.
        ends = {}
        for depth in {depth for pair in self.pairs for depth in pair}:
            ours = self.depth == depth
            measured, possible = self.x[ours & there], self.x[ours & open_to]
            ends[depth] = (measured.min(), measured.max(), float(possible.min()), float(possible.max()))
        covered, lacking = [], []
        for index, pair in enumerate(self.pairs):
            cross = self.cross[index]
            below = self.places[(z[index] <= -CLEAR) & (self.places <= cross)]
            above = self.places[(z[index] >= CLEAR) & (self.places >= cross)]
            low = max(float(below[-1]) if len(below) else -math.inf, cross - FARTHEST)
            high = min(float(above[0]) if len(above) else math.inf, cross + FARTHEST)
            missing = []
            for depth in pair:
                smallest, largest, least, most = ends[depth]
                if smallest > max(low, least) + 1e-9:
                    missing.append((depth, -1, max(low, least)))
                if largest < min(high, most) - 1e-9:
                    missing.append((depth, 1, min(high, most)))
            covered.append(not missing and bool(self.possible[index]))
            lacking.append(tuple(missing))
        return np.array(covered), tuple(lacking)

    def _objective_parts(self, crossings: Floats, covered: Flags) -> tuple[Floats, float]:
        """Return the weights of the crossings in the objective, (objectives, pairs), and the variance to minimise.

        Args:
            crossings: (pairs, pairs), covariance of ln d at the crossings.
            covered: which of them count.
        """
        used = np.flatnonzero(covered)
        if self.objective.kind == "crossings":
            variance = np.where(covered, np.diag(crossings), UNKNOWN**2)
            variance = variance / (1 + variance / UNKNOWN**2)
            # A smooth maximum of the variances: with the largest alone, most steps would gain nothing.
            value = float(np.sum(variance**4) ** 0.25)
            share = np.where(covered, (variance / value) ** 1.5 / (1 + np.diag(crossings)), 0.0)
            return np.diag(share), value
        design = np.column_stack([np.ones(len(used)), self.middle[used]])
        matrix = crossings[np.ix_(used, used)] + SCATTER**2 * np.eye(len(used))
        weighted = np.linalg.solve(matrix, design).T
        every = np.column_stack([np.ones_like(self.middle), self.middle])
        vague = every.T @ every / (UNKNOWN**2 * len(self.middle))
        # Keeps the matrix invertible if there is only one crossing.
        vague[np.diag_indices(2)] += 1e-9
        covariance = np.linalg.inv(weighted @ design + vague)
        towards = self._direction()
        value = float(towards @ covariance @ towards)
        parts = np.zeros((2, len(covered)))
        parts[0, used] = towards @ covariance @ weighted
        # The doubtful combination counts as much as the objective at first, and less with every cell that measures it.
        parts[1] = math.sqrt(value) * self.doubt
        return parts, value * (1 + float(self.doubt @ crossings @ self.doubt))

    def _direction(self) -> Floats:
        """Return the derivative of the objective with respect to (a, b), up to a factor."""
        if self.objective.kind == "b":
            return np.array([0.0, 1.0])
        depth = solve_depth(self.a, self.b, float(self.objective.params or 0))
        # From 12·L·exp(2(a + b·L)) = N; an uncertain law may put the best depth anywhere.
        return np.array([1.0, min(max(depth, 1.0), 20 * float(self.depth.max()))])

    def best(self) -> Step | None:
        """Return the step with the largest gain per cost; None if no option is left."""
        state = self.state
        weight = np.abs(state.parts).sum(axis=0) * np.sqrt(
            np.maximum(np.diag(self._crossing_covariance(state.inverse, state.moved)), 0)
        )
        heavy = self.pairs[int(np.argmax(weight))]
        runs = self._drops()
        steps: list[tuple[float, Step]] = []
        if self.free.any():
            rate = np.where(self.free, runs / state.value / self.cost, -np.inf)
            # Among rates equal to nine digits the first, which is the cheapest with the lowest seed.
            single = int(np.argmax(rate >= float(rate.max()) - 1e-9 * abs(float(rate.max()))))
            steps.append((float(rate[single]), Step(single, float(runs[single]) / state.value, heavy, "run")))
        for index, missing in enumerate(state.lacking):
            cells = self._reach(missing) if missing and self.possible[index] else ()
            if cells:
                after = self.taken.copy()
                after[self.shape_of[list(cells)], self.seed_of[list(cells)]] = 1
                gain = 1 - self._follow(after).stated / state.stated
                cost = float(self.cost[list(cells)].sum())
                if cost <= AFFORDED * self.spent or not self.free.any():
                    steps.append((gain / cost, Step(cells[0], gain, self.pairs[index], "side")))
        return max(steps, key=lambda item: item[0])[1] if steps else None

    def _crossing_covariance(self, inverse: Floats, moved: Floats) -> Floats:
        """Return the covariance of ln d at the crossings, (pairs, pairs)."""
        carried = self.rows @ moved
        return np.asarray(self.rows @ inverse @ self.rows.T + carried @ carried.T)

    def _reach(self, missing: tuple[tuple[int, int, float], ...]) -> tuple[int, ...]:
        """Return the cheapest option that reaches each missing side, or nothing if one cannot be reached."""
        cells: list[int] = []
        x = self.x[self.shape_of]
        for depth, side, there in missing:
            far = (side * (x - there) >= -1e-9) & (self.depth[self.shape_of] == depth) & self.free
            found = np.flatnonzero(far)
            if not len(found):
                return ()
            # Below the crossing the largest size that is far enough, which is nearest to the place to reach.
            key = self.cost[found] if side > 0 else -self.cost[found]
            cells.append(int(found[np.lexsort((self.seed_of[found], key))[0]]))
        return tuple(dict.fromkeys(cells))

    def _drops(self) -> Floats:
        """Compute by how much one more cell of each option reduces the variance, for fixed weights of the crossings."""
        state = self.state
        towards = state.parts @ self.rows
        moved = self.jacobian @ (state.inverse @ towards.T)
        lever = np.sum((self.jacobian @ state.inverse) * self.jacobian, axis=1)
        # Shared noise of the seeds in the objectives, (objectives, seeds), and in each shape, (shapes, seeds).
        shared = moved.T @ state.loads
        carried = self.jacobian @ state.moved
        weight = self._weights(state.runs + 1)
        load = self._load(weight, state.runs + 1)
        more = weight - state.weight
        after = moved / (1 + more * lever)[:, None]
        base = (
            shared[None]
            - more[:, None, None] * after[:, :, None] * carried[:, None, :]
            + after[:, :, None] * (load[:, None] * self.taken - state.loads)[:, None, :]
        )
        own = np.sum(more[:, None] * after * moved, axis=1)
        by_shape = own + np.sum(shared**2) - np.sum(base**2, axis=(1, 2))
        # What depends on the seed.
        added = (after * load[:, None])[self.shape_of]
        there = base[self.shape_of, :, self.seed_of]
        return np.asarray(by_shape[self.shape_of] - np.sum(2 * there * added + added**2, axis=1))

    def take(self, option: int) -> None:
        """Count an option as measured with the loss that its curve predicts."""
        shape = int(self.shape_of[option])
        self.spent += float(self.cost[option])
        self.free[option] = False
        self.taken[shape, self.seed_of[option]] = 1
        self.state = self._follow(self.taken)


def sure_noise(curves: Curves) -> tuple[float, float]:
    """Bound the shared noise and the misfit of the shapes from below, so that few replicates do not suggest them.

    A search that mistakes noise for misfit chooses only new sizes, and no further seed corrects it. A shared part
    that is too large has the same effect. With three seeds it has two degrees of freedom, whatever the number of
    shapes, and without this bound one study in ten cost several times as much as its grid. The seeds are those of the
    shape that has most.

    Returns:
        The share of the variance that shapes of a seed have in common, and the misfit over the noise of one seed.
    """
    noise = curves.noise
    if noise.source != "seeds":
        return noise.correlation, curves.misfit_sd_ratio
    rho = noise.correlation * min(1.0, (noise.seeds - 1) / float(chi2.ppf(SURE, noise.seeds - 1)))
    larger = noise.dof / float(chi2.ppf(1 - SURE, noise.dof))
    runs = float(np.mean(1 / curves.count))
    found = (1 - noise.correlation) * runs + curves.misfit_sd_ratio**2
    return rho, math.sqrt(max(found / larger - (1 - rho) * runs, 0.0))
