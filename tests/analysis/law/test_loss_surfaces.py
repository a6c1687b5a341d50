import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares, minimize_scalar
from scipy.stats import t as student

from analysis.curves.curves import build_curves
from analysis.errors import InputError
from analysis.law import loss_surfaces
from analysis.law.loss_surfaces import SurfaceFit, SurfacePoints, points_of, supported
from analysis.law.prediction import predict
from analysis.law.threshold_law import ThresholdLaw
from tests.coverage.measure import holds


def points(frame):
    """The rows as points; the column `weight` is the inverse of the variance."""
    covariance = np.diag(1 / frame["weight"].to_numpy()) if "weight" in frame else None
    depth, params, loss = (frame[name].to_numpy(dtype=float) for name in ("depth", "params", "loss"))
    return SurfacePoints(depth, np.log(params), loss, covariance)


def fit_additive(frame):
    return loss_surfaces.fit_surface("additive", points(frame))


def fit_response(frame):
    return loss_surfaces.fit_surface("response", points(frame))


def fit_surfaces(frame, **options):
    return loss_surfaces.fit_surfaces(points(frame), **options)


NO_LAW = ThresholdLaw("log-linear", "insufficient", 0.95, reason="no crossing")


def surface_answer(surfaces, params):
    """The projection without crossings."""
    return predict((NO_LAW,), surfaces, (), params)


#: (smallest N, largest N, depths): a laptop's study and one that nobody could pay for.
SMALL = (1e3, 1e5, (1, 2, 4, 6, 8))
LARGE = (1e10, 1e12, (20, 40, 80, 120))


def shapes(low, high, depths, sizes=6):
    rows = [(depth, params) for params in np.geomspace(low, high, sizes) for depth in depths]
    frame = pd.DataFrame(rows, columns=["depth", "params"])
    return frame.assign(width=np.sqrt(frame["params"] / (12 * frame["depth"])))


def additive(frame, E=1.7, c_m=0.5, alpha_m=0.9, c_l=0.3, alpha_l=1.1):
    """Coefficients are at the smallest width and depth, so that both terms matter at any scale."""
    width, depth = frame["width"] / frame["width"].min(), frame["depth"] / frame["depth"].min()
    return E + c_m * width**-alpha_m + c_l * depth**-alpha_l


@pytest.mark.parametrize("grid", [SMALL, LARGE])
def test_additive_parameters_are_recovered_at_any_scale(grid):
    frame = shapes(*grid)
    found = fit_additive(frame.assign(loss=additive(frame)))
    assert (found.status, found.reason, found.points, found.dof) == ("ok", None, len(frame), len(frame) - 5)
    truth = {"E": 1.7, "alpha_m": 0.9, "alpha_l": 1.1}
    truth |= {"c_m": 0.5 * frame["width"].min() ** 0.9, "c_l": 0.3 * frame["depth"].min() ** 1.1}
    assert found.parameters == pytest.approx(truth, rel=1e-7)
    assert found.rmse < 1e-9
    np.testing.assert_allclose(found.loss(frame["params"], frame["depth"]), additive(frame), rtol=1e-10)


def test_noise_leaves_the_residuals_and_the_depths_where_they_should_be():
    """With noise of known size the weighted residuals have their degrees of freedom, and predictions their error."""
    frame, sd = shapes(1e6, 1e9, (3, 6, 12, 24, 48), sizes=10), 0.004
    clean = additive(frame)
    generator = np.random.default_rng(7)
    squares, misses = [], []
    for _ in range(8):
        found = fit_additive(noisy(frame, clean, sd, generator).assign(weight=1 / sd**2))
        assert found.status == "ok"
        squares.append((found.rmse / sd) ** 2 * len(frame) / found.dof)
        misses.append(found.loss(frame["params"], frame["depth"]) - clean)
    # 8 fits with 45 degrees of freedom: the mean of chi²/dof is known to sqrt(2/360) = 7.5 %; three of them.
    assert np.mean(squares) == pytest.approx(1, abs=0.22)
    # A fit of 5 parameters to 50 points misses the truth by sqrt(5/50) of the noise.
    assert np.sqrt(np.mean(np.square(misses))) == pytest.approx(sd * math.sqrt(0.1), rel=0.35)


