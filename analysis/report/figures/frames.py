"""What each figure shows, as plain tables: drawing them is another module's work. Each is written as CSV."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.curves.budgets import enclosed
from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.errors import InputError
from analysis.fit.document import Evidence, Fit
from analysis.law.crossings import Crossing, gap_of
from analysis.law.projection import LEVINE2020, Law, law_of, solve_depth
from analysis.runs.table import STOPPED, RunTable

#: Panels of the gap figure; more would be too small to read.
MAX_PANELS = 9
#: Points of a smooth line.
LINE = 61
#: Shapes with another depth at their N that a map needs, and half of all.
LEAST_SHAPES = 4
#: Steps in width of one depth of the frontier map.
MAP_STEPS = 40
#: Crossings that residuals about a line of two parameters need.
LEAST_RESIDUALS = 3
#: Largest N of the rivals' figure, and points a decade.
FARTHEST, PER_DECADE = 1e13, 8


@dataclass(frozen=True)
class LossData:
    """Loss against N by depth.

    Attributes:
        points: depth, width, params, loss (mean over seeds), low, high (lowest and highest seed), se (pooled), seeds,
            residual (loss less the curve).
        lines: depth, params, loss on the fitted curves; a depth of one size has none.
        entropy: entropy of the data in nats a token, where known.
    """

    points: pd.DataFrame
    lines: pd.DataFrame
    entropy: float | None

    def table(self) -> pd.DataFrame:
        """For the CSV: points and curves, told apart by the column `what`."""
        return _stack(point=self.points, curve=self.lines).assign(entropy=self.entropy)


@dataclass(frozen=True)
class GapPanel:
    """One pair.

    Attributes:
        line: params, gap = loss(shallow) - loss(deep), its standard error se, and `ahead`, the gap at which the deep
            model is better by the share `delta` of the shallow model's loss.
        sizes: params and depth of the sizes measured inside the common range.
    """

    crossing: Crossing
    line: pd.DataFrame
    sizes: pd.DataFrame


@dataclass(frozen=True)
class GapData:
    """The gap of each pair against N; se times `quantile` is the ribbon, the test of the shaded interval.

    In the CSV stand beside them N, width and error of the estimator of Levine et al. 2020, `first_significant`.
    """

    panels: tuple[GapPanel, ...]
    level: float
    quantile: float

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        parts = []
        for panel in self.panels:
            item = panel.crossing
            low, high = item.params_interval or (None, None)
            first, last = item.bootstrap_interval or (None, None)
            first_at = item.first_significant
            parts.append(
                panel.line.assign(
                    shallow=item.shallow,
                    deep=item.deep,
                    status=item.status,
                    crossing=_number(item.params),
                    low=_number(low),
                    high=_number(high),
                    bootstrap_low=_number(first),
                    bootstrap_high=_number(last),
                    delta=_number(item.delta),
                    delta_crossing=_number(item.delta_params),
                    first_significant=_number(first_at.params if first_at else None),
                    first_significant_width=_number(first_at.width if first_at else None),
                    first_significant_error=_number(first_at.error if first_at else None),
                )
            )
        return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class ProfileData:
    """Loss against depth at fixed N: budget, params, depth, width, loss, se, excess, z, best, near."""

    rows: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


@dataclass(frozen=True)
class FrontierData:
    """Excess loss over depth and width: above the best depth that is measured at the same N.

    Attributes:
        cells: depth, width_low, width_high, params, excess, best_depth: the curves in small steps of width.
        shapes: depth, width, params, excess, best_depth of the measured shapes; NaN where no other depth is measured
            at that N.
        line: depth, width of the law's best shapes; empty without a rising law.
        diverged: depth, width, params, diverged, of.
    """

    cells: pd.DataFrame
    shapes: pd.DataFrame
    line: pd.DataFrame
    diverged: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV: told apart by the column `what`."""
        return _stack(shape=self.shapes, cell=self.cells, law=self.line, diverged=self.diverged)


