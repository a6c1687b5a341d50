"""All published evidence on depth: both published laws and a fit of the Gemstones table, each with the sizes it is of.

`analysis/audit/tables/gemstones.jsonl` has 66 rows of McLeish et al. 2025 (arXiv 2502.06857), unchanged, from
`wandb_dfs/wandb_df_for_fitting_hot_100b+.jsonl` of github.com/mcleish7/gemstone-scaling-laws (MIT licence): 22 shapes,
each at three checkpoints.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from analysis.law.near_optimal import Within, nats_of, near_optimal
from analysis.law.published import PUBLISHED, AdditiveLaw, PublishedLaw, published_shape
from analysis.law.reasons import Because, Reason
from analysis.law.shape import REACH, NearOptimal, Recommendation

#: A size that is larger or smaller by less than this factor counts as one of the data.
SIZE_TOLERANCE = 1.1


@dataclass(frozen=True)
class Evidence:
    """A law or a measured table, and the models that it comes from.

    Attributes:
        name, source: short, and in words.
        sizes, depths: smallest and largest N and depth of its models; None if not known.
        best: the best shape by N, with the source `none` where there is no answer.
        losses: by N, depth and `within`, the near-optimal depths and what the depth loses; None for a law of depths
            only, and where there is no answer.
        law: the published law if it is the only evidence: it gives the transition of a depth, or refuses it.
    """

    name: str
    source: str
    sizes: tuple[float, float] | None
    depths: tuple[float, float] | None
    best: Callable[[float], Recommendation]
    losses: Callable[[float, float | None, Within], NearOptimal | None]
    law: PublishedLaw | None = None

    def beyond(self, params: float) -> float:
        """The factor by which N lies outside the sizes; 1 inside, and where they are not known."""
        return 1.0 if self.sizes is None else max(1.0, params / self.sizes[1], self.sizes[0] / params)

    def holds(self, params: float, depth: float) -> bool:
        """Whether its models have this size and depth."""
        shallowest, deepest = self.depths or (depth, depth)
        return self.beyond(params) < SIZE_TOLERANCE and shallowest <= depth <= deepest


def law_evidence(name: str, law: PublishedLaw) -> Evidence:
    """The evidence of one published law."""

    def losses(params: float, depth: float | None, within: Within) -> NearOptimal | None:
        if not isinstance(law, AdditiveLaw) or published_shape(law, params).source == "none":
            return None
        return near_optimal(law, params, depth, law.source, nats_of(within))

    return Evidence(
        name,
        law.source,
        law.params_range,
        law.depth_range,
        lambda params: published_shape(law, params),
        losses,
        law,
    )


@cache
def published_evidence() -> tuple[Evidence, ...]:
    """The laws of Levine et al. 2020 and Liu et al. 2026, and the fit of the Gemstones table, which takes a second.

    None answers more than `REACH` times outside its sizes.
    """
    names = {"levine2020": "Levine 2020", "liu2026": "Liu 2026"}
    laws = [law_evidence(names[name], law) for name, law in PUBLISHED.items()]
    return tuple(_within_reach(item) for item in (*laws, _gemstones()))


def _within_reach(item: Evidence) -> Evidence:
    """The same evidence without an answer for sizes that are more than `REACH` times outside."""
    assert item.sizes is not None
    smallest, largest = item.sizes

    def best(params: float) -> Recommendation:
        if item.beyond(params) <= REACH * (1 + 1e-9):
            return item.best(params)
        below = params < smallest
        beyond = Because(
            Reason.BELOW_MODELS if below else Reason.ABOVE_MODELS, (REACH, smallest if below else largest)
        )
        return Recommendation(params, None, (None, None), None, "none", item.source, reasons=(beyond,))

    def losses(params: float, depth: float | None, within: Within) -> NearOptimal | None:
        return item.losses(params, depth, within) if item.beyond(params) <= REACH * (1 + 1e-9) else None

    return replace(item, best=best, losses=losses, law=None)


def _gemstones() -> Evidence:
    # A verdict by one published law loads no numerical library.
    from analysis.audit.shipped_tables import TABLES
    from analysis.fit.document import fit
    from analysis.law.prediction import lost_by

    source = "Gemstones, McLeish et al. 2025 (arXiv 2502.06857), fitted by Interplay"
    table = fit(TABLES["gemstones"].read())
    assert table.study is not None
    assert table.sizes is not None
    depths = table.study.rows["depth"]

    def best(params: float) -> Recommendation:
        return Recommendation.of(replace(table.predict(params, math.inf), source="published", law=source))

    def losses(params: float, depth: float | None, within: Within) -> NearOptimal | None:
        decision = table.gap_laws.decide(params, table.level)
        if decision is None:
            return None
        near = lost_by(decision, decision.depth if depth is None else depth, nats_of(within))
        return replace(near, losses=source)

    return Evidence("Gemstones", source, table.sizes, (int(depths.min()), int(depths.max())), best, losses)
