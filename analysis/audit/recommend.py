"""The best shape for a size or a compute: by a study's fit, by a published law, or by all published evidence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from analysis.audit.evidence import Evidence, published_evidence
from analysis.fit.recommendation import NamedFit, losses_by, named_fit, shapes_by
from analysis.intervals import LAYER_WEIGHTS, width_of
from analysis.law.near_optimal import Within, nats_of, near_optimal
from analysis.law.published import (
    LEAST_DEPTH,
    PUBLISHED,
    AdditiveLaw,
    least_shape,
    losses_of,
    published_law,
    published_shape,
    shape_at_compute,
)
from analysis.law.shape import (
    REACH,
    ComputeShape,
    NearOptimal,
    Recommendation,
    buildable_width,
    check_size,
    flops_hint,
    in_unit,
)
from core.command_line import call, option
from core.errors import InputError
from core.numbers import human, parse_duration, parse_number, short


@dataclass(frozen=True, repr=False)
class Comparison:
    """The best shapes of one N by all published evidence.

    Attributes:
        params: N.
        shapes: the best shape by each law; one without an answer has the source `none`.
        within: nats per token within which a depth counts as near-optimal.
        depths: the shallowest and the deepest depth that are near-optimal by every law of the loss with an answer; None
            if there is none.
    """

    JSON_PROPERTIES: ClassVar = ("widths",)

    params: float
    shapes: tuple[Recommendation, ...]
    within: float
    depths: tuple[int, int] | None

    @property
    def widths(self) -> tuple[int, int] | None:
        """The widths that a model can have at both depths, the narrowest first."""
        if self.depths is None:
            return None
        shallow, deep = (buildable_width(width_of(self.params, depth)) for depth in self.depths)
        return deep, shallow

    def __repr__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The depths that lose little by all laws, or why there are none."""
        at = f"At {human(self.params)} parameters"
        losses = [shape for shape in self.shapes if shape.near_optimal]
        if self.depths is None:
            if not losses:
                return f"{at} no law of the loss states a depth."
            return f"{at} no depth is within {self.within:g} nats per token of the best by every law."
        assert self.widths is not None
        depths, widths = ends_of_range(self.depths), ends_of_range(self.widths[::-1])
        by = (
            "by every law of the loss"
            if len(losses) > 1
            else f"by the only law of the loss there, {losses[0].law}"
        )
        return f"{at} {depths} layers ({widths} wide) lose at most {self.within:g} nats per token {by}."


def ends_of_range(values: tuple[int, int]) -> str:
    """`22 to 34`, or one number."""
    first, last = values
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def compare(sizes: Sequence[float | str], within: Within = None) -> list[Comparison]:
    """Return the best shapes of each size N, such as 1e9 or 7B, by every published law and table.

    Raises:
        InputError: no size is given, one is not positive, or none has an answer by any law.
    """
    params, nats = read_sizes(sizes), nats_of(within)
    comparisons = []
    for value in params:
        shapes = []
        for law in published_evidence():
            best = law.best(value)
            shapes.append(replace(best, near_optimal=law.losses(value, best.depth, nats), law=law.source))
        ranges = [shape.near_optimal.depths for shape in shapes if shape.near_optimal]
        low, high = max((low for low, _ in ranges), default=1), min((high for _, high in ranges), default=0)
        comparisons.append(Comparison(value, tuple(shapes), nats, (low, high) if low <= high else None))
    if not any(shape.depth for item in comparisons for shape in item.shapes):
        ends = [size for law in published_evidence() for size in law.sizes or ()]
        of = f"{human(min(ends))} to {human(max(ends))}"
        reason = f"N is more than {REACH:g} times outside the sizes of every law ({of})"
        raise InputError(_no_depth("Published evidence", params, reason, call("recommend", "7e9")))
    return comparisons


def _no_depth(who: str, params: Sequence[float], reason: str | None, command: str) -> str:
    sizes = ", ".join(f"{value:g}" for value in params)
    hint = flops_hint(max(params))
    hint = f" {hint}" if hint else ""
    return (
        f"{who} states no depth for N = {sizes}: {reason}, and no depth is stated beyond that.{hint} Ask for "
        f"another size: {command}"
    )


