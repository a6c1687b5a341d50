"""`interplay audit`: existing models compared with published evidence or one law, as JSON or for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit import verdict
from analysis.audit.evidence import Evidence, law_evidence, published_evidence
from analysis.audit.model_config import read_model_config
from analysis.audit.recommend import fit_evidence
from analysis.audit.verdict import Audit, LawFinding, shape_of
from analysis.fit.recommendation import named_fit
from analysis.law.near_optimal import WITHIN, Within, within_words
from analysis.law.published import published_law
from core.command_line import option, options
from core.errors import InputError
from core.files import to_json
from core.numbers import ends, short, span
from interplay.result import VerbResult, Wrapped
from interplay.terminal import text_table
from interplay.verbs.recommend import named

if TYPE_CHECKING:
    # It draws a figure.
    from analysis.audit.known_models import KnownModel

    # It loads NumPy and pandas.
    from analysis.audit.rules import Judgement, Rule

    # It loads pandas, which a published law does not need.
    from interplay.answer import Answer


def audit(
    config: str | Path | None = None,
    *,
    depth: int | None = None,
    width: int | None = None,
    vocabulary: int | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
    results: str | Path = "results",
) -> "Audited":
    """Compare a model, by its HuggingFace config or its shape, with all published evidence, or with one law or fit.

        interplay.audit(depth=32, width=4096).verdict
        interplay.audit("models/mine/config.json", law="liu2026")

    Args:
        config: a `config.json` or its folder.
        depth: layers of a model without a config.
        width: of the same model.
        vocabulary: tokens of the same model, if known.
        law: levine2020 or liu2026, as the only evidence.
        fit: an answer, the path of a `fit.json` or of its folder, or the name of a study, as the only evidence.
        within: nats per token within which a depth counts as near-optimal.
        results: root of the results.

    Raises:
        InputError: no model or two of them, both `law` and `fit`, a model that cannot be compared, or a fit without an
            answer at its size.
    """
    if config is not None and depth is not None and width is not None:
        shape = options(depth=depth, width=width)
        raise InputError(f"Give one model: the config {config}, or {shape}.")
    configs = [] if config is None else [config]
    (audited,) = audit_each(
        configs,
        depth=depth,
        width=width,
        vocabulary=vocabulary,
        law=law,
        fit=fit,
        within=within,
        results=results,
    ).audits
    return Audited(audited, within)


@dataclass(frozen=True, repr=False)
class Audited(Wrapped):
    """One model compared with the evidence; it has every attribute of the audit. `within` as of `audit`."""

    WRAPPED = "audit"

    audit: Audit
    within: Within

    def to_json(self) -> dict[str, Any]:
        """Return the record that `interplay audit --json` has for this model."""
        return self.audit.to_json()

    def __rich__(self) -> RenderableType:
        return audit_view([self.audit], self.within)


@dataclass(frozen=True, repr=False)
class Audits(VerbResult):
    """Several models compared with the same evidence; `within` as of `audit`."""

    audits: Sequence[Audit]
    within: Within

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list of the audits."""
        return [item.to_json() for item in self.audits]

    def __rich__(self) -> RenderableType:
        return audit_view(self.audits, self.within)


def audit_each(
    configs: Sequence[str | Path] = (),
    *,
    depth: int | None = None,
    width: int | None = None,
    vocabulary: int | None = None,
    law: str | None = None,
    fit: "Answer | str | Path | None" = None,
    within: Within = None,
    results: str | Path = "results",
) -> Audits:
    """Compare several models, in the order given, and last that of a shape; arguments and errors as of `audit`."""
    models = [read_model_config(Path(path)) for path in configs]
    if depth is not None and width is not None:
        models.append(shape_of(depth, width, vocabulary))
    elif any(value is not None for value in (depth, width, vocabulary)):
        raise InputError(
            f"{option('depth')} and {option('width')} name a shape together: {options(depth=32, width=4096)}."
        )
    if not models:
        raise InputError(
            "There is no model to audit: give a HuggingFace config.json, a folder with one, or "
            f"{options(depth='L', width='D')}."
        )
    if fit is not None and law is not None:
        raise InputError(f"Give one law: {option('law', law)} or {option('fit')}, not both.")
    if given := named(fit, results):
        evidence: Sequence[Evidence] = (fit_evidence(named_fit(given), within),)
    else:
        evidence = published_evidence() if law is None else (law_evidence(law, published_law(law)),)
    return Audits([verdict.audit(model, evidence, within) for model in models], within)


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
    text = Text(item.sentence)
    text.stylize("bold", 0, len(item.model.name))
    if item.deciding:
        good = item.verdict in ("near the best", "within the interval")
        at = text.plain.index(item.verdict_words, len(item.model.name))
        text.stylize("bold green" if good else "bold yellow", at, at + len(item.verdict_words))
    return text


