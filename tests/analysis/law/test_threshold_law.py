import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import wrightomega
from scipy.stats import t as student

from analysis.intervals import width_of
from analysis.law.shape import buildable_width
from analysis.law.threshold_law import LEVINE2020, ThresholdLaw, solve_depth
from core.errors import InputError

GPT3 = 12 * 96 * 12288**2
#: A line through six crossings has four degrees of freedom.
STUDENT = student(4)
ONE_ERROR = float(2 * STUDENT.cdf(1) - 1)


def recommend(law, sizes, level=0.95):
    """The best shape of each size."""
    return [law.shape(size, level) for size in sizes]


def toy(b, covariance):
    """ln d = 2 + b·L, fitted on depths 1 and 2."""
    return ThresholdLaw("log-linear", "ok", 0.95, 2.0, b, covariance, depths=(1, 2), source="a toy")


def error_of(transition):
    """One standard error of ln N, from the interval at 95 %."""
    low, high = transition.params_interval
    return math.log(high / low) / (2 * STUDENT.ppf(0.975))


#: Table 1 of Levine et al. 2020 (arXiv 2006.12467, third version), recalled and not copied: nominal size; depth and
#: width as trained, None for the projected model (5140 is a typo of the GPT-3 paper); depth and width printed; L* and
#: width recomputed by hand from its a and b and N = 12·L·d² of the trained shape.
TABLE_1 = {
    "GPT-3 Small": (125e6, (12, 768), (23, 555), 23.04, 554.7),
    "GPT-3 Medium": (350e6, (24, 1024), (32, 886), 31.62, 886.8),
    "GPT-3 Large": (760e6, (24, 1536), (38, 1220), 37.41, 1237),
    "GPT-3 XL": (1.3e9, (24, 2048), (42, 1550), 41.63, 1548),
    "GPT-3 2.7B": (2.7e9, (32, 2560), (47, 2110), 47.12, 2112),
    "GPT-3 6.7B": (6.7e9, (32, 4096), (54, 3150), 54.31, 3153),
    "GPT-3 13B": (13e9, (40, 5140), (60, 4200), 59.58, 4197),
    "GPT-3 175B": (175e9, (96, 12288), (80, 13500), 80.46, 13461),
    "Optimal 1-Trillion": (1e12, None, (95, 30100), 94.75, 29617),
}
#: Where the rule gives something else than is printed: 886 for a width that rounds to 887, a depth rounded the other
#: way (a shape of the same N), and a width that follows from the law and not from N.
DEVIATIONS = {"GPT-3 Medium": (32, 887), "GPT-3 Large": (37, 1237), "Optimal 1-Trillion": (95, 29617)}


@pytest.mark.parametrize("model", TABLE_1)
def test_the_rule_reproduces_the_published_table(model):
    nominal, trained, printed, exact, recomputed = TABLE_1[model]
    (row,) = recommend(LEVINE2020, [12 * trained[0] * trained[1] ** 2 if trained else nominal])
    assert row.depth_exact == pytest.approx(exact, abs=0.006)
    width = width_of(row.params, row.depth)
    assert width == pytest.approx(recomputed, abs=0.51)
    assert row.width == buildable_width(width)
    if model in DEVIATIONS:
        assert (row.depth, round(width)) == DEVIATIONS[model]
        return
    # The closing zeros of a printed width are not digits that were given.
    unit = next(10**digits for digits in range(6) if printed[1] % 10 ** (digits + 1))
    assert row.depth == printed[0]
    assert abs(round(width) - printed[1]) <= unit / 2


def test_the_deviations_are_the_known_ones():
    assert abs(38 * 1220**2 / (24 * 1536**2) - 1) < 2e-3
    assert LEVINE2020.width(95) == pytest.approx(30077, abs=1)


