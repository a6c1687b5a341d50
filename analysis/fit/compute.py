"""The best depth at equal compute: which depth, width and number of tokens a budget of FLOPs is best spent on."""

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
from analysis.units import LOSS

#: Rules of tokens under which a table may have several budgets of compute.
RULES: tuple[Rule, ...] = ("groups", "equal_compute", "compute", "unequal")


@dataclass(frozen=True)
class LowestLoss:
    """The lowest mean loss, at N = `params`, of a depth without a minimum at a compute in FLOPs."""

    depth: int
    flops: float
    params: float
    loss: float = field(metadata=LOSS)


@dataclass(frozen=True)
class ComputeAnswer:
    """Which depth, size and tokens are best at which compute.

    No law in the width holds for these crossings, because N differs between depths at one compute.

    Attributes:
        budgets: compute C of the table in FLOPs, ascending.
        crossings: of neighbouring depths; their `params` are C.
        reading: which depth is best at each C; its `params` are C, and its widths have no meaning.
        sizes: the best N of each depth.
        size_sd: of ln N of one minimum about these.
        without: minima that there are not.
        lowest: of these, the losses that a minimum would not exceed.
    """

    JSON_PROPERTIES: ClassVar = ("left_out",)

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

    def at(self, flops: float) -> ComputeShape:
        """The shape of least loss at a compute in FLOPs; the source is `none` outside the budgets."""
        if (
            not math.log(self.budgets[0]) - NEAR_END
            <= math.log(flops)
            <= math.log(self.budgets[-1]) + NEAR_END
        ):
            reach = Because(Reason.OUTSIDE_COMPUTES, (self.budgets[0], self.budgets[-1]))
            return _nothing(flops, reach, outside=True)
        compared = self.reading.at(flops)
        if compared is None:
            return _nothing(flops, Because(Reason.FEW_MINIMA))
        if better_elsewhere := self._better(flops, compared):
            better, least = better_elsewhere
            percent = 100 * (1 - better.loss / least)
            values = better.depth, percent, better.params, better.flops
            return _nothing(flops, Because(Reason.BETTER_AT_END, values))
        step, sizes = self.reading.width_step, {size.depth: size for size in self.sizes}
        others = tuple(
            DepthAtCompute(
                shape.depth,
                buildable_width(width_of(sizes[shape.depth].params(flops), shape.depth), step),
                sizes[shape.depth].params(flops),
                sizes[shape.depth].tokens(flops),
                shape.excess,
            )
            for shape in sorted(compared.shapes, key=lambda shape: (shape.excess, shape.depth))
            if shape.depth != compared.depth
        )
        best = sizes[compared.depth]
        return ComputeShape(
            flops,
            compared.depth,
            best.params(flops),
            best.tokens(flops),
            compared.depth_interval,
            "measured",
            "the lowest loss at this compute",
            (Because(Reason.WITHOUT_MINIMUM, compared.missing),) if compared.missing else (),
            loss=compared.loss,
            near=compared.near,
            others=others,
            width_step=step,
        )

    def _better(self, flops: float, compared: AtSize) -> tuple[LowestLoss, float] | None:
        """A loss at a budget next to this compute below the least one there, of a depth without a minimum; and both."""
        low = max((budget for budget in self.budgets if budget <= flops * math.exp(NEAR_END)), default=flops)
        high = min(
            (budget for budget in self.budgets if budget >= flops * math.exp(-NEAR_END)), default=flops
        )
        measured = {shape.depth for shape in compared.shapes}
        for lowest in self.lowest:
            if low <= lowest.flops <= high and lowest.depth not in measured:
                at_its_compute = self.reading.at(lowest.flops)
                if at_its_compute is not None and lowest.loss < at_its_compute.loss:
                    return lowest, at_its_compute.loss
        return None

    @property
    def best(self) -> tuple[ComputeShape, ...]:
        """The shape of least loss at every budget with one."""
        return tuple(shape for shape in map(self.at, self.budgets) if shape.depth is not None)


def _nothing(flops: float, reason: Because, *, outside: bool = False) -> ComputeShape:
    """The answer at a compute where there is none."""
    return ComputeShape(flops, None, None, None, (None, None), "none", "", (reason,), outside)


def compute_answer(study: Study) -> ComputeAnswer | None:
    """The answer at equal compute of a study with several budgets of compute; None of any other."""
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
    reading = replace(reading, width_step=width_step(study.runs.used))
    return ComputeAnswer(tuple(budgets), crossings, reading, table.sizes, table.sd, without, lowest)
