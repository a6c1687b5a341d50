"""`interplay plan`: the cells of a study and their costs, or one cell for training by hand."""

import sys
from collections.abc import Sequence

from study.commands import series
from study.commands.output import show
from study.plan.plan import Plan, by_hand, make_plan
from study.plan.table import plan_table
from study.spec.study import load_spec


def show_plan(spec: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print the plan of a study or of each study of a series."""
    loaded = load_spec(spec, overrides)
    if loaded.vary is None:
        plan = make_plan(loaded)
        show(plan.to_json(), plan_table(plan), as_json=as_json)
    else:
        show(*series.plan(loaded), as_json=as_json)


def show_cell(spec: str, overrides: Sequence[str], cell: str) -> None:
    """Print one cell as JSON, and on stderr the command that trains it."""
    planned = plan_of_one(spec, overrides, "--cell").planned(cell)
    print(planned.cell.model_dump_json(indent=2))
    print(f"{by_hand(planned.layout)}  # trains it, with the cell above in CELL.json", file=sys.stderr)


def plan_of_one(spec: str, overrides: Sequence[str], doing: str) -> Plan:
    """Plan a single study; a series is refused."""
    loaded = load_spec(spec, overrides)
    series.refuse_series(loaded, doing)
    return make_plan(loaded)
