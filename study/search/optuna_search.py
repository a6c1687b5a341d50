"""The search of the samplers grid, tpe and gp: one Optuna study per budget, resumed from the run table alone.

Optuna chooses *candidates*: a depth and a learning-rate factor of one budget. A candidate has one cell per seed; its
value is the mean loss of its seeds. No cell is run twice: known results are passed to Optuna at once, and if a sampler
repeats itself the search takes a candidate that was not tried.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import TrialState

from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.source import Search

#: Makes a sampler of Optuna from a seed and the number of its first, random trials.
MakeSampler = Callable[[int, int], optuna.samplers.BaseSampler]

#: Optuna's parameters are ranks in the sorted lists of the spec: distances of one, whatever the depths are.
DEPTH, LR = "depth_rank", "lr_rank"
#: How often a sampler may propose a known candidate before the search picks one itself.
PATIENCE = 10


@dataclass(frozen=True)
class Candidate:
    """A depth and a learning-rate factor of one budget, with one cell per seed."""

    budget: float
    depth: int
    lr_factor: float
    cells: tuple[PlannedCell, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its cells, one per seed."""
        return tuple(planned.cell.key for planned in self.cells)


@dataclass
class _Budget:
    """The Optuna study of one budget and what is open in it."""

    index: int
    study: optuna.Study
    candidates: dict[tuple[int, int], Candidate]
    distributions: dict[str, IntDistribution]
    limit: int
    tried: set[tuple[int, int]] = field(default_factory=set)
    open: dict[tuple[int, int], optuna.Trial] = field(default_factory=dict)


