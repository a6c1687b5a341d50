"""The sampler `crossing`: one Optuna study of single cells, chosen for what they tell of the crossings.

An Optuna trial is a cell: its parameters are depth, width, learning-rate factor and seed. `CrossingSampler` looks at
the trials alone, those that ended and those that run, and lets `analysis.design.next_cells` choose. What it chooses next therefore
follows from the rows in the order they ended and from the cells that run, and a search that was killed goes on as if it
had not been.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from analysis.design.next_cells import Choice, Option, propose
from analysis.design.objective import Estimate, Objective
from study.plan.plan import Plan, PlannedCell
from study.plan.table import short
from study.search.source import Outcome
from study.search.stopping_rule import Ending, Watch, objective_of
from study.spec.study import StudySpec

DEPTH, WIDTH, LR, SEED = "depth", "width", "lr_factor", "seed"
#: Depth, width, learning-rate factor and seed: what a trial's parameters say.
Name = tuple[int, int, float, int]
#: How many of the next cells are known at least, for people.
SHOWN = 3
#: Workers from which on the time that a plan takes counts.
MANY_WORKERS = 8
#: Ended cells for which so many workers plan anew, at least.
LEAST_GROUP = 8
#: User attributes of a trial: the rank in which it ended, and the fields of its outcome that Optuna has no place for.
ENDED, LOSS_SE, SHARE, STATUS = "ended", "loss_se", "share", "status"


@dataclass(frozen=True)
class SearchUpdate:
    """What a search knows after so many ended cells."""

    cells: int
    flops: float
    """Training FLOPs of these."""
    estimate: Estimate | None
    """At the last check; None before the first."""
    next: tuple[Choice, ...]
    """The cells that come next and why, best first; none where the search has ended."""
    ending: Ending | None


class Line(NamedTuple):
    """An ended cell as a row of `analysis.design.next_cells` and `analysis.design.objective`."""

    depth: int
    width: int
    params: float
    lr_factor: float
    lr: float
    seed: int
    loss: float
    """NaN where there is none."""
    loss_se: float
    status: str


class Trials:
    """What the trials of an Optuna study say: which cells ended and how, and which run.

    It follows from the trials alone. A look goes through those that ran at the last look and those begun since, so that
    it costs as much after a thousand cells as after ten.
    """

    def __init__(self, study: optuna.Study, cells: Mapping[Name, PlannedCell]) -> None:
        """Begin with nothing seen; `look` sees.

        Args:
            study: whose trials.
            cells: all cells there may be trials of.
        """
        self.study, self.cells = study, cells
        self.tried: set[Name] = set()
        """The cells of all trials, but for one that is being asked for and has no parameters yet."""
        self.running: list[Name] = []
        """In the order of their trials."""
        self.ended: list[Name] = []
        """In the order in which they ended."""
        self.lines: list[Line] = []
        """Of the ended ones."""
        self.spent: list[float] = []
        """Their training FLOPs; of a stopped one those up to its stop."""
        self._open: dict[int, Name | None] = {}
        self._count = 0

    def look(self) -> None:
        """See what the trials say now."""
        # Copies of all trials would cost more than all else at each cell.
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

    def rows(self, count: int | None = None) -> pd.DataFrame:
        """The rows of the cells that ended, or of the first so many."""
        return frame(self.lines[:count])

    def _end(self, trial: FrozenTrial) -> None:
        name = self._open.pop(trial.number)
        assert name is not None
        planned, attributes = self.cells[name], trial.user_attrs
        self.ended.append(name)
        self.lines.append(line_of(planned, trial.value, attributes[LOSS_SE], attributes[STATUS]))
        self.spent.append(planned.flops * float(attributes[SHARE]))


class CrossingSampler(BaseSampler):
    """Optuna's interface to `analysis.design.next_cells.propose`.

    New rows are looked at in whole groups. Of a group that is not whole yet the cells count as running, so that a
    driver with many workers need not plan anew for each of them, and yet chooses by the rows alone.
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
            objective: what is to be known.
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
            LookupError: there is none; `upcoming` says so before.
        """
        if "fixed_params" in trial.system_attrs:
            return {}
        choices = self.upcoming(study)
        if not choices:
            raise LookupError("no cell is left that can be chosen")
        chosen = self._queue.pop(0).option
        # The trial that is being asked for will be of this plan.
        self._tried += 1
        return {DEPTH: chosen.depth, WIDTH: chosen.width, LR: chosen.lr_factor, SEED: chosen.seed}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: a parameter that is not of `infer_relative_search_space` is no part of a cell."""
        raise ValueError(f"{param_name} is no parameter of a cell; those are {DEPTH}, {WIDTH}, {LR}, {SEED}")

    def trials(self, study: optuna.Study) -> Trials:
        """What the trials of a study say now."""
        if self._trials is None or self._trials.study is not study:
            self._trials, self._seen = Trials(study, self.cells), -1
        self._trials.look()
        return self._trials

    def upcoming(self, study: optuna.Study) -> Sequence[Choice]:
        """The next choices, best first.

        They are planned anew where another group of cells has ended, or other cells can be afforded than when they were
        planned: a search that was killed plans from those, and must not choose otherwise.
        """
        now = self.trials(study)
        seen = len(now.ended) // self.group * self.group
        reach = bisect_right(self._costs, self.left(now))
        # Cells are never taken back, so those of the plan and no others have been begun where there are as many.
        is_planned = (self._seen, self._tried, self._reach) == (seen, len(now.tried), reach)
        if not is_planned or (self._found and not self._queue):
            options = self.affordable(now)
            pending = [self.options[name] for name in (*now.ended[seen:], *now.running)]
            count = max(self.group, self.workers - len(now.running), SHOWN)
            self._queue = propose(now.rows(seen), pending, options, self.objective, count) if options else []
            self._seen, self._tried, self._reach = seen, len(now.tried), reach
            self._found = bool(self._queue)
        return tuple(self._queue)

    def affordable(self, now: Trials) -> list[Option]:
        """The cells that have not been tried and fit into the training FLOPs that are left."""
        left = self.left(now)
        return [
            option for name, option in self.options.items() if name not in now.tried and option.cost <= left
        ]

    def left(self, now: Trials) -> float:
        """Training FLOPs that trials to come may cost."""
        if self.max_flops is None:
            return math.inf
        return self.max_flops - math.fsum(now.spent) - sum(self.options[name].cost for name in now.running)


