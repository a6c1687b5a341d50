"""`interplay init`: write the file of a new study, planned to a given time, with a comment for each choice."""

import bisect
import functools
import json
import math
import shlex
import tempfile
from pathlib import Path

import yaml
from rich.console import Console

from analysis.numbers import duration
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.run.preparation import is_worth_timing, packed, time_steps
from study.spec.devices import local_device
from study.spec.schema import json_schema
from study.spec.study import TOKENS_PER_PARAMETER, parse_spec

#: The schema that editors read, beside the file of the study.
SCHEMA = "interplay.schema.json"
#: Largest budget over the smallest, in five budgets with a factor of two between neighbours.
SPAN, POINTS = 16, 5
MOST_HOURS = 100_000
#: Hours of the study whose steps are timed where the speed of the machine is not known: those of longer ones take
#: minutes.
TIMED_HOURS = 0.25
#: Depths by the largest budget: the deepest must be able to win inside the range. At 1.6e5 parameters 4 layers of
#: width 58 can; at 2.4e7 the law of Levine et al. 2020 lets 8 layers win from a width of 241, 5.6e6 parameters.
DEPTHS = ((0.0, [1, 2, 4]), (1e6, [2, 4, 8]), (3e7, [4, 8, 16, 32]))
#: Fewest training tokens: shorter trainings end inside the warm-up of small models, and their losses compare speed.
LEAST_TOKENS = 2_000_000
#: Largest budgets that are tried, in ratios of `STEP`.
SMALLEST, LARGEST, STEP = 5e4, 1e11, 1.05
#: Widths above the vocabulary limit what the embedding can pass on (Wies et al. 2021): wider models have a vocabulary
#: of `BPE_VOCABULARY` entries.
BYTES_WIDTH, BPE_VOCABULARY = 256, 4096

TEMPLATE = """\
# yaml-language-server: $schema={schema}
# Written by: {command}
# {cells} cells, about {time}. `interplay plan {file}` shows them, `interplay run {file}` trains them.
# Keys that are not here have their defaults; docs/spec.md lists all.
data:
{data}

frontier:
  # The question is which depth is best at each size, so the deepest should win at the largest budget.
  depths: {depths}
  heads: {heads}
  # Sizes N = 12·L·d², without embeddings. The time follows from the largest.
  budgets: {{min: {smallest}, max: {largest}, points: {points}}}

training:
  # 20 tokens per parameter of the largest budget (Hoffmann et al. 2022), but at least 2 million.
  tokens: {tokens}
  context: {context}
  batch: 32
  # min(0.01, 0.3/width). Whether it suits your data is not known before `sensitivity` has compared rates.
  lr: {{rule: width, base: 0.3, exponent: -1, cap: 0.01}}
  # One seed gives no interval.
  seeds: 3

# Also train the cells next to each crossing at half and twice the learning rate:
# sensitivity: {{lr_factors: [0.5, 2.0]}}

resources:
  device: {device}
"""


