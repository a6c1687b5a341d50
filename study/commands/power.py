"""`interplay power SPEC`: the expected results of a study, with more seeds and more sizes too.

A plan has shapes and seeds. The law, the noise and the gaps between depths are assumed: given by the user, taken from
the fit of a pilot study, or by default. Each assumption is printed with its source.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from analysis.design.power import LEVEL, Change, PairPower, PowerEstimate, compare_changes, simulate_power
from analysis.design.simulated_study import Shape, Truth
from analysis.files import to_json
from analysis.intervals import between
from analysis.law.threshold_law import LEVINE2020
from analysis.numbers import digits, short
from analysis.tables import Column, Table
from study.errors import SpecError
from study.plan.plan import Plan
from study.results.recommend import read_fit
from study.results.tables import rich_table
from trainables.errors import did_you_mean

if TYPE_CHECKING:
    from analysis.fit.document import Fit

#: Simulated studies: shares then have a standard error of 6 points, and a preset takes at most half a minute.
STUDIES = 72
LEAST_STUDIES, MOST_STUDIES = 5, 10_000
#: The plan is simulated this many times more often than each of its changes.
FEWER = 3

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


@dataclass(frozen=True)
class Power:
    """The power of a plan: what was assumed, by the names of `MEANINGS`, the fit file of a pilot, and the results.

    `shapes` is the number of shapes, each (depth, width) once; `changes` has the plan as it is, and with more seeds or
    sizes; `notes` are caveats, in sentences.
    """

    assumptions: dict[str, Assumption]
    pilot: str | None
    shapes: int
    estimate: PowerEstimate
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The value of the key `power` in the plan's JSON."""
        document = to_json(self)
        estimate = document.pop("estimate")
        del estimate["b_widths"]
        return {**document, **estimate}


