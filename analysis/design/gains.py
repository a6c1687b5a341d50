"""Gain of further cells: by how much each would reduce the variance of the objective.

The fit gives the joint covariance C of the losses of all depths on a grid of ln N, and of the errors that a seed adds
to its shapes (`analysis.curves.curves.Curves.joint`). One more cell observes a combination e of these with noise of its
own. If h is the derivative of the objective, the cell reduces the variance h'·C·h by (h'·C·e)² / (e'·C·e + noise), and
C by the same rule, whatever its loss turns out to be.

A crossing counts only if both depths are measured on both sides of it, up to where the gap exceeds its error. All cells
missing for that are compared with the others as one step.
"""

import itertools
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.linalg import block_diag
from scipy.sparse import csr_array
from scipy.stats import chi2

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.design.objective import Objective
from analysis.intervals import between
from analysis.law.crossings import root
from analysis.law.shape import REACH
from analysis.law.threshold_law import solve_depth

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: By pair, each side of the crossing that is not measured far enough: depth, side, ln N to reach.
Sides = tuple[tuple[tuple[int, int, float], ...], ...]

# docs/search.md has what half and twice these values cost in simulated studies.
#: Standard deviation in ln d of a crossing that is not measured.
UNKNOWN = 1.0
#: Prior standard deviation in ln d of a crossing about the line through the others.
ABOUT = 0.25
#: Least scatter of ln d about the law; it keeps a covariance invertible.
SCATTER = 0.01
#: Mean weighted square of the crossings about the line from which they are measured further; from 1 on the fit counts
#: it as scatter. Without further measurements searches for a depth cost half as much again.
DOUBTFUL = 0.7
#: Confidence of the bounds on the noise in `sure_noise`.
SURE = 0.8
#: Required distance of a gap from zero at the ends of the measured sizes, in standard errors. 2 would be the test
#: itself, which half of the crossings would then fail.
CLEAR = 2.5
#: Largest distance of these ends from the crossing, in ln N.
FARTHEST = 0.9
#: Largest cost of completing a side, as a share of what was spent before: later its position is known better. Without a
#: limit one search of nine cost twice as much.
AFFORDED = 0.5
#: Fixed cost of a cell, as a share of the most expensive one. Without it searches have 1.7 times as many cells for as
#: many FLOPs.
OVERHEAD = 0.01


@dataclass(frozen=True)
class Choice:
    """A chosen cell.

    Attributes:
        cell: its label in the table of the options.
        gain: expected relative reduction of the variance of the objective; NaN in the first design.
        kind: `first` is a cell of the first design, `side` one for a missing side of a crossing, after which the next
            ones of that side gain more per cost; `reach` is the cheapest of a size from which the law may be projected
            to that of the objective; `size` is the first run of a shape, `seed` a further one.
    """

    cell: str
    gain: float
    kind: Literal["first", "size", "seed", "side", "reach"]


def gains(covariance: Floats, objective: Floats, cells: Floats, noise: Floats) -> Floats:
    """Reduction of the summed variances of `objective` (objectives, losses) by each of `cells` (cells, state)."""
    # A cell observes a few places of one curve only.
    carried = csr_array(cells) @ covariance
    reduced = np.sum((carried[:, : objective.shape[1]] @ objective.T) ** 2, axis=1)
    return np.asarray(reduced / (np.vecdot(carried, cells) + noise))


def sure_noise(curves: Curves) -> tuple[float, float]:
    """Bound the shared noise and the nugget of the shapes from below, so that few replicates do not suggest them.

    A search that mistakes noise for a nugget chooses only new sizes, and no further seed corrects it. A shared part
    that is too large has the same effect. With three seeds it has two degrees of freedom, whatever the number of
    shapes, and without this bound one study in ten cost several times as much as its grid. The seeds are those of the
    shape that has most.

    Returns:
        The share of the variance that shapes of a seed have in common, and the nugget over the variance of one seed.
    """
    noise = curves.noise
    nugget = float(np.mean(curves.nugget) / np.mean(noise.sd_at(curves.mean) ** 2))
    if noise.source != "seeds":
        return noise.correlation, nugget
    shared = noise.correlation * min(1.0, (noise.seeds - 1) / float(chi2.ppf(SURE, noise.seeds - 1)))
    larger = noise.dof / float(chi2.ppf(1 - SURE, noise.dof))
    runs = float(np.mean(1 / curves.count))
    variance = (1 - noise.correlation) * runs + nugget
    return shared, max(variance / larger - (1 - shared) * runs, 0.0)


