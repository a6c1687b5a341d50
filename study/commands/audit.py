"""`interplay audit`: existing models compared with a law, as JSON or for a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit.model_config import read_model_config
from analysis.audit.verdict import Audit, Count, audit, shape_of
from analysis.errors import InputError
from analysis.law.near_optimal import WITHIN, check_within, depths_text, lost_text, near_optimal
from analysis.law.published import PublishedLaw, losses_of, published_law
from analysis.numbers import params_range as show_range
from analysis.numbers import params_text as size
from analysis.numbers import span as interval
from analysis.tables import Column, Table
from study.results.recommend import read_fit, shapes_by
from study.results.tables import FIRST_ORDER, rich_table

#: What a verdict rests on; a published law has no `source`.
_SOURCES = {
    None: "the law",
    "law": "the laws",
    "measured": "the losses measured near this N",
    "band": "the interval of the laws",
}
_COLOURS = {
    "too deep": "yellow",
    "too shallow": "yellow",
    "within the interval": "green",
    "not settled": "yellow",
}


def audit_models(
    configs: Sequence[Path],
    shape: tuple[int | None, int | None, int | None] = (None, None, None),
    law: str | None = None,
    fit_file: Path | None = None,
    count: str = "nonembedding",
    within: float = WITHIN,
) -> list[Audit]:
    """Compare models with a law, in the order given.

    Args:
        configs: `config.json` files or folders that hold one.
        shape: depth, width and vocabulary of a model without a config; the vocabulary may be None.
        law: name of a published law; levine2020 if neither this nor `fit_file` is given.
        fit_file: a fit that is used instead, as `interplay recommend --fit` uses it.
        count: see `analysis.audit.verdict.Audit`.
        within: nats per token within which a depth counts as near-optimal.

    Raises:
        InputError: nothing to audit, half a shape, both laws, a fit without an answer at the size of a model, an
            unknown count, or a model that cannot be compared.
    """
    counts: dict[str, Count] = {name: name for name in get_args(Count)}
    if count not in counts:
        raise InputError(f"--count is {count!r}; it must be one of {', '.join(counts)}.")
    depth, width, vocabulary = shape
    models = [read_model_config(path) for path in configs]
    if depth is not None and width is not None:
        models.append(shape_of(depth, width, vocabulary))
    elif (depth, width, vocabulary) != (None, None, None):
        raise InputError("--depth and --width name a shape together: --depth 32 --width 4096.")
    if not models:
        raise InputError(
            "There is no model to audit: give a HuggingFace config.json, a folder with one, or --depth L --width D."
        )
    check_within(within)
    chosen, losses = _law(law, fit_file, within)
    found = [audit(model, chosen, counts[count]) for model in models]
    return [replace(item, near_optimal=losses(item.params, item.model.depth)) for item in found]


#: Of one law: the best shape by N, or the law itself; and what a depth loses, by N and depth.
_Best = PublishedLaw | Callable[[float], dict[str, Any]]
_Losses = Callable[[float, float], dict[str, Any] | None]


def _law(name: str | None, fit_file: Path | None, within: float) -> tuple[_Best, _Losses]:
    if fit_file is None:
        published = published_law(name or "levine2020")
        losses = losses_of(published)
        return published, lambda params, depth: near_optimal(losses, params, depth, losses.source, within)
    if name is not None:
        raise InputError(f"Give one law: --law {name} or --fit {fit_file}, not both.")
    result = read_fit(fit_file)

    def best(params: float) -> dict[str, Any]:
        return {**shapes_by(result, fit_file, [params], within)[0], "law": str(fit_file)}

    return best, lambda params, depth: result.near_optimal(params, depth, within)


def audit_view(audits: Sequence[Audit]) -> RenderableType:
    """Return one paragraph per model, then one table of all, for a terminal."""
    parts: list[RenderableType] = []
    for item in audits:
        parts.append(_paragraph(item))
        parts += [Text(text, style="yellow") for text in item.warnings]
        parts += [Text(text, style="dim") for text in item.notes]
        parts.append(Text())
    return Group(*parts, _table(audits), Text(_legend(audits), style="dim"))


def _paragraph(item: Audit) -> Text:
    model, best = item.model, item.best
    within = item.verdict == "within the interval"
    band = f"{_level(item)}interval {interval(best['depth_interval'])}"
    compared = ""
    if item.verdict == "not settled":
        compared = f": the {band} of the best depth for this N has no limit on one side"
    elif item.layers is None:
        compared = (
            f": its depth lies {'inside' if within else 'outside'} the {band} of the best depth for this N"
        )
    if item.ratio is not None and item.layers is not None:
        gap = f"{abs(item.layers):.0f} layers too {'many' if item.layers > 0 else 'few'}"
        compared = (
            f": the best depth for this N is {best.get('depth_exact') or best['depth']:.1f} ({band}), "
            f"{'statistically tied with its depth' if within else f'so it has {gap}'} (L/L* = {item.ratio:.2f})"
        )
    shape = "" if best["depth"] is None else f" The best shape of the same N is {_best(item)}."
    return Text.assemble(
        (model.name, "bold"),
        f": {model.depth} layers of width {model.width:,}, N = {size(item.params)}. By {_SOURCES[best.get('source')]} "
        f"of {item.law} {'the verdict' if item.verdict == 'not settled' else 'it'} is ",
        (item.verdict, f"bold {_COLOURS[item.verdict]}"),
        f"{compared}.{shape}{_transition(item)}{_nats(item)}",
    )


def _transition(item: Audit) -> str:
    """The sentence on the N at which the model's depth is overtaken; empty without a published law."""
    transition = item.transition
    if transition is None:
        return ""
    error = f"± {100 * transition.relative_error:.0f} %"
    if transition.relative_error > FIRST_ORDER:
        error = f"({_level(item).strip()}: {show_range(transition.params_interval)})"
    doubt = ""
    if item.verdict == "within the interval":
        least = "a layer" if item.model.depth == item.best["depth"] else "the law's uncertainty"
        doubt = f", by less than {least}"
    side = "below" if item.params < transition.params else "above"
    return (
        f" Its N is {side} the {size(transition.params)} {error} at which {item.model.depth} layers are overtaken by "
        f"deeper models{doubt}."
    )


