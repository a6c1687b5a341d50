"""A depth beyond the data: the depth of least expected loss, and what it can lose against the best one.

Only the gaps between depths matter, so a law has a free curve of N that all depths share. The laws of the gap are

- `additive` (Liu et al. 2026, arXiv 2602.05970): c_m·d^-α_m + c_l·(L - s)^-α_l, with d = sqrt(N/(12·L)); s allows for
  layers that do no work;
- valleys k·(N/N_0)^-γ·(h(L) - h(L*(N)))² about a best depth L*(N): `power` (ln L* linear in ln N), `root`
  (ln d = a + b·sqrt(L*)), `log-linear` (ln d = a + b·L*, Levine et al. 2020, arXiv 2006.12467) and `saturating`
  (ln d = a + b·L*⁴: beyond some size the best depth hardly grows). N_0 is the smallest size. γ lets the valley become
  flatter as the loss falls; h is ln L, bent so that one side may be steeper;
- those of `analysis.law.crossing_laws`.

`analysis.law.gap_fit` fits them. Each law that the losses do not reject gives its share of the draws of one posterior.
No form is exact, least of all far from the data: `FORM_ERROR` is part of every bound.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from analysis.curves.noise import Floats
from analysis.intervals import LAYER_WEIGHTS
from analysis.law.reasons import Because
from analysis.law.shape import check_size
from analysis.law.words import texts_of
from analysis.units import LOSS

GapForm = Literal[
    "additive",
    "power",
    "root",
    "log-linear",
    "saturating",
    "crossings, log-linear",
    "crossings, root",
    "crossings, power",
]
GapStatus = Literal["ok", "rejected", "insufficient"]

#: q of ln d = a + b·L^q of each valley; the limit q = 0 is a power law.
POWERS: Mapping[GapForm, float] = {"power": 0.0, "root": 0.5, "log-linear": 1.0, "saturating": 4.0}
#: R of the laws of `analysis.law.crossing_laws`, by ln L.
_INTEGRALS: Mapping[GapForm, Callable[[Floats], Floats]] = {
    "crossings, log-linear": np.exp,
    "crossings, root": lambda log_depth: 2 * np.exp(log_depth / 2),
    "crossings, power": lambda log_depth: log_depth**2 / 2,
}
FORMS: tuple[GapForm, ...] = ("additive", *POWERS)
#: What the form of the laws may add to a loss at the largest size, nats per token; as much again at ten times that, and
#: the same below the smallest size.
FORM_ERROR = 0.0005
#: Largest depth that is considered, and the depth up to which every whole one is.
DEEPEST, EVERY = 400, 32
#: Largest loss above the best depth that a draw counts, nats per token.
MOST_LOST = 0.5


@dataclass(frozen=True)
class Decision:
    """The depth to use at one size, and what it can cost.

    Attributes:
        params: N = 12·L·d².
        depth: of least expected loss.
        expected, bound: nats per token by which it exceeds the best depth: the expectation, and the bound at `level`.
        level: of the bound and the interval.
        depth_interval: of the best depth.
        laws: forms that were used, the one of most weight first.
        losses: (depth, expected loss, bound) of the depths considered, ascending: every whole one up to `EVERY`, then
            in steps of 4 %; `lost` interpolates.
    """

    params: float
    depth: int
    expected: float
    bound: float
    level: float
    depth_interval: tuple[int, int]
    laws: tuple[GapForm, ...]
    losses: tuple[tuple[int, float, float], ...]

    def lost(self, depth: float) -> tuple[float, float]:
        """What `depth` loses against the best depth, nats per token: expectation and bound.

        A depth beyond the deepest one considered is given the loss of that one.
        """
        x, expected, bound = self._table
        return float(np.interp(math.log(depth), x, expected)), float(np.interp(math.log(depth), x, bound))

    def near(self, within: float) -> tuple[int, int]:
        """The shallowest and the deepest depth whose expected loss exceeds the least by at most `within` nats."""
        x, expected, _ = self._table
        whole = np.arange(self.losses[0][0], self.losses[-1][0] + 1)
        inside = whole[np.interp(np.log(whole), x, expected) <= self.expected + max(within, 1e-12)]
        return int(inside[0]), int(inside[-1])

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats]:
        depth, expected, bound = np.array(self.losses).T
        return np.log(depth), expected, bound


class Frame(NamedTuple):
    """What the parameters of a law refer to: ln N of the smallest and the largest size, mean ln L of the depths."""

    low: float
    high: float
    centre: float


@dataclass(frozen=True)
class GapLaw:
    """One law of the gap between depths, fitted to the points of a study.

    Attributes:
        form: see the module.
        status: `ok`; `rejected`: its residuals exceed the noise; `insufficient`: it cannot be fitted.
        reasons: why the status is not `ok`.
        parameters: of least squares. `additive`: c_m, alpha_m, c_l, alpha_l, shift. Valleys: the best depth at the
            smallest and at the largest size, `depth_smallest` and `depth_largest`; k, gamma, bend.
        p_value: of the residuals against the noise (F test); None if that is not known.
        weight: share among the laws that are not rejected; 0 unless `ok`.
        draws: from its posterior, as many as its weight allows: the parameters in the same order.
    """

    JSON_PROPERTIES: ClassVar = ("reason",)

    form: GapForm
    status: GapStatus
    reasons: tuple[Because, ...] = ()
    parameters: dict[str, float] = field(default_factory=dict)
    p_value: float | None = None
    weight: float = 0.0
    draws: tuple[tuple[float, ...], ...] = ()

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    def times(self, factor: float) -> "GapLaw":
        """Return the law of losses that are multiplied by a factor."""
        names, places = ("c_m", "c_l", "k"), (0, 2) if self.form == "additive" else (2,)
        parameters = {
            name: value * factor if name in names else value for name, value in self.parameters.items()
        }
        draws = tuple(
            tuple(value * factor if place in places else value for place, value in enumerate(row))
            for row in self.draws
        )
        return replace(self, parameters=parameters, draws=draws)

    def gap(self, x: Floats, log_depth: Floats, frame: Frame) -> Floats:
        """(draws, places): nats per token at ln N and ln L, up to a function of N alone."""
        p = np.array(self.draws).T[:, :, None]
        if self.form == "additive":
            width, depth = (x - math.log(12) - log_depth) / 2, np.maximum(np.exp(log_depth) - p[4], 1e-3)
            return np.asarray(p[0] * np.exp(-p[1] * width) + p[2] * depth ** -p[3])
        if self.form in _INTEGRALS:
            integral, size = _INTEGRALS[self.form](log_depth), x - math.log(12) - 2 * p[0]
            return np.asarray(p[2] * (log_depth**2 / 2 + 2 * p[1] * integral - size * log_depth))
        best = valley(self.form, np.log(p[0]), np.log(p[1]), x, frame)
        distance = bend_of(log_depth - frame.centre, p[4]) - bend_of(best - frame.centre, p[4])
        return np.asarray(p[2] * np.exp(-p[3] * (x - frame.low)) * distance**2)


@dataclass(frozen=True)
class GapLaws:
    """All laws of the gap of one study, with all that a decision needs.

    Attributes:
        laws: in the order of `FORMS`.
        params_range: smallest and largest N of the points; None if there are none.
        depths: that were measured, ascending.
        loss: mean loss of the points of the largest sizes, nats per token, for percentages.
        reasons: why there is no decision at any size, if so.
        layer_weights: N over L·d². The parameters of a law refer to d = sqrt(N/(12·L)) whatever it is.
    """

    JSON_PROPERTIES: ClassVar = ("reason",)

    laws: tuple[GapLaw, ...]
    params_range: tuple[float, float] | None
    depths: tuple[int, ...]
    loss: float | None = field(metadata=LOSS)
    reasons: tuple[Because, ...] = ()
    layer_weights: float = LAYER_WEIGHTS

    def __post_init__(self) -> None:
        """Refuse laws of a file that cannot decide."""
        low, high = self.params_range or (1.0, 1.0)
        rows = [row for law in self.laws for row in law.draws]
        whole = all(len({len(row) for row in law.draws}) <= 1 for law in self.laws)
        ordered = 0 < low <= high < math.inf and all(depth > 0 for depth in self.depths)
        finite = np.isfinite([value for row in rows for value in row]).all()
        if not (ordered and whole and finite) or (rows and self.params_range is None):
            raise ValueError("the gap_laws do not fit together")

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @cached_property
    def used(self) -> tuple[GapLaw, ...]:
        """The laws that decide, the one of most weight first."""
        return tuple(sorted((law for law in self.laws if law.draws), key=lambda law: -law.weight))

    def decide(self, params: float, level: float = 0.95) -> Decision | None:
        """The depth of least expected loss at N = `params`; None where no law can decide, see `reasons`.

        No depth is considered whose model would have more layers than width.

        Raises:
            InputError: `params` is no size.
        """
        check_size(params)
        if not self.used:
            return None
        assert self.params_range is not None
        depths = self.considered(params)
        loss = self._gap(params, depths)
        lost = np.minimum(loss - loss.min(axis=1, keepdims=True), MOST_LOST)
        expected = lost.mean(axis=0)
        smallest, largest = self.params_range
        outside = max(0.0, math.log10(params / largest), math.log10(smallest / params))
        form_error = FORM_ERROR * (1 + outside)
        bound = np.maximum(_quantile(lost, level), expected) + form_error
        # A depth that loses less than the error of the form may be the best.
        alike = lost <= form_error
        shallowest, deepest = alike.argmax(axis=1), len(depths) - 1 - alike[:, ::-1].argmax(axis=1)
        low, high = -_quantile(-shallowest, (1 + level) / 2), _quantile(deepest, (1 + level) / 2)
        chosen = int(expected.argmin())
        return Decision(
            params,
            int(depths[chosen]),
            float(expected[chosen]),
            float(bound[chosen]),
            level,
            (int(depths[int(low)]), int(depths[int(high)])),
            tuple(law.form for law in self.used),
            tuple(zip(depths.astype(int).tolist(), expected.tolist(), bound.tolist(), strict=True)),
        )

    def lost(self, params: float, depth: float) -> Floats:
        """(draws,) what a depth, whole or not, loses at N = `params` against the best depth, nats per token.

        By the laws that are used, of which there must be one.
        """
        depths = np.append(self.considered(params), depth)
        loss = self._gap(params, depths)
        return np.asarray(loss[:, -1] - loss.min(axis=1))

    def considered(self, params: float) -> Floats:
        """The whole depths considered at N = `params`, see `Decision.losses`."""
        limit = int(min(max((params / self.layer_weights) ** (1 / 3) + 1e-9, 1), DEEPEST))
        steps = np.round(EVERY * 1.04 ** np.arange(1, 70))
        return np.concatenate(
            [np.arange(1.0, min(limit, EVERY) + 1), steps[steps < limit], [limit] * (limit > EVERY)]
        )

    def _gap(self, params: float | Floats, depths: Floats) -> Floats:
        """(draws, places): of all laws."""
        assert self.params_range is not None
        frame = frame_of(np.log(self.params_range), self.depths)
        x = np.broadcast_to(np.log(params), depths.shape)
        return np.concatenate([law.gap(x, np.log(depths), frame) for law in self.used])


def deciding_run(
    laws: GapLaws, params: float, candidates: Iterable[tuple[int, float]], noise_sd: float
) -> tuple[int, float] | None:
    """The run, of `candidates` (depth, N), that would best decide the depth at N = `params`; None if no run would.

    Its loss is compared with that of the best tried depth at its size, each with a noise of `noise_sd` nats per token.
    It is the run whose comparison explains most of the variance, over the draws, of what the recommended depth loses
    against the depth that is best in the draw at its bound.
    """
    decision, candidates = laws.decide(params), list(candidates)
    if decision is None or not candidates:
        return None
    depths = laws.considered(params)
    loss = laws._gap(params, depths)
    chosen = int(np.searchsorted(depths, decision.depth))
    lost = loss[:, chosen] - loss.min(axis=1)
    at_bound = int(np.argsort(lost, kind="stable")[math.ceil(decision.level * len(lost)) - 1])
    target = loss[:, chosen] - loss[:, int(loss[at_bound].argmin())]
    target = target - target.mean()
    gains = []
    for depth, size in candidates:
        tried = laws._gap(size, np.array(laws.depths, dtype=float))
        gap = (
            laws._gap(size, np.array([depth], dtype=float))[:, 0] - tried[:, int(tried.mean(axis=0).argmin())]
        )
        gap = gap - gap.mean()
        gains.append(float(gap @ target) ** 2 / (float(gap @ gap) + 2 * len(gap) * noise_sd**2 + 1e-300))
    best = int(np.argmax(gains))
    return candidates[best] if gains[best] > 0 else None


def _quantile(values: Floats, level: float) -> Floats:
    """The least of `values` (draws, ...) that a share of `level` does not exceed."""
    last = min(math.ceil(level * len(values)), len(values)) - 1
    return np.asarray(np.partition(values, last, axis=0)[last])


def frame_of(ends: Floats, depths: tuple[int, ...]) -> Frame:
    """The frame of a study, from ln N of its smallest and largest size and its depths."""
    return Frame(float(ends[0]), float(ends[1]), float(np.log(depths).mean()))


def bend_of(v: Floats, bend: Floats) -> Floats:
    """(exp(bend·v) - 1) / bend, v for none: below zero the shallow side of a valley is the steeper one."""
    bend = np.where(np.abs(bend) < 1e-6, 1e-6, bend)
    return np.asarray(np.expm1(bend * v) / bend)


def valley(form: GapForm, low: Floats, high: Floats, x: Floats, frame: Frame) -> Floats:
    """The best depth as ln L* at ln N = x, from its values at both ends (broadcast), by Newton's method."""
    q = POWERS[form]
    if q == 0:
        return np.asarray(low + (high - low) * (x - frame.low) / (frame.high - frame.low))
    # ln N = ln L + 2·b·L^q + constant, with L over that of the largest size. It is convex, so the steps converge.
    twice = np.maximum(frame.high - frame.low - (high - low), 0.0) / np.maximum(
        -np.expm1(q * (low - high)), 1e-12
    )
    place = np.zeros(np.broadcast_shapes(high.shape, x.shape))
    for _ in range(60):
        grown = twice * np.exp(q * place)
        step = (place + grown - twice - (x - frame.high)) / (1 + q * grown)
        place -= step
        if float(np.abs(step).max()) < 1e-8:
            break
    return high + place
