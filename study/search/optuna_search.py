"""The frontier of each budget as an Optuna study: its trials are the candidates of that budget.

A *candidate* is a depth and a multiple of the learning rate at one budget; the width follows from depth and budget. At
equal FLOPs a budget is one of compute, and the size of a candidate follows from its training tokens. Its
trial has these as parameters, the mean loss over its seeds as value, and width, N, FLOPs and the standard error of the
loss as attributes. In `OptunaSearch` a sampler of Optuna chooses the candidates; with other searches, `OptunaStudies`
records those that were chosen. Only the rows of the study count: at each start the trials are compared with them, and
made anew where they differ.
"""

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.rows import Row
from study.search.frontier_sampler import BUDGET, DEPTH, FrontierSampler
from study.search.source import Keys, Rows, Search, Trials, seed_by_seed
from study.spec.search import OptunaSection

#: The second parameter of a trial, if a study has several multiples of the learning rate.
LR_FACTOR = "lr_factor"
#: A parameter of a trial, if a study has several numbers of training tokens, as at equal FLOPs.
TOKENS = "tokens"
#: Random candidates of a budget before the samplers `tpe` and `gp` choose by the losses.
STARTUP = 3


@dataclass(eq=False)
class _Candidate:
    """A depth and a multiple of the learning rate at one budget, with its cells, one per seed."""

    budget: float
    params: dict[str, float]
    cells: list[PlannedCell]
    trial: Trial | FrozenTrial | None = None


