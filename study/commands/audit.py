"""`interplay audit`: existing models compared with a law, as JSON or for a terminal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit.model_config import read_model_config
from analysis.audit.verdict import Audit, Count, audit, shape_of
from analysis.errors import InputError
from analysis.law.projection import Law
from analysis.numbers import params_range as show_range
from analysis.numbers import params_text as size
from analysis.numbers import span as interval
from analysis.tables import Column, Table
from study.results.recommend import published_law, read_fit
from study.results.tables import FIRST_ORDER, rich_table

_COLOURS = {"too deep": "yellow", "too shallow": "yellow", "within the interval": "green"}


def audit_models(
    configs: Sequence[Path],
    shape: tuple[int | None, int | None, int | None] = (None, None, None),
    law: str | None = None,
    fit_file: Path | None = None,
    count: str = "nonembedding",
) -> list[Audit]:
    """Compare models with a law, in the order given.

    Args:
        configs: `config.json` files or folders that hold one.
        shape: depth, width and vocabulary of a model without a config; the vocabulary may be None.
        law: name of a published law; levine2020 if neither this nor `fit_file` is given.
        fit_file: a fit whose law is used instead.
        count: see `analysis.audit.verdict.Audit`.

    Raises:
        InputError: nothing to audit, half a shape, both laws, a fit without a usable law, an unknown count, or a
            model that cannot be compared.
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
    chosen = _law(law, fit_file)
    return [audit(model, chosen, counts[count]) for model in models]


def _law(name: str | None, fit_file: Path | None) -> Law:
    if fit_file is None:
        return published_law(name or "levine2020")
    if name is not None:
        raise InputError("Give one law: --law levine2020 or --fit results/NAME/fit.json, not both.")
    result = read_fit(fit_file)
    own = result.projection_law()
    if own is None or not own.b > 0:
        why = result.law.reason or "its slope is not positive"
        raise InputError(
            f"The fit in {fit_file} has no usable law: {why}. Use --law levine2020 for the published one, or add "
            "depths, budgets or seeds to the study."
        )
    return replace(own, source=str(fit_file))


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
    model, best, transition = item.model, item.best, item.transition
    percent = f"{100 * best['level']:.3g} %"
    within = item.verdict == "within the interval"
    error = f"± {100 * transition.relative_error:.0f} %"
    if transition.relative_error > FIRST_ORDER:
        error = f"({percent}: {show_range(transition.params_interval)})"
    compared = ""
    if item.ratio is not None:  # else a note gives the reason
        gap = f"{abs(item.layers):.0f} layers too {'many' if item.layers > 0 else 'few'}"
        compared = (
            f": the best depth for this N is {best['depth_exact']:.1f} ({percent} interval "
            f"{interval(best['depth_interval'])}), "
            f"{'statistically tied with its depth' if within else f'so it has {gap}'} (L/L* = {item.ratio:.2f})"
        )
    doubt = ""
    if within:
        least = "a layer" if model.depth == best["depth"] else "the law's uncertainty"
        doubt = f", by less than {least}"
    return Text.assemble(
        (model.name, "bold"),
        f": {model.depth} layers of width {model.width:,}, N = {size(item.params)}. By the law of {item.law} it is ",
        (item.verdict, f"bold {_COLOURS[item.verdict]}"),
        f"{compared}. The best shape of the same N is {best['depth']} × {best['width']:,}. Its N is "
        f"{'below' if item.params < transition.params else 'above'} the {size(transition.params)} {error} at which "
        f"{model.depth} layers are overtaken by deeper models{doubt}.",
    )


def _table(audits: Sequence[Audit]) -> RenderableType:
    names = ("model", "shape", "N", "exact N", "L/L*", "interval", "best", "verdict")
    columns = tuple(Column(name, right=name not in ("model", "verdict")) for name in names)
    rows = []
    for item in audits:
        model, best = item.model, item.best
        low, high = (None if end is None else f"{end:.2f}" for end in item.ratio_interval)
        rows.append(
            (
                model.name,
                f"{model.depth} × {model.width}",
                size(model.law_params),
                "-" if model.exact_params is None else size(model.exact_params),
                "-" if item.ratio is None else f"{item.ratio:.2f}",
                "-" if item.ratio is None else f"{low or '…'}–{high or '…'}",
                f"{best['depth']} × {best['width']}",
                item.verdict,
            )
        )
    return rich_table(Table("", columns, rows))


def _legend(audits: Sequence[Audit]) -> str:
    first = audits[0]
    which = "the exact N" if first.count == "exact" else "12·L·d²"
    text = (
        f"N in the law is {which}; exact N counts the blocks with biases and norms. Intervals: "
        f"{100 * first.best['level']:.3g} % at fixed N"
    )
    if any(item.transition.relative_error <= FIRST_ORDER for item in audits):
        text += "; ± is one standard error of N_transition"
    return f"{text}."


def audit_json(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Return one document per model, in the order given."""
    return [item.to_json() for item in audits]
