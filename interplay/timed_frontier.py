"""Choose the shapes of a study at equal training time, and measure their training speed on this machine."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from analysis.units import minutes_text
from core.command_line import option
from core.numbers import counted, human, listed
from interplay.study_file import context_of, data_lines, network_line
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan, make_plan
from study.plan.speed import machine
from study.run.costs import measure_costs
from study.run.preparation import is_worth_timing, packed, time_steps
from study.spec.devices import DEVICES
from study.spec.section import shape_name
from study.spec.study import StudySpec, parse_spec

#: The training times of a study, as parts of the longest. With three of them no crossing was settled in a study of a
#: minute: one depth had no least loss inside its sizes at one time, and two places do not show how a curve bends.
TIMES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
#: Sizes of a depth at a time, in ratios of `RATIO` about that with `MIDDLE_TOKENS` tokens per parameter; the same
#: ratio of all sizes lets several times share their shapes. Five sizes reach from about 5 to 200 tokens per parameter.
#: In that study, of 3e3 to 2e5 parameters on a CPU, 84 were best for one layer in a minute, 24 for four, and 14 for
#: four in 4 s.
SIDES, RATIO, MIDDLE_TOKENS = 2, 2.0, 30
#: The smallest size that may be chosen, and their number: up to 4e11 parameters.
SMALLEST, COUNT = 750.0, 30
#: Sequences of a step, the first with which no cell has fewer steps than `LEAST_STEPS` by the plan's speed. Shorter
#: cells are mostly warm-up, and below 51 steps whole ones miss the time by more than 1 %.
BATCHES, LEAST_STEPS = (32, 16, 8, 4, 2, 1), 100
#: Sequences of the random grammar on which steps are timed: the user's own data may take hours to pack.
SEQUENCES = 2000


#: The shapes, the length and other learning rates in the file of the study.
TIMED_SHAPES = """\
  width_multiple: {multiple}
  # Training minutes, with the shapes that are trained for them and their training tokens per second, each measured
  # alone by one process as a study starts it, twice, of which the faster counts, on
  # {machine}.
  # A cell has the tokens of its minutes at this speed, so that its result does not depend on what else runs. To measure
  # again, write the study again.
  minutes:
{speeds}"""
TIMED_LENGTH = "  # Every cell has at least {least} steps."
TIMED_RATE = """\
  # Muon takes fewer steps to the same loss than AdamW, and its rate is the same for every width.
  optimizer: muon
  lr: 0.02"""
TIMED_RATES = """\
# Also train every shape at half and twice the learning rate:
# search: {lr_factors: [0.5, 1, 2]}"""
TIMED_SEEDS = 2


#: Depths, heads and the multiple of the widths of a study at equal training time, on a CPU and on a GPU. Other widths
#: are slower for their size: on a CPU 4 layers of width 22 train 42 thousand tokens/s, of width 32 51 thousand.
TIMED = {"cpu": ((1, 2, 4), 2, 8), "gpu": ((2, 4, 8, 16), 8, 64)}


@dataclass(frozen=True)
class TimedFrontier:
    """The shapes that are trained for each time, with their training tokens per second.

    Attributes:
        speeds: minutes -> shape -> tokens per second, three digits.
        batch: sequences of a step with which they were measured.
        machine: the processors.
        unsteady: shapes whose measurements differ by more than 10 %, or were disturbed by other work.
    """

    speeds: dict[float, dict[str, float]]
    batch: int
    machine: str
    unsteady: tuple[str, ...]

    def fewest_steps(self, context: int) -> int:
        """The steps of the shortest cell with sequences of `context` tokens."""
        tokens = min(60 * time * speed for time, speeds in self.speeds.items() for speed in speeds.values())
        return int(tokens / (self.batch * context))

    @property
    def sizes(self) -> tuple[int, int]:
        """The least and the largest number of sizes of a depth at a time."""
        counts = []
        for speeds in self.speeds.values():
            depths = [name.partition("-")[0] for name in speeds]
            counts += [depths.count(depth) for depth in set(depths)]
        return min(counts), max(counts)