class OptunaStudies(Trials):
    """One Optuna study per budget of a plan."""

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        begun: Keys = (),
        database: Path | None = None,
        section: OptunaSection | None = None,
    ) -> None:
        """Make the trials of the candidates that have begun.

        Without a `database`, an SQLite file, the studies are in memory. `section` names the sampler; it is None if
        another search chooses the cells.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.section = section
        self._studies: dict[float, optuna.Study] = {}
        self._place = f"{plan.name}: {'N' if plan.planner.spec.frontier.compute_unit is None else 'C'}"
        self._storage = RDBStorage(f"sqlite:///{database}") if database else InMemoryStorage()
        self._rows = dict(rows)
        self._running: set[str] = set()
        several = len({planned.lr_factor for planned in plan.pool}) > 1
        spec = plan.planner.spec
        has_levels = spec.training.has_levels or spec.frontier.compute_unit is not None
        self._candidates: dict[float, dict[tuple[float, ...], _Candidate]] = {}
        self._of_cell: dict[str, _Candidate] = {}
        for planned in plan.pool:
            params: dict[str, float] = {DEPTH: planned.cell.shape.depth}
            if several:
                params[LR_FACTOR] = planned.lr_factor
            if has_levels:
                params[TOKENS] = planned.tokens
            at = planned.compared_at
            group = self._candidates.setdefault(at, {})
            candidate = group.setdefault(tuple(params.values()), _Candidate(at, params, []))
            candidate.cells.append(planned)
            self._of_cell[planned.cell.key] = candidate
        started = dict.fromkeys(self._of_cell[key] for key in (*rows, *begun) if key in self._of_cell)
        for budget in dict.fromkeys(candidate.budget for candidate in started):
            self._restore(budget, [candidate for candidate in started if candidate.budget == budget])

    @property
    def budgets(self) -> list[float]:
        """All budgets, in the order of the plan."""
        return list(self._candidates)

    def counts(self, budget: float) -> tuple[int, int]:
        """Return how many candidates of a budget have a trial, and how many there are."""
        return len(self._candidates[budget]) - len(self._untried(budget)), len(self._candidates[budget])

    def begun_cells(self) -> list[PlannedCell]:
        """Return the cells of all candidates that have a trial."""
        begun = (candidate for candidate in dict.fromkeys(self._of_cell.values()) if candidate.trial)
        return [planned for candidate in begun for planned in candidate.cells]

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

    def end(self, row: Row) -> None:
        """Record how a cell ended; its trial ends with the last of the candidate's cells."""
        self._rows[row.cell] = row
        self._running.discard(row.cell)
        candidate = self._of_cell[row.cell]
        if self._has_ended(candidate):
            self._tell(candidate)

    def close(self) -> None:
        """End the trials of the candidates that have a loss and no running cell: their other seeds are not wanted."""
        for candidate in dict.fromkeys(self._of_cell.values()):
            keys = {planned.cell.key for planned in candidate.cells}
            if (
                self._result(candidate)[0] is not None
                and not self._has_ended(candidate)
                and not keys & self._running
            ):
                self._tell(candidate)

    def _untried(self, budget: float) -> list[dict[str, float]]:
        return [
            candidate.params for candidate in self._candidates[budget].values() if candidate.trial is None
        ]

    def _has_ended(self, candidate: _Candidate) -> bool:
        return all(planned.cell.key in self._rows for planned in candidate.cells)

    def _result(self, candidate: _Candidate) -> tuple[float | None, TrialState, dict[str, float]]:
        """Return value, state and attributes of a trial by the cells that have ended."""
        first = candidate.cells[0]
        shape = first.cell.shape
        attributes = {"width": shape.width, "params": shape.budget_params, "flops": first.flops}
        rows = [self._rows.get(planned.cell.key) for planned in candidate.cells]
        losses = [row.loss for row in rows if row and row.loss is not None and math.isfinite(row.loss)]
        if not losses:
            return None, TrialState.FAIL, attributes
        if len(losses) > 1:
            attributes["loss_se"] = float(np.std(losses, ddof=1) / math.sqrt(len(losses)))
        return float(np.mean(losses)), TrialState.COMPLETE, attributes

    def _space(self, budget: float) -> dict[str, BaseDistribution]:
        group = [candidate.params for candidate in self._candidates[budget].values()]
        depths = [int(params[DEPTH]) for params in group]
        space: dict[str, BaseDistribution] = {DEPTH: IntDistribution(min(depths), max(depths), log=True)}
        for name in group[0].keys() - {DEPTH}:
            values = [params[name] for params in group]
            space[name] = FloatDistribution(min(values), max(values), log=True)
        return space

    def _study(self, budget: float) -> optuna.Study:
        if budget not in self._studies:
            sampler: BaseSampler = RandomSampler(seed=0)
            if self.section:
                # Other random numbers at each budget, and when a search goes on.
                seed = self.section.seed + 1000 * self.budgets.index(budget) + len(self._rows)
                sampler = make_sampler(self.section, seed, lambda: list(self._studies.values()))
            study = optuna.create_study(
                storage=self._storage,
                study_name=self._study_name(budget),
                sampler=_Untried(sampler, self._space(budget), lambda: self._untried(budget)),
                load_if_exists=True,
            )
            if BUDGET not in study.user_attrs:
                study.set_user_attr(BUDGET, budget)
            if study.metric_names is None:
                # The titles of the axes in optuna-dashboard.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    study.set_metric_names(["loss"])
            self._studies[budget] = study
        return self._studies[budget]

    def _study_name(self, budget: float) -> str:
        return f"{self._place} = {budget:g}"

    def _enqueue(self, candidate: _Candidate) -> None:
        study = self._study(candidate.budget)
        study.enqueue_trial(candidate.params, user_attrs=self._result(candidate)[2])
        candidate.trial = study.ask(self._space(candidate.budget))

    def _restore(self, budget: float, begun: Sequence[_Candidate]) -> None:
        """Give a trial to each candidate of a budget that has begun: that of the database if its parameters agree."""
        ended = []
        for item in filter(self._has_ended, begun):
            value, state, attributes = self._result(item)
            trial = {"params": item.params, "distributions": self._space(budget), "user_attrs": attributes}
            ended.append(optuna.trial.create_trial(value=value, state=state, **trial))
        if _results(self._study(budget).trials) != _results(ended) or len(ended) < len(begun):
            optuna.delete_study(study_name=self._study_name(budget), storage=self._storage)
            del self._studies[budget]
            self._study(budget).add_trials(ended)
        trials = {tuple(trial.params.values()): trial for trial in self._study(budget).trials}
        for candidate in begun:
            candidate.trial = trials.get(tuple(candidate.params.values()))
            if candidate.trial is None:
                self._enqueue(candidate)

    def _tell(self, candidate: _Candidate) -> None:
        value, state, attributes = self._result(candidate)
        assert isinstance(candidate.trial, Trial)
        for name, number in attributes.items():
            candidate.trial.set_user_attr(name, number)
        self._study(candidate.budget).tell(candidate.trial, value, state)


