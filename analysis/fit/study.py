"""A study in memory: the losses compared, their curves, the crossings, and every law fitted to them.

`study_of` is the only way from a run table to these. The fit file, the report, the state of a study, a recommendation,
the search and the simulations behind a power estimate all start here, so that they rest on the same numbers.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.curves.unusual_runs import UnusualRun, unusual_runs
from analysis.fit.rate_check import RateCheck, check_rates, split_sensitivity_runs, widened
from analysis.law.crossing_laws import with_crossing_laws
from analysis.law.crossings import Crossing, Crossings, find_crossings
from analysis.law.decision import GapLaws
from analysis.law.gap_fit import fit_gap_laws, points_of
from analysis.law.prediction import predict
from analysis.law.reading import AtSize, Reading, best_shapes, read_curves
from analysis.law.reasons import Because, Reason
from analysis.law.shape import Projection
from analysis.law.threshold import fit_laws
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.columns import layer_weights
from analysis.runs.comparison import ComparedRuns, compare
from analysis.runs.table import RunTable
from analysis.runs.tokens import TokenRule
from analysis.threads import single_threaded
from core.errors import InputError, shortened
from core.numbers import is_number

NOT_COMPARABLE = Because(Reason.DIFFERENT_TOKENS)
#: (depth, N, runs) of shapes whose runs all diverged.
Lost = tuple[tuple[int, float, int], ...]


@dataclass(frozen=True)
class Estimates:
    """Curves of the losses compared, and what follows from them.

    Attributes:
        rows: the losses compared, one row per depth, N and seed.
        curves: of the losses against ln N.
        crossings: of neighbouring depths.
        refusal: why nothing is projected beyond the measured sizes, if so.
    """

    rows: pd.DataFrame
    curves: Curves
    crossings: Crossings
    refusal: Because | None

    @cached_property
    def laws(self) -> tuple[ThresholdLaw, ...]:
        """The law of every form through the crossings, the log-linear one first."""
        return fit_laws(self.crossings)

    @cached_property
    def gap_laws(self) -> GapLaws:
        """Laws of the gaps between the depths, for sizes beyond the measured ones."""
        of_losses = fit_gap_laws(points_of(self.curves, self.curves.misfit_sd))
        return with_crossing_laws(of_losses, self.laws, self.crossings)

    def predict(self, params: float) -> Projection:
        """The depth of least expected loss at N = `params` with the interval of the best one, whatever it may lose."""
        crossings, refusal = self.crossings, self.refusal
        laws, level = self.gap_laws, crossings.level
        return predict(laws, crossings.items, params, level=level, within=math.inf, refusal=refusal)


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
    comparison: ComparedRuns

    @cached_property
    def layer_weights(self) -> float:
        """N over L·d²: 4 if no model has a feed-forward network, else 12."""
        return float(layer_weights(self.rows).max())

    @property
    def entered(self) -> pd.DataFrame:
        """The rows of the run table whose losses are part of a loss that is compared."""
        used, merged = self.runs.used, self.comparison.merged
        return used[used.index.isin(self.rows.index) | used.index.isin(merged)]

    @cached_property
    def gap_laws(self) -> GapLaws:
        """Laws of the gaps between the depths; none if no two depths can be compared."""
        if self.comparison.tokens.comparable:
            return replace(super().gap_laws, layer_weights=self.layer_weights)
        return GapLaws((), None, tuple(self.curves.depths), None, (NOT_COMPARABLE,))

    @cached_property
    def learning_rate(self) -> RateCheck | None:
        """Whether the learning rate was checked; None if no pair of depths can be compared."""
        return check_rates(self.sensitivity_runs, self.comparison, self.curves, self.crossings)

    @cached_property
    def stated_crossings(self) -> tuple[Crossing, ...]:
        """The crossings; after sensitivity runs their intervals include the shift to the best learning rates."""
        items = (replace(item, layer_weights=self.layer_weights) for item in self.crossings.items)
        return widened(tuple(items), self.learning_rate)

    @cached_property
    def reading(self) -> Reading:
        """Which depth is best at each measured size; empty if no two depths can be compared."""
        if not self.comparison.tokens.comparable:
            return Reading(layer_weights=self.layer_weights)
        lost = _lost(self.comparison.diverged)
        reading = read_curves(self.rows, self.curves, self.stated_crossings, self.crossings.quantile, lost)
        return replace(reading, layer_weights=self.layer_weights)

    @cached_property
    def best(self) -> tuple[AtSize, ...]:
        """What is known at each budget."""
        return best_shapes(self.rows, self.curves, self.reading)

    @cached_property
    def unusual(self) -> tuple[UnusualRun, ...]:
        """Runs whose loss lies far off the others; they are compared like all others."""
        return unusual_runs(self.rows) if self.comparison.tokens.rule not in ("groups", "compute") else ()

    @cached_property
    def without_unusual(self) -> "Study":
        """The study without its unusual runs."""
        rows = self.rows.drop(index=[run.row for run in self.unusual])
        estimates = estimates_of(rows, level=self.crossings.level, diverged=_lost(self.comparison.diverged))
        return replace(self, rows=rows, curves=estimates.curves, crossings=estimates.crossings)


def estimates_of(
    rows: pd.DataFrame, *, level: float = 0.95, diverged: Lost = (), not_comparable: Because | None = None
) -> Estimates:
    """The estimates of losses at equal tokens, one row per depth, params and seed, as of a simulated study.

    `not_comparable` is why two depths cannot be compared, if so: there are then curves, but no crossings.
    """
    curves = build_curves(rows)
    crossings = find_crossings(curves, level=level, diverged=diverged, not_comparable=not_comparable)
    return Estimates(rows, curves, crossings, None)


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
    if not is_number(level) or not 0 < level < 1:
        shown = f"{level:g}" if is_number(level) else shortened(repr(level))
        raise InputError(f"The level is {shown}; it must lie between 0 and 1, as 0.95.")
    runs, again = split_sensitivity_runs(runs)
    comparison = compare(runs, tokens=tokens)
    rule = comparison.tokens
    apart = None if rule.comparable else NOT_COMPARABLE
    lost = _lost(comparison.diverged)
    estimates = estimates_of(comparison.rows, level=level, diverged=lost, not_comparable=apart)
    return Study(
        estimates.rows,
        estimates.curves,
        estimates.crossings,
        refusal_of(rule),
        runs,
        again,
        comparison,
    )


def refusal_of(rule: TokenRule) -> Because | None:
    """Why the tokens of a table allow no projection beyond its sizes; None if they do."""
    if rule.refusal is None:
        return None
    return Because(Reason.TOKENS_OF_TABLE, (rule.refusal.about.value, *rule.refusal.values))


def _lost(diverged: pd.DataFrame) -> Lost:
    whole = diverged[diverged["diverged"] == diverged["of"]]
    return tuple(
        (int(depth), float(params), int(runs))
        for depth, params, runs in zip(whole["depth"], whole["params"], whole["of"], strict=True)
    )
