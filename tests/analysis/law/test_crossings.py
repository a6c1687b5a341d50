import math

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.law.crossings import Gap, find_crossings, gap_of, inverted_test, root
from analysis.law.reasons import Because, Reason


def crossing(frame, **options):
    return find_crossings(build_curves(frame), **options).items[0]


@pytest.mark.parametrize(("seeds", "sd"), [(3, 0.005), (1, 0.01)], ids=["seeds", "scatter about the curves"])
def test_a_known_crossing_is_recovered(line_frame, seeds, sd):
    # Gap = 0.1·ln(N/6e3): zero at N = 6e3 exactly, where depth 2 takes the lead.
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, seeds=seeds, sd=sd))
    assert (item.shallow, item.deep, item.status, item.reasons) == (1, 2, "bracketed", ())
    low, high = item.params_interval
    assert low < min(item.params, 6e3) <= max(item.params, 6e3) < high
    assert item.params == pytest.approx(6e3, rel=0.1)
    assert item.width == pytest.approx(math.sqrt(item.params / 12))


def test_noise_free_crossing_is_exact_between_points(line_frame):
    curves = build_curves(line_frame({1: (1.0, -0.1), 3: (1.03, -0.2)}, seeds=1, sd=0))
    gap = gap_of(curves, 1, 3)
    assert root(gap.x, gap.value) == pytest.approx(math.log(6e3) + 0.3, abs=1e-12)


def test_the_inverted_test_is_fiellers_interval_of_a_line():
    # Gap = p + q·x with covariance C: {x: (p + q·x)² <= t²·(C00 + 2·C01·x + C11·x²)} has ends in closed form.
    p, q, t = -0.02, 0.05, 2.1
    c = np.array([[1.6e-4, 2e-5], [2e-5, 9e-5]])
    x = np.linspace(-4, 6, 401)
    jacobian = np.column_stack([np.ones_like(x), x])
    gap = Gap(x, p + q * x, jacobian @ c @ jacobian.T)
    ends = np.roots([q**2 - t**2 * c[1, 1], 2 * (p * q - t**2 * c[0, 1]), p**2 - t**2 * c[0, 0]])
    assert inverted_test(gap, t) == pytest.approx(sorted(ends), abs=1e-3)


def test_the_inverted_test_is_open_where_an_end_is_not_beyond_the_noise():
    x = np.linspace(0, 1, 11)

    def ends(value):
        return inverted_test(Gap(x, value, np.ones((11, 11))), 2.0)

    assert ends(10 * x - 5) == (pytest.approx(0.3), pytest.approx(0.7))
    assert ends(10 * x - 1) == (-math.inf, pytest.approx(0.3))
    assert ends(10 * x - 9) == (pytest.approx(0.7), math.inf)
    assert ends(0 * x) == (-math.inf, math.inf)
    assert ends(0 * x + 3) == (-math.inf, 0.0)
    assert ends(0 * x - 3) == (1.0, math.inf)
    # The reversed order leaves everything open.
    assert ends(5 - 10 * x) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("lost", "status"),
    [
        ((2, 20e3, 3), "ambiguous"),
        ((2, 1e3, 3), "bracketed"),
        ((1, 1e3, 3), "ambiguous"),
        ((1, 20e3, 3), "bracketed"),
    ],
)
def test_a_net_that_diverged_has_lost_there(line_frame, lost, status):
    # The deep model must not lose above the crossing at 6e3, nor the shallow one below it.
    curves = build_curves(line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, sd=0.005))
    item = find_crossings(curves, diverged=(lost, (8, 1e3, 1))).items[0]
    assert item.status == status
    assert item.diverged == (lost,)
    assert item.contradicted == (status == "ambiguous")
    assert (item.reasons == ()) == (status == "bracketed")


@pytest.mark.parametrize(
    ("losses", "status", "interval"),
    [
        ({1: (1.1, -0.1), 2: (1.0, -0.1)}, "left_censored", (None, pytest.approx(1e3))),
        ({1: (1.0, -0.1), 2: (1.1, -0.1)}, "right_censored", (pytest.approx(32e3), None)),
        ({1: (1.0, -0.2), 2: (1.0, -0.1)}, "ambiguous", (None, None)),
    ],
    ids=["the deep model leads everywhere", "nowhere", "the order is reversed"],
)
def test_without_a_crossing_there_is_a_bound_or_nothing(line_frame, losses, status, interval):
    item = crossing(line_frame(losses))
    assert (item.status, item.params, item.width, item.params_interval) == (status, None, None, interval)