class FrontierSearch(Search):
    """The candidates of a plan, in the order in which Optuna's samplers ask for them."""

    def __init__(
        self,
        plan: Plan,
        known: Mapping[str, Outcome],
        begun: Collection[str] = (),
        seed: int = 0,
        limit: int | None = None,
        make_sampler: MakeSampler | None = None,
    ) -> None:
        """Resume from known results.

        Args:
            plan: the candidates.
            known: outcomes of ended cells, by cell key.
            begun: keys of cells that were begun and have no outcome (failed or cut off): their candidates come first.
            seed: of the samplers.
            limit: how many candidates of each budget are tried; None for all.
            make_sampler: chooses among the candidates; None for a grid.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed, self._limit, self._make_sampler = seed, limit, make_sampler
        self._outcomes = dict(known)
        self._waiting: list[PlannedCell] = []
        self._begun = list(begun)
        self._given: set[str] = set()
        self._budgets = [
            self._budget(budget, candidates, index)
            for index, (budget, candidates) in enumerate(_candidates(plan).items())
        ]
        self._places: dict[str, list[tuple[_Budget, tuple[int, int]]]] = defaultdict(list)
        """The candidates of each cell: one, unless budgets share a shape."""
        for budget in self._budgets:
            for ranks, candidate in budget.candidates.items():
                for key in candidate.keys:
                    self._places[key].append((budget, ranks))
        if make_sampler is None:
            # A grid does not depend on losses: ask for all of it now, so that the longest cells of each seed start
            # first.
            for budget in self._budgets:
                while self._ask(budget):
                    pass
        else:
            for budget in self._budgets:
                self._replay(budget)
            # Cells that were running when an earlier run was cut off come before those that were waiting.
            first = {key: rank for rank, key in enumerate(self._begun)}
            self._waiting.sort(key=lambda planned: first.get(planned.cell.key, len(first)))

    @property
    def done(self) -> bool:
        """Whether every candidate that will be tried has ended or is running."""
        return not self._waiting and not any(self._may_ask(budget) for budget in self._budgets)

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if there is none."""
        if not self._waiting:
            open_ones = [budget for budget in self._budgets if self._may_ask(budget)]
            while not self._waiting and open_ones:
                # Take turns by the number tried, which is the same after a restart.
                self._ask(min(open_ones, key=lambda budget: (len(budget.tried), budget.index)))
                open_ones = [budget for budget in self._budgets if self._may_ask(budget)]
        if not self._waiting:
            return None
        return self._waiting.pop(0)

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell; pass it to Optuna once all seeds of its candidate have ended."""
        self._outcomes[key] = outcome
        for budget, ranks in self._places.get(key, ()):
            if ranks in budget.open:
                self._settle(budget, ranks)

    @property
    def total(self) -> int:
        """Cells of all candidates that will be tried, those already known included."""
        return sum(
            sum(sorted((len(c.cells) for c in b.candidates.values()), reverse=True)[: b.limit])
            for b in self._budgets
        )

    def trials(self) -> dict[float, list[optuna.trial.FrozenTrial]]:
        """Optuna's own trials of each budget, for plots."""
        return {next(iter(b.candidates.values())).budget: b.study.trials for b in self._budgets}

    def _budget(self, budget: float, candidates: Sequence[Candidate], index: int) -> _Budget:
        depths = sorted({c.depth for c in candidates})
        factors = sorted({c.lr_factor for c in candidates})
        table = {(depths.index(c.depth), factors.index(c.lr_factor)): c for c in candidates}
        # A grid's sampler remembers what it proposed; the others are made anew each time (`_suggested`).
        space = {DEPTH: list(range(len(depths))), LR: list(range(len(factors)))}
        grid = optuna.samplers.GridSampler(space, seed=self._seed + index)
        sampler = grid if self._make_sampler is None else None
        return _Budget(
            index=index,
            study=optuna.create_study(sampler=sampler, direction="minimize", study_name=f"N={budget:g}"),
            candidates=table,
            distributions={
                DEPTH: IntDistribution(0, len(depths) - 1),
                LR: IntDistribution(0, len(factors) - 1),
            },
            limit=len(table) if self._limit is None else min(len(table), self._limit),
        )

    def _replay(self, budget: _Budget) -> None:
        """Add the candidates of earlier runs: ended ones with their values, unfinished ones as open trials."""
        for ranks, candidate in sorted(budget.candidates.items()):
            if all(key in self._outcomes for key in candidate.keys):
                budget.tried.add(ranks)
                budget.study.add_trial(self._trial(budget, ranks))
            elif any(key in self._outcomes or key in self._begun for key in candidate.keys):
                self._open(budget, ranks, self._enqueued(budget, ranks))

    def _may_ask(self, budget: _Budget) -> bool:
        return len(budget.tried) < budget.limit

    def _ask(self, budget: _Budget) -> bool:
        """Ask Optuna for one more candidate and queue its missing cells; False if there is none."""
        if not self._may_ask(budget):
            return False
        if self._make_sampler is not None:
            ranks = self._suggested(budget, self._make_sampler)
            self._open(budget, ranks, self._enqueued(budget, ranks))
            return True
        for _ in budget.candidates:
            trial = budget.study.ask(dict(budget.distributions))
            ranks = (trial.params[DEPTH], trial.params[LR])
            if ranks in budget.candidates and ranks not in budget.tried:
                self._open(budget, ranks, trial)
                return True
            # A depth without a shape at this budget, or one that an earlier run has tried.
            self._tell(budget.study, trial, None)
        ranks = min(set(budget.candidates) - budget.tried)
        self._open(budget, ranks, self._enqueued(budget, ranks))
        return True

    def _suggested(self, budget: _Budget, make_sampler: MakeSampler) -> tuple[int, int]:
        """Return the candidate to try next, as a function of the candidates so far.

        The study and the random numbers are made anew each time, so that a search that was killed resumes identically.
        """
        seeds = random.Random(f"{self._seed} {budget.index} {len(budget.tried)}")
        startup = min(3, len(budget.candidates))
        study = optuna.create_study(sampler=make_sampler(seeds.randrange(2**31), startup))
        for ranks in sorted(budget.tried):
            study.add_trial(self._trial(budget, ranks))
        for _ in range(PATIENCE):
            trial = study.ask(dict(budget.distributions))
            ranks = (trial.params[DEPTH], trial.params[LR])
            if ranks in budget.candidates and ranks not in budget.tried:
                return ranks
            # A repeat (TPE proposes the same integers again) or a depth without a shape at this budget.
            value = self._value(budget.candidates[ranks]) if ranks in budget.candidates else None
            self._tell(study, trial, value)
        return seeds.choice(sorted(set(budget.candidates) - budget.tried))

    def _trial(self, budget: _Budget, ranks: tuple[int, int]) -> optuna.trial.FrozenTrial:
        """Return a candidate as a trial: running, complete or failed."""
        value = None if ranks in budget.open else self._value(budget.candidates[ranks])
        ended = TrialState.FAIL if value is None else TrialState.COMPLETE
        return optuna.trial.create_trial(
            params={DEPTH: ranks[0], LR: ranks[1]},
            distributions=dict(budget.distributions),
            value=value,
            state=TrialState.RUNNING if ranks in budget.open else ended,
        )

    @staticmethod
    def _enqueued(budget: _Budget, ranks: tuple[int, int]) -> optuna.Trial:
        """Make Optuna propose a given candidate."""
        budget.study.enqueue_trial({DEPTH: ranks[0], LR: ranks[1]})
        return budget.study.ask(dict(budget.distributions))

    def _open(self, budget: _Budget, ranks: tuple[int, int], trial: optuna.Trial) -> None:
        budget.tried.add(ranks)
        budget.open[ranks] = trial
        missing = [
            planned
            for planned in budget.candidates[ranks].cells
            if planned.cell.key not in self._outcomes and planned.cell.key not in self._given
        ]
        self._given.update(planned.cell.key for planned in missing)
        self._waiting.extend(missing)
        # All shapes of one seed before the next, so that an unfinished study has whole curves. Within a seed the
        # longest first, so that no worker is left with a long cell at the end.
        seeds = [planned.cell.seed for planned in budget.candidates[ranks].cells]
        self._waiting.sort(key=lambda p: (seeds.index(p.cell.seed) if p.cell.seed in seeds else 0, -p.flops))
        self._settle(budget, ranks)

    def _settle(self, budget: _Budget, ranks: tuple[int, int]) -> None:
        """Pass a candidate's value to Optuna if all its seeds have ended."""
        candidate = budget.candidates[ranks]
        if all(key in self._outcomes for key in candidate.keys):
            self._tell(budget.study, budget.open.pop(ranks), self._value(candidate))

    def _value(self, candidate: Candidate) -> float | None:
        """Return the mean loss over the seeds that have one; None if none has."""
        losses = [
            outcome.loss
            for key in candidate.keys
            if (outcome := self._outcomes.get(key))
            and outcome.loss is not None
            and math.isfinite(outcome.loss)
        ]
        return sum(losses) / len(losses) if losses else None

    @staticmethod
    def _tell(study: optuna.Study, trial: optuna.Trial, value: float | None) -> None:
        try:
            if value is None:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, value)
        except RuntimeError as error:
            # GridSampler calls Study.stop at its last point, which ask-and-tell forbids; the value is recorded.
            if "Study.stop" not in str(error):
                raise


def _candidates(plan: Plan) -> dict[float, list[Candidate]]:
    """Return the plan's cells by budget and candidate, in the plan's order."""
    groups: dict[tuple[float, int, float], list[PlannedCell]] = defaultdict(list)
    for planned in plan.cells:
        groups[planned.budget, planned.cell.shape.depth, planned.lr_factor].append(planned)
    result: dict[float, list[Candidate]] = defaultdict(list)
    for (budget, depth, factor), cells in groups.items():
        result[budget].append(Candidate(budget, depth, factor, tuple(cells)))
    return result
