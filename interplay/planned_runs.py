"""The runs of the next steps of a study by its plan: their number, FLOPs and time, and the command that adds them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.fit.document import Fit
from analysis.fit.next_runs import AddedRuns, NextRuns, NextSizes
from analysis.fit.study import Study
from core.command_line import command
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan, wall_seconds
from study.search.sensitivity_runs import sensitivity_cells
from study.spec import yaml_file
from study.spec.recorded import study_source
from study.spec.search import SensitivitySection
from study.spec.study import parse_spec


def planned_runs(plan: Plan, fit: Fit, results: Path) -> NextRuns:
    """Return the runs of the next steps of a study in `results`.

    `fit` is the fit of its rows, and was not read from a file.
    """
    study = fit.study
    assert study is not None
    depth, sizes = fit.next_depth, fit.next_sizes
    return NextRuns(
        rates=_missing_rates(plan, results, study),
        depth=None if depth is None else _next_depth(plan, results, depth, fit.estimated_runs.depth),
        sizes=None if sizes is None else _next_sizes(plan, results, sizes),
    )


def _run_with(plan: Plan, results: Path, *overrides: str) -> str:
    """The command that adds something to a study."""
    return command("run", study_source(plan.planner.spec, results), *overrides, results=results)


def _next_depth(plan: Plan, results: Path, depth: int, estimated: AddedRuns | None) -> AddedRuns | None:
    """The command that adds a depth with the cells and FLOPs that it adds, or the estimate if it cannot be planned."""
    spec = plan.planner.spec
    if not spec.frontier.depths or estimated is None:
        return estimated
    depths = sorted({*spec.frontier.depths, depth})
    how = _run_with(plan, results, f"frontier.depths=[{','.join(map(str, depths))}]")
    frontier = spec.frontier.model_copy(update={"depths": depths})
    shapes = spec.model_copy(update={"frontier": frontier}).shapes
    more = [sized for sized in shapes if sized.shape.depth == depth]
    try:
        cells = [cell for sized in more for cell in plan.planner.cells(sized, spec.training.seed_values)]
    except SpecError:  # the command itself reports why a shape cannot be trained
        cells = []
    return _added(cells, how) if cells else replace(estimated, how=how)


def _added(cells: Sequence[PlannedCell], how: str) -> AddedRuns:
    return AddedRuns(len(cells), math.fsum(cell.flops for cell in cells), how=how)


def _next_sizes(plan: Plan, results: Path, missing: NextSizes) -> AddedRuns:
    """The command that adds a factor to `frontier.spread`, with the cells and FLOPs that this adds.

    Larger sizes have fewer steps, which may be too few; there is then the reason instead. Sizes at equal minutes need
    their measured speed.
    """
    spec = plan.planner.spec
    if spec.frontier.minutes is not None:
        return AddedRuns(
            0, refused="add them to `frontier.minutes` with their measured training tokens per second."
        )
    factors = sorted(spec.frontier.spread or ())
    wider = [
        *([float(f"{factors[0] ** 2 / factors[1]:.4g}")] if missing.smaller else []),
        *factors,
        *([float(f"{factors[-1] ** 2 / factors[-2]:.4g}")] if missing.larger else []),
    ]
    changed = yaml_file.changed(spec.model_dump(mode="json"), {"frontier.spread": wider})
    try:
        sizes = parse_spec(changed, f"with `frontier.spread` {wider}").shapes
        cells = [cell for size in sizes for cell in plan.planner.cells(size, spec.training.seed_values)]
    except SpecError as error:
        return AddedRuns(0, refused=str(error))
    how = _run_with(plan, results, f"frontier.spread={_exact(wider)}")
    new = [cell for cell in cells if plan.by_key(cell.cell.key) is None]
    return _added(new, how)


def _exact(values: Sequence[float]) -> str:
    """A list in an override that is read as the same numbers: another number would be another cell."""
    return (
        f"[{','.join(short if float(short := f'{value:g}') == value else repr(value) for value in values)}]"
    )


def _missing_rates(plan: Plan, results: Path, study: Study) -> AddedRuns | None:
    """The command that adds the missing part of the check of the learning rate, with its cells, FLOPs and seconds.

    None if nothing is missing, or no pair of depths can be compared.
    """
    check = study.learning_rate
    if check is None or check.checked:
        return None
    cells, key, factors = _missing_cells(plan, study)
    sets = [f"{key}={_exact(factors)}"]
    if key == "search.lr_factors":
        sets += ["sensitivity=null"] * (plan.planner.spec.sensitivity is not None)
        sets += plan.search.overrides_for_rates
    seconds = wall_seconds([(cell.seconds, cell.layout.ranks) for cell in cells], plan.slots)
    return replace(_added(cells, _run_with(plan, results, *sets)), seconds=seconds)


def _missing_cells(plan: Plan, study: Study) -> tuple[list[PlannedCell], str, tuple[float, ...]]:
    """The cells of the missing part, and the key and value that add them."""
    spec = plan.planner.spec
    parts = [study.runs, *([study.sensitivity_runs] if study.sensitivity_runs else [])]
    ended = {cell for part in parts for cell in part.frame.loc[part.frame["status"] != "failed", "cell"]}
    rates = spec.search.lr_factors
    asked = (spec.sensitivity or SensitivitySection()).lr_factors
    # `sensitivity` has the crossings in N, where depths are not compared at equal FLOPs or minutes.
    if len(rates) == 1 and spec.frontier.compute_unit is None:
        # Wider than asked for if all of that has been trained.
        for factors in (asked, _wider((1.0, *asked))):
            section = SensitivitySection(lr_factors=tuple(factor for factor in factors if factor != 1))
            cells = sensitivity_cells(spec.model_copy(update={"sensitivity": section}), plan, study)
            if missing := [cell for cell in cells if cell.cell.key not in ended]:
                return missing, "sensitivity.lr_factors", section.lr_factors
    # No crossing lies inside the sizes: all shapes at other rates.
    wider = _wider(rates) if len(rates) > 1 else tuple(rates[0] * factor for factor in (0.5, 1.0, 2.0))
    base = [cell for cell in plan.cells if cell.lr_factor == rates[0]]
    new = [factor for factor in wider if factor not in rates]
    return [cell for cell in base for _ in new], "search.lr_factors", wider


def _wider(factors: Sequence[float]) -> tuple[float, ...]:
    """Half of the lowest factor, the factors, and double the highest, ascending."""
    return (min(factors) / 2, *sorted(factors), max(factors) * 2)