def timed_study(
    name: str, data: str | None, device: str, network: str, minutes: float, console: Console
) -> tuple[TimedFrontier, dict[str, object]]:
    """The frontier of a study at equal training time, and the values of its file."""
    on_gpu = DEVICES[device].is_gpu if device in DEVICES else False
    context, (depths, heads, multiple) = context_of(device), TIMED["gpu" if on_gpu else "cpu"]
    source = data_lines(data, is_wide=on_gpu)
    training = {"network": network, "context": context, "optimizer": "muon"}
    base = {
        "name": name,
        "data": yaml.safe_load(f"data:\n{source}")["data"],
        "frontier": {"heads": heads, "width_multiple": multiple},
        "training": training,
        "resources": {"device": device},
    }
    frontier = timed_frontier(base, depths, minutes, console)
    lines = [
        f"    {time:g}: {{{', '.join(f'{shape}: {speed:,.0f}'.replace(',', '_') for shape, speed in speeds.items())}}}"
        for time, speeds in frontier.speeds.items()
    ]
    return frontier, {
        "data": source,
        "heads": heads,
        "shapes": TIMED_SHAPES.format(machine=frontier.machine, multiple=multiple, speeds="\n".join(lines)),
        "length": TIMED_LENGTH.format(least=frontier.fewest_steps(context)),
        "batch": frontier.batch,
        "seeds": TIMED_SEEDS,
        "context": context,
        "network": network_line(network),
        "rate": TIMED_RATE,
        "rates": TIMED_RATES,
        "device": device,
    }


def timed_sentences(frontier: TimedFrontier, plan: Plan, minutes: float) -> list[str]:
    """The sentences about a study at equal training time."""
    depths = listed([str(depth) for depth in plan.planner.spec.frontier.depth_values])
    times = listed([minutes_text(time) for time in frontier.speeds])
    low, high = frontier.sizes
    sizes = f"{low}" if low == high else f"{low} to {high}"
    sentences = [
        f"{depths} layers, trained for {times} each at {sizes} sizes, {counted(TIMED_SEEDS, 'seed')}, by the speed of "
        f"each shape alone on {frontier.machine}",
        f"The answer: the best depth and width in {minutes_text(minutes)} of training, and from which time on.",
        *plan.notes,
    ]
    if frontier.unsteady:
        sentences.append(
            f"The two measurements of {listed(list(frontier.unsteady))} differ by more than 10 %, or other work ran "
            "beside, so that their times may be wrong; write the study again on a quiet machine."
        )
    return sentences


def timed_frontier(
    base: dict[str, Any], depths: Sequence[int], minutes: float, console: Console
) -> TimedFrontier:
    """Choose for each time and depth the sizes around `MIDDLE_TOKENS`, and measure their speed, each alone.

    The plan's speed chooses the shapes; if it is not known on this machine, a few steps are timed first.

    Args:
        base: a spec without shapes and length: name, `data`, `frontier` with the heads, `training`, `resources`.
        depths: layers.
        minutes: the longest training time.
        console: for lines of progress.

    Raises:
        SpecError: the time is too short for any shape, or this machine cannot measure them.
    """
    times = [float(f"{part * minutes:.4g}") for part in TIMES]
    # The step of the widths and the vocabulary follow from the rules of a spec.
    whole = _spec_of(base, {depths[0]: [64 * base["frontier"]["heads"]]})
    device = DEVICES[whole.resources.device]
    if machine(device) is None:
        raise SpecError(
            f"{option('minutes', minutes)} measures the training speed of each shape, and this machine has no "
            f"{device.name}; write the study on a machine that has one, or leave out {option('device', device.name)}."
        )
    widths = _widths(whole.frontier.step, depths)
    grammar = {
        "kind": "hierarchy",
        "vocabulary": whole.data.vocabulary_size - 1,
        "sequences": SEQUENCES,
        "validation_sequences": 64,
    }
    with tempfile.TemporaryDirectory() as scratch:
        for batch in BATCHES:
            training = {**base["training"], "batch": batch, "steps": 1000, "seeds": 1}
            spec = {**base, "data": grammar, "training": training}
            chosen = _chosen(make_plan(_spec_of(spec, widths)), depths, times)
            assumed = make_plan(_spec_of(spec, _widths_of(chosen)))
            if is_worth_timing(assumed):
                data, key = assumed.planner.spec.data, assumed.cells[0].cell.data_key
                packed(data, training["context"], scratch, key, console)
                time_steps(assumed, scratch, console)
                chosen = _chosen(make_plan(_spec_of(spec, widths)), depths, times)
            fewest = min(_steps(planned, time) for time, cells in chosen.items() for planned in cells)
            if fewest >= LEAST_STEPS:
                break
        else:
            raise _too_short(chosen, minutes)
        plan = make_plan(_spec_of(spec, _widths_of(chosen))).trainable()
        measured = measure_costs(plan, plan.cells, ["train"], Path(scratch, "costs.csv"), scratch, console)
    if measured.left_out:
        raise SpecError(
            f"shapes of {option('minutes', minutes)} take several devices, and their speed is measured on one only; "
            "give fewer minutes."
        )
    rows = {shape_name(row.depth, row.width): row for row in measured.rows if row.batch == 1}
    speeds = {
        time: {
            name: float(f"{rows[name].train_tokens_per_second or 0.0:.3g}") for name in map(_name, planned)
        }
        for time, planned in chosen.items()
    }
    unsteady = tuple(name for name, row in rows.items() if "train" in row.unsteady)
    return TimedFrontier(speeds, batch, measured.rows[0].machine, unsteady)


