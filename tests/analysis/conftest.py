"""Simulated studies with a known truth."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.runs.table import RunTable

#: depth -> (width, mean loss, standard deviation over seeds): a small study that was really trained, with 5
#: seeds.
PILOT = {
    1: [(12, 0.943, 0.030), (16, 0.910, 0.009), (24, 0.911, 0.019), (32, 0.900, 0.010), (44, 0.902, 0.006)],
    2: [(8, 1.014, 0.027), (12, 0.897, 0.006), (16, 0.877, 0.009), (22, 0.864, 0.010), (32, 0.863, 0.004)],
    4: [(6, 1.095, 0.011), (8, 0.975, 0.025), (12, 0.889, 0.017), (16, 0.861, 0.005), (22, 0.845, 0.007)],
}
BUDGETS = (1600.0, 3200.0, 6400.0, 12800.0, 24000.0)


def pilot(seed: int = 0, seeds: int = 3, noise: float = 1.0, shared: float = 0.3) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(seeds)
    rows = [
        {
            "cell": f"{depth:02d}{width:04d}{replicate:02d}e1234567",
            "depth": depth,
            "width": width,
            "heads": 2,
            "budget": budget,
            "seed": replicate,
            "lr": min(0.04, 0.4 / width),
            "tokens": 1_228_800,
            "total_params": 12 * depth * width**2 + 73 * width,
            "loss": mean
            + noise
            * sd
            * (shared**0.5 * common[replicate] + (1 - shared) ** 0.5 * generator.standard_normal()),
            "status": "done",
            "train_seconds": 5 + depth * width / 8,
        }
        for depth, shapes in PILOT.items()
        for (width, mean, sd), budget in zip(shapes, BUDGETS, strict=True)
        for replicate in range(seeds)
    ]
    return pd.DataFrame(rows)


def lines(
    slopes: dict[int, tuple[float, float]],
    seed: int = 0,
    seeds: int = 3,
    sd: float = 0.01,
    trend: float = 0.0,
    shared: float = 0.0,
    sizes: tuple[float, ...] = (1e3, 2e3, 4e3, 8e3, 16e3, 32e3),
) -> pd.DataFrame:
    """Losses linear in ln N: depth -> (loss at N = 6e3, slope), and noise sd·(N/6e3)^trend."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(seeds)
    rows = []
    for depth, (level, slope) in slopes.items():
        for params in sizes:
            x = np.log(params / 6e3)
            for replicate in range(seeds):
                own = generator.standard_normal()
                noise = shared**0.5 * common[replicate] + (1 - shared) ** 0.5 * own
                loss = level + slope * x + sd * np.exp(trend * x) * noise
                rows.append({"depth": depth, "width": 10, "params": params, "seed": replicate, "loss": loss})
    return pd.DataFrame(rows)


@pytest.fixture
def pilot_frame() -> Callable[..., pd.DataFrame]:
    return pilot


@pytest.fixture
def line_frame() -> Callable[..., pd.DataFrame]:
    return lines


@pytest.fixture(scope="session")
def study() -> RunTable:
    """45 rows: three depths, five budgets, three seeds."""
    return RunTable.from_frame(pilot())
