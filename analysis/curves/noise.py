"""Seed noise: its size pooled over shapes as a function of the loss, and the correlation of shapes with one seed.

The data model is y[p, s] = f(p) + σ(f)·(sqrt(ρ)·u[s] + sqrt(1-ρ)·e[p, s]) with p a shape, s a seed, u and e standard
normal. σ is pooled over all shapes as a power of the loss, because three seeds of one shape give only 2 degrees of
freedom, fifteen shapes together about 30. ρ is the share of the variance that shapes trained with the same seed have in
common (data order). It cancels in the gap between two depths, which is why seeds are paired.

If no shape has two seeds, `from_residuals` estimates the noise from the scatter about the curves.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from analysis.units import LOSS

Floats = npt.NDArray[np.float64]
NoiseSource = Literal["none", "seeds", "residuals"]

#: Fewest shapes with two or more seeds for a trend of the noise with the loss; with fewer, one σ for all.
SHAPES_FOR_TREND = 6
#: Smallest range of ln loss for a trend.
LEAST_RANGE = 0.05


@dataclass(frozen=True)
class NoiseSummary:
    """What a fit file holds of `Noise`; None where there is no estimate.

    Attributes:
        is_measured, source, seeds, dof, slope: as in `Noise`; the key of the first is `known`.
        sd: of one seed, nats per token, at the geometric mean `loss` of the shapes.
        sd_relative: `sd` over that loss.
        seed_correlation, depth_correlation: `correlation` and `within` of `Noise`.
    """

    is_measured: Annotated[bool, Field(alias="known")] = field(default=False, metadata={"json": "known"})
    source: NoiseSource = "none"
    seeds: int = 1
    dof: float = 0.0
    sd: float | None = field(default=None, metadata=LOSS)
    sd_relative: float | None = None
    loss: float | None = field(default=None, metadata=LOSS)
    slope: float | None = None
    seed_correlation: float | None = None
    depth_correlation: float | None = None


@dataclass(frozen=True)
class Noise:
    """Standard deviation of one seed's loss, pooled over shapes.

    Attributes:
        source: `seeds` (replicates), `residuals` (one seed: scatter about the curves) or `none` (no estimate).
        dof: degrees of freedom of the pooled estimate.
        log_sd, slope, centre: ln σ is log_sd + slope·(ln loss - centre), σ in nats per token.
        correlation: ρ, share of the variance common to all shapes of one seed.
        seeds: largest number of seeds of any shape.
        within: share of the variance common to the shapes of one depth and seed only. It does not cancel in the gap
            of two depths, and more sizes do not average it out.
    """

    source: NoiseSource
    dof: float
    log_sd: float
    slope: float
    centre: float
    correlation: float
    seeds: int
    within: float = 0.0

    @property
    def independent(self) -> float:
        """Share of the variance that no two shapes have in common."""
        return 1 - self.correlation - self.within

    @property
    def is_measured(self) -> bool:
        """Whether there is an estimate, and so intervals and tests."""
        return self.source != "none"

    def sd_at(self, loss: Floats) -> Floats:
        """σ in nats per token at this loss; NaN if the noise is not known."""
        if not self.is_measured:
            return np.full_like(loss, np.nan, dtype=float)
        return np.asarray(np.exp(self.log_sd + self.slope * (np.log(loss) - self.centre)), dtype=float)

    def summary(self) -> NoiseSummary:
        """For the fit file."""
        sd, loss = float(np.exp(self.log_sd)), float(np.exp(self.centre))
        if not self.is_measured:
            return NoiseSummary(seeds=self.seeds, dof=self.dof, loss=loss)
        return NoiseSummary(
            is_measured=True,
            source=self.source,
            seeds=self.seeds,
            dof=self.dof,
            sd=sd,
            sd_relative=sd / loss,
            loss=loss,
            slope=self.slope,
            seed_correlation=self.correlation,
            depth_correlation=self.within,
        )


def from_seeds(losses: Floats, depth: npt.NDArray[np.int64]) -> Noise:
    """Pooled noise from replicates: gamma likelihood of the sample variances with ln σ² linear in ln loss.

    Args:
        losses: (shapes, seeds), NaN where a shape lacks a seed.
        depth: (shapes,), layers.
    """
    present = np.isfinite(losses)
    count = present.sum(axis=1)
    mean = np.where(present, losses, 0).sum(axis=1) / np.maximum(count, 1)
    level = np.log(np.maximum(mean, np.finfo(float).tiny))
    centre = float(level.mean())
    seeds = int(count.max(initial=0))
    several = count > 1
    residual = np.where(present, losses - mean[:, None], 0)
    dof = (count - 1)[several].astype(float)
    variance = (residual[several] ** 2).sum(axis=1) / np.maximum(dof, 1)
    total = float(np.sum(dof * variance))
    # Differences at the level of rounding are not noise.
    rounding = 1e-12 * float(np.abs(mean).max(initial=0.0))
    if total <= rounding**2 * float(dof.sum()):
        return Noise("none", 0.0, float("nan"), 0.0, centre, 0.0, seeds)
    design = np.ones((int(several.sum()), 1))
    if several.sum() >= SHAPES_FOR_TREND and np.ptp(level[several]) > LEAST_RANGE:
        design = np.column_stack([design, level[several] - centre])
    coefficients = _gamma_regression(design, variance, dof)
    slope = float(coefficients[1]) / 2 if len(coefficients) > 1 else 0.0
    log_sd = float(coefficients[0]) / 2
    free = max(float(dof.sum()) - (len(coefficients) - 1), 1.0)
    sd = np.exp(log_sd + slope * (level - centre))
    correlation, within = _correlations(residual / sd[:, None], present, depth)
    return Noise("seeds", free, log_sd, slope, centre, correlation, seeds, within)


def from_residuals(noise: Noise, square: float, dof: int) -> Noise:
    """Noise of a table with one seed per shape: the scatter of its losses about the curves.

    It includes the misfit of the curves, so it is rather too large than too small. The common error of all shapes of
    one seed is not visible, and cancels in every gap. σ is proportional to the loss: with one σ for all, intervals
    covered the crossings at the smallest sizes, where the noise is largest, in 90 % of simulated studies, not 95 %.
    `square` is the sum of the squared residuals over the losses, `dof` points less parameters of the curves.
    """
    if dof < 1 or not square > 0:
        return noise
    log_sd = 0.5 * float(np.log(square / dof)) + noise.centre
    return Noise("residuals", float(dof), log_sd, 1.0, noise.centre, 0.0, noise.seeds)


def _gamma_regression(design: Floats, variance: Floats, dof: Floats) -> Floats:
    """Coefficients of ln σ² by iterated weighted least squares (McCullagh and Nelder 1989, section 8.3)."""
    beta = np.zeros(design.shape[1])
    beta[0] = np.log(np.sum(dof * variance) / np.sum(dof))
    for _ in range(100):
        fitted = np.exp(design @ beta)
        response = design @ beta + (variance - fitted) / fitted
        step = np.linalg.lstsq(design * np.sqrt(dof)[:, None], response * np.sqrt(dof), rcond=None)[0] - beta
        # A step of more than 1 in ln σ² overshoots when some sample variance happens to be large.
        beta = beta + step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < 1e-10:
            break
    return np.asarray(beta)


def _correlations(
    scaled: Floats, present: npt.NDArray[np.bool_], depth: npt.NDArray[np.int64]
) -> tuple[float, float]:
    """ρ from pairs of shapes of different depths, and the excess over it of pairs of one depth; at most 0.99."""
    whole = _products(scaled, present)
    parts = [_products(scaled[depth == value], present[depth == value]) for value in np.unique(depth)]
    inside = np.sum(parts, axis=0)
    between = whole - inside if (whole - inside)[1] > 1e-9 else whole
    correlation = float(np.clip(between[0] / between[1], 0.0, 0.99)) if between[1] > 1e-9 else 0.0
    if not inside[1] > 1e-9 or len(parts) < 2:
        return correlation, 0.0
    return correlation, float(np.clip(inside[0] / inside[1] - correlation, 0.0, 0.99 - correlation))


def _products(scaled: Floats, present: npt.NDArray[np.bool_]) -> Floats:
    """Sum of the products of residuals over all pairs of shapes and their common seeds, and the same if ρ were 1.

    The expectation of sum_s (e_p - mean e_p)(e_q - mean e_q) over the common seeds of the shapes p and q is
    ρ·(c - c/n_p - c/n_q + c²/(n_p·n_q)) with c common seeds. Both are summed over the pairs by way of the seeds, so
    that the work grows with the number of shapes and not with its square.
    """
    count = np.maximum(present.sum(axis=1).astype(float), 1)
    is_present = present.astype(float)
    observed = float(np.sum(scaled.sum(axis=0) ** 2) - np.sum(scaled**2)) / 2
    share = is_present / count[:, None]
    both, single = is_present.sum(axis=0), share.sum(axis=0)
    overlap = is_present.T @ share
    everything = float(both @ both) - 2 * float(both @ single) + float(np.sum(overlap * overlap.T))
    itself = float(np.sum(count - 1))
    return np.array([observed, (everything - itself) / 2])
