"""`interplay power SPEC`: the expected results of a study, with more seeds and more sizes too."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.design.assumed_truth import DEFAULT, MEANINGS, Assumption, assumed_truth
from analysis.design.power import LEVEL, Change, PairPower, PowerEstimate, compare_changes, simulate_power
from analysis.design.simulated_study import Shape
from analysis.fit.recommendation import NamedFit, named_fit
from core.command_line import option
from core.errors import InputError, did_you_mean, refuse_no_mapping
from core.files import to_json
from core.numbers import digits, is_count, short
from interplay.result import VerbResult
from interplay.terminal import text_table
from interplay.verbs.load_spec import load_spec
from interplay.verbs.recommend import named
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.plan.table import plan_table
from study.spec.study import StudySpec

if TYPE_CHECKING:
    from interplay.answer import Answer


@dataclass(frozen=True)
class Power:
    """The power of a plan.

    Attributes:
        assumptions: by the names of `MEANINGS`.
        pilot: its fit file.
        shapes: their number, each (depth, width) once.
        changes: the plan as it is, and with more seeds or sizes.
        notes: caveats, in sentences.
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


@dataclass(frozen=True, repr=False)
class StudyPower(VerbResult):
    """The plan of a study and the simulated width of its intervals."""

    plan: Plan
    power: Power

    def to_json(self) -> dict[str, Any]:
        """Return the document of the plan, with that of the power under `power`."""
        return self.plan.to_json() | {"power": self.power.to_json()}

    def __rich__(self) -> RenderableType:
        return Group(plan_table(self.plan), power_view(self.power))


def power(
    spec: str | Path | StudySpec,
    *changes: str,
    assume: Mapping[str, float | str] | None = None,
    fit: "Answer | str | Path | None" = None,
    studies: int = 72,
    results: str | Path = "results",
) -> StudyPower:
    """Simulate a study to see how wide its intervals will be, also with more seeds or sizes. Nothing is trained.

        interplay.power("quickstart", assume={"noise": 0.005}, studies=20).power.estimate

    Args:
        spec: see `load_spec`.
        *changes: of the spec, such as "training.seeds=5".
        assume: name -> value, see `MEANINGS`.
        fit: of a pilot study, for what `assume` does not give: an answer, or what `recommend` takes.
        studies: how many to simulate. The standard error of a share of 72 is at most 6 points.
        results: root of the results.

    Raises:
        SpecError: as of `load_spec` and of `plan_power`.
        InputError: as of `plan_power`.
    """
    plan = make_plan(load_spec(spec, *changes, results=results))
    return StudyPower(plan, plan_power(plan, assume or {}, named(fit, results), studies))


def plan_power(
    plan: Plan, assume: Mapping[str, float | str], pilot: Path | NamedFit | None, studies: int
) -> Power:
    """Estimate the results of a plan.

    Args:
        plan: the study.
        assume: name -> value, see `MEANINGS`.
        pilot: a fit, or its file, for what `assume` does not give.
        studies: how many to simulate.

    Raises:
        SpecError: the plan has one depth or is one at equal FLOPs, or an assumption is wrong.
        InputError: the fit file cannot be read, the law is implausible, the assumed losses are not positive, `assume`
            is no dict, or `studies` is no positive whole number.
    """
    if not is_count(studies):
        raise InputError(f"{option('studies')} is {studies!r}; give a number of simulated studies, as 72.")
    if (unit := plan.planner.spec.frontier.compute_unit) is not None:
        raise SpecError(
            f"A simulation has crossings at equal N, and {plan.name!r} compares depths at equal {unit}; give "
            f"`frontier.budgets` in place of {plan.planner.spec.frontier.compute_key}."
        )
    shapes = shapes_of_plan(plan)
    depths = sorted({depth for depth, _, _ in shapes})
    if len(depths) < 2:
        only = f"depth {depths[0]} only" if depths else "no shape"
        raise SpecError(
            f"`frontier.depths` of {plan.name!r} has {only}, and a crossing is between two depths. Give two or more "
            "depths, three for a law."
        )
    given = None if pilot is None else named_fit(pilot)
    truth, assumptions = assumed_truth(
        shapes,
        parse_assumptions(assume),
        None if given is None else given.fit,
        plan.entropy,
        plan.planner.spec.frontier.layer_weights,
    )
    estimate = simulate_power(
        truth, shapes, len({planned.cell.seed for planned in plan.cells}), studies=studies
    )
    changes = compare_changes(truth, shapes, estimate, studies=_fewer(studies))
    notes = tuple(_notes(plan, len(depths), assumptions))
    return Power(assumptions, None if given is None else given.name, len(shapes), estimate, changes, notes)