def init(name: str, data: Path | None, hours: float, device: str | None, folder: Path) -> list[str]:
    """Write `NAME.yaml`, and the schema that it names for editors, into a folder; return sentences about the study.

    On a machine whose speed is not known, a few steps are timed first, because the plan's constants can be several
    times off.

    Args:
        name: name of the study, with or without `.yaml`.
        data: text of the user, a file or a folder; None for the Python sources of this machine.
        hours: the time that the study may take, which the largest budget follows from.
        device: key of a device; None for that of this machine.
        folder: where both files are written.

    Raises:
        SpecError: the file exists, the name, the data or the device is wrong, or the time is too short.
    """
    name = name.removesuffix(".yaml")
    file = folder / f"{name}.yaml"
    if file.exists():
        raise SpecError(f"{file} exists, and `init` replaces no file; choose another name, or remove it.")
    if not 0 < hours <= MOST_HOURS:
        raise SpecError(
            f"--hours {hours:g} is not between 0 and {MOST_HOURS:,}; give the hours of the study, such as 2."
        )
    if data is not None and not data.exists():
        raise SpecError(f"--data {data} does not exist; name a file or a folder of text.")
    device = device or local_device()
    budgets = [SMALLEST * STEP**power for power in range(math.ceil(math.log(LARGEST / SMALLEST, STEP)))]
    options = [f"--data {shlex.quote(str(data))}"] if data is not None else []
    options += [f"--hours {hours:g}", f"--device {device}"]
    head = {
        "schema": SCHEMA,
        "command": " ".join(["interplay init", shlex.quote(name), *options]),
        "file": shlex.quote(file.name),
    }

    @functools.cache
    def study_of(budget: float) -> tuple[Plan, str]:
        """The plan of the study with this largest budget, and the text of its file."""
        values = _values(data, device, budget)
        # Without the head: a name that the spec refuses may hold a line break.
        raw = yaml.safe_load(TEMPLATE.format(cells="", time="", **dict.fromkeys(head, ""), **values))
        plan = make_plan(parse_spec({"name": name, **raw}, f"the study {name}"))
        time = duration(plan.hours * 3600)
        return plan, TEMPLATE.format(cells=len(plan.cells), time=time, **head, **values)

    def fitting_in(hours: float) -> int:
        return bisect.bisect_right(budgets, hours, key=lambda budget: study_of(budget)[0].hours)

    timed, _ = study_of(budgets[max(1, fitting_in(min(hours, TIMED_HOURS))) - 1])
    notes = []
    if is_worth_timing(timed):
        notes = _time_steps(timed)
        study_of.cache_clear()
    fitting = fitting_in(hours)
    if not fitting:
        least = duration(study_of(SMALLEST)[0].hours * 3600)
        raise SpecError(
            f"--hours {hours:g} is too short: the smallest study takes {least} on {device}; give more."
        )
    plan, text = study_of(budgets[fitting - 1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCHEMA).write_text(json.dumps(json_schema(), indent=1), encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    shown = shlex.quote(str(file))
    return [
        f"{file}: {len(plan.cells)} cells, about {duration(plan.hours * 3600)} on {device}.",
        *plan.notes,
        *notes,
        f"Next: interplay plan {shown}, then interplay run {shown}",
    ]


def _time_steps(plan: Plan) -> list[str]:
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
    alike = make_plan(parse_spec({**spec.model_dump(mode="json"), "data": grammar}, "the study to time"))
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as scratch, console.status("timing a few steps of this machine"):
        try:
            packed(
                alike.planner.spec.data, spec.training.context, scratch, alike.cells[0].cell.data_key, console
            )
            time_steps(alike, scratch)
        except (SpecError, OSError) as error:
            return [f"The steps of this machine could not be timed: {error}"]
    return []


def _values(data: Path | None, device: str, budget: float) -> dict[str, object]:
    """Return the values of `TEMPLATE` for a largest budget of N parameters."""
    depths = next(depths for least, depths in reversed(DEPTHS) if budget >= least)
    is_wide = math.sqrt(budget / (12 * depths[0])) > BYTES_WIDTH
    source = [
        "  # The Python sources of this machine; for your own text `path: FILE or FOLDER` instead.",
        "  kind: python-source",
    ]
    if data is not None:
        source = [f"  path: {json.dumps(str(data.resolve()), ensure_ascii=False)}"]
    if is_wide:
        source += [
            "  # A model wider than its vocabulary gains little from the width (Wies et al. 2021).",
            "  tokenizer: bpe",
            f"  vocabulary: {BPE_VOCABULARY}",
        ]
    return {
        "data": "\n".join(source),
        "depths": depths,
        "heads": 8 if is_wide else 2,
        "smallest": f"{_rounded(budget / SPAN):_}",
        "largest": f"{_rounded(budget):_}",
        "points": POINTS,
        "context": 128 if device == "cpu" else 512,
        "tokens": f"{_rounded(max(LEAST_TOKENS, TOKENS_PER_PARAMETER * budget)):_}",
        "device": device,
    }


def _rounded(value: float) -> int:
    """Return a value with two significant digits."""
    return int(float(f"{value:.1e}"))
