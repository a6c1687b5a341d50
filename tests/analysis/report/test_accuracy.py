"""The accuracy of a task in the report and in the answer: known means, and nothing where a table has none."""

import pandas as pd
import pytest

from analysis.fit.document import Fit, fit
from analysis.fit.scores import GRADED, accuracy_data, graded_accuracy
from analysis.fit.words import answers, score_sentences
from analysis.report.study_page import write_report
from analysis.runs.table import RunTable
from tests.analysis.report.test_study_page import read
from trainables.data.kinds.connectivity import ConnectivityData
from trainables.data.kinds.hops import HopsData


def table(**columns):
    """Two depths, three widths and two seeds each; two layers solve the task, one does not."""
    rows = [
        {"depth": depth, "width": width * (3 - depth), "seed": seed, "status": "done",
         "loss": 2.0 - 0.5 * depth - 0.001 * width + 0.01 * seed,
         "accuracy": 0.2 + 0.7 * (depth == 2) + 0.001 * width + 0.01 * seed}
        for depth in (1, 2)
        for width in (16, 24, 32)
        for seed in (0, 1)
    ]  # fmt: skip
    return RunTable.from_frame(pd.DataFrame(rows).assign(**columns))


def test_the_mean_and_range_of_every_shape_are_those_of_its_seeds_and_are_drawn(tmp_path):
    result = fit(table())
    points = accuracy_data(result).set_index(["depth", "width"])
    assert points.loc[(2, 32), "mean"] == pytest.approx(0.937)
    assert points.loc[(2, 32), ["low", "high"]].tolist() == pytest.approx([0.932, 0.942])
    assert points.loc[(1, 32), "mean"] == pytest.approx(0.221)
    assert (points["seeds"] == 2).all()
    assert 'id="accuracy"' in write_report(table(), result, tmp_path).read_text()
    drawn = pd.read_csv(tmp_path / "figures" / "accuracy.csv")
    pd.testing.assert_frame_equal(drawn, accuracy_data(result), check_dtype=False)


def test_the_answer_of_a_task_begins_with_what_each_depth_can_do():
    result = fit(table(induction_score=[0.1] * 6 + [0.8] * 6))
    assert score_sentences(result) == [
        "Best mean accuracy: 0.237 with 1 layer, 0.937 with 2 layers.",
        "Best mean induction score of a head: 0.100 with 1 layer, 0.800 with 2 layers.",
    ]
    assert answers(result)[:2] == score_sentences(result)


def test_rows_without_an_accuracy_do_not_count_and_a_table_without_has_no_figure(tmp_path):
    runs = table()
    frame = runs.frame.copy()
    frame.loc[frame["width"] == 24, "accuracy"] = float("nan")
    assert 24 not in set(accuracy_data(fit(RunTable.from_frame(frame)))["width"])
    plain = RunTable.from_frame(frame.drop(columns="accuracy"))
    result = fit(plain)
    assert accuracy_data(result) is None
    assert not score_sentences(result)
    write_report(plain, result, tmp_path)
    assert not (tmp_path / "figures" / "accuracy.csv").exists()


def graded(**columns):
    """Depth 1 does easy sequences, depth 2 middling ones, and nothing here hard ones."""
    runs = table()
    deep = runs.frame["depth"] == 2
    easy = {
        "accuracy_hops_1": 0.95 + 0.01 * deep,
        "accuracy_hops_4": 0.5 + 0.45 * deep,
        "accuracy_hops_16": 0.25,
    }
    return RunTable.from_frame(runs.frame.assign(heads=2, **(easy | columns)))


def test_each_difficulty_has_its_own_accuracy_and_the_depth_that_it_takes():
    result = fit(graded())
    key, data = graded_accuracy(result)
    assert key == "hops"
    told = "For a mean accuracy of at least 0.9: 1 layer at hops 1, 2 layers at hops 4, no depth up to 2 at hops 16."
    assert answers(result)[0] == told
    assert data.axis.labels == ("1", "4", "16")
    needed = data.needed.set_index("value")
    assert needed["depth"].fillna(0).to_dict() == {1: 1, 4: 2, 16: 0}
    shapes = data.shapes[data.shapes["best"]].set_index(["value", "depth"])
    assert shapes.loc[(4, 2), "mean"] == pytest.approx(0.95)
    assert shapes.loc[(16, 1), "mean"] == pytest.approx(0.25)
    assert shapes.loc[(4, 2), "head_width"] * shapes.loc[(4, 2), "heads"] == shapes.loc[(4, 2), "width"]


@pytest.mark.slow
def test_the_report_draws_the_difficulties_with_their_table_of_heads(tmp_path):
    result = fit(graded())
    page = read(write_report(graded(), result, tmp_path))
    assert "The fewest layers for accuracy of at least 0.9" in page.text
    assert "m·H" in page.text
    drawn = pd.read_csv(tmp_path / "figures" / "accuracy_graded.csv")
    assert set(drawn["value"]) == {1, 4, 16}
    # A later report of a table without them leaves nothing of it.
    write_report(table(), fit(table()), tmp_path)
    assert not (tmp_path / "figures" / "accuracy_graded.csv").exists()


@pytest.mark.parametrize("task", [HopsData(hops=(1, 2)), ConnectivityData(diameter=(1, 2))])
def test_what_training_calls_a_difficulty_is_taken_for_one(task):
    score = task.score(64)
    names = set(score.measures([1.0] * score.numbers)) - {"accuracy"}
    assert {GRADED.fullmatch(name)[2] for name in names} == {"1", "2"}


def test_columns_that_are_no_accuracies_of_one_task_are_left_out():
    """Per cent, one difficulty alone, and columns of another key."""
    assert graded_accuracy(fit(table())) is None
    runs = graded(accuracy_hops_1=95.0, accuracy_hops_4=50.0)
    assert graded_accuracy(fit(runs)) is None
    assert graded_accuracy(fit(table(accuracy_top_1=0.5, accuracy_top_5=0.9))) is None
    key, data = graded_accuracy(fit(graded(accuracy_diameter_2=0.5)))
    assert (key, len(data.axis.labels)) == ("hops", 3)
    read_back = Fit.from_json(fit(graded()).to_json())
    assert graded_accuracy(read_back) is None
    assert score_sentences(read_back) == []
