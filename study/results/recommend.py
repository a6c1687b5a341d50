"""The best shape for a size, from a study's fit or from a published law."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import InputError
from analysis.law.projection import LEVINE2020, Law
from analysis.law.projection import recommend as project

if TYPE_CHECKING:
    # A recommendation from a published law loads no numerical library.
    from analysis.fit.document import Fit
    from analysis.law.loss_surfaces import SurfaceFit

#: Laws that can be named instead of fitted.
PUBLISHED = {"levine2020": LEVINE2020}


def recommend(
    fit_file: Path | None, name: str | None, params: Sequence[float]
) -> tuple[str, list[dict[str, Any]]]:
    """Return the source of the recommendation in words, and the best shape for each N.

    From a fit, an N near a measured budget also has `measured`: the depth of the lowest loss there and the depths that
    are statistically tied with it. If the fit has no law, the answer is that of the response surface of the losses, or
    the measured one.

    Raises:
        InputError: no size, neither or both sources are given, the law is unknown, the file cannot be read, or its fit
            has no answer for one of the sizes.
    """
    if not params:
        raise InputError("Give the sizes: --params 1e9 7e9, in non-embedding parameters.")
    if (fit_file is None) == (name is None):
        raise InputError(
            "Give one source: --fit results/NAME/fit.json for a study's own law, or --law levine2020 for the published "
            "one (not both)."
        )
    if name is not None:
        law = published_law(name)
        return f"law of {law.source}", project(law, params)
    assert fit_file is not None
    result = read_fit(fit_file)
    own = result.projection_law()
    if own is not None and own.b > 0:
        shapes = [
            {**shape, "measured": _measured(result, value)}
            for shape, value in zip(project(own, params), params, strict=True)
        ]
        return f"law of {fit_file}", shapes
    surface = next((item for item in result.surfaces if item.form == "response" and item.usable), None)
    found = {value: _without_law(result, surface, value) for value in params}
    if missing := [f"{value:g}" for value, shape in found.items() if shape is None]:
        sizes = [shape.params for shape in result.best]
        why = result.law.reason or "its slope is not positive"
        inside = f" It has measured sizes from {min(sizes):,.0f} to {max(sizes):,.0f} only." if sizes else ""
        raise InputError(
            f"The fit in {fit_file} has no law that reaches N = {', '.join(missing)}: {why}.{inside} Use --law "
            "levine2020 for the published law, or add depths, budgets or seeds to the study."
        )
    chosen = [shape for value in params if (shape := found[value]) is not None]
    by = "response surface" if all("level" in shape for shape in chosen) else "losses"
    return f"{by} of {fit_file}, which has no law", chosen


def published_law(name: str) -> Law:
    """Return a published law; InputError if there is none of this name."""
    if name not in PUBLISHED:
        raise InputError(f"There is no published law {name!r}; there is: {', '.join(PUBLISHED)}.")
    return PUBLISHED[name]


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


def _measured(result: "Fit", params: float) -> dict[str, Any] | None:
    """The best measured shape at the budget nearest to N; None if no budget is within the range of its depths."""
    from analysis.curves.budgets import SHIFT

    nearest = min(result.best, key=lambda shape: abs(math.log(shape.params / params)), default=None)
    if nearest is None or abs(math.log(nearest.params / params)) > math.log(SHIFT):
        return None
    near = None if nearest.near is None else list(nearest.near)
    return {"params": nearest.params, "depth": nearest.depth, "near": near, "compared": len(nearest.shapes)}


def _without_law(result: "Fit", surface: "SurfaceFit | None", params: float) -> dict[str, Any] | None:
    """The answer for one N without a law; None if there is none.

    The response surface if its best depth has an interval closed on both sides, because it is fitted to all sizes;
    else the best depth measured near N; else the surface with the bounds it has.
    """
    if not (math.isfinite(params) and params > 0):
        raise InputError(f"A budget is {params:g}; it must be a positive number of parameters, as 7e9.")
    measured = _measured(result, params)
    exact = None if surface is None else surface.best_depth(params)
    if surface is not None and exact is not None:
        interval = surface.best_depth_interval(params, result.level) or (None, None)
        inside = surface.params_range and surface.params_range[0] <= params <= surface.params_range[1]
        if measured is None or None not in interval:
            return {
                **_shape(params, max(1, round(exact)), interval),
                "extrapolated": not inside,
                "depth_exact": exact,
                "level": result.level,
                "law": "response surface: a quadratic in ln N and ln L",
                "measured": measured,
            }
    if measured is None:
        return None
    # The interval spans the statistically tied depths.
    near = measured["near"]
    return {
        **_shape(params, measured["depth"], (min(near), max(near)) if near else (None, None)),
        "extrapolated": False,
        "law": "the lowest loss measured near this size",
        "measured": measured,
    }


def _shape(params: float, depth: int, interval: tuple[float | None, float | None]) -> dict[str, Any]:
    """Depth and width at N with their intervals; N is fixed, so the deepest shape is the narrowest."""
    return {
        "params": params,
        "depth": depth,
        "width": max(1, round(math.sqrt(params / (12 * depth)))),
        "depth_interval": list(interval),
        "width_interval": [None if end is None else math.sqrt(params / (12 * end)) for end in interval[::-1]],
        "unbounded": None in interval,
    }
