import math

import numpy as np
import pandas as pd
import pytest

from analysis.crossings import ONE_SEED, Crossing, find_crossings, gap_of, roots
from analysis.curves import build_curves


def crossing(frame, **options):
    return find_crossings(build_curves(frame), **options).items[0]


def test_a_known_crossing_is_recovered(line_frame):
    # Gap = 0.1·ln(N/6e3): zero at N = 6e3 exactly, where depth 2 takes the lead.
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, sd=0.005))
    assert item.status == "bracketed"
    assert item.reason is None
    low, high = item.params_interval
    assert low < item.params < high
    assert item.params == pytest.approx(6e3, rel=0.1)
    assert item.width == pytest.approx(math.sqrt(item.params / 12))
    assert item.width_interval == pytest.approx((math.sqrt(low / 12), math.sqrt(high / 12)))
    assert item.draws_one == pytest.approx(1.0, abs=0.01)
    assert item.draws_one + item.draws_none + item.draws_several == pytest.approx(1.0)


def test_noise_free_crossing_is_exact_between_points(line_frame):
    curves = build_curves(line_frame({1: (1.0, -0.1), 3: (1.03, -0.2)}, seeds=1, sd=0))
    gap = gap_of(curves, 1, 3)
    assert roots(gap.x, gap.value[None, :]).x[0] == pytest.approx(math.log(6e3) + 0.3, abs=1e-12)


@pytest.mark.parametrize(("seeds", "shared"), [(2, 0.0), (3, 0.0), (3, 0.6)])
def test_the_interval_covers_the_truth_at_about_its_level(line_frame, seeds, shared):
    # 300 studies at 95 %: the binomial error is 1.3 %, so three of them either way is 91.2 to 98.8 %; the two
    # upper points of tolerance more are for the normal quantile of a percentile interval with estimated
    # noise.
    studies, hits = 300, 0
    for index in range(studies):
        frame = line_frame(
            {1: (1.0, -0.1), 2: (1.0, -0.2)}, seed=index, seeds=seeds, sd=0.03, trend=-0.3, shared=shared
        )
        found = find_crossings(build_curves(frame), draws=400, seed=index)
        low, high = np.quantile(found.draws[:, 0], [0.025, 0.975], method="inverted_cdf")
        hits += low <= math.log(6e3) <= high
    assert 0.912 <= hits / studies <= 0.99


def test_left_censored_when_the_deep_net_leads_everywhere(line_frame):
    item = crossing(line_frame({1: (1.1, -0.1), 2: (1.0, -0.1)}))
    assert item.status == "left_censored"
    assert item.params is None
    assert item.width is None
    assert item.params_interval[0] is None
    assert item.params_interval[1] == pytest.approx(1e3)


def test_right_censored_when_the_deep_net_leads_nowhere(line_frame):
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.1, -0.1)}))
    assert item.status == "right_censored"
    assert item.params_interval == (pytest.approx(32e3), None)
    assert item.width_interval[1] is None


def test_a_bound_carries_the_noise_at_the_edge(line_frame):
    # At the largest size the shallow net leads by about one standard error, so a crossing inside is possible.
    slopes = {1: (1.0, -0.1), 2: (1.0 + 0.17, -0.2)}
    item = next(
        item
        for seed in range(50)
        if (item := crossing(line_frame(slopes, seed=seed))).status == "right_censored"
        and item.draws_one > 0.05
    )
    assert item.params_interval[0] < 32e3
    assert item.params_interval[1] is None


def test_equal_curves_are_ambiguous_not_a_bound(line_frame):
    statuses = {
        crossing(line_frame({1: (1.0, -0.1), 2: (1.0, -0.1)}, seed=seed)).status for seed in range(10)
    }
    assert statuses == {"ambiguous"}


def test_a_crossing_with_a_weak_end_is_ambiguous_and_says_which(line_frame):
    # Zero at 27e3, close to the largest size 32e3: the lead there is 0.017 against a standard error near
    # 0.02.
    shift = 0.1 * math.log(27e3 / 6e3)
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.0 + shift, -0.2)}, sd=0.02, seed=4))
    assert item.status == "ambiguous"
    assert "at the largest common N the deep net leads by only" in item.reason
    assert item.params is not None


