"""The projection by all laws that are not rejected: what it states, and how often that is true."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.optimize import brentq

from analysis.errors import InputError
from analysis.fit.study import estimates_of
from analysis.law.crossings import Crossing
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.prediction import APART, predict
from analysis.law.published import LIU2026
from analysis.law.threshold_law import LEVINE2020, ThresholdLaw
from tests.coverage.worlds import LONG, SHORT, PowerLaw, Truth, World

COVARIANCE = ((1e-4, 0.0), (0.0, 1e-6))


def line(form="log-linear", a=2.5, b=0.3, **more):
    """A law through five crossings, of which a and b are known to 0.01 and 0.001."""
    measured = {"depths": (1.4, 2.4, 3.5, 4.5, 5.5), "params_range": (3e3, 1e5), "p_value": 0.5}
    more = measured | {"b_interval": (b - 0.002, b + 0.002), "status": "ok"} | more
    return ThresholdLaw(form, level=0.95, a=a, b=b, covariance=COVARIANCE, **more)


def power(**more):
    """A power law that agrees with `line` at a depth of 3, and less and less farther on."""
    return line("power", 2.5 + 0.9 - 0.9 * math.log(3), 0.9, **more)


def response(at=1e5, depth=5.0, growth=0.25, **more):
    """A response surface with its minimum at `depth` for N = `at`, that grows with N as N^growth."""
    curvature, slope = 0.05, -2 * 0.05 * growth
    values = {"b": 2.0, "b_N": -0.1, "b_L": 0.0, "b_NN": 0.0, "b_NL": slope, "b_LL": curvature}
    covariance = tuple(tuple(1e-8 * (i == j) for j in range(6)) for i in range(6))
    more = {"params_range": (1e3, 1e5), "dof": 20, "covariance": covariance, "p_value": 0.5} | more
    values |= {"log_params": math.log(at), "log_depth": math.log(depth)}
    return SurfaceFit("response", "ok", parameters=values, **more)


def test_laws_that_agree_give_a_depth_and_the_envelope_of_their_intervals():
    laws = (line(), power())
    found = predict(laws, (), (), 3e4)
    single = [predict((law,), (), (), 3e4) for law in laws]
    assert found.laws == ("log-linear", "power")
    assert found.depth_exact == single[0].depth_exact != single[1].depth_exact
    lows, highs = zip(*(one.depth_interval for one in single), strict=True)
    assert found.depth_interval == (min(lows), max(highs))
    assert (found.reason, found.agree_to) == (None, None)
    low, high = found.depth_interval
    assert found.halfwidth == pytest.approx((high - low) / (2 * found.depth_exact))


def test_laws_that_disagree_give_the_size_up_to_which_they_agree_and_an_interval_beyond():
    laws = (line(), power())
    found = predict(laws, (), (), 1e9)
    by = {law.form: law.best_depth for law in laws}
    assert found.depth_exact is None
    assert found.depth_interval[0] < by["log-linear"](1e9) < by["power"](1e9) < found.depth_interval[1]
    assert "disagree" in found.reason
    edge = by["power"](found.agree_to) / by["log-linear"](found.agree_to)
    assert edge == pytest.approx(1 + APART, rel=1e-6)
    assert predict(laws, (), (), 0.99 * found.agree_to).depth is not None
    assert predict(laws, (), (), 1.01 * found.agree_to).depth is None
    assert found.halfwidth == math.inf


def test_a_law_that_its_own_test_rejects_is_excluded():
    better = power(chi2=3.0, dof=3)
    found = predict((line(p_value=1e-6, chi2=30.0, dof=3), better), (), (), 1e9)
    assert found.laws == ("power",)
    assert found.depth_exact == power().best_depth(1e9)
    both = predict((line(p_value=0.04), power(p_value=1e-6)), (), (), 1e9)
    assert (both.depth_exact, both.laws, both.depth_interval) == (None, (), (None, None))
    assert "reject" in both.reason
    assert both.halfwidth == math.inf


def test_a_rejected_law_that_is_not_much_worse_widens_the_interval_and_states_no_depth():
    """Five crossings: the log-likelihoods of chi2 = 14 and 3 differ by 5 / 2 · ln(14 / 3) = 3.9, which is below 5."""
    law, better = line(p_value=0.003, chi2=14.0, dof=3), power(chi2=3.0, dof=3)
    alone, found = (predict(laws, (), (), 1e9) for laws in ((better,), (law, better)))
    assert (found.laws, found.depth_exact, found.reason) == (("power", "log-linear"), alone.depth_exact, None)
    line_alone = predict((line(),), (), (), 1e9)
    assert found.depth_interval == (line_alone.depth_interval[0], alone.depth_interval[1])
    # A square below its expectation of 3 is no better than that.
    lucky = dataclasses.replace(better, chi2=0.1)
    assert predict((law, lucky), (), (), 1e9).laws == found.laws
    assert predict((dataclasses.replace(law, chi2=23.0), lucky), (), (), 1e9).laws == ("power",)


def test_the_root_law_widens_the_interval_and_decides_alone_only():
    between = line("root", 2.5 + 0.3 - 0.6 * math.sqrt(3), 0.5)
    plain = line()
    found = predict((plain, between), (), (), 1e9)
    assert (found.laws, found.depth_exact) == (("log-linear", "root"), plain.best_depth(1e9))
    high = predict((between,), (), (), 1e9).depth_interval[1]
    assert found.depth_interval[1] == high > 1.25 * found.depth_exact
    rejected = dataclasses.replace(plain, p_value=1e-9, chi2=90.0, dof=3)
    assert predict((rejected, between), (), (), 1e9).depth_exact == between.best_depth(1e9)


@pytest.mark.parametrize(
    ("law", "why"),
    [
        (line(status="open", b_interval=(0.1, None)), "one side"),
        (line(status="open", b_interval=(None, None), depths=(1.4, 2.8)), "two crossings"),
        (line(b_interval=(-0.01, 0.6)), "compatible with zero"),
        (line(b=-0.1, b_interval=(-0.2, -0.05)), "not positive"),
        (ThresholdLaw("log-linear", "insufficient", 0.95, reason="one crossing"), "one crossing"),
        (line(status="not_converged", reason="stopped"), "stopped"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_law_that_is_not_settled_states_no_depth(law, why):
    found = predict((law,), (), (), 3e4)
    assert found.depth_exact is None
    assert why in found.reason
    assert found.depth is found.width is None
    assert found.halfwidth == math.inf


def test_crossings_that_turn_back_give_neither_a_depth_nor_an_interval():
    turned = Crossing(2, 4, "bracketed", params=1e4, non_monotone=True)
    found = predict((line(), power()), (response(),), (Crossing(1, 2, "bracketed"), turned), 3e4)
    assert (found.depth_exact, found.depth_interval, found.laws) == (None, (None, None), ())
    assert "2 → 4" in found.reason


def test_surfaces_are_used_unless_they_are_rejected():
    laws = (line(),)
    alone = predict(laws, (), (), 3e4)
    near = response(at=3e4, depth=1.1 * alone.depth_exact)
    both = predict(laws, (near,), (), 3e4)
    assert both.laws == ("log-linear", "response")
    assert both.depth_exact == alone.depth_exact
    assert both.depth_interval[1] == pytest.approx(near.interval(3e4)[1])
    far = response(at=3e4, depth=2 * alone.depth_exact)
    assert predict(laws, (far,), (), 3e4).depth is None
    rejected = dataclasses.replace(far, p_value=0.01)
    assert predict(laws, (rejected,), (), 3e4).depth_interval == alone.depth_interval
    # Surfaces are compared by their misfit: an AIC of 10 more is too much.
    better = response(at=3e4, depth=alone.depth_exact, aicc=-100.0, points=26, p_value=None)
    values = {"E": 1, "c_m": 1, "alpha_m": 1, "c_l": 1, "alpha_l": 1}
    small = tuple(tuple(1e-8 * (i == j) for j in range(4)) for i in range(4))
    for aicc, count in ((-91.0, 3), (-89.0, 2)):
        more = {"form": "additive", "aicc": aicc, "p_value": None, "parameters": values}
        worse = dataclasses.replace(better, **more, covariance=small)
        assert len(predict(laws, (worse, better), (), 3e4).laws) == count
        # Beside crossings a surface without a best depth, or without an interval, takes no part.
        for without in ({"covariance": None}, {"parameters": values | {"c_l": 0.0}}):
            none = dataclasses.replace(worse, **without)
            assert len(predict(laws, (none, better), (), 3e4).laws) == 2


def test_sizes_that_were_not_measured_are_refused_with_the_reason_of_the_table():
    laws, why = (line(), power()), "size and tokens grow together"
    assert predict(laws, (), (), 3e4, why) == predict(laws, (), (), 3e4)
    found = predict(laws, (response(),), (), 2e5, why)
    assert (found.depth_exact, found.depth_interval) == (None, (None, None))
    assert (found.laws, found.reason) == ((), why)


def test_without_a_law_the_surface_answers_as_far_as_it_has_limits():
    none = ThresholdLaw("log-linear", "insufficient", 0.95, reason="no crossing")
    surface = response()
    inside, outside = (predict((none,), (surface,), (), params) for params in (5e4, 1e7))
    assert inside.depth_exact == surface.best_depth(5e4)
    assert inside.depth_interval == surface.interval(5e4)
    assert (inside.extrapolated, outside.extrapolated) == (False, True)


@pytest.mark.parametrize("params", [0.0, -1.0, 0.5, math.nan, math.inf])
@pytest.mark.parametrize(
    "ask",
    [LEVINE2020.shape, LIU2026.best_depth, lambda params: predict((line(),), (), (), params)],
    ids=["levine2020", "liu2026", "projection"],
)
def test_a_size_is_a_positive_number(ask, params):
    with pytest.raises(InputError, match=r"The size is .* must be a positive number"):
        ask(params)


@dataclasses.dataclass(frozen=True)
class Root(Truth):
    """The law is ln d = a + b·sqrt(L)."""

    def size_of(self, depth):
        return 12 * depth * math.exp(2 * (self.a + self.b * math.sqrt(depth)))


SCATTERED = dataclasses.replace(SHORT, scatter=0.2)
SIX, PAPER = (2, 4, 8, 12, 16, 24), (6, 12, 18, 24, 30, 36, 48)
#: Truths, and the budgets of their grids.
WORLDS = {
    "power law, 2 to 24 layers": (PowerLaw(2.4, 0.9, SIX), 8),
    "power law, 6 to 48 layers": (PowerLaw(3.6, 0.9, PAPER), 8),
    "power law, 1 to 6 layers, more noise": (PowerLaw(2.5, 0.9, (1, 2, 3, 4, 6), noise=0.01), 8),
    "neither law: ln d rises with the root of L": (Root(1.5, 0.8, SIX), 8),
    "scatter, 3 depths": (SCATTERED, 8),
    "scatter, 3 depths, 6 to 24 layers": (Truth(5.039, 0.0555, (6, 12, 24), scatter=0.2), 8),
    "scatter, 4 depths": (dataclasses.replace(SCATTERED, depths=(1, 2, 4, 6)), 8),
    "scatter, 6 depths": (Truth(3, 0.15, (2, 4, 6, 8, 10, 12), scatter=0.2), 8),
    "no slope": (Truth(3, 0.0, (1, 2, 4, 8)), 8),
    "law, 4 depths": (dataclasses.replace(SHORT, depths=(1, 2, 4, 6)), 7),
    "law, 5 depths": (LONG, 7),
    "law of the paper": (Truth(5.039, 0.0555, PAPER), 8),
}
#: Worlds in which most studies state a depth at three times the largest size.
SETTLED = ("power law, 2 to 24 layers", "power law, 6 to 48 layers", "law of the paper")


#: Of each world, but for the few studies of the fast tests.
STUDIES = 20


@functools.cache
def answered(name, key):
    """(truth, projection) at 3 and at 10 times the largest size of one study."""
    truth, sizes = WORLDS[name]
    rows, _ = World("form", truth, sizes=sizes).study(name, key)
    study, largest = estimates_of(rows), float(rows["params"].max())
    return [
        (
            brentq(lambda depth, k=k: math.log(truth.size_of(depth) / (k * largest)), 1e-2, 1e3),
            study.predict(k * largest),
        )
        for k in (3, 10)
    ]


def claims(answers):
    """Of all projections to better than ±50 %, stated as a depth or as an interval only, whether each is true."""
    found = []
    for truth, answer in answers:
        low, high = answer.depth_interval
        if low is not None and high is not None and (high - low) / (high + low) < 0.5:
            found.append(low <= truth <= high)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("name", WORLDS)
def test_what_is_projected_to_better_than_half_of_itself_is_true(name):
    """By the binomial, of 20 projections that are true in 95 % less than 75 % are true once in 3,000 measurements."""
    answers = [answered(name, key) for key in range(STUDIES)]
    for at in (0, 1):
        true = claims([answer[at] for answer in answers])
        assert len(true) < 10 or np.mean(true) >= 0.75, (len(true), np.mean(true))
    stated = np.mean([near.depth is not None for (_, near), _ in answers])
    assert stated >= 0.8 or name not in SETTLED


@pytest.mark.extended
@pytest.mark.parametrize("at", [0, 1], ids=["3 times the largest size", "10 times"])
def test_what_is_projected_in_all_worlds_together_is_true(at):
    answers = [answered(name, key)[at] for name in WORLDS for key in range(STUDIES)]
    true = claims(answers)
    # 95 % of them less three of its standard errors.
    assert len(true) >= 60
    assert np.mean(true) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / len(true))


@pytest.mark.parametrize("name", ["power law, 2 to 24 layers", "scatter, 3 depths", "law of the paper"])
def test_a_few_studies_state_what_is_true(name):
    # The test at 5 % rejects the true form in study 0 of the paper's law, and in none of the 19 others.
    answers = [answered(name, key) for key in range(1, 5)]
    true = claims([item for answer in answers for item in answer])
    # One of eight may miss at 95 %.
    assert sum(true) >= len(true) - 1
    settled = [near.depth is not None for (_, near), _ in answers]
    assert all(settled) if name in SETTLED else not any(settled)
