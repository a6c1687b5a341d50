"""`interplay plan SPEC --power`: the expected results of a study, and changes that narrow its intervals.

A plan has shapes and seeds. The law, the noise and the gaps between depths are assumed: given by the user, taken from
the fit of a pilot study, or by default. Each assumption is printed with its source.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from analysis.design.power import ChangeComparison, PowerEstimate, compare_changes, simulate_power
from analysis.design.simulated_study import Shape, Truth
from analysis.files import to_json
from analysis.intervals import between
from analysis.law.projection import LEVINE2020, n_transition
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
    "depth_shared": ("share by seed and depth", 0.0, 0.99),
    "misfit_sd": ("sd of shapes off curves, nats", 0.0, 100.0),
    "misfit_length": ("of the misfit, e-folds of N", 0.0, 100.0),
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
    """The power of a plan.

    Attributes:
        assumptions: everything that was assumed, in the order of `MEANINGS`.
        pilot: the fit file that some of them are from.
        shapes: number of shapes of the plan, each (depth, width) once.
        estimate: for the plan as it is.
        halve: changes of the plan.
        notes: caveats, in sentences.
    """

    assumptions: dict[str, Assumption]
    pilot: str | None
    shapes: int
    estimate: PowerEstimate
    halve: ChangeComparison
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
    found = {
        (planned.cell.shape.depth, planned.cell.shape.width): planned.budget
        for planned in reversed(plan.cells)
    }
    return sorted((depth, width, budget) for (depth, width), budget in found.items())


def parse_assumptions(values: Sequence[str]) -> dict[str, float]:
    """Read `NAME=VALUE`.

    Raises:
        SpecError: another form, an unknown name, no number, a number out of range, or a name given twice.
    """
    found: dict[str, float] = {}
    for text in values:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise SpecError(f"--assume {text!r} is not NAME=VALUE; write it as --assume noise=0.005.")
        if name not in MEANINGS:
            listed = "; ".join(f"{key} ({meaning})" for key, (meaning, _, _) in MEANINGS.items())
            raise SpecError(
                f"--assume {text!r}: there is no `{name}` to assume{did_you_mean(name, MEANINGS) or '.'} It can be one "
                f"of: {listed}."
            )
        if name in found:
            raise SpecError(f"--assume gives `{name}` more than once; write each name once.")
        _, low, high = MEANINGS[name]
        try:
            value = float(raw)
        except ValueError:
            raise SpecError(
                f"--assume {text!r}: {raw!r} is no number; write it as --assume {name}=0.3."
            ) from None
        if not low <= value <= high:
            raise SpecError(f"--assume {text!r}: `{name}` must lie between {low:g} and {high:g}.")
        found[name] = value
    if len(alone := found.keys() & {"a", "b"}) == 1:
        raise SpecError(
            f"--assume gives `{alone.pop()}` alone, and the crossings of a law depend on a and b together. Give both, "
            "or neither."
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
    from_pilot, no_law = ({}, "") if pilot is None else _from_pilot(read_fit(pilot))
    a, b, why = _default_law(shapes, depths)
    plain = Truth(a, b, depths)
    missing = f"{DEFAULT}; not in the pilot" if pilot else DEFAULT
    found = {name: Assumption(getattr(plain, name), missing) for name in MEANINGS if name != "loss"}
    found["a"], found["b"] = Assumption(a, no_law + why), Assumption(b, no_law + why)
    found["loss"] = Assumption(plain.asymptote + plain.drop, missing)
    if plan.entropy:
        source = f"{DEFAULT}: {ABOVE_ENTROPY:g} x the entropy of the data"
        found["loss"] = Assumption(ABOVE_ENTROPY * plan.entropy, source)
    found |= from_pilot | {name: Assumption(value, "given") for name, value in given.items()}
    return _truth({name: item.value for name, item in found.items()}, shapes, depths), found


def _truth(value: dict[str, float], shapes: Sequence[Shape], depths: tuple[int, ...]) -> Truth:
    a, b = value["a"], value["b"]
    for depth in depths:
        if not 0 <= a + b * depth <= MOST_LOG_WIDTH:
            raise SpecError(
                f"The assumed law a = {a:g}, b = {b:g} puts the crossing of depth {depth} at a width of "
                f"e^{a + b * depth:.3g}, which no model has; assume an a and b with a + b·L between 0 and "
                f"{MOST_LOG_WIDTH:g} for the depths {', '.join(map(str, depths))}."
            )
    if value["shared"] + value["depth_shared"] >= 1:
        raise SpecError(
            f"`shared` = {value['shared']:g} and `depth_shared` = {value['depth_shared']:g} are shares of the same "
            "noise; assume a sum below 1."
        )
    plain = Truth(a, b, depths)
    # The loss is set where the plan measures, so that a law with far crossings gives no implausible losses. The
    # asymptote has the same share of the loss as by default.
    share = plain.drop / (plain.asymptote + plain.drop)
    middle = sum(math.log(12 * depth * width**2) for depth, width, _ in shapes) / len(shapes)
    above = value["exponent"] * (middle - math.log(plain.crossing(depths[0])))
    numbers: dict[str, Any] = {name: number for name, number in value.items() if name != "loss"}
    return Truth(
        depths=depths,
        asymptote=(1 - share) * value["loss"],
        drop=share * value["loss"] * math.exp(above),
        **numbers,
    )


def _from_pilot(fit: "Fit") -> tuple[dict[str, Assumption], str]:
    """Read assumptions from a pilot's fit; and, where it has no law to assume, the reason."""
    found: dict[str, Assumption] = {}
    no_law = ""
    law, noise, curves = fit.law, fit.noise, fit.curves
    if law.a is not None and law.b is not None and law.b > 0:
        source = "pilot: law" if law.status == "ok" else f"pilot: law, of status {law.status}"
        found |= {"a": Assumption(law.a, source), "b": Assumption(law.b, source)}
    else:
        reason = law.reason or "its slope is not positive"
        no_law = f"the pilot has no law ({reason.rstrip('.')}), so "
    if noise.get("sd_relative"):
        found["noise"] = Assumption(noise["sd_relative"], "pilot: noise")
    # Residuals of one seed hold no information on what a seed shares; a zero there is no finding.
    if noise.get("source") == "seeds" and noise.get("seed_correlation") is not None:
        shared = min(noise["seed_correlation"], 0.99)
        found["shared"] = Assumption(shared, "pilot: correlation of its seeds")
        # Files of before 2026-11 have no such share.
        own = min(noise.get("depth_correlation") or 0.0, 0.99 - shared)
        found["depth_shared"] = Assumption(own, "pilot: correlation within a depth")
    if noise.get("known") and noise.get("loss"):
        found["loss"] = Assumption(noise["loss"], "pilot: mean loss")
    exponent = Truth.exponent
    if curves.get("exponent") is not None:
        # A straight line in ln N is the limit of an exponent of zero.
        exponent = max(curves["exponent"], 0.01)
        found["exponent"] = Assumption(exponent, "pilot: curves")
    if curves.get("lack_of_fit") is not None:
        found["misfit_sd"] = Assumption(curves["lack_of_fit"], "pilot: lack of fit")
    if law.scatter is not None and law.scatter_dof != 1:
        found["scatter"] = Assumption(law.scatter, "pilot: scatter of its law")
    if slopes := _slopes(fit, exponent):
        found["slope"] = Assumption(slopes[len(slopes) // 2], f"pilot: middle of {len(slopes)} gaps")
    return found, no_law


def _slopes(fit: "Fit", exponent: float) -> list[float]:
    """Slopes of the gaps of neighbours at their crossings, ascending, from the gaps at both ends of their range.

    With the gap slope/α·(1 - exp(-α·(x - x*))) of `Truth`, the difference of the two ends gives the slope.
    """
    found = []
    for item in fit.crossings:
        if item.params is None or item.range is None or item.gap_ends is None:
            continue
        low, high = (math.log(end / item.params) for end in item.range)
        reach = (math.exp(-exponent * low) - math.exp(-exponent * high)) / exponent
        found.append((item.gap_ends[1] - item.gap_ends[0]) / reach)
    return sorted(slope for slope in found if slope > 0)


def _default_law(shapes: Sequence[Shape], depths: tuple[int, ...]) -> tuple[float, float, str]:
    """(a, b, source): the published law if all its crossings are inside the planned sizes, else one that fits in."""
    sizes = {d: [math.log(12 * d * width**2) for depth, width, _ in shapes if depth == d] for d in depths}
    # Shallow depth of each pair of neighbours -> smallest and largest ln N that both have.
    ranges = {
        shallow: (max(min(sizes[shallow]), min(sizes[deep])), min(max(sizes[shallow]), max(sizes[deep])))
        for shallow, deep in itertools.pairwise(depths)
    }
    ranges = {depth: (low, high) for depth, (low, high) in ranges.items() if low < high}
    middles = {shallow: between(shallow, deep) for shallow, deep in itertools.pairwise(depths)}
    source = f"{DEFAULT}: law of {LEVINE2020.source}"
    published = {depth: math.log(n_transition(LEVINE2020, depth).params) for depth in middles}
    if not ranges:
        return *_line_through(published, middles), f"{source}; no pair has a common range"
    if all(low < published[depth] < high for depth, (low, high) in ranges.items()):
        return *_line_through(published, middles), source
    # Crossings evenly over the middle half of the range, from the shallowest pair to the deepest, and a line through.
    shares = np.linspace(0.25, 0.75, len(ranges)).tolist() if len(ranges) > 1 else [0.5]
    places = {
        depth: low + (high - low) * share
        for share, (depth, (low, high)) in zip(shares, ranges.items(), strict=True)
    }
    why = "crossings spread over the middle of the planned sizes; assumed, to show what the grid can resolve"
    return *_line_through(places, middles), f"{DEFAULT}: {why}"


def _line_through(places: dict[int, float], middles: dict[int, float]) -> tuple[float, float]:
    """(a, b) of a rising line through crossings: shallow depth -> ln N, and -> the depth between the two."""
    depths = [middles[depth] for depth in places]
    log_widths = [(x - math.log(12 * middles[depth])) / 2 for depth, x in places.items()]
    rise = statistics.linear_regression(depths, log_widths).slope if len(depths) > 1 else 0.0
    # Ranges that fall with the depth would give a falling law; the published slope is a small one that rises.
    b = rise if rise > 0 else LEVINE2020.b
    return statistics.fmean(log_widths) - b * statistics.fmean(depths), b


def _notes(plan: Plan, depths: int, assumptions: dict[str, Assumption]) -> list[str]:
    notes = plan.search.power_notes()
    rates = len({planned.lr_factor for planned in plan.cells})
    if rates > 1:
        notes.append(
            f"Each shape has {rates} learning rates; it counts here once, at the best of them, without the noise that "
            "choosing the best adds."
        )
    if assumptions["misfit_sd"].source.startswith(DEFAULT):
        notes.append(
            "Shapes are assumed to lie on power laws. If they do not (--assume misfit_sd=NATS, and "
            "misfit_length=E-FOLDS where neighbouring sizes deviate alike), more seeds help less than shown."
        )
    if depths == 2:
        notes.append("Two depths have one crossing, and a law needs two crossings: plan a third depth.")
    if depths == 3:
        notes.append(
            "Three depths have two crossings, which give no interval of b and no projected depth: plan a fourth depth."
        )
    return notes


def power_view(power: Power) -> RenderableType:
    """Render the power of a plan for a terminal of 80 columns."""
    estimate = power.estimate
    seeds = "1 seed" if estimate.seeds == 1 else f"{estimate.seeds} seeds"
    heading = f"power: {estimate.studies} simulated studies of these {power.shapes} shapes with {seeds} each"
    legend = (
        "Shares of the studies; left, right: the deeper model wins everywhere, nowhere. Interval: median high/low of "
        f"the closed ones in N, at {estimate.level:.0%}. Holds: share that contain the true N. The standard error of a "
        f"share is at most {100 * estimate.share_error:.0f} points (--studies)."
    )
    return Group(
        Text(heading, style="italic"),
        _assumption_table(power),
        Text(),
        _crossing_table(estimate),
        Text(legend, style="dim"),
        Text(),
        *(Text(line) for line in _law_lines(estimate)),
        Text(),
        _change_table(power.halve),
        *(Text(line, style="dim") for line in _change_lines(power.halve)),
        *(Text(note, style="yellow") for note in power.notes),
    )


def _columns(*names: str, left: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(name, right=name not in left) for name in names)


def _assumption_table(power: Power) -> RenderableType:
    columns = _columns("name", "value", "what", "source", left=("name", "what", "source"))
    rows = []
    for name, item in power.assumptions.items():
        as_a = name == "b" and item.source == power.assumptions["a"].source
        rows.append((name, f"{item.value:.4g}", MEANINGS[name][0], "as a" if as_a else item.source))
    return rich_table(Table(f"assumed (pilot: {power.pilot})" if power.pilot else "assumed", columns, rows))


def _crossing_table(estimate: PowerEstimate) -> RenderableType:
    names = ("pair", "true N", "width", "found", "left", "right", "unclear", "closed", "interval", "holds")
    rows = []
    for pair in estimate.crossings:
        share = pair.statuses
        rows.append(
            (
                f"{pair.shallow} → {pair.deep}",
                short(pair.params),
                f"{pair.width:.0f}",
                *(_share(share[name]) for name in ("bracketed", "left_censored", "right_censored")),
                _share(share["ambiguous"] + share["insufficient"]),
                _share(pair.closed),
                "-" if pair.ratio is None else f"x{pair.ratio:.2f}",
                _share(pair.coverage),
            )
        )
    return rich_table(Table("crossings", _columns(*names, left=("pair",)), rows))


def _law_lines(estimate: PowerEstimate) -> list[str]:
    law = estimate.law
    share = law.statuses
    lines = [
        f"law: bounded in {_share(share['ok'])} of the studies, open on a side in {_share(share['open'])}, "
        f"none in {_share(share['insufficient'] + share['not_converged'])}."
    ]
    if law.b_width is not None:
        lines[0] += (
            f" Median width of the interval of b: {digits(law.b_width)} around {law.b:.3g} "
            f"({law.b_width / law.b:.0%} of it); it contains the true b in {_share(law.coverage)}."
        )
    if law.band is not None:
        low, high = ("no limit" if end is None else f"{end:.1f}" for end in law.band)
        interval = "no limits" if law.band == (None, None) else f"{low} to {high}"
        lines.append(
            f"Projected to N = {short(law.ahead_params)}, ten times the largest size: depth {law.ahead_depth:.1f}, "
            f"median interval: {interval}; {_share(law.stated)} of the studies state a depth, the others "
            "an interval only."
        )
    return lines


def _change_table(found: ChangeComparison) -> RenderableType:
    bounded = found.width is not None
    title = "what would halve the interval of b" if bounded else "what would bound b"
    columns = _columns("change", "cost", "width of b", "over now", "closed", "", left=("change", ""))
    rows = [("the plan", "x1", _width(found.width), "1" if bounded else "-", "", "")]
    for change in found.changes:
        ratio = "-" if change.ratio is None else f"{change.ratio:.2f}"
        mark = "cheapest" if change.cheapest else "yes" if change.halves else ""
        width = _width(change.width)
        rows.append((change.words, f"x{digits(change.cost)}", width, ratio, _share(change.closed), mark))
    return rich_table(Table(title, columns, rows))


def _change_lines(found: ChangeComparison) -> list[str]:
    lines = [
        f"Medians over {found.studies} studies each, with the same noise; an open interval counts as infinitely wide. "
        "Cost: the sum of N over all cells, for equal tokens."
    ]
    if not any(change.halves for change in found.changes):
        if all(change.width is None for change in found.changes):
            lines.append("None of these bounds b in half of the studies.")
        else:
            lines.append(
                "None of these halves it; the width falls with the square root of the number of seeds."
            )
    return lines


def _width(value: float | None) -> str:
    return "open" if value is None else digits(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