def plan_power(
    plan: Plan,
    assume: Sequence[str] = (),
    pilot: Path | None = None,
    studies: int | None = None,
    console: Console | None = None,
) -> Power:
    """Estimate the results of a plan.

    Args:
        plan: the study.
        assume: `NAME=VALUE`, see `MEANINGS`.
        pilot: a fit file for what `assume` does not give.
        studies: how many to simulate.
        console: for the status; None for nowhere.

    Raises:
        SpecError: the plan has one depth, or an assumption or the number of studies is wrong.
        InputError: the fit file cannot be read, or the assumed losses are not positive.
    """
    count = STUDIES if studies is None else studies
    if not LEAST_STUDIES <= count <= MOST_STUDIES:
        raise SpecError(
            f"--studies {count} is out of range; simulate between {LEAST_STUDIES} and {MOST_STUDIES} studies "
            f"(the default is {STUDIES})."
        )
    shapes = shapes_of_plan(plan)
    depths = sorted({depth for depth, _, _ in shapes})
    if len(depths) < 2:
        only = f"depth {depths[0]} only" if depths else "no shape"
        raise SpecError(
            f"`frontier.depths` of {plan.name!r} has {only}, and a crossing is between two depths. Give two or more "
            "depths, three for a law."
        )
    truth, assumptions = assumed(plan, shapes, parse_assumptions(assume), pilot)
    seeds = len({planned.cell.seed for planned in plan.cells})
    fewer = max(LEAST_STUDIES, count // FEWER)
    with (console or Console(quiet=True)).status("simulating studies"):
        estimate = simulate_power(truth, shapes, seeds, studies=count)
        changes = compare_changes(truth, shapes, estimate, studies=fewer)
    notes = tuple(_notes(plan, len(depths), assumptions))
    return Power(assumptions, None if pilot is None else str(pilot), len(shapes), estimate, changes, notes)


def shapes_of_plan(plan: Plan) -> list[Shape]:
    """Every (depth, width) of a plan once, with its budget, whatever its seeds and learning rates."""
    found = {(item.cell.shape.depth, item.cell.shape.width): item.budget for item in reversed(plan.cells)}
    return sorted((*shape, budget) for shape, budget in found.items())


def parse_assumptions(values: Sequence[str]) -> dict[str, float]:
    """Read `NAME=VALUE`.

    Raises:
        SpecError: another form, an unknown name, no number in its range, a name given twice, or a without b.
    """
    found: dict[str, float] = {}
    for text in values:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise SpecError(f"--assume {text!r} is not NAME=VALUE; write it as --assume noise=0.005.")
        if name not in MEANINGS:
            listed = "; ".join(f"{key} ({meaning})" for key, (meaning, _, _) in MEANINGS.items())
            meant = did_you_mean(name, MEANINGS) or "."
            raise SpecError(
                f"--assume {text!r}: there is no `{name}` to assume{meant} It can be one of: {listed}."
            )
        if name in found:
            raise SpecError(f"--assume gives `{name}` more than once; write each name once.")
        _, low, high = MEANINGS[name]
        with suppress(ValueError):
            found[name] = float(raw)
        if not low <= found.get(name, math.nan) <= high:
            raise SpecError(f"--assume {text!r}: `{name}` must be a number between {low:g} and {high:g}.")
    if len(alone := found.keys() & {"a", "b"}) == 1:
        raise SpecError(
            f"--assume gives `{alone.pop()}` alone; a law has both a and b. Give both, or neither."
        )
    return found


def assumed(
    plan: Plan, shapes: Sequence[Shape], given: dict[str, float], pilot: Path | None
) -> tuple[Truth, dict[str, Assumption]]:
    """Return the truth that the simulated studies assume, and each of its numbers with its source.

    Raises:
        SpecError: the law gives no plausible widths at the depths of the plan.
        InputError: the fit file cannot be read.
    """
    depths = tuple(sorted({depth for depth, _, _ in shapes}))
    a, b, law = _default_law(shapes, depths)
    plain = Truth(a, b, depths)
    asymptote, drop = plain.asymptote, plain.drop
    loss, of_loss = asymptote + drop, DEFAULT
    if plan.entropy:
        loss, of_loss = (
            ABOVE_ENTROPY * plan.entropy,
            f"{DEFAULT}: {ABOVE_ENTROPY:g} x the entropy of the data",
        )
    found = {name: Assumption(getattr(plain, name), DEFAULT) for name in MEANINGS if name != "loss"}
    found |= {"a": Assumption(a, law), "b": Assumption(b, law), "loss": Assumption(loss, of_loss)}
    if pilot:
        found = {name: Assumption(i.value, f"not in the pilot; {i.source}") for name, i in found.items()}
        found |= _from_pilot(read_fit(pilot))
    found |= {name: Assumption(value, "given") for name, value in given.items()}
    values: dict[str, Any] = {name: item.value for name, item in found.items()}
    a, b, loss = values["a"], values["b"], values.pop("loss")
    if wrong := [depth for depth in depths if not 0 <= a + b * depth <= MOST_LOG_WIDTH]:
        raise SpecError(
            f"The assumed law a = {a:g}, b = {b:g} puts the crossing of depth {wrong[0]} at a width of "
            f"e^{a + b * wrong[0]:.3g}, which no model has; assume an a and b with a + b·L between 0 and "
            f"{MOST_LOG_WIDTH:g} for the depths {depths[0]} to {depths[-1]}."
        )
    # The loss is set where the plan measures, so that a law with far crossings gives no implausible losses. The
    # asymptote has the same share of the loss as by default.
    share = drop / (asymptote + drop)
    middle = statistics.fmean(_log_sizes(shapes))
    above = values["exponent"] * (middle - math.log(Truth(a, b, depths).crossing(depths[0])))
    values |= {"asymptote": (1 - share) * loss, "drop": share * loss * math.exp(above)}
    return Truth(depths=depths, **values), found


def _log_sizes(shapes: Sequence[Shape]) -> list[float]:
    return [math.log(12 * depth * width**2) for depth, width, _ in shapes]


def _from_pilot(fit: "Fit") -> dict[str, Assumption]:
    """Read what the fit of a pilot has of the assumptions."""
    law, noise, curves = fit.law, fit.noise, fit.curves
    rises = law.b is not None and law.b > 0
    source = "pilot: law" if law.status == "ok" else f"pilot: law, of status {law.status}"
    # Residuals of one seed hold no information on what a seed shares; a zero there is no finding.
    shared = noise.get("seed_correlation") if noise.get("source") == "seeds" else None
    # A straight line in ln N is the limit of an exponent of zero.
    exponent = None if curves.get("exponent") is None else max(curves["exponent"], 0.01)
    slopes = _slopes(fit, exponent or Truth.exponent)
    found = {
        "a": (law.a if rises else None, source),
        "b": (law.b if rises else None, source),
        "noise": (noise.get("sd_relative") or None, "pilot: noise"),
        "slope": (slopes[len(slopes) // 2] if slopes else None, f"pilot: middle of {len(slopes)} gaps"),
        "exponent": (exponent, "pilot: curves"),
        "shared": (None if shared is None else min(shared, 0.99), "pilot: correlation of its seeds"),
        "misfit_sd": (curves.get("misfit"), "pilot: lack of fit"),
        # Two or three crossings cannot show it, and the scatter of their law is assumed.
        "scatter": (None if law.scatter_dof == 1 else law.scatter, "pilot: scatter of its law"),
        "loss": (noise.get("loss") or None if noise.get("known") else None, "pilot: mean loss"),
    }
    return {name: Assumption(value, why) for name, (value, why) in found.items() if value is not None}


def _slopes(fit: "Fit", exponent: float) -> list[float]:
    """Slopes of the gaps of neighbours at their crossings, ascending, from the gaps at both ends of their range.

    With the gap slope/α·(1 - exp(-α·(x - x*))) of `Truth`, the difference of the two ends gives the slope.
    """
    found = []
    for item in fit.crossings:
        if item.params is not None and item.range is not None and item.gap_ends is not None:
            low, high = (math.exp(-exponent * math.log(end / item.params)) for end in item.range)
            found.append((item.gap_ends[1] - item.gap_ends[0]) * exponent / (low - high))
    return sorted(slope for slope in found if slope > 0)


def _default_law(shapes: Sequence[Shape], depths: tuple[int, ...]) -> tuple[float, float, str]:
    """(a, b, source): a line through the published crossings if all are inside the planned sizes.

    Else through crossings that are spread evenly over the middle half of the sizes, which any grid can measure.
    """
    sizes = _log_sizes(shapes)
    low, high = min(sizes), max(sizes)
    middles = np.array([between(*pair) for pair in itertools.pairwise(depths)])
    places = np.log([LEVINE2020.transition(depth).params for depth in depths[:-1]])
    source = f"{DEFAULT}: law of {LEVINE2020.source}"
    if not np.all((low < places) & (places < high)):
        shares = np.linspace(0.25, 0.75, len(middles)) if len(middles) > 1 else np.array([0.5])
        places = low + (high - low) * shares
        source = f"{DEFAULT}: crossings in the middle half of the sizes, which the grid can resolve"
    log_widths = (places - np.log(12 * middles)) / 2
    rise = statistics.linear_regression(middles, log_widths).slope if len(middles) > 1 else 0.0
    b = float(rise if rise > 0 else LEVINE2020.b or 0.0)
    return float(np.mean(log_widths - b * middles)), b, source


def _notes(plan: Plan, depths: int, assumptions: dict[str, Assumption]) -> list[str]:
    notes = []
    if not plan.search.is_grid:
        notes.append(
            f"The search ({plan.search.sampler}) chooses its own cells; the simulation trains all those listed."
        )
    rates = len({planned.lr_factor for planned in plan.cells})
    if rates > 1:
        notes.append(
            f"Each shape has {rates} learning rates; it counts here once, at the best of them, without the noise that "
            "choosing the best adds."
        )
    if DEFAULT in assumptions["misfit_sd"].source:
        notes.append(
            "Shapes are assumed to lie on power laws. If they do not (--assume misfit_sd=NATS), more seeds help less "
            "than shown."
        )
    if depths == 2:
        notes.append("Two depths have one crossing, and a law needs two crossings: plan a third depth.")
    if depths == 3:
        notes.append("Two crossings give no interval of b and no projected depth: plan a fourth depth.")
    return notes


def power_view(power: Power) -> RenderableType:
    """Render the power of a plan for a terminal of 80 columns."""
    estimate, now, assumed = power.estimate, power.changes[0], power.assumptions
    fewer = max(LEAST_STUDIES, estimate.studies // FEWER)
    return Group(
        Text(
            f"power: {estimate.studies} simulated studies, {now.shapes} shapes, seeds: {now.seeds}",
            style="italic",
        ),
        _table(
            f"assumed (pilot: {power.pilot})" if power.pilot else "assumed",
            ("name", "value", "what", "source"),
            [(name, f"{item.value:.4g}", MEANINGS[name][0], item.source) for name, item in assumed.items()],
            left=("name", "what", "source"),
        ),
        Text(),
        _table(
            "crossings",
            ("pair", "true N", "width", "found", "left", "right", "unclear", "closed", "interval", "holds"),
            [_crossing_row(pair) for pair in estimate.crossings],
        ),
        Text(
            "Shares of the studies; left, right: the deeper model wins everywhere, nowhere. Interval: median high/low "
            f"of the closed ones in N, at {LEVEL:.0%}. Holds: share that contain the true N. The standard error of a "
            f"share is at most {50 / math.sqrt(estimate.studies):.0f} points (--studies).",
            style="dim",
        ),
        Text(),
        *(Text(line) for line in _law_lines(estimate, assumed["b"].value)),
        Text(),
        _table(
            "the interval of b with more seeds or sizes",
            ("change", "cost", "width of b", "over now", "closed"),
            [_change_row(change, now.width) for change in power.changes],
        ),
        Text(
            f"Medians over {fewer} studies each, with the same noise; an open interval counts as infinitely wide. "
            "Cost: the sum of N over all cells, for equal tokens.",
            style="dim",
        ),
        *(Text(note, style="yellow") for note in power.notes),
    )


def _table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ("pair", "change")
) -> RenderableType:
    return rich_table(Table(title, tuple(Column(name, right=name not in left) for name in names), rows))


def _crossing_row(pair: PairPower) -> tuple[str, ...]:
    unclear = pair.statuses["ambiguous"] + pair.statuses["insufficient"]
    sides = (pair.statuses[name] for name in ("bracketed", "left_censored", "right_censored"))
    ratio = "-" if pair.ratio is None else f"x{pair.ratio:.2f}"
    shares = (_share(value) for value in (*sides, unclear, pair.closed))
    name = f"{pair.shallow} → {pair.deep}"
    return name, short(pair.params), f"{pair.width:.0f}", *shares, ratio, _share(pair.coverage)


def _change_row(change: Change, now: float | None) -> tuple[str, ...]:
    width = "open" if change.width is None else digits(change.width)
    ratio = "-" if change.width is None or not now else f"{change.width / now:.2f}"
    return change.words, f"x{digits(change.cost)}", width, ratio, _share(change.closed)


def _law_lines(estimate: PowerEstimate, b: float) -> list[str]:
    share = estimate.statuses
    lines = [
        f"law: bounded in {_share(share['ok'])} of the studies, open on a side in {_share(share['open'])}, "
        f"none in {_share(share['insufficient'] + share['not_converged'])}."
    ]
    if estimate.b_width is not None:
        lines[0] += (
            f" Median width of the interval of b: {digits(estimate.b_width)} around {b:.3g} "
            f"({estimate.b_width / b:.0%} of it); it contains the true b in {_share(estimate.b_coverage)}."
        )
    if estimate.band is not None:
        low, high = ("no limit" if end is None else f"{end:.1f}" for end in estimate.band)
        lines.append(
            f"Projected to N = {short(estimate.ahead_params)}, ten times the largest size: depth "
            f"{estimate.ahead_depth:.1f}, median interval: {low} to {high}; {_share(estimate.stated)} of the studies "
            "state a depth, the others an interval only."
        )
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