def _level(audits: Sequence[Audit]) -> str:
    """`95 %, `; empty for the depths tied with a measured one, which have no level."""
    levels = {finding.best.level for item in audits for finding in item.findings}
    return next((f"{100 * level:.3g} %, " for level in levels if level is not None), "")


@dataclass(frozen=True, repr=False)
class KnownAudits(VerbResult):
    """The well-known models compared with both published laws and the Gemstones table; `within` as of `audit`."""

    models: "Sequence[KnownModel]"
    within: Within

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list of the audits."""
        return [item.to_json() for item in self.models]

    def __rich__(self) -> RenderableType:
        return known_view(self.models, self.within)


def audit_known(within: Within = None) -> KnownAudits:
    """Compare the well-known models with both published laws and the Gemstones table.

    Raises:
        InputError: `within` is no positive number.
    """
    from analysis.audit.known_models import known_models

    return KnownAudits(known_models(within), within)


def known_view(models: Sequence["KnownModel"], within: Within) -> RenderableType:
    """Return the table of the well-known models for a terminal of 80 columns, and how to read it."""
    rows = []
    for item in models:
        model = item.audit.model
        levine, *others = item.audit.findings
        cells: list[str] = [
            _in_brackets(levine, "-" if levine.best.depth is None else str(levine.best.depth))
        ]
        for finding in others:
            near = finding.near_optimal
            cells.append("-" if near is None else _in_brackets(finding, near.depths_text))
            cells.append("-" if near is None or near.lost is None else f"{near.lost:.3f}")
        verdict = (
            f"({item.audit.verdict})"
            if item.audit.extrapolated and item.audit.deciding
            else item.audit.verdict
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


@dataclass(frozen=True, repr=False)
class JudgedRules(VerbResult):
    """Published rules of shape, judged on the tables that come with Interplay."""

    rules: "Sequence[Rule]"
    judgements: "Sequence[Judgement]"

    def to_json(self) -> list[dict[str, Any]]:
        """Return one record per rule, with its judgement by each table."""
        return [
            {
                **{name: getattr(rule, name) for name in ("name", "statement", "source", "domain")},
                "judgements": [to_json(item) for item in self.judgements if item.rule == rule.name],
            }
            for rule in self.rules
        ]

    def __rich__(self) -> RenderableType:
        return rules_view(self.judgements)


def audit_rules() -> JudgedRules:
    """Judge published rules of shape, such as a width of 64 per layer, on measured tables.

        interplay.audit_rules().to_json()

    Takes a few seconds; how they are judged is in `analysis.audit.rules`.
    """
    from analysis.audit.rules import RULES, judge_rules

    return JudgedRules(RULES, judge_rules())


def rules_view(judgements: "Sequence[Judgement]") -> RenderableType:
    """Return the table of the judgements for a terminal of 80 columns, and how to read it."""
    rows = []
    for item in judgements:
        if item.lost is None or item.depths is None or item.interval is None:
            continue
        low, high = item.interval
        verdict = str(item.verdict) if item.in_domain else f"({item.verdict})"
        rows.append(
            (
                item.rule,
                item.table,
                f"{item.sizes} of {item.sizes + item.outside}",
                span((item.depths[0], item.depths[1])),
                f"{item.lost:.4f}",
                f"{low:.4f}–{high:.4f}",
                verdict,
            )
        )
    outside = [f"{item.rule} on {item.table}" for item in judgements if item.lost is None]
    names = ("rule", "table", "sizes", "depths", "lost", "95 %", "verdict")
    legend = (
        "Lost: nats per token above the best depth, on average over the sizes of the table at which the depth of the "
        f"rule was measured or lies between measured ones. Holds: less than {WITHIN:g} by the interval; loses: more. "
        "In brackets: the rule was stated for models of other sizes."
    )
    parts = [text_table("", names, rows, left=("rule", "table", "verdict")), Text(legend, style="dim")]
    if outside:
        parts.append(Text(f"Not judged, because no depth was near: {'; '.join(outside)}.", style="dim"))
    return Group(*parts)


def _in_brackets(finding: LawFinding, text: str) -> str:
    return text if finding.inside or text == "-" else f"({text})"
