"""The samplers grid, tpe and gp: one Optuna study per budget, asked and told from the run table alone.

Optuna chooses *candidates*: a depth and a learning-rate factor of one budget. A candidate has one cell a seed; its
value is the mean loss of its seeds. No cell is ever run twice: what the ledger knows is told at once, and a sampler
that repeats itself is moved on to a candidate nobody has tried.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import TrialState

from study.plan.plan import Plan, PlannedCell
from study.search.source import Candidate, Outcome
from study.spec.study import SearchSection

#: Optuna's parameters are ranks in the sorted lists of the spec: distances of one, whatever the depths are.
DEPTH, LR = "depth_rank", "lr_rank"
#: How often a sampler may propose what is known before the search takes the next candidate by itself.
PATIENCE = 10


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


class FrontierSearch:
    """The candidates of a plan, in the order Optuna's samplers want them."""

    def __init__(
        self,
        plan: Plan,
        search: SearchSection,
        known: Mapping[str, Outcome],
        begun: Collection[str] = (),
    ) -> None:
        """Begin from what is known.

        Args:
            plan: the candidates.
            search: the sampler and its limits.
            known: outcomes of cells that ended before, by cell key.
            begun: keys of cells that were begun and have no outcome (failed, or cut off): their candidates come first.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        self._outcomes = dict(known)
        self._waiting: list[PlannedCell] = []
        self._begun = list(begun)
        self._given: set[str] = set()
        self._budgets = [
            self._budget(budget, candidates, index)
            for index, (budget, candidates) in enumerate(_candidates(plan).items())
        ]
        self._places: dict[str, list[tuple[_Budget, tuple[int, int]]]] = defaultdict(list)
        """The candidates a cell is of: one, unless budgets share a shape."""
        for budget in self._budgets:
            for ranks, candidate in budget.candidates.items():
                for key in candidate.keys:
                    self._places[key].append((budget, ranks))
        if search.sampler == "grid":
            # A grid adapts to nothing, so all of it is asked for now, and the longest cells of each seed start first.
            for budget in self._budgets:
                while self._ask(budget):
                    pass
        else:
            for budget in self._budgets:
                self._replay(budget)
            # What ran when an earlier run was cut off runs again before anything that still waited then.
            first = {key: rank for rank, key in enumerate(self._begun)}
            self._waiting.sort(key=lambda planned: first.get(planned.cell.key, len(first)))

    @property
    def done(self) -> bool:
        """Whether every candidate that will be tried has ended or is running."""
        return not self._waiting and not any(self._may_ask(budget) for budget in self._budgets)

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None where there is none."""
        if not self._waiting:
            open_ones = [budget for budget in self._budgets if self._may_ask(budget)]
            while not self._waiting and open_ones:
                # In turn, by what was tried and not by a count of our own, so that another run takes the same turn.
                self._ask(min(open_ones, key=lambda budget: (len(budget.tried), budget.index)))
                open_ones = [budget for budget in self._budgets if self._may_ask(budget)]
        if not self._waiting:
            return None
        return self._waiting.pop(0)

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record how a cell ended, and tell Optuna once all seeds of its candidate have."""
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
        limit = len(table)
        if self._search.candidates is not None:
            limit = min(limit, self._search.candidates)
        # A grid's sampler knows what it has given; the others are asked anew each time (`_suggested`).
        space = {DEPTH: list(range(len(depths))), LR: list(range(len(factors)))}
        grid = optuna.samplers.GridSampler(space, seed=self._search.seed + index)
        sampler = grid if self._search.sampler == "grid" else None
        return _Budget(
            index=index,
            study=optuna.create_study(sampler=sampler, direction="minimize", study_name=f"N={budget:g}"),
            candidates=table,
            distributions={
                DEPTH: IntDistribution(0, len(depths) - 1),
                LR: IntDistribution(0, len(factors) - 1),
            },
            limit=limit,
        )

    def _replay(self, budget: _Budget) -> None:
        """Give Optuna what earlier runs did: ended candidates with their values, and unfinished ones to go on with."""
        for ranks, candidate in sorted(budget.candidates.items()):
            if all(key in self._outcomes for key in candidate.keys):
                budget.tried.add(ranks)
                budget.study.add_trial(self._trial(budget, ranks))
            elif any(key in self._outcomes or key in self._begun for key in candidate.keys):
                self._open(budget, ranks, self._enqueued(budget, ranks))

    def _may_ask(self, budget: _Budget) -> bool:
        return len(budget.tried) < budget.limit

    def _ask(self, budget: _Budget) -> bool:
        """Ask Optuna for one more candidate and queue its missing cells; False where the budget has no more."""
        if not self._may_ask(budget):
            return False
        if self._search.sampler != "grid":
            ranks = self._suggested(budget)
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

    def _suggested(self, budget: _Budget) -> tuple[int, int]:
        """What the sampler would try next, by the candidates so far and by nothing else.

        Its study and its random numbers are made anew, because a search that was killed has no others to go on with.
        """
        seeds = random.Random(f"{self._search.seed} {budget.index} {len(budget.tried)}")
        study = optuna.create_study(sampler=self._sampler(budget, seeds.randrange(2**31)))
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

    def _sampler(self, budget: _Budget, seed: int) -> optuna.samplers.BaseSampler:
        startup = min(3, len(budget.candidates))
        if self._search.sampler == "tpe":
            return optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=startup
            )
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, deterministic_objective=False)

    def _trial(self, budget: _Budget, ranks: tuple[int, int]) -> optuna.trial.FrozenTrial:
        """A candidate as Optuna knows it: running, ended with its value, or failed."""
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
        """Make Optuna ask for a given candidate."""
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
        # All shapes of one seed before the next seed, so that a study cut short still has whole curves; within a
        # seed the longest first, so that no slot is left alone with a long cell at the end.
        seeds = [planned.cell.seed for planned in budget.candidates[ranks].cells]
        self._waiting.sort(key=lambda p: (seeds.index(p.cell.seed) if p.cell.seed in seeds else 0, -p.flops))
        self._settle(budget, ranks)

    def _settle(self, budget: _Budget, ranks: tuple[int, int]) -> None:
        """Tell Optuna a candidate's value if all its seeds have ended."""
        candidate = budget.candidates[ranks]
        if all(key in self._outcomes for key in candidate.keys):
            self._tell(budget.study, budget.open.pop(ranks), self._value(candidate))

    def _value(self, candidate: Candidate) -> float | None:
        """Mean loss over the seeds that have one; None where every seed diverged or failed, or is not known yet."""
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
            # GridSampler calls Study.stop on its last point, which ask-and-tell does not allow; the value is kept.
            if "Study.stop" not in str(error):
                raise


def _candidates(plan: Plan) -> dict[float, list[Candidate]]:
    """The plan's cells by budget and candidate, in the plan's order."""
    groups: dict[tuple[float, int, float], list[PlannedCell]] = defaultdict(list)
    for planned in plan.cells:
        groups[planned.budget, planned.cell.shape.depth, planned.lr_factor].append(planned)
    result: dict[float, list[Candidate]] = defaultdict(list)
    for (budget, depth, factor), cells in groups.items():
        result[budget].append(Candidate(budget, depth, factor, tuple(cells)))
    return result
