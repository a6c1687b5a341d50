"""`interplay init`: write the file of a new study, planned to a given time, with a comment for each choice."""

import bisect
import functools
import math
import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console

from core.command_line import option
from core.numbers import counted, duration, human, is_number, listed
from interplay.study_file import (
    SCHEMA,
    NewStudy,
    context_of,
    data_lines,
    network_line,
    plan_of_file,
    write_study,
)
from interplay.timed_frontier import timed_sentences, timed_study
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.run.preparation import is_worth_timing, packed, time_steps
from study.spec.devices import local_device
from study.spec.frontier import TOKENS_PER_PARAMETER, FrontierSection, misses
from study.spec.study import parse_spec
from trainables.data.sources.files import list_files
from trainables.model.family import family

#: Largest budget over the smallest, in five budgets with a factor of two between neighbours.
SPAN, POINTS = 16, 5
MOST_HOURS = 100_000
#: Hours of the study whose steps are timed where the speed of the machine is not known: those of longer ones take
#: minutes.
TIMED_HOURS = 0.25
#: Depths by the largest budget: the deepest must be able to win inside the range. At 1.6e5 parameters 4 layers of
#: width 58 can; at 2.4e7 the law of Levine et al. 2020 lets 8 layers win from a width of 241, 5.6e6 parameters.
DEPTHS = ((0.0, (1, 2, 4)), (1e6, (2, 4, 8)), (3e7, (4, 8, 16, 32)))
#: Fewest training tokens: shorter trainings end inside the warm-up of small models, and their losses compare speed.
LEAST_TOKENS = 2_000_000
#: Fewest training tokens where the time allows no more.
SHORT_TOKENS = 1_000_000
SEEDS = 3
#: Largest budgets that are tried, in ratios of `STEP`.
SMALLEST, LARGEST, STEP = 5e4, 1e11, 1.05
#: Of a study for less time: the budgets of the preset `quickstart` without its smallest. Even widths give each of its
#: depths nearly the same N there.
SMALL_BUDGETS = (1730, 3100, 6900, 12_300, 27_500)
#: The same with widths that are multiples of 4.
SMALL_ROTARY_BUDGETS = (3100, 6900, 12_300, 19_200, 27_500)
#: Widths above the vocabulary limit what the embedding can pass on (Wies et al. 2021): wider models have a vocabulary
#: of `BPE_VOCABULARY` entries.
BYTES_WIDTH = 256
#: Tolerances, of which a study has the first that lets every depth have a shape at every budget.
TOLERANCES = (0.1, 0.12, 0.15, 0.2)
#: The shapes, the length and other learning rates of a study at equal N.
SHAPES = """\
  # The question is which depth is best at each size, so the deepest should win at the largest budget.
  depths: {depths}
  # Sizes N = 12·L·d², without embeddings. The time follows from the largest.
  budgets: {budgets}
  # Largest relative difference of a shape's N from its budget; every depth has a shape at every budget.
  tolerance: {tolerance}"""
LENGTH = """\
  # 20 tokens per parameter of the largest budget (Hoffmann et al. 2022), at least {least}, for every shape.
  # `tokens_per_parameter: 20` in its place trains each shape in proportion to its own N.
  tokens: {tokens}"""
RATE = """\
  # min(0.01, 0.3/width). Whether it suits your data is not known before `sensitivity` has compared rates.
  lr: {rule: width, base: 0.3, exponent: -1, cap: 0.01}"""
RATES = """\
# Also train the cells next to each crossing at half and twice the learning rate:
# sensitivity: {lr_factors: [0.5, 2.0]}"""


