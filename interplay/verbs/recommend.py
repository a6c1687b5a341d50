"""Recommend a depth and a width for a size or a compute: by a fit, by a law, or by all published evidence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from analysis.audit.recommend import (
    Comparison,
    compare,
    read_sizes,
    recommend_at_compute,
    recommend_in_time,
    recommend_one,
    shapes_of_sizes,
)
from analysis.fit.recommendation import NamedFit, named_fit, read_fit
from analysis.law.at_limit import AtLimit, CostKind, Limit
from analysis.law.near_optimal import Within
from analysis.law.shape import ComputeShape, Recommendation, looks_like_flops
from core.command_line import call, option
from core.errors import InputError, shortened
from core.files import to_json
from core.numbers import is_count, parse_duration, parse_number
from interplay.fit_files import fit_file, runs_beside
from interplay.recommended import Recommended, shapes_view
from interplay.result import VerbResult

if TYPE_CHECKING:
    # It loads pandas, which a published law does not need.
    from interplay.answer import Answer


def recommend(
    params: float | str | None = None,
    *,
    flops: float | str | None = None,
    latency: float | str | None = None,
    train_time: float | str | None = None,
    kv: float | str | None = None,
    batch: int = 1,
    device: str | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
    results: str | Path = "results",
) -> Recommended:
    """Return the best shape of N non-embedding parameters, by a law or a fit, or by all published evidence.

        interplay.recommend("7B")
        interplay.recommend(1e9, fit="quickstart").depth
        interplay.recommend(flops=1e20)
        interplay.recommend(latency="5ms", fit="quickstart").width

    The attributes of the result are those of its `shape`. Without `law` and `fit` that is a `Comparison`: the shape by
    each published law, and the depths that are near-optimal by all laws of the loss. With `flops` it is the
    `ComputeShape`: depth, width, N and training tokens of least loss; of the published laws, liu2026 has a term of the
    tokens. At a limit of cost it is `AtLimit`: of every depth the largest size within the limit, by the losses of a
    study and the costs that `cost` has measured, and the depths that may be the best there.

    Args:
        params: N, as a number or as text such as "7B".
        flops: a budget of training FLOPs instead of N, such as 1e20.
        latency: instead of N the time of one token of decoding, in seconds or as text such as "5ms".
        train_time: instead of N the time of the training, in seconds or as text such as "2h"; by a study at equal
            training time the shape of least loss in this time, else by the costs of a study.
        kv: instead of N the bytes of the key-value cache per token, as a number or as text such as "64k".
        batch: sequences that are decoded at a time, of a latency.
        device: whose costs count, if several were measured.
        law: levine2020, liu2026, or log3, the least depth by theory.
        fit: an answer, the path of a `fit.json` or of its folder, or the name of a study of `results`.
        within: what a near-optimal depth may lose, in the unit of the fit, or a share of the loss such as "0.5%"; by
            default 0.005 nats per token.
        results: root of the results.

    Raises:
        InputError: both `law` and `fit`, none or several of size, FLOPs and limits, one of these or the law is wrong,
            the file cannot be read, a limit of cost without a fit or measured costs, or there is no answer at N, which
            published laws have up to ten times the largest size that they were fitted on.
    """
    if limit := limit_of(latency, train_time, kv, batch):
        if any(value is not None for value in (params, flops, law, within)):
            raise InputError(_ONE_LIMIT.format(option(_OPTIONS[limit.kind])))
        given = named(fit, results)
        timed = named_fit(given) if limit.kind is CostKind.TRAIN_TIME and given is not None else None
        if timed and timed.fit.compute and timed.fit.compute.unit == "minutes":
            if device is not None:
                raise InputError(
                    f"{option('device')} chooses among costs, and {timed.name} has the training times of its spec; "
                    "leave it out."
                )
            return Recommended(recommend_in_time(timed, limit.value), f"losses of {timed.name}")
        return Recommended(at_limit_of(limit, given, device), "measured losses and costs")
    if params is not None and flops is None and law is None and fit is None:
        return Recommended(compare([params], within)[0], "all published evidence")
    source, shape = recommend_one(named(fit, results), law, params, flops, within)
    return Recommended(shape, source)


@dataclass(frozen=True, repr=False)
class Recommendations(VerbResult):
    """The best shapes of several sizes or computes.

    Attributes:
        source: what they follow from, in words.
        shapes: one per size or compute, and of a compute one per law.
    """

    source: str
    shapes: Sequence[Comparison] | Sequence[Recommendation] | Sequence[ComputeShape]

    def to_json(self) -> Any:
        """Return the list of the shapes."""
        return to_json(self.shapes)

    def __rich__(self) -> RenderableType:
        return shapes_view(self.source, self.shapes)


def recommend_each(
    sizes: Sequence[float | str] = (),
    *,
    flops: Sequence[float | str] = (),
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
    results: str | Path = "results",
) -> Recommendations:
    """Return the best shapes of several sizes, or of several computes; arguments and errors as of `recommend`."""
    if flops:
        source = fit if fit is None or isinstance(fit, str | Path) else fit.title
        by: dict[str, Any] = {"fit": source or None, "law": law}
        if sizes:
            only_sizes = call("recommend", *sizes, **by)
            # `--flops 1e19 1e20` has a size, which looks like a number of FLOPs.
            more = [size for size in read_sizes(sizes) if looks_like_flops(size)]
            only_flops = call("recommend", **by, flops=[*flops, *more])
            raise InputError(
                f"Give sizes or budgets of FLOPs, not both. Only sizes: `{only_sizes}`. Only FLOPs: `{only_flops}`"
            )
        if within is not None:
            raise InputError(
                f"{option('within')} is for sizes, at which all depths have one N. Without it: "
                + call("recommend", **by, flops=list(flops))
            )
        return Recommendations(*recommend_at_compute(named(fit, results), law, flops))
    if fit is None and law is None:
        return Recommendations("all published evidence", compare(sizes, within))
    return Recommendations(*shapes_of_sizes(named(fit, results), law, sizes, within))


#: Kind of a limit -> its option.
_OPTIONS = {CostKind.LATENCY: "latency", CostKind.TRAIN_TIME: "train-time", CostKind.CACHE: "kv"}
_ONE_LIMIT = (
    "{} takes the place of sizes, FLOPs, laws and what may be lost; give it alone, with the fit of a study."
)


def limit_of(
    latency: float | str | None, train_time: float | str | None, kv: float | str | None, batch: int
) -> Limit | None:
    """Return the limit of cost that is given, None without one.

    Raises:
        InputError: several are given, or one is no positive duration or number.
    """
    given = {CostKind.LATENCY: latency, CostKind.TRAIN_TIME: train_time, CostKind.CACHE: kv}
    limits = [(kind, value) for kind, value in given.items() if value is not None]
    if not limits:
        return None
    if len(limits) > 1:
        raise InputError(f"Give one limit of cost, such as {option('latency', '5ms')}.")
    (kind, text) = limits[0]
    is_size = kind is CostKind.CACHE
    try:
        value = parse_number(str(text)) if is_size else parse_duration(str(text))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        what = "a number of bytes, as 64k" if is_size else "a duration above 0, as 5ms, 90s or 2h"
        raise InputError(f"{option(_OPTIONS[kind])} is {shortened(repr(text))}; give {what}.")
    if not is_count(batch):
        raise InputError(f"{option('batch')} is {batch!r}; give a number of sequences, as 8.")
    return Limit(kind, value, batch)


def at_limit_of(limit: Limit, source: Path | NamedFit | None, device: str | None) -> AtLimit:
    """Return what the losses and the measured costs of a study say about a limit.

    Raises:
        InputError: there is no fit, its folder has no run table or no costs, or as of `recommend_at_limit`.
    """
    from analysis.fit.limits import recommend_at_limit
    from analysis.fit.study import study_of
    from analysis.runs.costs import COSTS, read_costs

    if not isinstance(source, Path):
        raise InputError(
            f"{option(_OPTIONS[limit.kind])} needs the losses and the measured costs of a study: give its name or "
            f"folder, such as {option('fit', 'quickstart')}."
        )
    folder = source.parent
    costs = read_costs(folder / COSTS)
    if not costs:
        whole = folder.resolve()
        again = call("cost", whole.name, results=whole.parent)
        raise InputError(
            f"{folder} has no costs of its shapes ({COSTS}). If it is the folder of a study, measure them with "
            f"`{again}`; a table of other runs has none."
        )
    fitted = read_fit(source).fit
    study = study_of(runs_beside(folder, fitted), level=fitted.level)
    return recommend_at_limit(study, costs, limit, device)


def named(fit: "Answer | str | Path | None", results: str | Path) -> Path | NamedFit | None:
    """Return the file of a fit, or an answer under its title.

    Raises:
        SpecError: a run table, a folder without a fit, or a study that has none yet.
        InputError: neither an answer nor a path.
    """
    if fit is None:
        return None
    if isinstance(fit, str | Path):
        return fit_file(Path(fit), Path(results))
    from interplay.answer import Answer

    if not isinstance(fit, Answer):
        raise InputError(
            f"An object of type {type(fit).__name__} is no fit: give an answer of `interplay.fit`, the path of a "
            "fit.json or of its folder, or the name of a study."
        )
    return NamedFit(fit.title, fit.fit, fit.next_runs)
