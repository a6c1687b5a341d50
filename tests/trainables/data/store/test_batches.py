from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainables.data.store import batches
from trainables.data.store.batches import CHUNK, IGNORED, batch, epochs, mix, permute, validation_batches
from trainables.data.store.token_store import TokenStore

FIRST_WINDOWS = [43, 254, 455, 697, 734, 255, 226, 183]


def store_of(train, validation=1000, row=None, **values):
    return TokenStore(
        path=Path("store"),
        vocabulary=60_000,
        train=np.arange(train, dtype=np.uint16),
        validation=np.arange(validation, dtype=np.uint16),
        entropy=None,
        bytes_per_token=None,
        row=row,
        boundaries=(None, None),
        manifest={},
        **values,
    )


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 1000, 40_000, 65_537])
def test_the_permutation_is_a_bijection(size):
    index = np.arange(size, dtype=np.uint64)
    for key in (0, 1, 2**63):
        out = permute(index, size, np.full(size, key, np.uint64))
        assert np.array_equal(np.sort(out), np.arange(size))


def test_the_permutation_works_at_a_size_no_memory_holds():
    size = 10**14 + 7
    index = np.random.default_rng(0).integers(0, size, 10_000).astype(np.uint64)
    out = permute(index, size, np.full(len(index), 5, np.uint64))
    assert out.min() >= 0
    assert out.max() < size
    assert len(np.unique(out)) == len(np.unique(index))


@pytest.mark.parametrize("size", [5, 37, 1000])
def test_the_permutation_sends_every_point_everywhere_equally_often(size):
    keys = mix(np.arange(200 * size, dtype=np.uint64))
    for point in (0, size - 1):
        out = permute(np.full(len(keys), point, np.uint64), size, keys)
        counts = np.bincount(out, minlength=size)
        chi2 = ((counts - 200) ** 2 / 200).sum()
        # Mean size - 1, variance 2 (size - 1); five deviations.
        assert chi2 < size - 1 + 5 * np.sqrt(2 * (size - 1))


def test_neighbours_do_not_stay_neighbours():
    size = 10_000
    out = permute(np.arange(size, dtype=np.uint64), size, np.full(size, 3, np.uint64))
    assert abs(np.corrcoef(np.arange(size), out)[0, 1]) < 0.05
    assert (np.abs(np.diff(out)) < 3).mean() < 0.01


