"""What Kaplan's figure shows, as plain tables: drawing it is `analysis.report.extras.drawing_kaplan`'s work."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.fit.document import Fit
from analysis.fit.kaplan import Counted, Exponent, Kaplan, Totals, totals_of
from analysis.report.figures.frames import LINE, evidence_of

_LAWS = ("counted", "form", "params", "loss")


@dataclass(frozen=True)
class KaplanData:
    """Loss against two counts of parameters, and its increase against the aspect ratio.

    Attributes:
        points: depth, width, params, total_params (NaN where not known), loss (mean over seeds), low, high.
        curves: depth, counted (`own` or `total`), params, loss on the fitted curves.
        laws: counted, form, params, loss of the power laws through the best shapes.
        aspects: budget, params, depth, width, aspect (d/L), increase, low, high (percent; NaN where there is none).
        both: whether there are total parameters.
    """

    points: pd.DataFrame
    curves: pd.DataFrame
    laws: pd.DataFrame
    aspects: pd.DataFrame
    both: bool

    def table(self) -> pd.DataFrame:
        """For the CSV: told apart by the column `what`."""
        parts = {"point": self.points, "curve": self.curves, "law": self.laws, "aspect": self.aspects}
        table = pd.concat(
            [part.assign(what=name) for name, part in parts.items() if len(part)], ignore_index=True
        )
        return table[["what", *(name for name in table.columns if name != "what")]]


def kaplan_data(fit: Fit) -> KaplanData | None:
    """The figure of a fit; None where `no_kaplan` says why."""
    found = fit.kaplan
    if found is None or no_kaplan(fit) is not None:
        return None
    evidence = evidence_of(fit)
    rows, curves = evidence.comparison.rows, evidence.curves
    totals = totals_of(rows, curves)
    grouped = rows.groupby(["depth", "params"], sort=True).agg(
        width=("width", "first"), low=("loss", "min"), high=("loss", "max")
    )
    points = grouped.reset_index().assign(
        total_params=math.nan if totals is None else np.exp(totals.log), loss=curves.mean
    )
    aspects = pd.DataFrame(
        [
            {
                "budget": item.budget,
                "params": item.params,
                "depth": item.depth,
                "width": item.width,
                "aspect": item.aspect,
                "increase": item.increase,
                "low": math.nan if item.interval is None else item.interval[0],
                "high": math.nan if item.interval is None else item.interval[1],
            }
            for item in found.aspects
        ],
        columns=["budget", "params", "depth", "width", "aspect", "increase", "low", "high"],
    )
    return KaplanData(
        points[["depth", "width", "params", "total_params", "loss", "low", "high"]],
        _curves(fit, totals),
        _laws(found, points),
        aspects,
        totals is not None,
    )


def no_kaplan(fit: Fit) -> str | None:
    """Why there is nothing to draw beside the loss against N, as a clause; None where there is something."""
    if fit.kaplan is None:
        return "one depth has no other shape to be compared with"
    if not fit.kaplan.aspects and fit.kaplan.exponent("total", "power") is None:
        return "no two depths can be compared at one N, and the table has no count of all parameters"
    return None


def _curves(fit: Fit, totals: Totals | None) -> pd.DataFrame:
    """The same curves of each depth, over either count."""
    curves = evidence_of(fit).curves
    parts = []
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low == high:
            continue
        x = np.linspace(low, high, LINE)
        parts.append(_part(depth, "own", x, curves.loss(depth, x)))
        if totals is not None:
            ends = totals.log[curves.at(depth)]
            size = np.linspace(ends[0], ends[-1], LINE)
            # The ends are measured sizes; only rounding can put them outside.
            place = np.clip(totals.own[depth](size), low, high)
            parts.append(_part(depth, "total", size, curves.loss(depth, place)))
    columns = ["depth", "counted", "params", "loss"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _part(depth: int, counted: Counted, size: "np.ndarray", loss: "np.ndarray") -> pd.DataFrame:
    return pd.DataFrame({"depth": depth, "counted": counted, "params": np.exp(size), "loss": loss})


def _laws(found: Kaplan, points: pd.DataFrame) -> pd.DataFrame:
    """The plain power law through the best shapes, and that with the entropy of the data, or an offset, beside it."""
    parts = []
    sizes: dict[Counted, str] = {"own": "params", "total": "total_params"}
    for counted, column in sizes.items():
        items = [found.exponent(counted, "power"), second_law(found, counted)]
        for item in items:
            if item is None or item.alpha is None or item.scale is None:
                continue
            grid = np.geomspace(points[column].min(), points[column].max(), LINE)
            line = {"counted": counted, "form": item.form, "params": grid, "loss": item.loss(grid)}
            parts.append(pd.DataFrame(line))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_LAWS))


def second_law(found: Kaplan, counted: Counted) -> Exponent | None:
    """The law with the known entropy of the data, else with the offset that is fitted."""
    return found.exponent(counted, "entropy" if found.entropy is not None else "offset")
