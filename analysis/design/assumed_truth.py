"""What a simulated study assumes: the law, the noise and the gaps between depths, each with its source.

A number is given by the user, taken from the fit of a pilot study, or a default.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.design.simulated_study import Shape, Truth
from analysis.intervals import LAYER_WEIGHTS, between
from analysis.law.threshold_law import LEVINE2020
from core.errors import InputError

if TYPE_CHECKING:
    from analysis.fit.document import Fit

#: Name of an assumption -> (meaning, smallest, largest). All but the loss are fields of `Truth`.
MEANINGS = {
    "a": ("law ln d = a + b·L", -30.0, 30.0),
    "b": ("law ln d = a + b·L", 1e-6, 10.0),
    "noise": ("sd of a seed, over the loss", 1e-9, 0.5),
    "slope": ("of gaps, nats per e-fold of N", 1e-9, 100.0),
    "exponent": ("α of E + A·N^-α", 1e-3, 3.0),
    "shared": ("share of noise by the seed", 0.0, 0.99),
    "misfit_sd": ("sd of shapes off curves, nats", 0.0, 100.0),
    "scatter": ("sd of ln d off the law", 0.0, 3.0),
    "loss": ("nats at the middle size", 1e-9, 1e6),
}
DEFAULT = "default"
#: Loss over the entropy of the data in the middle of the pilot's grid, 0.90 of 0.7365.
ABOVE_ENTROPY = 1.2
#: Largest ln d that a law may have at a depth of the plan; e^50 is no width.
MOST_LOG_WIDTH = 50.0


@dataclass(frozen=True)
class Assumption:
    """One assumed number and its source, in words."""

    value: float
    source: str


def assumed_truth(
    shapes: Sequence[Shape],
    given: Mapping[str, float],
    pilot: "Fit | None",
    entropy: float | None,
    layer_weights: float = LAYER_WEIGHTS,
) -> tuple[Truth, dict[str, Assumption]]:
    """Return the truth that the simulated studies assume, and each of its numbers with its source.

    Args:
        shapes: of the plan.
        given: values by the names of `MEANINGS`; they win over the pilot, and the pilot over defaults.
        pilot: the fit of a pilot study.
        entropy: of the data, nats per token; None or 0 if it is unknown or without meaning for the loss.
        layer_weights: N over L·d² of the shapes.

    Raises:
        InputError: the law gives no plausible widths at the depths of the plan.
    """
    depths = tuple(sorted({depth for depth, _, _ in shapes}))
    sizes = [math.log(layer_weights * depth * width**2) for depth, width, _ in shapes]
    a, b, law = _default_law(sizes, depths, layer_weights)
    plain = Truth(a, b, depths)
    asymptote, drop = plain.asymptote, plain.drop
    loss, of_loss = asymptote + drop, DEFAULT
    if entropy:
        loss, of_loss = (
            ABOVE_ENTROPY * entropy,
            f"{DEFAULT}: {ABOVE_ENTROPY:g} x the entropy of the data",
        )
    assumptions = {name: Assumption(getattr(plain, name), DEFAULT) for name in MEANINGS if name != "loss"}
    assumptions |= {"a": Assumption(a, law), "b": Assumption(b, law), "loss": Assumption(loss, of_loss)}
    if pilot:
        assumptions = {
            name: Assumption(i.value, f"not in the pilot; {i.source}") for name, i in assumptions.items()
        }
        assumptions |= _from_pilot(pilot, layer_weights)
    assumptions |= {name: Assumption(value, "given") for name, value in given.items()}
    values: dict[str, Any] = {name: item.value for name, item in assumptions.items()}
    a, b, loss = values["a"], values["b"], values.pop("loss")
    if wrong := [depth for depth in depths if not 0 <= a + b * depth <= MOST_LOG_WIDTH]:
        raise InputError(
            f"The assumed law a = {a:g}, b = {b:g} puts the crossing of depth {wrong[0]} at a width of "
            f"e^{a + b * wrong[0]:.3g}, which no model has; assume an a and b with a + b·L between 0 and "
            f"{MOST_LOG_WIDTH:g} for the depths {depths[0]} to {depths[-1]}."
        )
    # The loss is set where the plan measures, so that a law with far crossings gives no implausible losses. The
    # asymptote has the same share of the loss as by default.
    share = drop / (asymptote + drop)
    middle = statistics.fmean(sizes)
    above = values["exponent"] * (
        middle - math.log(Truth(a, b, depths, layer_weights=layer_weights).crossing(depths[0]))
    )
    values |= {"asymptote": (1 - share) * loss, "drop": share * loss * math.exp(above)}
    return Truth(depths=depths, layer_weights=layer_weights, **values), assumptions


def _from_pilot(fit: "Fit", layer_weights: float) -> dict[str, Assumption]:
    """Read what the fit of a pilot has of the assumptions; its law keeps the N of its crossings."""
    law, noise, curves = fit.law.counted(layer_weights), fit.noise, fit.curves
    rises = law.b is not None and law.b > 0
    source = "pilot: law" if law.status == "ok" else f"pilot: law, of status {law.status}"
    # Residuals of one seed hold no information on what a seed shares; a zero there is no finding.
    shared = noise.seed_correlation if noise.source == "seeds" else None
    # A straight line in ln N is the limit of an exponent of zero.
    exponent = None if curves.exponent is None else max(curves.exponent, 0.01)
    slopes = _slopes(fit, exponent or Truth.exponent)
    assumptions = {
        "a": (law.a if rises else None, source),
        "b": (law.b if rises else None, source),
        "noise": (noise.sd_relative or None, "pilot: noise"),
        "slope": (slopes[len(slopes) // 2] if slopes else None, f"pilot: middle of {len(slopes)} gaps"),
        "exponent": (exponent, "pilot: curves"),
        "shared": (None if shared is None else min(shared, 0.99), "pilot: correlation of its seeds"),
        "misfit_sd": (curves.misfit, "pilot: lack of fit"),
        # Two or three crossings cannot show it, and the scatter of their law is assumed.
        "scatter": (None if law.scatter_dof == 1 else law.scatter, "pilot: scatter of its law"),
        "loss": (noise.loss or None if noise.is_measured else None, "pilot: mean loss"),
    }
    return {name: Assumption(value, why) for name, (value, why) in assumptions.items() if value is not None}


def _slopes(fit: "Fit", exponent: float) -> list[float]:
    """Slopes of the gaps of neighbours at their crossings, ascending, from the gaps at both ends of their range.

    With the gap slope/α·(1 - exp(-α·(x - x*))) of `Truth`, the difference of the two ends gives the slope.
    """
    sentences = []
    for item in fit.crossings:
        if item.params is not None and item.range is not None and item.gap_ends is not None:
            low, high = (math.exp(-exponent * math.log(end / item.params)) for end in item.range)
            sentences.append((item.gap_ends[1] - item.gap_ends[0]) * exponent / (low - high))
    return sorted(slope for slope in sentences if slope > 0)


def _default_law(
    sizes: Sequence[float], depths: tuple[int, ...], layer_weights: float
) -> tuple[float, float, str]:
    """(a, b, source): a line through the published crossings if all are inside the planned sizes.

    Else through crossings that are spread evenly over the middle half of the sizes, which any grid can measure.
    """
    low, high = min(sizes), max(sizes)
    middles = np.array([between(*pair) for pair in itertools.pairwise(depths)])
    places = np.log([LEVINE2020.transition(depth).params for depth in depths[:-1]])
    source = f"{DEFAULT}: law of {LEVINE2020.source}"
    if not np.all((low < places) & (places < high)):
        shares = np.linspace(0.25, 0.75, len(middles)) if len(middles) > 1 else np.array([0.5])
        places = low + (high - low) * shares
        source = f"{DEFAULT}: crossings in the middle half of the sizes, which the grid can resolve"
    log_widths = (places - np.log(layer_weights * middles)) / 2
    rise = statistics.linear_regression(middles, log_widths).slope if len(middles) > 1 else 0.0
    b = float(rise if rise > 0 else LEVINE2020.b or 0.0)
    return float(np.mean(log_widths - b * middles)), b, source