def test_no_plain_search_in_all_parameters_finds_a_lower_minimum():
    frame = shapes(1e5, 1e7, (2, 4, 8, 16))
    generator = np.random.default_rng(3)
    loss = additive(frame) + 0.01 * generator.standard_normal(len(frame))
    weight = generator.uniform(0.5, 2, len(frame))
    found = fit_additive(frame.assign(loss=loss, weight=weight))
    width, depth = frame["width"] / frame["width"].min(), frame["depth"] / frame["depth"].min()

    def misfit(p):
        value = np.exp(p[0]) + np.exp(p[1] - np.exp(p[2]) * np.log(width))
        value = value + np.exp(p[3] - np.exp(p[4]) * np.log(depth))
        return np.sqrt(weight) * (value - loss)

    starts = generator.normal([0.5, -0.5, -0.5, -1.5, 0.3], 0.5, size=(12, 5))
    plain = min(2 * least_squares(misfit, start, max_nfev=2000).cost for start in starts)
    residual = loss - found.loss(frame["params"], frame["depth"])
    # Nothing lower, and the plain search does come to the same minimum.
    assert weight @ residual**2 == pytest.approx(plain, rel=1e-6)


def test_the_additive_optimum_is_the_minimum_of_the_surface():
    values = {"E": 1.7, "c_m": 30.0, "alpha_m": 0.7, "c_l": 2.0, "alpha_l": 1.3}
    surface = SurfaceFit("additive", "ok", parameters=values)
    for params in (1e3, 1e8, 1e13):
        best = surface.best_depth(params)
        plain = minimize_scalar(
            lambda log, params=params: float(surface.loss(params, math.exp(log)) - 1.7),
            bounds=(-3, 12),
            method="bounded",
            options={"xatol": 1e-10},
        )
        # A minimum is flat: half the digits of the loss is what a search by value can have.
        assert best == pytest.approx(math.exp(plain.x), rel=1e-5)
        assert surface.why_not(params) is None
    with pytest.raises(InputError, match="size is -5"):
        surface.best_depth(-5)


def noisy(frame, clean, sd, generator):
    """The frame with the losses `clean`, but for normal noise."""
    return frame.assign(loss=clean + sd * generator.standard_normal(len(frame)))


def bowl(frame, best=lambda params: 0.5 * params**0.25, curvature=0.03):
    """A quadratic surface whose valley lies at `best`, a power of N."""
    away = np.log(frame["depth"] / best(frame["params"]))
    x = np.log(frame["params"])
    return 5 - 0.2 * x + 0.004 * x**2 + curvature * away**2


def test_the_valley_of_a_quadratic_surface_is_recovered():
    frame = shapes(1e4, 1e7, (2, 4, 8, 16, 32))
    found = fit_response(frame.assign(loss=bowl(frame)))
    assert (found.status, found.scaled, found.dof) == ("ok", True, 24)
    np.testing.assert_allclose(found.loss(frame["params"], frame["depth"]), bowl(frame), rtol=1e-11)
    assert found.parameters["b_LL"] == pytest.approx(0.03, rel=1e-8)
    for params in (1e3, 1e6, 1e12):
        assert found.best_depth(params) == pytest.approx(0.5 * params**0.25, rel=1e-6)


def test_a_ridge_has_no_best_depth():
    frame = shapes(1e4, 1e7, (2, 4, 8, 16, 32))
    found = fit_response(frame.assign(loss=bowl(frame, curvature=-0.03)))
    assert found.best_depth(1e6) is None
    assert "not convex in ln L" in found.why_not(1e6)
    assert found.interval(1e6) == (None, None)


