"""The section `early_stopping`: when a cell may end before its last step. Each rule is one class."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from study.spec.section import Section
from trainables.progress import evaluation_steps

#: Share of the steps after which no cell is stopped: the rest saves less than it costs in precision.
LATEST_STOP = 0.9


class StoppingRule(Section):
    """Base of the rules of early stopping."""

    first_key: ClassVar[str]
    """The key that holds the share of the steps before which no cell ends."""

    finished: int = Field(
        default=16, ge=12, description="cells that must be done before a loss is forecast, per lr_factor"
    )
    whole_share: float = Field(
        default=0.25,
        ge=0.1,
        lt=1,
        description="share of the cells that are always trained to their end: they keep the forecasts unbiased and "
        "show the noise",
    )

    @property
    def first_share(self) -> float:
        """Share of the steps before which no cell ends."""
        share: float = getattr(self, self.first_key)
        return share

    def steps(self, evaluated: Sequence[int], last: int) -> tuple[int, ...]:
        """Return those of the evaluated steps, out of `last`, after which the rule may end a cell."""
        return tuple(step for step in evaluated if self.first_share * last <= step <= LATEST_STOP * last)

    def check(self, last: int, evaluations: int) -> None:
        """Raise a `ValueError` if no evaluation of a cell of `last` steps is between the first and the latest stop."""
        if not self.steps(evaluation_steps(last, evaluations), last):
            raise ValueError(
                f"`early_stopping` looks at evaluations between {self.first_share:.0%} (`{self.first_key}`) and "
                f"{LATEST_STOP:.0%} of the steps, and `resources.evaluations` {evaluations} puts none there; take 10 "
                "or more"
            )


class ForecastStopping(StoppingRule):
    """End a cell once its final loss can be forecast precisely enough."""

    first_key = "least_share"

    rule: Literal["forecast"]
    halfwidth: float = Field(
        default=0.005,
        gt=0,
        lt=1,
        description="half-width of the forecast's 95 % interval, relative to the loss, at which a cell ends",
    )
    least_share: float = Field(
        default=0.3, ge=0, lt=1, description="share of the steps before which no cell ends"
    )


class AshaStopping(StoppingRule):
    """End cells that are not among the best of their budget, by successive halving."""

    first_key = "grace"

    rule: Literal["asha"]
    reduction: int = Field(default=3, ge=2, le=100, description="one cell out of this many passes a rung")
    grace: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="share of the steps of the first rung; each next is `reduction` times it",
    )

    def steps(self, evaluated: Sequence[int], last: int) -> tuple[int, ...]:
        """Return the steps at or next after the rungs: `grace`, then each `reduction` times the one before."""
        able = super().steps(evaluated, last)
        found: set[int] = set()
        share = self.grace
        while share < 1:
            found.update([step for step in able if step >= share * last][:1])
            share *= self.reduction
        return tuple(sorted(found))


EarlyStopping = Annotated[ForecastStopping | AshaStopping, Field(discriminator="rule")]
