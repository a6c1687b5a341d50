"""The samplers `tpe` and `gp`: Optuna picks depths and learning rates within each budget."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from study.plan.plan import Plan
from study.search.source import Keys, Known, Search
from study.spec.search import Sampler, register
from study.spec.study import StudySpec

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Candidates(Sampler):
    """Train `candidates` candidates per budget, chosen by a sampler of Optuna."""

    candidates: int = Field(
        ge=1,
        description="how many pairs of depth and learning rate to try at each budget, each with every seed",
    )

    def plan_json(self) -> dict[str, Any]:
        """The limits of the search, as keys of the plan's JSON."""
        return {**super().plan_json(), "candidates": self.candidates}

    def trained_shares(self, plan: Plan) -> dict[float, float]:
        """Return the share of each budget's candidates that is trained."""
        pairs = {(p.budget, p.cell.shape.depth, p.lr_factor) for p in plan.cells}
        counts = Counter(budget for budget, *_ in pairs)
        return {budget: min(1.0, self.candidates / count) for budget, count in counts.items()}

    def plan_notes(self, plan: Plan) -> list[str]:
        """Return the number of candidates, and of their cells."""
        return [
            f"the search ({self.sampler}) tries {self.candidates} candidates per budget: {plan.cell_count} of the "
            f"{len(plan.cells)} cells listed; totals are for an average choice"
        ]

    def power_notes(self) -> list[str]:
        """Return that the simulation trains more cells."""
        return [
            f"The search ({self.sampler}) trains only some of the cells listed; the simulation trains all of them, so "
            "its intervals are too narrow."
        ]

    def optuna_sampler(self, seed: int, startup: int) -> "BaseSampler":
        """Return a new sampler of Optuna.

        Args:
            seed: of its random numbers.
            startup: trials that it picks at random before it learns from them.
        """
        raise NotImplementedError

    def make_search(self, plan: Plan, spec: StudySpec, known: Known, begun: Keys, workers: int) -> Search:
        """Return the search of candidates of each budget."""
        from study.search.optuna_search import CandidateSearch

        return CandidateSearch(plan, known, begun, self.seed, self.candidates, self.optuna_sampler)


@register
class Tpe(Candidates):
    """Tree-structured Parzen estimator."""

    sampler: Literal["tpe"] = "tpe"

    def optuna_sampler(self, seed: int, startup: int) -> "BaseSampler":
        """Return a `TPESampler` that avoids candidates in training."""
        from optuna.samplers import TPESampler

        return TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=startup)


@register
class Gp(Candidates):
    """Gaussian process."""

    sampler: Literal["gp"] = "gp"

    def optuna_sampler(self, seed: int, startup: int) -> "BaseSampler":
        """Return a `GPSampler` for noisy losses."""
        from optuna.samplers import GPSampler

        return GPSampler(seed=seed, n_startup_trials=startup, deterministic_objective=False)