def _results(trials: Sequence[FrozenTrial]) -> list[Any]:
    """Return parameters, state and values of trials, for a comparison that ignores their order."""
    return sorted((*trial.params.values(), trial.state.name, trial.values or []) for trial in trials)


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
        self.before_trial, self.after_trial = sampler.before_trial, sampler.after_trial

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        inner = self.sampler.infer_relative_search_space(study, trial)
        try:
            chosen = self.sampler.sample_relative(study, trial, inner)
        except ImportError as error:  # some samplers import their package only here
            raise _missing_package(type(self.sampler).__name__, error) from error
        for name, distribution in self.space.items():
            if name not in chosen:
                chosen[name] = self.sample_independent(study, trial, name, distribution)

        def distance(params: dict[str, float]) -> float:
            return sum(abs(math.log(value / chosen[name])) for name, value in params.items())

        return min(self.untried(), key=lambda params: (distance(params), *params.values()))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)


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
    by_name: dict[str, tuple[type[BaseSampler], dict[str, Any]]] = {
        "frontier": (FrontierSampler, {"studies": studies}),
        "tpe": (TPESampler, {"multivariate": True, "constant_liar": True, "n_startup_trials": STARTUP, "seed": seed}),
        "gp": (GPSampler, {"deterministic_objective": False, "n_startup_trials": STARTUP, "seed": seed}),
        "random": (RandomSampler, {"seed": seed}),
    }  # fmt: skip
    name = section.sampler
    if name in by_name:
        kind, defaults = by_name[name]
    else:
        module, _, attribute = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise SpecError(f"`search.sampler` is {name}, which cannot be imported: {error}.") from error
        if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
            raise SpecError(
                f"`search.sampler` is {name}, which is not a sampler of Optuna; name a class that is one."
            )
        defaults = {"seed": seed} if "seed" in inspect.signature(kind).parameters else {}
    try:
        return kind(**{**defaults, **section.arguments})
    except ImportError as error:
        raise _missing_package(name, error) from error
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"`search.arguments` {section.arguments} do not fit the sampler {name}: {error}."
        ) from error


def _missing_package(sampler: str, error: ImportError) -> SpecError:
    return SpecError(f"the sampler {sampler} needs a package that is not installed: {error}.")


class OptunaSearch(Search):
    """Some candidates of each budget, in the order in which a sampler of Optuna chooses them."""

    trials: OptunaStudies

    def __init__(self, plan: Plan, rows: Rows, begun: Keys, trials: OptunaStudies) -> None:
        """Resume from the rows of ended cells; `begun` are the cells that were cut off, whose candidates come first."""
        super().__init__(trials)
        assert trials.section
        self._limit = trials.section.candidates
        self._order = {planned.cell.key: place for place, planned in enumerate(seed_by_seed(plan))}
        seeds = len({planned.cell.seed for planned in plan.cells})
        self.total = seeds * sum(min(self._limit, trials.counts(budget)[1]) for budget in trials.budgets)
        left = {p.cell.key: p for p in trials.begun_cells() if p.cell.key not in rows}
        cut_off = [left.pop(key) for key in begun if key in left]
        self._waiting = [*cut_off, *self._in_order(left.values())]

    def _in_order(self, cells: Iterable[PlannedCell]) -> list[PlannedCell]:
        return sorted(cells, key=lambda planned: self._order[planned.cell.key])

    def _open(self) -> dict[float, int]:
        """Return the budgets that still get candidates, with the number they have."""
        counts = {budget: self.trials.counts(budget) for budget in self.trials.budgets}
        return {budget: tried for budget, (tried, most) in counts.items() if tried < min(self._limit, most)}

    @property
    def done(self) -> bool:
        """Whether every candidate that will be tried has ended or is running."""
        return not self._waiting and not self._open()

    def _next(self) -> PlannedCell | None:
        # Budgets take turns.
        if not self._waiting and (able := self._open()):
            self._waiting = self._in_order(self.trials.ask(min(able, key=lambda budget: able[budget])))
        return self._waiting.pop(0) if self._waiting else None
