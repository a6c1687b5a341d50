"""Power of a plan: what the study will find if the world is as assumed, and what would halve its uncertainty.

A plan knows shapes and seeds. It does not know the law, the noise or how steeply depths part: those are assumed, one by
one, from what the user gives, from the fit of a pilot study, or by default; each is printed with where it came from.
"""

import difflib
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from analysis.design.power import CHANGES, Halving, PairPower, PowerEstimate, Shape, halve, simulate_power
from analysis.design.simulated_study import Truth
from analysis.law.projection import LEVINE2020
from analysis.numbers import digits, short
from study.errors import SpecError
from study.plan.plan import Plan
from study.results.recommend import read_fit

if TYPE_CHECKING:
    from analysis.fit.document import Fit

#: Simulated studies: shares are then known to ±6 points, and the presets are answered within half a minute.
STUDIES = 72
LEAST_STUDIES, MOST_STUDIES = 5, 10_000
#: Each change of the plan is simulated this many times less often than the plan itself: there are six of them.
FEWER = 3
#: Seconds of work after which it is worth a line that there is some.
PATIENCE = 2.0

#: What can be assumed -> (what it is, smallest, largest).
MEANINGS = {
    "a": ("law ln d = a + b·L", -30.0, 30.0),
    "b": ("law ln d = a + b·L", 1e-6, 10.0),
    "noise": ("sd of a seed, over the loss", 1e-9, 0.5),
    "slope": ("of gaps, nats an e-fold", 1e-9, 100.0),
    "exponent": ("α of E + A·N^-α", 1e-3, 3.0),
    "shared": ("share of noise by the seed", 0.0, 0.99),
    "lack": ("sd off the curves, nats", 0.0, 100.0),
    "loss": ("nats at the middle size", 1e-9, 1e6),
}
DEFAULT = "default"
DEFAULT_NOISE, DEFAULT_SLOPE = 0.005, 0.04
#: Loss over the entropy of the data in the middle of the pilot's grid, 0.90 of 0.7365.
ABOVE_FLOOR = 1.2
#: Largest ln d that a law may put at a depth of the plan; e^50 is no width.
MOST_LOG_WIDTH = 50.0


@dataclass(frozen=True)
class Assumption:
    """One number the world is made of, and where it came from, in words."""

    name: str
    value: float
    source: str


@dataclass(frozen=True)
class Power:
    """The power of a plan.

    Attributes:
        assumptions: everything that went in.
        pilot: the fit file some of them are from.
        shapes: of the plan, each (depth, width) once.
        estimate_of_power, halving: see `analysis.design.power`.
        notes: what a reader must know, in sentences.
    """

    assumptions: tuple[Assumption, ...]
    pilot: str | None
    shapes: int
    estimate_of_power: PowerEstimate
    halving: Halving
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The value of the key `power` in the plan's JSON."""
        return {
            "assumptions": {
                item.name: {"value": item.value, "source": item.source} for item in self.assumptions
            },
            "pilot": self.pilot,
            "shapes": self.shapes,
            **self.estimate_of_power.to_json(),
            "halve": self.halving.to_json(),
            "notes": list(self.notes),
        }


class Waiting:
    """Counts simulated studies, and after two seconds says so on a terminal; elsewhere it says nothing."""

    def __init__(self, console: Console, total: int) -> None:
        """Show progress towards `total` on `console`."""
        self.console, self.total, self.done = console, total, 0
        self._began = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self) -> None:
        """One more study is simulated."""
        self.done += 1
        gone = time.monotonic() - self._began
        if not self.console.is_terminal or gone < PATIENCE:
            return
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        left = gone / self.done * max(0, self.total - self.done)
        self._status.update(f"simulated study {self.done} of {self.total}, about {left:.0f} s left")