@dataclass(frozen=True)
class Size:
    """What a study of `init` compares, which its time follows from."""

    budgets: tuple[int, ...] | tuple[float, float]
    """All of them, or the smallest and the largest of `POINTS`."""
    depths: tuple[int, ...]
    seeds: int
    tokens: int
    network: str

    @property
    def largest(self) -> float:
        """The largest budget."""
        return self.budgets[-1]

    @property
    def is_wide(self) -> bool:
        """Whether its shallowest shapes are wider than a vocabulary of bytes."""
        return math.sqrt(self.largest / (12 * self.depths[0])) > BYTES_WIDTH

    @property
    def heads(self) -> int:
        """Attention heads of each layer."""
        return 8 if self.is_wide else 2

    @property
    def budgets_yaml(self) -> str:
        """The value of `frontier.budgets`."""
        if len(self.budgets) > 2:
            return f"[{', '.join(f'{budget:_}' for budget in self.budgets)}]"
        smallest, largest = (f"{_rounded(budget):_}" for budget in self.budgets)
        return f"{{min: {smallest}, max: {largest}, points: {POINTS}}}"

    @property
    def tolerance(self) -> float | None:
        """The value of `frontier.tolerance`: the least with a shape of each depth at each budget; None if none has."""
        shared = {"budgets": yaml.safe_load(self.budgets_yaml), "depths": self.depths, "heads": self.heads}
        if family(self.network).is_rotary:
            shared["width_multiple"] = 2 * self.heads
        for tolerance in TOLERANCES:
            try:
                if not misses(FrontierSection(**shared, tolerance=tolerance)):
                    return tolerance
            except ValueError:
                # A depth has no shape at any budget.
                continue
        return None

    def __str__(self) -> str:
        smallest, largest = (human(budget) for budget in (self.budgets[0], self.largest))
        depths = listed([str(depth) for depth in self.depths])
        return (
            f"{depths} layers at {POINTS} sizes from N = {smallest} to {largest}, {counted(self.seeds, 'seed')}, "
            f"{human(self.tokens)} training tokens per cell"
        )


def sizes(network: str) -> list[Size]:
    """Return the studies of a network that `init` can write, from the smallest.

    The smallest of the usual ones becomes smaller by its third seed, its budgets, its depth of 4, half of its tokens
    and its second seed, in this order.
    """
    usual = []
    for power in range(math.ceil(math.log(LARGEST / SMALLEST, STEP))):
        largest = SMALLEST * STEP**power
        depths = next(depths for least, depths in reversed(DEPTHS) if largest >= least)
        tokens = _rounded(max(LEAST_TOKENS, TOKENS_PER_PARAMETER * largest))
        usual.append(Size((largest / SPAN, largest), depths, SEEDS, tokens, network))
    # Widths of a rotary family are multiples of twice the heads, and leave holes at some sizes.
    usual = [size for size in usual if size.tolerance is not None]
    small = [replace(usual[0], seeds=2)]
    for less in (
        {"budgets": SMALL_ROTARY_BUDGETS if family(network).is_rotary else SMALL_BUDGETS},
        {"depths": (1, 2)},
        {"tokens": SHORT_TOKENS},
        {"seeds": 1},
    ):
        small.append(replace(small[-1], **less))
    return [*reversed(small), *usual]


def _left_out(size: Size, usual: Size) -> list[str]:
    """What a small study lacks of the smallest usual one."""
    missing = [str(depth) for depth in usual.depths if depth not in size.depths]
    return [
        *([f"sizes above {human(size.largest)}"] if size.largest < usual.largest else []),
        *([f"depth {listed(missing)}"] if missing else []),
        *([f"{counted(usual.seeds - size.seeds, 'seed')}"] if size.seeds < usual.seeds else []),
        *(["half of the training tokens"] if size.tokens < usual.tokens else []),
    ]