@pytest.mark.parametrize("known", [True, False])
def test_the_interval_is_the_set_of_depths_whose_slope_may_be_zero_and_covers(known):
    frame, sd, params, level = shapes(1e4, 1e7, (2, 4, 8, 16), sizes=4), 0.02, 3e6, 0.8
    clean, truth = bowl(frame), 0.5 * 3e6**0.25
    generator = np.random.default_rng(11)
    covered, open_ends, draws = 0, 0, 400
    for _ in range(draws):
        drawn = noisy(frame, clean, sd, generator)
        interval = fit_response(drawn.assign(weight=1 / sd**2) if known else drawn).interval(params, level)
        covered += holds(interval, truth)
        open_ends += None in interval
    # Two standard deviations of a count of 400; the hull of an open set, and a scale of at least 1, only cover more.
    assert level * draws - 2 * math.sqrt(draws * level * (1 - level)) <= covered < 0.95 * draws
    # The noise is chosen so that both kinds occur.
    assert 0.02 * draws < open_ends < 0.9 * draws


def test_the_interval_ends_where_the_slope_is_as_large_as_its_error():
    frame = shapes(1e4, 1e7, (2, 4, 8, 16))
    noise = 0.003 * np.random.default_rng(5).standard_normal(len(frame))
    found = fit_response(frame.assign(loss=bowl(frame) + noise))
    params = 1e6
    low, high = found.interval(params, 0.9)
    u, x = math.log(params) - found.parameters["log_params"], found.parameters["log_depth"]
    a, b = (np.log(frame[name]) - np.log(frame[name]).mean() for name in ("params", "depth"))
    design = np.column_stack([np.ones(len(frame)), a, b, a**2, a * b, b**2])
    loss = bowl(frame) + noise
    beta, residual, *_ = np.linalg.lstsq(design, loss, rcond=None)
    covariance = residual[0] / found.dof * np.linalg.inv(design.T @ design)
    assert low < found.best_depth(params) < high
    for end in (low, high):
        row = np.array([0, 0, 1, 0, u, 2 * (math.log(end) - x)])
        ratio = abs(row @ beta) / math.sqrt(row @ covariance @ row)
        assert ratio == pytest.approx(student.ppf(0.95, found.dof), rel=1e-6)


def test_flat_losses_leave_the_interval_open():
    """Nearly no curvature: the data do not exclude that the loss goes on falling with depth."""
    frame = shapes(1e4, 1e7, (2, 4, 8, 16))
    depth = np.log(frame["depth"])
    generator = np.random.default_rng(0)
    loss = 3 - 0.02 * np.log(frame["params"]) - 0.05 * depth + 0.002 * depth**2
    found = fit_response(frame.assign(loss=loss + 0.005 * generator.standard_normal(len(frame))))
    assert found.parameters["b_LL"] > 0
    low, high = found.interval(1e6)
    assert low > 8
    assert high is None


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_interval_of_the_additive_optimum_covers(known):
    frame, sd = shapes(5e7, 2e9, (4, 8, 16, 32, 48), sizes=5), 0.004
    clean = additive(frame)
    truth = SurfaceFit("additive", "ok", parameters=fit_additive(frame.assign(loss=clean)).parameters)
    generator = np.random.default_rng(3)
    draws, level, covered = 60, 0.9, np.zeros(3)
    for _ in range(draws):
        drawn = noisy(frame, clean, sd, generator)
        found = fit_additive(drawn.assign(weight=1 / sd**2) if known else drawn)
        covered += [holds(found.interval(size, level), truth.best_depth(size)) for size in (1e8, 1e9, 2e10)]
    # Three standard deviations of a count of 60.
    assert np.all(covered >= level * draws - 3 * math.sqrt(draws * level * (1 - level)))
    assert np.any(covered < draws)


def test_in_an_additive_world_the_answer_holds_the_optimum_where_a_quadratic_does_not():
    """The quadratic's interval held the best depth of 1.6e8 in no study."""
    frame, sd, params = shapes(5e7, 2e9, (4, 8, 12, 16, 24, 32, 48), sizes=7), 0.005, 1.6e8
    clean = 1.7 + 301 * frame["width"] ** -0.96 + 3.05 * frame["depth"] ** -1.066
    truth = fit_additive(frame.assign(loss=clean)).best_depth(params)
    generator = np.random.default_rng(8)
    draws, held = 12, {"quadratic": 0, "answer": 0}
    for _ in range(draws):
        fits = fit_surfaces(noisy(frame, clean, sd, generator))
        answer = surface_answer(fits, params)
        assert answer.laws[0] == "additive"
        held["quadratic"] += holds(fits[1].interval(params), truth)
        held["answer"] += holds(answer.depth_interval, truth)
    assert held["quadratic"] <= 1
    # 95 % of 12 less three standard deviations.
    assert held["answer"] >= 9


