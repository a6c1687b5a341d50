"""Losses and gradients that leave the range of the precision end a cell, with the same reason in every layout."""

import math
import re

import pytest

from tests.trainables.train.test_loop import cell
from trainables.layout import Layout
from trainables.train import loop
from trainables.train.loop import NOT_FINITE, train

#: The backward pass whose gradient is not finite.
POISONED = 5
BF16 = {"precision": "bf16"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def poisoned(build, after):
    """`build_model` of models of which one gradient is infinite in a backward pass, and whose losses stay finite."""

    def build_poisoned(*arguments):
        model, passes = build(*arguments), []

        def spoil(gradient):
            passes.append(1)
            return gradient * math.inf if len(passes) == after else gradient

        model.transformer.ln_f.weight.register_hook(spoil)
        return model

    return build_poisoned


def skipped(result):
    found = re.search(r"skipped: (\d+)\)", result.reason)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("layout", "recipe"),
    [
        (Layout(), {}),
        (Layout(zero=1), {}),
        (Layout(zero=2), {}),
        (Layout(zero=1), BF16),
        (Layout(micro_batch=2), {}),
        (Layout(zero=1, micro_batch=2), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, Layout) else "-".join(value.values()) or "fp32",
)
def test_a_gradient_that_is_not_finite_ends_the_cell_at_its_step(root, monkeypatch, layout, recipe):
    monkeypatch.setattr(loop, "build_model", poisoned(loop.build_model, POISONED))
    result = train(cell(recipe=recipe), data_root=root, layout=layout)
    pieces = 8 // (layout.micro_batch or 8)
    assert (result.status, result.loss, result.step) == ("diverged", None, math.ceil(POISONED / pieces))
    assert result.reason.startswith(f"{NOT_FINITE} by step {result.step}")
    assert skipped(result) == (1 if layout.zero else 0)
    assert math.isfinite(result.train_loss), "the loss alone would not have shown it"


@pytest.mark.parametrize("layout", [Layout(), Layout(zero=1)], ids=str)
def test_a_loss_that_is_not_finite_ends_the_cell_inside_its_window(root, tmp_path, layout):
    wild = cell(lr=1e30, recipe={"steps": 6000, "grad_clip": 0.0, "warmup": 0.0})
    result = train(wild, data_root=root, layout=layout, checkpoints=tmp_path, checkpoint_every=0)
    assert (result.status, result.loss) == ("diverged", None)
    assert result.reason.startswith(f"{NOT_FINITE} by step {result.step}")
    # The second step has a loss that is not finite. Sums are read after 1, 2, 4, ... steps; a window has a hundred.
    assert result.step <= 8
    assert [point.step for point in result.points] == [result.step]
    assert not math.isfinite(result.train_loss)
    saved = [int(path.name.split("-")[1]) for path in tmp_path.glob("step-*")]
    assert max(saved) < 2, "no checkpoint holds weights of a loss that is not finite"


def train_with_a_loss_of_its_own(one, rank_info=None, **options):
    """Train on one rank; the gradient of rank 1 is infinite once."""
    own = loop.build_model
    if rank_info.rank:
        loop.build_model = poisoned(own, POISONED)
    try:
        return train(one, rank_info=rank_info, **options)
    finally:
        loop.build_model = own


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [Layout(data_parallel=2), Layout(data_parallel=2, zero=1), Layout(data_parallel=2, zero=3)],
    ids=lambda layout: f"zero{layout.zero}",
)
def test_a_gradient_of_one_group_that_is_not_finite_ends_the_cell_on_all_ranks(ranks, root, layout):
    results = ranks.gang(2, train_with_a_loss_of_its_own, cell(), data_root=root, layout=layout)
    assert {(result.status, result.step) for result in results} == {("diverged", POISONED)}
    assert results[0].reason == results[1].reason
    assert results[0].reason.startswith(f"{NOT_FINITE} by step {POISONED}")
    assert skipped(results[0]) == (1 if layout.zero else 0)