def test_golden_values_of_the_published_law():
    assert LEVINE2020.width(70) == pytest.approx(7510.07, abs=0.005)
    for depth, params in ((70, 4.74e10), (80, 1.643e11), (95, 1.031e12), (96, 1.164e12)):
        assert LEVINE2020.transition(depth).params == pytest.approx(params, rel=6e-4)
    for depth, error in ((80, 0.153), (96, 0.194), (100, 0.205)):
        assert error_of(LEVINE2020.transition(depth)) == pytest.approx(error, abs=5e-4)
    # Without the covariance it is 25.7 % with the rounded standard errors 0.030 and 1.3e-3, 25.8 % with the exact ones.
    (va, _), (_, vb) = LEVINE2020.covariance
    diagonal = dataclasses.replace(LEVINE2020, covariance=((va, 0.0), (0.0, vb)))
    assert error_of(diagonal.transition(96)) == pytest.approx(0.2577, abs=5e-4)


def test_the_error_at_fixed_size_is_the_published_one():
    (row,) = recommend(LEVINE2020, [GPT3], level=ONE_ERROR)
    low, high = row.depth_interval
    # 80.46 ± 1.24 layers: 1.5 % in depth, 0.8 % in width, against the 15 % of N_transition(80).
    assert row.depth_exact == pytest.approx(80.46, abs=0.005)
    assert (high - low) / 2 == pytest.approx(1.24, abs=0.015)
    narrow, wide = row.width_interval
    assert (wide - narrow) / (2 * row.width_exact) == pytest.approx(0.008, abs=3e-4)
    assert row.transition.depth == 80


def dual(law, params, level):
    """The depths L whose N_transition is compatible with N, |ln N - ln N_transition(L)| <= t·se: varies no (a, b)."""
    (va, cab), (_, vb) = law.covariance
    z = STUDENT.ppf((1 + level) / 2)

    def gap(depth, side):
        error = 2 * math.sqrt(va + depth**2 * vb + 2 * depth * cab)
        return math.log(12 * depth) + 2 * (law.a + law.b * depth) - math.log(params) + side * z * error

    return [brentq(gap, 1e-6, 400, args=(side,)) for side in (1, -1)]


@pytest.mark.parametrize("params", [1e5, 1e7, 1e9, GPT3, 1e13])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_band_is_the_profile_interval(params, level):
    (row,) = recommend(LEVINE2020, [params], level=level)
    assert row.depth_interval == pytest.approx(dual(LEVINE2020, params, level), rel=1e-5)
    low, high = row.depth_interval
    narrow, wide = row.width_interval
    assert narrow < row.width_exact < wide
    assert 12 * high * narrow**2 == pytest.approx(params)
    assert 12 * low * wide**2 == pytest.approx(params)
    assert row.level == level
    assert not row.unbounded


def test_a_region_of_its_own_replaces_the_ellipse():
    corners = [(4.9, 0.05), (5.1, 0.06), (4.9, 0.061), (5.1, 0.049)]
    law = dataclasses.replace(LEVINE2020, region=tuple((a, b, False) for a, b in corners))
    depths = [
        brentq(lambda depth, a=a, b=b: math.log(12 * depth / 1e10) + 2 * (a + b * depth), 1, 400)
        for a, b in corners
    ]
    (row,) = recommend(law, [1e10])
    assert row.depth_interval == pytest.approx([min(depths), max(depths)])
    log_params = [math.log(12 * 50) + 2 * (a + 50 * b) for a, b in corners]
    assert np.log(law.transition(50).params_interval) == pytest.approx([min(log_params), max(log_params)])


def test_the_band_always_holds_the_best_fit():
    law = dataclasses.replace(LEVINE2020, region=((5.5, 0.06, False), (5.6, 0.06, False)))
    (row,) = recommend(law, [1e10])
    assert row.depth_interval[1] == row.depth_exact


@pytest.mark.parametrize(
    ("points", "opened"),
    [
        ([(5.0, 0.03, True)], (False, True)),
        ([(5.0, 0.2, True)], (True, False)),
        ([(5.0, 0.055, True)], (False, False)),
        ([(4.9, 0.04, False), (4.9, 0.04, True)], (False, True)),
        ([(4.9, 0.04, True), (4.9, 0.04, False)], (False, True)),
    ],
    ids=["a small slope", "a large slope", "inside the range", "a tie", "a tie, the other order"],
)
def test_an_end_met_where_the_region_was_cut_off_is_open(points, opened):
    law = dataclasses.replace(LEVINE2020, region=((4.9, 0.05, False), (5.1, 0.06, False), *points))
    (row,) = recommend(law, [1e10])
    assert tuple(end is None for end in row.depth_interval) == opened
    # At fixed N the deepest shape is the narrowest; a small slope means that less N is needed to be overtaken.
    for interval in (row.width_interval, law.transition(50).params_interval):
        assert tuple(end is None for end in interval) == opened[::-1]
    assert row.unbounded == any(opened)