@pytest.mark.parametrize(("edge", "bound"), [(31e3, "right_censored"), (1.03e3, "left_censored")])
def test_a_bound_needs_evidence_at_both_ends(line_frame, edge, bound):
    # The crossing lies just inside the sizes: at the end beside it the models differ by a standard error or less.
    shift = 0.1 * math.log(edge / 6e3)
    items = [
        crossing(line_frame({1: (1.0, -0.1), 2: (1.0 + shift, -0.2)}, seed=seed, sd=0.02))
        for seed in range(30)
    ]
    none = [item for item in items if item.params is None]
    assert len(none) >= 5
    assert sum(item.status == bound for item in items) <= 2
    assert all(item.params_interval[bound == "right_censored"] is None for item in none)


def test_two_sizes_bracket_nothing_and_bound_only_from_size_to_size(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2), 4: (1.2, -0.2)}, sd=0.002)
    few = frame[(frame["depth"] != 2) | frame["params"].isin([1e3, 32e3])]
    found = find_crossings(build_curves(few))
    one, other = found.items
    assert [(item.shallow, item.deep) for item in found.items] == [(1, 2), (2, 4)]
    assert (one.status, one.params) == ("ambiguous", None)
    assert one.reasons == (Because(Reason.TWO_SIZES, (2, 2, 3)),)
    assert one.params_interval == (pytest.approx(1e3), pytest.approx(32e3))
    # A lead at both sizes is a bound all the same.
    assert other.status == "right_censored"
    assert [gap is None for gap in found.gaps] == [True, True]


@pytest.mark.parametrize(("bend", "turned"), [(0.0, False), (0.04, True)])
def test_a_gap_that_shrinks_at_the_largest_sizes_is_flagged(line_frame, bend, turned):
    """In each of eight studies; at a bend of 0.03 the fall is 4 standard errors of the noise, and half are flagged."""
    for seed in range(8):
        sizes = tuple(np.geomspace(1e3, 2e5, 8))
        frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, sd=0.003, sizes=sizes, seed=seed)
        beyond = np.maximum(np.log(frame["params"] / 2e4), 0)
        frame["loss"] += bend * beyond**2 * (frame["depth"] == 2)
        assert crossing(frame).non_monotone == turned


def test_a_deep_model_whose_loss_rises_is_flagged(line_frame):
    # Both rise, so the gap itself does not shrink.
    frame = line_frame({1: (1.0, 0.1), 2: (1.0, 0.05)}, sd=0.005)
    assert crossing(frame).non_monotone


def test_a_gap_that_only_decays_or_never_leads_does_not_turn_back(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.1)}, sd=0.002, sizes=tuple(np.geomspace(1e3, 2e5, 8)))
    decay = 0.15 * (frame["params"] / 1e4) ** -0.3
    for depth, status in ((1, "left_censored"), (2, "right_censored")):
        item = crossing(frame.assign(loss=frame["loss"] + decay * (frame["depth"] == depth)))
        assert (item.status, item.non_monotone) == (status, False)


def test_two_sizes_far_apart_do_not_show_which_model_leads(line_frame):
    """The deeper model is worse everywhere; a straight line between two sizes of a convex curve puts it ahead."""
    sizes = {1: (4.8e3, 7.7e6), 2: (3.1e5, 6.9e5)}
    parts = [line_frame({depth: (1.0, 0.0)}, sd=1e-4, sizes=sizes[depth]) for depth in sizes]
    frame = pd.concat(parts, ignore_index=True)
    frame["loss"] += (frame["params"] / 1e4) ** -0.3 + 0.01 * (frame["depth"] == 2)
    item = crossing(frame)
    assert item.status == "ambiguous"
    assert item.reasons[0].reason is Reason.TWO_SIZES
    # Where both are measured at the same two sizes, the lead is known.
    both = line_frame({1: (1.0, 0.0), 2: (1.01, 0.0)}, sd=1e-4, sizes=(3.1e5, 6.9e5))
    assert crossing(both).status == "right_censored"


