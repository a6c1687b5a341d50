"""Well-known models by both published laws and by a fit of the Gemstones table, and how far each is from the data.

The shapes are in `analysis/audit/known_models.yaml`. `analysis/audit/gemstones.jsonl` has 66 rows of McLeish et al.
2025 (arXiv 2502.06857), unchanged, from `wandb_dfs/wandb_df_for_fitting_hot_100b+.jsonl` of
github.com/mcleish7/gemstone-scaling-laws (MIT licence): 22 shapes, each at three checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from analysis.audit.model_config import ModelConfig, model_config
from analysis.files import to_json
from analysis.fit.document import Fit, fit
from analysis.fit.sentences import REACH
from analysis.law.near_optimal import WITHIN, check_within, near_optimal
from analysis.law.published import LIU2026
from analysis.law.shape import NearOptimal, Shape
from analysis.law.threshold_law import LEVINE2020
from analysis.runs.table import read_runs

#: A size that is larger or smaller by less than this factor counts as one of the data.
SIZE_TOLERANCE = 1.1
#: Of one law inside its data, and of all laws together.
Verdict = Literal["near the best", "too shallow", "too deep", "not settled", "laws disagree", "no evidence"]


@dataclass(frozen=True)
class Evidence:
    """What a law was fitted on.

    Attributes:
        name: of the law.
        sizes, depths: smallest and largest N and depth of its models.
        best: the best shape by N; None where the law has no answer.
        losses: by N and depth, the near-optimal depths and what the depth loses; None for a law of depths only.
    """

    name: str
    source: str
    sizes: tuple[float, float]
    depths: tuple[float, float]
    best: Callable[[float], Shape | None]
    losses: Callable[[float, float, float], NearOptimal | None] | None


@dataclass(frozen=True)
class Finding:
    """One model by one law.

    Attributes:
        law: its name.
        beyond: factor by which N lies outside the sizes of the law's models; 1 inside.
        inside: the law was fitted on models of this size and depth.
        best: the best shape; None more than `REACH` times outside the sizes of the table.
        near: the near-optimal depths, and what the model loses.
        verdict: None for a law of depths only: its interval holds the error of two parameters and no other doubt.
    """

    law: str
    beyond: float
    inside: bool
    best: Shape | None
    near: NearOptimal | None
    verdict: Verdict | None


@dataclass(frozen=True)
class KnownModel:
    """A well-known model and what each law says of it."""

    year: int
    parameters: int
    model: ModelConfig
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What the laws of the loss say that were fitted on models of this size and depth."""
        verdicts = {finding.verdict for finding in self.findings if finding.inside and finding.verdict}
        if not verdicts:
            return "no evidence"
        if len(verdicts) == 1:
            return verdicts.pop()
        return "laws disagree" if "not settled" not in verdicts else "not settled"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types."""
        document = {
            "name": self.model.name,
            "year": self.year,
            "parameters": self.parameters,
            **{name: getattr(self.model, name) for name in ("family", "depth", "width", "block_params")},
            "nonembedding_params": self.model.law_params,
            "verdict": self.verdict,
            "laws": self.findings,
        }
        return {key: to_json(value) for key, value in document.items()}


def known_models(within: float = WITHIN) -> list[KnownModel]:
    """Compare the well-known models with every law, ordered by N.

    Raises:
        InputError: `within` is no positive number.
    """
    check_within(within)
    laws = evidence()
    file = resources.files("analysis") / "audit" / "known_models.yaml"
    found = []
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        model = model_config(entry["config"], entry["name"])
        findings = tuple(_finding(model, law, within) for law in laws)
        found.append(KnownModel(entry["year"], entry["parameters"], model, findings))
    return sorted(found, key=lambda known: known.model.law_params)


@cache
def gemstones() -> Fit:
    """The fit of the Gemstones table at equal tokens, which takes a second or two."""
    with resources.as_file(resources.files("analysis") / "audit" / "gemstones.jsonl") as path:
        return fit(read_runs(Path(path), {"loss": "final_loss", "params": "params_active_precise"}))


@cache
def evidence() -> tuple[Evidence, ...]:
    """The laws: of Levine et al. 2020, of Liu et al. 2026, and the fit of the Gemstones table."""
    shallowest, deepest = LEVINE2020.depths[0], LEVINE2020.depths[-1]
    table = gemstones()
    assert table.study is not None
    sizes = next(ends for surface in table.surfaces if (ends := surface.params_range))
    depths = table.study.rows["depth"]

    def predicted(params: float) -> Shape | None:
        return table.predict(params) if sizes[0] / REACH <= params <= sizes[1] * REACH else None

    def surface(params: float, depth: float, within: float) -> NearOptimal | None:
        found = predicted(params)
        return table.near_optimal(found, depth, within) if found else None

    def liu(params: float, depth: float, within: float) -> NearOptimal | None:
        return near_optimal(LIU2026, params, depth, LIU2026.source, within)

    return (
        Evidence(
            "Levine 2020", LEVINE2020.source,
            (LEVINE2020.transition(shallowest).params, LEVINE2020.transition(deepest).params),
            (shallowest, deepest), LEVINE2020.shape, None,
        ),
        Evidence("Liu 2026", LIU2026.source, LIU2026.params_range, LIU2026.depth_range, LIU2026.shape, liu),
        Evidence(
            "Gemstones", "a fit of the table of McLeish et al. 2025 (arXiv 2502.06857)",
            sizes, (int(depths.min()), int(depths.max())), predicted, surface,
        ),
    )  # fmt: skip


def _finding(model: ModelConfig, law: Evidence, within: float) -> Finding:
    params, (smallest, largest) = float(model.law_params), law.sizes
    beyond = max(1.0, params / largest, smallest / params)
    inside = beyond < SIZE_TOLERANCE and law.depths[0] <= model.depth <= law.depths[1]
    best = law.best(params)
    near = law.losses(params, model.depth, within) if law.losses else None
    verdict: Verdict | None = None
    if near is not None and near.lost is not None and best is not None:
        low, high = best.depth_interval
        verdict = "not settled"
        if near.lost <= within:
            verdict = "near the best"
        elif low is not None and model.depth < low:
            verdict = "too shallow"
        elif high is not None and model.depth > high:
            verdict = "too deep"
    return Finding(law.name, beyond, inside, best, near, verdict)
