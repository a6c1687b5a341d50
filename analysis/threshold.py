"""The threshold law ln d = a + b·L through the crossings (Levine et al. 2020, eq. 10), and its rival.

d is the width of the shallower net at its crossing with the next deeper depth of the study, L that net's
depth. Least squares weighted by each crossing's own uncertainty; intervals and covariance come from refitting
every bootstrap draw of the whole pipeline, so crossings that share a depth are correlated as they should be.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from analysis.crossings import Crossings
from analysis.curves import Floats

Form = Literal["log-linear", "power"]
TWO_POINTS = "two crossings: no test of the form"


@dataclass(frozen=True)
class ThresholdFit:
    """One law through the bracketed adjacent crossings.

    Attributes:
        form: `log-linear` is ln d = a + b·L, `power` is ln d = a + b·ln L.
        status: `ok`, or `insufficient` with a `reason` when fewer than two crossings are bracketed.
        covariance: of (a, b), over the bootstrap.
        a_interval, b_interval: percentiles of the bootstrap at `level`.
        note: what a reader must know, as that two points test no form.
        depths, widths: the points, for the record.
        params_range: smallest and largest N among the points.
        chi2: weighted sum of squared residuals, with `dof` = points - 2; None with two points.
        draws_used: share of the draws in which every crossing existed; the others cannot be fitted.
    """

    form: Form
    status: Literal["ok", "insufficient"]
    level: float
    a: float | None = None
    b: float | None = None
    covariance: tuple[tuple[float, float], tuple[float, float]] | None = None
    a_interval: tuple[float, float] | None = None
    b_interval: tuple[float, float] | None = None
    reason: str | None = None
    note: str | None = None
    depths: tuple[int, ...] = ()
    widths: tuple[float, ...] = ()
    params_range: tuple[float, float] | None = None
    residuals: tuple[float, ...] = field(default=())
    chi2: float | None = None
    dof: int | None = None
    draws_used: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ThresholdFit":
        """The inverse of `to_json`; keys of a later version are ignored."""
        known = {name: _tuples(value[name]) for name in cls.__dataclass_fields__ if name in value}
        return cls(**known)


def fit_threshold(crossings: Crossings, form: Form, *, level: float = 0.95) -> ThresholdFit:
    """The law of the given form through the bracketed crossings of adjacent depths."""
    chosen = [
        index for index, item in enumerate(crossings.items) if item.adjacent and item.status == "bracketed"
    ]
    if len(chosen) < 2:
        adjacent = sum(item.adjacent for item in crossings.items)
        return ThresholdFit(
            form,
            "insufficient",
            level,
            reason="a law needs two bracketed crossings of adjacent depths; "
            f"{len(chosen)} of {adjacent} are bracketed",
        )
    items = [crossings.items[index] for index in chosen]
    depths = np.array([item.shallow for item in items], dtype=float)
    params = np.array([item.params for item in items], dtype=float)
    logs = _log_width(np.log(params), depths)
    drawn = crossings.draws[:, chosen]
    usable = np.isfinite(drawn).all(axis=1)
    drawn_logs = _log_width(drawn[usable], depths)
    # Half the central 68 % range: a standard deviation would be ruled by the few draws at the edge of the
    # range.
    spread = np.diff(np.quantile(drawn_logs, [0.16, 0.84], axis=0), axis=0)[0] / 2
    weight = 1 / np.maximum(spread, 1e-6)
    regressor = depths if form == "log-linear" else np.log(depths)
    design = np.column_stack([np.ones_like(regressor), regressor])
    # (2, points): coefficients are this matrix times the logs, for the estimate and every draw alike.
    solve = np.linalg.pinv(design * weight[:, None]) * weight
    a, b = (float(value) for value in solve @ logs)
    coefficients = drawn_logs @ solve.T
    covariance = np.cov(coefficients, rowvar=False)
    low, high = np.quantile(coefficients, [(1 - level) / 2, (1 + level) / 2], axis=0)
    residuals = logs - design @ np.array([a, b])
    two = len(chosen) == 2
    return ThresholdFit(
        form=form,
        status="ok",
        level=level,
        a=a,
        b=b,
        covariance=(
            (float(covariance[0, 0]), float(covariance[0, 1])),
            (float(covariance[1, 0]), float(covariance[1, 1])),
        ),
        a_interval=(float(low[0]), float(high[0])),
        b_interval=(float(low[1]), float(high[1])),
        note=TWO_POINTS if two else None,
        depths=tuple(item.shallow for item in items),
        widths=tuple(float(math.exp(value)) for value in logs),
        params_range=(float(params.min()), float(params.max())),
        residuals=tuple(float(value) for value in residuals),
        chi2=None if two else float(np.sum((weight * residuals) ** 2)),
        dof=None if two else len(chosen) - 2,
        draws_used=float(usable.mean()),
    )


def _log_width(log_params: Floats, depths: Floats) -> Floats:
    """Ln d from ln N = ln 12 + ln L + 2·ln d."""
    return np.asarray((log_params - np.log(12 * depths)) / 2)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
