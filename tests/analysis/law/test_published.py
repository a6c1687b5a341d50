import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.law.answer_words import compute_sentence
from analysis.law.near_optimal import near_optimal
from analysis.law.published import (
    LIU2026,
    PUBLISHED,
    least_shape,
    losses_of,
    published_law,
    published_shape,
    shape_at_compute,
)
from analysis.law.reasons import Reason
from analysis.law.shape import buildable_width
from analysis.law.threshold_law import LEVINE2020
from core.errors import InputError

GPT3 = (96, 12288)
LLAMA_8B, LLAMA_70B = (32, 4096), (80, 8192)


@pytest.mark.parametrize("params", [50.0, 1000.0])
def test_the_law_of_the_loss_is_asked_and_answers_above_the_depths_that_it_skips(params):
    least = LIU2026.transition(3).params
    if LIU2026.best_depth(params) < 2.5:
        with pytest.raises(InputError, match=f"a size of {least:,.0f} or more"):
            LIU2026.shape(params)
    else:
        assert LIU2026.shape(params).depth_interval[0] > LIU2026.skipped
    low, high = LIU2026.shape(least).depth_interval
    assert LIU2026.skipped < low < 3 < high


def params_of(shape):
    return 12 * shape[0] * shape[1] ** 2


def test_the_law_gives_the_depths_and_stakes_that_are_quoted_for_it():
    """125 layers for GPT-3, 162 for 405B, .008 nats at stake for 8B and .0005 for 70B."""
    assert LIU2026.shape(params_of(GPT3)).depth == 125
    assert LIU2026.shape(4.05e11).depth == 162
    stakes = [near_optimal(LIU2026, params_of(shape), shape[0], "").lost for shape in (LLAMA_8B, LLAMA_70B)]
    assert stakes == pytest.approx([0.008, 0.0005], abs=0.0005)
    low, high = near_optimal(LIU2026, 7e9, 48, "").depths
    assert (low, high) == (pytest.approx(35, abs=1), 67)


@pytest.mark.parametrize("params", [1e5, 1e8, 7e9, 1e12, 1e20])
def test_the_best_depth_is_the_minimum_of_the_loss_and_overtaken_at_its_own_size(params):
    plain = minimize_scalar(
        lambda log: LIU2026.loss(params, LIU2026.skipped + math.exp(log)),
        bounds=(-3, math.log(params) / 2),
        method="bounded",
        options={"xatol": 1e-10},
    )
    best = LIU2026.best_depth(params)
    assert best == pytest.approx(LIU2026.skipped + math.exp(plain.x), rel=1e-5)
    assert LIU2026.transition(best).params == pytest.approx(params, rel=1e-9)


def test_the_intervals_are_those_of_laws_drawn_from_its_covariance():
    """First-order intervals against the spread of 1,500 laws drawn with the errors and correlations of the fit."""
    covariance = np.array(LIU2026.covariance)
    # The authors print these standard errors (fit-8.ipynb): of ln c_m, alpha_m, ln c_l, alpha_l.
    printed = [0.5006767, 0.0815817, 1.5913387, 0.2423135]
    assert np.sqrt(np.diag(covariance)) == pytest.approx(printed, rel=1e-5)
    mean = [math.log(LIU2026.c_m), LIU2026.alpha_m, math.log(LIU2026.c_l), LIU2026.alpha_l]
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, size=1500)
    laws = [
        dataclasses.replace(LIU2026, c_m=math.exp(a), alpha_m=b, c_l=math.exp(c), alpha_l=d)
        for a, b, c, d in draws
    ]
    for params in (1e9, 7e9):
        depths = np.array([law.best_depth(params) for law in laws])
        shape = LIU2026.shape(params)
        # Farther from the depths of the fit the draws are skewed.
        tolerance = 0.03 if params == 1e9 else 0.1
        assert shape.depth_interval == pytest.approx(np.quantile(depths, [0.025, 0.975]), rel=tolerance)
    sizes = np.array([law.transition(32).params for law in laws])
    low, high = LIU2026.transition(32).params_interval
    drawn = np.quantile(sizes, [0.025, 0.975])
    assert math.log(high / low) == pytest.approx(math.log(drawn[1] / drawn[0]), rel=0.1)


def test_both_kinds_of_law_give_the_same_answer():
    ours, theirs = ([law.shape(params) for params in (1e9, 7e9)] for law in (LIU2026, LEVINE2020))
    for shape in (*ours, *theirs):
        low, high = shape.depth_interval
        assert low < shape.depth_exact < high
        assert shape.width_exact == pytest.approx(math.sqrt(shape.params / (12 * shape.depth_exact)))
        assert shape.transition.depth == shape.depth
    assert [shape.extrapolated for shape in ours] == [False, True]
    assert theirs[1].transition.params != ours[1].transition.params
    assert losses_of(LEVINE2020) is losses_of(LIU2026) is LIU2026