def _level(item: Audit) -> str:
    """`95 % `; empty for the depths tied with a measured one, which have no level."""
    return f"{100 * item.best['level']:.3g} % " if "level" in item.best else ""


def _best(item: Audit) -> str:
    return "-" if item.best["depth"] is None else f"{item.best['depth']} × {item.best['width']:,}"


def _nats(item: Audit) -> str:
    """What the shape loses, and the depths that lose next to nothing."""
    near = item.near_optimal
    if near is None:
        return ""
    lost = (
        "" if near["lost"] is None else f"it loses {near['lost']:.2g} nats per token to the best depth, and "
    )
    flat = f"depths {depths_text(near)} are within {near['within']:g} nats of it"
    return f" By the losses of {near['losses']}, {lost}{flat}."


def _table(audits: Sequence[Audit]) -> RenderableType:
    names = ("model", "shape", "N", "exact N", "L/L*", "interval", "best", "lost", "verdict")
    columns = tuple(Column(name, right=name not in ("model", "verdict")) for name in names)
    rows = []
    for item in audits:
        model = item.model
        low, high = (None if end is None else f"{end:.2f}" for end in item.ratio_interval)
        rows.append(
            (
                model.name,
                f"{model.depth} × {model.width}",
                size(model.law_params),
                "-" if model.exact_params is None else size(model.exact_params),
                "-" if item.ratio is None else f"{item.ratio:.2f}",
                "-" if item.ratio_interval == (None, None) else f"{low or '…'}–{high or '…'}",
                _best(item),
                lost_text(item.near_optimal) or "-",
                item.verdict,
            )
        )
    return rich_table(Table("", columns, rows))


def _legend(audits: Sequence[Audit]) -> str:
    first = audits[0]
    which = "the exact N" if first.count == "exact" else "12·L·d²"
    text = (
        f"N in the law is {which}; exact N counts the blocks with biases and norms. Intervals: {_level(first)}"
        "at fixed N"
    )
    if any(item.near_optimal for item in audits):
        text += "; lost: nats per token against the best depth of that N"
    if any(item.transition and item.transition.relative_error <= FIRST_ORDER for item in audits):
        text += "; ± is one standard error of N_transition"
    return f"{text}."


def audit_json(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Return one document per model, in the order given."""
    return [item.to_json() for item in audits]
