"""The sentences, tables, recommendations and verdicts of one fit agree, in simulated studies of many kinds."""

import json
import math

import numpy as np
import pytest

from analysis.audit.recommend import fit_evidence
from analysis.audit.verdict import audit, shape_of
from analysis.fit.document import Fit, fit
from analysis.fit.recommendation import NamedFit, losses_by, recommended
from analysis.fit.words import headlines
from analysis.law.answer_words import largest, shape_sentence, use_sentence
from analysis.law.near_optimal import WITHIN
from analysis.report.figures.best_depth import best_depths
from analysis.report.figures.excess import excess_data, finding
from analysis.report.tables import best_table
from analysis.runs.table import RunTable
from core.numbers import layers
from tests.simulated_study import Truth, shapes_of, simulate

PLACES = 12


def drawn(number):
    """A study of random depths, sizes, noise and missing runs; its losses may deviate smoothly from power laws."""
    generator = np.random.default_rng([number, 48])
    depths = [(2, 4, 8), (1, 2, 4, 6), (2, 4, 8, 16), (2, 3, 4, 6, 8, 12)][generator.integers(4)]
    truth = Truth(
        generator.uniform(2.2, 3.2),
        generator.uniform(0.1, 0.3),
        depths,
        noise=10 ** generator.uniform(-3.3, -1.8),
        slope=generator.choice([0.0, 0.01, 0.04]),
        misfit_sd=generator.choice([0.0, 0.003]),
        misfit_length=1.5,
        scatter=generator.choice([0.0, 0.2]),
    )
    ends = (
        truth.crossing(depths[0]) / generator.uniform(1, 6),
        truth.crossing(depths[-2]) * generator.uniform(0.3, 6),
    )
    sizes = np.geomspace(min(ends), max(ends), generator.integers(3, 9))
    frame = simulate(truth, shapes_of(depths, sizes), int(generator.integers(1, 4)), generator)
    if generator.random() < 0.4:
        # Sizes of one depth are missing from a random one on, and some shapes at random.
        lost = generator.choice(depths)
        keep = (frame["depth"] != lost) | (frame["budget"] <= generator.choice(sizes))
        whole = frame.groupby(["depth", "width"])["loss"].transform(lambda _: generator.random() > 0.1)
        frame = frame[keep & whole.astype(bool)]
    return fit(RunTable.from_frame(frame.reset_index(drop=True)))


def check(found):
    reading, lines = found.reading, headlines(found)
    if not reading.params:
        return
    sentence = use_sentence(reading, found.level)
    assert (sentence in lines) == bool(sentence)
    assert all(shape_sentence(item) in lines for item in largest(found.best))
    evidence = fit_evidence(NamedFit("this", found), WITHIN)
    again = Fit.from_json(json.loads(json.dumps(found.to_json())))
    ends = math.log(reading.params[0]), math.log(reading.params[-1])
    for params in np.exp(np.random.default_rng(0).uniform(*ends, PLACES)):
        shape, at = recommended(found, params), reading.at(params)
        # Inside the sizes there is always an answer, and that of the file is the same.
        assert shape.depth is not None
        assert recommended(again, params) == shape
        ranges = [item for item in reading.ranges if item.low <= params <= item.high]
        if shape.source == "measured" and at is not None and not at.missing:
            assert shape.depth == at.depth
            for item in ranges:
                assert shape.depth in item.depths
                assert at.near is None or not set(item.rivals) - {*at.near}
                assert not sentence or all(
                    layers(depth) in sentence or f"{depth} or" in sentence or f"{depth}," in sentence
                    for depth in item.depths
                )
            low, high = shape.depth_interval
            assert all((low or 0) <= depth <= (high or math.inf) for depth in at.near or ())
        else:
            assert not ranges or at is None or at.missing
        # A model of the recommended depth is not called too deep or too shallow.
        width = max(1, round(math.sqrt(params / (12 * shape.depth))))
        model = shape_of(shape.depth, width)
        (verdict,) = audit(model, [evidence], WITHIN).findings
        inside = reading.at(model.law_params)
        if inside is not None and not inside.missing and shape.depth in (inside.near or ()):
            assert verdict.verdict not in ("too deep", "too shallow")
            for other in inside.shapes:
                near = losses_by(found, model.law_params, other.depth)
                assert near.lost == pytest.approx(other.excess)
                assert near.depths[0] <= inside.depth <= near.depths[1]
    for item in found.crossings:
        low, high = item.params_interval or (None, None)
        if item.status == "bracketed" and low and high:
            below = max((size for size in reading.params if size < low * 0.999), default=None)
            above = min((size for size in reading.params if size > high * 1.001), default=None)
            pair = {item.shallow, item.deep}
            for size, out in ((below, item.deep), (above, item.shallow)):
                at = size and reading.at(size)
                if at and pair <= {shape.depth for shape in at.shapes}:
                    assert out not in at.near
    if (table := excess_data(found)) is not None:
        title = finding(found, table)
        assert title.startswith("The runs do not decide") == (
            not reading.ranges or len({*reading.ranges[-1].depths, *reading.ranges[-1].rivals}) > 1
        )
    if found.best:
        panel = best_depths(found)
        rows = best_table(found).records()
        for at, mark, row in zip(found.best, panel.to_dict("records"), rows, strict=True):
            same = reading.at(at.params)
            assert (at.depth, at.near, at.missing) == (same.depth, same.near, same.missing)
            assert (mark["depth"], row["best depth"]) == (at.depth, str(at.depth))
    if found.next_depth:
        assert found.best[-1].near in (None, (max(reading.depths),))


@pytest.mark.parametrize("number", range(12))
def test_what_a_fit_says_agrees(number):
    check(drawn(number))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_what_two_hundred_fits_say_agrees(first):
    for number in range(first, first + 25):
        check(drawn(number))