def _fewer(studies: int) -> int:
    """Number of simulations of each change of a plan, which itself has `studies`."""
    return max(5, studies // 3)


def shapes_of_plan(plan: Plan) -> list[Shape]:
    """Every (depth, width) of a plan once, with its budget, whatever its seeds and learning rates."""
    budgets = {(item.cell.shape.depth, item.cell.shape.width): item.budget for item in reversed(plan.cells)}
    return sorted((*shape, budget) for shape, budget in budgets.items())


def parse_assumptions(given: Mapping[str, float | str]) -> dict[str, float]:
    """Check what is assumed: name -> number, which may be a text.

    Raises:
        SpecError: an unknown name, no number in its range, or a without b.
    """
    refuse_no_mapping(option("assume"), given, option("assume", "noise=0.005"))
    assumed: dict[str, float] = {}
    for name, value in given.items():
        asked = option("assume", f"{name}={value}")
        if name not in MEANINGS:
            listed = "; ".join(f"{key} ({meaning})" for key, (meaning, _, _) in MEANINGS.items())
            meant = did_you_mean(name, MEANINGS) or "."
            raise SpecError(f"{asked}: there is no `{name}` to assume{meant} It can be one of: {listed}.")
        _, low, high = MEANINGS[name]
        assumed[name] = math.nan
        with suppress(ValueError, TypeError):
            assumed[name] = float(value)
        if not low <= assumed[name] <= high:
            raise SpecError(f"{asked}: `{name}` must be a number between {low:g} and {high:g}.")
    if len(alone := assumed.keys() & {"a", "b"}) == 1:
        raise SpecError(
            f"{option('assume')} gives `{alone.pop()}` alone; a law has both a and b. Give both, or neither."
        )
    return assumed


def _notes(plan: Plan, depths: int, assumptions: Mapping[str, Assumption]) -> list[str]:
    rates = len({planned.lr_factor for planned in plan.cells})
    notes = {
        f"The search ({plan.search.sampler}) chooses its own cells; the simulation trains all those listed.": (
            plan.search.chooses_by_rows
        ),
        f"Each shape has {rates} learning rates; it counts here once, at the best of them, without the noise that "
        "choosing the best adds.": rates > 1,
        f"Shapes are assumed to lie on power laws. If they do not ({option('assume', 'misfit_sd=NATS')}), more seeds "
        "help less than shown.": DEFAULT in assumptions["misfit_sd"].source,
        "Two depths have one crossing, and a law needs two crossings: plan a third depth.": depths == 2,
        "Two crossings give no interval of b and no projected depth: plan a fourth depth.": depths == 3,
    }
    return [note for note, applies in notes.items() if applies]


def power_view(power: Power) -> RenderableType:
    """Render the power of a plan for a terminal of 80 columns."""
    estimate, now, assumed = power.estimate, power.changes[0], power.assumptions
    studies = f"{estimate.studies} simulated studies, {now.shapes} shapes, seeds: {now.seeds}"
    return Group(
        Text(f"power: {studies}", style="italic"),
        text_table(
            f"assumed (pilot: {power.pilot})" if power.pilot else "assumed",
            ("name", "value", "what", "source"),
            [(name, f"{item.value:.4g}", MEANINGS[name][0], item.source) for name, item in assumed.items()],
            left=("name", "what", "source"),
        ),
        Text(),
        text_table(
            "crossings",
            ("pair", "true N", "width", "found", "left", "right", "unclear", "closed", "interval", "holds"),
            [_crossing_row(pair) for pair in estimate.crossings],
            left=("pair",),
        ),
        Text(
            "Shares of the studies; left, right: the deeper model wins everywhere, nowhere. Interval: median high/low "
            f"of the closed ones in N, at {LEVEL:.0%}. Holds: share that contain the true N. The standard error of a "
            f"share is at most {50 / math.sqrt(estimate.studies):.0f} points ({option('studies')}).",
            style="dim",
        ),
        Text(),
        *map(Text, _law_lines(estimate, assumed["b"].value)),
        Text(),
        text_table(
            "the interval of b with more seeds or sizes",
            ("change", "cost", "width of b", "over now", "closed"),
            [_change_row(change, now.width) for change in power.changes],
            left=("change",),
        ),
        Text(
            f"Medians over {_fewer(estimate.studies)} studies each, with the same noise; an open interval counts as "
            "infinitely wide. Cost: the sum of N over all cells, for equal tokens.",
            style="dim",
        ),
        *(Text(note, style="yellow") for note in power.notes),
    )


def _crossing_row(pair: PairPower) -> tuple[str, ...]:
    statuses = pair.statuses
    unclear = statuses["ambiguous"] + statuses["insufficient"]
    shares = (
        statuses["bracketed"],
        statuses["left_censored"],
        statuses["right_censored"],
        unclear,
        pair.closed,
    )
    ratio = "-" if pair.ratio is None else f"x{pair.ratio:.2f}"
    sizes = (short(pair.params), f"{pair.width:.0f}")
    return f"{pair.shallow} → {pair.deep}", *sizes, *map(_share, shares), ratio, _share(pair.coverage)


def _change_row(change: Change, now: float | None) -> tuple[str, ...]:
    width = "open" if change.width is None else digits(change.width)
    ratio = "-" if change.width is None or not now else f"{change.width / now:.2f}"
    return change.words, f"x{digits(change.cost)}", width, ratio, _share(change.closed)


def _law_lines(estimate: PowerEstimate, b: float) -> list[str]:
    statuses = estimate.statuses
    line = (
        f"law: bounded in {_share(statuses['ok'])} of the studies, open on a side in {_share(statuses['open'])}, "
        f"none in {_share(statuses['insufficient'] + statuses['not_converged'])}."
    )
    if estimate.b_width is not None:
        line += (
            f" Median width of the interval of b: {digits(estimate.b_width)} around {b:.3g} "
            f"({estimate.b_width / b:.0%} of it); it contains the true b in {_share(estimate.b_coverage)}."
        )
    if estimate.band is None:
        return [line]
    low, high = ("no limit" if end is None else f"{end:.1f}" for end in estimate.band)
    return [
        line,
        f"Projected to N = {short(estimate.ahead_params)}, ten times the largest size: depth "
        f"{estimate.ahead_depth:.1f}, median interval: {low} to {high}; {_share(estimate.stated)} of the studies "
        "state a depth, the others an interval only.",
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