def test_depths_beyond_the_law_and_other_names_are_refused():
    for depth, words in ((2, "above 2 layers"), (1e200, "no finite size")):
        with pytest.raises(InputError, match=words):
            LIU2026.transition(depth)
    with pytest.raises(InputError, match="levine2020, liu2026"):
        published_law("liu")


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_depth_is_stated_beyond_ten_times_the_largest_size(name):
    law = PUBLISHED[name]
    largest = law.params_range[1]
    assert published_shape(law, 10 * largest) == law.shape(10 * largest)
    beyond = published_shape(law, 10.01 * largest)
    assert (beyond.source, beyond.depth, beyond.width, beyond.depth_interval) == (
        "none",
        None,
        None,
        (None, None),
    )
    assert [because.reason for because in beyond.reasons] == [Reason.ABOVE_FITTED]


def test_the_sizes_of_the_threshold_law_are_those_of_its_crossings():
    ends = [LEVINE2020.transition(depth).params for depth in (6, 36)]
    assert LEVINE2020.params_range == pytest.approx(ends, rel=1e-3)


@pytest.mark.parametrize(
    "params", [1.0, 107.9, 108.0, 108.1, 1e6, 1e9, 1e12, 1e20, 12 * 6 * 9.0**6, 12 * 20 * 9.0**20]
)
def test_the_least_depth_is_the_smallest_whole_one_that_reaches_log3_of_its_width(params):
    shape = least_shape(params)
    least = next(depth for depth in range(1, 100) if 12 * depth * 9**depth >= params)
    assert shape.depth == least
    assert 12 * shape.depth_exact * 9**shape.depth_exact == pytest.approx(params)
    assert shape.width <= 3**least
    assert shape.width_exact == pytest.approx(math.sqrt(params / (12 * least)))
    if params > 1e4:
        assert shape.width == pytest.approx(shape.width_exact, rel=0.07)
    assert (shape.depth_interval, shape.source) == ((None, None), "theory")


def loss_of_the_notebook(width, depth, tokens):
    """The printed fit of the authors, fit-8.ipynb, without its constant."""
    by_width = 300.988021816479 / width**0.9599189162254333
    by_depth = 413.69695850058315 / (100 * (depth - 2)) ** 1.0660876035690308
    return by_width + by_depth + 8.485901100690645 / (tokens / 1e6) ** 0.2988601326942444


@pytest.mark.parametrize("compute", [1e20, 5.76e23])
def test_the_shape_at_a_compute_has_the_least_loss_of_all_sizes_and_depths(compute):
    found = shape_at_compute(LIU2026, compute)
    assert 6 * found.params * found.tokens == pytest.approx(compute)
    width = math.sqrt(found.params / (12 * found.depth))
    assert found.width == buildable_width(width)
    low, high = found.depth_interval
    assert low < found.depth < high
    depths = np.arange(3, 200)
    sizes = np.geomspace(found.params / 4, found.params * 4, 401)[:, None]
    losses = loss_of_the_notebook(np.sqrt(sizes / (12 * depths)), depths, compute / (6 * sizes))
    size, depth = np.unravel_index(np.argmin(losses), losses.shape)
    assert depths[depth] == found.depth
    assert sizes[size, 0] == pytest.approx(found.params, rel=0.01)
    assert loss_of_the_notebook(width, found.depth, found.tokens) <= losses.min()


def test_the_losses_of_the_authors_are_reproduced():
    """The parts of the least loss of their table, as printed: of width, depth and tokens."""
    by_width, by_depth, by_tokens = 0.11658539092473193, 0.06314215676929424, 0.192460722520026
    width = (LIU2026.c_m / by_width) ** (1 / LIU2026.alpha_m)
    depth = 2 + (LIU2026.c_l / by_depth) ** (1 / LIU2026.alpha_l) / 100
    scale, exponent = LIU2026.tokens_term
    tokens = 1e6 * (scale / by_tokens) ** (1 / exponent)
    assert LIU2026.loss(12 * depth * width**2, depth) == pytest.approx(by_width + by_depth)
    assert loss_of_the_notebook(width, depth, tokens) == pytest.approx(by_width + by_depth + by_tokens)
    # The shape and the tokens of that run in their table.
    assert (width, depth, tokens) == pytest.approx((3584, 40, 317_754_489_344), rel=1e-6)


def test_a_compute_beyond_the_law_has_no_depth_and_a_law_without_tokens_no_shape():
    far = shape_at_compute(LIU2026, 1e28)
    assert (far.depth, far.width, far.source) == (None, None, "none")
    assert far.reason in compute_sentence(far)
    assert [because.reason for because in far.reasons] == [Reason.BEST_ABOVE_FITTED]
    assert shape_at_compute(LIU2026, 1e20).extrapolated is False
    with pytest.raises(InputError, match="law='liu2026'"):
        shape_at_compute(LEVINE2020, 1e21)
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(InputError, match="positive number"):
            shape_at_compute(LIU2026, wrong)
    with pytest.raises(InputError, match="more FLOPs"):
        shape_at_compute(LIU2026, 1e3)
