"""Studies with learning curves simulated from a known truth, run under a rule of early stopping as by the driver."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.plan.plan import Plan, make_plan
from study.search.early_stopping import Policy
from study.spec.study import StudySpec, parse_spec
from tests.simulated_study import Truth, shapes_of
from trainables.progress import Evaluation, evaluation_steps

STEPS = 1000
TRUTH = Truth(2.5, 0.3, (1, 2, 4))


@dataclass(frozen=True)
class Setting:
    """A truth, the sizes and seeds it is studied with, and the rule.

    The curves fall to their end as (1 - t)^1.5, by an amount that depends on size and depth, not straight in their
    logarithms, and by chance on the shape (`misfit`, relative). What a seed adds to the last loss shows little by
    little on the way, and part of it is common to all shapes of the seed.
    """

    stopping: dict[str, object]
    truth: Truth = TRUTH
    seeds: int = 4
    sizes: int = 5
    misfit: float = 0.05
    evaluations: int = 5

    def spec(self) -> StudySpec:
        ends = (self.truth.crossing(1) / 4, self.truth.crossing(2) * 4)
        widths: dict[int, list[int]] = {}
        for depth, width, _ in shapes_of(self.truth.depths, np.geomspace(*ends, self.sizes)):
            widths.setdefault(depth, []).append(width)
        return parse_spec(
            {
                "name": "curves",
                "data": {"kind": "hierarchy", "vocabulary": 8, "branching": 2, "levels": 4, "synonyms": 2},
                "frontier": {"widths": widths, "heads": 2},
                "training": {
                    **{"steps": STEPS, "batch": 16, "context": 64, "seeds": self.seeds},
                    "lr": {"rule": "fixed", "value": 0.01},
                },
                "early_stopping": self.stopping,
                "resources": {"evaluations": self.evaluations},
            }
        )

    def curves(self, plan: Plan, generator: np.random.Generator) -> dict[str, tuple[Evaluation, ...]]:
        """The evaluations of every cell of a plan, by key, if it is trained to its end."""
        truth, steps = self.truth, evaluation_steps(STEPS, self.evaluations)
        common = generator.standard_normal((self.seeds, len(steps)))
        shapes = sorted(
            {planned.cell.shape.depth * 1000 + planned.cell.shape.width for planned in plan.cells}
        )
        stray = dict(zip(shapes, generator.standard_normal(len(shapes)), strict=True))
        found = {}
        for planned in plan.cells:
            depth, width = planned.cell.shape.depth, planned.cell.shape.width
            params = 12.0 * depth * width**2
            x = math.log(params / truth.crossing(1))
            loss = float(truth.loss(depth, np.array([params]))[0])
            fall = 0.15 * loss * math.exp(-0.05 * x + 0.02 * x**2 + self.misfit * stray[depth * 1000 + width])
            fall *= 1 + 0.3 * math.log(depth)
            own = generator.standard_normal(len(steps))
            unit = math.sqrt(truth.shared) * common[planned.cell.seed] + math.sqrt(1 - truth.shared) * own
            share = np.array(steps) / STEPS
            noise = share * unit[-1] + np.sqrt(1 - share**2) * unit
            losses = loss + fall * (1 - share) ** 1.5 + truth.noise * loss * (2 - share) * noise
            found[planned.cell.key] = tuple(
                Evaluation(step=step, loss=value) for step, value in zip(steps, losses.tolist(), strict=True)
            )
        return found


@dataclass(frozen=True)
class Stopped:
    """A study under a rule, and the same trained to its end; `share` is of its FLOPs that were spent."""

    rows: pd.DataFrame
    whole: pd.DataFrame
    share: float


def run(setting: Setting, spec: StudySpec, plan: Plan, seed: int, slots: int = 4) -> Stopped:
    """Run a simulated study on so many slots, whose cells start and end together."""
    policy = Policy(spec)
    curves = setting.curves(plan, np.random.default_rng([7, seed]))
    cells = sorted(plan.cells, key=lambda planned: (planned.cell.seed, -planned.flops))
    rows, whole, spent = [], [], 0.0
    for first in range(0, len(cells), slots):
        some = cells[first : first + slots]
        judges = [policy.judge(planned) for planned in some]
        for planned, judge in zip(some, judges, strict=True):
            shape, seen = planned.cell.shape, curves[planned.cell.key]
            row = {"depth": shape.depth, "params": float(shape.budget_params), "seed": planned.cell.seed}
            whole.append({**row, "loss": seen[-1].loss})
            ends = ((i, judge(e)) for i, e in enumerate(seen[:-1])) if judge else ()
            last, ending = next(((i, end) for i, end in ends if end), (len(seen) - 1, None))
            policy.ended(planned, "stopped" if ending else "done", seen[: last + 1])
            spent += planned.flops * seen[last].step / STEPS
            if ending is None:
                rows.append({**row, "loss": seen[-1].loss, "loss_se": 0.0})
            elif ending.loss is not None:
                rows.append({**row, "loss": ending.loss, "loss_se": ending.loss_se})
    return Stopped(pd.DataFrame(rows), pd.DataFrame(whole), spent / sum(planned.flops for planned in cells))


def planned(setting: Setting) -> tuple[StudySpec, Plan]:
    """The spec and the plan of a setting; they are the same for all of its studies."""
    spec = setting.spec()
    return spec, make_plan(spec)
