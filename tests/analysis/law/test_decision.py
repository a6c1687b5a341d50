"""The depth of least expected loss beyond the data: recovered laws, honest bounds, and what it refuses."""

import dataclasses
import json
import math

import numpy as np
import pytest

from analysis.law.decision import FORM_ERROR, FORMS, Decision, GapLaws, deciding_run
from analysis.law.gap_fit import DRAWS, GapPoints, fit_gap_laws
from analysis.law.reasons import Because, Reason
from core.errors import InputError
from core.files import from_json, to_json

LOW, HIGH = math.log(3e6), math.log(5e8)
SD = 0.003


def common(x):
    """An irreducible loss and a power law of N, which no law of the gap has."""
    return 1.7 + 1.2 * np.exp(-0.34 * (x - LOW))


def ladder(x, log_depth):
    """Additive: the best depth grows from 3 layers at 3e6 to about 12 at 5e8."""
    width = (x - math.log(12) - log_depth) / 2
    return common(x) + 30 * np.exp(-0.9 * width) + 0.75 * np.exp(-1.2 * log_depth)


def valley(x, log_depth, growth=0.27, curvature=0.07):
    """About a power law of 3 layers at 3e6."""
    return common(x) + curvature * (log_depth - math.log(3) - growth * (x - LOW)) ** 2


def constant(x, log_depth):
    """About 4 layers at every size; the valley gets flatter as N grows."""
    return common(x) + 0.07 * np.exp(-0.1 * (x - LOW)) * (log_depth - math.log(4)) ** 2


def points(law, depths=(2, 4, 8, 16), sizes=7, sd=SD, seed=0, known=True):
    """Noisy losses of a law on a grid of depths and sizes."""
    x = np.tile(np.linspace(LOW, HIGH, sizes), len(depths))
    depth = np.repeat(np.array(depths, dtype=float), sizes)
    loss = law(x, np.log(depth)) + np.random.default_rng(seed).normal(0, 1, len(x)) * sd
    covariance = np.eye(len(x)) * max(sd, 1e-9) ** 2 if known else None
    return GapPoints(depth, x, loss, covariance, 20.0 if known else math.inf)


def true_losses(law, params):
    """What each whole depth loses against the best, from one layer on."""
    depths = np.arange(1, int((params / 12) ** (1 / 3)) + 1)
    losses = law(np.full(len(depths), math.log(params)), np.log(depths))
    return losses - losses.min()


@pytest.fixture(scope="module")
def fitted():
    return fit_gap_laws(points(ladder))


@pytest.mark.parametrize("factor", [3, 10])
def test_the_bound_grows_below_the_data_as_beyond_them(fitted, factor):
    low, high = fitted.params_range
    added = FORM_ERROR * math.log10(factor)
    for params in (low / factor, high * factor):
        assert fitted.decide(params).bound >= 0.9999 * (FORM_ERROR + added)


@pytest.mark.parametrize("law", [ladder, valley, constant])
@pytest.mark.parametrize("factor", [3, 10])
def test_the_depth_beyond_the_data_loses_no_more_than_its_bound(law, factor):
    params = 5e8 * factor
    truth = true_losses(law, params)
    for seed in range(3):
        found = fit_gap_laws(points(law, seed=seed)).decide(params)
        assert truth[found.depth - 1] <= found.bound
        low, high = found.depth_interval
        assert low <= int(truth.argmin()) + 1 <= high
        assert found.expected <= found.bound
        assert found.bound >= 0.9999 * FORM_ERROR * (1 + math.log10(factor))


def test_with_little_noise_the_law_of_the_data_is_recovered():
    found = fit_gap_laws(points(ladder, sd=3e-4))
    additive = next(law for law in found.laws if law.form == "additive")
    assert additive.status == "ok"
    assert additive.weight > 0.99
    assert additive.parameters["alpha_m"] == pytest.approx(0.9, rel=0.1)
    assert additive.parameters["alpha_l"] == pytest.approx(1.2, rel=0.1)
    truth = true_losses(ladder, 5e9)
    decision = found.decide(5e9)
    assert truth[decision.depth - 1] < 2e-4
    for depth in (6, 12, 24, 48):
        assert decision.lost(depth)[0] == pytest.approx(truth[depth - 1], rel=0.1, abs=5e-4)


def test_a_law_that_the_residuals_reject_has_no_draws():
    found = {law.form: law for law in fit_gap_laws(points(valley, sd=0.001)).laws}
    assert found["saturating"].status == "rejected"
    assert found["saturating"].p_value < 0.05
    assert (found["saturating"].weight, found["saturating"].draws) == (0.0, ())
    assert found["power"].status == "ok"


def test_without_a_law_that_fits_there_is_no_decision():
    def steps(x, log_depth):
        return common(x) + 0.05 * np.sin(3 * x) * log_depth

    found = fit_gap_laws(points(steps))
    assert {law.status for law in found.laws} == {"rejected"}
    assert found.decide(1e9) is None
    assert [because.reason for because in found.reasons] == [Reason.ALL_REJECTED]


