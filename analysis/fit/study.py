"""A study in memory: the losses compared, their curves, the crossings, and every law fitted to them.

`study_of` is the only way from a run table to these. The fit file, the report, the state of a study, a recommendation,
the search and the simulations behind a power estimate all start here, so that they rest on the same numbers.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.curves.best_shapes import BestShape, best_shapes
from analysis.curves.curves import Curves, build_curves
from analysis.errors import InputError
from analysis.fit.rate_check import RateCheck, check_rates, split_sensitivity_runs
from analysis.law.crossings import Crossings, find_crossings
from analysis.law.loss_surfaces import SurfaceFit, fit_surfaces, points_of
from analysis.law.prediction import predict
from analysis.law.shape import Shape
from analysis.law.threshold import fit_laws
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.comparison import Comparison, compare
from analysis.runs.table import RunTable
from analysis.threads import single_threaded

#: (depth, N, runs) of shapes whose runs all diverged.
Lost = tuple[tuple[int, float, int], ...]


@dataclass(frozen=True)
class Estimates:
    """Curves of the losses compared, and what follows from them.

    Attributes:
        rows: the losses compared, one row per depth, N and seed.
        curves: of the losses against ln N.
        crossings: of neighbouring depths.
        equal_tokens: whether all shapes were trained on the same number of tokens.
        refusal: why nothing is projected beyond the measured sizes, if so.
    """

    rows: pd.DataFrame
    curves: Curves
    crossings: Crossings
    equal_tokens: bool
    refusal: str | None

    @cached_property
    def laws(self) -> tuple[ThresholdLaw, ...]:
        """The law of every form through the crossings, the log-linear one first."""
        return fit_laws(self.crossings)

    @cached_property
    def surfaces(self) -> tuple[SurfaceFit, ...]:
        """Laws of the loss itself."""
        points = points_of(self.curves, self.curves.misfit_sd)
        return fit_surfaces(points, equal_tokens=self.equal_tokens)

    @cached_property
    def best(self) -> tuple[BestShape, ...]:
        """The best measured depth of each size."""
        return best_shapes(self.rows, self.curves)

    def predict(self, params: float) -> Shape:
        """The best depth at N = `params` by all laws that the data do not reject."""
        return predict(self.laws, self.surfaces, self.crossings.items, params, self.refusal)


@dataclass(frozen=True)
class Study(Estimates):
    """The estimates of a run table.

    Attributes:
        runs: rows of the study itself.
        sensitivity_runs: rows trained to check the learning rate; None without them.
        comparison: how `rows` were chosen.
    """

    runs: RunTable
    sensitivity_runs: RunTable | None
    comparison: Comparison

    @cached_property
    def learning_rate(self) -> RateCheck | None:
        """Whether the learning rate was checked; None if no pair of depths can be compared."""
        return check_rates(self.sensitivity_runs, self.comparison, self.curves, self.crossings)


def estimates_of(rows: pd.DataFrame, *, level: float = 0.95, diverged: Lost = ()) -> Estimates:
    """The estimates of losses at equal tokens, one row per depth, params and seed, as of a simulated study."""
    curves = build_curves(rows)
    return Estimates(rows, curves, find_crossings(curves, level=level, diverged=diverged), True, None)


@single_threaded
def study_of(runs: RunTable, *, level: float = 0.95, tokens: float | None = None) -> Study:
    """Compare the losses of a run table and fit their curves and crossings.

    The result depends neither on the order of the rows nor on duplicates.

    Args:
        runs: see `analysis.runs.table`.
        level: of all intervals, between 0 and 1.
        tokens: training tokens at which checkpoints are compared; by default the most that all shapes have.

    Raises:
        InputError: no usable rows, or a level out of range, or no rows at `tokens`.
    """
    if not 0 < level < 1:
        raise InputError(f"The level is {level:g}; it must lie between 0 and 1, as 0.95.")
    runs, again = split_sensitivity_runs(runs)
    comparison = compare(runs, tokens=tokens)
    found = estimates_of(comparison.rows, level=level, diverged=_lost(comparison.diverged))
    rule = comparison.tokens
    equal_tokens = rule.rule not in ("with_params", "unequal")
    return Study(
        found.rows,
        found.curves,
        found.crossings,
        equal_tokens,
        rule.no_extrapolation,
        runs,
        again,
        comparison,
    )


def _lost(diverged: pd.DataFrame) -> Lost:
    whole = diverged[diverged["diverged"] == diverged["of"]]
    return tuple(
        (int(depth), float(params), int(runs))
        for depth, params, runs in zip(whole["depth"], whole["params"], whole["of"], strict=True)
    )
