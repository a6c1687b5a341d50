"""The samplers `tpe` and `gp`: Optuna picks depths and learning rates within each budget."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

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
        description="for tpe and gp: how many pairs of depth and learning rate to try at each budget, each with every "
        "seed",
    )

    @model_validator(mode="before")
    @classmethod
    def _needs_candidates(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "candidates" not in values:
            raise ValueError(
                f"the sampler `{values.get('sampler')}` needs `candidates`: how many pairs of depth and learning rate "
                "to try at each budget, for example `candidates: 8`"
            )
        return values

    @property
    def candidates_per_budget(self) -> int:
        """Number of candidates of each budget that are trained."""
        return self.candidates

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
