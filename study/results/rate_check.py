"""The check of the learning rate of a study: its state, and what the missing part takes by the plan."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # A status without rows, or a recommendation from a published law, loads no numerical library.
    from analysis.fit.answer import NextDepth
    from analysis.fit.document import Fit
    from analysis.fit.rate_check import RateCheck
    from analysis.fit.study import Study
    from analysis.runs.table import RunTable
    from study.plan.cells import PlannedCell
    from study.plan.plan import Plan


def study_fit(plan: "Plan", table: "RunTable", **options: Any) -> "Fit":
    """Fit the run table of a study, and plan the missing part of the check; `options` are those of `study_of`."""
    from analysis.fit.document import fit_of
    from analysis.fit.study import study_of

    study = study_of(table, **options)
    found = fit_of(study)
    following = found.next_depth and planned_depth(plan, found.next_depth)
    return replace(found, learning_rate=planned_check(plan, study), next_depth=following)


def planned_depth(plan: "Plan", following: "NextDepth") -> "NextDepth":
    """The next depth with the override that adds it, and the cells and FLOPs that this adds if they can be planned."""
    from study.errors import SpecError
    from study.spec.frontier import shapes

    spec = plan.planner.spec
    if not spec.frontier.depths:
        return following
    depths = sorted({*spec.frontier.depths, following.depth})
    more = [
        found
        for found in shapes(spec.frontier.model_copy(update={"depths": depths}))
        if found.shape.depth == following.depth
    ]
    following = replace(following, how=f"frontier.depths=[{','.join(map(str, depths))}]")
    try:
        cells = [cell for found in more for cell in plan.planner.cells(found, spec.training.seed_values)]
    except SpecError:  # the option itself reports why a shape cannot be trained
        return following
    if not cells:
        return following
    return replace(following, runs=len(cells), flops=math.fsum(cell.flops for cell in cells))


def planned_check(plan: "Plan", study: "Study") -> "RateCheck | None":
    """The check with the cells, FLOPs and seconds of its missing part by the plan, and the override that adds it.

    None if no pair of depths can be compared.
    """
    from study.plan.plan import wall_seconds

    check = study.learning_rate
    if check is None or check.checked:
        return check
    cells, key, factors = _missing_cells(plan, study)
    sets = [f"{key}=[{','.join(f'{factor:g}' for factor in factors)}]"]
    if key == "search.lr_factors":
        sets += ["sensitivity=null"] * (plan.planner.spec.sensitivity is not None)
        sets += ["search.sampler=grid"] * plan.search.chooses_cells
    return replace(
        check,
        runs=len(cells),
        how=f"add it with `{' '.join(sets)}`",
        flops=math.fsum(cell.flops for cell in cells),
        seconds=wall_seconds([(cell.seconds, cell.layout.ranks) for cell in cells], plan.slots),
    )


def _missing_cells(plan: "Plan", study: "Study") -> "tuple[list[PlannedCell], str, tuple[float, ...]]":
    """The cells of the missing part, and the key and value that add them."""
    from study.search.sensitivity_runs import sensitivity_cells
    from study.spec.search import SensitivitySection

    spec = plan.planner.spec
    parts = [study.runs, *([study.sensitivity_runs] if study.sensitivity_runs else [])]
    ended = {cell for part in parts for cell in part.frame.loc[part.frame["status"] != "failed", "cell"]}
    rates = spec.search.lr_factors
    asked = (spec.sensitivity or SensitivitySection()).lr_factors
    if len(rates) == 1:
        # Wider than asked for if all of that has been trained.
        for factors in (asked, _wider((1.0, *asked))):
            section = SensitivitySection(lr_factors=tuple(factor for factor in factors if factor != 1))
            cells = sensitivity_cells(spec.model_copy(update={"sensitivity": section}), plan, study)
            missing = [cell for cell in cells if cell.cell.key not in ended]
            if missing:
                return missing, "sensitivity.lr_factors", section.lr_factors
    # No crossing lies inside the sizes: all shapes at other rates.
    wider = _wider(rates) if len(rates) > 1 else tuple(rates[0] * factor for factor in (0.5, 1.0, 2.0))
    base = [cell for cell in plan.cells if cell.lr_factor == rates[0]]
    new = [factor for factor in wider if factor not in rates]
    return [cell for cell in base for _ in new], "search.lr_factors", wider


def _wider(factors: Sequence[float]) -> tuple[float, ...]:
    """Half of the lowest factor, the factors, and double the highest, ascending."""
    return (min(factors) / 2, *sorted(factors), max(factors) * 2)
