"""The search of the sampler `crossing`: one Optuna study of single cells.

A trial of Optuna is a cell: its parameters are depth, width, learning-rate factor and seed. `CrossingSampler` reads
only the trials, ended and running, and `analysis.design.next_cells` chooses. The next cell therefore follows from the
rows in the order in which they ended and from the running cells, so that a search that was killed resumes identically.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from analysis.design.next_cells import Choice, Option, propose
from analysis.design.objective import Objective
from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.plan.table import short
from study.search.source import Search, SearchEnd, SearchState
from study.search.stopping_rule import StoppingRule, objective_of
from study.spec.study import StudySpec

DEPTH, WIDTH, LR, SEED = "depth", "width", "lr_factor", "seed"
#: Depth, width, learning-rate factor and seed: the parameters of a trial.
Name = tuple[int, int, float, int]
#: How many of the next cells are shown.
SHOWN = 3
#: From this number of workers on, the time to choose cells matters.
MANY_WORKERS = 8
#: With that many workers, cells are chosen anew after at least this number of ended cells.
LEAST_GROUP = 8
#: User attributes of a trial: the rank in which it ended, and the fields of its outcome that Optuna has no field for.
ENDED, LOSS_SE, SHARE, STATUS = "ended", "loss_se", "share", "status"


class EndedRow(NamedTuple):
    """An ended cell as a row of the frames that `analysis.design` takes."""

    depth: int
    width: int
    params: float
    lr_factor: float
    lr: float
    seed: int
    loss: float
    """NaN if there is none."""
    loss_se: float
    status: str


class Trials:
    """The ended cells of an Optuna study with their outcomes, and the running ones.

    An update looks only at trials that were running at the last update and at later ones, so that its cost does not
    grow with the number of cells.
    """

    def __init__(self, study: optuna.Study, cells: Mapping[Name, PlannedCell]) -> None:
        """Begin without trials; `update` reads them.

        Args:
            study: whose trials.
            cells: all cells there may be trials of.
        """
        self.study, self.cells = study, cells
        self.tried: set[Name] = set()
        """The cells of all trials except one that has no parameters yet."""
        self.running: list[Name] = []
        """In the order of their trials."""
        self.ended: list[Name] = []
        """In the order in which they ended."""
        self.rows: list[EndedRow] = []
        self.spent: list[float] = []
        """Training FLOPs of the ended cells, up to the stop of a stopped one."""
        self._open: dict[int, Name | None] = {}
        self._count = 0

    def update(self) -> None:
        """Read the trials."""
        # Copying all trials would cost more than the rest of the search.
        trials = self.study.get_trials(deepcopy=False)
        self._open.update(dict.fromkeys(range(self._count, len(trials))))
        self._count = len(trials)
        ended: list[FrozenTrial] = []
        for number, known in list(self._open.items()):
            trial = trials[number]
            if known is None and SEED in trial.params:
                self._open[number] = name = name_of(trial)
                self.tried.add(name)
            if trial.state.is_finished():
                ended.append(trial)
        for trial in sorted(ended, key=lambda trial: int(trial.user_attrs[ENDED])):
            self._end(trial)
        self.running = [name for name in self._open.values() if name is not None]

    def frame(self, count: int | None = None) -> pd.DataFrame:
        """Return the rows of the ended cells, or of the first `count` of them."""
        return frame(self.rows[:count])

    def _end(self, trial: FrozenTrial) -> None:
        name = self._open.pop(trial.number)
        assert name is not None
        planned, attributes = self.cells[name], trial.user_attrs
        self.ended.append(name)
        self.rows.append(row_of(planned, trial.value, attributes[LOSS_SE], attributes[STATUS]))
        self.spent.append(planned.flops * float(attributes[SHARE]))


class CrossingSampler(BaseSampler):
    """Optuna's interface to `analysis.design.next_cells.propose`.

    New rows are used in whole groups; the cells of an incomplete group count as running. With many workers the choice
    is thus not repeated for each cell, and it still follows from the rows alone.
    """

    def __init__(
        self,
        options: Mapping[Name, PlannedCell],
        objective: Objective,
        workers: int,
        max_flops: float | None = None,
    ) -> None:
        """Choose among these cells.

        Args:
            options: all cells there may be trials of.
            objective: what is estimated.
            workers: how many cells run at once.
            max_flops: training FLOPs that all trials together may cost.
        """
        self.cells = options
        self.options = {name: _option(planned) for name, planned in options.items()}
        self.space = distributions(options)
        self.objective, self.workers, self.max_flops = objective, workers, max_flops
        self.group = group_of(workers)
        self._trials: Trials | None = None
        self._queue: list[Choice] = []
        self._costs = sorted({option.cost for option in self.options.values()})
        self._seen, self._tried, self._reach, self._found = -1, 0, 0, False

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters are chosen together."""
        return self.space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next cell.

        Raises:
            LookupError: there is none; `upcoming` is then empty.
        """
        if "fixed_params" in trial.system_attrs:
            return {}
        choices = self.upcoming(study)
        if not choices:
            raise LookupError("no cell is left that can be chosen")
        chosen = self._queue.pop(0).option
        # The trial that is being asked for is one of these choices.
        self._tried += 1
        return {DEPTH: chosen.depth, WIDTH: chosen.width, LR: chosen.lr_factor, SEED: chosen.seed}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: a cell has only the parameters of `infer_relative_search_space`."""
        raise ValueError(f"{param_name} is no parameter of a cell; those are {DEPTH}, {WIDTH}, {LR}, {SEED}")

    def trials(self, study: optuna.Study) -> Trials:
        """Return the trials of a study, up to date."""
        if self._trials is None or self._trials.study is not study:
            self._trials, self._seen = Trials(study, self.cells), -1
        self._trials.update()
        return self._trials

    def upcoming(self, study: optuna.Study) -> Sequence[Choice]:
        """Return the next choices, best first.

        They are made anew when another group of cells has ended, or when the affordable cells are others than before: a
        search that was killed chooses from these, and must choose the same.
        """
        now = self.trials(study)
        seen = len(now.ended) // self.group * self.group
        reach = bisect_right(self._costs, self.left(now))
        # Cells are never taken back: if as many were tried as were chosen, they are the same.
        is_current = (self._seen, self._tried, self._reach) == (seen, len(now.tried), reach)
        if not is_current or (self._found and not self._queue):
            options = self.affordable(now)
            pending = [self.options[name] for name in (*now.ended[seen:], *now.running)]
            count = max(self.group, self.workers - len(now.running), SHOWN)
            self._queue = propose(now.frame(seen), pending, options, self.objective, count) if options else []
            self._seen, self._tried, self._reach = seen, len(now.tried), reach
            self._found = bool(self._queue)
        return tuple(self._queue)

    def affordable(self, now: Trials) -> list[Option]:
        """Return the cells that were not tried and fit into the remaining training FLOPs."""
        left = self.left(now)
        return [
            option for name, option in self.options.items() if name not in now.tried and option.cost <= left
        ]

    def left(self, now: Trials) -> float:
        """Return the remaining training FLOPs."""
        if self.max_flops is None:
            return math.inf
        return self.max_flops - math.fsum(now.spent) - sum(self.options[name].cost for name in now.running)