@pytest.mark.parametrize(("tokens", "row"), [(64 * 50 + 1, None), (64 * 50 + 40, None), (65 * 50, 65)])
@pytest.mark.parametrize("size", [1, 7, 16, 120])
def test_an_epoch_has_every_window_exactly_once(tokens, row, size):
    store = store_of(tokens, row=row)
    starts = [
        x[:, 0]
        for step in range(-(-150 // size))
        for x, _ in [batch(store, context=64, batch=size, seed=3, step=step)]
    ]
    starts = np.concatenate(starts)[:150].reshape(3, 50)
    for epoch in starts:
        assert np.array_equal(np.sort(epoch), np.arange(50) * (row or 64))
    assert not np.array_equal(starts[0], starts[1]), "each epoch has an order of its own"


def test_targets_are_inputs_one_token_later():
    x, y = batch(store_of(10_000), context=64, batch=16, seed=0, step=5)
    assert x.shape == y.shape == (16, 64)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(x + 1, y)
    assert x.flags.c_contiguous
    assert y.flags.writeable


def test_the_rows_of_a_group_are_those_of_the_whole_batch():
    options = {"context": 64, "batch": 16, "seed": 0, "step": 5}
    whole = batch(store_of(10_000), **options)
    for rows in (slice(0, 4), slice(4, 8), slice(12, 16)):
        for part, all_rows in zip(batch(store_of(10_000), **options, rows=rows), whole, strict=True):
            assert np.array_equal(part, all_rows[rows])


def test_a_store_with_targets_of_its_own_gives_these_and_marks_what_is_not_scored():
    rows = np.arange(60_000 - 40, 60_000 - 40 + 41, dtype=np.uint16).repeat(4).reshape(-1, 4)
    # Of each row of four, two inputs and two targets; the last row's are the id one past the vocabulary.
    store = replace(store_of(0, row=4, targets=True), train=rows.ravel(), validation=rows[-3:].ravel())
    x, y = batch(store, context=2, batch=41, seed=0, step=0)
    order = np.argsort(x[:, 0])
    assert np.array_equal(x[order], rows[:, :2])
    assert np.array_equal(y[order][:-1], rows[:-1, 2:])
    assert (y[order][-1] == IGNORED).all()
    assert x.dtype == y.dtype == np.int64
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    assert y.flags.writeable
    pieces = list(validation_batches(store, context=2, batch=2))
    assert [len(x) for x, _ in pieces] == [2, 1]
    assert [y.tolist() for _, y in pieces] == [[[59_998] * 2, [59_999] * 2], [[IGNORED] * 2]]


def test_a_batch_depends_on_seed_and_step_only():
    store = store_of(50_000)
    forward = [batch(store, context=64, batch=16, seed=1, step=i)[0] for i in range(600)]
    for i in (599, 3, 256, 0):
        again = store_of(50_000)
        assert np.array_equal(batch(again, context=64, batch=16, seed=1, step=i)[0], forward[i])
    other = batch(store, context=64, batch=16, seed=2, step=0)[0]
    assert not np.array_equal(np.sort(other[:, 0]), np.sort(forward[0][:, 0]))


def test_the_order_of_a_seed_never_changes():
    """Numbers written down once: another order would be another cell under the same key."""
    x, _ = batch(store_of(50_000), context=64, batch=8, seed=0, step=0)
    assert (x[:, 0] // 64).tolist() == FIRST_WINDOWS


def test_validation_has_every_window_once_in_order_and_a_smaller_last_batch():
    sizes, starts = [], []
    for x, y in validation_batches(store_of(100, 64 * 10 + 5), context=64, batch=4):
        sizes.append(len(x))
        starts += x[:, 0].tolist()
        assert np.array_equal(x + 1, y)
    assert sizes == [4, 4, 2]
    assert starts == [64 * i for i in range(10)]


def test_the_order_is_computed_a_chunk_at_a_time_and_any_step_at_once(monkeypatch):
    computed = []

    def counted(index, *rest):
        computed.append(len(index))
        return permute(index, *rest)

    monkeypatch.setattr(batches, "permute", counted)
    batches._order.cache_clear()
    for step in range(2 * CHUNK // 16):
        batch(store_of(60_000), context=64, batch=16, seed=0, step=step)
    assert computed == [CHUNK] * 2
    batch(store_of(60_000), context=64, batch=16, seed=0, step=10**9)
    assert computed == [CHUNK] * 3


def test_a_batch_reads_its_own_windows_alone(tmp_path):
    """Of a store that no memory holds and no disk could read in the time of a test: a file of holes."""
    tokens = 10**11
    with (tmp_path / "train").open("wb") as file:
        file.truncate(2 * tokens)
        file.seek(2 * (tokens - 65))
        file.write(np.arange(65, dtype=np.uint16).tobytes())
    store = replace(store_of(0), train=np.memmap(tmp_path / "train", np.uint16, "r"))
    assert not any(
        batch(store, context=64, batch=16, seed=0, step=step)[0].any() for step in (0, 1, 10**6, 10**9)
    )


@pytest.mark.parametrize(("row", "steps"), [(None, 7), (None, 41), (9, 25), (16, 13)])
def test_epochs_are_the_mean_number_of_times_each_window_was_read(row, steps):
    """The batches themselves are counted: first inputs of windows that do not overlap name them."""
    store, size = store_of(203, row=row, targets=row == 16), 8
    read = np.concatenate(
        [batch(store, context=size, batch=6, seed=1, step=step)[0][:, 0] for step in range(steps)]
    )
    windows = len(range(0, 203 - (row or size + 1) + 1, row or size))
    times = np.bincount(np.searchsorted(np.arange(0, 203, row or size), read), minlength=windows)
    assert epochs(store, context=size, batch=6, steps=steps) == pytest.approx(times.mean())
    # A window is read again only after all others were read.
    assert times.max() - times.min() <= 1
    assert times.max() == np.ceil(times.mean())
