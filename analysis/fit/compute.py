"""The best depth at equal compute or time: which depth, width and number of tokens a budget is best spent on."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from analysis.curves.budgets import width_step
from analysis.fit.study import Study, estimates_of
from analysis.intervals import width_of
from analysis.law.crossings import NEAR_END, Crossing
from analysis.law.reading import AtSize, Reading, read_curves
from analysis.law.reasons import Because, Reason
from analysis.law.shape import ComputeShape, DepthAtCompute, buildable_width
from analysis.runs.isoflop import BestSize, compute_minima
from analysis.runs.remarks import Remark
from analysis.runs.tokens import Rule
from analysis.runs.words import texts_of
from analysis.units import LOSS, BudgetUnit

#: Rules of tokens under which a table may have several budgets of compute.
RULES: tuple[Rule, ...] = ("groups", "equal_compute", "compute", "unequal")


@dataclass(frozen=True)
class LowestLoss:
    """The lowest mean loss, at N = `params`, of a depth without a minimum at a budget."""

    depth: int
    budget: float
    params: float
    loss: float = field(metadata=LOSS)


@dataclass(frozen=True)
class ComputeAnswer:
    """Which depth, size and tokens are best at which compute or training time.

    No law in the width holds for these crossings, because N differs between depths at one budget.

    Attributes:
        unit: of the budgets C.
        budgets: those of the table, ascending.
        crossings: of neighbouring depths; their `params` are C.
        reading: which depth is best at each C; its `params` are C, and its widths have no meaning.
        sizes: the best N of each depth.
        size_sd: of ln N of one minimum about these.
        without: minima that there are not.
        lowest: of these, the losses that a minimum would not exceed.
    """

    JSON_PROPERTIES: ClassVar = ("left_out",)

    unit: BudgetUnit
    budgets: tuple[float, ...]
    crossings: tuple[Crossing, ...]
    reading: Reading
    sizes: tuple[BestSize, ...]
    size_sd: float
    without: tuple[Remark, ...] = ()
    lowest: tuple[LowestLoss, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The words of `without`."""
        return tuple(texts_of(self.without))

    def at(self, budget: float) -> ComputeShape:
        """The shape of least loss at a budget in `unit`; the source is `none` outside the budgets."""
        if (
            not math.log(self.budgets[0]) - NEAR_END
            <= math.log(budget)
            <= math.log(self.budgets[-1]) + NEAR_END
        ):
            reach = Because(Reason.OUTSIDE_COMPUTES, (self.budgets[0], self.budgets[-1], self.unit))
            return self._nothing(budget, reach, outside=True)
        compared = self.reading.at(budget)
        if compared is None:
            return self._nothing(budget, Because(Reason.FEW_MINIMA))
        if better_elsewhere := self._better(budget, compared):
            better, least = better_elsewhere
            percent = 100 * (1 - better.loss / least)
            values = better.depth, percent, better.params, better.budget, self.unit
            return self._nothing(budget, Because(Reason.BETTER_AT_END, values))
        step, weights = self.reading.width_step, self.reading.layer_weights
        sizes = {size.depth: size for size in self.sizes}
        others = tuple(
            DepthAtCompute(
                shape.depth,
                buildable_width(width_of(sizes[shape.depth].params(budget), shape.depth, weights), step),
                sizes[shape.depth].params(budget),
                sizes[shape.depth].tokens(budget),
                shape.excess,
            )
            for shape in sorted(compared.shapes, key=lambda shape: (shape.excess, shape.depth))
            if shape.depth != compared.depth
        )
        best = sizes[compared.depth]
        return ComputeShape(
            flops=self._flops(budget),
            minutes=self._minutes(budget),
            depth=compared.depth,
            params=best.params(budget),
            tokens=best.tokens(budget),
            depth_interval=compared.depth_interval,
            source="measured",
            law=f"the lowest loss at this {'compute' if self.unit == 'FLOPs' else 'training time'}",
            reasons=(Because(Reason.WITHOUT_MINIMUM, compared.missing),) if compared.missing else (),
            loss=compared.loss,
            near=compared.near,
            others=others,
            width_step=step,
            layer_weights=weights,
        )

    def _flops(self, budget: float) -> float | None:
        return budget if self.unit == "FLOPs" else None

    def _minutes(self, budget: float) -> float | None:
        return budget if self.unit == "minutes" else None

    def _nothing(self, budget: float, reason: Because, *, outside: bool = False) -> ComputeShape:
        """The answer at a budget where there is none."""
        return ComputeShape(
            flops=self._flops(budget),
            minutes=self._minutes(budget),
            depth=None,
            params=None,
            tokens=None,
            depth_interval=(None, None),
            source="none",
            law="",
            reasons=(reason,),
            extrapolated=outside,
        )

    def _better(self, place: float, compared: AtSize) -> tuple[LowestLoss, float] | None:
        """A loss at a budget next to this place below the least one there, of a depth without a minimum; and both."""
        low = max((budget for budget in self.budgets if budget <= place * math.exp(NEAR_END)), default=place)
        high = min(
            (budget for budget in self.budgets if budget >= place * math.exp(-NEAR_END)), default=place
        )
        measured = {shape.depth for shape in compared.shapes}
        for lowest in self.lowest:
            if low <= lowest.budget <= high and lowest.depth not in measured:
                at_its_budget = self.reading.at(lowest.budget)
                if at_its_budget is not None and lowest.loss < at_its_budget.loss:
                    return lowest, at_its_budget.loss
        return None

    @property
    def best(self) -> tuple[ComputeShape, ...]:
        """The shape of least loss at every budget with one."""
        return tuple(shape for shape in map(self.at, self.budgets) if shape.depth is not None)


def compute_answer(study: Study) -> ComputeAnswer | None:
    """The answer at equal compute or time of a study with several budgets of it; None of any other."""
    if study.comparison.tokens.rule not in RULES:
        return None
    table = compute_minima(study.runs.used)
    if table is None:
        return None
    estimates = estimates_of(table.rows, level=study.crossings.level)
    crossings = estimates.crossings.items
    reading = read_curves(table.rows, estimates.curves, crossings, estimates.crossings.quantile)
    budgets = sorted({float(compute) for compute in table.rows["params"]})
    without = tuple(table.left_out.values())
    lowest = tuple(LowestLoss(*key, *value) for key, value in table.lowest.items())
    step, weights = width_step(study.runs.used), study.layer_weights
    reading = replace(reading, width_step=step, layer_weights=weights)
    return ComputeAnswer(
        table.unit, tuple(budgets), crossings, reading, table.sizes, table.sd, without, lowest
    )