class CrossingSearch(Search):
    """The cells of a plan, the most informative for their cost first, until a limit is reached."""

    def __init__(
        self,
        plan: Plan,
        spec: StudySpec,
        known: Mapping[str, Outcome],
        begun: Collection[str] = (),
        workers: int = 1,
        max_cells: int | None = None,
        max_flops: float | None = None,
    ) -> None:
        """Resume from known results.

        Args:
            plan: the cells to choose from.
            spec: the study, for what is estimated and how precisely.
            known: outcomes of ended cells, by cell key, in the order in which they ended.
            begun: keys of cells that were begun and have no outcome, in the order in which they began: they come first.
            workers: how many cells run at once.
            max_cells: how many cells are begun at most.
            max_flops: training FLOPs of all cells at most.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._plan, self._max_cells, self._max_flops = plan, max_cells, max_flops
        self._cells = {_name(planned): planned for planned in plan.pool if not planned.purpose}
        self._sampler = CrossingSampler(self._cells, objective_of(spec), workers, max_flops)
        self._rule = StoppingRule(objective_of(spec), spec.search.wanted_halfwidth)
        self.study = optuna.create_study(sampler=self._sampler, direction="minimize", study_name=plan.name)
        self._trials: dict[str, optuna.Trial] = {}
        self._waiting: list[PlannedCell] = []
        self._ended = 0
        for key, outcome in known.items():
            if planned := self._own(key):
                self._begin(planned)
                self._end(key, outcome)
        for key in begun:
            if (planned := self._own(key)) and key not in known:
                self._begin(planned)
                self._waiting.append(planned)
        self.ending = self._ending()

    @property
    def done(self) -> bool:
        """Whether no further cell will be returned."""
        return self.ending is not None and not self._waiting

    @property
    def total(self) -> int:
        """Cells of the whole search at most, those already known included."""
        return self._plan.cell_count

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if the search has ended or waits for running cells."""
        if self._waiting:
            return self._waiting.pop(0)
        if self.ending is not None:
            return None
        if not self._sampler.upcoming(self.study):
            # A running cell may still leave FLOPs unspent, or change which cells are worth trying.
            if not self._trials:
                self.ending = SearchEnd("options", "no remaining cell is worth its cost.")
            return None
        trial = self.study.ask(self._sampler.space)
        planned = self._cells[trial.params[DEPTH], trial.params[WIDTH], trial.params[LR], trial.params[SEED]]
        self._trials[planned.cell.key] = trial
        self.ending = self._limit()
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of a cell."""
        self._end(key, outcome)
        if self.ending is None:
            is_due = self._rule.is_due(self._ended)
            self.ending = self._ending() if is_due else self._limit()

    def news(self) -> SearchState | None:
        """Return the state if a check was due after the last ended cell, else None."""
        return self.state() if self._rule.is_due(self._ended) else None

    def state(self) -> SearchState:
        """Return the state now."""
        now = self._sampler.trials(self.study)
        upcoming = () if self.ending else tuple(self._sampler.upcoming(self.study))
        return SearchState(
            self._ended, math.fsum(now.spent), self._rule.latest(now.frame()), upcoming, self.ending
        )

    def _own(self, key: str) -> PlannedCell | None:
        """Return the cell of a key; None for a cell of another study or a sensitivity run."""
        planned = self._plan.by_key(key)
        return planned if planned and not planned.purpose else None

    def _begin(self, planned: PlannedCell) -> None:
        depth, width, factor, seed = _name(planned)
        self.study.enqueue_trial({DEPTH: depth, WIDTH: width, LR: factor, SEED: seed})
        self._trials[planned.cell.key] = self.study.ask(self._sampler.space)

    def _end(self, key: str, outcome: Outcome) -> None:
        trial = self._trials.pop(key)
        attributes = {
            ENDED: self._ended,
            LOSS_SE: outcome.loss_se,
            SHARE: outcome.share,
            STATUS: outcome.kind,
        }
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        self._ended += 1
        if outcome.loss is None or not math.isfinite(outcome.loss):
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, outcome.loss)

    def _ending(self) -> SearchEnd | None:
        """Return the limit that is reached, the half-width at any check so far."""
        return self._rule.ending(self._sampler.trials(self.study).frame()) or self._limit()

    def _limit(self) -> SearchEnd | None:
        now = self._sampler.trials(self.study)
        tried = len(now.tried)
        most, flops = self._max_cells, self._max_flops
        if most is not None and tried >= most:
            return SearchEnd("max_cells", f"the limit of {most:,} cells is reached.")
        if tried >= len(self._cells):
            return SearchEnd("options", f"all {tried:,} cells it may train have been tried.")
        # A running cell may stop early or diverge, and leave FLOPs for others.
        if flops is not None and not self._trials and not self._sampler.affordable(now):
            return SearchEnd("max_flops", f"no other cell fits into {short(flops)} training FLOPs.")
        return None


def group_of(workers: int) -> int:
    """Return after how many ended cells a search with this number of workers chooses anew.

    With up to three workers it does so after each cell, because cells end seldom. Many workers choose without the
    results of the running cells anyway, so the results of half as many change little.
    """
    return max(LEAST_GROUP, workers // 2) if workers >= MANY_WORKERS else max(1, workers // 2)


def distributions(names: Collection[Name]) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of the parameters of cells."""
    depths, widths, factors, seeds = (sorted({name[i] for name in names}) for i in range(4))
    return {
        DEPTH: IntDistribution(int(depths[0]), int(depths[-1]), log=True),
        WIDTH: IntDistribution(int(widths[0]), int(widths[-1]), log=True),
        LR: FloatDistribution(factors[0], factors[-1], log=True),
        SEED: IntDistribution(int(seeds[0]), int(seeds[-1])),
    }


