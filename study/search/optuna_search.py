"""The frontier of each budget as an Optuna study: its trials are the candidates of that budget.

A *candidate* is a depth and a multiple of the learning rate at one budget; the width follows from depth and budget. Its
trial has these as parameters, the mean loss over its seeds as value, and width, N, FLOPs and the standard error of the
loss as attributes. `OptunaSearch` lets a sampler of Optuna choose the candidates; `Recorded` writes those that another
search chose. Only the rows of the study count: at each start the trials are compared with them, and made anew where
they differ.
"""

import importlib
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from study.errors import SpecError
from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.frontier_sampler import BUDGET, DEPTH, FrontierSampler
from study.search.source import Keys, Known, Search, SearchEnd, SearchState, seed_by_seed
from study.spec.search import OptunaSection

#: The second parameter of a trial, if a study has several multiples of the learning rate.
LR_FACTOR = "lr_factor"
#: Random candidates of a budget before the samplers `tpe` and `gp` choose by the losses.
STARTUP = 3


@dataclass(eq=False)
class _Candidate:
    """A depth and a multiple of the learning rate at one budget, with its cells, one per seed."""

    budget: float
    params: dict[str, float]
    cells: list[PlannedCell]
    trial: Trial | FrozenTrial | None = None


class OptunaStudies:
    """One Optuna study per budget of a plan."""

    def __init__(
        self,
        plan: Plan,
        known: Known,
        begun: Keys = (),
        database: Path | None = None,
        section: OptunaSection | None = None,
    ) -> None:
        """Make the trials of the candidates that have begun.

        Args:
            plan: its main cells are those of the candidates.
            known: outcomes of ended cells.
            begun: keys of cells that were begun and have no outcome.
            database: SQLite file; None keeps the studies in memory.
            section: names the sampler; None if another search chooses.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.by_budget: dict[float, optuna.Study] = {}
        self._name, self._section = plan.name, section
        self._storage = RDBStorage(f"sqlite:///{database}") if database else InMemoryStorage()
        self._outcomes = dict(known)
        self._running: set[str] = set()
        several = len({planned.lr_factor for planned in plan.main}) > 1
        self._candidates: dict[float, dict[tuple[float, ...], _Candidate]] = defaultdict(dict)
        self._of_cell: dict[str, _Candidate] = {}
        for planned in plan.main:
            params: dict[str, float] = {DEPTH: planned.cell.shape.depth}
            if several:
                params[LR_FACTOR] = planned.lr_factor
            group = self._candidates[planned.budget]
            candidate = group.setdefault(tuple(params.values()), _Candidate(planned.budget, params, []))
            candidate.cells.append(planned)
            self._of_cell[planned.cell.key] = candidate
        started: dict[float, dict[_Candidate, None]] = defaultdict(dict)
        for key in [*known, *begun]:
            if key in self._of_cell:
                started[self._of_cell[key].budget][self._of_cell[key]] = None
        for budget, begun_there in started.items():
            self._restore(budget, list(begun_there))

    @property
    def budgets(self) -> list[float]:
        """All budgets, in the order of the plan."""
        return list(self._candidates)

    def counts(self, budget: float) -> tuple[int, int]:
        """Return how many candidates of a budget have a trial, and how many there are."""
        group = self._candidates[budget].values()
        return sum(one.trial is not None for one in group), len(group)

    def begun_cells(self) -> list[PlannedCell]:
        """Return the cells of all candidates that have a trial."""
        every = [one for group in self._candidates.values() for one in group.values()]
        return [planned for one in every if one.trial for planned in one.cells]

    def ask(self, budget: float) -> list[PlannedCell]:
        """Let the sampler choose a candidate of a budget, and return its cells."""
        trial = self._study(budget).ask(self._space(budget))
        candidate = self._candidates[budget][tuple(trial.params.values())]
        candidate.trial = trial
        return candidate.cells

    def begin(self, planned: PlannedCell) -> None:
        """Record that a cell runs; the trial of its candidate begins with its first cell."""
        candidate = self._of_cell[planned.cell.key]
        self._running.add(planned.cell.key)
        if candidate.trial is None:
            self._enqueue(candidate)

    def end(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell; its trial ends with the last of the candidate's cells."""
        self._outcomes[key] = outcome
        self._running.discard(key)
        candidate = self._of_cell[key]
        if self._has_ended(candidate):
            self._tell(candidate)

    def close(self) -> None:
        """End the trials of the candidates that have a loss and no running cell: their other seeds are not wanted."""
        for group in self._candidates.values():
            for one in group.values():
                keys = {planned.cell.key for planned in one.cells}
                if self._losses(one) and not self._has_ended(one) and not keys & self._running:
                    self._tell(one)

    def _untried(self, budget: float) -> list[dict[str, float]]:
        return [one.params for one in self._candidates[budget].values() if one.trial is None]

    def _has_ended(self, candidate: _Candidate) -> bool:
        return all(planned.cell.key in self._outcomes for planned in candidate.cells)

    def _losses(self, candidate: _Candidate) -> list[float]:
        outcomes = [self._outcomes.get(planned.cell.key) for planned in candidate.cells]
        losses = [outcome.loss for outcome in outcomes if outcome and outcome.loss is not None]
        return [loss for loss in losses if math.isfinite(loss)]

    def _attributes(self, candidate: _Candidate) -> dict[str, float]:
        first = candidate.cells[0]
        shape = first.cell.shape
        return {"width": shape.width, "params": shape.budget_params, "flops": first.flops}

    def _space(self, budget: float) -> dict[str, BaseDistribution]:
        group = [one.params for one in self._candidates[budget].values()]
        depths = [int(params[DEPTH]) for params in group]
        space: dict[str, BaseDistribution] = {DEPTH: IntDistribution(min(depths), max(depths), log=True)}
        if LR_FACTOR in group[0]:
            factors = [params[LR_FACTOR] for params in group]
            space[LR_FACTOR] = FloatDistribution(min(factors), max(factors), log=True)
        return space

    def _study(self, budget: float) -> optuna.Study:
        if budget not in self.by_budget:
            space = self._space(budget)
            sampler = _Untried(self._sampler(budget), space, lambda: self._untried(budget))
            study = optuna.create_study(
                storage=self._storage,
                study_name=self._study_name(budget),
                sampler=sampler,
                load_if_exists=True,
            )
            if BUDGET not in study.user_attrs:
                study.set_user_attr(BUDGET, budget)
            self.by_budget[budget] = study
        return self.by_budget[budget]

    def _study_name(self, budget: float) -> str:
        return f"{self._name}: N = {budget:g}"

    def _sampler(self, budget: float) -> BaseSampler:
        if self._section is None:
            return RandomSampler(seed=0)
        # Other random numbers at each budget, and when a search goes on.
        seed = self._section.seed + 1000 * self.budgets.index(budget) + len(self._outcomes)
        return make_sampler(self._section, seed, lambda: list(self.by_budget.values()))

    def _enqueue(self, candidate: _Candidate) -> None:
        study = self._study(candidate.budget)
        study.enqueue_trial(candidate.params, user_attrs=self._attributes(candidate))
        candidate.trial = study.ask(self._space(candidate.budget))

    def _restore(self, budget: float, begun: Sequence[_Candidate]) -> None:
        """Give the candidates of a budget that have begun their trials: those of the database if they agree."""
        trials = {tuple(trial.params.values()): trial for trial in self._study(budget).trials}
        ended = {tuple(one.params.values()): self._ended_trial(one) for one in begun if self._has_ended(one)}
        agree = len(trials) == len(ended) == len(begun) and all(
            key in trials and (trials[key].state, trials[key].values) == (trial.state, trial.values)
            for key, trial in ended.items()
        )
        if not agree:
            optuna.delete_study(study_name=self._study_name(budget), storage=self._storage)
            del self.by_budget[budget]
            self._study(budget).add_trials(ended.values())
            trials = {tuple(trial.params.values()): trial for trial in self._study(budget).trials}
        for candidate in begun:
            candidate.trial = trials.get(tuple(candidate.params.values()))
            if candidate.trial is None:
                self._enqueue(candidate)

    def _ended_trial(self, candidate: _Candidate) -> FrozenTrial:
        losses = self._losses(candidate)
        return optuna.trial.create_trial(
            params=candidate.params,
            distributions=self._space(candidate.budget),
            value=float(np.mean(losses)) if losses else None,
            state=TrialState.COMPLETE if losses else TrialState.FAIL,
            user_attrs={**self._attributes(candidate), **_error(losses)},
        )

    def _tell(self, candidate: _Candidate) -> None:
        losses, study = self._losses(candidate), self._study(candidate.budget)
        assert isinstance(candidate.trial, Trial)
        if losses:
            for name, value in {**self._attributes(candidate), **_error(losses)}.items():
                candidate.trial.set_user_attr(name, value)
            study.tell(candidate.trial, float(np.mean(losses)))
        else:
            study.tell(candidate.trial, state=TrialState.FAIL)