def shapes_of_sizes(
    fit: Path | NamedFit | None, name: str | None, sizes: Sequence[float | str], within: Within = None
) -> tuple[str, list[Recommendation]]:
    """Return the source of the recommendation in words, and the best shape for each size N, such as 1e9 or 7B.

    From a fit, the answer for each N is that of `recommended`. Each shape has `near_optimal`: the depths that
    lose at most `within`, and what the shape itself loses; None without a law of the loss. `within` and the losses of
    the shapes are in the unit of the fit, and nats per token by a law. The law
    `log3` gives the least depth by theory, see `least_shape`.

    Raises:
        InputError: no size, neither or both sources are given, the law is unknown, the file cannot be read, or its fit
            or the law has no answer for any of the sizes.
    """
    params = read_sizes(sizes)
    if (fit is None) == (name is None):
        raise _one_source()
    if name == "log3":
        return LEAST_DEPTH, [least_shape(value) for value in params]
    if fit is None:
        published = published_law(name or "")
        losses, nats = losses_of(published), nats_of(within)
        chosen = [published_shape(published, value) for value in params]
        if not any(shape.depth for shape in chosen):
            assert published.params_range is not None
            most = short(0.9 * REACH * published.params_range[1], 1)
            again = call("recommend", most, law=name)
            raise InputError(_no_depth(f"The law of {published.source}", params, chosen[0].reason, again))
        chosen = [
            replace(item, near_optimal=near_optimal(losses, item.params, item.depth, losses.source, nats))
            if item.depth
            else item
            for item in chosen
        ]
        return f"law of {published.source}", chosen
    # A recommendation from a published law loads no numerical library.
    from analysis.fit.next_words import rate_sentence

    named = named_fit(fit)
    check, runs = named.fit.learning_rate, named.next_runs or named.fit.estimated_runs
    sentence = rate_sentence(check, runs.rates) if check else None
    chosen = [replace(item, learning_rate=sentence) for item in shapes_by(named, params, within)]
    measured = all(shape.source in ("measured", "none") for shape in chosen)
    chosen = [in_unit(item, named.fit.loss_unit) for item in chosen]
    return f"{'losses' if measured else 'laws'} of {named.name}", chosen


def recommend_at_compute(
    fit: Path | NamedFit | None, name: str | None, computes: Sequence[float | str]
) -> tuple[str, list[ComputeShape]]:
    """Return the source of the recommendation in words, and the best shape and tokens for each compute in FLOPs.

    By a fit, a published law, or without both by all published laws with a term of the training tokens.

    Raises:
        InputError: both sources are given, the law is unknown or has no such term, the file cannot be read or its table
            has no budgets of compute, a compute is no positive number, or none has an answer.
    """
    if fit is not None and name is not None:
        raise _one_source()
    flops = [_compute(value) for value in computes]
    if fit is not None:
        named = named_fit(fit)
        answer = named.fit.compute
        instead = f"By a published law: {call('recommend', law='liu2026', flops=flops)}"
        if answer is not None and answer.unit == "minutes":
            longest = f"{answer.budgets[-1]:g}min"
            raise InputError(
                f"The depths of {named.name} are compared at equal training time, not at equal FLOPs. Ask for a time: "
                f"{call('recommend', fit=named.name, train_time=longest)}"
            )
        if answer is None:
            raise InputError(
                f"The fit in {named.name} has no answer at a compute: a table of isoFLOP runs would have one, with two "
                "budgets of compute or more and at each three sizes or more, around that of least loss, of two depths "
                f"or more. {instead}"
            )
        shapes = [in_unit(answer.at(value), named.fit.loss_unit) for value in flops]
        source = f"losses of {named.name}"
        add = "Ask inside them, or add a budget of compute to the table."
        hint = f"{add if shapes[0].extrapolated else 'Add sizes at that compute to the table.'} {instead}"
    else:
        if name == "log3":
            raise InputError(
                "The least depth by theory is that of a size N and has no training tokens. Ask a published law: "
                f"{call('recommend', law='liu2026', flops=flops[0])}"
            )
        laws = (
            [published_law(name)]
            if name
            else [law for law in PUBLISHED.values() if isinstance(law, AdditiveLaw)]
        )
        shapes = [shape_at_compute(law, value) for value in flops for law in laws]
        source = "law of " + " and ".join(law.source for law in laws)
        hint = f"Ask for less: {call('recommend', flops='1e21')}"
    if all(shape.depth is None for shape in shapes):
        asked = ", ".join(f"{value:g}" for value in flops)
        raise InputError(f"No depth is stated at {asked} FLOPs by the {source}: {shapes[0].reason}. {hint}")
    return source, shapes


