"""`interplay cost`: what each shape of a study costs in training and in use, measured alone on this machine."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType

from analysis.runs.costs import ShapeCosts
from analysis.units import BudgetUnit, budget_number
from core.command_line import call, command, relative
from core.extras import need
from core.files import to_json
from core.numbers import counted, digits, prefixed, short
from interplay.result import VerbResult
from interplay.terminal import Sentence, pasteable, text_table
from interplay.verbs.load_spec import load_spec, name_of
from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import StudySpec
from study.tracking.study_paths import study_paths
from trainables.cell import Shape
from trainables.model.family import family
from trainables.train.latency import Measure

#: Heading of each measure in the table, its field, and the batch of its row.
MEASURES = (
    ("train tokens/s", "train_tokens_per_second", 1),
    ("prefill ms", "prefill_ms", 1),
    ("decode ms", "decode_ms", 1),
    ("decode ms, batch 8", "decode_ms", 8),
    ("KV bytes/token", "kv_bytes_per_token", 1),
)


@dataclass(frozen=True, repr=False)
class StudyCosts(VerbResult):
    """The costs of a study's shapes on this machine.

    Attributes:
        name: of the study.
        file: with these rows and those of other devices.
        rows: one per shape and batch, by size and depth.
        sizes: the number at which a shape is compared with others: N, or with `frontier.flops` or `minutes` these.
        unit: of these FLOPs or minutes; None for N.
        new: number of shapes that were measured now; the others were measured before.
        left_out: shapes that were not measured, because they take several devices.
        again: the command that measures them again.
        not_logged: why the runs of the study in MLflow lack these costs, and the command that sends them; None if they
            have them, or there are none yet.
    """

    name: str
    file: Path
    rows: list[ShapeCosts]
    sizes: dict[tuple[int, int], float]
    unit: BudgetUnit | None
    new: int
    left_out: list[Shape]
    again: str
    not_logged: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay cost --json`; milliseconds, bytes and tokens per second."""
        return {
            "name": self.name,
            "file": str(self.file),
            "measured": self.new,
            "rows": to_json(self.rows),
            "left_out": [shape.model_dump() for shape in self.left_out],
        }

    def __rich__(self) -> RenderableType:
        """The shapes by size, each measure with its ratio to that of the shallowest shape of the size."""
        by_shape: dict[tuple[int, int], dict[int, ShapeCosts]] = {}
        for row in self.rows:
            by_shape.setdefault((row.depth, row.width), {})[row.batch] = row
        lines: list[list[str]] = []
        for size, group in groupby(by_shape.items(), key=lambda item: self.sizes[item[0]]):
            shapes = list(group)
            _, shallowest = min(shapes, key=lambda item: item[0])
            for index, ((depth, width), batches) in enumerate(shapes):
                # At equal FLOPs or minutes a depth has several sizes.
                base = batches if self.unit else shallowest
                place = short(size) if self.unit is None else budget_number(size, self.unit)
                cells = [_with_ratio(batches, base, field, batch) for _, field, batch in MEASURES]
                lines.append(["" if index else place, f"L{depth} d{width}", *cells])
        names = (self.unit or "N", "shape", *(name for name, _, _ in MEASURES))
        return Group(
            text_table(self.name, names, lines, left=("shape",)), *map(Sentence, self._notes()),
            pasteable("To measure again: ", self.again),
        )  # fmt: skip

    def _notes(self) -> list[str]:
        ratio = "" if self.unit else ", in parentheses its ratio to the shallowest shape of the size"
        notes = [
            f"{counted(self.new, 'shape')} measured now, in {relative(self.file)}. Each alone, twice; the faster "
            f"measurement counts{ratio}. Prefill is that of one prompt, decode that of a new token, by the plain "
            "HuggingFace model."
        ]
        if any(row.unsteady for row in self.rows):
            notes.append("~: the two measurements differ by more than 10 %, or other work ran beside.")
        if self.left_out:
            notes.append(f"{counted(len(self.left_out), 'shape')} not measured: they take several devices.")
        if self.not_logged:
            notes.append(f"The runs in MLflow lack these costs: {self.not_logged}.")
        return notes


def _with_ratio(
    batches: dict[int, ShapeCosts], shallowest: dict[int, ShapeCosts], field: str, batch: int
) -> str:
    """A measure with its ratio to that of the shallowest shape, and a mark if it is not steady."""
    value, base = getattr(batches[batch], field), getattr(shallowest[batch], field)
    if value is None:
        return "-"
    mark = "~" if field.split("_")[0] in batches[batch].unsteady else ""
    text = f"{value:,}" if isinstance(value, int) else digits(value, 3) if value < 1000 else prefixed(value)
    ratio = f" ({digits(value / base)})" if base is not None and batches is not shallowest else ""
    return f"{mark}{text}{ratio}"


def cost(
    spec: str | Path | StudySpec,
    *changes: str,
    results: str | Path = "results",
    again: bool = False,
    progress: Console | None = None,
) -> StudyCosts:
    """Measure training speed, prefill, decode and cache of each shape of a study, alone, on this machine.

        interplay.cost("quickstart").to_json()["rows"]

    The rows go to `costs.csv` in the folder of the study, and to the runs of its cells in MLflow as metrics. Shapes
    that were measured on this machine are not measured again, unless `again`. `progress` shows how far it is.

    Raises:
        SpecError: as of `load_spec`; the study is being run, this machine has not its device, or each shape takes
            several devices.
        InputError: `costs.csv` has other content.
        DataError: the data cannot be used.
    """
    from study.run.costs import measure_costs
    from study.tracking.targets import mirror_costs

    loaded = load_spec(spec, *changes, results=results)
    need("measuring costs", "train", "torch", "deepspeed", "transformers")
    plan, paths = make_plan(loaded).trainable(), study_paths(loaded, Path(results).resolve())
    cells = sorted(plan.cells, key=lambda planned: (planned.compared_at, planned.cell.shape.depth))
    if all(planned.layout.ranks > 1 for planned in cells):
        raise SpecError(
            f"every shape of {loaded.name!r} takes several devices, and `cost` measures shapes of one device only."
        )
    measures: tuple[Measure, ...] = ("train", "prefill", "decode")
    if not family(plan.planner.recipe.network).is_huggingface(plan.planner.recipe):
        measures = ("train",)
    with paths.locked():
        measured = measure_costs(
            plan, cells, measures, paths.costs, paths.data, progress or Console(quiet=True), again=again
        )
        problem = mirror_costs(loaded, paths)
    send = command("mirror", name_of(spec), *changes, results=Path(results))
    not_logged = f"{problem}. To send them: `{send}`" if problem else None
    sizes = {(p.cell.shape.depth, p.cell.shape.width): p.compared_at for p in reversed(cells)}
    again_by = call("cost", name_of(spec), *changes, results=Path(results), again=True)
    return StudyCosts(
        loaded.name,
        paths.costs,
        measured.rows,
        sizes,
        loaded.frontier.compute_unit,
        measured.new,
        measured.left_out,
        again_by,
        not_logged,
    )