def _error(losses: Sequence[float]) -> dict[str, float]:
    """The standard error of the mean loss over seeds, from two seeds on."""
    return {"loss_se": float(np.std(losses, ddof=1) / math.sqrt(len(losses)))} if len(losses) > 1 else {}


class _Untried(BaseSampler):
    """Replaces a sampler's choice by the nearest candidate that has no trial, so that none is trained twice.

    Samplers choose within a range of depths. Not every depth has a shape at every budget, and `TPESampler` chooses the
    same integers again.
    """

    def __init__(
        self,
        sampler: BaseSampler,
        space: dict[str, BaseDistribution],
        untried: Callable[[], Sequence[dict[str, float]]],
    ) -> None:
        self.sampler, self.space, self.untried = sampler, space, untried

    def reseed_rng(self) -> None:
        self.sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        inner = self.sampler.infer_relative_search_space(study, trial)
        try:
            found = self.sampler.sample_relative(study, trial, inner)
        except ImportError as error:  # some samplers import their package only here
            raise SpecError(
                f"the sampler {type(self.sampler).__name__} needs a package that is not installed: {error}."
            ) from error
        for name, distribution in self.space.items():
            if name not in found:
                found[name] = self.sampler.sample_independent(study, trial, name, distribution)
        return min(self.untried(), key=lambda params: (_distance(params, found), *params.values()))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.sampler.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.sampler.after_trial(study, trial, state, values)


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(abs(math.log(value / other[name])) for name, value in one.items())


