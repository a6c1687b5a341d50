"""Well-known models by both published laws and by a fit of the Gemstones table, and how far each is from the data.

The shapes are in `analysis/audit/known_models.yaml`. `analysis/audit/gemstones.jsonl` has 66 rows of McLeish et al.
2025 (arXiv 2502.06857), unchanged, from `wandb_dfs/wandb_df_for_fitting_hot_100b+.jsonl` of
github.com/mcleish7/gemstone-scaling-laws (MIT licence): 22 shapes, each at three checkpoints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from analysis.audit.model_config import ModelConfig, model_config
from analysis.errors import InputError
from analysis.files import to_json
from analysis.fit.document import fit
from analysis.fit.sentences import REACH
from analysis.law.near_optimal import WITHIN, check_within, near_optimal
from analysis.law.published import LIU2026
from analysis.law.shape import NearOptimal, Shape
from analysis.law.threshold_law import LEVINE2020
from analysis.numbers import short
from analysis.runs.table import read_runs

if TYPE_CHECKING:
    # Only `--figure` loads it.
    from matplotlib.figure import Figure

#: A size that is larger or smaller by less than this factor counts as one of the data.
SIZE_TOLERANCE = 1.1
#: Formats of the figure, by the ending of its file; its size in inches, at 100 dots per inch.
FORMATS, FIGURE_SIZE = (".png", ".svg", ".pdf"), (8.0, 5.2)
#: Models whose names are written in the figure; others share a place with one of them or are close to it.
NAMES_BELOW = (
    "GPT-2 124M", "Qwen2.5 0.5B", "Llama 3.2 1B", "SmolLM3 3B", "Gemma 7B", "Llama 3 8B", "Pythia 12B", "Qwen3 32B",
    "Llama 65B", "BLOOM 176B",
)  # fmt: skip
NAMES_ABOVE = ("SmolLM2 135M", "GPT-2 XL", "GPT-3 175B", "Gemma 2 9B", "Gemma 2 27B", "Llama 405B")

#: Of one law inside its data, and of all laws together.
Verdict = Literal["near the best", "too shallow", "too deep", "not settled", "laws disagree", "no evidence"]


@dataclass(frozen=True)
class Evidence:
    """A law and the models that it was fitted on.

    Attributes:
        sizes, depths: smallest and largest N and depth of its models.
        best: the best shape by N; None where the law has no answer.
        losses: by N, depth and `within`, the near-optimal depths and what the depth loses; None for a law of depths.
    """

    name: str
    sizes: tuple[float, float]
    depths: tuple[float, float]
    best: Callable[[float], Shape | None]
    losses: Callable[[float, float, float], NearOptimal | None] | None


@dataclass(frozen=True)
class Finding:
    """One model by one law.

    Attributes:
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
    """A well-known model and its findings, one per law."""

    year: int
    parameters: int
    model: ModelConfig
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the laws of the loss that were fitted on models of this size and depth."""
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
    text = (resources.files("analysis") / "audit" / "known_models.yaml").read_text(encoding="utf-8")
    found = []
    for entry in yaml.safe_load(text):
        model = model_config(entry["config"], entry["name"])
        findings = tuple(_finding(model, law, within) for law in evidence())
        found.append(KnownModel(entry["year"], entry["parameters"], model, findings))
    return sorted(found, key=lambda known: known.model.law_params)


@cache
def evidence() -> tuple[Evidence, ...]:
    """The laws of Levine et al. 2020 and Liu et al. 2026, and the fit of the Gemstones table, which takes 2 seconds."""
    shallowest, deepest = LEVINE2020.depths[0], LEVINE2020.depths[-1]
    levine_sizes = LEVINE2020.transition(shallowest).params, LEVINE2020.transition(deepest).params
    with resources.as_file(resources.files("analysis") / "audit" / "gemstones.jsonl") as path:
        table = fit(read_runs(Path(path), {"loss": "final_loss", "params": "params_active_precise"}))
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
        Evidence("Levine 2020", levine_sizes, (shallowest, deepest), LEVINE2020.shape, None),
        Evidence("Liu 2026", LIU2026.params_range, LIU2026.depth_range, LIU2026.shape, liu),
        Evidence("Gemstones", sizes, (int(depths.min()), int(depths.max())), predicted, surface),
    )


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


def known_figure(models: Sequence[KnownModel], within: float) -> "Figure":
    """Draw the models, the depths within `within` nats of the best by each law of the loss, and the law of depths.

    What lies outside the sizes of a law's models is hatched or dotted.
    """
    import matplotlib as mpl
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    from analysis.report.figures import palette
    from analysis.report.figures.canvas import LINE, STYLE, count_axis, set_ticks

    levine, *others = evidence()
    sizes = [known.model.law_params for known in models]
    ends = (min(sizes) / 1.5, max(sizes) * 3)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=FIGURE_SIZE, dpi=100, layout="constrained")
        axes = figure.subplots()
        for law, colour in zip(others, (palette.GOOD, palette.ACCENT), strict=True):
            for low, high, inside in _parts(law, ends):
                line = np.geomspace(low, high, LINE)
                found = [
                    (size, near.depths)
                    for size in line
                    if law.losses and (near := law.losses(size, 1, within))
                ]
                if not found:
                    continue
                places, depths = zip(*found, strict=True)
                look: dict[str, Any] = {"facecolor": "none", "alpha": 0.45, "hatch": "////"}
                if inside:
                    label = f"within {within:g} nats of the best, {law.name}"
                    look = {"facecolor": colour, "alpha": 0.3, "label": label}
                lows, highs = zip(*depths, strict=True)
                axes.fill_between(places, lows, highs, edgecolor=colour, linewidth=0, **look)
        for low, high, inside in _parts(levine, ends):
            line = np.geomspace(low, high, LINE)
            best = [LEVINE2020.best_depth(float(size)) or np.nan for size in line]
            named = f"best depth, {levine.name}" if inside else None
            axes.plot(line, best, "-" if inside else ":", color=palette.MUTED, label=named)
        axes.plot(sizes, [known.model.depth for known in models], "o", color=palette.INK, markersize=5)
        offsets = {**dict.fromkeys(NAMES_BELOW, (5, -11)), **dict.fromkeys(NAMES_ABOVE, (-4, 6))}
        for known in models:
            if offset := offsets.get(known.model.name):
                place = (known.model.law_params, known.model.depth)
                axes.annotate(known.model.name, place, offset, textcoords="offset points", fontsize=8.5)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(9, 260))
        axes.set(xlabel="N = 12·L·d²", ylabel="depth L (layers)")
        count_axis(axes.xaxis, 5)
        set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5)), short)
        axes.legend(loc="upper left", title="hatched, dotted: outside the data of the law", alignment="left")
    FigureCanvasAgg(figure)
    return figure


def _parts(law: Evidence, ends: tuple[float, float]) -> list[tuple[float, float, bool]]:
    """The ranges of N below, inside and above the sizes of a law that are not empty, and which is inside."""
    (left, right), (low, high) = ends, law.sizes
    inside = (max(left, low), min(right, high), True)
    parts = [(left, min(low, right), False), inside, (max(high, left), right, False)]
    return [part for part in parts if part[0] < part[1]]


def write_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the path's ending.

    Raises:
        InputError: another ending, or the file cannot be written.
    """
    import matplotlib as mpl

    if path.suffix not in FORMATS:
        raise InputError(f"--figure {path} must end in {', '.join(FORMATS)}, which names its format.")
    metadata = {"Software": None} if path.suffix == ".png" else None
    try:
        with mpl.rc_context({"svg.hashsalt": "known"}):
            figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)
    except OSError as error:
        raise InputError(f"The figure cannot be written to {path}: {error}. Name another file.") from error
