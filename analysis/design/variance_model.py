"""What cells that are not trained yet would do to the variance of an objective: the algebra behind `analysis.design.next_cells`.

The curves of a fit are linear in their parameters near the fit, and the fit weighs the mean loss of each shape by its
own noise and lack of fit. So the covariance of the parameters is known for any set of runs: M^-1 from the shapes' own
errors, and beside it one term a seed for what all shapes of that seed share (`Curves.covariance` of the study as it
would be). One more run of a shape changes the weight of that shape only, a change of rank one, so that the gain of all
options is had in one go.
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
from analysis.design.learning_rates import RatePlan
from analysis.design.objective import Objective
from analysis.law.crossings import roots
from analysis.law.projection import solve_depth

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Places in ln N at which gaps are looked at.
PLACES = 121
#: A prior as weak as one loss at so many standard deviations of a seed: it only keeps the first steps finite.
VAGUE = 30.0
#: Standard deviation in ln d of a crossing before it is measured, and about the line through the others.
UNKNOWN, ABOUT = 1.0, 0.25
#: Scatter of ln d about the law that is never ruled out.
SCATTER = 0.01
#: Mean weighted square of the crossings about the line from which they are looked into; from 1 on the fit takes it for
#: a scatter.
DOUBTFUL = 0.7
#: Probability that the variance of the noise is below what is allowed for when shapes are said to stray.
SURE = 0.8
#: How far a gap must be from zero at the ends of what is measured, in standard errors, and how far out that is looked
#: for, in ln N. 2 would be the test itself; half of the crossings would then fail it when the losses come in.
CLEAR = 2.5
FARTHEST = 0.9
#: Largest cost of what a side lacks, as a share of what was spent before: where the side lies is better known later.
AFFORDED = 0.5


@dataclass(frozen=True)
class Step:
    """The next best thing to do.

    Attributes:
        option: its index. Where several are worth something only together it is the first of them, and when that is
            taken the next are the more worth their cost.
        gain: relative drop of the variance of the objective.
        pair: the crossing it is for: the one that weighs most in the objective, or that lacks a side.
        kind: a `run` at the rate of its shape's others, one for a `side` of the crossing that lacks, or one at another
            learning `rate`.
    """

    option: int
    gain: float
    pair: tuple[int, int]
    kind: Literal["run", "side", "rate"]


@dataclass(frozen=True)
class _State:
    """What follows from a set of runs.

    Attributes:
        inverse: M^-1, (parameters, parameters).
        loads: (shapes, seeds), how the weighted losses carry what each seed shares; `moved` M^-1 J' loads.
        weight, runs: (shapes,).
        lacking: by pair, for each side of the crossing that is not measured as far as it must be: (depth, side, ln N to
            reach).
        law: weights of the crossings in the objective, (objectives, pairs), and the objectives' variances.
        value: what is to be made small, every crossing being measured on both sides; `stated` with those that are.
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


