"""A trial that runs out of memory goes on with fewer sequences at once, by real training."""

import pytest
import torch

from study.plan.plan import make_plan
from study.run.trial import check_gpu, in_memory
from study.spec.study import load_spec
from study.workers.causes import GangError, LossCause
from tests.study.small import SMALL
from trainables.cell import Recipe
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.train.loop import train


@pytest.fixture(scope="module")
def cell():
    return make_plan(load_spec(SMALL, ["training.steps=60", "training.batch=16"])).cells[0].cell


@pytest.mark.slow
def test_out_of_memory_halves_the_sequences_until_they_fit_and_goes_on_with_the_same_loss(cell, tmp_path):
    tried = []

    def attempt(layout):
        """Train, or save a checkpoint half-way and run out of memory with more than four sequences at once."""
        tried.append(layout.sequences(cell.recipe))
        seen = []
        options = {"layout": layout, "checkpoints": tmp_path / "checkpoints", "data_root": tmp_path / "data"}
        try:
            # The first attempt saves as soon as it has progress.
            result = train(cell, **options, report=seen.append, interrupted=lambda: len(tried) == 1)
        except InterruptedTrainingError:
            result = None
        if tried[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return result

    halved = in_memory(attempt, Layout(), cell.recipe)
    assert tried == [16, 8, 4]
    assert halved.resumed_from, "the steps before the error were not trained again"
    assert [note.split()[4] for note in halved.notes] == ["16", "8"]
    whole = train(cell, data_root=tmp_path / "data")
    assert halved.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), 4),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), 4),
        (RuntimeError("a matrix is not square"), 1),
        (GangError("rank 1 was lost"), 1),
    ],
)
def test_other_errors_end_the_attempt_and_with_one_sequence_so_does_memory(error, count):
    recipe, tried = Recipe.model_construct(batch=8), []

    def attempt(layout):
        tried.append(layout.sequences(recipe))
        raise error

    with pytest.raises(type(error)) as raised:
        in_memory(attempt, Layout(), recipe)
    assert raised.value is error
    assert tried == [8, 4, 2, 1][:count]


def test_memory_of_a_rank_halves_the_sequences_of_its_gang():
    recipe, tried = Recipe.model_construct(batch=24), []

    def attempt(layout):
        tried.append((layout.ranks, layout.sequences(recipe)))
        error = GangError("out of memory in rank 1")
        error.loss_cause = LossCause.MEMORY
        raise error

    with pytest.raises(GangError):
        in_memory(attempt, Layout(data_parallel=2), recipe)
    assert tried == [(2, 12), (2, 6), (2, 3), (2, 1)]


def test_a_wrong_product_of_a_gpu_loses_the_trial(monkeypatch):
    cpu = torch.device("cpu")
    check_gpu(cpu)
    copied = torch.Tensor.to
    for wrong in (lambda x: x.clone().index_fill_(0, torch.tensor([7]), 0.0), lambda x: x * float("nan")):
        monkeypatch.setattr(torch.Tensor, "to", lambda self, place, wrong=wrong: wrong(copied(self, place)))
        with pytest.raises(RuntimeError, match=r"on cpu of .* is off by"):
            check_gpu(cpu)
