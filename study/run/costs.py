"""Measure what each shape of a study costs, alone on this machine, and keep the rows in its `costs.csv`."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from analysis.runs.costs import ShapeCosts, read_costs, write_costs
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.speed import machine
from study.run.preparation import QUIET_SHARE, packed, timed_lines
from trainables.cell import Shape
from trainables.record import versions
from trainables.train.latency import BATCHES, Measure, ShapeTimes

#: Each measure, and its column.
COLUMNS: dict[Measure, str] = {
    "train": "train_tokens_per_second",
    "prefill": "prefill_ms",
    "decode": "decode_ms",
}


@dataclass(frozen=True)
class Measured:
    """The costs of a study's shapes on this machine.

    Attributes:
        rows: of the shapes, also of those that were measured before.
        new: number of shapes that were measured now.
        left_out: shapes that were not measured, because they take several devices.
    """

    rows: list[ShapeCosts]
    new: int
    left_out: list[Shape]


def measure_costs(
    plan: Plan,
    cells: Iterable[PlannedCell],
    measures: Sequence[Measure],
    file: Path,
    data: str | Path,
    console: Console,
    *,
    again: bool = False,
) -> Measured:
    """Measure each shape of some cells once, one after the other, and add it to a `costs.csv`.

    Rows of other devices stay, and so do the shapes that were measured before, which are not measured again. The file
    has each shape as soon as it is measured, so that nothing is lost if this is stopped.

    Args:
        plan: of the study, for this machine.
        cells: of the shapes.
        measures: what is measured.
        file: the `costs.csv`.
        data: folder or URI of the packed data.
        console: for one line of progress.
        again: measure all shapes again.

    Raises:
        InputError: the file has other content.
        SpecError: this machine has not the device of the study, or a shape cannot be measured.
        DataError: the data cannot be used.
    """
    planner = plan.planner
    device = planner.layouts.device
    if (processors := machine(device)) is None:
        raise SpecError(
            f"this machine has no {device.name}, the `resources.device` of {plan.name!r}; measure on a machine that "
            "has one, or set `resources.device=auto`."
        )
    by_shape = {planned.cell.shape: planned for planned in cells}
    fitting = [planned for planned in by_shape.values() if planned.layout.ranks == 1]
    kept = {(row.measured_as, row.batch): row for row in read_costs(file)}
    shapes = [(planned, _unmeasured(plan, planned, processors)) for planned in fitting]
    asked = []
    for planned, rows in shapes:
        before = [kept.get((row.measured_as, row.batch)) for row in rows]
        if again or not all(_have(before, name) for name in measures):
            # All at once, so that a row has one date.
            asked.append(
                (planned, rows, [name for name in COLUMNS if name in measures or _have(before, name)])
            )
    if any("train" in wanted for _, _, wanted in asked):
        spec = planner.spec
        packed(spec.data, spec.training.context, data, fitting[0].cell.data_key, console)
    done = 0

    def keep(lines: list[list[str]]) -> None:
        nonlocal done
        (mine,) = lines
        for (_, rows, wanted), line in zip(asked[done:], mine[done:], strict=False):
            times = ShapeTimes.model_validate_json(line)
            for row in rows:
                kept[row.measured_as, row.batch] = _measured(row, times, wanted, on_gpu=device.is_gpu)
        if len(mine) > done:
            done = len(mine)
            write_costs(file, list(kept.values()))

    if asked:
        with console.status("") as status:

            def show(lines: list[list[str]], _: float) -> None:
                keep(lines)
                status.update(f"measuring each shape alone: {done} of {len(asked)}")

            text = json.dumps(
                [
                    [
                        p.cell.model_dump(mode="json"),
                        p.layout.model_dump(mode="json"),
                        plan.vocabulary,
                        wanted,
                    ]
                    for p, _, wanted in asked
                ]
            )
            module = "trainables.train.latency"
            timed_lines(module, text, data, 1, math.inf, show, on_gpu=device.is_gpu)
    return Measured(
        [kept[row.measured_as, row.batch] for _, rows in shapes for row in rows],
        done,
        [shape for shape, planned in by_shape.items() if planned.layout.ranks > 1],
    )


def _have(rows: Sequence[ShapeCosts | None], measure: Measure) -> bool:
    """Whether the rows of a shape at all batches have a measure."""
    return all(row is not None and getattr(row, COLUMNS[measure]) is not None for row in rows)


def _unmeasured(plan: Plan, planned: PlannedCell, processors: str) -> list[ShapeCosts]:
    """Return the rows of a shape, one for each batch, without a measure."""
    shape = planned.cell.shape
    row = ShapeCosts(
        depth=shape.depth, width=shape.width, heads=shape.heads, kv_heads=shape.key_value_heads,
        params=planned.parameters.total, device=plan.device, machine=processors, precision=plan.precision,
        context=planned.cell.recipe.context, batch=1, date=datetime.now(UTC).date().isoformat(),
        versions=", ".join(f"{name} {version}" for name, version in versions().items()),
    )  # fmt: skip
    return [replace(row, batch=batch) for batch in BATCHES]


def _measured(row: ShapeCosts, times: ShapeTimes, measures: Sequence[Measure], *, on_gpu: bool) -> ShapeCosts:
    """Return a row with the measures that were asked."""
    latency = next((latency for latency in times.latencies if latency.batch == row.batch), None)
    trained, generated = (
        on_gpu or computing is None or computing >= QUIET_SHARE
        for computing in (times.train_computing, times.generate_computing)
    )
    is_steady: dict[Measure, bool] = {
        "train": trained,
        "prefill": generated and (latency is None or latency.prefill_steady),
        "decode": generated and (latency is None or latency.decode_steady),
    }
    return replace(
        row,
        train_tokens_per_second=times.train_tokens_per_second,
        prefill_ms=latency.prefill_ms if latency and "prefill" in measures else None,
        decode_ms=latency.decode_ms if latency and "decode" in measures else None,
        kv_bytes_per_token=latency.kv_bytes_per_token if latency else None,
        unsteady=tuple(name for name in measures if not is_steady[name]),
    )
