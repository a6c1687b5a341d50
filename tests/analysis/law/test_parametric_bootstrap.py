import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.files import from_json, to_json
from analysis.law.crossings import find_crossings
from analysis.law.parametric_bootstrap import ParametricBootstrap, resample, run_bootstrap
from analysis.law.threshold import fit_threshold
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1e3, 1e5, 6))


@pytest.fixture(scope="module")
def curves():
    return build_curves(simulate(TRUTH, SHAPES, 3, np.random.default_rng(0)))


def test_a_new_study_has_the_shapes_seeds_and_noise_of_the_old_one(curves):
    generator = np.random.default_rng(1)
    tables = [resample(curves, generator) for _ in range(300)]
    first = tables[0]
    assert len(first) == curves.count.sum()
    assert sorted(first["seed"].unique()) == [0, 1, 2]
    means = np.array([table.groupby(["depth", "params"])["loss"].mean() for table in tables])
    fitted = curves.mean - curves.residual
    spread = np.sqrt(curves.se**2 + curves.misfit.white)
    # 300 draws: a mean is known to 6 % of the spread, the spread to 4 %.
    np.testing.assert_allclose((means.mean(axis=0) - fitted) / spread, 0, atol=0.25)
    np.testing.assert_allclose(means.std(axis=0) / spread, 1, atol=0.17)


@pytest.mark.slow
def test_refits_agree_with_the_inverted_test_where_all_is_well_measured():
    # Four crossings: with fewer the interval of the slope contains an assumed scatter, which the refits do not.
    truth = Truth(2.5, 0.3, (1, 2, 3, 4, 5))
    shapes = shapes_of(truth.depths, np.geomspace(2e3, 4e5, 8))
    curves = build_curves(simulate(truth, shapes, 3, np.random.default_rng(0)))
    found = find_crossings(curves, draws=200)
    law = fit_threshold(found, "log-linear")
    again = run_bootstrap(curves, 120, seed=2)
    assert (again.count, again.with_law) == (120, 120)
    ours, theirs = (
        np.log(np.array(ends)) for ends in (found.items[0].params_interval, again.crossings["1-2"])
    )
    # The 2.5 % quantile of 120 draws deviates by about a third of a standard error; an interval is four of them.
    np.testing.assert_allclose(theirs, ours, atol=0.3 * (ours[1] - ours[0]))
    assert again.b_interval[1] - again.b_interval[0] == pytest.approx(
        law.b_interval[1] - law.b_interval[0], rel=0.35
    )


def test_the_same_seed_gives_the_same_refits_and_json_keeps_them(curves):
    one, other = run_bootstrap(curves, 5, seed=3), run_bootstrap(curves, 5, seed=3)
    assert one == other
    assert from_json(ParametricBootstrap, to_json(one), "interval") == one


def test_without_noise_there_is_nothing_to_simulate():
    frame = simulate(TRUTH, SHAPES, 1, np.random.default_rng(0))
    exact = frame.assign(
        loss=[float(TRUTH.loss(d, np.array([n]))[0]) for d, n in zip(frame.depth, frame.params, strict=True)]
    )
    assert run_bootstrap(build_curves(exact[exact["budget"] < 3e3]), 5) is None