def test_a_surface_that_the_points_do_not_rule_out_widens_the_interval():
    """Few shapes and much noise: either form fits, and the answer holds what both hold."""
    frame = shapes(1e8, 4e8, (6, 12, 24, 48), sizes=3)
    loss = additive(frame) + 0.05 * np.random.default_rng(1).standard_normal(len(frame))
    fits = fit_surfaces(frame.assign(loss=loss))
    assert len(supported(fits)) == 2
    answer = surface_answer(fits, 2e8)
    ends = [item.interval(2e8) for item in fits]
    for place, pick in ((0, min), (1, max)):
        column = [end[place] for end in ends]
        assert answer.depth_interval[place] == (None if None in column else pick(column))
    assert answer.laws == tuple(item.form for item in sorted(fits, key=lambda item: item.aicc))
    # A form without a best depth sets no limit, so no depth is stated.
    flat = replace(fits[0], status="bound_hit", parameters=fits[0].parameters | {"c_l": 0.0}, covariance=None)
    open_answer = surface_answer((flat, fits[1]), 2e8)
    assert (open_answer.depth, open_answer.depth_interval) == (None, (None, None))
    assert "c_l" in open_answer.reason
    assert surface_answer((flat,), 2e8).depth_interval == (None, None)
    # A form that the points rule out has no say.
    ruled_out = replace(flat, aicc=fits[1].aicc + 20)
    assert surface_answer((ruled_out, fits[1]), 2e8).depth_interval == fits[1].interval(2e8)


def test_the_additive_law_is_fitted_at_equal_tokens_only():
    frame = shapes(*SMALL)
    found = fit_surfaces(frame.assign(loss=additive(frame)), equal_tokens=False)
    assert [item.status for item in found] == ["insufficient", "ok"]
    assert "equal tokens" in found[0].reason


def test_a_misfit_beyond_the_known_noise_widens_the_interval():
    frame = shapes(1e4, 1e7, (2, 4, 8, 16))
    loss = bowl(frame) + 0.01 * np.random.default_rng(2).standard_normal(len(frame))
    honest = fit_response(frame.assign(loss=loss))
    bold = fit_response(frame.assign(loss=loss, weight=1 / 0.001**2))
    assert bold.scaled
    assert bold.interval(1e6) == pytest.approx(honest.interval(1e6))
    modest = fit_response(frame.assign(loss=loss, weight=1 / 0.02**2))
    assert not modest.scaled


def test_few_or_flat_points_are_insufficient_with_the_reason():
    frame = shapes(*SMALL)
    frame = frame.assign(loss=additive(frame))
    cases = {
        "shapes are needed for": frame.head(5),
        "three depths and three sizes": frame[frame["depth"] <= 2],
        "move together": frame[frame["depth"] == 1].assign(depth=lambda f: (f["params"] / 1e3) ** 0.5),
    }
    cases["move together"] = pd.concat([cases["move together"]] * 2)
    for words, rows in cases.items():
        for found in fit_surfaces(rows):
            assert found.status == "insufficient"
            assert words in found.reason
            assert (found.best_depth(1e6), found.parameters) == (None, {})
            assert found.why_not(1e6) == found.reason
            assert np.isnan(found.loss(1e6, 4))


def test_a_term_that_is_not_there_hits_its_bound():
    frame = shapes(*SMALL)
    # Deeper is worse at equal width: no depth term with a positive coefficient can say so.
    found = fit_additive(frame.assign(loss=2 + 0.5 * frame["width"] ** -0.9 + 0.01 * np.log(frame["depth"])))
    assert (found.status, found.parameters["c_l"]) == ("bound_hit", 0)
    assert "c_l = 0" in found.reason
    assert found.best_depth(1e6) is None
    assert "c_l" in found.why_not(1e6)
    # A logarithm is the power law of exponent zero with an endless coefficient.
    flat = fit_additive(frame.assign(loss=3 - 0.1 * np.log(frame["width"]) + 0.3 / frame["depth"]))
    assert flat.status == "bound_hit"
    assert "alpha_m = 0.01" in flat.reason or "E = 0" in flat.reason