def plan_power(
    plan: Plan,
    assume: Sequence[str] = (),
    pilot: Path | None = None,
    studies: int | None = None,
    console: Console | None = None,
) -> Power:
    """Foresee what a plan will find.

    Args:
        plan: the study.
        assume: `NAME=VALUE`, see `MEANINGS`.
        pilot: a fit file to take from what `assume` does not say.
        studies: how many to simulate.
        console: where progress is shown; None for nowhere.

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
            f"`frontier.depths` of {plan.name!r} has {only}, and a crossing is between two depths: there is nothing to "
            "foresee. Give two or more depths, three for a law."
        )
    truth, assumptions = assumed(plan, shapes, parse_assumptions(assume), pilot)
    seeds = len({planned.cell.seed for planned in plan.cells})
    fewer = max(LEAST_STUDIES, count // FEWER)
    total = count + len(CHANGES) * fewer
    with Waiting(console or Console(quiet=True), total) as waiting:
        estimate_of_power = simulate_power(truth, shapes, seeds, studies=count, tell=waiting.tell)
        halving = halve(truth, shapes, estimate_of_power, studies=fewer, tell=waiting.tell)
    return Power(
        assumptions=assumptions,
        pilot=None if pilot is None else str(pilot),
        shapes=len(shapes),
        estimate_of_power=estimate_of_power,
        halving=halving,
        notes=tuple(_notes(plan, truth, assumptions)),
    )


def shapes_of_plan(plan: Plan) -> list[Shape]:
    """Every (depth, width) of a plan once, with its budget: seeds and learning rates are no shapes of their own."""
    found = {
        (planned.cell.shape.depth, planned.cell.shape.width): planned.budget
        for planned in reversed(plan.cells)
    }
    return sorted((depth, width, budget) for (depth, width), budget in found.items())


def parse_assumptions(values: Sequence[str]) -> dict[str, float]:
    """Read `NAME=VALUE`.

    Raises:
        SpecError: no such form, name or number, a number out of range, or a name given twice.
    """
    found: dict[str, float] = {}
    for text in values:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise SpecError(f"--assume {text!r} is not NAME=VALUE; write it as --assume noise=0.005.")
        if name not in MEANINGS:
            near = difflib.get_close_matches(name, MEANINGS, n=1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            listed = "; ".join(f"{key} ({meaning})" for key, (meaning, _, _) in MEANINGS.items())
            raise SpecError(
                f"--assume {text!r}: there is no `{name}` to assume; {hint}It can be one of: {listed}."
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
    if len({"a", "b"} & set(found)) == 1:
        given = "a" if "a" in found else "b"
        raise SpecError(
            f"--assume gives `{given}` alone, and a law is both: where its crossings fall depends on a and b together. "
            "Give both, or neither."
        )
    return found


def assumed(
    plan: Plan, shapes: Sequence[Shape], given: dict[str, float], pilot: Path | None
) -> tuple[Truth, tuple[Assumption, ...]]:
    """The world a plan is tried in, and every number of it with its source.

    Raises:
        SpecError: the law leaves no sane widths at the depths of the plan.
        InputError: the fit file cannot be read.
    """
    depths = tuple(sorted({depth for depth, _, _ in shapes}))
    values: dict[str, Assumption] = {}

    def take(name: str, value: float, source: str) -> None:
        if name not in values:
            values[name] = Assumption(name, float(value), source)

    for name, value in given.items():
        take(name, value, "given")
    learnt, lacking = ({}, "") if pilot is None else _from_pilot(read_fit(pilot))
    for name, (value, source) in learnt.items():
        take(name, value, source)
    a, b, why = _default_law(shapes, depths)
    take("a", a, lacking + why)
    take("b", b, lacking + why)
    missing = f"{DEFAULT}; the pilot does not say" if pilot else DEFAULT
    plain = Truth(0.0, 0.0, depths)
    for name, value in (
        ("noise", DEFAULT_NOISE),
        ("slope", DEFAULT_SLOPE),
        ("exponent", plain.exponent),
        ("shared", plain.shared),
        ("lack", plain.lack),
    ):
        take(name, value, missing)
    if not plan.entropy:
        take("loss", plain.asymptote + plain.drop, missing)
    else:
        take("loss", ABOVE_FLOOR * plan.entropy, f"{DEFAULT}: {ABOVE_FLOOR:g} x the entropy of the data")
    chosen = tuple(values[name] for name in MEANINGS)
    return _truth({item.name: item.value for item in chosen}, shapes, depths), chosen


def _truth(value: dict[str, float], shapes: Sequence[Shape], depths: tuple[int, ...]) -> Truth:
    a, b = value["a"], value["b"]
    for depth in depths:
        if not 0 <= a + b * depth <= MOST_LOG_WIDTH:
            raise SpecError(
                f"The assumed law a = {a:g}, b = {b:g} puts the crossing of depth {depth} at a width of "
                f"e^{a + b * depth:.3g}, which no model has; assume an a and b with a + b·L between 0 and "
                f"{MOST_LOG_WIDTH:g} for the depths {', '.join(map(str, depths))}."
            )
    plain = Truth(a, b, depths)
    # The same share of the loss as in the default world, wherever its crossings are: the loss is anchored where the
    # plan measures, so that a law far from there does not make losses that no model has.
    share = plain.drop / (plain.asymptote + plain.drop)
    middle = sum(math.log(12 * depth * width**2) for depth, width, _ in shapes) / len(shapes)
    above = value["exponent"] * (middle - math.log(plain.crossing(depths[0])))
    return Truth(
        a=a,
        b=b,
        depths=depths,
        asymptote=(1 - share) * value["loss"],
        drop=share * value["loss"] * math.exp(above),
        exponent=value["exponent"],
        slope=value["slope"],
        noise=value["noise"],
        shared=value["shared"],
        lack=value["lack"],
    )


def _from_pilot(fit: "Fit") -> tuple[dict[str, tuple[float, str]], str]:
    """What a pilot says of the world, name -> (value, source); and, where it has no law to assume, why."""
    found: dict[str, tuple[float, str]] = {}
    lacking = ""
    law = fit.law
    if law.a is not None and law.b is not None and law.b > 0:
        source = "pilot: law" if law.status == "ok" else f"pilot: law, of status {law.status}"
        found["a"] = (law.a, source)
        found["b"] = (law.b, source)
    else:
        reason = law.reason or "its slope is not positive"
        lacking = f"the pilot has no law ({reason.rstrip('.')}), so "
    noise = fit.noise
    if noise.get("sd_relative"):
        found["noise"] = (noise["sd_relative"], "pilot: noise")
    # From residuals of one seed nothing is known of what a seed shares; the zero there is no finding.
    if noise.get("source") == "seeds" and noise.get("seed_correlation") is not None:
        found["shared"] = (min(noise["seed_correlation"], 0.99), "pilot: correlation of its seeds")
    if noise.get("known") and noise.get("loss"):
        found["loss"] = (noise["loss"], "pilot: mean loss")
    exponents = sorted(fit.curves.get("exponents", {}).values())
    if exponents:
        middle = exponents[len(exponents) // 2]
        # A straight line in ln N is the limit of an exponent of zero.
        found["exponent"] = (max(middle, 0.01), "pilot: curves")
    if fit.curves.get("lack_of_fit") is not None:
        found["lack"] = (fit.curves["lack_of_fit"], "pilot: lack of fit")
    slopes = _slopes(fit, found["exponent"][0] if exponents else Truth(0.0, 0.0, ()).exponent)
    if slopes:
        found["slope"] = (slopes[len(slopes) // 2], f"pilot: middle of {len(slopes)} gaps")
    return found, lacking


def _slopes(fit: "Fit", exponent: float) -> list[float]:
    """Slopes of the gaps of neighbours at their crossings, ascending, from the gaps at both ends of their range.

    With the gap slope/α·(1 - exp(-α·(x - x*))) of `Truth`, the difference of the two ends gives the slope.
    """
    found = []
    for item in fit.crossings:
        if not item.adjacent or item.params is None or item.range is None:
            continue
        if item.gap_small is None or item.gap_large is None:
            continue
        low, high = (math.log(end / item.params) for end in item.range)
        reach = (math.exp(-exponent * low) - math.exp(-exponent * high)) / exponent
        slope = (item.gap_large - item.gap_small) / reach
        if slope > 0:
            found.append(slope)
    return sorted(found)


def _default_law(shapes: Sequence[Shape], depths: tuple[int, ...]) -> tuple[float, float, str]:
    """(a, b, source): the published law where the plan could measure it, else one that the plan can."""
    ranges = _ranges(shapes, depths)
    published = Truth(LEVINE2020.a, LEVINE2020.b, depths)
    if ranges and all(
        low < math.log(published.crossing(depth)) < high for depth, (low, high) in ranges.items()
    ):
        return LEVINE2020.a, LEVINE2020.b, f"{DEFAULT}: law of {LEVINE2020.source}"
    placed = {
        # Evenly over the middle half of the range, from the shallowest pair to the deepest.
        depth: low + (high - low) * (0.25 + 0.5 * (index / (len(ranges) - 1)) if len(ranges) > 1 else 0.5)
        for index, (depth, (low, high)) in enumerate(ranges.items())
    }
    if not placed:
        return (
            LEVINE2020.a,
            LEVINE2020.b,
            f"{DEFAULT}: law of {LEVINE2020.source}; no pair has a common range",
        )
    log_widths = {depth: (x - math.log(12 * depth)) / 2 for depth, x in placed.items()}
    mean_depth = sum(log_widths) / len(log_widths)
    mean_width = sum(log_widths.values()) / len(log_widths)
    spread = sum((depth - mean_depth) ** 2 for depth in log_widths)
    b = LEVINE2020.b
    if spread:
        b = sum((depth - mean_depth) * (width - mean_width) for depth, width in log_widths.items()) / spread
    # Ranges that fall with the depth would want a law that falls; the published slope is the mildest that rises.
    b = b if b > 0 else LEVINE2020.b
    return (
        mean_width - b * mean_depth,
        b,
        f"{DEFAULT}: crossings spread over the middle of the planned sizes; assumed, to show what the grid can resolve",
    )


def _ranges(shapes: Sequence[Shape], depths: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """Shallow depth of each pair of neighbours -> smallest and largest ln N that both have, where there are such."""
    sizes = {d: [math.log(12 * d * width**2) for depth, width, _ in shapes if depth == d] for d in depths}
    found = {
        shallow: (max(min(sizes[shallow]), min(sizes[deep])), min(max(sizes[shallow]), max(sizes[deep])))
        for shallow, deep in itertools.pairwise(depths)
    }
    return {depth: (low, high) for depth, (low, high) in found.items() if low < high}


def _notes(plan: Plan, truth: Truth, assumptions: Sequence[Assumption]) -> list[str]:
    notes = []
    if plan.candidates is not None:
        notes.append(
            f"The search ({plan.sampler}) trains only some of the cells listed; this is for all of them, so it "
            "promises too much."
        )
    if plan.sampler == "crossing":
        notes.append(
            "The search (crossing) chooses its own cells and ends where its limits say; this is for a grid of the "
            "shapes and seeds listed."
        )
    rates = len({planned.lr_factor for planned in plan.cells})
    if rates > 1:
        notes.append(
            f"Each shape has {rates} learning rates; it counts here once, at the best of them, and what choosing the "
            "best adds to the noise is left out."
        )
    if any(item.name == "lack" and item.source.startswith(DEFAULT) for item in assumptions):
        notes.append(
            "Shapes are taken to lie on smooth curves; if they stray (--assume lack=NATS), more seeds help less than "
            "shown."
        )
    if len(truth.depths) == 2:
        notes.append("Two depths have one crossing, and a law needs two crossings.")
    return notes


def power_view(power: Power) -> RenderableType:
    """Return the power of a plan for a terminal of 80 columns."""
    estimate_of_power = power.estimate_of_power
    seeds = "1 seed" if estimate_of_power.seeds == 1 else f"{estimate_of_power.seeds} seeds"
    parts: list[RenderableType] = [
        Text(
            f"power: {estimate_of_power.studies} simulated studies of these {power.shapes} shapes with {seeds} each",
            style="italic",
        ),
        _assumption_table(power),
        Text(),
        _crossing_table(estimate_of_power),
        Text(
            "Shares of the studies; left, right: deeper wins everywhere, nowhere. Interval: median high/low of the "
            f"closed ones in N, at {estimate_of_power.level:.0%}. Holds: how often it has the true N. ± is one standard error "
            f"from the number of studies; of a share at most {100 * estimate_of_power.share_error:.0f} points (--studies).",
            style="dim",
        ),
        Text(),
        *(Text(line) for line in _law_lines(estimate_of_power)),
        Text(),
        *_halving_parts(power.halving),
    ]
    return Group(*parts, *(Text(note, style="yellow") for note in power.notes))


def _plain_table(title: str, columns: Sequence[str], left: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return table


def _assumption_table(power: Power) -> Table:
    title = f"assumed (pilot: {power.pilot})" if power.pilot else "assumed"
    table = _plain_table(title, ["name", "value", "what", "source"], ["name", "what", "source"])
    table.show_header = False
    before = None
    for item in power.assumptions:
        source = "as a" if item.name == "b" and item.source == before else item.source
        table.add_row(item.name, f"{item.value:.4g}", MEANINGS[item.name][0], source)
        before = item.source
    return table


def _crossing_table(estimate_of_power: PowerEstimate) -> Table:
    names = ["pair", "true N", "width", "found", "left", "right", "unclear", "closed", "interval", "holds"]
    table = _plain_table("crossings", names, ["pair"])
    table.padding = (0, 1, 0, 0)
    for pair in estimate_of_power.crossings:
        share = pair.statuses
        unclear = share["ambiguous"] + share["insufficient"]
        table.add_row(
            f"{pair.shallow} → {pair.deep}",
            short(pair.params),
            f"{pair.width:.0f}",
            *(_share(share[name]) for name in ("bracketed", "left_censored", "right_censored")),
            _share(unclear),
            _share(pair.closed),
            _interval(pair),
            _share(pair.coverage),
        )
    return table


def _interval(pair: PairPower) -> str:
    if pair.ratio is None:
        return "-"
    return f"x{pair.ratio:.2f}" + ("" if pair.ratio_error is None else f" ±{pair.ratio_error:.2f}")


def _law_lines(estimate_of_power: PowerEstimate) -> list[str]:
    law = estimate_of_power.law
    share = law.statuses
    lines = [
        f"law: bounded in {_share(share['ok'])} of the studies, open on a side in {_share(share['open'])}, "
        f"none in {_share(share['insufficient'] + share['not_converged'])}."
    ]
    if law.b_width is not None:
        error = f" ±{digits(law.b_width_error)}" if law.b_width_error else ""
        of_a = "" if law.a_width is None else f", of a {digits(law.a_width)} around {law.a:.3g}"
        lines[0] += (
            f" Median width of the interval of b: {digits(law.b_width)}{error} around {law.b:.3g} "
            f"({law.b_width / law.b:.0%} of it){of_a}; it holds the true b in {_share(law.coverage)}."
        )
    if law.band is not None:
        low, high = ("no limit" if end is None else f"{end:.1f}" for end in law.band)
        band = "no limits" if law.band == (None, None) else f"{low} to {high}"
        lines.append(
            f"Projected to N = {short(law.ahead_params)}, ten times the largest size: depth {law.ahead_depth:.1f}, "
            f"median band: {band}."
        )
    return lines


def _halving_parts(halving: Halving) -> list[RenderableType]:
    bounded = halving.width is not None
    title = "what would halve the interval of b" if bounded else "what would bound b"
    table = _plain_table(title, ["change", "cost", "width of b", "over now", "closed", ""], ["change", ""])
    table.padding = (0, 1, 0, 0)
    table.add_row("the plan", "x1", _width(halving.width), "1" if bounded else "-", "", "")
    for change in halving.changes:
        ratio = "-" if change.ratio is None else f"{change.ratio:.2f}"
        error = "" if change.ratio_error is None else f" ±{change.ratio_error:.2f}"
        mark = "cheapest" if change.cheapest else "yes" if change.halves else ""
        table.add_row(
            change.words,
            f"x{digits(change.cost)}",
            _width(change.width),
            ratio + error,
            _share(change.closed),
            mark,
        )
    lines = [
        f"Medians over {halving.studies} studies each, the same noise in all; an open interval counts as infinitely "
        "wide. Cost: the sum of N over all runs, for equal tokens."
    ]
    if not any(change.halves for change in halving.changes):
        if halving.seeds is not None:
            lines.append(
                f"None of these halves it. About {halving.seeds} seeds should, by 1/√seeds from the most seeds tried: "
                "an extrapolation, not simulated."
            )
        else:
            lines.append(
                "None of these bounds b in more than half of the studies: the crossings are out of reach of this plan."
            )
    return [table, *(Text(line, style="dim") for line in lines)]


def _width(value: float | None) -> str:
    return "open" if value is None else digits(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
