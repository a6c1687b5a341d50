import io
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.fit.document import fit
from analysis.fit.words import GAP_LAWS
from analysis.runs.table import RunTable
from core.numbers import digits, short
from interplay.terminal import fit_table, working
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))


def rows(seeds=3):
    budgets = np.geomspace(TRUTH.crossing(1) / 3, TRUTH.crossing(2) * 4, 5)
    return simulate(TRUTH, shapes_of(TRUTH.depths, budgets), seeds, np.random.default_rng(0))


def shown(frame):
    result = fit(RunTable.from_frame(frame))
    text = io.StringIO()
    Console(file=text, width=110).print(fit_table(result))
    return result, text.getvalue()


def test_a_fit_is_told_with_its_laws_and_their_tests():
    result, text = shown(rows())
    assert text.startswith("Up to ")
    assert f"ln d = {result.law.a:.2f} + {result.law.b:.3g}·L" in text
    for item in result.crossings:
        line = next(line for line in text.splitlines() if line.startswith(f"{item.shallow} → {item.deep} "))
        assert f" {short(item.params)} " in line
    for law in result.gap_laws.laws:
        line = next(line for line in text.splitlines() if line.startswith(GAP_LAWS[law.form][0]))
        assert law.p_value is None or f"{law.p_value:.2g}" in line
    assert "The noise of one seed is ±" in text


@pytest.mark.parametrize("case", ["one depth", "one size a depth"])
def test_poor_tables_are_told_plainly(case):
    frame = rows()
    frame = frame[frame["depth"] == 1] if case == "one depth" else frame.groupby("depth").head(3)
    _, text = shown(frame)
    assert "No threshold law: a law needs two crossings" in text
    assert ("pair " in text) == (case != "one depth")
    assert "nan" not in text.lower()


def test_other_learning_rates_are_shown():
    frame = rows(2).assign(lr=0.01, purpose="")
    half = frame[frame["depth"] < 4].assign(lr=0.005, purpose="sensitivity")
    half["loss"] += 0.02 * (half["depth"] == 2)
    result = fit(RunTable.from_frame(pd.concat([frame, half], ignore_index=True)))
    text = io.StringIO()
    Console(file=text, width=110).print(fit_table(result))
    pair = next(pair for pair in result.learning_rate.pairs if pair.deep == 2)
    below = text.getvalue().partition("to the best learning rates")[2]
    line = next(line for line in below.splitlines() if line.startswith("1 → 2"))
    assert f"× {digits(math.exp(pair.shift.shift), 3)}" in line
    assert pair.reason.split()[0] in line


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_takes_long_is_shown_on_a_terminal(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr("rich.console.Console.is_terminal", is_terminal)
    with working("fitting", after=60):
        pass
    assert "fitting" not in capsys.readouterr().err
    with working("fitting", after=0):
        time.sleep(0.2)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("fitting" in err) == is_terminal


RECOMMEND = [sys.executable, "-m", "interplay", "recommend", "1e9"]


def test_a_full_disk_is_named_in_one_paragraph():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(RECOMMEND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "No space left on device" in done.stderr
    assert "results" not in done.stderr


def test_a_reader_that_has_ended_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(RECOMMEND, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