def test_a_region_that_reaches_falling_slopes_has_no_upper_end():
    # b = 0.1 ± 0.1: the ellipse at 95 % reaches b < 0.
    law = toy(0.1, ((1e-4, 0.0), (0.0, 0.01)))
    (row,) = recommend(law, [1e4])
    assert row.unbounded
    assert row.depth_interval[1] is None
    assert row.width_interval[0] is None
    assert row.depth_interval[0] > 0
    # Below one standard error it does not.
    (row,) = recommend(law, [1e4], level=0.6)
    assert not row.unbounded


def test_the_solution_is_the_wright_omega_function():
    c = np.concatenate([np.linspace(-700, 50, 4001), np.geomspace(1, 1e12, 4001), np.linspace(0.9, 1.1, 201)])
    # With a = ln(N/12)/2 + shift and b = 1/2 the equation is w + ln w = c with L = w.
    solved = [solve_depth(-value / 2, 0.5, 12.0) for value in c]
    np.testing.assert_allclose(solved, wrightomega(c), rtol=3e-13)
    ordinary = np.abs(c) < 100
    np.testing.assert_allclose(np.array(solved)[ordinary], wrightomega(c[ordinary]), rtol=3e-14)


@pytest.mark.parametrize(("a", "b"), [(5.0, 0.05), (-300.0, 1.0), (5.0, 1e-12), (2.4, 0.4), (0.0, 5e-324)])
@pytest.mark.parametrize("params", [1e3, 1e12, 1e300])
def test_the_solution_solves_the_equation_also_where_naive_code_overflows(a, b, params):
    depth = solve_depth(a, b, params)
    # In logarithms, because the equation itself overflows.
    left = math.log(12 * depth / params) if params < 1e300 else math.log(depth) - math.log(params / 12)
    assert left + 2 * (a + b * depth) == pytest.approx(0, abs=1e-9)


def test_a_slope_that_is_not_positive_has_no_finite_depth():
    assert solve_depth(5.0, 0.0, 1e6) == solve_depth(5.0, -0.1, 1e6) == math.inf


def test_extrapolation_is_flagged_by_depth_which_is_never_below_one_layer():
    law = toy(0.4, ((1e-4, 0.0), (0.0, 1e-4)))
    inside, outside = recommend(law, [12 * 1.5 * law.width(1.5) ** 2, 12 * 3 * law.width(3) ** 2])
    assert (inside.extrapolated, outside.extrapolated) == (False, True)
    (row,) = recommend(LEVINE2020, [1e3])
    assert (row.depth, row.width, row.extrapolated) == (1, 8, True)


@pytest.mark.parametrize("depth", [0, -3, float("nan"), 10_000])
def test_a_transition_is_of_a_depth_that_can_be_and_a_level_lies_between_zero_and_one(depth):
    with pytest.raises(InputError):
        LEVINE2020.transition(depth)
    with pytest.raises(InputError, match="between 0 and 1"):
        recommend(LEVINE2020, [1e9], level=1.0)


def test_a_published_recommendation_loads_no_numerical_library():
    """It answers in a fraction of a second; loading any one of these alone takes longer."""
    heavy = {"numpy", "pandas", "matplotlib", "mlflow", "ray", "torch", "scipy"}
    heavy |= {"analysis.fit.document", "study.plan.plan"}
    program = (
        "import sys; sys.argv = ['interplay', 'recommend', '--law', 'levine2020', '5e9', '--json']\n"
        "from interplay.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        f"print(*sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert '"depth": 52' in done.stdout
    assert done.stderr.split() == []
