"""The best shape for a size, from a study's fit or from a published law."""

import itertools
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from analysis.audit.evidence import Evidence, published_evidence
from analysis.errors import InputError
from analysis.intervals import width_of
from analysis.law.near_optimal import WITHIN, check_within, measured_near_optimal, near_optimal
from analysis.law.published import LEAST_DEPTH, least_shape, losses_of, published_law, published_shape
from analysis.law.shape import (
    REACH,
    Measured,
    NearOptimal,
    Shape,
    buildable_width,
    check_size,
    flops_hint,
)
from analysis.numbers import human, parse_number, short

if TYPE_CHECKING:
    # A recommendation from a published law loads no numerical library.
    from analysis.curves.best_shapes import BestShape
    from analysis.fit.document import Fit

#: Fewest trials at held-out sizes on which rules are compared.
LEAST_TRIALS = 3


@dataclass(frozen=True)
class NamedFit:
    """A fit, and its name in messages: the path of its file, or the title of an answer."""

    name: str
    fit: "Fit"


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
    shapes: tuple[Shape, ...]
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


def compare(sizes: Sequence[float | str], within: float = WITHIN) -> list[Comparison]:
    """Return the best shapes of each size N, such as 1e9 or 7B, by every published law and table.

    Raises:
        InputError: no size is given, one is not positive, or none has an answer by any law.
    """
    params = _sizes(sizes)
    check_within(within)
    found = []
    for value in params:
        shapes = []
        for law in published_evidence():
            best = law.best(value)
            shapes.append(replace(best, near_optimal=law.losses(value, best.depth, within), law=law.source))
        ranges = [shape.near_optimal.depths for shape in shapes if shape.near_optimal]
        low, high = max((low for low, _ in ranges), default=1), min((high for _, high in ranges), default=0)
        found.append(Comparison(value, tuple(shapes), within, (low, high) if low <= high else None))
    if not any(shape.depth for item in found for shape in item.shapes):
        ends = [size for law in published_evidence() for size in law.sizes or ()]
        of = f"{human(min(ends))} to {human(max(ends))}"
        reason = f"N is more than {REACH:g} times outside the sizes of every law ({of})"
        raise InputError(_no_depth("Published evidence", params, reason, "interplay recommend 1e9 7e9"))
    return found


def _no_depth(who: str, params: Sequence[float], reason: str | None, command: str) -> str:
    sizes = ", ".join(f"{value:g}" for value in params)
    hint = flops_hint(max(params))
    hint = f" {hint}" if hint else ""
    return (
        f"{who} states no depth for N = {sizes}: {reason}, and no depth is stated beyond that.{hint} Ask for "
        f"another size: {command}"
    )


def recommend(
    fit: Path | NamedFit | None, name: str | None, sizes: Sequence[float | str], within: float = WITHIN
) -> tuple[str, list[Shape]]:
    """Return the source of the recommendation in words, and the best shape for each size N, such as 1e9 or 7B.

    From a fit, the answer for each N is that of `shape_by`. Each shape has `near_optimal`: the depths that lose at most
    `within` nats per token, and what the shape itself loses; None without a law of the loss. The law `log3` gives the
    least depth by theory, see `least_shape`.

    Raises:
        InputError: no size, neither or both sources are given, the law is unknown, the file cannot be read, or its fit
            or the law has no answer for any of the sizes.
    """
    params = _sizes(sizes)
    if (fit is None) == (name is None):
        raise InputError(
            "Give one source: --fit results/NAME/fit.json for a study's own law, or --law levine2020 for a published "
            "one (not both)."
        )
    check_within(within)
    if name == "log3":
        return LEAST_DEPTH, [least_shape(value) for value in params]
    if fit is None:
        published = published_law(name or "")
        losses = losses_of(published)
        chosen = [published_shape(published, value) for value in params]
        if not any(shape.depth for shape in chosen):
            assert published.params_range is not None
            most = short(0.9 * REACH * published.params_range[1], 1)
            command = f"interplay recommend --law {name} {most}"
            raise InputError(_no_depth(f"The law of {published.source}", params, chosen[0].reason, command))
        chosen = [
            replace(item, near_optimal=near_optimal(losses, item.params, item.depth, losses.source, within))
            if item.depth
            else item
            for item in chosen
        ]
        return f"law of {published.source}", chosen
    named = named_fit(fit)
    check = named.fit.learning_rate.sentence if named.fit.learning_rate else None
    chosen = [replace(item, learning_rate=check) for item in shapes_by(named, params, within)]
    source = "loss surfaces" if named.fit.law.a is None else "laws"
    if all(shape.source in ("measured", "none") for shape in chosen):
        source = "losses"
    return f"{source} of {named.name}", chosen


