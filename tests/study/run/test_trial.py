"""A trial that runs out of memory goes on with fewer sequences at once, by real training."""

from dataclasses import replace

import pytest
import torch

from study.plan.plan import make_plan
from study.run import trial
from study.run.trial import (
    HeldMemoryError,
    TrialSettings,
    check_free_memory,
    check_gpu,
    limit_memory,
    retry_with_smaller_batches,
    saved_step,
)
from study.spec.devices import DEVICES, usable_memory
from study.spec.study import load_spec
from study.workers.causes import GangError, LossCause, describe, loss_cause
from tests.study.small import SMALL
from trainables.cell import Recipe
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.progress import Result
from trainables.storage.storage import MARKER
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

    halved = retry_with_smaller_batches(attempt, Layout(), cell.recipe)
    assert tried == [16, 8, 4]
    assert halved.resumed_from, "the steps before the error were not trained again"
    assert [note.split()[4] for note in halved.notes] == ["16", "8"]
    whole = train(cell, data_root=tmp_path / "data")
    assert halved.loss == pytest.approx(whole.loss, rel=1e-5)


@pytest.mark.parametrize(("others", "tried"), [(0, [16]), (45, [16, 8, 4]), (75, [16, 8, 4, 2, 1])])
def test_what_other_processes_hold_of_a_gpu_halves_the_sequences_before_anything_is_trained(others, tried):
    """A GPU of 80 GB of which this process holds 3 GB that it no longer uses; 4 GB for each sequence and 6 besides."""
    recipe, attempts, trained = Recipe.model_construct(batch=16), [], []

    def attempt(layout):
        sequences = layout.sequences(recipe)
        attempts.append(sequences)
        needed = int((6 + 4 * sequences) * 1e9)
        check_free_memory(needed, sequences, int((77 - others) * 1e9), int(3e9), int(others * 1e9))
        trained.append(sequences)
        return Result.model_construct(notes=())

    if others < 75:
        notes = retry_with_smaller_batches(attempt, Layout(), recipe).notes
        assert trained == [max(n for n in (16, 8, 4, 2, 1) if 6 + 4 * n <= 80 - others)]
        assert len(notes) == len(tried) - 1
        assert all(f"{80 - others}.0 GB are free" in note and f"{others}.0 GB" in note for note in notes)
    else:
        with pytest.raises(HeldMemoryError, match=r"need about 10\.0 GB .* 5\.0 GB are free"):
            retry_with_smaller_batches(attempt, Layout(), recipe)
        assert not trained
    assert attempts == tried


def test_memory_that_is_held_on_the_gpu_of_a_rank_is_named_in_the_note():
    recipe = Recipe.model_construct(batch=2)

    def attempt(layout):
        if layout.sequences(recipe) == 1:
            return Result.model_construct(notes=())
        with pytest.raises(HeldMemoryError) as raised:
            check_free_memory(int(50e9), 2, int(40e9), 0, int(40e9))
        error = GangError(describe(raised.value, loss_cause(raised.value), "rank 1 of 2"))
        error.loss_cause = loss_cause(raised.value)
        raise error

    (note,) = retry_with_smaller_batches(attempt, Layout(), recipe).notes
    assert "rank 1 of 2" in note
    assert "40.0 GB are free" in note


def test_memory_that_a_dead_process_held_is_waited_for(monkeypatch):
    held = [60, 60, 0]
    for name, value in (("memory_reserved", 0), ("memory_allocated", 0)):
        monkeypatch.setattr(torch.cuda, name, lambda place, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: ((80 - held.pop(0)) * 10**9, 80 * 10**9))
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: None)
    trial._check_memory("cuda:0", 70 * 10**9, 4)
    assert not held


def test_a_trial_that_shares_a_gpu_is_limited_to_what_the_plan_lets_it_fill(monkeypatch):
    limits = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, place: limits.append(share)
    )
    limit_memory("cuda:0", 1)
    assert not limits, "alone it may have all"
    limit_memory("cuda:0", 4)
    gpu = DEVICES["h100-80gb"]
    assert limits == [pytest.approx(usable_memory(replace(gpu, trials=4)) / gpu.memory)]


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
        retry_with_smaller_batches(attempt, Layout(), recipe)
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
        retry_with_smaller_batches(attempt, Layout(data_parallel=2), recipe)
    assert tried == [(2, 12), (2, 6), (2, 3), (2, 1)]


def test_a_wrong_product_of_a_gpu_loses_the_trial(monkeypatch):
    cpu = torch.device("cpu")
    check_gpu(cpu)
    copied = torch.Tensor.to
    for wrong in (lambda x: x.clone().index_fill_(0, torch.tensor([7]), 0.0), lambda x: x * float("nan")):
        monkeypatch.setattr(torch.Tensor, "to", lambda self, place, wrong=wrong: wrong(copied(self, place)))
        with pytest.raises(RuntimeError, match=r"on cpu of .* is off by"):
            check_gpu(cpu)


def test_a_folder_that_no_save_made_counts_as_no_checkpoint(tmp_path):
    settings = TrialSettings(
        data_root="", checkpoint_root=str(tmp_path), checkpoint_every=None, evaluations=1
    )
    for tag in ("step-000000007-k", "step-000000009-k"):
        (tmp_path / "k" / tag).mkdir(parents=True)
    assert saved_step(settings, "k") == 0
    (tmp_path / "k" / "step-000000007-k" / MARKER).write_text("{}")
    assert saved_step(settings, "k") == 7
    (tmp_path / "k" / "step-x").mkdir()
    (tmp_path / "k" / "step-x" / MARKER).write_text("{}")
    assert saved_step(settings, "k") == 7