def test_equal_curves_are_ambiguous_not_a_bound(line_frame):
    frames = [line_frame({1: (1.0, -0.1), 2: (1.0, -0.1)}, seed=seed) for seed in range(10)]
    assert {crossing(frame).status for frame in frames} == {"ambiguous"}


def test_a_crossing_with_a_weak_end_is_ambiguous_and_says_which(line_frame):
    # Zero at 27e3, near the largest size 32e3: the lead there is 0.017 against a standard error near 0.02.
    shift = 0.1 * math.log(27e3 / 6e3)
    item = crossing(line_frame({1: (1.0, -0.1), 2: (1.0 + shift, -0.2)}, sd=0.02, seed=4))
    assert item.status == "ambiguous"
    (weak,) = item.reasons
    lead, needed = weak.values
    assert (weak.reason, 0 < lead < needed) == (Reason.SMALL_LEAD_AT_LARGEST, True)
    assert f"{lead:.1f} standard errors ({needed:.1f} are needed)" in item.reason
    assert item.params is not None
    assert item.params_interval[1] is None


def test_several_sign_changes_are_ambiguous(line_frame):
    # The deep model leads between N = 2.2e3 and 16e3 only.
    frame = line_frame({1: (1.0, 0.0), 2: (1.0, 0.0)}, sd=0.001)
    x = np.log(frame["params"] / 6e3)
    frame["loss"] += (0.1 * x**2 - 0.1) * (frame["depth"] == 2)
    item = crossing(frame)
    assert (item.status, item.reasons) == ("ambiguous", (Because(Reason.SEVERAL_CHANGES),))


def test_insufficient_with_one_size_or_no_common_range(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)})
    one_size = frame[(frame["depth"] == 1) | (frame["params"] == 4e3)]
    assert crossing(one_size).reasons == (Because(Reason.ONE_SIZE, (2,)),)
    apart = frame[(frame["depth"] == 1) == (frame["params"] < 5e3)]
    item = crossing(apart)
    assert (item.status, item.reasons) == ("insufficient", (Because(Reason.NO_COMMON_RANGE),))


def test_no_noise_estimate_gets_no_interval(line_frame):
    slopes = {1: (1.0, -0.1), 2: (1.0, -0.2)}
    item = crossing(line_frame(slopes, seeds=1, sd=0))
    assert (item.status, item.reasons) == ("ambiguous", (Because(Reason.NO_NOISE),))
    assert item.params == pytest.approx(6e3)
    assert item.params_interval is None
    censored = crossing(line_frame({1: (1.2, -0.1), 2: (1.0, -0.1)}, seeds=1, sd=0))
    assert (censored.status, censored.params_interval) == ("left_censored", None)
    assert censored.reasons == (Because(Reason.NO_NOISE),)
    assert not censored.settled


def test_a_gap_within_the_noise_in_two_ranges_is_ambiguous(line_frame):
    """The deep model leads from 4e3 on; near 2e4 its lead falls to about one standard error."""
    frame = line_frame({1: (1.0, 0.0), 2: (1.0, 0.0)}, sd=0.02, sizes=tuple(np.geomspace(1e3, 1e5, 14)))
    x = np.log(frame["params"] / 4e3)
    dip = np.log(frame["params"] / 2e4)
    frame["loss"] -= 0.1 * x * (dip**2 + 0.1) * (frame["depth"] == 2)
    item = crossing(frame)
    assert None not in item.params_interval
    assert item.status == "ambiguous"
    assert item.reasons == (Because(Reason.SEPARATE_RANGES),)


def test_pairing_by_seed_narrows_the_interval(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, seeds=4, sd=0.02, shared=0.9, seed=3)
    paired = crossing(frame)
    alone = crossing(frame.assign(seed=frame["seed"] + 10 * (frame["depth"] == 2)))
    assert paired.params == pytest.approx(alone.params, rel=1e-3)
    spans = [math.log(item.params_interval[1] / item.params_interval[0]) for item in (paired, alone)]
    assert spans[0] < 0.7 * spans[1]