def make_sampler(
    section: OptunaSection, seed: int, studies: Callable[[], Sequence[optuna.Study]]
) -> BaseSampler:
    """Return the sampler that a section names.

    Args:
        section: its `arguments` are those of the sampler's class.
        seed: of its random numbers, if its class takes one and `arguments` has none.
        studies: returns those of all budgets, for the sampler `frontier`.

    Raises:
        SpecError: there is no such class, it is no sampler, or it rejects the arguments.
    """
    defaults: dict[str, dict[str, Any]] = {
        "frontier": {"studies": studies},
        "tpe": {"multivariate": True, "constant_liar": True, "n_startup_trials": STARTUP, "seed": seed},
        "gp": {"deterministic_objective": False, "n_startup_trials": STARTUP, "seed": seed},
        "random": {"seed": seed},
    }
    classes: dict[str, type[BaseSampler]] = {
        "frontier": FrontierSampler, "tpe": TPESampler, "gp": GPSampler, "random": RandomSampler,
    }  # fmt: skip
    name = section.sampler
    try:
        module, _, attribute = name.rpartition(".")
        found = classes[name] if name in classes else getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"`search.sampler` is {name}, which cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise SpecError(
            f"`search.sampler` is {name}, which is not a sampler of Optuna; name a class that is one."
        )
    given = {**defaults.get(name, {}), **section.arguments}
    if name not in classes and "seed" in inspect.signature(found).parameters:
        given.setdefault("seed", seed)
    try:
        return found(**given)
    except ImportError as error:
        raise SpecError(f"the sampler {name} needs a package that is not installed: {error}.") from error
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"`search.arguments` {section.arguments} do not fit the sampler {name}: {error}."
        ) from error


class OptunaSearch(Search):
    """Some candidates of each budget, in the order in which a sampler of Optuna chooses them."""

    def __init__(
        self, plan: Plan, section: OptunaSection, known: Known, begun: Keys, studies: OptunaStudies
    ) -> None:
        """Resume from known results; `begun` are the cells that were cut off, whose candidates come first."""
        self._studies, self._limit = studies, section.candidates
        self._order = {planned.cell.key: place for place, planned in enumerate(seed_by_seed(plan))}
        seeds = len({planned.cell.seed for planned in plan.cells})
        self.total = seeds * sum(self._most(budget) for budget in studies.budgets)
        first = {key: place for place, key in enumerate(begun)}
        left = [planned for planned in studies.begun_cells() if planned.cell.key not in known]
        self._waiting = sorted(
            left, key=lambda p: (first.get(p.cell.key, len(first)), self._order[p.cell.key])
        )

    def _most(self, budget: float) -> int:
        return min(self._limit, self._studies.counts(budget)[1])

    def _open(self) -> list[float]:
        studies = self._studies
        return [budget for budget in studies.budgets if studies.counts(budget)[0] < self._most(budget)]

    @property
    def done(self) -> bool:
        """Whether every candidate that will be tried has ended or is running."""
        return not self._waiting and not self._open()

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if there is none."""
        if not self._waiting:
            able = self._open()
            if not able:
                return None
            # Budgets take turns.
            cells = self._studies.ask(min(able, key=lambda budget: self._studies.counts(budget)[0]))
            self._waiting = sorted(cells, key=lambda planned: self._order[planned.cell.key])
        planned = self._waiting.pop(0)
        self._studies.begin(planned)
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell."""
        self._studies.end(key, outcome)


class Recorded(Search):
    """Another search, whose choices are trials of the Optuna studies too."""

    def __init__(self, search: Search, studies: OptunaStudies) -> None:
        self._search, self._studies = search, studies
        self.total = search.total

    @property
    def ending(self) -> SearchEnd | None:  # type: ignore[override]
        """The limit that ended the search."""
        return self._search.ending

    @property
    def done(self) -> bool:
        """Whether no further cell will be returned."""
        return self._search.done

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if no cell can start now."""
        planned = self._search.take()
        if planned:
            self._studies.begin(planned)
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell."""
        self._search.tell(key, outcome)
        self._studies.end(key, outcome)

    def news(self) -> SearchState | None:
        """Return the state if a check was due after the last ended cell, else None."""
        return self._search.news()

    def state(self) -> SearchState | None:
        """Return the state now; None for a search that estimates nothing."""
        return self._search.state()

    def close(self) -> None:
        """End the trials of candidates whose other seeds were not wanted."""
        self._studies.close()
