"""The benchmark itself works; what it measures is for `make bench`, because a timed test fails on a busy machine."""

import json

import pytest

from benchmarks import churn
from benchmarks.__main__ import main
from benchmarks.figure import Figure


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Run parts of the benchmark; return the exit status, what was printed and the figures."""

    def run(*parts):
        out = tmp_path / "bench.json"
        monkeypatch.setattr("sys.argv", ["bench", *parts, "--out", str(out)])
        code = main()
        return code, capsys.readouterr().out, json.loads(out.read_text())["figures"]

    return run


def test_a_figure_is_over_when_it_exceeds_its_limit():
    assert Figure("a", 1.16, "ratio", 1.15).over
    assert not Figure("a", 1.15, "ratio", 1.15).over
    assert not Figure("a", 1e9, "ms", None).over


@pytest.mark.slow
def test_the_plan_of_ten_thousand_cells_is_measured(bench):
    code, printed, figures = bench("plan")
    assert [f["limit"] for f in figures] == [3.0]
    assert figures[0]["what"] in printed
    assert code == int(figures[0]["value"] > 3.0)


@pytest.mark.extended
def test_the_answer_is_measured(bench):
    code, _, figures = bench("answer")
    assert code in (0, 1)
    assert [f["limit"] for f in figures] == [5.0, 1.0, 0.6]
    assert "curve_fit" in figures[0]["rival"]
    assert "empty python" in figures[2]["rival"]


def test_an_unknown_part_is_refused(bench, capsys):
    with pytest.raises(SystemExit) as refused:
        bench("speed")
    assert refused.value.code == 2
    assert "choose among" in capsys.readouterr().err


@pytest.mark.extended
def test_the_steps_are_measured_against_the_hand_written_loop(bench):
    code, _, figures = bench("step")
    assert code in (0, 1)
    assert [f["limit"] for f in figures] == [1.15, 1.5, *[1.3] * 9]
    assert all(0.2 < f["value"] < 20 and "plain torch" in f["rival"] for f in figures)


@pytest.mark.extended
@pytest.mark.parametrize("bucket", [False, True], ids=["folder", "bucket"])
def test_interruptions_of_a_study_cost_no_cell(tmp_path, bucket):
    cost = churn.churn(tmp_path, 20.0, bucket=bucket, workers=2, seconds=4, every=1, copy=0.2)
    assert (cost["cells"], cost["failed"]) == (15, 0)
    assert cost["kills"] > 0
    assert 0 <= cost["wasted"] < 1


@pytest.mark.extended
@pytest.mark.parametrize(("mode", "valid"), [("before", 1), ("now", 2)])
def test_a_killed_cell_loses_what_is_not_in_its_newest_valid_checkpoint(tmp_path, mode, valid):
    """Of two checkpoints whose files are in the bucket, the second is valid before the third is due."""
    at, saved = churn.lost_steps(tmp_path / "cell", churn.cell(), mode, 20.0, first=False, until_kill=8.0)
    tags = sorted((tmp_path / "cell" / "bucket").glob("step-*"))
    assert [len(list(tag.glob("complete.json"))) for tag in tags] == [1, valid - 1]
    assert saved == int(tags[valid - 1].name.split("-")[1]) < at
