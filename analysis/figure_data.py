"""What each figure shows, as plain tables: drawing them is another module's work. Each is written as CSV."""

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from analysis.crossings import Crossing, gap_of
from analysis.curves import Curves, Floats, build_curves
from analysis.errors import InputError
from analysis.fit import Fit, compared_rows
from analysis.projection import LEVINE2020, Law, law_of
from analysis.runs import RunTable

#: Panels of the gap figure; more would be too small to read.
MAX_PANELS = 9


@dataclass(frozen=True)
class LossData:
    """Loss against N by depth.

    Attributes:
        points: depth, width, params, loss (mean over seeds), low, high (lowest and highest seed), se
            (pooled), seeds.
        floor: entropy of the data in nats a token, where known.
    """

    points: pd.DataFrame
    floor: float | None

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.points.assign(floor=self.floor)


@dataclass(frozen=True)
class GapPanel:
    """One pair: params, gap = loss(shallow) - loss(deep) and its standard error se at the knots."""

    crossing: Crossing
    knots: pd.DataFrame


@dataclass(frozen=True)
class GapData:
    """The gap of each pair against N."""

    panels: tuple[GapPanel, ...]
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        parts = [
            panel.knots.assign(
                shallow=panel.crossing.shallow,
                deep=panel.crossing.deep,
                status=panel.crossing.status,
                crossing=panel.crossing.params,
            )
            for panel in self.panels
        ]
        return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class ProfileData:
    """Loss against depth at fixed N: budget, params, depth, width, loss, se, excess, z, best, near."""

    rows: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