@dataclass(frozen=True)
class TransitionData:
    """Width of the shallower model at each crossing against its depth.

    Attributes:
        points: shallow, deep, status, width, low, high (NaN where open or absent), and in_law, whether its estimate is
            among the law's points.
        line: depth, published (Levine et al. 2020), and where there are such laws width, low, high of ours (low and
            high NaN where the data set no limit) and power, the rival.
    """

    points: pd.DataFrame
    line: pd.DataFrame
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV: points and line, told apart by the column `what`."""
        return _stack(crossing=self.points, line=self.line)


@dataclass(frozen=True)
class ResidualData:
    """How far each crossing lies from the law, and what the law is without it.

    Attributes:
        rows: shallow, deep, residual of ln d, low, high (the crossing's interval less the law, NaN where open), then
            from the law without the pair: a, b, foretold, measured (widths), z.
        b, b_interval, scatter: of the law through all.
    """

    rows: pd.DataFrame
    b: float
    b_interval: tuple[float | None, float | None]
    scatter: float
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.assign(b_all=self.b, scatter=self.scatter)


@dataclass(frozen=True)
class RivalsData:
    """The best depth against N by each law.

    Attributes:
        lines: law, params, depth (NaN where it names none).
        band: params, low, high of the threshold law's depth; NaN where the data set no limit.
        best: params, depth, near_low, near_high: what was measured, without any law.
        measured: smallest and largest N measured.
    """

    lines: pd.DataFrame
    band: pd.DataFrame
    best: pd.DataFrame
    measured: tuple[float, float]

    def table(self) -> pd.DataFrame:
        """For the CSV: told apart by the column `what`."""
        return _stack(law=self.lines, band=self.band, measured=self.best)


@dataclass(frozen=True)
class HealthData:
    """What became of every row.

    Attributes:
        status: depth, outcome (used, forecast, a status, or left out), count.
        seconds: depth, params, seed, train_seconds of the rows that have it.
        diverged: depth, width, params, diverged, of.
    """

    status: pd.DataFrame
    seconds: pd.DataFrame
    diverged: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV: told apart by the column `what`."""
        return _stack(count=self.status, seconds=self.seconds, diverged=self.diverged)


@dataclass(frozen=True)
class TrainingData:
    """Loss during training: cell, step, loss, depth, width, seed."""

    rows: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


def evidence_of(fit: Fit) -> Evidence:
    """What a fit was made from.

    Raises:
        ValueError: the fit was read from a file, which does not hold it.
    """
    if fit.evidence is None:
        raise ValueError("a fit that was read from a file has no curves to draw; fit the run table again")
    return fit.evidence


def loss_data(fit: Fit, entropy: float | None = None) -> LossData:
    """Points and curves of the losses."""
    evidence = evidence_of(fit)
    rows, curves = evidence.comparison.rows, evidence.curves
    grouped = rows.groupby(["depth", "params"], sort=True).agg(
        width=("width", "first"), low=("loss", "min"), high=("loss", "max")
    )
    points = grouped.reset_index().assign(
        loss=curves.mean, se=curves.se, seeds=curves.count, residual=curves.residual
    )
    lines = []
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low < high:
            # Ends exactly at the measured sizes: beyond them a curve refuses to answer.
            x = np.linspace(low, high, LINE)
            lines.append(pd.DataFrame({"depth": depth, "params": np.exp(x), "loss": curves.loss(depth, x)}))
    return LossData(
        points[["depth", "width", "params", "loss", "low", "high", "se", "seeds", "residual"]],
        pd.concat(lines, ignore_index=True) if lines else _empty("depth", "params", "loss"),
        entropy,
    )


def gap_data(fit: Fit) -> GapData | None:
    """Gaps of the adjacent pairs, then of others while there is room; None without a common range."""
    evidence = evidence_of(fit)
    ordered = sorted(fit.crossings, key=lambda item: (not item.adjacent, item.shallow, item.deep))
    panels = [panel for item in ordered if (panel := _panel(evidence.curves, item)) is not None]
    return GapData(tuple(panels[:MAX_PANELS]), fit.level, evidence.crossings.quantile) if panels else None


def _panel(curves: Curves, item: Crossing) -> GapPanel | None:
    gap = gap_of(curves, item.shallow, item.deep)
    if gap is None:
        return None
    ahead = (item.delta or 0.0) * curves.loss(item.shallow, gap.x)
    line = pd.DataFrame({"params": np.exp(gap.x), "gap": gap.value, "se": gap.se, "ahead": ahead})
    index = np.concatenate([curves.at(item.shallow), curves.at(item.deep)])
    index = index[(curves.x[index] >= gap.x[0] - 1e-9) & (curves.x[index] <= gap.x[-1] + 1e-9)]
    sizes = pd.DataFrame({"params": np.exp(curves.x[index]), "depth": curves.depth[index]})
    return GapPanel(item, line, sizes)


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


def frontier_data(fit: Fit) -> FrontierData | None:
    """The map of excess loss; None where fewer than `LEAST_SHAPES`, or than half, have another depth at their N."""
    evidence = evidence_of(fit)
    curves = evidence.curves
    widths = evidence.comparison.rows.groupby(["depth", "params"], sort=True)["width"].first().to_numpy(float)
    shapes, cells = [], []
    for depth in curves.depths:
        index = curves.at(depth)
        x, logs = curves.x[index], np.log(widths[index])
        excess, best = _excess(curves, depth, x)
        shapes.append(
            pd.DataFrame(
                {
                    "depth": depth,
                    "width": widths[index],
                    "params": np.exp(x),
                    "excess": excess,
                    "best_depth": best,
                }
            )
        )
        if len(index) < 2:
            continue
        edges = np.linspace(x[0], x[-1], MAP_STEPS + 1)
        middle = (edges[:-1] + edges[1:]) / 2
        excess, best = _excess(curves, depth, middle)
        # By the measured widths, not by sqrt(N / 12L): N may be counted in another way.
        ends = np.exp(np.interp(edges, x, logs))
        cells.append(
            pd.DataFrame(
                {
                    "depth": depth,
                    "width_low": ends[:-1],
                    "width_high": ends[1:],
                    "params": np.exp(middle),
                    "excess": excess,
                    "best_depth": best,
                }
            ).dropna()
        )
    measured = pd.concat(shapes, ignore_index=True)
    if measured["excess"].notna().sum() < max(LEAST_SHAPES, len(measured) / 2):
        return None
    law = drawn_law(fit)
    line = _empty("depth", "width")
    if law is not None and law.b > 0:
        depth_axis = np.geomspace(min(curves.depths) / 2, max(curves.depths) * 2, LINE)
        line = pd.DataFrame({"depth": depth_axis, "width": np.exp(law.a + law.b * depth_axis)})
    columns = ["depth", "width_low", "width_high", "params", "excess", "best_depth"]
    return FrontierData(
        pd.concat(cells, ignore_index=True) if cells else _empty(*columns),
        measured,
        line,
        pd.DataFrame(fit.diverged, columns=["depth", "width", "params", "diverged", "of"]),
    )


def _excess(curves: Curves, depth: int, x: Floats) -> tuple[Floats, Floats]:
    """Loss of `depth` above the lowest of the depths measured at each ln N, and which that is; NaN where alone."""
    excess, best = np.full(len(x), np.nan), np.full(len(x), np.nan)
    for place, value in enumerate(x):
        there = [other for other in curves.depths if other == depth or enclosed(curves, other, float(value))]
        if len(there) < 2:
            continue
        at = np.array([value])
        losses = [float(curves.loss(other, at)[0]) for other in there]
        lowest = int(np.argmin(losses))
        excess[place] = losses[there.index(depth)] - losses[lowest]
        best[place] = there[lowest]
    return excess, best


def drawn_law(fit: Fit) -> Law | None:
    """The law with its region, also where the data bound it on one side only; None without a law."""
    # Such a law has a line and half a band; whoever draws it shows the open side as open.
    law = replace(fit.law, status="ok") if fit.law.status == "open" else fit.law
    return law_of(law)


def band_of(law: Law, depth: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest exp(a + b·L) over the region of the law, at each depth; NaN where it sets no limit."""
    return _extremes(law, lambda a, b: np.exp(a + b * depth))


def depth_band(law: Law, params: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest best depth over the region of the law, at each N; NaN where it sets no limit."""
    return _extremes(law, lambda a, b: np.array([solve_depth(a, b, float(value)) for value in params]))


def _extremes(law: Law, of: Callable[[float, float], Floats]) -> tuple[Floats, Floats]:
    points = [*law.boundary(), (law.a, law.b, False)]
    values = np.vstack([of(a, b) for a, b, _ in points])
    cut = np.array([is_open for _, _, is_open in points])
    values = np.where(np.isfinite(values), values, np.inf)
    low, high = values.min(axis=0), values.max(axis=0)
    # An end that is met where the search was cut off is no end.
    low_open = ((values == low) & cut[:, None]).any(axis=0) | ~np.isfinite(low)
    high_open = ((values == high) & cut[:, None]).any(axis=0) | ~np.isfinite(high)
    return np.where(low_open, np.nan, low), np.where(high_open, np.nan, high)


def transition_data(fit: Fit) -> TransitionData | None:
    """Crossings of adjacent depths with the laws through them; None without a law, a settled crossing and a bound."""
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
                "in_law": item.shallow in fit.law.depths,
            }
        )
    if not rows:
        return None
    points = pd.DataFrame(rows).astype(dict.fromkeys(("width", "low", "high"), float))
    law = drawn_law(fit)
    # What is not settled says where it might be only beside something that is known.
    settled = points["status"] != "ambiguous"
    if law is None and points.loc[settled, ["width", "low", "high"]].isna().all(axis=None):
        return None
    depth = np.linspace(0.5 * float(points["shallow"].min()), float(points["deep"].max()), LINE)
    line = pd.DataFrame({"depth": depth, "published": np.exp(LEVINE2020.a + LEVINE2020.b * depth)})
    if law is not None:
        bottom, top = band_of(law, depth)
        line = line.assign(width=np.exp(law.a + law.b * depth), low=bottom, high=top)
    for rival in fit.rivals:
        if rival.form == "power" and rival.a is not None and rival.b is not None:
            line = line.assign(power=np.exp(rival.a + rival.b * np.log(depth)))
    return TransitionData(points, line, fit.level)