def fit_evidence(named: NamedFit, within: float) -> Evidence:
    """The evidence of a fit: its answer for each N is that of `shape_by`, with an error where it has none."""

    def losses(params: float, depth: float | None, within: float) -> NearOptimal | None:
        return named.fit.near_optimal(named.fit.predict(params), depth, within)

    def best(params: float) -> Shape:
        return shapes_by(named, [params], within)[0]

    return Evidence(named.name, named.name, None, None, best, losses)


def _sizes(sizes: Sequence[float | str]) -> list[float]:
    if not sizes:
        raise InputError("Give the sizes, in non-embedding parameters: interplay recommend 1e9 7e9")
    params = [_number(size) for size in sizes]
    for value in params:
        check_size(value)
    return params


def _number(size: float | str) -> float:
    try:
        params = parse_number(size) if isinstance(size, str) else float(size)
    except (TypeError, ValueError):
        raise InputError(f"{size!r} is no size; write it as 1e9, or 7B.") from None
    check_size(params)
    return params


def named_fit(fit: Path | NamedFit) -> NamedFit:
    """Return a fit, read by `read_fit` if it is a file."""
    return NamedFit(str(fit), read_fit(fit)) if isinstance(fit, Path) else fit


def read_fit(path: Path) -> "Fit":
    """Read a fit file; InputError if it is missing, no JSON, or no fit."""
    from analysis.fit.document import Fit

    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"The fit file {path} cannot be read: {error}. `interplay run SPEC` writes one to "
            "results/NAME/fit.json, `interplay fit RUNS --out FILE` any other."
        ) from error
    try:
        return Fit.from_json(document)
    except InputError as error:
        raise InputError(f"{path} cannot be used. {error}") from error


def _nearest(result: "Fit", params: float) -> "BestShape | None":
    """The best measured shape of the budget nearest to N; None if no budget is within the range of its depths."""
    from analysis.curves.best_shapes import SHIFT

    nearest = min(result.best, key=lambda shape: abs(math.log(shape.params / params)), default=None)
    if nearest is None or abs(math.log(nearest.params / params)) > math.log(SHIFT):
        return None
    return nearest


def _between_worse(near: Sequence[int] | None, depths: Collection[int]) -> tuple[int | None, int | None]:
    """Whole depths between the measured `depths` next to those tied with the best; None without such a depth."""
    if not near:
        return None, None
    low = max((depth + 1 for depth in depths if depth < near[0]), default=None)
    high = min((depth - 1 for depth in depths if depth > near[-1]), default=None)
    return low, high


def _by_crossings(result: "Fit", params: float) -> tuple[int, set[int]] | None:
    """Best depth at an N between the measured sizes, and those tied with it: N lies in the interval of their crossing.

    None outside the sizes, or if the crossings do not decide.
    """
    from analysis.fit.answer import depth_ranges

    if not result.best or not result.best[0].params <= params <= result.best[-1].params:
        return None
    ranges = depth_ranges(result.crossings)
    at = next((i for i, item in enumerate(ranges) if params < (item.high or math.inf)), None)
    if at is None or len(ranges[at].depths) > 1:
        return None
    tied = set(ranges[at].depths)
    for shallow, deep in itertools.pairwise(ranges[max(at - 1, 0) : at + 2]):
        low, high = shallow.high_interval or (None, None)
        if (low or 0) <= params <= (high or math.inf):
            tied |= {*shallow.depths, *deep.depths}
    return ranges[at].depths[0], tied


def shapes_by(named: NamedFit, params: Sequence[float], within: float = WITHIN) -> list[Shape]:
    """`shape_by` of each N, with the source `none` where the fit has no answer; InputError if it has none at all."""
    result = named.fit
    found = [shape_by(result, value, within) for value in params]
    if not any(found):
        sizes = [shape.params for shape in result.best]
        inside = f" It has measured sizes from {min(sizes):,.0f} to {max(sizes):,.0f} only." if sizes else ""
        raise InputError(
            f"The fit in {named.name} has no law that reaches N = {', '.join(f'{value:g}' for value in params)}: "
            f"{result.predict(params[0]).reason}.{inside} Use --law levine2020 or liu2026 for a published law, or add "
            "depths, budgets or seeds to the study."
        )
    step = next((best.width_step for best in result.best), None)
    return [
        replace(
            shape or replace(result.predict(value), source="none", law="", depth_exact=None), width_step=step
        )
        for value, shape in zip(params, found, strict=True)
    ]


