"""FLOPs of each sampler over those of the grid until the same half-width, in simulated studies.

The rules are the same for all samplers and settings:

- the grid has all depths at budgets a factor of about 2.3 apart, from an eighth of the first crossing to eight times
  the last, because crossings are not known better beforehand (another learning-rate rule or twice the tokens move them
  by a factor of 2 to 3). It trains seed after seed, the largest cells first, as the sampler `grid` does;
- the other samplers choose within the same range of N: `crossing` among as many seeds as the grid, and three more sizes
  between neighbouring budgets; `tpe` and `gp` train the grid's shapes with twelve seeds, the best of a budget first;
- a cell costs N, for equal tokens;
- the depth at ten times the largest budget is estimated after every batch of half a seed of the grid, or a tenth of the
  cells so far; a sampler ends by `analysis.design.objective.reached`;
- the half-width to reach is the median of the grid with `ASKED` seeds;
- a sampler that has spent `CAP` times the cost of the grid is stopped, and counts as that.
"""

import itertools
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.design.next_cells import propose
from analysis.design.objective import Estimate, Objective, estimate, reached
from analysis.runs.table import RunTable
from benchmarks.figure import Figure
from study.plan import PlannedCell
from study.plan.plan import Plan, make_plan
from study.search import make_search
from study.spec.devices import cores
from study.spec.study import StudySpec, load_spec
from tests.simulated_study import Truth, shapes_of, simulate_matched
from tests.stubs import stub_row

#: Both together take half an hour on two cores.
STUDIES, RIVAL_STUDIES = 30, 6
#: Most seeds of a shape, more than any study here takes, and seeds of every candidate of `tpe` and `gp`.
SEEDS, RIVAL_SEEDS = 64, 12
#: With fewer seeds some grids end by chance after three, with an interval that misses.
ASKED, ASKED_STUDIES = 8, 20
MARGIN = 8.0
BETWEEN = 4
CAP = 2.0
COLUMNS = ("depth", "width", "params", "lr_factor", "lr", "seed", "loss")
#: Depth, width and seed.
Cell = tuple[int, int, int]
#: Returns the next cells for the rows so far and a number of cells; none when there are no more.
Ask = Callable[[pd.DataFrame, int], list[Cell]]


