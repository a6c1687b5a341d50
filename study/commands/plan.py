"""`interplay plan`: the cells of a study and their costs, one cell for training by hand, or the power of the study."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group

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
        return
    from study.commands import series

    document, view = series.plan(loaded)
    show(document, view, as_json=as_json)


def show_cell(spec: str, overrides: Sequence[str], cell: str) -> None:
    """Print one cell as JSON, and on stderr the command that trains it."""
    planned = _plan(spec, overrides, "--cell").planned(cell)
    print(planned.cell.model_dump_json(indent=2))
    print(f"{by_hand(planned.layout)}  # trains it, with the cell above in CELL.json", file=sys.stderr)


def show_power(
    spec: str,
    overrides: Sequence[str],
    assume: Sequence[str],
    pilot: Path | None,
    studies: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the plan of a study and the simulated width of its intervals."""
    from study.commands.power import plan_power, power_view

    plan = _plan(spec, overrides, "`power`")
    power = plan_power(plan, assume, pilot, studies, Console(stderr=True, quiet=as_json))
    document = plan.to_json() | {"power": power.to_json()}
    show(document, Group(plan_table(plan), power_view(power)), as_json=as_json)


def _plan(spec: str, overrides: Sequence[str], option: str) -> Plan:
    """Plan a single study; a series is refused."""
    loaded = load_spec(spec, overrides)
    if loaded.vary is not None:
        from study.commands.series import refuse_series

        refuse_series(loaded, option)
    return make_plan(loaded)
