"""The truths of the reader's worlds, and what is counted; `python -m tests.coverage.reader` measures."""

import math
from functools import cache

import numpy as np
import pytest

from analysis.runs.table import RunTable
from tests.coverage import reader
from tests.coverage.reader import PLACES, WORLDS, Answer, paid, row_of


@pytest.mark.parametrize("ratio", [None, 20.0])
def test_the_best_depth_of_a_valley_is_in_the_drawn_ranges(ratio):
    depths = np.geomspace(1, 64, 2000)
    for number in range(20):
        loss = reader.valley(np.random.default_rng(number), 4e6, 6e8, ratio)
        first, middle, last = (
            depths[np.argmin([loss(depth, size) for depth in depths])]
            for size in (4e6, math.sqrt(24e14), 6e8)
        )
        assert 2.3 <= first <= 4
        assert 11 <= last <= 18
        size = math.sqrt(4e6 * 6e8)
        near = [loss(middle * math.exp(step), size) for step in (-0.01, 0, 0.01)]
        # The mean of both sides has no third derivative.
        assert 0.02 <= ((near[0] + near[2]) / 2 - near[1]) / 0.01**2 <= 0.05


@pytest.mark.parametrize("name", WORLDS)
def test_a_study_has_the_depths_and_sizes_of_its_world(name):
    world = WORLDS[name]
    rows, loss = world.study(name, 0)
    assert set(rows["depth"]) == set(world.depths)
    assert not rows.duplicated(["depth", "params", "seed"]).any()
    assert (rows["width"] % world.multiple == 0).all()
    assert all((rows[rows["depth"] == depth]["params"] <= most).all() for depth, most in world.last.items())
    errors = rows["loss"] - [
        loss(depth, size) for depth, size in zip(rows["depth"], rows["params"], strict=True)
    ]
    assert np.std(errors) == pytest.approx(world.noise, rel=0.4)
    again, _ = world.study(name, 0)
    assert again.equals(rows)


def test_a_reader_who_is_told_the_best_depth_loses_nothing(monkeypatch):
    rows, loss = WORLDS["1 seed"].study("1 seed", 0)

    def said(found, params):
        order = sorted((2, 4, 8, 16), key=lambda depth: loss(depth, params))
        return Answer(tuple(order[:2]), order[0], None)

    monkeypatch.setattr(reader, "answer", said)
    found = paid(None, rows, loss)
    assert found.best == [0.0] * PLACES
    assert found.recommended == []
    places = np.geomspace(rows["params"].min(), rows["params"].max(), PLACES)
    gaps = [np.diff(sorted(loss(depth, size) for depth in (2, 4, 8, 16))[:2])[0] for size in places]
    assert found.sentence == pytest.approx([gap / 2 for gap in gaps])
    assert row_of([found])[1:] == ["100%", "0.00", "100%", "–", "0%"]
    assert float(row_of([found])[0]) == pytest.approx(500 * np.mean(gaps), abs=0.006)


#: Studies of each world, as on the page.
STUDIES = 20
#: Worlds of four depths with an irreducible term.
LADDERS = (
    "1 seed",
    "3 seeds",
    "widths in multiples of 64",
    "deep models worse when small",
    "20 tokens per parameter",
)


@cache
def scored(name, studies):
    return [reader.score(name, number) for number in range(studies)]


@pytest.mark.extended
@pytest.mark.parametrize("name", WORLDS)
def test_the_reader_of_an_answer_loses_little(name):
    """In 20 studies of each world before the answer was read off the posterior: 2.2 to 21 millinats by the sentence."""
    studies = [study.paid for study in scored(name, STUDIES)]
    sentence, best, recommended = (
        1000 * np.mean([value for study in studies for value in getattr(study, kind)])
        for kind in reader.Paid._fields
    )
    assert recommended <= 1
    assert best <= 1 or WORLDS[name].last
    assert sentence <= (2 if name == "deep models best in the middle" else 1)
    assert all(len(study.recommended) == PLACES for study in studies)


@pytest.mark.extended
@pytest.mark.parametrize("at", range(len(reader.FACTORS)))
def test_a_shape_beyond_the_data_loses_at_most_its_bound(at):
    items = [study.ahead[at] for name in WORLDS for study in scored(name, STUDIES)]
    stated = [item for item in items if item.bounded is not None]
    assert np.mean([item.bounded for item in stated]) >= 0.92
    assert np.mean([item.inside for item in stated]) >= 0.9
    assert np.mean([item.lost for item in stated]) < np.mean([item.baseline for item in stated]) / 2
    ladders = [study.ahead[at] for name in LADDERS for study in scored(name, STUDIES)]
    assert np.mean([item.answered for item in ladders]) >= 0.5


def test_a_shape_beyond_the_data_is_scored_by_the_truth():
    rows, loss = WORLDS["1 seed"].study("1 seed", 0)
    params = 3 * float(rows["params"].max())
    found = reader.fit(RunTable.from_frame(rows))
    item, shape = reader.ahead(found, loss, params), found.predict(params, math.inf)
    losses = [loss(depth, params) for depth in range(1, 400)]
    assert item.lost == pytest.approx(losses[shape.depth - 1] - min(losses))
    assert item.bounded == (item.lost <= shape.near_optimal.most)
    best = 1 + int(np.argmin(losses))
    assert item.inside == (shape.depth_interval[0] <= best <= shape.depth_interval[1])
    assert reader.ahead_row([item, item])[0] == f"{1000 * item.lost:.2f}"
