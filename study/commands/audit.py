"""`interplay audit`: existing models compared with a law, as JSON or for a terminal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit.model_config import read_model_config
from analysis.audit.verdict import Audit, audit, shape_of
from analysis.errors import InputError
from analysis.law.near_optimal import WITHIN, check_within, near_optimal
from analysis.law.published import losses_of, published_law
from analysis.law.shape import NearOptimal
from analysis.numbers import short, span
from study.commands.output import text_table
from study.results.recommend import NamedFit, named_fit, shapes_by

if TYPE_CHECKING:
    # Its fit loads the numerical libraries.
    from study.results.known_models import Finding, KnownModel

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
    within: float = WITHIN,
) -> list[Audit]:
    """Compare models with a law, in the order given.

    Args:
        configs: `config.json` files or folders that hold one.
        shape: depth, width and vocabulary of a model without a config; the vocabulary may be None.
        law: name of a published law; levine2020 if neither this nor `fit` is given.
        fit: a fit that is used instead, as `interplay recommend --fit` uses it.
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
    check_within(within)
    if fit is not None and law is not None:
        raise InputError(f"Give one law: --law {law} or --fit, not both.")
    if fit is None:
        published = published_law(law or "levine2020")
        losses = losses_of(published)
        audits = [audit(model, published) for model in models]

        def near(params: float, layers: float) -> NearOptimal | None:
            return near_optimal(losses, params, layers, losses.source, within)

    else:
        named = named_fit(fit)
        result = named.fit
        audits = [
            audit(model, lambda size: shapes_by(named, [size], within)[0], named.name) for model in models
        ]

        def near(params: float, layers: float) -> NearOptimal | None:
            return result.near_optimal(result.predict(params), layers, within)

    return [replace(item, near_optimal=near(item.model.law_params, item.model.depth)) for item in audits]


def audit_view(audits: Sequence[Audit]) -> RenderableType:
    """Return one sentence per model, with its notes, then one table of all, for a terminal."""
    parts: list[RenderableType] = []
    rows = []
    for item in audits:
        parts.append(_sentence(item))
        parts += [Text(text, style="yellow") for text in item.warnings]
        parts += [Text(text, style="dim") for text in item.notes]
        parts.append(Text())
        model, best = item.model, item.best
        low, high = ("…" if end is None else f"{end:.2f}" for end in item.ratio_interval)
        rows.append(
            (
                model.name,
                f"{model.depth} × {model.width}",
                short(model.law_params, 3),
                "-" if model.block_params is None else short(model.block_params, 3),
                "-" if item.ratio is None else f"{item.ratio:.2f}",
                "-" if item.ratio_interval == (None, None) else f"{low}–{high}",
                "-" if best.depth is None else f"{best.depth} × {best.width:,}",
                (item.near_optimal and item.near_optimal.lost_text) or "-",
                item.verdict,
            )
        )
    names = ("model", "shape", "N", "in blocks", "L/L*", "interval", "best", "lost", "verdict")
    legend = f"N is 12·L·d², as in the law. Intervals: {_level(audits[0])}at fixed N; lost: nats per token."
    return Group(*parts, text_table("", names, rows, left=("model", "verdict")), Text(legend, style="dim"))


def _sentence(item: Audit) -> Text:
    best, near = item.best, item.near_optimal
    depth = best.depth_exact
    stated = "not stated" if depth is None else f"{depth:.1f}" if depth >= 1 else "less than one layer"
    flat = ""
    if near is not None:
        text = f"a depth of {near.depths_text} is within {near.within:g} nats of the best"
        flat = f"; by the losses of {near.losses}, {text}"
    return Text.assemble(
        (item.model.name, "bold"),
        " is ",
        (item.verdict, "bold green" if item.verdict == "within the interval" else "bold yellow"),
        f": by {_SOURCES[best.source]} of {item.law}, the best depth for this N is {stated} "
        f"({_level(item)}interval {span(best.depth_interval)}){flat}.",
    )


def _level(item: Audit) -> str:
    """`95 % `; empty for the depths tied with a measured one, which have no level."""
    return f"{100 * item.best.level:.3g} % " if item.best.level is not None else ""


def audit_known(
    within: float = WITHIN, figure: Path | None = None, others: Sequence[object] = ()
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
    from study.results.known_models import known_figure, known_models, write_figure

    models = known_models(within)
    if figure is not None:
        write_figure(known_figure(models, within), figure)
    return models


def known_view(models: Sequence["KnownModel"], within: float) -> RenderableType:
    """Return the table of the well-known models for a terminal of 80 columns, and how to read it."""
    rows = []
    for known in models:
        levine, *others = known.findings
        cells: list[str] = [_in_brackets(levine, "-" if levine.best is None else str(levine.best.depth))]
        for finding in others:
            near = finding.near
            cells.append("-" if near is None else _in_brackets(finding, near.depths_text))
            cells.append("-" if near is None or near.lost is None else f"{near.lost:.3f}")
        shape = f"{known.model.depth}×{known.model.width}"
        rows.append((known.model.name, shape, short(known.model.law_params, 2), *cells, known.verdict))
    names = ("model", "L × d", "N", "Levine", "Liu", "lost", "table", "lost", "verdict")
    laws = [finding.law for finding in models[0].findings]
    legend = (
        f"Levine: best depth by the law of {laws[0]}, with no loss. Liu, table: the depths within {within:g} nats of "
        f"the best and the nats that the model loses, by the law of {laws[1]} and by a fit of the {laws[2]} table. In "
        "brackets: the law was not fitted on models of this size and depth. N is 12·L·d². Verdict: of the laws of the "
        "loss that were; no evidence: of neither. Training tokens, inference cost and long contexts are not part of it."
    )
    return Group(text_table("", names, rows, left=("model", "verdict")), Text(legend, style="dim"))


def _in_brackets(finding: "Finding", text: str) -> str:
    return text if finding.inside else f"({text})"