class Cells:
    """The joint covariance after a set of cells, and what one more run of any shape observes.

    A run of a shape observes its curve, the errors of its seed, the deviation of the shape from its curve, and its own
    noise. The deviation is the same in all runs of the shape, so that only a part of a repeated run is new.
    """

    def __init__(self, curves: Curves, depth: Integers, x: Floats, labels: Sequence[int]) -> None:
        """`depth` and `x` (ln N) are those of all shapes, `labels` all seeds that are measured, running or options."""
        noise, count = curves.noise, len(curves.depths)
        self.curves = np.vstack([curves.weights(int(d), x[[i]]) for i, d in enumerate(depth)])
        # An extrapolated curve may fall below zero; the noise is not extrapolated that far.
        loss = np.clip(self.curves @ curves.values.ravel(), curves.mean.min() / 2, curves.mean.max() * 2)
        sd = noise.sd_at(loss)
        shared, nugget = sure_noise(curves)
        self.independent, self.nugget = (1 - shared - noise.within) * sd**2, nugget * sd**2
        self.ranks, self.sizes = np.searchsorted(curves.depths, depth), np.zeros((len(depth), 2))
        #: By seed, indices in the state of the error common to all shapes, and of that of each depth; -1 of a seed that
        #: no cell has yet.
        self.causes = np.full((len(labels), 1 + count), -1)
        # Noise that is estimated from the scatter about the curves has no common causes.
        if len(curves.joint) > curves.values.size:
            self.sizes = np.column_stack([math.sqrt(shared) * sd, math.sqrt(noise.within) * sd])
            indices = [labels.index(label) for label in curves.seeds]
            places = np.arange(len(indices) * (1 + count)).reshape(1 + count, -1)
            self.causes[indices] = curves.values.size + places.T
        self.covariance = curves.joint.copy()
        self.taken = np.zeros((len(depth), len(labels)), dtype=bool)

    def observed(self, shape: Integers, seed: Integers) -> tuple[Floats, Floats]:
        """(cells, state), what one more run of each shape and seed observes, and the variance of the noise in it."""
        runs = self.taken[shape].sum(axis=1)
        each = self.independent[shape] / np.maximum(runs, 1)
        share = np.where(runs > 0, self.nugget[shape] / (self.nugget[shape] + each), 0.0)
        rows = np.zeros((len(shape), len(self.covariance)))
        rows[:, : self.curves.shape[1]] = (1 - share)[:, None] * self.curves[shape]
        noise = self.independent[shape] + np.where(runs > 0, share * each, self.nugget[shape])
        for part, place in enumerate((np.zeros_like(shape), 1 + self.ranks[shape])):
            size, cause = self.sizes[shape, part], self.causes[seed, place]
            new = cause < 0
            rows[~new, cause[~new]] += size[~new]
            # The errors of a seed that no cell has are independent of everything.
            noise += np.where(new, size**2, 0.0)
            at, column = np.nonzero(self.taken[shape] & (self.causes[:, 0] >= 0))
            rows[at, self.causes[column, place[at]]] -= (share * size / np.maximum(runs, 1))[at]
        return rows, noise

    def take(self, shape: int, seed: int) -> None:
        """Count a cell as measured."""
        if self.causes[seed, 0] < 0 and self.sizes.any():
            size, count = len(self.covariance), self.causes.shape[1]
            self.causes[seed] = size + np.arange(count)
            self.covariance = block_diag(self.covariance, np.eye(count))
        rows, noise = self.observed(np.array([shape]), np.array([seed]))
        carried = self.covariance @ rows[0]
        self.covariance -= np.outer(carried, carried / (rows[0] @ carried + noise[0]))
        self.taken[shape, seed] = True


