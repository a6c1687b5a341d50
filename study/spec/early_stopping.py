"""The section `early_stopping`: when a cell may end before its last step."""

from typing import Literal

from pydantic import Field

from study.spec.section import Section
from trainables.progress import evaluation_steps

#: Share of the steps after which no cell is stopped: the rest saves less than it costs in precision.
LATEST_STOP = 0.9


class EarlyStoppingSection(Section):
    """End a cell once its final loss can be forecast precisely enough."""

    rule: Literal["forecast"] = Field(default="forecast", description="forecast, the only rule")
    halfwidth: float = Field(
        default=0.005,
        gt=0,
        lt=1,
        description="half-width of the forecast's 95 % interval, relative to the loss, at which a cell ends",
    )
    least_share: float = Field(
        default=0.3, ge=0, lt=1, description="share of the steps before which no cell ends"
    )
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

    def steps(self, last: int, evaluations: int) -> tuple[int, ...]:
        """Return the evaluated steps, out of `last`, after which a cell may end.

        Raises:
            ValueError: there is none.
        """
        first, latest = self.least_share * last, LATEST_STOP * last
        found = tuple(step for step in evaluation_steps(last, evaluations) if first <= step <= latest)
        if not found:
            raise ValueError(
                f"`early_stopping` looks at evaluations between {self.least_share:.0%} (`least_share`) and "
                f"{LATEST_STOP:.0%} of the steps, and `resources.evaluations` {evaluations} puts none there; take 10 "
                "or more"
            )
        return found