@pytest.mark.parametrize(
    ("depths", "sizes", "reason", "values"),
    [((2, 4, 8), 7, Reason.FEW_DEPTHS, (4, 3)), ((2, 4, 8, 16), 2, Reason.FEW_SIZES, (3, 2))],
)
def test_too_few_depths_or_sizes_are_insufficient(depths, sizes, reason, values):
    found = fit_gap_laws(points(ladder, depths=depths, sizes=sizes))
    assert {law.status for law in found.laws} == {"insufficient"}
    assert found.reasons == (Because(reason, values),)
    assert found.decide(1e9) is None
    assert deciding_run(found, 1e9, [(4, 1e9)], SD) is None


def test_depth_and_size_that_move_together_are_insufficient():
    x = np.linspace(LOW, HIGH, 12)
    depth = np.exp(np.linspace(0, 3, 12))
    found = fit_gap_laws(GapPoints(depth, x, ladder(x, np.log(depth))))
    assert found.reasons == (Because(Reason.COLLINEAR),)


def test_the_order_of_the_rows_does_not_matter(fitted):
    data = points(ladder)
    order = np.random.default_rng(1).permutation(len(data.loss))
    shuffled = GapPoints(
        data.depth[order],
        data.x[order],
        data.loss[order],
        data.covariance[np.ix_(order, order)],
        data.noise_dof,
    )
    assert fit_gap_laws(shuffled) == fitted


def test_a_fit_decides_from_its_file_as_before(fitted):
    again = from_json(GapLaws, json.loads(json.dumps(to_json(fitted))), "fit file")
    assert again == fitted
    decision = fitted.decide(2e9)
    assert again.decide(2e9) == decision
    assert from_json(Decision, to_json(decision), "decision") == decision


def test_the_weights_add_up_and_the_draws_follow_them(fitted):
    assert [law.form for law in fitted.laws] == list(FORMS)
    assert sum(law.weight for law in fitted.laws) == pytest.approx(1)
    for law in fitted.laws:
        assert len(law.draws) == round(DRAWS * law.weight)


def test_no_shape_is_narrower_than_deep(fitted):
    found = fitted.decide(1e7)
    deepest = found.losses[-1][0]
    assert 12 * deepest**3 <= 1e7 < 12 * (deepest + 1) ** 3
    assert fitted.decide(1e13).losses[-1][0] == 400
    with pytest.raises(InputError):
        fitted.decide(-1.0)


def test_lost_and_near_agree_with_the_table(fitted):
    found = fitted.decide(5e9)
    (expected, bound), *_ = [rest for depth, *rest in found.losses if depth == found.depth]
    assert (expected, bound) == (found.expected, found.bound)
    assert found.lost(found.depth) == pytest.approx((expected, bound))
    shallow, deep = found.near(0.005)
    assert shallow < found.depth < deep
    limit = found.expected + 0.005
    assert found.lost(shallow)[0] <= limit < found.lost(shallow - 1)[0]
    assert found.lost(deep)[0] <= limit < found.lost(deep + 1)[0]
    shortest = found.near(0.0)
    assert shortest == (found.depth, found.depth)


def test_less_noise_gives_a_smaller_bound_and_a_shorter_interval():
    rough, fine = (fit_gap_laws(points(valley, sd=sd)).decide(1.5e9) for sd in (0.005, 0.0005))
    assert fine.bound < rough.bound
    assert fine.depth_interval[1] / fine.depth_interval[0] < rough.depth_interval[1] / rough.depth_interval[0]


def test_noise_that_is_not_known_is_estimated_from_the_residuals():
    found = fit_gap_laws(points(ladder, known=False))
    assert {law.p_value for law in found.laws} == {None}
    decision = found.decide(1.5e9)
    assert true_losses(ladder, 1.5e9)[decision.depth - 1] <= decision.bound


def test_an_error_that_all_shapes_share_changes_nothing(fitted):
    data = points(ladder)
    shared = dataclasses.replace(data, loss=data.loss + 0.1, covariance=data.covariance + 1.0)
    found, before = fit_gap_laws(shared).decide(1.5e9), fitted.decide(1.5e9)
    assert found.depth == before.depth
    assert found.bound == pytest.approx(before.bound, rel=0.05)


def test_the_deciding_run_is_large_and_not_a_depth_that_tells_nothing():
    laws = fit_gap_laws(points(valley, sd=0.005))
    candidates = [(depth, size) for size in (3e6, 5e8, 1.5e9) for depth in (2, 8, 16, 32)]
    depth, size = deciding_run(laws, 1.5e9, candidates, 0.005)
    assert size >= 5e8
    assert depth >= 16
    assert deciding_run(laws, 1.5e9, [], 0.005) is None
