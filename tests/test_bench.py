"""The benchmark itself works; what it measures is for `make bench`, because a timed test fails on a busy machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.bench import packing, throughput
from tests.bench.figure import Figure
from trainables.cell import Recipe, Shape

ROOT = Path(__file__).parent.parent


def bench(folder, *parts):
    command = [sys.executable, "-m", "tests.bench", *parts, "--out", str(folder / "bench.json")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_figure_is_over_when_it_exceeds_its_limit():
    assert Figure("a", 1.16, "ratio", 1.15).over
    assert not Figure("a", 1.15, "ratio", 1.15).over
    assert not Figure("a", 1e9, "ms", None).over


@pytest.mark.slow
def test_the_plan_of_ten_thousand_cells_is_measured(tmp_path):
    done = bench(tmp_path, "plan")
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert [f["limit"] for f in figures] == [3.0]
    assert figures[0]["what"] in done.stdout
    assert done.returncode == int(figures[0]["value"] > 3.0)


@pytest.mark.extended
def test_the_answer_is_measured(tmp_path):
    done = bench(tmp_path, "answer")
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert [f["limit"] for f in figures] == [5.0, 1.0, 0.6]
    assert "curve_fit" in figures[0]["rival"]
    assert "empty python" in figures[2]["rival"]


def test_an_unknown_part_is_refused(tmp_path):
    done = bench(tmp_path, "speed")
    assert done.returncode == 2
    assert "choose among" in done.stderr


@pytest.mark.extended
def test_the_steps_are_measured_against_the_hand_written_loop(tmp_path):
    done = bench(tmp_path, "step")
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert [f["limit"] for f in figures] == [1.15, 1.5]
    assert all(0.2 < f["value"] < 20 and "plain torch" in f["rival"] for f in figures)


@pytest.mark.slow
def test_without_a_gpu_the_throughput_part_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = bench(tmp_path, "throughput")
    assert done.returncode == 0, done.stderr
    assert "no GPU" in done.stdout
    assert json.loads((tmp_path / "bench.json").read_text())["figures"] == []


@pytest.mark.extended
def test_the_packing_is_measured_against_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "MEGABYTES", 4)
    figures = packing.spread_time(tmp_path)
    assert [f.limit for f in figures] == [0.75, 1.5]
    assert all(0.05 < f.value < 50 and f.rival.endswith("MB/s") for f in figures)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_throughput_case_compares_the_same_model(tmp_path, precision):
    """At a size a CPU can do: the figure is made of what it says, whatever its value."""
    recipe = Recipe(steps=8, batch=2, context=32, precision=precision)
    figure = throughput.case(tmp_path, Shape(depth=1, width=32, heads=2), recipe, 65, rounds=1)
    assert 0.02 < figure.value < 50
    assert figure.limit == pytest.approx(1 / 0.95)
    assert "tokens/s" in figure.ours
    assert "plain torch loop" in figure.rival
