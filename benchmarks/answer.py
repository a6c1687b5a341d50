"""What the answer costs: a fit with its intervals, its growth with the rows, and a recommendation from a cold start."""

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq, curve_fit

from analysis.fit.document import fit
from analysis.runs.table import RunTable
from benchmarks.figure import Figure
from tests.simulated_study import Truth, simulate

ROOT = Path(__file__).parent.parent
TRUTH = Truth(2.5, 0.25, (1, 2, 4, 6, 8))
SEEDS = 5
#: Draws of the bootstrap, and those of them that are timed; the rest are as long.
DRAWS = 1000
RIVAL_DRAWS = 5
COLD_STARTS = 7


def measure(folder: Path) -> list[Figure]:
    return [fit_time(), growth(), cold_recommendation()]


def fit_time() -> Figure:
    """Seconds of a fit of 1,000 rows, beside intervals from a bootstrap of 1,000 draws that fits every curve anew."""
    rows = study(1000)
    ours = seconds(rows)
    begin = time.perf_counter()
    refit(rows, RIVAL_DRAWS)
    rival = (time.perf_counter() - begin) * DRAWS / RIVAL_DRAWS
    return Figure(
        f"fit of {len(rows):,} rows with all intervals; {ours / rival:.2g} of the rival",
        ours,
        "s",
        5.0,
        f"{ours:.2f} s",
        f"bootstrap of {DRAWS:,} draws, scipy curve_fit: {rival:.0f} s",
    )


def growth() -> Figure:
    """Ratio of the times of 100,000 and 10,000 rows over the ratio of their numbers."""
    small, large = study(10_000), study(100_000)
    before, after = seconds(small), seconds(large)
    ratio = after / before / (len(large) / len(small))
    what = "fit of 100,000 rows over 10,000, for each row"
    return Figure(what, ratio, "ratio", 1.0, f"{after:.2f} s", f"10,000 rows: {before:.2f} s")


def cold_recommendation() -> Figure:
    """Median seconds of `interplay recommend --law` as a new process, beside an empty Python."""
    command = shutil.which("interplay", path=str(Path(sys.executable).parent)) or "interplay"
    ours = cold([command, "recommend", "--law", "levine2020", "5e9"])
    empty = cold([sys.executable, "-c", "pass"])
    return Figure(
        "recommend --law, cold start", ours, "s", 0.6, f"{ours:.2f} s", f"empty python: {empty:.2f} s"
    )


def study(rows: int) -> pd.DataFrame:
    """So many rows of five depths and five seeds, every size another."""
    sizes = np.geomspace(1e3, 1e6, rows // (SEEDS * len(TRUTH.depths)))
    shapes = [(depth, 1, size) for depth in TRUTH.depths for size in sizes]
    frame = simulate(TRUTH, shapes, SEEDS, np.random.default_rng(0))
    # Widths of so many sizes would not be whole; the fit compares by params.
    losses = np.concatenate([TRUTH.loss(depth, sizes) for depth in TRUTH.depths]).repeat(SEEDS)
    noise = 1 + TRUTH.noise * np.random.default_rng(1).standard_normal(len(losses))
    return frame.assign(params=frame["budget"], loss=losses * noise).drop(columns="budget")


def seconds(rows: pd.DataFrame) -> float:
    """Time of table and fit, the best of two: the first one loads libraries."""
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        fit(RunTable.from_frame(rows, count="table"))
        times.append(time.perf_counter() - begin)
    return min(times)


def refit(rows: pd.DataFrame, draws: int) -> list[np.ndarray]:
    """The law of each draw the plain way: new losses, one curve_fit a depth, a root a pair, a line through them."""

    def curve(x: np.ndarray, level: float, drop: float, alpha: float) -> np.ndarray:
        return level + drop * np.exp(-alpha * (x - 10))

    generator = np.random.default_rng(0)
    means = rows.groupby(["depth", "params"])["loss"].mean().reset_index()
    laws = []
    for _ in range(draws):
        results = {}
        for depth, part in means.groupby("depth"):
            noise = 1 + TRUTH.noise / SEEDS**0.5 * generator.standard_normal(len(part))
            results[depth], _ = curve_fit(
                curve, np.log(part["params"]), part["loss"] * noise, (2.0, 0.5, 0.3), maxfev=20_000
            )
        widths = []
        for shallow, deep in itertools.pairwise(TRUTH.depths):
            x = brentq(lambda x, s=results[shallow], d=results[deep]: curve(x, *s) - curve(x, *d), 0, 25)
            widths.append((x - np.log(12 * shallow)) / 2)
        laws.append(np.polyfit(TRUTH.depths[:-1], widths, 1))
    return laws


def cold(command: list[str]) -> float:
    """Median seconds of a command as a new process."""
    times = []
    for _ in range(COLD_STARTS):
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
