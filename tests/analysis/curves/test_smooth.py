import numpy as np
import pytest

from analysis.curves import smooth as module
from analysis.curves.smooth import fit_smooth, solution

SIZES = np.log(np.geomspace(1e3, 1e6, 10))


def table(functions, sizes=SIZES, noise=0.0, seed=0):
    """(depth, x, loss, weight) of one function of ln N a depth."""
    generator = np.random.default_rng(seed)
    depth = np.repeat(list(functions), len(sizes))
    x = np.tile(sizes, len(functions))
    loss = np.concatenate([function(sizes) for function in functions.values()])
    return depth, x, loss + noise * generator.standard_normal(len(x)), np.ones(len(x))


def power(level, drop, alpha):
    return lambda x: level + drop * np.exp(-alpha * (x - SIZES[0]))


def test_a_power_law_is_recovered_with_its_exponent():
    found = fit_smooth(*table({1: power(2, 1, 0.35), 2: power(1.8, 1.5, 0.35)}))
    assert found.family == "power"
    assert found.curves[1].alpha == pytest.approx(0.35, abs=1e-4)
    between = np.log(np.array([1.7e3, 4.4e5]))
    np.testing.assert_allclose(found.loss(2, between), power(1.8, 1.5, 0.35)(between), atol=1e-6)
    assert found.parameters == 5


def test_a_straight_line_is_the_power_law_of_exponent_zero():
    found = fit_smooth(*table({1: lambda x: 3 - 0.1 * x, 2: lambda x: 3.5 - 0.15 * x}))
    assert (found.family, found.curves[1].alpha) == ("power", 0.0)
    assert found.parameters == 4
    np.testing.assert_allclose(found.loss(1, SIZES), 3 - 0.1 * SIZES, atol=1e-12)


def test_each_depth_gets_its_exponent_where_they_differ():
    found = fit_smooth(*table({1: power(2, 1, 0.2), 2: power(1.8, 2, 0.9)}, noise=1e-4))
    assert found.family == "power-own"
    assert found.curves[1].alpha == pytest.approx(0.2, abs=0.01)
    assert found.curves[2].alpha == pytest.approx(0.9, abs=0.01)
    assert found.press["power-own"] < found.press["power"]


def test_a_parabola_is_recognised():
    found = fit_smooth(*table({1: lambda x: 2 + 0.02 * (x - 12) ** 2, 2: lambda x: 2 + 0.03 * (x - 11) ** 2}))
    assert found.family == "quadratic"
    np.testing.assert_allclose(found.loss(2, SIZES), 2 + 0.03 * (SIZES - 11) ** 2, atol=1e-9)


def test_a_step_is_followed_by_a_spline_that_only_falls():
    sizes = np.log(np.geomspace(1e3, 1e6, 28))

    def step(x):
        return 3 - np.tanh(2.5 * (x - 10.3))

    found = fit_smooth(*table({1: step, 2: lambda x: step(x - 0.4)}, sizes, noise=0.01))
    assert found.family == "spline"
    fine = np.linspace(sizes[0], sizes[-1], 400)
    assert np.all(np.diff(found.loss(1, fine)) <= 1e-12)
    np.testing.assert_allclose(found.loss(1, fine), step(fine), atol=0.12)


def test_the_functions_of_a_spline_fall_from_their_area_to_nothing_and_never_jump():
    """scipy's antiderivative of an element with a doubled knot at its right end is 0 there, and was a jump."""
    knots = (1.0, 1.0, 2.0, 3.5, 5.0, 5.0)
    x = np.linspace(1, 5, 4001)
    found = module._falling(x, knots)
    areas = [(right - left) / 2 for left, right in zip(knots[:-2], knots[2:], strict=True)]
    np.testing.assert_allclose(found[0], areas, rtol=1e-12)
    np.testing.assert_allclose(found[-1], 0, atol=1e-12)
    steps = np.diff(found, axis=0)
    assert steps.max() <= 0
    # A linear B-spline is at most 1 high, so its integral never falls by more than a step of x.
    assert steps.min() >= -(x[1] - x[0]) * (1 + 1e-9)


@pytest.mark.parametrize("family", module.FAMILIES)
def test_the_jacobian_is_the_derivative(family):
    # Losses differ from every family, so that nothing is at an exact optimum by luck.
    depth, x, loss, weight = table({1: power(2, 1, 0.3), 4: power(1.7, 1.8, 0.6)}, noise=0.02)
    found = module._fit(family, module._Points(depth, x, loss, weight))
    solve, _ = solution(found, depth, x, weight)
    place = np.array([x[2] + 0.1, x[7]])
    step = 1e-5
    for point in (0, 5, 13):
        moved = loss.copy()
        moved[point] += step
        other = module._fit(family, module._Points(depth, x, moved, weight))
        for value in (1, 4):
            numeric = (other.loss(value, place) - found.loss(value, place)) / step
            analytic = found.jacobian(value, place) @ solve[:, point]
            # An exponent follows the losses in a curve; its straight line is good to a few per cent of the largest.
            np.testing.assert_allclose(numeric, analytic, atol=0.03)


def test_the_score_is_the_error_of_points_left_out_one_by_one():
    depth, x, loss, weight = table({1: power(2, 1, 0.3)}, noise=0.01)
    found = module._fit("quadratic", module._Points(depth, x, loss, weight))
    errors = []
    for point in range(len(x)):
        keep = np.arange(len(x)) != point
        rest = module._fit("quadratic", module._Points(depth[keep], x[keep], loss[keep], weight[keep]))
        errors.append(loss[point] - rest.loss(1, x[point : point + 1])[0])
    assert module._press(found, module._Points(depth, x, loss, weight)) == pytest.approx(
        np.mean(np.square(errors))
    )


def test_a_depth_of_one_size_is_a_constant_and_of_two_a_line_through_both():
    depth = np.array([1, 2, 2, 3, 3, 3, 3])
    x = np.log(np.array([4e3, 1e3, 8e3, 1e3, 2e3, 4e3, 8e3]))
    loss = np.array([2.2, 2.5, 2.1, 2.6, 2.35, 2.2, 2.1])
    found = fit_smooth(depth, x, loss, np.ones(7))
    assert found.family == "power"
    assert found.loss(1, x[:1]) == pytest.approx(2.2)
    np.testing.assert_allclose(found.loss(2, x[1:3]), loss[1:3])
    _, leverage = solution(found, depth, x, np.ones(7))
    np.testing.assert_allclose(leverage[:3], 1, atol=1e-6)


def test_scores_do_not_depend_on_the_unit_of_weights():
    depth, x, loss, weight = table({1: power(2, 1, 0.3), 2: power(1.9, 1.2, 0.3)}, noise=0.01)
    one, other = fit_smooth(depth, x, loss, weight), fit_smooth(depth, x, loss, 1e6 * weight)
    assert one.family == other.family
    np.testing.assert_allclose(one.loss(1, SIZES), other.loss(1, SIZES), atol=1e-9)
