"""The promise of the README: `make study` ends in a report with bracketed crossings, and doing it again is free.

The gate trains the same cells for a few steps; the crossings need the whole study, which is trained before a release.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.chromium import dump_dom
from tests.test_docs import AFTER_QUICKSTART

ROOT = Path(__file__).parent.parent
#: What makes the quickstart short enough for the gate.
SHORT = ("training.steps=60", "training.seeds=2", "data.sequences=2000")


def make_study(folder):
    environment = {**os.environ, "HOME": str(folder)}
    command = ["make", "-C", str(ROOT), "study", f"RESULTS={folder / 'results'}"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def interplay(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "interplay", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip


def short_study(folder):
    return interplay(folder, "run", "quickstart", "--results", str(folder / "results"), *SHORT)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A folder with the rows and the page of the short quickstart."""
    folder = tmp_path_factory.mktemp("short")
    done = short_study(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "output.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same of `make study`."""
    folder = tmp_path_factory.mktemp("quickstart")
    done = make_study(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def fit_of(folder):
    return json.loads((folder / "results" / "quickstart" / "fit.json").read_text())


@pytest.mark.extended
def test_both_crossings_are_bracketed(whole):
    crossings = {(c["shallow"], c["deep"]): c for c in fit_of(whole)["crossings"]}
    for pair in ((1, 2), (2, 4)):
        crossing = crossings[pair]
        assert crossing["status"] == "bracketed", crossing["reason"]
        low, high = crossing["params_interval"]
        assert low < crossing["params"] < high
    assert crossings[1, 2]["params"] < crossings[2, 4]["params"], "deeper pairs cross at larger sizes"


@pytest.mark.extended
def test_the_best_depth_grows_with_the_budget(whole):
    best = [shape["depth"] for shape in fit_of(whole)["best"]]
    assert best[0] == 1
    assert best[-1] == 4
    assert fit_of(whole)["rows"]["left_out"] == []


@pytest.mark.slow
def test_epochs_and_the_check_of_the_learning_rate_are_stated(short):
    rows = pd.read_csv(short / "results" / "quickstart" / "runs.csv")
    assert (rows["epochs"] == rows["tokens"] / (2000 * 32)).all()
    fit = fit_of(short)
    assert fit["epochs"]["high"] == rows["epochs"].max()
    # One rate per shape: the run's end gives the cost of the check and what adds it.
    check, missing = fit["learning_rate"], fit["next_runs"]["rates"]
    assert not check["checked"]
    assert missing["runs"] > 0
    for text in (f"{missing['runs']} runs", "lr_factors=["):
        assert text in check["sentence"]
        assert text in " ".join((short / "output.txt").read_text().split())


@pytest.mark.slow
def test_every_file_is_there_and_the_output_says_where(short):
    study = short / "results" / "quickstart"
    assert {"report.html", "fit.json", "runs.csv", "figures", "spec.yaml"} <= {
        p.name for p in study.iterdir()
    }
    assert {p.suffix for p in (study / "figures").iterdir()} == {".svg", ".png", ".csv"}
    assert "report.html" in (short / "output.txt").read_text()
    assert len(list((study / "rows").glob("*.json"))) == len(pd.read_csv(study / "runs.csv"))


@pytest.mark.slow
def test_a_second_time_trains_nothing(short):
    before = (short / "results" / "quickstart" / "runs.csv").read_text()
    again = short_study(short)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing to train" in again.stdout
    assert (short / "results" / "quickstart" / "runs.csv").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("command", AFTER_QUICKSTART)
def test_commands_of_the_readme_that_need_its_rows(short, command):
    done = interplay(short, *shlex.split(command)[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.slow
def test_the_report_opens_in_a_browser(short):
    document = dump_dom(short / "results" / "quickstart" / "report.html")
    assert document.count("<svg") >= 4
    assert "http://" not in document.replace("http://www.w3.org", ""), "the page asks the network for nothing"