def shape_by(result: "Fit", params: float, within: float = WITHIN) -> Shape | None:
    """The best shape at N by a fit; None if the fit has no depth and no bound of a depth there, or the table none.

    `Shape.source` is the rule, `law` describes it:

    - `measured`: the lowest loss measured near N, or between the sizes the depth by the crossings. The interval has
      the depths between the next shallower and the next deeper measured depth that are significantly worse; it is open
      where there is none. Beyond the measured sizes it is the best depth of the largest size, if that rule had the
      lowest regret at held-out sizes;
    - `law`: the laws that the data do not reject agree on a depth (`analysis.law.prediction`), up to `REACH` times the
      largest size measured;
    - `band`: neither; there is no depth, and the interval is that of the laws.

    A depth above its width is never recommended. `band` is the interval of the laws, `reason` is why they give no
    depth, and `measured` holds the measured answer near N, if any.
    """
    from analysis.fit.sentences import LAWS, largest_size

    found, best = result.predict(params), _nearest(result, params)
    crossed = _by_crossings(result, params)
    if best is not None and (crossed is None or crossed[0] == best.depth):
        shape = _by_measured(best, found, "the lowest loss measured near this size", within)
        if crossed and best.near:
            # The crossing may lie between N and that size.
            tied = sorted(crossed[1].union(best.near))
            shape = replace(shape, depth_interval=_between_worse(tied, [item.depth for item in best.shapes]))
        return shape
    if crossed is not None:
        tried = {depth for item in result.crossings for depth in (item.shallow, item.deep)}
        return replace(
            found,
            depth_exact=crossed[0],
            depth_interval=_between_worse(sorted(crossed[1]), tried),
            level=None,
            source="measured",
            law="the crossings on both sides of this size",
            band=found.depth_interval,
            extrapolated=False,
            near_optimal=result.near_optimal(found, crossed[0], within),
        )
    largest = largest_size(result)
    far = largest is not None and params > REACH * largest * (1 + 1e-9)
    # Where the deepest model tried is the best, its depth is a lower bound and no answer for larger sizes.
    deepest = max((item.deep for item in result.crossings), default=0)
    if not far and result.best and result.best[-1].depth < deepest and _baseline_won(result):
        rule = "the best depth of the largest size measured, which had the lowest regret at held-out sizes"
        shape = _by_measured(result.best[-1], found, rule, within)
        return replace(shape, depth_interval=found.depth_interval, level=found.level, extrapolated=True)
    found = replace(found, near_optimal=result.near_optimal(found, found.depth_exact, within))
    if found.depth is not None and not far and not found.deeper_than_wide:
        return replace(found, law=": ".join(LAWS[found.laws[0]]))
    if found.depth_interval == (None, None):
        return None
    reason = found.reason
    if far and found.depth is not None:
        reason = f"N is more than {REACH:g} times the largest size measured"
    elif found.depth is not None:
        reason = "the laws give a model with more layers than its width"
    return replace(found, source="band", law="interval of the laws", depth_exact=None, reason=reason)


def _by_measured(best: "BestShape", found: Shape, rule: str, within: float) -> Shape:
    return Shape(
        params=found.params,
        depth_exact=best.depth,
        depth_interval=_between_worse(best.near, [shape.depth for shape in best.shapes]),
        level=None,
        source="measured",
        law=rule,
        reason=found.reason,
        agree_to=found.agree_to,
        band=found.depth_interval,
        measured=Measured(best.params, best.depth, best.near, len(best.shapes)),
        near_optimal=measured_near_optimal(best, within),
    )


def _baseline_won(result: "Fit") -> bool:
    """Whether the best depth of the largest size seen had the lowest mean regret at three or more held-out sizes.

    Each law is compared with it in the trials that both answered, if these are three or more.
    """
    from analysis.law.held_out import BASELINE

    regrets = {item.law: [trial.regret for trial in item.trials] for item in result.held_out}
    base = regrets.pop(BASELINE, [])
    if len(base) < LEAST_TRIALS:
        return False
    for own in regrets.values():
        pairs = zip(own, base, strict=True)
        more = [one - two for one, two in pairs if one is not None and two is not None]
        if len(more) >= LEAST_TRIALS and sum(more) < 0:
            return False
    return True