def residual_data(fit: Fit) -> ResidualData | None:
    """Residuals and leave-one-out of the law; None with fewer than three crossings, see `no_residuals`."""
    law = fit.law
    if no_residuals(fit) or law.a is None or law.b is None:
        return None
    items = {item.shallow: item for item in fit.crossings if item.adjacent}
    rows = []
    for depth, residual, without in zip(law.depths, law.residuals, law.leave_one_out, strict=True):
        low, high = items[depth].width_interval or (None, None)
        said = law.a + law.b * depth
        rows.append(
            {
                "shallow": depth,
                "deep": items[depth].deep,
                "residual": residual,
                "low": math.nan if low is None else math.log(low) - said,
                "high": math.nan if high is None else math.log(high) - said,
                "a": without.a,
                "b": without.b,
                "foretold": without.width,
                "measured": without.measured,
                "z": without.z,
            }
        )
    return ResidualData(
        pd.DataFrame(rows), law.b, law.b_interval or (None, None), law.scatter or 0.0, law.level
    )


def no_residuals(fit: Fit) -> str | None:
    """Why there are no residuals to draw; None where there are."""
    if fit.law.a is None:
        return f"there is no law ({fit.law.reason})"
    count = len(fit.law.depths)
    if count < LEAST_RESIDUALS:
        return f"a line of two parameters goes through {count} crossings; residuals need three or more"
    return None


