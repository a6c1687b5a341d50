import numpy as np
import pytest

from analysis.curves.noise import Noise, from_residuals, from_seeds


def depths(losses):
    """A depth for each shape, three in turn."""
    return np.arange(len(losses)) % 3


def replicates(shapes, seeds, generator, sd=0.005, slope=0.0, shared=0.0):
    """(shapes, seeds) losses falling from 4 to 2, with noise sd·(loss/3)^slope."""
    mean = np.geomspace(4, 2, shapes)[:, None]
    common = np.sqrt(shared) * generator.standard_normal(seeds)
    own = np.sqrt(1 - shared) * generator.standard_normal((shapes, seeds))
    return mean + sd * (mean / 3) ** slope * (common + own)


def test_size_trend_and_sharing_are_recovered():
    # 150 shapes of 20 seeds: 2,850 degrees of freedom, so sd is known to 1/sqrt(2·2850) = 1.3 %.
    generator = np.random.default_rng(0)
    losses = replicates(150, 20, generator, sd=0.02, slope=2.0, shared=0.4)
    found = from_seeds(losses, depths(losses))
    assert found.source == "seeds"
    assert found.dof == 150 * 19 - 1
    assert found.slope == pytest.approx(2.0, abs=0.25)
    # What the seeds share rests on their 20 draws only: the share is known to about a third of itself.
    assert found.correlation == pytest.approx(0.4, abs=0.25)
    own = found.sd_at(np.array([3.0]))[0] * np.sqrt(1 - found.correlation)
    assert own == pytest.approx(0.02 * np.sqrt(0.6), rel=0.05)


def test_the_part_common_to_a_depth_is_told_from_the_part_common_to_a_seed():
    generator = np.random.default_rng(3)
    depth = np.repeat(np.arange(12), 8)
    seeds, each = generator.standard_normal(20), generator.standard_normal((12, 20))
    own = generator.standard_normal((96, 20))
    error = np.sqrt(0.2) * seeds + np.sqrt(0.5) * each[depth] + np.sqrt(0.3) * own
    found = from_seeds(3 + 0.01 * error, depth)
    # 12·19 draws of depths: a share is known to a tenth of itself, that of the seeds to a third.
    assert found.within == pytest.approx(0.5, abs=0.1)
    assert found.correlation == pytest.approx(0.2, abs=0.15)
    assert found.independent == 1 - found.correlation - found.within
    assert from_seeds(3 + 0.01 * own, depth).within < 0.05


def test_the_shares_equal_sums_over_all_pairs_of_shapes():
    # The plain way, pair by pair, with seeds missing here and there.
    generator = np.random.default_rng(1)
    losses = replicates(9, 5, generator, sd=0.02, shared=0.3)
    depth = depths(losses)
    losses += 0.02 * generator.standard_normal((3, 5))[depth]
    losses[[0, 3, 3, 7], [1, 0, 4, 2]] = np.nan
    present = np.isfinite(losses)
    residual = np.where(present, losses - np.nanmean(losses, axis=1, keepdims=True), 0)
    found = from_seeds(losses, depth)
    sd = np.exp(found.log_sd + found.slope * (np.log(np.nanmean(losses, axis=1)) - found.centre))
    sums = np.zeros((2, 2))
    for p in range(9):
        for q in range(p):
            both = (present[p] & present[q]).sum()
            n, m = present[p].sum(), present[q].sum()
            expected = both * (1 - 1 / n - 1 / m + both / (n * m))
            sums[int(depth[p] == depth[q])] += (residual[p] / sd[p]) @ (residual[q] / sd[q]), expected
    (between, within) = sums[:, 0] / sums[:, 1]
    assert 0 < between < within
    assert found.correlation == pytest.approx(between)
    assert found.within == pytest.approx(within - between)


def test_few_shapes_get_one_size_for_all():
    generator = np.random.default_rng(2)
    assert from_seeds(replicates(5, 4, generator, slope=3), np.arange(5)).slope == 0


@pytest.mark.parametrize("losses", [np.full((4, 1), 2.0), np.full((4, 3), 2.0)])
def test_one_seed_and_equal_seeds_say_nothing(losses):
    found = from_seeds(losses, depths(losses))
    assert (found.source, found.is_measured) == ("none", False)
    assert np.isnan(found.sd_at(np.array([2.0]))).all()
    assert found.summary().sd is None


def test_residuals_stand_in_for_seeds_in_proportion_to_the_loss():
    nothing = from_seeds(np.array([[4.0], [2.0]]), np.array([1, 2]))
    found = from_residuals(nothing, square=8 * 0.01**2, dof=8)
    assert (found.source, found.dof) == ("residuals", 8)
    np.testing.assert_allclose(found.sd_at(np.array([4.0, 2.0])), [0.04, 0.02])


@pytest.mark.parametrize(("square", "dof"), [(0.0, 5), (1.0, 0)])
def test_no_residual_and_no_freedom_say_nothing(square, dof):
    nothing = Noise("none", 0.0, float("nan"), 0.0, 1.0, 0.0, 1)
    assert from_residuals(nothing, square, dof) is nothing