def init(
    name: str,
    data: str | None = None,
    *,
    hours: float | None = None,
    minutes: float | None = None,
    device: str | None = None,
    network: str = "gpt2",
    folder: str | Path = ".",
    progress: Console | None = None,
) -> NewStudy:
    """Write `NAME.yaml`, and the schema that it names for editors, into a folder.

        interplay.init("mine", "texts/", hours=2).file

    On a machine whose speed is not known, a few steps are timed first, because the plan's constants can be several
    times off. If no study is as short as the given time, the smallest is written. With `minutes` the training speed of
    each shape is measured on this machine, and depths are compared at equal training time up to these minutes.

    Args:
        name: name of the study, with or without `.yaml`.
        data: text of the user: a file, a folder or a glob pattern; None for the Python sources of this machine.
        hours: the time that the study may take, which its size follows from; by default 1.
        minutes: instead of hours the training time of one model, for which the best shape is asked.
        device: key of a device; None for that of this machine.
        folder: where both files are written.
        network: family of the models.
        progress: shows how far it is; nothing is shown by default.

    Raises:
        SpecError: the file exists, or the name, the time or the device is wrong.
        InputError: there is no such network.
        DataError: the data cannot be found.
    """
    name, folder = name.removesuffix(".yaml"), Path(folder)
    file = folder / f"{name}.yaml"
    if file.exists():
        raise SpecError(f"{file} exists, and `init` replaces no file; choose another name, or remove it.")
    if hours is not None and minutes is not None:
        raise SpecError(
            f"{option('hours', hours)} and {option('minutes', minutes)} exclude each other: hours are those of the "
            "whole study, minutes those of one model; give one of them."
        )
    hours = 1.0 if hours is None else hours
    for unit, given in (("hours", hours), ("minutes", minutes)):
        if given is not None and not (is_number(given) and 0 < given <= MOST_HOURS):
            what = (
                "the hours of the study, such as 2"
                if unit == "hours"
                else "the minutes of one model, such as 5"
            )
            raise SpecError(f"{option(unit, given)} is not between 0 and {MOST_HOURS:,}; give {what}.")
    if data is not None:
        list_files((data,), "auto", Path())
    family(network)
    device = device or local_device()
    options = [f"--data {shlex.quote(data)}"] if data is not None else []
    options += [f"--network {network}"] if network != "gpt2" else []
    options += [f"--hours {hours:g}" if minutes is None else f"--minutes {minutes:g}", f"--device {device}"]
    head = {
        "schema": SCHEMA,
        "command": " ".join(["interplay init", shlex.quote(name), *options]),
        "file": shlex.quote(file.name),
    }
    console = progress or Console(quiet=True)
    if minutes is not None:
        frontier, values = timed_study(name, data, device, network, minutes, console)
        plan = plan_of_file(name, values)
        return write_study(file, head, values, plan, device, timed_sentences(frontier, plan, minutes))
    choices = sizes(network)
    usual = next(index for index, size in enumerate(choices) if size.seeds == SEEDS)

    @functools.cache
    def study_of(size: Size) -> tuple[Plan, dict[str, object]]:
        """The plan of a study of this size, and the values of its file."""
        values = _values(data, device, size)
        return plan_of_file(name, values), values

    def fitting_in(hours: float) -> int:
        """The place of the largest study that fits, else of the smallest."""
        return max(1, bisect.bisect_right(choices, hours, key=lambda size: study_of(size)[0].hours)) - 1

    timed, _ = study_of(choices[fitting_in(min(hours, TIMED_HOURS))])
    notes = []
    if is_worth_timing(timed):
        notes = _time_steps(timed, console)
        study_of.cache_clear()
    chosen = fitting_in(hours)
    plan, values = study_of(choices[chosen])
    time = duration(plan.hours * 3600)
    if plan.hours > hours:
        notes.insert(
            0,
            f"No study is as short as {option('hours', hours)}: the smallest, which was written, takes {time}.",
        )
    if chosen < usual:
        left_out = listed(_left_out(choices[chosen], choices[usual]))
        needed = math.ceil(100 * study_of(choices[usual])[0].hours) / 100
        notes.insert(0, f"Left out, for the time: {left_out}. {option('hours', needed)} has room for them.")
    again = [f"To time the steps again: interplay try {shlex.quote(str(file))}"] if plan.planner.speed else []
    return write_study(file, head, values, plan, device, [str(choices[chosen]), *notes, *plan.notes, *again])


def _time_steps(plan: Plan, console: Console) -> list[str]:
    """Time a few steps of a study on this machine; return a sentence if they cannot be timed.

    On symbols of a random grammar, as many as the study's: its own data may take hours to pack.
    """
    grammar = {
        "kind": "hierarchy",
        "vocabulary": plan.vocabulary - 1,
        "sequences": 2000,
        "validation_sequences": 64,
    }
    spec = plan.planner.spec
    alike = make_plan(
        parse_spec({**spec.model_dump(mode="json"), "data": grammar}, "the study to time")
    ).trainable()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            packed(
                alike.planner.spec.data, spec.training.context, scratch, alike.cells[0].cell.data_key, console
            )
            time_steps(alike, scratch, console)
        except (SpecError, OSError) as error:
            return [f"The steps of this machine could not be timed: {error}"]
    return []


def _values(data: str | None, device: str, size: Size) -> dict[str, object]:
    """Return the values of `TEMPLATE` for a study of a size."""
    shapes = SHAPES.format(depths=list(size.depths), budgets=size.budgets_yaml, tolerance=size.tolerance)
    least = human(min(size.tokens, LEAST_TOKENS), 1)
    return {
        "data": data_lines(data, is_wide=size.is_wide),
        "heads": size.heads,
        "shapes": shapes,
        "length": LENGTH.format(least=least, tokens=f"{size.tokens:_}"),
        "batch": 32,
        "seeds": size.seeds,
        "context": context_of(device),
        "network": network_line(size.network),
        "rate": RATE,
        "rates": RATES,
        "device": device,
    }


def _rounded(value: float) -> int:
    """Return a value with two significant digits."""
    return int(float(f"{value:.1e}"))