class GainSearch:
    """A study at its fit, its options, and the objective.

    Attributes:
        cells: the covariance after the cells that are measured, running or chosen.
        free: which options are left.
    """

    def __init__(
        self,
        curves: Curves,
        options: pd.DataFrame,
        measured: pd.DataFrame,
        pending: pd.DataFrame,
        trained: Floats,
        objective: Objective,
    ) -> None:
        """Start from the fit.

        Args:
            curves: the fit so far; the noise must be known, and every depth of the options have a curve.
            options: cells to choose among, with the columns depth, params, seed and flops of a run table.
            measured: the rows of the fit.
            pending: cells that are running, with the columns of the options.
            trained: N of every cell that ended.
            objective: of the search.
        """
        self.objective = objective
        tables = (measured, pending, options)
        shape, seed = (
            np.concatenate([table[names].to_numpy(dtype=float) for table in tables])
            for names in (["depth", "params"], "seed")
        )
        shapes, row = np.unique(shape, axis=0, return_inverse=True)
        labels, column = np.unique(seed, return_inverse=True)
        self.depth, self.x = shapes[:, 0].astype(np.int64), np.log(shapes[:, 1])
        ends = np.cumsum([len(measured), len(pending)])
        (done, running, self.shape_of) = np.split(row, ends)
        (done_seed, running_seed, self.seed_of) = np.split(column, ends)
        self.labels = options.index.tolist()
        flops = np.concatenate([table["flops"].to_numpy(dtype=float) for table in (options, pending)])
        params = np.concatenate([table["params"].to_numpy(dtype=float) for table in (options, pending)])
        overhead = OVERHEAD * flops.max()
        # Rows have no cost; for equal tokens it is proportional to N.
        rate = float(np.median(flops / params))
        self.spent = rate * float(trained.sum()) + float(flops[len(options) :].sum())
        self.spent += overhead * (len(trained) + len(pending))
        self.cost = flops[: len(options)] + overhead
        self.free = np.ones(len(options), dtype=bool)
        self.cells = Cells(curves, self.depth, self.x, labels.astype(int).tolist())
        self.cells.taken[done, done_seed] = True
        self.pairs = list(itertools.pairwise(curves.depths))
        self.middle = np.array([between(*pair) for pair in self.pairs])
        self.design = np.column_stack([np.ones_like(self.middle), self.middle])
        self.places, self.gap = curves.grid, curves.values[:-1] - curves.values[1:]
        self._locate(float(np.median(self.cells.independent)) ** 0.5)
        for cell in zip(running.tolist(), running_seed.tolist(), strict=True):
            self.cells.take(*cell)

    def _locate(self, sd: float) -> None:
        """Compute the crossing of each pair, its slope there, and the law, shrinking uncertain crossings to the line.

        Only measured cells are used, so that a choice does not depend on which cells happen to be running. `sd` is the
        noise of a run.
        """
        crossings = np.array([root(self.places, gap) for gap in self.gap])
        low, high = self.places[0], self.places[-1]
        rise = np.gradient(self.gap, self.places, axis=1)
        pair = np.arange(len(self.pairs))
        inside = np.isfinite(crossings)
        x = np.clip(crossings, low, high)
        slopes = rise[pair, self._at(x)]
        steep = slopes[inside & (slopes > 0)]
        least = 0.3 * float(np.median(steep)) if len(steep) else 0.2 * sd
        rows = self._rows(x, np.maximum(slopes, least))
        joint = rows @ self._losses(self.cells) @ rows.T
        offset = np.log(12 * self.middle)
        log_width = (x - offset) / 2
        variance = np.where(inside, np.diag(joint), np.inf)
        self.a, self.b = self._line(log_width, variance)
        share = ABOUT**2 / (ABOUT**2 + variance) if inside.sum() >= 2 else np.ones(len(x))
        log_width = share * log_width + (1 - share) * (self.a + self.b * self.middle)
        place = offset + 2 * log_width
        self.cross = np.clip(place, low, high)
        # A pair that cannot cross at any allowed size takes no part.
        self.possible = (place >= low - 1e-9) & (place <= high + 1e-9)
        #: Derivatives of ln d at the crossings by the losses on the grid.
        self.rows = self._rows(self.cross, np.maximum(rise[pair, self._at(self.cross)], least))
        self.doubt = self._doubt(np.flatnonzero(inside), ((crossings - offset) / 2)[inside], joint)

    def _losses(self, cells: Cells) -> Floats:
        """The covariance of the losses on the grid."""
        size = len(self.places) * (len(self.pairs) + 1)
        return cells.covariance[:size, :size]

    def _at(self, x: Floats) -> Integers:
        return np.asarray(np.clip(np.searchsorted(self.places, x), 0, len(self.places) - 1))

    def _rows(self, x: Floats, slopes: Floats) -> Floats:
        """Derivatives of ln d at crossings at ln N = x, where the gaps have these slopes."""
        size, pair = len(self.places), np.arange(len(x))
        rows = np.zeros((len(x), size * (len(x) + 1)))
        rows[pair, pair * size + self._at(x)] = 1 / (2 * slopes)
        rows[pair, (pair + 1) * size + self._at(x)] = -1 / (2 * slopes)
        return rows

    def _doubt(self, inside: Integers, log_width: Floats, joint: Floats) -> Floats:
        """Return (pairs,) the combination of crossings that deviates most from the line, in standard errors, or zeros.

        Deviations larger than the errors count as scatter, which makes the intervals of the fit twice as wide or more.
        They are mostly chance; better measurements of those crossings decide.
        """
        result = np.zeros(len(self.pairs))
        if len(inside) < 3:
            return result
        matrix = joint[np.ix_(inside, inside)] + 1e-12 * np.eye(len(inside))
        design = self.design[inside]
        solved = np.linalg.solve(matrix, design)
        residual = log_width - design @ np.linalg.solve(design.T @ solved, solved.T @ log_width)
        towards = np.linalg.solve(matrix, residual)
        square = float(residual @ towards)
        if square > DOUBTFUL * len(inside):
            result[inside] = towards / math.sqrt(square)
        return result

    def _line(self, log_width: Floats, variance: Floats) -> tuple[float, float]:
        """Fit ln d = a + b·L to the crossings, with a positive b, because only then a depth can be projected."""
        weight = 1 / (variance + ABOUT**2)
        spread = float(np.ptp(self.middle)) or float(self.pairs[0][1] - self.pairs[0][0])
        if np.sum(weight > 0) < 2:
            likeliest, b = int(np.argmax(weight)), 1 / spread
            return float(log_width[likeliest] - b * self.middle[likeliest]), b
        weighted = self.design.T * weight
        a, b = np.linalg.solve(weighted @ self.design, weighted @ log_width)
        if b < 0.2 / spread:
            b = 0.2 / spread
            a = np.average(log_width - b * self.middle, weights=weight)
        return float(a), float(b)

    def _sides(self, cells: Cells) -> tuple[Flags, Sides]:
        """Return which crossings are measured on both sides, and the missing sides of the others."""
        losses, size = self._losses(cells), len(self.places)
        variance = np.diag(losses).reshape(-1, size)
        common = np.diagonal(losses, size).reshape(-1, size)
        z = self.gap / np.sqrt(np.maximum(variance[:-1] + variance[1:] - 2 * common, 1e-300))
        trained: Flags = np.asarray(cells.taken.any(axis=1))
        open_to = trained.copy()
        open_to[self.shape_of[self.free]] = True
        covered, lacking = [], []
        for index, pair in enumerate(self.pairs):
            cross = self.cross[index]
            below = self.places[(z[index] <= -CLEAR) & (self.places <= cross)]
            above = self.places[(z[index] >= CLEAR) & (self.places >= cross)]
            low = max(float(below[-1]) if len(below) else -math.inf, cross - FARTHEST)
            high = min(float(above[0]) if len(above) else math.inf, cross + FARTHEST)
            missing = []
            for depth in pair:
                measured, possible = (self.x[(self.depth == depth) & kind] for kind in (trained, open_to))
                least, most = max(low, float(possible.min())), min(high, float(possible.max()))
                if measured.min() > least + 1e-9:
                    missing.append((depth, -1, least))
                if measured.max() < most - 1e-9:
                    missing.append((depth, 1, most))
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
        design = self.design[used]
        weighted = np.linalg.solve(crossings[np.ix_(used, used)] + SCATTER**2 * np.eye(len(used)), design).T
        # The second term keeps the matrix invertible if there is only one crossing.
        vague = self.design.T @ self.design / (UNKNOWN**2 * len(self.middle)) + 1e-9 * np.eye(2)
        covariance = np.linalg.inv(weighted @ design + vague)
        # Derivative of the objective with respect to (a, b), up to a factor.
        # From 12·L·exp(2(a + b·L)) = N; an uncertain law may put the best depth anywhere.
        depth = solve_depth(self.a, self.b, float(self.objective.params or 0))
        towards = np.array([1.0, min(max(depth, 1.0), 20 * float(self.depth.max()))])
        value = float(towards @ covariance @ towards)
        parts = np.zeros((2, len(covered)))
        parts[0, used] = towards @ covariance @ weighted
        # The doubtful combination counts as much as the objective at first, and less with every cell that measures it.
        parts[1] = math.sqrt(value) * self.doubt
        return parts, value * (1 + float(self.doubt @ crossings @ self.doubt))

    def _value(self, cells: Cells) -> tuple[Floats, float, float, Sides]:
        """Weights of the crossings in the objective, its variance, that of crossings that count, missing sides."""
        crossings = self.rows @ self._losses(cells) @ self.rows.T
        covered, lacking = self._sides(cells)
        weights, value = self._objective_parts(crossings, self.possible)
        _, stated = self._objective_parts(crossings, covered)
        return weights, value, stated, lacking

    def choose(self) -> Choice | None:
        """Choose the step with the largest gain per cost, and count its cell; None if no option is left.

        Of several cells that help only together it is the first, so that asking for n cells equals asking n times.
        """
        left = np.flatnonzero(self.free)
        if not len(left):
            return None
        if (distant := self._nearest_in_reach()) is not None:
            self._take(distant)
            # Without it nothing is stated, whatever the other cells gain.
            return Choice(self.labels[distant], 1.0, "reach")
        weights, value, stated, lacking = self._value(self.cells)
        # The first option left of every shape: the others have seeds that fewer shapes have, or none.
        able = np.sort(left[np.unique(self.shape_of[left], return_index=True)[1]])
        observed = self.cells.observed(self.shape_of[able], self.seed_of[able])
        reduced = gains(self.cells.covariance, weights @ self.rows, *observed) / value
        per_cost = reduced / self.cost[able]
        # Among rates equal to nine digits the first, which is the cheapest with the lowest seed.
        first = int(np.argmax(per_cost >= per_cost.max() - 1e-9 * abs(per_cost.max())))
        option, gain, best, is_side = int(able[first]), float(reduced[first]), float(per_cost[first]), False
        for index, missing in enumerate(lacking):
            cells = self._reach(missing) if missing and self.possible[index] else ()
            if not cells:
                continue
            cost = float(self.cost[list(cells)].sum())
            if cost > AFFORDED * self.spent:
                continue
            after = deepcopy(self.cells)
            for cell in cells:
                after.take(int(self.shape_of[cell]), int(self.seed_of[cell]))
            together = 1 - self._value(after)[2] / stated
            if together / cost > best:
                option, gain, best, is_side = cells[0], together, together / cost, True
        is_new = not self.cells.taken[self.shape_of[option]].any()
        self._take(option)
        return Choice(self.labels[option], gain, "side" if is_side else "size" if is_new else "seed")

    def _nearest_in_reach(self) -> int | None:
        """Return the cheapest option that brings the size of a projected depth within `REACH` times those measured.

        None if it is within already, or no such option is left or affordable. The crossings are far below the largest
        sizes: without this cell searches spent twice the FLOPs of the grid and stated no depth.
        """
        if self.objective.kind != "depth":
            return None
        least = math.log(float(self.objective.params or 0) / REACH) - 1e-9
        if self.x[self.cells.taken.any(axis=1)].max() >= least:
            return None
        distant = np.flatnonzero(
            self.free & (self.x[self.shape_of] >= least) & (self.cost <= AFFORDED * self.spent)
        )
        return int(distant[np.argmin(self.cost[distant])]) if len(distant) else None

    def _reach(self, missing: tuple[tuple[int, int, float], ...]) -> tuple[int, ...]:
        """Return the cheapest option that reaches each missing side, or nothing if one cannot be reached."""
        cells: list[int] = []
        x = self.x[self.shape_of]
        for depth, side, trained in missing:
            far = (side * (x - trained) >= -1e-9) & (self.depth[self.shape_of] == depth) & self.free
            distant = np.flatnonzero(far)
            if not len(distant):
                return ()
            # Below the crossing the largest size that is far enough, which is nearest to the place to reach.
            key = self.cost[distant] if side > 0 else -self.cost[distant]
            cells.append(int(distant[np.lexsort((self.seed_of[distant], key))[0]]))
        return tuple(dict.fromkeys(cells))

    def _take(self, option: int) -> None:
        """Count an option as measured with the loss that its curve predicts."""
        self.spent += float(self.cost[option])
        self.free[option] = False
        self.cells.take(int(self.shape_of[option]), int(self.seed_of[option]))
