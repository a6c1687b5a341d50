"""In real training the preset `quickstart-search` finds the crossings of `quickstart` for at most half of its FLOPs."""

import json
import math
import os
import subprocess
import sys

import pandas as pd
import pytest

# Eleven minutes of two cores: twice what the gate has left.
pytestmark = pytest.mark.long
PRESETS = GRID, SEARCH = "quickstart", "quickstart-search"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    for preset in PRESETS:
        done = subprocess.run(
            [sys.executable, "-m", "study", "run", preset, "--results", str(folder)],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(folder)},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def crossings(folder, preset):
    """By pair: ln N of the crossing, and half the length of its 95 % interval."""
    fit = json.loads((folder / preset / "fit.json").read_text())
    found = {}
    for item in fit["crossings"]:
        assert item["status"] == "bracketed", (preset, item)
        low, high = item["params_interval"]
        found[item["shallow"], item["deep"]] = math.log(item["params"]), math.log(high / low) / 2
    return found


def test_the_search_trains_at_most_half(results):
    spent = {preset: pd.read_csv(results / preset / "runs.csv")["flops"].sum() for preset in PRESETS}
    assert spent[SEARCH] <= 0.5 * spent[GRID], spent


def test_the_crossings_are_the_same_within_their_intervals(results):
    """The difference of two crossings is compared with the root of the sum of the squares of their half-widths."""
    grid, search = crossings(results, GRID), crossings(results, SEARCH)
    assert {(1, 2), (2, 4)} <= set(grid)
    assert set(grid) == set(search)
    for pair, (place, half) in grid.items():
        other, other_half = search[pair]
        assert abs(place - other) <= math.hypot(half, other_half), (pair, grid, search)
