"""The search of the samplers tpe and gp, resumed from the run table alone.

Optuna chooses *candidates*: a depth and a learning-rate factor of one budget. A candidate has one cell per seed; its
value is the mean loss of its seeds. No cell is run twice: if a sampler repeats itself, the search takes a candidate
that was not tried.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import TrialState

from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.source import Keys, Known, Search, seed_by_seed

#: Makes a sampler of Optuna from a seed and the number of its first, random trials.
MakeSampler = Callable[[int, int], optuna.samplers.BaseSampler]
#: The rank of a candidate's depth, and that of its factor, among those of its budget.
Ranks = tuple[int, int]

#: Optuna's parameters are ranks in the sorted lists of the spec: distances of one, whatever the depths are.
DEPTH, LR = "depth_rank", "lr_rank"
#: How often a sampler may propose a known candidate before the search picks one itself.
PATIENCE = 10


@dataclass
class _Budget:
    """The candidates of one budget, each with its cells, and those that were begun."""

    index: int
    candidates: dict[Ranks, list[PlannedCell]]
    limit: int
    tried: set[Ranks] = field(default_factory=set)

    @property
    def space(self) -> dict[str, BaseDistribution]:
        depths, factors = zip(*self.candidates, strict=True)
        return {DEPTH: IntDistribution(0, max(depths)), LR: IntDistribution(0, max(factors))}

    @property
    def is_open(self) -> bool:
        return len(self.tried) < self.limit


class CandidateSearch(Search):
    """Some candidates of each budget of a plan, in the order in which a sampler of Optuna asks for them."""

    def __init__(
        self, plan: Plan, known: Known, begun: Keys, seed: int, limit: int, make_sampler: MakeSampler
    ) -> None:
        """Resume from known results.

        Args:
            plan: the candidates.
            known: outcomes of ended cells.
            begun: keys of cells without an outcome: their candidates come first.
            seed: of the samplers.
            limit: how many candidates of each budget are tried at most.
            make_sampler: chooses among the candidates.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed, self._make_sampler = seed, make_sampler
        self._outcomes = dict(known)
        self._order = {planned.cell.key: place for place, planned in enumerate(seed_by_seed(plan))}
        self._budgets = _budgets(plan, limit)
        self.total = sum(
            budget.limit * len(next(iter(budget.candidates.values()))) for budget in self._budgets
        )
        first = {key: rank for rank, key in enumerate(begun)}
        self._waiting: list[PlannedCell] = []
        for budget in self._budgets:
            for ranks, cells in budget.candidates.items():
                if any(planned.cell.key in known or planned.cell.key in first for planned in cells):
                    self._begin(budget, ranks)
        # Cells that were running when an earlier run was cut off come before those that were waiting.
        self._waiting.sort(key=lambda planned: first.get(planned.cell.key, len(first)))

    @property
    def done(self) -> bool:
        """Whether every candidate that will be tried has ended or is running."""
        return not self._waiting and not any(budget.is_open for budget in self._budgets)

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if there is none."""
        while not self._waiting:
            able = [budget for budget in self._budgets if budget.is_open]
            if not able:
                return None
            # Take turns by the number tried, which is the same after a restart.
            budget = min(able, key=lambda one: (len(one.tried), one.index))
            self._begin(budget, self._suggested(budget))
        return self._waiting.pop(0)

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell."""
        self._outcomes[key] = outcome

    def _begin(self, budget: _Budget, ranks: Ranks) -> None:
        budget.tried.add(ranks)
        cells = budget.candidates[ranks]
        self._waiting += [planned for planned in cells if planned.cell.key not in self._outcomes]
        self._waiting.sort(key=lambda planned: self._order[planned.cell.key])

    def _suggested(self, budget: _Budget) -> Ranks:
        """Return the candidate to try next, as a function of the candidates so far.

        The study and the random numbers are made anew each time, so that a search that was killed resumes identically.
        """
        seeds = random.Random(f"{self._seed} {budget.index} {len(budget.tried)}")
        startup = min(3, len(budget.candidates))
        study = optuna.create_study(sampler=self._make_sampler(seeds.randrange(2**31), startup))
        for ranks in sorted(budget.tried):
            study.add_trial(self._trial(budget, ranks))
        for _ in range(PATIENCE):
            trial = study.ask(budget.space)
            ranks = (trial.params[DEPTH], trial.params[LR])
            if ranks in budget.candidates and ranks not in budget.tried:
                return ranks
            # A repeat (TPE proposes the same integers again) or a depth without a shape at this budget.
            value = self._value(budget.candidates.get(ranks, []))
            study.tell(trial, value, state=TrialState.FAIL if value is None else None)
        return seeds.choice(sorted(set(budget.candidates) - budget.tried))

    def _trial(self, budget: _Budget, ranks: Ranks) -> optuna.trial.FrozenTrial:
        """Return a candidate as a trial: running, complete or failed."""
        cells = budget.candidates[ranks]
        is_running = any(planned.cell.key not in self._outcomes for planned in cells)
        value = None if is_running else self._value(cells)
        ended = TrialState.FAIL if value is None else TrialState.COMPLETE
        return optuna.trial.create_trial(
            params={DEPTH: ranks[0], LR: ranks[1]},
            distributions=budget.space,
            value=value,
            state=TrialState.RUNNING if is_running else ended,
        )

    def _value(self, cells: list[PlannedCell]) -> float | None:
        """Return the mean loss over the seeds that have one; None if none has."""
        outcomes = [self._outcomes.get(planned.cell.key) for planned in cells]
        losses = [outcome.loss for outcome in outcomes if outcome and outcome.loss is not None]
        losses = [loss for loss in losses if math.isfinite(loss)]
        return sum(losses) / len(losses) if losses else None


def _budgets(plan: Plan, limit: int) -> list[_Budget]:
    """Return the budgets of a plan with their candidates in the order of their ranks."""
    groups: dict[float, dict[tuple[int, float], list[PlannedCell]]] = defaultdict(lambda: defaultdict(list))
    for planned in plan.cells:
        groups[planned.budget][planned.cell.shape.depth, planned.lr_factor].append(planned)
    budgets = []
    for index, group in enumerate(groups.values()):
        depths, factors = (sorted(set(values)) for values in zip(*group, strict=True))
        candidates = {
            (depths.index(depth), factors.index(factor)): cells
            for (depth, factor), cells in sorted(group.items())
        }
        budgets.append(_Budget(index, candidates, min(limit, len(candidates))))
    return budgets