def _spec_of(base: Mapping[str, Any], widths: Mapping[int, Sequence[int]]) -> StudySpec:
    """A study of shapes given by their widths."""
    frontier = {**base["frontier"], "widths": {depth: list(values) for depth, values in widths.items()}}
    return parse_spec({**base, "frontier": frontier}, "the study to time")


def _widths(step: int, depths: Sequence[int]) -> dict[int, list[int]]:
    """The widths of each depth nearest to sizes in equal ratios, all of which may be chosen."""
    sizes = [SMALLEST * RATIO**power for power in range(COUNT)]
    return {
        depth: sorted({max(1, round(math.sqrt(size / (12 * depth)) / step)) * step for size in sizes})
        for depth in depths
    }


def _widths_of(chosen: Mapping[float, Sequence[PlannedCell]]) -> dict[int, list[int]]:
    """The widths of the chosen shapes by depth."""
    widths: dict[int, set[int]] = {}
    for shape in {planned.cell.shape for cells in chosen.values() for planned in cells}:
        widths.setdefault(shape.depth, set()).add(shape.width)
    return {depth: sorted(values) for depth, values in sorted(widths.items())}


def _chosen(plan: Plan, depths: Sequence[int], times: Sequence[float]) -> dict[float, list[PlannedCell]]:
    """The cells whose shapes are trained for each time."""
    return {time: _sizes_of(plan, depths, time) for time in times}


def _sizes_of(plan: Plan, depths: Sequence[int], minutes: float) -> list[PlannedCell]:
    """The shapes of each depth that are trained for a time: those on both sides of the middle tokens per parameter."""
    chosen = []
    for depth in depths:
        cells = [planned for planned in plan.cells if planned.cell.shape.depth == depth]
        ratios = [math.log(_tokens(planned, minutes) / planned.cell.shape.budget_params) for planned in cells]
        middle = min(range(len(cells)), key=lambda index: abs(ratios[index] - math.log(MIDDLE_TOKENS)))
        chosen += cells[max(0, middle - SIDES) : middle + SIDES + 1]
    return chosen


def _tokens(planned: PlannedCell, minutes: float) -> float:
    """The training tokens of a time by the plan's speed."""
    recipe = planned.cell.recipe
    return 60 * minutes * recipe.batch * recipe.context / planned.costs.of_any_layout.step_seconds


def _steps(planned: PlannedCell, minutes: float) -> float:
    recipe = planned.cell.recipe
    return _tokens(planned, minutes) / (recipe.batch * recipe.context)


def _name(planned: PlannedCell) -> str:
    return shape_name(planned.cell.shape.depth, planned.cell.shape.width)


def _too_short(chosen: dict[float, list[PlannedCell]], minutes: float) -> SpecError:
    steps, planned = min(
        ((_steps(planned, time), planned) for time, cells in chosen.items() for planned in cells),
        key=lambda item: item[0],
    )
    shape = planned.cell.shape
    # A tenth more, because other sizes belong to another time.
    enough = float(f"{1.1 * minutes * LEAST_STEPS / steps:.2g}")
    return SpecError(
        f"{option('minutes', minutes)} is too short: in a sixteenth of it, the shortest time of the study, "
        f"L{shape.depth} d{shape.width} ({human(shape.budget_params)} parameters) has {steps:.0f} steps, of the "
        f"{LEAST_STEPS} that outlast the warm-up. Give {option('minutes', enough)}."
    )
