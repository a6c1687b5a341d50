import math

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import fit
from analysis.report.figures.diagnostics import diagnostics_data, draw_diagnostics, figure
from analysis.report.figures.figure import Context
from analysis.runs.table import RunTable
from core.errors import InputError


@pytest.fixture
def runs(pilot_frame):
    return RunTable.from_frame(pilot_frame())


def measures(runs, names=("rank_residual", "rank_residual_attention", "token_cosine")):
    """Of every cell 0.5^layer at the start, and 1 - 0.1 · layer at the end, plus a hundredth of the seed."""
    lines = []
    for row in runs.frame.itertuples():
        for layer in range(1, int(row.depth) + 1):
            for name in names:
                lines.append((row.cell, 0, name, layer, 0.5**layer + row.seed / 100))
                lines.append((row.cell, 900, name, layer, 1 - 0.1 * layer + row.seed / 100))
    return pd.DataFrame(lines, columns=["cell", "step", "name", "layer", "value"])


def test_a_line_is_the_mean_over_the_cells_of_a_depth(runs):
    data = diagnostics_data(runs, measures(runs))
    assert list(data["name"].unique()) == ["rank_residual", "rank_residual_attention", "token_cosine"]
    table = data.set_index(["name", "when", "depth", "layer"])
    seeds = runs.frame.groupby("depth")["seed"]
    for depth in (1, 2, 4):
        shift, cells = seeds.mean()[depth] / 100, seeds.size()[depth]
        for layer in range(1, depth + 1):
            for when, value in (("start", 0.5**layer), ("end", 1 - 0.1 * layer)):
                row = table.loc[("token_cosine", when, depth, layer)]
                assert row["value"] == pytest.approx(value + shift)
                assert (row["low"], row["high"]) == pytest.approx((value, value + 0.02))
                assert row["cells"] == cells
    assert len(table) == 3 * 2 * (1 + 2 + 4)
    # Names that are not known come last.
    data = diagnostics_data(runs, measures(runs, ("zeal", "grad_norm", "layer_drop", "rank_residual")))
    assert list(data["name"].unique()) == ["rank_residual", "layer_drop", "grad_norm", "zeal"]


def test_of_a_diverged_cell_the_start_counts_and_nothing_beyond_numbers(pilot_frame):
    frame = pilot_frame().assign(status="done", reason="")
    frame.loc[frame["depth"] == 4, ["status", "reason", "loss"]] = ["diverged", "nan", math.nan]
    runs = RunTable.from_frame(frame)
    given = measures(runs, ("rank_residual",))
    given.loc[0, "value"] = math.nan
    data = diagnostics_data(runs, given)
    assert set(data[data["depth"] == 4]["when"]) == {"start"}
    start, end = (data.query("depth == 1 and when == @when")["cells"].item() for when in ("start", "end"))
    assert start == end - 1
    draw_diagnostics(data, Context(runs, None).colours)


def test_no_measures_are_no_figure_and_a_wrong_table_is_refused(runs):
    empty = measures(runs).iloc[:0]
    assert diagnostics_data(runs, empty) is None
    assert diagnostics_data(runs, measures(runs).assign(cell="another")) is None
    for none in (None, empty):
        assert figure(Context(runs, None, measures=none)) is None
    with pytest.raises(InputError, match="lack the column layer; they need cell, step, name, layer, value"):
        diagnostics_data(runs, measures(runs).drop(columns="layer"))


def test_the_distances_share_one_scale_and_zeros_are_left_out(runs):
    given = measures(runs)
    given.loc[(given["name"] == "rank_residual_attention") & (given["layer"] == 4), "value"] = 0
    canvas = draw_diagnostics(diagnostics_data(runs, given), Context(runs, None).colours)
    panels = canvas.axes
    assert len(panels) == 3 * 2
    # The lowest that is not zero, 0.5^4 with skips at the start, and a little room.
    assert {panel.get_ylim() for panel in panels[:4]} == {(0.5**4 / 2, 1.5)}
    assert [panel.get_yscale() for panel in panels] == ["log"] * 4 + ["linear"] * 2
    deepest = panels[2].lines[-1].get_ydata()
    assert math.isnan(deepest[3])
    assert deepest[2] > 0.5**3 - 1e-9
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == ["1 layer", "2 layers", "4 layers"]


def test_a_loss_increase_is_drawn_in_the_unit_of_the_fit_and_other_measures_are_not(pilot_frame):
    runs = RunTable.from_frame(pilot_frame().assign(bytes_per_token=2.0))
    given = measures(runs, ("layer_drop", "token_cosine"))
    nats, bits = (figure(Context(runs, fit(runs, unit=unit), measures=given)) for unit in ("nats", "bpb"))
    drop, columns = nats.table["name"] == "layer_drop", ["value", "low", "high"]
    assert nats.table.equals(diagnostics_data(runs, given))
    np.testing.assert_allclose(bits.table[drop][columns], nats.table[drop][columns] / math.log(2) / 2)
    assert bits.table[~drop].equals(nats.table[~drop])
    assert ("bits per byte" in bits.caption, "bits per byte" in nats.caption) == (True, False)
