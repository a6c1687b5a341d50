"""A number that is read one call late, and training that reads its loss so."""

import math

import pytest
import torch

from benchmarks.loss import tensors
from tests.trainables.train import golden
from trainables.train import loop, trunk
from trainables.train.late_reading import LateReading
from trainables.train.loop import train


def test_each_call_returns_the_value_of_the_one_before():
    reading, value = LateReading(is_late=True), torch.tensor(1.0)
    assert reading.newest() is None
    assert reading.exchange(value) is None
    value += 1
    assert reading.exchange(value) == 1.0
    value += 1
    assert (reading.newest(), reading.newest()) == (2.0, None)
    assert reading.exchange(value) is None


def test_a_reading_that_is_not_late_returns_the_value():
    reading = LateReading(is_late=False)
    assert reading.exchange(torch.tensor(3.0)) == 3.0
    assert reading.newest() is None


@pytest.fixture
def late(monkeypatch):
    """Training that reads its loss late, as on a GPU; the windows of its curve have ten steps."""
    monkeypatch.setattr(loop, "LateReading", lambda is_late: LateReading(is_late=True))
    monkeypatch.setattr(trunk, "CURVE_POINTS", 3)


def test_the_curve_and_its_times_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(trunk, "CURVE_POINTS", 3)
    at_once = train(golden.cell(), data_root=tmp_path, evaluations=1)
    monkeypatch.setattr(loop, "LateReading", lambda is_late: LateReading(is_late=True))
    result = train(golden.cell(), data_root=tmp_path, evaluations=1)
    assert [(p.step, p.train_loss, p.grad_norm) for p in result.points] == [
        (p.step, p.train_loss, p.grad_norm) for p in at_once.points
    ]
    assert result.loss == at_once.loss
    spent = sum(10 * golden.BATCH * golden.CONTEXT / p.tokens_per_second for p in result.points)
    assert spent <= result.train_seconds


def test_a_loss_that_is_not_finite_ends_the_cell_and_is_not_saved(tmp_path, late):
    """The rate lets the weights overflow within the first window."""
    cell = golden.cell().model_copy(update={"lr": 1e30})
    result = train(
        cell, data_root=tmp_path, checkpoints=tmp_path / "saved", checkpoint_every=0, evaluations=1
    )
    assert result.status == "diverged"
    assert result.reason is not None
    assert loop.NOT_FINITE in result.reason
    for file in (tmp_path / "saved").rglob("*.pt"):
        for value in tensors(torch.load(file, weights_only=False)):
            assert not value.is_floating_point() or math.isfinite(float(value.double().sum()))