def recommend_in_time(named: NamedFit, time: float | str) -> ComputeShape:
    """Return the best shape and tokens for a training time in seconds, or such as "2h", by a study at equal time.

    Raises:
        InputError: this is no time, the fit is of no such study, or the study says nothing at this time.
    """
    try:
        seconds = parse_duration(str(time))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{option('train-time')} is {time!r}; give a duration above 0, as 90s or 2h.")
    answer = named.fit.compute
    if answer is None or answer.unit != "minutes":
        raise InputError(
            f"{named.name} is no study at equal training time. Of other studies the costs are measured: "
            f"{call('recommend', fit='NAME', train_time=time)}"
        )
    shape = in_unit(answer.at(seconds / 60), named.fit.loss_unit)
    if shape.depth is None:
        raise InputError(
            f"No depth is stated for {shape.budget_text} of training by the losses of {named.name}: {shape.reason}."
        )
    return shape


def recommend_one(
    fit: Path | NamedFit | None,
    name: str | None,
    params: float | str | None,
    flops: float | str | None,
    within: Within = None,
) -> tuple[str, Recommendation | ComputeShape]:
    """Return the source and the best shape of one size N, by `shapes_of_sizes`, or of one compute.

    The latter is by `recommend_at_compute`.

    Raises:
        InputError: as of these; both or none of `params` and `flops` is given, or `within` with `flops`.
    """
    if (params is None) == (flops is None):
        raise InputError(
            f"Give a size or a budget of FLOPs, not both: {call('recommend', '7e9')}, or "
            f"{call('recommend', flops='1e20')}."
        )
    if flops is None:
        assert params is not None
        source, shapes = shapes_of_sizes(fit, name, [params], within)
        return source, shapes[0]
    if within is not None:
        raise InputError(f"{option('within')} is for a size N. With {option('flops', flops)} leave it out.")
    source, at_compute = recommend_at_compute(fit, name, [flops])
    return source, at_compute[0]


def _one_source() -> InputError:
    file, law = option("fit", "results/NAME/fit.json"), option("law", "levine2020")
    return InputError(
        f"Give one source: {file} for a study's own law, or {law} for a published one (not both)."
    )


def fit_evidence(named: NamedFit, within: Within) -> Evidence:
    """The evidence of a fit: its answer for each N is that of `recommended`, with an error where it has none.

    It is in nats per token, as published laws are.

    Raises:
        InputError: the fit is of models without feed-forward networks, whose N is another count.
    """
    if named.fit.layer_weights != LAYER_WEIGHTS:
        raise InputError(
            f"The fit in {named.name} is of models without feed-forward networks, N = "
            f"{named.fit.layer_weights:g}·L·d², and the N of an audited model is 12·L·d². Give a fit of models with "
            f"them, or leave out {option('fit')} for published evidence."
        )
    named = NamedFit(named.name, replace(named.fit, unit="nats per token"))

    def losses(params: float, depth: float | None, within: Within) -> NearOptimal | None:
        return losses_by(named.fit, params, depth, within)

    def best(params: float) -> Recommendation:
        return shapes_by(named, [params], within)[0]

    return Evidence(named.name, named.name, None, None, best, losses)


def read_sizes(sizes: Sequence[float | str]) -> list[float]:
    """Return sizes N as numbers; InputError without any, or if one is no size."""
    if not sizes:
        raise InputError(
            f"Give a size, in non-embedding parameters: {call('recommend', '7e9')}; or a budget of FLOPs: "
            f"{call('recommend', flops='1e20')}"
        )
    params = [_number(size, "size; write it as 1e9, or 7B") for size in sizes]
    for value in params:
        check_size(value)
    return params


def _number(value: float | str, what: str) -> float:
    """A number, or a text such as 7B; `what` ends the sentence that refuses any other."""
    try:
        return parse_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{value!r} is no {what}.") from None


def _compute(flops: float | str) -> float:
    value = _number(flops, f"number of FLOPs; write it as {option('flops', '1e20')}")
    if not 0 < value < math.inf:
        raise InputError(
            f"The compute is {value:g} FLOPs; give a positive number, as {option('flops', '1e20')}."
        )
    return value