class CrossingSearch:
    """The cells of a plan in the order in which they tell most, until a limit of the spec is reached."""

    def __init__(
        self,
        plan: Plan,
        spec: StudySpec,
        known: Mapping[str, Outcome],
        begun: Collection[str] = (),
        workers: int = 1,
    ) -> None:
        """Begin from what is known.

        Args:
            plan: the cells to choose from.
            spec: the limits.
            known: outcomes of cells that ended before, by cell key, in the order in which they ended.
            begun: keys of cells that were begun and have no outcome (failed, or cut off), in the order in which they
                began: they come first.
            workers: how many cells run at once.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._plan, self._search = plan, spec.search
        self._cells = {_name(planned): planned for planned in plan.pool if not planned.arm}
        self._sampler = CrossingSampler(self._cells, objective_of(spec), workers, spec.search.max_flops)
        self._watch = Watch(objective_of(spec), spec.search.stop_when)
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
        """Whether no cell will ever be given again."""
        return self.ending is not None and not self._waiting

    @property
    def total(self) -> int:
        """Cells of the whole search at most, those already known included."""
        return self._plan.cell_count

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None where the search has ended, or waits for what runs."""
        if self._waiting:
            return self._waiting.pop(0)
        if self.ending is not None:
            return None
        if not self._sampler.upcoming(self.study):
            # A cell that runs may still leave FLOPs over, or change what is worth trying.
            if not self._trials:
                self.ending = Ending("options", "every cell that could tell more has been tried.")
            return None
        trial = self.study.ask(self._sampler.space)
        planned = self._cells[trial.params[DEPTH], trial.params[WIDTH], trial.params[LR], trial.params[SEED]]
        self._trials[planned.cell.key] = trial
        self.ending = self._limit()
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record how a cell ended."""
        self._end(key, outcome)
        if self.ending is None:
            is_due = self._watch.is_due(self._ended)
            self.ending = self._ending() if is_due else self._limit()

    def news(self) -> SearchUpdate | None:
        """What is known, where a check was due after the cell that ended last; None at any other time."""
        return self.state() if self._watch.is_due(self._ended) else None

    def state(self) -> SearchUpdate:
        """What is known now."""
        now = self._sampler.trials(self.study)
        upcoming = () if self.ending else tuple(self._sampler.upcoming(self.study))
        return SearchUpdate(
            self._ended, math.fsum(now.spent), self._watch.latest(now.rows()), upcoming, self.ending
        )

    def _own(self, key: str) -> PlannedCell | None:
        """The cell of a key; None for one of another study or of an arm."""
        planned = self._plan.by_key(key)
        return planned if planned and not planned.arm else None

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

    def _ending(self) -> Ending | None:
        """Which limit is reached, a certainty at any check so far."""
        return self._watch.ending(self._sampler.trials(self.study).rows()) or self._limit()

    def _limit(self) -> Ending | None:
        now = self._sampler.trials(self.study)
        tried = len(now.tried)
        most, flops = self._search.max_cells, self._search.max_flops
        if most is not None and tried >= most:
            return Ending("max_cells", f"the limit of {most:,} cells is reached.")
        if tried >= len(self._cells):
            return Ending("options", f"all {tried:,} cells it may train have been tried.")
        # A cell that runs may be stopped early or diverge, and leave FLOPs for others.
        if flops is not None and not self._trials and not self._sampler.affordable(now):
            return Ending("max_flops", f"no other cell fits into {short(flops)} training FLOPs.")
        return None


def group_of(workers: int) -> int:
    """How many ended cells a search of so many workers looks at together.

    Up to three workers it looks at each: cells then end so seldom that a plan for every one costs nothing. Many workers
    choose without knowing what the others will show, so that half of them, or eight, more or less changes little.
    """
    return max(LEAST_GROUP, workers // 2) if workers >= MANY_WORKERS else max(1, workers // 2)


def distributions(names: Collection[Name]) -> dict[str, BaseDistribution]:
    """Optuna's space of the parameters of cells."""
    depths, widths, factors, seeds = (sorted({name[i] for name in names}) for i in range(4))
    return {
        DEPTH: IntDistribution(int(depths[0]), int(depths[-1]), log=True),
        WIDTH: IntDistribution(int(widths[0]), int(widths[-1]), log=True),
        LR: FloatDistribution(factors[0], factors[-1], log=True),
        SEED: IntDistribution(int(seeds[0]), int(seeds[-1])),
    }


