"""The benchmark itself works; what it measures is for `make bench`, because a timed test fails on a busy machine."""

import json

import pytest

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