@dataclass(frozen=True)
class Setting:
    """A truth and the number of budgets of its grid."""

    truth: Truth
    count: int

    @cached_property
    def budgets(self) -> list[float]:
        depths = self.truth.depths
        low, high = self.truth.crossing(depths[0]) / MARGIN, self.truth.crossing(depths[-2]) * MARGIN
        return [float(value) for value in np.geomspace(low, high, self.count)]

    @cached_property
    def grid(self) -> list[tuple[int, int]]:
        """(depth, width), the largest first."""
        planned = {shape[:2] for shape in shapes_of(self.truth.depths, self.budgets)}
        return sorted(planned, key=lambda shape: (-shape[0] * shape[1] ** 2, shape))

    @cached_property
    def between(self) -> list[tuple[int, int]]:
        """The shapes `crossing` chooses among."""
        ends = self.budgets[0], self.budgets[-1]
        budgets = np.geomspace(*ends, BETWEEN * (self.count - 1) + 1)
        return sorted({shape[:2] for shape in shapes_of(self.truth.depths, budgets)} | set(self.grid))

    @property
    def objective(self) -> Objective:
        return Objective("depth", 10 * self.budgets[-1])

    @property
    def depth(self) -> float:
        return self.truth.best_depth(10 * self.budgets[-1])

    @property
    def batch(self) -> int:
        return max(8, len(self.grid) // 2)

    @cached_property
    def halfwidth(self) -> float:
        """The half-width to reach: the median of a grid of `ASKED` seeds, in other studies than the raced ones."""
        shapes = [(depth, width, 0.0) for depth, width in self.grid]
        widths = []
        for number in range(ASKED_STUDIES):
            rows = simulate_matched(self.truth, shapes, ASKED, (1, number))
            widths.append(
                estimate(RunTable.from_frame(rows.assign(lr_factor=1.0, lr=1.0)), self.objective).halfwidth
            )
        median = statistics.median(widths)
        if not math.isfinite(median):
            raise ValueError(
                f"{ASKED} seeds of the grid state no depth in this setting, so no search can be compared"
            )
        return median

    @cached_property
    def plan(self) -> Plan:
        """The grid as a plan, for the samplers `tpe` and `gp`."""
        return make_plan(self.spec("grid"))

    def spec(self, sampler: str) -> StudySpec:
        """The grid as a spec, with a sampler of Optuna for another name."""
        section = "" if sampler == "grid" else f", candidates: {len(self.truth.depths)}"
        overrides = (
            f"frontier.depths={list(self.truth.depths)}",
            f"frontier.budgets={self.budgets}",
            "frontier.tolerance=0.9",
            f"training.seeds={RIVAL_SEEDS}",
            f"search={{sampler: {sampler}{section}}}",
        )
        return load_spec("quickstart", overrides)


LOW, HIGH = 0.002, 0.01
#: Truths of the coverage tests; low noise is 0.2 % of the loss, high 1 %.
SETTINGS = {
    "6 depths, low noise": Setting(Truth(2.5, 0.3, (1, 2, 3, 4, 6, 8), noise=LOW), 8),
    "5 depths, low noise": Setting(Truth(3, 0.15, (2, 4, 6, 8, 10), noise=LOW), 9),
    "7 depths, high noise": Setting(Truth(3, 0.15, (2, 4, 6, 8, 10, 12, 14), noise=HIGH), 9),
    "7 depths of the paper, high noise": Setting(
        Truth(5.039, 0.0555, (6, 12, 18, 24, 30, 36, 48), noise=HIGH), 10
    ),
}


@dataclass(frozen=True)
class Raced:
    """One study of one sampler.

    Attributes:
        spent: sum of N over its cells.
        cells: how many.
        reached: whether it reached the half-width.
        held: whether its last interval contains the true depth; None if it states no depth.
        rows: its cells with their losses.
    """

    spent: float
    cells: int
    reached: bool
    held: bool | None
    rows: pd.DataFrame


def race(setting: Setting, losses: dict[Cell, float], ask: Ask, most: float = math.inf) -> Raced:
    """Train the cells of a sampler until it reaches the half-width of the setting, or has spent `most`."""
    rows: list[tuple[float, ...]] = []
    asked: list[Estimate] = []
    spent = 0.0
    while not reached(asked, setting.halfwidth) and spent < most:
        cells = ask(pd.DataFrame(rows, columns=list(COLUMNS)), max(setting.batch, len(rows) // 10))
        if not cells:
            break
        for depth, width, seed in cells:
            params = 12.0 * depth * width**2
            rows.append((depth, width, params, 1.0, 1.0, seed, losses[depth, width, seed]))
            spent += params
        asked.append(
            estimate(RunTable.from_frame(pd.DataFrame(rows, columns=list(COLUMNS))), setting.objective)
        )
    last = asked[-1]
    held = None if last.value is None else (last.low or 0.0) <= setting.depth <= (last.high or math.inf)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Raced(spent, len(rows), reached(asked, setting.halfwidth), held, frame)


def grid(setting: Setting) -> Ask:
    """Seed after seed, the largest first."""
    cells = iter([(*shape, seed) for seed in range(SEEDS) for shape in setting.grid])
    return lambda rows, count: list(itertools.islice(cells, count))


def crossing(setting: Setting) -> Ask:
    """The cells that `analysis.design.next_cells` proposes."""
    cells = [(*shape, seed) for shape in setting.between for seed in range(SEEDS)]
    left = {
        f"{depth} layers, width {width}, seed {seed}": (depth, width, seed) for depth, width, seed in cells
    }
    options = pd.DataFrame(left.values(), columns=["depth", "width", "seed"], index=list(left))
    options["flops"] = options["params"] = 12.0 * options["depth"] * options["width"] ** 2

    def ask(rows: pd.DataFrame, count: int) -> list[Cell]:
        chosen = propose(rows, options[:0], options.loc[list(left)], setting.objective, count)
        return [left.pop(choice.cell) for choice in chosen]

    return ask


def per_budget(setting: Setting, sampler: str) -> Ask:
    """The samplers `tpe` and `gp`: the best depth of each budget, every candidate with all its seeds."""
    search = make_search(setting.spec(sampler), setting.plan, {})
    taken: dict[Cell, PlannedCell] = {}

    def ask(rows: pd.DataFrame, count: int) -> list[Cell]:
        for depth, width, seed, loss in rows[["depth", "width", "seed", "loss"]].itertuples(index=False):
            planned = taken.pop((int(depth), int(width), int(seed)), None)
            if planned is not None:
                search.tell(stub_row(planned, float(loss)))
        cells: list[Cell] = []
        while len(cells) < count and (planned := search.take()) is not None:
            shape = planned.cell.shape
            cells.append((shape.depth, shape.width, planned.cell.seed))
            taken[cells[-1]] = planned
        return cells

    return ask


def losses_of(setting: Setting, number: int) -> dict[Cell, float]:
    """Return the loss of every cell of a study, the same for all samplers."""
    # A plan may take a neighbouring width if it is as near to the budget as that of `shapes_of`.
    planned = {(planned.cell.shape.depth, planned.cell.shape.width) for planned in setting.plan.cells}
    shapes = [(depth, width, 0.0) for depth, width in sorted({*setting.between, *planned})]
    frame = simulate_matched(setting.truth, shapes, SEEDS, (0, number))
    columns = (frame[name].tolist() for name in ("depth", "width", "seed", "loss"))
    return {(depth, width, seed): loss for depth, width, seed, loss in zip(*columns, strict=True)}


def studies(
    name: str, samplers: Sequence[str], count: int
) -> Iterator[tuple[Raced, dict[str, tuple[float, Raced]]]]:
    """Yield the grid of each study of a setting, and by sampler its FLOPs over those of the grid."""
    # Forked processes have the half-width and the plan that are computed here.
    assert SETTINGS[name].halfwidth > 0
    assert SETTINGS[name].plan.cells
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("fork")) as pool:
        yield from pool.map(partial(_study, name, samplers), range(count))


def _study(name: str, samplers: Sequence[str], number: int) -> tuple[Raced, dict[str, tuple[float, Raced]]]:
    setting = SETTINGS[name]
    losses = losses_of(setting, number)
    base = race(setting, losses, grid(setting))
    by_sampler = {}
    for sampler in samplers:
        ask = crossing(setting) if sampler == "crossing" else per_budget(setting, sampler)
        raced = race(setting, losses, ask, CAP * base.spent)
        ratio = raced.spent / base.spent
        by_sampler[sampler] = (ratio if raced.reached else max(CAP, ratio), raced)
    return base, by_sampler


def _missed(studies: Sequence[Raced]) -> float:
    """The share of the intervals that miss, of the studies that state a depth."""
    return 1 - statistics.fmean(study.held for study in studies if study.held is not None)


def measure(folder: Path, count: int = STUDIES, rivals: int = RIVAL_STUDIES) -> list[Figure]:
    """Measure for every setting median and 90th percentile of the ratios, and over all the coverage at the end."""
    figures, ended, grids = [], [], []
    for name, setting in SETTINGS.items():
        raced = list(studies(name, ("crossing",), count))
        beside = list(studies(name, ("tpe", "gp"), rivals))
        ended += [results["crossing"][1] for _, results in raced]
        grids += [base for base, _ in raced]
        ratios = [results["crossing"][0] for _, results in raced]
        words = f"{name}: ±{setting.halfwidth:.0%} of the depth projected"
        seeds = statistics.median(base.cells for base, _ in raced) / len(setting.grid)
        rival = ", ".join(
            f"{sampler} {statistics.median(results[sampler][0] for _, results in beside):.2f}"
            for sampler in ("tpe", "gp")
        )
        cells = statistics.median(results["crossing"][1].cells for _, results in raced)
        middle, tenth = statistics.median(ratios), float(np.quantile(ratios, 0.9))
        print(f"{words}: median {middle:.2f}, 90th percentile {tenth:.2f}; {rival}", flush=True)
        figures += [
            Figure(
                f"{words}, FLOPs over the grid's, median",
                middle,
                "ratio",
                0.33,
                f"{cells:g} cells",
                f"grid: {seeds:.1f} seeds; {rival}",
            ),
            Figure(f"{words}, 90th percentile", tenth, "ratio", 0.6),
        ]
    words = "intervals at the end of a search that miss, all settings"
    return [*figures, Figure(words, _missed(ended), "share", 0.08, "", f"grid: {_missed(grids):.2f}")]