def name_of(trial: FrozenTrial) -> Name:
    """The cell of a trial."""
    values = trial.params
    return int(values[DEPTH]), int(values[WIDTH]), float(values[LR]), int(values[SEED])


def line_of(planned: PlannedCell, loss: float | None, loss_se: float | None, status: str) -> Line:
    """The line of an ended cell, by its loss and the standard error of that in nats, and how it ended."""
    shape = planned.cell.shape
    return Line(
        *(shape.depth, shape.width, float(shape.budget_params)),
        *(planned.lr_factor, planned.cell.lr, planned.cell.seed),
        *(math.nan if loss is None else loss, loss_se or 0.0, status),
    )


def frame(lines: Iterable[Line]) -> pd.DataFrame:
    """The rows of `analysis.design.next_cells` and `analysis.design.objective` of ended cells, in their order."""
    return pd.DataFrame(list(lines), columns=list(Line._fields))


def _name(planned: PlannedCell) -> Name:
    shape = planned.cell.shape
    return shape.depth, shape.width, planned.lr_factor, planned.cell.seed


def _option(planned: PlannedCell) -> Option:
    depth, width, factor, seed = _name(planned)
    return Option(depth, width, float(planned.cell.shape.budget_params), factor, seed, planned.flops)


def next_words(news: SearchUpdate) -> str:
    """The next cells and why each is worth its cost, in one line; empty where the search has ended."""
    return "; ".join(
        f"L{option.depth}-d{option.width}-s{option.seed}{_factor(option)} ({choice.reason})"
        for choice in news.next[:SHOWN]
        for option in (choice.option,)
    )


def _factor(option: Option) -> str:
    return "" if option.lr_factor == 1 else f" at {option.lr_factor:g} times the rate"