class Model:
    """A study, its options, and the objective."""

    def __init__(
        self,
        curves: Curves,
        shapes: Sequence[Key],
        measured: Floats,
        begun: Floats,
        shape_of: Integers,
        seed_of: Integers,
        cost: Floats,
        overhead: float,
        spent: float,
        objective: Objective,
        rates: RatePlan,
    ) -> None:
        """Linearise the study at its fit.

        Args:
            curves: the fit so far; the noise must be known, and every depth of `shapes` have a curve.
            shapes: (depth, N) of all that is measured, runs, or may be chosen.
            measured: (shapes, seeds), 1 where a run has a loss.
            begun: the same of runs under way.
            shape_of: of every option, its row in these.
            seed_of: of every option, its column there.
            cost: of every option, FLOPs.
            overhead: what any option costs besides.
            spent: cost of all that is measured or begun.
            objective: what is asked for.
            rates: at which learning rate each shape is, and what that may cost it.
        """
        self.objective, self.shape_of, self.seed_of = objective, shape_of, seed_of
        self.taken = np.maximum(measured, begun)
        self.free = rates.single.copy()
        self.probes = dict(rates.probes)
        self.excess = rates.excess.copy()
        self.cost = cost + overhead
        self.spent = spent
        self.depth = np.array([depth for depth, _ in shapes])
        self.x = np.log(np.array([params for _, params in shapes]))
        smooth, noise = curves.smooth, curves.noise
        self.jacobian = np.vstack(
            [
                smooth.jacobian(depth, np.array([x]))
                for depth, x in zip(self.depth.tolist(), self.x, strict=True)
            ]
        )
        loss = np.array(
            [smooth.loss(d, np.array([x]))[0] for d, x in zip(self.depth.tolist(), self.x, strict=True)]
        )
        # A curve that is followed beyond its points may fall below zero; the noise is not followed that far.
        loss = np.clip(loss, curves.mean.min() / 2, curves.mean.max() * 2)
        self.sd = noise.sd_at(loss)
        sums = dict(
            zip(
                zip(curves.depth.tolist(), curves.x, strict=True), curves.forecast * curves.count, strict=True
            )
        )
        #: Sum of the squared errors of the losses of a shape that are forecasts.
        self.foretold = np.array(
            [sums.get(place, 0.0) ** 2 for place in zip(self.depth.tolist(), self.x, strict=True)]
        )
        self.rho, self.stray = sure_noise(curves)
        self.places = np.linspace(float(self.x.min()), float(self.x.max()), PLACES)
        tables = {depth: smooth.jacobian(depth, self.places) for depth in curves.depths}
        values = {depth: smooth.loss(depth, self.places) for depth in curves.depths}
        self.pairs = list(itertools.pairwise(curves.depths))
        self.shallow = np.array([pair[0] for pair in self.pairs], dtype=float)
        self.gap = np.vstack([values[s] - values[d] for s, d in self.pairs])
        self.table = np.stack([tables[s] - tables[d] for s, d in self.pairs])
        vague = np.vstack(list(tables.values())) / (VAGUE * float(np.median(self.sd)) * math.sqrt(PLACES))
        prior = vague.T @ vague
        # An exponent at the end of its range and a coefficient of a spline at zero do not move: no loss tells of them.
        self.prior = prior + 1e-9 * float(np.mean(np.diag(prior))) * np.eye(len(prior))
        self._locate(measured)
        self.state = self._follow(self.taken)

    def _locate(self, measured: Floats) -> None:
        """Where each pair crosses, its slope there, and the law: the fit, drawn to the line where it says little.

        From what is measured alone, so that a choice does not depend on which cells happen to be under way.
        """
        inverse, _, moved, _, _ = self._covariance(measured, np.zeros(len(measured)))
        found = roots(self.places, self.gap).x
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
        offset = np.log(12 * self.shallow)
        log_width = (x - offset) / 2
        own = np.where(inside, np.diag(joint), np.inf)
        a, b = self._line(log_width, own)
        said = a + b * self.shallow
        share = ABOUT**2 / (ABOUT**2 + own)
        share = np.where(inside, share, 0.0) if inside.sum() >= 2 else np.ones(len(x))
        log_width = share * log_width + (1 - share) * said
        self.cross = np.clip(offset + 2 * log_width, low, high)
        # A pair that cannot cross at any size allowed takes no part.
        self.possible = (offset + 2 * log_width >= low - 1e-9) & (offset + 2 * log_width <= high + 1e-9)
        self.rise = np.maximum(rise[pair, at(self.cross)], least)
        self.rows = self.table[pair, at(self.cross)] / (2 * self.rise)[:, None]
        self.a, self.b = a, b
        self.doubt = self._doubt(np.flatnonzero(inside), (found - offset) / 2, joint)

    def _doubt(self, inside: Integers, log_width: Floats, joint: Floats) -> Floats:
        """(pairs,): the combination of crossings in which they leave the line most, in standard errors; else 0.

        Where they stray by more than their errors the fit must take it for a scatter, and its intervals become twice as
        wide and more. Most often it is chance, and only better crossings tell: those that stray.
        """
        result = np.zeros(len(self.pairs))
        if len(inside) < 3:
            return result
        matrix = joint[np.ix_(inside, inside)] + 1e-12 * np.eye(len(inside))
        design = np.column_stack([np.ones(len(inside)), self.shallow[inside]])
        solved = np.linalg.solve(matrix, design)
        law = np.linalg.solve(design.T @ solved, solved.T @ log_width[inside])
        residual = log_width[inside] - design @ law
        towards = np.linalg.solve(matrix, residual)
        square = float(residual @ towards)
        if square > DOUBTFUL * len(inside):
            result[inside] = towards / math.sqrt(square)
        return result

    def _line(self, log_width: Floats, variance: Floats) -> tuple[float, float]:
        """Ln d = a + b·L through the crossings there are; b positive, for only then is a depth projected."""
        weight = 1 / (variance + ABOUT**2)
        spread = float(np.ptp(self.shallow)) or float(self.pairs[0][1] - self.pairs[0][0])
        flattest = 0.2 / spread
        if np.sum(weight > 0) < 2:
            known = int(np.argmax(weight))
            b = 1 / spread
            return float(log_width[known] - b * self.shallow[known]), b
        design = np.column_stack([np.ones_like(self.shallow), self.shallow])
        a, b = np.linalg.solve(design.T @ (weight[:, None] * design), design.T @ (weight * log_width))
        if b < flattest:
            b = flattest
            a = float(np.average(log_width - b * self.shallow, weights=weight))
        return float(a), float(b)

    def _covariance(self, taken: Floats, excess: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Return M^-1, the seeds' loads, M^-1 J' loads, weights and runs."""
        runs = np.asarray(taken.sum(axis=1))
        weight = self._weights(runs, excess)
        inverse = np.asarray(
            np.linalg.inv(self.prior + self.jacobian.T @ (weight[:, None] * self.jacobian)), dtype=np.float64
        )
        loads = (self._load(weight, runs))[:, None] * taken
        return inverse, loads, inverse @ (self.jacobian.T @ loads), weight, runs

    def _weights(self, runs: Floats, excess: Floats) -> Floats:
        """Inverse variance of a shape's mean about its curve, without what seeds share; 0 without runs."""
        seeds = ((1 - self.rho) * self.sd**2 + self.foretold / np.maximum(runs, 1)) / np.maximum(runs, 1)
        own = seeds + (self.stray * self.sd) ** 2 + excess**2
        return np.asarray(np.where(runs > 0, 1 / own, 0.0))

    def _load(self, weight: Floats, runs: Floats) -> Floats:
        return np.asarray(weight * self.sd * math.sqrt(self.rho) / np.maximum(runs, 1))

    def _follow(self, taken: Floats) -> _State:
        inverse, loads, moved, weight, runs = self._covariance(taken, self.excess)
        covered, lacking = self._sides(inverse, moved, runs)
        crossings = self.rows @ inverse @ self.rows.T + (self.rows @ moved) @ (self.rows @ moved).T
        parts, value = self._aims(crossings, self.possible)
        _, stated = self._aims(crossings, covered)
        return _State(inverse, loads, moved, weight, runs, lacking, parts, value, stated)

    def _sides(
        self, inverse: Floats, moved: Floats, runs: Floats
    ) -> tuple[Flags, tuple[tuple[tuple[int, int, float], ...], ...]]:
        """Which crossings are measured on both sides, and what the others lack."""
        variance = np.vecdot(self.table @ (inverse + moved @ moved.T), self.table)
        z = self.gap / np.sqrt(variance)
        there = runs > 0
        open_to = there.copy()
        open_to[self.shape_of[self.free]] = True
        # Smallest and largest ln N of each depth: what is measured, and what may be.
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

    def _aims(self, crossings: Floats, covered: Flags) -> tuple[Floats, float]:
        """How the crossings enter the objective, (objectives, pairs), scaled so that the squares add up to what is made small.

        Args:
            crossings: (pairs, pairs), covariance of ln d at the crossings.
            covered: which of them count.
        """
        used = np.flatnonzero(covered)
        if self.objective.kind == "crossings":
            variance = np.where(covered, np.diag(crossings), UNKNOWN**2)
            variance = variance / (1 + variance / UNKNOWN**2)
            # The largest counts; the fourth power of the others keeps a step towards it from being worth nothing.
            value = float(np.sum(variance**4) ** 0.25)
            share = np.where(covered, (variance / value) ** 1.5 / (1 + np.diag(crossings)), 0.0)
            return np.diag(share), value
        design = np.column_stack([np.ones(len(used)), self.shallow[used]])
        matrix = crossings[np.ix_(used, used)] + SCATTER**2 * np.eye(len(used))
        weighted = np.linalg.solve(matrix, design).T
        every = np.column_stack([np.ones_like(self.shallow), self.shallow])
        vague = every.T @ every / (UNKNOWN**2 * len(self.shallow))
        # Two crossings with one slope say nothing of each other without it.
        vague[np.diag_indices(2)] += 1e-9
        covariance = np.linalg.inv(weighted @ design + vague)
        towards = self._direction()
        value = float(towards @ covariance @ towards)
        parts = np.zeros((2, len(covered)))
        parts[0, used] = towards @ covariance @ weighted
        # What is doubtful counts as much as the objective itself at first, and less with every run that tells of it.
        parts[1] = math.sqrt(value) * self.doubt
        return parts, value * (1 + float(self.doubt @ crossings @ self.doubt))

    def _direction(self) -> Floats:
        """Derivative of the objective with respect to (a, b), up to a factor."""
        if self.objective.kind == "b":
            return np.array([0.0, 1.0])
        depth = solve_depth(self.a, self.b, float(self.objective.params or 0))
        # From 12·L·exp(2(a + b·L)) = N; a law still unknown may put the best depth anywhere.
        return np.array([1.0, min(max(depth, 1.0), 20 * float(self.depth.max()))])

    # -- steps -----------------------------------------------------------------------------------------------------

    def best(self) -> Step | None:
        """The step with the largest gain for its cost; None where no option is left."""
        state = self.state
        weight = np.abs(state.parts).sum(axis=0) * np.sqrt(np.maximum(np.diag(self._places_of(state)), 0))
        heavy = self.pairs[int(np.argmax(weight))]
        runs, rates = self._drops()
        steps: list[tuple[float, Step]] = []
        if self.free.any():
            rate = np.where(self.free, runs / state.value / self.cost, -np.inf)
            # Equal to nine digits is equal: the first then, which is the cheapest with the lowest seed.
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
        for shape, cells in self.probes.items():
            gain = float(rates[shape]) / state.value
            steps.append((gain / float(self.cost[list(cells)].sum()), Step(cells[0], gain, heavy, "rate")))
        return max(steps, key=lambda item: item[0])[1] if steps else None

    def _places_of(self, state: _State) -> Floats:
        carried = self.rows @ state.moved
        return np.asarray(self.rows @ state.inverse @ self.rows.T + carried @ carried.T)

    def _reach(self, missing: tuple[tuple[int, int, float], ...]) -> tuple[int, ...]:
        """For every side that lacks, the cheapest option that reaches it."""
        cells: list[int] = []
        x = self.x[self.shape_of]
        for depth, side, there in missing:
            far = (side * (x - there) >= -1e-9) & (self.depth[self.shape_of] == depth) & self.free
            found = np.flatnonzero(far)
            if not len(found):
                return ()
            # Below the crossing the largest size that is far enough: it is nearer to what is asked.
            key = self.cost[found] if side > 0 else -self.cost[found]
            cells.append(int(found[np.lexsort((self.seed_of[found], key))[0]]))
        return tuple(dict.fromkeys(cells))

    def _drops(self) -> tuple[Floats, Floats]:
        """By how much a step lowers the value, the crossings' part in the objective held.

        Returns:
            (options,) for one more run of each; (shapes,) for knowing the best rate of each.
        """
        state = self.state
        towards = state.parts @ self.rows
        moved = self.jacobian @ (state.inverse @ towards.T)
        lever = np.sum((self.jacobian @ state.inverse) * self.jacobian, axis=1)
        # What seeds share, (objectives, seeds), and how it reaches each shape, (shapes, seeds).
        shared = moved.T @ state.loads
        carried = self.jacobian @ state.moved

        def changed(weight: Floats, load: Floats) -> tuple[Floats, Floats, Floats]:
            """The drop by shape where its weight and load become these; its load beside the drop's, and its move."""
            more = weight - state.weight
            after = moved / (1 + more * lever)[:, None]
            base = (
                shared[None]
                - more[:, None, None] * after[:, :, None] * carried[:, None, :]
                + after[:, :, None] * (load[:, None] * self.taken - state.loads)[:, None, :]
            )
            own = np.sum(more[:, None] * after * moved, axis=1)
            return own + np.sum(shared**2) - np.sum(base**2, axis=(1, 2)), base, after

        weight = self._weights(state.runs + 1, self.excess)
        load = self._load(weight, state.runs + 1)
        by_shape, base, after = changed(weight, load)
        added = (after * load[:, None])[self.shape_of]
        there = base[self.shape_of, :, self.seed_of]
        runs = by_shape[self.shape_of] - np.sum(2 * there * added + added**2, axis=1)
        if not self.probes:
            return np.asarray(runs), np.zeros(len(by_shape))
        weight = self._weights(state.runs, np.zeros_like(self.excess))
        return np.asarray(runs), changed(weight, self._load(weight, state.runs))[0]

    def take(self, option: int) -> None:
        """Count an option as if it had come out as its curve says."""
        shape = int(self.shape_of[option])
        self.spent += float(self.cost[option])
        if self.free[option]:
            self.free[option] = False
            self.taken[shape, self.seed_of[option]] = 1
        else:
            rest = tuple(cell for cell in self.probes.pop(shape) if cell != option)
            if rest:
                self.probes[shape] = rest
            else:
                self.excess[shape] = 0.0
        self.state = self._follow(self.taken)


def sure_noise(curves: Curves) -> tuple[float, float]:
    """Noise correlation and `Curves.misfit_sd_ratio`, as far as they exceed what few replicates give by chance.

    A search that takes noise for stray asks for sizes only, and then no further seed ever tells it better. The same
    holds where a share that is too large leaves too little noise for the rest: with three seeds it is known to two
    degrees of freedom, however many shapes there are, and one study in ten spent several times what its grid did. The
    seeds are those of the shape that has most.

    Returns:
        The share of the variance that shapes of a seed have in common, and a stray over the noise of one seed.
    """
    noise = curves.noise
    if noise.source != "seeds":
        return noise.correlation, curves.misfit_sd_ratio
    rho = noise.correlation * min(1.0, (noise.seeds - 1) / float(chi2.ppf(SURE, noise.seeds - 1)))
    larger = noise.dof / float(chi2.ppf(1 - SURE, noise.dof))
    runs = float(np.mean(1 / curves.count))
    found = (1 - noise.correlation) * runs + curves.misfit_sd_ratio**2
    return rho, math.sqrt(max(found / larger - (1 - rho) * runs, 0.0))