def rivals_data(fit: Fit) -> RivalsData | None:
    """The depth each law names from the smallest size measured to 10¹³; None where no law names any."""
    params = evidence_of(fit).comparison.rows["params"]
    low, high = float(params.min()), float(params.max())
    end = max(FARTHEST, 10 * high)
    grid = np.geomspace(low, end, max(2, 1 + math.ceil(PER_DECADE * math.log10(end / low))))
    parts = []
    for name, layout_planner in fit.advices().items():
        named = [layout_planner(float(value)) for value in grid]
        depths = np.array([math.nan if depth is None or depth <= 0 else depth for depth in named])
        depths[~np.isfinite(depths)] = math.nan
        parts.append(pd.DataFrame({"law": name, "params": grid, "depth": depths}))
    if not parts or all(part["depth"].isna().all() for part in parts):
        return None
    band = _empty("params", "low", "high")
    law = drawn_law(fit)
    if law is not None and law.b > 0:
        bottom, top = depth_band(law, grid)
        band = pd.DataFrame({"params": grid, "low": bottom, "high": top})
    best = pd.DataFrame(
        [
            {
                "params": item.params,
                "depth": item.depth,
                "near_low": min(item.near or (item.depth,)),
                "near_high": max(item.near or (item.depth,)),
            }
            for item in fit.best
        ],
        columns=["params", "depth", "near_low", "near_high"],
    )
    return RivalsData(pd.concat(parts, ignore_index=True), band, best, (low, high))


def health_data(runs: RunTable, fit: Fit) -> HealthData:
    """Counts by outcome and depth, training seconds, and the shapes that diverged."""
    dropped = {item.get("row") for item in fit.left_out}
    outcome = [
        ("forecast" if status == STOPPED else "used")
        if row not in dropped
        else ("left out" if status == "done" else str(status))
        for row, status in zip(runs.frame.index, runs.frame["status"], strict=True)
    ]
    labelled = runs.frame.assign(outcome=outcome)
    status = (
        labelled.groupby(["depth", "outcome"], sort=True, dropna=False).size().rename("count").reset_index()
    )
    seconds = runs.used[runs.used["train_seconds"].notna()][["depth", "params", "seed", "train_seconds"]]
    diverged = pd.DataFrame(fit.diverged, columns=["depth", "width", "params", "diverged", "of"])
    return HealthData(status, seconds.reset_index(drop=True), diverged)


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


def _stack(**parts: pd.DataFrame) -> pd.DataFrame:
    """The parts below each other, told apart by the column `what`."""
    present = [part.assign(what=name) for name, part in parts.items() if len(part)]
    table = pd.concat(present, ignore_index=True)
    return table[["what", *(name for name in table.columns if name != "what")]]


def _empty(*columns: str) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=float) for name in columns})


def _number(value: float | None) -> float:
    return math.nan if value is None else value