@dataclass(frozen=True)
class TransitionData:
    """Width of the shallower net at each crossing against its depth.

    Attributes:
        points: shallow, deep, status, width, low, high; NaN where open or absent.
        line: depth, width, low, high of our law (absent without one), and published, the law of Levine et
            al. 2020.
    """

    points: pd.DataFrame
    line: pd.DataFrame
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV: points and line, told apart by the column `what`."""
        return pd.concat(
            [self.points.assign(what="crossing"), self.line.assign(what="line")], ignore_index=True
        )


@dataclass(frozen=True)
class HealthData:
    """What became of every row.

    Attributes:
        status: depth, outcome (used, a status, or left out), count.
        seconds: depth, params, seed, train_seconds of the rows that have it.
    """

    status: pd.DataFrame
    seconds: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return pd.concat(
            [self.status.assign(what="count"), self.seconds.assign(what="seconds")], ignore_index=True
        )


@dataclass(frozen=True)
class TrainingData:
    """Loss during training: cell, step, loss, depth, width, seed."""

    rows: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


def loss_data(runs: RunTable, floor: float | None = None) -> LossData:
    """Points of the loss curves."""
    rows, _ = compared_rows(runs)
    curves = build_curves(rows)
    grouped = rows.groupby(["depth", "params"], sort=True).agg(
        width=("width", "first"), low=("loss", "min"), high=("loss", "max")
    )
    points = grouped.reset_index().assign(loss=curves.mean, se=curves.se, seeds=curves.count)
    return LossData(points[["depth", "width", "params", "loss", "low", "high", "se", "seeds"]], floor)


def gap_data(runs: RunTable, fit: Fit) -> GapData | None:
    """Gaps of the adjacent pairs, then of others while there is room; None without a common range."""
    curves = build_curves(compared_rows(runs)[0])
    ordered = sorted(fit.crossings, key=lambda item: (not item.adjacent, item.shallow, item.deep))
    panels = [panel for item in ordered if (panel := _panel(curves, item)) is not None]
    return GapData(tuple(panels[:MAX_PANELS]), fit.level) if panels else None


def _panel(curves: Curves, item: Crossing) -> GapPanel | None:
    gap = gap_of(curves, item.shallow, item.deep)
    if gap is None:
        return None
    return GapPanel(item, pd.DataFrame({"params": np.exp(gap.x), "gap": gap.value, "se": gap.se}))


def profile_data(fit: Fit) -> ProfileData | None:
    """The frontier of each budget; None when no budget has two depths."""
    rows = [
        {
            "budget": best.budget,
            "params": best.params,
            "depth": shape.depth,
            "width": shape.width,
            "loss": shape.loss,
            "se": shape.se,
            "excess": shape.excess,
            "z": shape.z,
            "best": shape.depth == best.depth,
            "near": best.near is not None and shape.depth in best.near,
        }
        for best in fit.best
        for shape in best.shapes
    ]
    return ProfileData(pd.DataFrame(rows)) if rows else None


def transition_data(fit: Fit) -> TransitionData | None:
    """Crossings of adjacent depths with the law and the published one; None when no pair says anything."""
    rows = []
    for item in fit.crossings:
        if not item.adjacent or item.status == "insufficient":
            continue
        low, high = item.width_interval or (None, None)
        rows.append(
            {
                "shallow": item.shallow,
                "deep": item.deep,
                "status": item.status,
                "width": item.width,
                "low": low,
                "high": high,
            }
        )
    if not rows:
        return None
    numbers = ["width", "low", "high"]
    points = pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))
    depth = np.linspace(0.5 * float(points["shallow"].min()), float(points["deep"].max()), 60)
    line = pd.DataFrame({"depth": depth, "published": np.exp(LEVINE2020.a + LEVINE2020.b * depth)})
    law = law_of(fit.law)
    if law is not None:
        line = line.assign(**_band(law, depth, fit.level))
    return TransitionData(points, line, fit.level)


def _band(law: Law, depth: Floats, level: float) -> dict[str, Floats]:
    (va, cab), (_, vb) = law.covariance
    error = np.sqrt(np.maximum(va + depth**2 * vb + 2 * depth * cab, 0))
    reach = float(ndtri((1 + level) / 2)) * error
    middle = law.a + law.b * depth
    return {"width": np.exp(middle), "low": np.exp(middle - reach), "high": np.exp(middle + reach)}


def health_data(runs: RunTable) -> HealthData:
    """Counts by outcome and depth, and training seconds."""
    used = set(runs.used.index)
    outcome = [
        "used" if row in used else ("left out" if status == "done" else str(status))
        for row, status in zip(runs.frame.index, runs.frame["status"], strict=True)
    ]
    labelled = runs.frame.assign(outcome=outcome)
    status = (
        labelled.groupby(["depth", "outcome"], sort=True, dropna=False).size().rename("count").reset_index()
    )
    seconds = runs.used[runs.used["train_seconds"].notna()][["depth", "params", "seed", "train_seconds"]]
    return HealthData(status, seconds.reset_index(drop=True))


def training_data(runs: RunTable, curves: pd.DataFrame) -> TrainingData:
    """Curves of the used cells.

    Args:
        runs: the run table, whose `cell` names the curves.
        curves: columns cell, step, loss; rows of cells that are not used are dropped.

    Raises:
        InputError: a column is missing.
    """
    missing = [name for name in ("cell", "step", "loss") if name not in curves.columns]
    if missing:
        raise InputError(
            f"The training curves lack the column {', '.join(missing)}; they need cell, step and loss, "
            f"and have {', '.join(map(str, curves.columns))}."
        )
    shapes = runs.used[["cell", "depth", "width", "seed"]]
    merged = curves[["cell", "step", "loss"]].merge(shapes, on="cell", how="inner")
    finite = merged[np.isfinite(merged["loss"].to_numpy(dtype=float))]
    return TrainingData(finite.sort_values(["depth", "width", "seed", "step"]).reset_index(drop=True))


def by_depth(frame: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """(depth, its rows) from shallow to deep."""
    return [(int(depth), frame[frame["depth"] == depth]) for depth in sorted(set(frame["depth"]))]


def spread(values: list[float], gap: float) -> list[float]:
    """Positions near `values`, in their order, at least `gap` apart: for labels that would overlap.

    The mean of every pushed group stays where it was (pool adjacent violators on values minus index·gap).
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        mean, size = values[index] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    flat = itertools.chain.from_iterable([mean] * size for mean, size in blocks)
    result = [0.0] * len(values)
    for rank, (index, mean) in enumerate(zip(order, flat, strict=True)):
        result[index] = mean + rank * gap
    return result
