"""The best depth at a limit, from the rows of a `costs.csv`."""

import numpy as np
import pytest

from analysis.fit.document import fit
from analysis.fit.limits import recommend_at_limit
from analysis.law.at_limit import CostKind, Limit
from analysis.runs.costs import ShapeCosts
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

DEPTHS = (1, 2, 4)
SHAPES = shapes_of(DEPTHS, np.geomspace(2e3, 3e5, 6))
TOKENS = 1e7


def rows_of(tokens=TOKENS):
    truth = Truth(2.3, 0.25, DEPTHS, noise=0.002)
    return simulate(truth, SHAPES, 2, np.random.default_rng(0)).assign(tokens=tokens)


def costs(device="cpu", slower=1.0, **changes):
    """Costs by formula: 1 ms per layer and 10 µs per thousand parameters, half as much at batch 8 per sequence."""
    lines = []
    for depth, width in dict.fromkeys((depth, width) for depth, width, _ in SHAPES):
        size = 12 * depth * width**2
        ms = slower * (depth + 1e-5 * size)
        for batch in (1, 8):
            values = {
                "train_tokens_per_second": 1e6 / ms,
                "decode_ms": ms * (1 if batch == 1 else 4),
                "prefill_ms": 2 * ms,
                "kv_bytes_per_token": 8 * depth * width,
            }
            lines.append(
                ShapeCosts(
                    depth=depth, width=width, heads=2, kv_heads=2, params=size + 100, device=device,
                    machine=f"{device}, 2 cores", precision="fp32", context=64, batch=batch, date="2026-11-29",
                    versions="torch", **(values | changes),
                )
            )  # fmt: skip
    return lines


@pytest.fixture(scope="module")
def study():
    return fit(RunTable.from_frame(rows_of())).study


@pytest.mark.parametrize(
    ("limit", "size_of"),
    [
        (Limit(CostKind.LATENCY, 5e-3), lambda depth: (5 - depth) * 1e5),
        (Limit(CostKind.LATENCY, 20e-3, 8), lambda depth: (5 - depth) * 1e5),
        (Limit(CostKind.TRAIN_TIME, 50.0), lambda depth: (5 - depth) * 1e5),
        (Limit(CostKind.CACHE, 512.0), lambda depth: 12 * depth * (512 / (8 * depth)) ** 2),
    ],
)
def test_each_cost_gives_each_depth_its_size(study, limit, size_of):
    answer = recommend_at_limit(study, costs(), limit)
    assert answer.limit == limit
    assert {shape.depth for shape in answer.shapes} | {*answer.missing, *answer.excluded} == {*DEPTHS}
    inside = {depth for depth in DEPTHS if 2.6e3 < size_of(depth) < 2.6e5}
    assert inside <= {shape.depth for shape in answer.shapes}
    for shape in answer.shapes:
        assert shape.params == pytest.approx(size_of(shape.depth), rel=0.08)
    assert answer.width_step == 2


def test_tokens_in_proportion_to_size_make_training_longer():
    per_parameter = 100.0
    frame = rows_of()
    study = fit(RunTable.from_frame(frame.assign(tokens=per_parameter * frame["params"]))).study
    answer = recommend_at_limit(study, costs(), Limit(CostKind.TRAIN_TIME, 30.0))
    for shape in answer.shapes:
        seconds = per_parameter * shape.params * (shape.depth + 1e-5 * shape.params) / 1e6
        assert seconds == pytest.approx(30.0, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "limit", "device", "words"),
    [
        ([], Limit(CostKind.LATENCY, 1.0), None, "No costs were measured"),
        (costs(), Limit(CostKind.LATENCY, 1.0), "h100", "device='h100'"),
        ([*costs(), *costs("gpu")], Limit(CostKind.LATENCY, 1.0), None, "several devices"),
        (costs(), Limit(CostKind.LATENCY, 1.0, 4), None, "batches of 1 and 8"),
        (costs(train_tokens_per_second=None), Limit(CostKind.TRAIN_TIME, 1.0), None, "measure `train`"),
    ],
)
def test_costs_that_give_no_answer_are_named(study, rows, limit, device, words):
    with pytest.raises(InputError, match=words):
        recommend_at_limit(study, rows, limit, device)


def test_unsteady_costs_of_the_measure_are_named(study):
    limit = Limit(CostKind.LATENCY, 5e-3)
    assert recommend_at_limit(study, costs(unsteady=("train",)), limit).unsteady == ()
    assert recommend_at_limit(study, costs(unsteady=("decode",)), limit).unsteady == DEPTHS


def test_the_device_chooses_the_costs(study):
    both = [*costs(), *costs("gpu", slower=0.1)]
    limit = Limit(CostKind.LATENCY, 5e-3)
    assert recommend_at_limit(study, both, limit, "cpu") == recommend_at_limit(study, costs(), limit)
    fast = recommend_at_limit(study, both, limit, "gpu")
    assert fast.best is None  # a tenth of the time: no measured size costs as much
    assert fast.too_large == DEPTHS


def test_losses_that_cannot_be_compared_have_no_best_depth_at_a_limit():
    frame = rows_of()
    study = fit(RunTable.from_frame(frame.assign(tokens=1e6 * frame["depth"]))).study
    with pytest.raises(InputError, match="equal tokens"):
        recommend_at_limit(study, costs(), Limit(CostKind.LATENCY, 5e-3))
