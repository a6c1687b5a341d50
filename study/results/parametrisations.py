"""Compare the crossings of a study with those under other parametrisations in the same MLflow experiment."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.fit.crossing_shift import ChangedStudy, compare_fits
from analysis.fit.document import Fit, fit
from analysis.runs.table import RunTable
from study.plan.plan import Plan
from study.tracking.rows import PURPOSE, Row
from study.tracking.tables import IDENTITY

#: The key of the spec that differs.
KEY = "training.parametrisation"
#: Fields of a recipe that describe its parametrisation; under `sp` a recipe has neither.
OWN = ("parametrisation", "base")
#: Most studies compared; one parametrisation counts once for each protocol (other base shapes or rates).
MOST = 4


def parametrisation_shifts(plan: Plan, result: Fit, rows: Iterable[Row]) -> tuple[ChangedStudy, ...]:
    """The shifts of the crossings under each other parametrisation that the experiment has rows of.

    Args:
        plan: of the study.
        result: its fit.
        rows: of the ledger.
    """
    found = []
    for protocol, group in others(plan, rows).items():
        try:
            other = fit(table_of(group), level=result.level, draws=result.draws)
        except InputError:
            continue  # no row has a loss
        found.append((name_of(group[0].params), protocol, other))
    found.sort(key=lambda item: (item[0], -item[2].used, item[1]))
    names = [name for name, _, _ in found]
    own = name_of(plan.cells[0].cell.recipe.model_dump(mode="json"))
    return tuple(
        compare_fits(
            result,
            other,
            KEY,
            own,
            name if names.count(name) == 1 else f"{name} ({protocol[:6]})",
            protocol=protocol,
        )
        for name, protocol, other in found[:MOST]
    )


def others(plan: Plan, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Map each protocol to its rows of the same data and recipe under another parametrisation."""
    cell = plan.cells[0].cell
    recipe = cell.recipe.model_dump(mode="json")
    fields = type(cell.recipe).model_fields
    ours = _common(recipe, cell.data_key)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.protocol == plan.protocol or name_of(row.params) == name_of(recipe):
            continue
        params = dict(row.params)
        if params.get("deepspeed"):
            # MLflow holds DeepSpeed's options as one text.
            params["deepspeed"] = json.loads(str(params["deepspeed"]))
        theirs = {name: params[name] for name in params if name in fields}
        if _common(theirs, str(row.params.get("data_key"))) == ours:
            groups[row.protocol].append(row)
    return dict(groups)


def table_of(rows: Sequence[Row]) -> RunTable:
    """Return the run table of rows that the plan does not list."""
    stopped = any(row.loss_se is not None for row in rows)
    lines = [
        {
            **{name: row.params.get(name) for name in IDENTITY if name != "cell"},
            "cell": row.cell,
            "loss": row.loss,
            **({"loss_se": row.loss_se} if stopped else {}),
            "status": row.status,
            "reason": row.reason,
            "protocol": row.protocol,
            "purpose": row.tags.get(PURPOSE, ""),
        }
        for row in rows
    ]
    return RunTable.from_frame(pd.DataFrame(lines), source="another parametrisation")


def name_of(recipe: Mapping[str, Any]) -> str:
    """The parametrisation of a recipe or of the parameters of a row."""
    return str(recipe.get("parametrisation") or "sp")


def _common(recipe: Mapping[str, Any], data_key: str) -> dict[str, str]:
    """The settings that must be the same, as text."""
    return {
        "data_key": data_key,
        **{name: str(value) for name, value in recipe.items() if name not in OWN and value not in ({}, None)},
    }
