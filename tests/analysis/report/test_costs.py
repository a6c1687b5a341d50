"""What a depth gains and what it costs: the figure and the table of the page."""

import pandas as pd
import pytest

from analysis.fit.document import fit
from analysis.report.figures import costs as cost_figure
from analysis.report.figures.figure import Context
from analysis.report.study_page import write_report
from analysis.report.tables import gains_table
from analysis.runs.table import RunTable
from tests.analysis.fit.test_limits import DEPTHS, costs, rows_of


@pytest.fixture(scope="module")
def runs():
    return RunTable.from_frame(rows_of())


@pytest.fixture(scope="module")
def result(runs):
    return fit(runs)


def test_the_figure_has_the_loss_on_the_curve_and_the_time_of_every_shape(runs, result):
    data = cost_figure.figure(Context(runs, result, costs=costs())).table
    assert len(data) == len({(row.depth, row.width) for row in costs()})
    means = runs.used.groupby(["depth", "width"])["loss"].mean()
    for row in data.to_dict("records"):
        assert row["decode_ms"] == row["depth"] + 1e-5 * row["params"]
        assert row["loss"] == pytest.approx(means[row["depth"], row["width"]], abs=0.01)


def test_without_costs_of_tokens_there_is_neither_figure_nor_table(runs, result):
    assert cost_figure.figure(Context(runs, result)) is None
    assert cost_figure.figure(Context(runs, result, costs=costs(decode_ms=None))) is None
    assert gains_table(result, []) is None


def test_the_table_compares_the_depths_at_the_largest_size_with_the_best_one(result):
    table = pd.DataFrame(gains_table(result, costs()).records())
    best = result.best[-1]
    assert [int(shape.split(" × ")[0]) for shape in table["shape"]] == [*DEPTHS]
    lowest = table[table["loss"] == "lowest"].iloc[0]
    assert lowest["shape"].startswith(f"{best.depth} × ")
    assert "×" not in lowest["ms per token, batch 1"]
    by_shape = {f"{row.depth} × {row.width}": row for row in costs() if row.batch == 1}
    reference = by_shape[lowest["shape"]]
    for _, line in table[table["loss"] != "lowest"].iterrows():
        value, ratio = line["ms per token, batch 1"].rstrip("×)").split(" (")
        row = by_shape[line["shape"]]
        assert float(value) == pytest.approx(row.decode_ms, rel=0.01)
        assert float(ratio) == pytest.approx(row.decode_ms / reference.decode_ms, rel=0.06)


def test_a_size_without_costs_gives_way_to_the_next_smaller_one(result):
    largest = max(row.size(12) for row in costs())
    small = [row for row in costs() if row.size(12) < largest / 2]
    title = gains_table(result, small).title
    assert title != gains_table(result, costs()).title
    assert gains_table(result, [row for row in costs() if row.depth == 1]) is None


def test_the_page_has_both(runs, result, tmp_path):
    page = write_report(runs, result, tmp_path, costs=costs()).read_text()
    assert 'id="section-what-a-depth-gains-what-it-costs"' in page
    assert (tmp_path / "figures" / "costs.csv").is_file()
    assert "section-what-a-depth-gains" not in write_report(runs, result, tmp_path).read_text()
    assert not (tmp_path / "figures" / "costs.csv").exists()
