import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import linregress
from scipy.stats import t as student

from analysis.curves.best_shapes import best_shapes
from analysis.curves.curves import build_curves
from analysis.fit.document import Fit, fit
from analysis.fit.kaplan import NEAR, PUBLISHED_ALPHA, Aspect, AspectRange, Exponent, Kaplan, kaplan
from analysis.numbers import digits
from analysis.report.extras import kaplan as kaplan_module
from analysis.report.extras.kaplan import (
    draw_kaplan,
    exponents_table,
    kaplan_data,
    kaplan_sentences,
    no_kaplan,
)
from analysis.report.figures.figure import Absent, Context
from analysis.report.study_page import write_report
from analysis.runs.table import RunTable
from tests.analysis.report.test_study_page import read

ALPHA, SCALE = 0.1, 1e9
BUDGETS = tuple(np.geomspace(1e4, 1e6, 6).tolist())


def rows(
    seed=0, *, entropy=0.0, ratio=1.0, sd=0.003, seeds=3, depths=(1, 2, 4), budgets=BUDGETS, by_total=False,
):  # fmt: skip
    """Losses E + (N_c/N)^α of the deepest model; each depth before it has `ratio` times the loss of the next."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(seeds)
    table = []
    for budget in budgets:
        for rank, depth in enumerate(depths):
            width = 2 * round(math.sqrt(budget / 12 / depth) / 2)
            params = 12.0 * depth * width**2
            total = params + 256 * width
            loss = entropy + (SCALE / (total if by_total else params)) ** ALPHA
            loss *= ratio ** (len(depths) - 1 - rank)
            for replicate in range(seeds):
                noise = 0.5 * common[replicate] + 0.8 * generator.standard_normal()
                table.append(
                    {"depth": depth, "width": width, "params": params, "total_params": total, "budget": budget,
                     "seed": replicate, "loss": loss * (1 + sd * noise)}
                )  # fmt: skip
    return pd.DataFrame(table)


def found(frame, **options):
    curves = build_curves(frame)
    return kaplan(frame, curves, best_shapes(frame, curves), **options)


@pytest.fixture(scope="module")
def shaped(study):
    """The fit of the pilot, with the entropy of its data."""
    return fit(study, entropy=0.7365)


def test_the_exponents_of_a_plain_power_law_are_recovered():
    result = found(rows(ratio=1.02))
    item = result.exponent("own", "power")
    assert item.interval[0] < ALPHA < item.interval[1]
    assert item.interval[1] - item.interval[0] < 0.005
    assert item.scale == pytest.approx(SCALE, rel=0.1)
    assert item.rms < 0.02
    # An offset is not needed, and is found to be nothing within its error: α is the same.
    free = result.exponent("own", "offset")
    assert free.interval[0] < ALPHA < free.interval[1]
    assert abs(free.offset) < 0.5


def test_the_exponent_above_an_entropy_is_recovered_where_it_is_known_and_where_it_is_fitted():
    frame = rows(entropy=1.5)
    result = found(frame, entropy=1.5)
    known, free, plain = (result.exponent("own", form) for form in ("entropy", "offset", "power"))
    for item in (known, free):
        assert item.interval[0] < ALPHA < item.interval[1]
    assert known.offset == 1.5
    assert known.scale == pytest.approx(SCALE, rel=0.3)
    assert free.offset == pytest.approx(1.5, abs=0.4)
    # Without the entropy the slope is smaller, as losses above 1.5 nats fall by a smaller share.
    assert plain.interval[1] < ALPHA
    at = np.array([2e4, 5e5])
    assert known.loss(at) == pytest.approx(1.5 + (SCALE / at) ** ALPHA, rel=0.01)
    assert found(frame).exponent("own", "entropy") is None


@pytest.mark.slow
def test_intervals_of_the_exponent_cover_it():
    hits = dict.fromkeys(("power", "offset"), 0)
    studies = 150
    for seed in range(studies):
        result = found(rows(seed, ratio=1.02))
        for form in hits:
            low, high = result.exponent("own", form).interval
            hits[form] += low < ALPHA < high
    # 95 %, of which 150 studies know 1.8 %.
    assert all(0.9 * studies <= count <= 0.995 * studies for count in hits.values()), hits


def test_the_increase_over_the_best_shape_and_its_interval_are_those_of_the_losses():
    result = found(rows(ratio=1.02, sd=0.001))
    assert len(result.aspects) == 18
    for item in result.aspects:
        assert item.aspect == pytest.approx(item.width / item.depth)
        assert 12 * item.depth * item.width**2 == pytest.approx(item.params)
        expected = {4: 0.0, 2: 2.0, 1: 100 * (1.02**2 - 1)}[item.depth]
        assert item.increase == pytest.approx(expected, abs=0.2)
        if item.depth == 4:
            assert (item.increase, item.interval) == (0, None)
        else:
            assert item.interval[0] < expected < item.interval[1]
            assert item.interval[1] - item.interval[0] < 0.5
    # Within 3 % are the two deeper shapes, whose aspect ratios differ by 2·sqrt(2).
    for item in result.ranges:
        assert item.high / item.low == pytest.approx(2**1.5)
        assert item.most / item.least == pytest.approx(8)
        assert item.low == item.least


@pytest.mark.parametrize("by_total", [False, True])
def test_the_exponent_is_the_true_one_in_the_count_that_the_loss_follows(by_total):
    # At seed 0 the true exponent lies 2e-6 above its interval.
    result = found(rows(1, sd=0.0005, by_total=by_total))
    right, wrong = ("total", "own") if by_total else ("own", "total")
    low, high = result.exponent(right, "power").interval
    assert low < ALPHA < high
    low, high = result.exponent(wrong, "power").interval
    assert not low < ALPHA < high


def test_what_cannot_be_told_is_absent_with_its_reason():
    assert found(rows(depths=(2,))) is None
    bare = found(rows().drop(columns="total_params"))
    assert {item.counted for item in bare.exponents} == {"own"}
    some = rows()
    some.loc[0, "total_params"] = math.nan
    assert found(some).exponent("total", "power") is None
    below = found(rows(), entropy=99.0).exponent("own", "entropy")
    assert below.alpha is None
    assert "at or below the entropy" in below.reason
    few = found(rows(budgets=BUDGETS[:2]))
    assert few.exponent("own", "power").reason == "2 points of 3 needed"
    assert few.exponent("own", "offset").reason == "2 points of 4 needed"
    with pytest.raises(ValueError, match="2 points of 3"):
        few.exponent("own", "power").loss(1e4)


def test_without_a_noise_estimate_the_scatter_about_the_law_gives_the_interval():
    # Losses straight in ln N leave no scatter about the curves, and are no power law. Four layers are the best.
    frame = rows(seeds=1)
    frame["loss"] = 3 - 0.1 * np.log(frame["params"]) + 0.02 * (4 - frame["depth"])
    assert not build_curves(frame).noise.known
    result = found(frame)
    assert all(item.interval is None for item in result.aspects)
    item = result.exponent("own", "power")
    x = np.log([shape.params for shape in best_shapes(frame, build_curves(frame))])
    line = linregress(x, np.log(3 - 0.1 * x))
    reach = student.ppf(0.975, 4) * line.stderr
    assert item.alpha == pytest.approx(-line.slope)
    assert item.interval == pytest.approx((-line.slope - reach, -line.slope + reach))
    assert item.scale == pytest.approx(math.exp(-line.intercept / line.slope))


def test_neither_order_nor_copies_of_rows_change_anything(study):
    frame = study.frame.drop(columns="reason")
    again = pd.concat([frame.sample(frac=1, random_state=1), frame.head(5)])
    first, second = (fit(RunTable.from_frame(table)).kaplan for table in (frame, again))
    assert [item.alpha for item in first.exponents] == pytest.approx(
        [item.alpha for item in second.exponents]
    )
    assert [item.increase for item in first.aspects] == pytest.approx(
        [item.increase for item in second.aspects]
    )


def test_the_fit_file_has_it_and_older_files_are_read(shaped):
    document = json.loads(json.dumps(shaped.to_json()))
    assert document["kaplan"]["published"]["alpha"] == PUBLISHED_ALPHA
    assert document["kaplan"]["entropy"] == 0.7365
    assert Fit.from_json(document).kaplan == shaped.kaplan
    del document["kaplan"]
    assert Fit.from_json(document).kaplan is None


def test_the_figure_shows_the_numbers_of_its_csv(shaped, study):
    figure = kaplan_module.figure(Context(study, shaped))
    canvas = figure.draw()
    FigureCanvasAgg(canvas).draw()
    own, total, aspects = canvas.axes
    table = figure.table
    assert set(table["what"]) == {"point", "curve", "law", "aspect"}

    def drawn(axes):
        return {
            tuple(np.round([x, y], 9)) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)
        }

    for axes, counted, column in ((own, "own", "params"), (total, "total", "total_params")):
        part = table[(table["what"] == "point")]
        there = drawn(axes)
        assert {tuple(pair) for pair in np.round(part[[column, "loss"]].to_numpy(), 9)} <= there
        lines = table[table["counted"] == counted]
        assert set(lines["what"]) == {"curve", "law"}
        assert {tuple(pair) for pair in np.round(lines[["params", "loss"]].to_numpy(float), 9)} <= there
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    part = table[table["what"] == "aspect"]
    assert {tuple(pair) for pair in np.round(part[["aspect", "increase"]].to_numpy(float), 9)} <= drawn(
        aspects
    )
    assert part["increase"].tolist() == [item.increase for item in shaped.kaplan.aspects]


def test_a_curve_over_all_parameters_goes_through_the_points_as_over_n(shaped):
    data = kaplan_data(shaped)
    for depth, points in data.points.groupby("depth"):
        for counted, column in (("own", "params"), ("total", "total_params")):
            line = data.curves[(data.curves["depth"] == depth) & (data.curves["counted"] == counted)]
            assert line["params"].iloc[[0, -1]].tolist() == pytest.approx(
                points[column].iloc[[0, -1]].tolist()
            )
            at = np.interp(np.log(points[column]), np.log(line["params"]), line["loss"])
            curves = shaped.study.curves
            assert at == pytest.approx(curves.loss(depth, np.log(points["params"].to_numpy())), abs=5e-4)


def test_a_table_without_a_total_count_has_one_panel_of_losses(study):
    plain = RunTable.from_frame(study.frame.drop(columns="total_params"))
    data = kaplan_data(fit(plain))
    assert not data.both
    assert len(draw_kaplan(data, Context(plain, None).colours, "N").axes) == 2
    assert data.points["total_params"].isna().all()


@pytest.mark.parametrize("ratio", [1.02, 1.3])
def test_every_increase_is_inside_the_frame(ratio):
    runs = RunTable.from_frame(rows(ratio=ratio))
    result = fit(runs)
    data = kaplan_data(result)
    canvas = draw_kaplan(data, Context(runs, None).colours, "N")
    axes = canvas.axes[-1]
    assert axes.get_yscale() == "symlog"
    low, high = axes.get_ylim()
    known = data.aspects[["increase", "low", "high"]].to_numpy(dtype=float)
    assert low <= np.nanmin(known)
    assert high >= np.nanmax(known)


def test_one_depth_and_sizes_that_never_meet_have_no_figure(study):
    one = RunTable.from_frame(study.frame[study.frame["depth"] == 1].copy())
    result = fit(one)
    assert kaplan_data(result) is None
    assert "one depth" in no_kaplan(result)
    assert isinstance(kaplan_module.figure(Context(one, result)), Absent)
    apart = rows(depths=(1, 2))
    apart = apart[(apart["depth"] == 1) == (apart["budget"] < 1e5)].drop(columns="total_params")
    result = fit(RunTable.from_frame(apart))
    assert kaplan_data(result) is None
    assert "no count of all parameters" in no_kaplan(result)


def test_the_page_tells_shape_exponent_and_count(tmp_path, study, shaped):
    path = write_report(study, shaped, tmp_path, entropy=0.7365)
    text = read(path).text
    for sentence in kaplan_sentences(shaped.kaplan):
        assert sentence.replace("\u00a0", " ") in text
    last = shaped.kaplan.ranges[-1]
    assert re.search(
        rf"within {NEAR:g} % of the best for d/L from [\d.]+ to [\d.]+, a factor of [\d.]+", text
    )
    assert last.low == pytest.approx(5.5)
    assert "law of the best shapes" in text
    assert "8.8e13" in text
    assert (tmp_path / "figures" / "kaplan.csv").is_file()
    assert json.loads((tmp_path / "fit.json").read_text())["kaplan"] == shaped.to_json()["kaplan"]


def test_sentences_say_what_is_known_and_no_more():
    aspect = Aspect(1e4, 1e4, 2, 20.0, 10.0, 0.0, None)
    one = AspectRange(1e4, 1e4, 10.0, 10.0, 2.0, 80.0)
    item = Exponent("own", "power", 5, 0.0512, (0.05, 0.0524), 1e9, None, 0.01)
    result = Kaplan(None, (aspect,), (one,), (item,), 0.95)
    shape, exponent = kaplan_sentences(result)
    assert "one of the aspect ratios only, d/L = 10 (measured: 2.0 to 80)" in shape
    assert "falls as N^−α with α = 0.051 (95 %: 0.050 to 0.052)" in exponent
    assert "entropy" not in exponent
    assert kaplan_sentences(None) == []
    unknown = replace(result, exponents=(replace(item, alpha=None, interval=None),), ranges=())
    assert kaplan_sentences(unknown) == []


def test_the_table_has_every_law_beside_the_published_one(shaped):
    rows = exponents_table(shaped.kaplan, noise=True).records()
    assert [row["law of the best shapes"] for row in rows] == [
        "(N_c/N)^α",
        "E + (N_c/N)^α, E known",
        "E + (N_c/N)^α, E fitted",
        "Kaplan et al. 2020: (N_c/N)^α, English web text",
    ]
    assert rows[0]["α in N"] == digits(shaped.kaplan.exponent("own", "power").alpha)
    assert rows[1]["E, N"] == digits(0.7365, 3)
    assert (rows[-1]["α in N"], rows[-1]["N_c"]) == ("0.076", "8.8e13")
    assert exponents_table(None, noise=True) is None
