"""The shape that a fit recommends for a size, and what a depth loses there."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.law.near_optimal import Within, nats_of
from analysis.law.reasons import Because, Reason
from analysis.law.shape import NearOptimal, Recommendation
from analysis.runs.words import qualified
from core.command_line import call, option
from core.errors import InputError
from core.numbers import human

if TYPE_CHECKING:
    # A recommendation from a published law loads no numerical library.
    from analysis.fit.document import Fit
    from analysis.fit.next_runs import NextRuns
    from analysis.law.reading import AtSize


@dataclass(frozen=True)
class NamedFit:
    """A fit.

    Attributes:
        name: in messages: the path of its file, or the title of an answer.
        fit: every number.
        next_runs: the runs of the next steps by a plan; None if they are estimated.
    """

    name: str
    fit: "Fit"
    next_runs: "NextRuns | None" = None


def named_fit(fit: Path | NamedFit) -> NamedFit:
    """Return a fit, read by `read_fit` if it is a file."""
    return read_fit(fit) if isinstance(fit, Path) else fit


def read_fit(path: Path) -> NamedFit:
    """Read a fit file; InputError if it is missing, no JSON, or no fit."""
    from analysis.fit.document import Fit
    from analysis.fit.next_runs import next_runs_of

    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"The fit file {path} cannot be read: {error}. `{call('run', 'SPEC')}` writes one to "
            f"results/NAME/fit.json, `{call('fit', 'RUNS', out='FILE')}` any other."
        ) from error
    try:
        return NamedFit(str(path), Fit.from_json(document), next_runs_of(document))
    except InputError as error:
        raise InputError(f"{path} cannot be used. {error}") from error


def shapes_by(named: NamedFit, params: Sequence[float], within: Within = None) -> list[Recommendation]:
    """`recommended` of each N; InputError if the fit has no answer for any."""
    result = named.fit
    chosen = [recommended(result, value, within) for value in params]
    if all(shape.source == "none" for shape in chosen):
        sizes = result.reading.params
        inside = f" It has measured sizes from {sizes[0]:,.0f} to {sizes[-1]:,.0f} only." if sizes else ""
        more = "add depths, budgets or seeds to the study"
        if result.tokens.rule == "compute" and result.compute is not None:
            is_time = result.compute.unit == "minutes"
            longest = f"{result.compute.budgets[-1]:g}{'min' if is_time else ''}"
            budget = option("train-time" if is_time else "flops", longest)
            more = f"ask for a budget of this study, up to {budget}"
        elif not result.tokens.comparable:
            more = "train the depths of each size on equal tokens"
        raise InputError(
            f"The fit in {named.name} has no answer at N = {', '.join(f'{value:g}' for value in params)}: "
            f"{chosen[0].reason}.{inside} Use {option('law', 'levine2020')} or liu2026 for a published law, or {more}."
        )
    return chosen


def recommended(result: "Fit", params: float, within: Within = None) -> Recommendation:
    """The shape at N by a fit: the first row of this table that applies.

    | row | N | `source` | depth | interval |
    |---|---|---|---|---|
    | 1 | two depths are measured, none is missing | `measured` | lowest loss | to the next excluded depths |
    | 2 | the laws decide, at most `within` is lost | `law` | least expected loss | of the laws |
    | 3 | outside the sizes, the laws decide, but more may be lost | `band` | none | of the laws |
    | 4 | outside the sizes, no law decides | `none` | none | none |
    | 5 | inside the sizes, the laws decide, but more may be lost | `law` | least expected loss | of the laws |
    | 6 | inside the sizes, no law decides | `measured` | lowest loss at N or the nearest size | as in row 1 |
    | 7 | the same, but no size has two depths | as row 3 or 4 | none | as row 3 or 4 |

    The losses of the shape are in nats per token; `within`, and those named in the reason, are in the unit of the fit.
    A size is measured or missing as `analysis.law.reading` says, and the laws are those of `analysis.law.decision`,
    which decide up to a factor of `REACH` outside the sizes. A depth above its width is never recommended by a law.
    """
    reading = result.reading
    at = reading.at(params)
    nats = nats_of(within, at.loss if at else result.gap_laws.loss, result.loss_unit)

    def stated(shape: Recommendation) -> Recommendation:
        law, weights = qualified(shape.law, result.tokens.ratio), reading.layer_weights
        return replace(shape, law=law, width_step=reading.width_step, layer_weights=weights)

    if at is not None and not at.missing:
        return stated(_measured(at, params, nats))
    projection = result.predict(params, nats)
    smallest, largest = result.sizes or (math.inf, -math.inf)
    inside = smallest * (1 - 1e-9) <= params <= largest * (1 + 1e-9)
    if projection.source == "law" or not inside:
        return stated(Recommendation.of(projection))
    decided = result.predict(params, math.inf)
    if decided.source == "law":
        assert decided.near_optimal is not None
        more = Because(Reason.MORE_THAN_WITHIN, (nats * result.loss_unit.per_nat,))
        near = replace(decided.near_optimal, within=nats)
        return stated(Recommendation.of(replace(decided, near_optimal=near, reasons=(more,))))
    nearest = min(reading.params, key=lambda size: abs(math.log(size / params)), default=params)
    at = at or reading.at(nearest)
    return stated(Recommendation.of(projection) if at is None else _measured(at, params, nats))


def _measured(at: "AtSize", params: float, within: float) -> Recommendation:
    """The best of the measured depths of a size, which is that of N or the nearest to it."""
    rule = "the lowest loss at this size"
    reasons: tuple[Because, ...] = ()
    if at.missing:
        rule = "the lowest loss of the depths measured at this size"
        reasons = (Because(Reason.NOT_MEASURED, at.missing),)
    elif not math.isclose(at.params, params):
        rule = f"the lowest loss at {human(at.params)}, the nearest size with two depths"
    return Recommendation(
        params=params,
        depth_exact=at.depth,
        depth_interval=at.depth_interval,
        level=None,
        source="measured",
        law=rule,
        reasons=reasons,
        measured=at,
        near_optimal=_near(at, within, 0.0),
    )


def _near(at: "AtSize", within: float, lost: float | None) -> NearOptimal:
    """The measured depths of a size that lose next to nothing, and what the depth in question loses."""
    near = at.within(within)
    return NearOptimal(within, (near[0].depth, near[-1].depth), lost, "the curves there")


def losses_by(result: "Fit", params: float, depth: float | None, within: Within = None) -> NearOptimal | None:
    """The depths that lose next to nothing at N by a fit, and what `depth` loses; None where neither is known."""
    at = result.reading.at(params)
    nats = nats_of(within, at.loss if at else result.gap_laws.loss, result.loss_unit)
    near = None
    if at is not None and not at.missing:
        lost = next((shape.excess for shape in at.shapes if shape.depth == depth), None)
        near = _near(at, nats, lost)
        if lost is not None or depth is None:
            return near
    decision = result.gap_laws.decide(params, result.level)
    if decision is None or result.predict(params, math.inf).source != "law":
        return near
    from analysis.law.prediction import lost_by

    return lost_by(decision, decision.depth if depth is None else depth, nats)
