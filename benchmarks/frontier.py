"""How much loss a search for the best depth of each size gives away, in simulated worlds.

The study is the preset `frontier-search`: up to twelve depths at each of four sizes. Each sampler trains `CANDIDATES`
depths of each size; the loss of a cell is that of the world with noise of its own, the same for all samplers. The
regret is the noise-free loss of the depth with the lowest measured mean loss, less that of the best depth of the size,
in nats. The worlds differ in how the loss depends on ln L about the best depth, which moves with ln N.
"""

import math
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from analysis.curves.noise import Floats
from benchmarks.figure import Figure
from study.plan.plan import Plan, make_plan
from study.search import make_search
from study.spec.devices import cores
from study.spec.study import StudySpec, load_spec
from tests.stubs import stub_row

STUDIES = 40
SAMPLERS = ("random", "tpe", "gp", "frontier")
CANDIDATES = 4
#: Of one seed, in nats: 0.2 % of the loss of the quickstart.
NOISE = 0.003
#: Returns the loss at ln N (0 at the smallest size) and ln L.
World = Callable[[float, float], float]


def parabola(rng: np.random.Generator) -> World:
    """A parabola in ln L, as the sampler `frontier` assumes."""
    shift, best, curvature = rng.uniform(-0.2, 0.6), rng.uniform(0.3, 1.2), rng.uniform(0.01, 0.05)
    return lambda n, depth: curvature * (depth - best - shift * n) ** 2


def asymmetric(rng: np.random.Generator) -> World:
    """Too few layers cost more than too many."""
    shift, best, curvature = rng.uniform(0, 0.5), rng.uniform(0.3, 1.2), rng.uniform(0.01, 0.04)

    def loss(n: float, depth: float) -> float:
        over = depth - best - shift * n
        return curvature * (math.exp(-1.5 * over) + 1.5 * over - 1)

    return loss


def least_depth(rng: np.random.Generator) -> World:
    """The data need a least depth, a step in the loss; further layers cost a little."""
    shift, least = rng.uniform(0, 0.4), rng.uniform(0.2, 1.0)
    height, slope = rng.uniform(0.02, 0.08), rng.uniform(0.002, 0.02)
    return lambda n, depth: height / (1 + math.exp(6 * (depth - least - shift * n))) + slope * depth**2


def ripple(rng: np.random.Generator) -> World:
    """A parabola with waves of 0.004 nats, as learning rates that fit some depths better than others."""
    smooth, phase = parabola(rng), rng.uniform(0, 2 * math.pi)
    return lambda n, depth: smooth(n, depth) + 0.004 * math.sin(4 * depth + phase + n)


WORLDS = {
    "parabola": parabola,
    "asymmetric": asymmetric,
    "least depth": least_depth,
    "ripple": ripple,
}


def spec_of(sampler: str, seed: int = 0) -> StudySpec:
    """The preset with a sampler."""
    section = "" if sampler == "grid" else f", candidates: {CANDIDATES}, seed: {seed}"
    return load_spec("frontier-search", [f"search={{sampler: {sampler}{section}}}"])


def search(
    plan: Plan, sampler: str, loss: Mapping[tuple[float, int, int], float], seed: int = 0
) -> tuple[dict[float, int], float]:
    """Run a search one cell at a time.

    Args:
        plan: of the grid.
        sampler: `grid` or one of Optuna.
        loss: by budget, depth and seed.
        seed: of the sampler.

    Returns:
        The depth of the lowest mean loss by budget, and the training FLOPs.
    """
    searched = make_search(spec_of(sampler, seed), plan, {})
    losses: dict[tuple[float, int], list[float]] = {}
    flops = 0.0
    while planned := searched.take():
        place = planned.budget, planned.cell.shape.depth
        of_place = loss[(*place, planned.cell.seed)]
        losses.setdefault(place, []).append(of_place)
        flops += planned.flops
        searched.tell(stub_row(planned, of_place))
    means = {place: sum(values) / len(values) for place, values in losses.items()}
    budgets = dict.fromkeys(budget for budget, _ in means)
    best = {
        budget: min((mean, depth) for (at, depth), mean in means.items() if at == budget)[1]
        for budget in budgets
    }
    return best, flops


@cache
def grid() -> Plan:
    """The plan of the whole grid; made in each process, because a plan cannot be pickled."""
    return make_plan(spec_of("grid"))


def simulated(number: int) -> dict[tuple[str, str], tuple[list[float], float]]:
    """By world and sampler, the regret at each size of one study, and the FLOPs."""
    plan, results = grid(), {}
    for name, make in WORLDS.items():
        world = make(np.random.default_rng([number, 0]))
        smallest = min(planned.budget for planned in plan.cells)
        truth = {
            (p.budget, p.cell.shape.depth): world(math.log(p.budget / smallest), math.log(p.cell.shape.depth))
            for p in plan.cells
        }
        least = {budget: min(v for (at, _), v in truth.items() if at == budget) for budget, _ in truth}
        noise = np.random.default_rng([number, 1])
        noisy = {
            (p.budget, p.cell.shape.depth, p.cell.seed): 1.5
            + truth[p.budget, p.cell.shape.depth]
            + NOISE * noise.standard_normal()
            for p in plan.cells
        }
        for sampler in ("grid", *SAMPLERS):
            best, flops = search(plan, sampler, noisy, number)
            results[name, sampler] = [truth[b, depth] - least[b] for b, depth in best.items()], flops
    return results


def measure(folder: Path) -> list[Figure]:
    """Measure the regret of every sampler in every world; the limits are those of `frontier`."""
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("fork")) as pool:
        studies = list(pool.map(simulated, range(STUDIES)))
    figures = []
    for world in WORLDS:
        regrets: dict[str, Floats] = {
            sampler: np.concatenate([study[world, sampler][0] for study in studies])
            for sampler in ("grid", *SAMPLERS)
        }
        share = np.mean([study[world, "frontier"][1] / study[world, "grid"][1] for study in studies])
        others = "; ".join(
            f"{name} {regret.mean():.4f}, {np.quantile(regret, 0.9):.4f}"
            for name, regret in regrets.items()
            if name != "frontier"
        )
        ours = regrets["frontier"]
        print(
            f"{world}: frontier {ours.mean():.4f}, {np.quantile(ours, 0.9):.4f} at {share:.2f}; {others}",
            flush=True,
        )
        what = f"{world}: regret of {CANDIDATES} depths of each size, mean"
        figures.append(Figure(what, float(ours.mean()), "nats", 0.0015, f"{share:.2f} of the FLOPs", others))
    return figures
