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
from trainables.train.latency import AGREEMENT, BATCHES, Measure, ShapeTimes

#: Each shape is measured so often, seconds to minutes apart: on a shared machine whole stretches are 15 % slower.
ROUNDS = 2
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
    """Measure each shape of some cells alone, one after the other, and add it to a `costs.csv`.

    All shapes are measured, and then all of them once more; the faster measurement counts, because other work only
    slows a shape down. Rows of other devices stay, and so do the shapes that were measured before, which are not
    measured again. The file has each shape as soon as it is measured, so that nothing is lost if this is stopped.

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
    measured: list[list[ShapeTimes]] = [[] for _ in asked]
    done = 0

    def keep(lines: list[list[str]]) -> None:
        nonlocal done
        (mine,) = lines
        for line in mine[done:]:
            place = done % len(asked)
            measured[place].append(ShapeTimes.model_validate_json(line))
            _, rows, wanted = asked[place]
            for row in rows:
                kept[row.measured_as, row.batch] = _measured(
                    row, measured[place], wanted, on_gpu=device.is_gpu
                )
            done += 1
        if mine:
            write_costs(file, list(kept.values()))

    if asked:
        with console.status("") as status:

            def show(lines: list[list[str]], _: float) -> None:
                keep(lines)
                status.update(f"measuring each shape alone, twice: {done} of {ROUNDS * len(asked)}")

            text = json.dumps(
                [
                    [
                        p.cell.model_dump(mode="json"),
                        p.layout.model_dump(mode="json"),
                        plan.vocabulary,
                        wanted,
                    ]
                    for p, _, wanted in ROUNDS * asked
                ]
            )
            module = "trainables.train.latency"
            timed_lines(module, text, data, 1, math.inf, show, on_gpu=device.is_gpu)
    return Measured(
        [kept[row.measured_as, row.batch] for _, rows in shapes for row in rows],
        min(done, len(asked)),
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


def _measured(
    row: ShapeCosts, rounds: Sequence[ShapeTimes], measures: Sequence[Measure], *, on_gpu: bool
) -> ShapeCosts:
    """Return a row with the fastest of the measurements that were asked.

    A measure is unsteady if its rounds differ by more than `AGREEMENT`, or other work took a part of the processors in
    each; of one round, if its repetitions do not agree.
    """
    latencies = [latency for times in rounds for latency in times.latencies if latency.batch == row.batch]
    speeds = [times.train_tokens_per_second for times in rounds if times.train_tokens_per_second]
    values: dict[Measure, list[float]] = {
        # Times, so that the least is the best of each measure.
        "train": [1 / speed for speed in speeds],
        "prefill": [latency.prefill_ms for latency in latencies],
        "decode": [latency.decode_ms for latency in latencies],
    }
    alone: dict[Measure, list[bool]] = {
        "train": [True for _ in rounds],
        "prefill": [latency.prefill_steady for latency in latencies],
        "decode": [latency.decode_steady for latency in latencies],
    }

    def is_steady(name: Measure) -> bool:
        shares = [times.train_computing if name == "train" else times.generate_computing for times in rounds]
        if not (on_gpu or any(share is None or share >= QUIET_SHARE for share in shares)):
            return False
        times = values[name]
        return all(alone[name]) if len(times) < ROUNDS else max(times) <= min(times) * (1 + AGREEMENT)

    best = {name: min(values[name], default=None) if name in measures else None for name in values}
    return replace(
        row,
        train_tokens_per_second=max(speeds, default=None),
        prefill_ms=best["prefill"],
        decode_ms=best["decode"],
        kv_bytes_per_token=latencies[0].kv_bytes_per_token if latencies else None,
        unsteady=tuple(name for name in measures if not is_steady(name)),
    )
