import pytest

from analysis.fit.document import fit
from analysis.report.figures.at_budget import budget_data
from analysis.report.figures.figure import Context
from analysis.report.study_page import first_figure, study_figures
from analysis.runs.table import RunTable
from tests.isoflop import DEPTHS, isoflop_table, least_loss, minutes, timed_table


@pytest.fixture(scope="module")
def runs():
    return RunTable.from_frame(timed_table())


@pytest.fixture(scope="module")
def timed(runs):
    return fit(runs)


def test_the_figure_has_each_depth_at_its_best_size_with_its_cost(timed):
    data = budget_data(timed.compute, 1.0)
    assert set(data["depth"]) == set(DEPTHS)
    measured = data[data["measured"]]
    assert sorted(set(measured["budget"])) == pytest.approx(timed.compute.budgets)
    for budget, rows in measured.groupby("budget"):
        truth = {depth: least_loss(budget, depth, minutes)[1] for depth in DEPTHS}
        assert rows["excess"].min() == 0
        for row in rows.to_dict("records"):
            expected = 100 * (truth[row["depth"]] / min(truth.values()) - 1)
            assert row["excess"] == pytest.approx(expected, abs=0.4)
            assert row["params"] == pytest.approx(12 * row["depth"] * row["width"] ** 2, rel=0.35)
            assert row["tokens"] == pytest.approx(budget / minutes(row["params"], row["depth"]), rel=0.05)
    # The answer between two budgets is that of the sentence and of `recommend`.
    between = data[~data["measured"]].iloc[0]
    best = timed.compute.at(between["budget"])
    shapes = {best.depth: 0.0} | {item.depth: 100 * item.excess / best.loss for item in best.others}
    assert between["excess"] == pytest.approx(shapes[between["depth"]])


def test_it_is_the_first_figure_of_a_study_at_equal_budgets_and_one_below_of_a_foreign_table(runs, timed):
    drawn = first_figure(Context(runs, timed))
    assert drawn.name == "at_budget"
    assert drawn.canvas().axes[0].get_xlabel() == "training time"
    assert "4 → 8" in [text.get_text() for text in drawn.canvas().axes[0].texts]
    foreign = RunTable.from_frame(isoflop_table(2, budgets=7, least=1e15))
    names = [figure.name for figure in study_figures(foreign, fit(foreign))]
    assert names.count("at_budget") == 1
    assert names[0] != "at_budget"
    frame = timed_table()
    plain = RunTable.from_frame(frame[frame["compute"] == 1.5].drop(columns=["compute", "compute_unit"]))
    assert "at_budget" not in [figure.name for figure in study_figures(plain, fit(plain))]