def test_one_sign_change_in_the_mean_is_not_enough_when_the_draws_disagree():
    # The ends are clear, but in the middle the gap hovers at +0.001 with a standard error near 0.008.
    gaps = {1e3: -0.1, 2e3: -0.05, 4e3: 0.001, 8e3: 0.001, 16e3: 0.001, 32e3: 0.1}
    frame = pd.DataFrame(
        [
            {"depth": depth, "params": params, "seed": seed, "loss": 1 - gap * (depth == 2) + spread}
            for depth in (1, 2)
            for params, gap in gaps.items()
            # The same seeds in another order, so that pairing does not make the gap certain.
            for seed, spread in zip((0, 1, 2) if depth == 1 else (2, 0, 1), (-0.01, 0.0, 0.01), strict=True)
        ]
    )
    item = crossing(frame)
    assert item.status == "ambiguous"
    assert item.draws_one < 0.95
    assert item.reason == f"only {item.draws_one:.0%} of the draws have exactly one sign change"
    assert 2e3 < item.params < 4e3


def test_several_sign_changes_are_ambiguous(line_frame):
    frame = line_frame({1: (1.0, 0.0), 2: (1.0, 0.0)}, sd=0.001)
    wave = {1e3: 0.1, 2e3: -0.1, 4e3: 0.1, 8e3: -0.1, 16e3: 0.1, 32e3: -0.1}
    frame["loss"] += frame["params"].map(wave) * (frame["depth"] == 2)
    item = crossing(frame)
    assert item.status == "ambiguous"
    assert "several times" in item.reason
    assert item.draws_several == 1.0


def test_reversed_order_is_not_a_crossing(line_frame):
    item = crossing(line_frame({1: (1.0, -0.2), 2: (1.0, -0.1)}))
    assert item.status == "ambiguous"
    assert item.params is None


def test_insufficient_with_one_size_or_no_common_range(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)})
    one_size = frame[(frame["depth"] == 1) | (frame["params"] == 4e3)]
    assert "depth 2 has only 1 size" in crossing(one_size).reason
    apart = frame[(frame["depth"] == 1) == (frame["params"] < 5e3)]
    item = crossing(apart)
    assert (item.status, item.reason) == ("insufficient", "the two depths have no common range of N")


def test_one_seed_gets_no_interval(line_frame):
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, seeds=1))
    assert (item.status, item.reason) == ("ambiguous", ONE_SEED)
    assert item.params is not None
    assert item.params_interval is None
    assert item.z_small is None
    censored = crossing(line_frame({1: (1.2, -0.1), 2: (1.0, -0.1)}, seeds=1))
    assert (censored.status, censored.reason, censored.params_interval) == ("left_censored", ONE_SEED, None)


def test_all_pairs_are_given_and_neighbours_flagged(line_frame):
    found = find_crossings(build_curves(line_frame({1: (1, -0.1), 2: (1, -0.15), 4: (1, -0.2)})))
    assert [(item.shallow, item.deep, item.adjacent) for item in found.items] == [
        (1, 2, True),
        (1, 4, False),
        (2, 4, True),
    ]
    assert found.draws.shape == (2000, 3)


def test_pairing_by_seed_narrows_the_interval(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, seeds=4, sd=0.02, shared=0.9, seed=3)
    paired = crossing(frame)
    unpaired = frame.copy()
    unpaired.loc[unpaired["depth"] == 2, "seed"] += 10
    alone = crossing(unpaired)
    assert paired.params == alone.params

    def span(item):
        return math.log(item.params_interval[1] / item.params_interval[0])

    assert span(paired) < 0.7 * span(alone)


def test_json_round_trip(line_frame):
    for frame in (
        line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}),
        line_frame({1: (1.2, -0.1), 2: (1.0, -0.1)}),
    ):
        item = crossing(frame)
        assert Crossing.from_json({**item.to_json(), "later": 1}) == item
