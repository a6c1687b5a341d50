"""Recommend a depth and a width for a size or a compute: by a fit, by a law, or by all published evidence."""

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
    recommend_one,
    shapes_of_sizes,
)
from analysis.fit.recommendation import NamedFit
from analysis.law.near_optimal import Within
from analysis.law.shape import ComputeShape, Recommendation, looks_like_flops
from core.command_line import call, option
from core.errors import InputError
from core.files import to_json
from interplay.fit_files import fit_file
from interplay.recommended import Recommended, shapes_view
from interplay.result import VerbResult

if TYPE_CHECKING:
    # It loads pandas, which a published law does not need.
    from interplay.answer import Answer


def recommend(
    params: float | str | None = None,
    *,
    flops: float | str | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
    results: str | Path = "results",
) -> Recommended:
    """Return the best shape of N non-embedding parameters, by a law or a fit, or by all published evidence.

        interplay.recommend("7B")
        interplay.recommend(1e9, fit="quickstart").depth
        interplay.recommend(flops=1e20)

    The attributes of the result are those of its `shape`. Without `law` and `fit` that is a `Comparison`: the shape by
    each published law, and the depths that are near-optimal by all laws of the loss. With `flops` it is the
    `ComputeShape`: depth, width, N and training tokens of least loss; of the published laws, liu2026 has a term of the
    tokens.

    Args:
        params: N, as a number or as text such as "7B".
        flops: a budget of training FLOPs instead of N, such as 1e20.
        law: levine2020, liu2026, or log3, the least depth by theory.
        fit: an answer, the path of a `fit.json` or of its folder, or the name of a study of `results`.
        within: what a near-optimal depth may lose, in the unit of the fit, or a share of the loss such as "0.5%"; by
            default 0.005 nats per token.
        results: root of the results.

    Raises:
        InputError: both `law` and `fit`, both or none of `params` and `flops`, one of these or the law is wrong, the
            file cannot be read, or there is no answer at N, which published laws have up to ten times the largest size
            that they were fitted on.
    """
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