def name_of(trial: FrozenTrial) -> Name:
    """Return the cell of a trial."""
    values = trial.params
    return int(values[DEPTH]), int(values[WIDTH]), float(values[LR]), int(values[SEED])


def row_of(planned: PlannedCell, loss: float | None, loss_se: float | None, status: str) -> EndedRow:
    """Return the row of an ended cell; the standard error of the loss is in nats."""
    shape = planned.cell.shape
    return EndedRow(
        *(shape.depth, shape.width, float(shape.budget_params)),
        *(planned.lr_factor, planned.cell.lr, planned.cell.seed),
        *(math.nan if loss is None else loss, loss_se or 0.0, status),
    )


def frame(rows: Iterable[EndedRow]) -> pd.DataFrame:
    """Return rows as the frame that `analysis.design` takes, in their order."""
    return pd.DataFrame(list(rows), columns=list(EndedRow._fields))


def _name(planned: PlannedCell) -> Name:
    shape = planned.cell.shape
    return shape.depth, shape.width, planned.lr_factor, planned.cell.seed


def _option(planned: PlannedCell) -> Option:
    depth, width, factor, seed = _name(planned)
    return Option(depth, width, float(planned.cell.shape.budget_params), factor, seed, planned.flops)


def next_words(state: SearchState) -> str:
    """Return the next cells and why each is worth its cost, in one line; empty if the search has ended."""
    return "; ".join(
        f"L{option.depth}-d{option.width}-s{option.seed}{_factor(option)} ({choice.reason})"
        for choice in state.next[:SHOWN]
        for option in (choice.option,)
    )


def _factor(option: Option) -> str:
    return "" if option.lr_factor == 1 else f" at {option.lr_factor:g} times the rate"
