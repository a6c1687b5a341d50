"""`interplay audit`: existing models compared with published evidence or one law, as JSON or for a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit.evidence import Evidence, law_evidence, published_evidence
from analysis.audit.model_config import read_model_config
from analysis.audit.recommend import fit_evidence
from analysis.audit.verdict import Audit, Finding, audit, shape_of
from analysis.fit.recommendation import NamedFit, named_fit
from analysis.law.near_optimal import Within, within_words
from analysis.law.published import published_law
from core.errors import InputError
from core.numbers import ends, listed, short
from interplay.terminal import text_table

if TYPE_CHECKING:
    # It draws a figure.
    from analysis.audit.known_models import KnownModel

#: What a verdict rests on, by `Shape.source`.
_SOURCES = {
    "published": "the law",
    "law": "the laws",
    "measured": "the losses measured near this N",
    "band": "the interval of the laws",
}


def audit_models(
    configs: Sequence[Path],
    shape: tuple[int | None, int | None, int | None] = (None, None, None),
    law: str | None = None,
    fit: Path | NamedFit | None = None,
    within: Within = None,
) -> list[Audit]:
    """Compare models with all published evidence, or with one law, in the order given.

    Args:
        configs: `config.json` files or folders that hold one.
        shape: depth, width and vocabulary of a model without a config; the vocabulary may be None.
        law: name of a published law that is the only evidence.
        fit: a fit that is the only evidence, as `interplay recommend --fit` uses it.
        within: nats per token within which a depth counts as near-optimal.

    Raises:
        InputError: nothing to audit, half a shape, both laws, a fit without an answer at the size of a model, or a
            model that cannot be compared.
    """
    depth, width, vocabulary = shape
    models = [read_model_config(path) for path in configs]
    if depth is not None and width is not None:
        models.append(shape_of(depth, width, vocabulary))
    elif any(value is not None for value in shape):
        raise InputError("--depth and --width name a shape together: --depth 32 --width 4096.")
    if not models:
        raise InputError(
            "There is no model to audit: give a HuggingFace config.json, a folder with one, or --depth L --width D."
        )
    if fit is not None and law is not None:
        raise InputError(f"Give one law: --law {law} or --fit, not both.")
    if fit is not None:
        evidence: Sequence[Evidence] = (fit_evidence(named_fit(fit), within),)
    else:
        evidence = published_evidence() if law is None else (law_evidence(law, published_law(law)),)
    return [audit(model, evidence, within) for model in models]


def audit_view(audits: Sequence[Audit], within: Within) -> RenderableType:
    """Return one sentence per model, with its notes, then one table of all laws and models, for a terminal."""
    parts: list[RenderableType] = []
    rows = []
    for item in audits:
        parts.append(_sentence(item))
        parts += [Text(text, style="yellow") for text in item.warnings]
        parts += [Text(text, style="dim") for text in item.notes]
        parts.append(Text())
        model = item.model
        for finding in item.findings:
            best, near = finding.best, finding.near_optimal
            rows.append(
                (
                    model.name,
                    f"{model.depth} × {model.width}",
                    short(model.law_params, 3),
                    "-" if model.block_params is None else short(model.block_params, 3),
                    finding.law,
                    "-" if best.depth is None else f"{best.depth} × {best.width:,}",
                    "-" if best.depth_interval == (None, None) else ends(best.depth_interval, between="–"),
                    "-" if finding.ratio is None else f"{finding.ratio:.2f}",
                    "-" if near is None else near.depths_text,
                    (near and near.lost_text) or "-",
                    finding.verdict if finding.inside else f"({finding.verdict})",
                )
            )
    names = ("model", "shape", "N", "in blocks", "by", "best", "interval", "L/L*", "near", "lost", "verdict")
    legend = (
        f"N is 12·L·d², as in the laws. Interval: {_level(audits)}of the best depth at fixed N, by the errors of the "
        f"law's parameters only; the error of its form is not in it. Near: depths within {within_words(within)} per "
        "token of the best. Lost: nats per token. In brackets: the law has no models of this size and depth."
    )
    return Group(
        *parts, text_table("", names, rows, left=("model", "by", "verdict")), Text(legend, style="dim")
    )


def _sentence(item: Audit) -> Text:
    named = Text.assemble((item.model.name, "bold"))
    if not item.deciding:
        laws = "the law" if len(item.findings) == 1 else "every law"
        return named.append(f" has no verdict: its size is more than ten times outside the sizes of {laws}.")
    style = "bold green" if item.verdict in ("near the best", "within the interval") else "bold yellow"
    if item.verdict in ("laws disagree", "not settled"):
        named.append(" has no common verdict, ").append(
            "the laws disagree" if item.verdict == "laws disagree" else "it is not settled", style
        )
    else:
        named.append(" is ").append(item.verdict, style)
    laws = listed([finding.law for finding in item.deciding])
    if item.lost is not None:
        low, high = (f"{value:.4f}" for value in item.lost)
        nats = low if low == high else f"{low} to {high}"
        return named.append(
            f": it loses {nats} nats per token against the best depth of its size, by {laws}."
        )
    (finding, *_) = item.deciding
    depth = finding.star
    stated = "not stated" if depth is None else f"{depth:.1f}" if depth >= 1 else "less than one layer"
    level = f"{100 * finding.best.level:.3g} % " if finding.best.level is not None else ""
    kind = ", by the errors of its parameters only" if finding.best.source == "published" else ""
    by = _SOURCES[finding.best.source]
    return named.append(
        f": by {by} of {finding.source}, the best depth for this N is {stated} ({level}interval "
        f"{ends(finding.best.depth_interval)}{kind}); what the model loses is not known by it."
    )


def _level(audits: Sequence[Audit]) -> str:
    """`95 %, `; empty for the depths tied with a measured one, which have no level."""
    levels = {finding.best.level for item in audits for finding in item.findings}
    return next((f"{100 * level:.3g} %, " for level in levels if level is not None), "")


def audit_known(
    within: Within = None, figure: Path | None = None, others: Sequence[object] = ()
) -> list["KnownModel"]:
    """Compare the well-known models with both published laws and the Gemstones table, and draw them into `figure`.

    Raises:
        InputError: one of `others`, which name another model or law, is not None; `within` is no positive number; or
            the figure cannot be written.
    """
    if any(value is not None for value in others):
        raise InputError(
            "--known compares a list of models with all laws; leave out every other model and law."
        )
    from analysis.audit.known_models import known_models
    from analysis.report.figures.known_models import known_figure, write_figure

    models = known_models(within)
    if figure is not None:
        write_figure(known_figure(models, within), figure)
    return models


def known_view(models: Sequence["KnownModel"], within: Within) -> RenderableType:
    """Return the table of the well-known models for a terminal of 80 columns, and how to read it."""
    rows = []
    for known in models:
        model = known.audit.model
        levine, *others = known.audit.findings
        cells: list[str] = [
            _in_brackets(levine, "-" if levine.best.depth is None else str(levine.best.depth))
        ]
        for finding in others:
            near = finding.near_optimal
            cells.append("-" if near is None else _in_brackets(finding, near.depths_text))
            cells.append("-" if near is None or near.lost is None else f"{near.lost:.3f}")
        verdict = (
            f"({known.audit.verdict})"
            if known.audit.extrapolated and known.audit.deciding
            else known.audit.verdict
        )
        shape = f"{model.depth}×{model.width}"
        rows.append((model.name, shape, short(model.law_params, 2), *cells, verdict))
    names = ("model", "L × d", "N", "best", "Liu", "lost", "table", "lost", "verdict")
    laws = [finding.law for finding in models[0].audit.findings]
    legend = (
        f"Best: best depth by the law of {laws[0]}, which gives no losses. Liu, table: the depths within "
        f"{within_words(within)} of the best and the nats that the model loses, by the law of {laws[1]} and by a fit "
        f"of the {laws[2]} table. In brackets: the law was not fitted on models of this size and depth. N is "
        "12·L·d². Verdict: of the laws of the loss that were, in brackets of those whose sizes are at most ten times "
        "away; no verdict: of neither. Training tokens, inference cost and long contexts are not part of it."
    )
    return Group(text_table("", names, rows, left=("model", "verdict")), Text(legend, style="dim"))


def _in_brackets(finding: Finding, text: str) -> str:
    return text if finding.inside or text == "-" else f"({text})"