def test_an_optimiser_that_gives_up_is_not_hidden(monkeypatch):
    frame = shapes(*SMALL)
    monkeypatch.setattr("analysis.law.loss_surfaces.MOST_STEPS", 1)
    found = fit_additive(noisy(frame, additive(frame), 0.01, np.random.default_rng(0)))
    assert found.status == "not_converged"
    assert "iterations has been exceeded" in found.reason
    assert found.best_depth(1e6) is None
    assert found.why_not(1e6) == found.reason


def test_the_order_of_the_points_and_the_unit_of_the_weights_change_nothing():
    frame = shapes(*SMALL)
    generator = np.random.default_rng(1)
    frame = noisy(frame, additive(frame), 0.01, generator).assign(weight=generator.uniform(1, 3, len(frame)))
    mixed, scaled = frame.sample(frac=1, random_state=0), frame.assign(weight=frame["weight"] * 1e6)
    for plain, one, other in zip(*map(fit_surfaces, (frame, mixed, scaled)), strict=True):
        assert one.parameters == pytest.approx(plain.parameters, rel=1e-6)
        assert (one.rmse, one.aicc) == pytest.approx((plain.rmse, plain.aicc), rel=1e-9)
        assert other.parameters == pytest.approx(plain.parameters, rel=1e-5)
        assert other.rmse == pytest.approx(plain.rmse)
        assert other.aicc == pytest.approx(plain.aicc + len(frame) * math.log(1e6))


def test_aicc_is_the_textbook_one_and_picks_the_truth():
    frame = shapes(1e5, 1e8, (2, 4, 8, 16))
    noise = 0.003 * np.random.default_rng(4).standard_normal(len(frame))
    fits = {found.form: found for found in fit_surfaces(frame.assign(loss=additive(frame) + noise))}
    assert min(fits, key=lambda form: fits[form].aicc) == "additive"
    count, found = len(frame), fits["additive"]
    expected = count * math.log(found.rmse**2) + 2 * 6 + 2 * 6 * 7 / (count - 7)
    assert found.aicc == pytest.approx(expected)


def test_points_are_the_shapes_of_a_study(pilot_frame):
    curves = build_curves(pilot_frame().assign(params=lambda rows: 12.0 * rows["depth"] * rows["width"] ** 2))
    found = points_of(curves, curves.misfit_sd)
    assert len(found.loss) == 15
    shared, own = curves.errors
    expected = shared @ shared.T + np.diag(own**2 + curves.misfit_sd**2)
    np.testing.assert_allclose(found.covariance, expected)
    assert {item.form: item.status for item in loss_surfaces.fit_surfaces(found)}["response"] == "ok"


def test_what_the_shapes_of_a_depth_share_makes_the_interval_of_the_best_depth_longer():
    """More sizes do not average out an error that is common to a depth."""
    frame, sd = shapes(1e4, 1e7, (2, 4, 8, 16)), 0.004
    clean, truth = bowl(frame), 0.5 * 1e6**0.25
    same = (frame["depth"].to_numpy()[:, None] == frame["depth"].to_numpy()).astype(float)
    covariance = sd**2 * (0.2 * np.eye(len(frame)) + 0.8 * same)
    generator = np.random.default_rng(4)
    held = {"whole": 0, "diagonal": 0}
    for _ in range(200):
        loss = clean + generator.multivariate_normal(np.zeros(len(frame)), covariance)
        plain = points(frame.assign(loss=loss))
        for name, matrix in (("whole", covariance), ("diagonal", np.diag(np.diag(covariance)))):
            found = loss_surfaces.fit_surface("response", replace(plain, covariance=matrix))
            held[name] += holds(found.interval(1e6), truth)
    assert held["whole"] >= 184, "95 % of 200 less two standard deviations"
    assert held["diagonal"] < held["whole"]
