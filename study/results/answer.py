"""From the run table to the answer: fit, recommendations and the report of a study."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.errors import InputError
from analysis.law.levine2020 import PROVENANCE, published_table
from analysis.law.projection import LEVINE2020, Law
from analysis.law.projection import recommend as project

if TYPE_CHECKING:
    # A recommendation from a published law loads none of these (and no numerical library at all).
    import pandas as pd

    from analysis.fit.document import Fit
    from analysis.law.crossings import Crossing
    from analysis.law.loss_surfaces import SurfaceFit
    from analysis.runs.table import RunTable
    from study.plan.plan import Plan
    from study.spec.study import StudySpec
    from study.tracking.rows import Row
    from study.tracking.study_paths import StudyPaths


def answer(
    spec: "StudySpec",
    plan: "Plan",
    runs: "RunTable",
    where: "StudyPaths",
    curves: "pd.DataFrame | None",
    rows: "Mapping[str, Row]",
    ended: str = "",
    measures: "pd.DataFrame | None" = None,
) -> "tuple[Fit, Path]":
    """Fit a study's run table and write `report.html`, `fit.json`, `runs.csv` and the figures beside it.

    Args:
        spec: of the study.
        plan: of the study.
        runs: its rows.
        where: its paths.
        curves: validation losses by cell and step.
        rows: of the ledger, those of other parametrisations included, with which the crossings are compared.
        ended: why the search ended, a sentence.
        measures: of the layers, by cell and step.
    """
    from analysis.fit.document import fit
    from analysis.report.study_page import write_report
    from study.results.parametrisations import parametrisation_shifts

    result = fit(runs, entropy=plan.entropy)
    result = replace(result, shifts=(*result.shifts, *parametrisation_shifts(plan, result, rows.values())))
    report = write_report(
        runs,
        result,
        where.folder,
        title=spec.name,
        facts=facts(spec, plan),
        entropy=plan.entropy,
        curves=curves,
        measures=measures,
        spec_text=spec.to_yaml(),
        **searched(spec, plan, runs, ended),
    )
    return result, report


def searched(spec: "StudySpec", plan: "Plan", runs: "RunTable", ended: str = "") -> dict[str, Any]:
    """What a report tells of a search: its objective, the grid it is held against, and Optuna's own plots; none of a grid."""
    if plan.search.is_grid:
        return {}
    import pandas as pd

    from analysis.design.history import SearchInfo
    from study.results.optuna_plots import optuna_figures
    from study.search.stopping_rule import objective_of

    shapes = {(p.cell.shape.depth, p.cell.shape.width): p for p in plan.cells}.values()
    grid = pd.DataFrame(
        {
            "depth": [p.cell.shape.depth for p in shapes],
            "params": [float(p.cell.shape.budget_params) for p in shapes],
            "flops": [p.flops for p in shapes],
        }
    )
    return {
        "search": SearchInfo(objective_of(spec), spec.search.wanted_halfwidth, grid, ended),
        "more": optuna_figures(runs),
    }


def facts(spec: "StudySpec", plan: "Plan") -> dict[str, str]:
    """Where the numbers come from, for the foot of the report."""
    from study.tracking.provenance import revision, versions

    recipe = plan.cells[0].cell.recipe
    return {
        "study": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        "data": f"{spec.data.kind}, vocabulary {plan.vocabulary}, content {plan.cells[0].cell.data_key}",
        "training": f"{recipe.tokens:,} tokens a cell ({recipe.steps:,} steps of {recipe.batch} × {recipe.context})",
        "protocol": plan.protocol,
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


#: Pairs with too few sizes that are listed one by one.
MOST_MISSING = 4

#: Laws that can be named instead of fitted.
PUBLISHED = {"levine2020": LEVINE2020}


def recommend(
    fit_file: Path | None, name: str | None, params: Sequence[float]
) -> tuple[str, list[dict[str, Any]]]:
    """Return what is recommended from, in words, and the best shape for each N.

    From a fit, an N near a measured budget also has `measured`: what the data say there without a law (the depth of the
    lowest loss, and the depths that cannot be told from it). Where the fit has no law, the answer for each N is that of
    the response surface of the losses, or what was measured there.

    Raises:
        InputError: no size, neither or both sources are given, the law is unknown, the file cannot be read, or its fit
            can say nothing about one of the sizes.
    """
    if not params:
        raise InputError("Say for which sizes: --params 1e9 7e9, in non-embedding parameters.")
    if (fit_file is None) == (name is None):
        raise InputError(
            "Say what to recommend from: --fit results/NAME/fit.json for a study's own law, or --law levine2020 for "
            "the published one (not both)."
        )
    if name is not None:
        law = published_law(name)
        return f"law of {law.source}", project(law, params)
    assert fit_file is not None
    result = read_fit(fit_file)
    own = result.projection_law()
    if own is not None and own.b > 0:
        shapes = project(own, params)
        return f"law of {fit_file}", [
            {**shape, "measured": _measured(result, value)}
            for shape, value in zip(shapes, params, strict=True)
        ]
    surface = next((item for item in result.surfaces if item.form == "response" and item.usable), None)
    found = {value: _without_law(result, surface, value) for value in params}
    if missing := [f"{value:g}" for value, shape in found.items() if shape is None]:
        sizes = [shape.params for shape in result.best]
        why = result.law.reason or "its slope is not positive"
        inside = f" from {min(sizes):,.0f} to {max(sizes):,.0f}" if sizes else ""
        raise InputError(
            f"The fit in {fit_file} has no law that reaches N = {', '.join(missing)}: {why}. "
            f"It knows only the sizes it measured{inside}. Use --law levine2020 for the published law, or add depths, "
            "budgets or seeds to the study."
        )
    chosen = [found[value] for value in params]
    by = "response surface" if all("level" in (shape or {}) for shape in chosen) else "losses"
    return f"{by} of {fit_file}, which has no law", [shape for shape in chosen if shape is not None]


def published_shapes(
    name: str | None, fit_file: Path | None, params: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the published table of a law beside the recomputed one.

    Raises:
        InputError: another law than levine2020, or something the table cannot be made from is given too.
    """
    if fit_file is not None or params or published_law(name or "levine2020") is not LEVINE2020:
        raise InputError(
            "--published-table shows the whole table of a published law; give it --law levine2020 and neither --fit "
            "nor --params."
        )
    return published_table()


def published_law(name: str) -> Law:
    """Return a published law.

    Raises:
        InputError: there is none of this name.
    """
    if name not in PUBLISHED:
        raise InputError(f"There is no published law {name!r}; there is: {', '.join(PUBLISHED)}.")
    return PUBLISHED[name]


def read_fit(path: Path) -> "Fit":
    """Read a fit file.

    Raises:
        InputError: it is missing, no JSON, or no fit.
    """
    from analysis.fit.document import Fit

    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"The fit file {path} cannot be read: {error}. `interplay run SPEC` writes one to "
            "results/NAME/fit.json, `interplay fit RUNS --out FILE` any other."
        ) from error
    return Fit.from_json(document)


def _measured(result: "Fit", params: float) -> dict[str, Any] | None:
    """The best measured shape at the budget nearest to N; None where no budget is as near as its own depths are."""
    from analysis.curves.budgets import SHIFT

    nearest = min(result.best, key=lambda shape: abs(math.log(shape.params / params)), default=None)
    if nearest is None or abs(math.log(nearest.params / params)) > math.log(SHIFT):
        return None
    near = None if nearest.near is None else list(nearest.near)
    return {"params": nearest.params, "depth": nearest.depth, "near": near, "compared": len(nearest.shapes)}


def _without_law(result: "Fit", surface: "SurfaceFit | None", params: float) -> dict[str, Any] | None:
    """The answer for one N where there is no law, whatever else is asked; None where there is none.

    The response surface where it has a best depth with an interval closed on both sides, because it knows all sizes;
    else the best of the depths measured near N; else the surface with what bounds it has.
    """
    if not (math.isfinite(params) and params > 0):
        raise InputError(f"A budget is {params:g}; it must be a positive number of parameters, as 7e9.")
    measured = _measured(result, params)
    drawn = None if surface is None else _by_surface(surface, params, result.level)
    if drawn is not None and (measured is None or None not in drawn["depth_interval"]):
        return {**drawn, "measured": measured}
    return None if measured is None else _by_measurement(params, measured)


def _by_surface(surface: "SurfaceFit", params: float, level: float) -> dict[str, Any] | None:
    """The best depth by the response surface in the form of a recommendation; None where it has none."""
    exact = surface.best_depth(params)
    if exact is None:
        return None
    depth = max(1, round(exact))
    low, high = surface.best_depth_interval(params, level) or (None, None)
    # The budget is fixed, so the deepest shape of the band is the narrowest.
    widths = [None if end is None else math.sqrt(params / (12 * end)) for end in (high, low)]
    inside = surface.params_range is not None and surface.params_range[0] <= params <= surface.params_range[1]
    return {
        "params": params,
        "depth": depth,
        "width": max(1, round(math.sqrt(params / (12 * depth)))),
        "depth_interval": [low, high],
        "width_interval": widths,
        "extrapolated": not inside,
        "depth_exact": exact,
        "unbounded": low is None or high is None,
        "level": level,
        "law": "response surface: a quadratic in ln N and ln L",
    }


def _by_measurement(params: float, found: dict[str, Any]) -> dict[str, Any]:
    """A measured shape in the form of a recommendation.

    Its band are the depths that cannot be told apart; without a noise estimate nobody knows them.
    """
    near = found["near"]
    depths = [None, None] if near is None else [min(near), max(near)]
    widths = [None if depth is None else math.sqrt(params / (12 * depth)) for depth in reversed(depths)]
    return {
        "params": params,
        "depth": found["depth"],
        "width": round(math.sqrt(params / (12 * found["depth"]))),
        "depth_interval": depths,
        "width_interval": widths,
        "extrapolated": False,
        "unbounded": near is None,
        "law": "the lowest loss measured near this size",
        "measured": found,
    }


def fit_table(result: "Fit") -> RenderableType:
    """Return crossings, law, rivals and best shapes as tables for a terminal."""
    from analysis.fit.sentences import disagreement_sentence, law_sentence, noise_sentence

    missing = [item for item in result.crossings if item.status == "insufficient"]
    # Twenty depths have 190 pairs, and those of which nothing is known would bury the others.
    told = [item for item in missing if item.adjacent] if len(missing) <= MOST_MISSING else []
    shown = [item for item in result.crossings if item.status != "insufficient" or item in told]
    notes = []
    if hidden := len(missing) - len(told):
        notes.append(f"{hidden} more pair{'s have' if hidden > 1 else ' has'} too few sizes in common")
    if any(not item.adjacent for item in shown):
        notes.append("* not neighbours among the depths of the study")
    law = Text(law_sentence(result), style="" if result.law.status == "ok" else "yellow")
    about = " ".join(text for text in (result.tokens.sentence, noise_sentence(result)) if text)
    return Group(
        *([_crossings(result, shown)] if shown else []),
        *(Text(note, style="dim") for note in notes),
        law,
        _rivals(result),
        *([Text(disagreement_sentence(result))] if result.disagreements else []),
        *([_best(result)] if result.best else []),
        *_shifts(result),
        Text(about, style="dim"),
        *(Text(text, style="yellow") for text in result.warnings),
    )


def _crossings(result: "Fit", shown: "list[Crossing]") -> Table:
    table = Table(title="crossings", box=None, title_justify="left", header_style="dim", padding=(0, 1, 0, 0))
    delta = next((item.delta for item in shown if item.delta), None)
    lead = "ahead" if delta is None else f"{100 * delta:g} % ahead"
    for name in ("pair", "status", "N", f"{100 * result.level:g} %", "width", lead, "why"):
        table.add_column(name, justify="left" if name in ("pair", "status", "why") else "right")
    for item in shown:
        table.add_row(
            f"{item.shallow} → {item.deep}" + ("" if item.adjacent else " *"),
            item.status,
            _number(item.params),
            show_interval(item.params_interval),
            _number(item.width),
            _number(item.delta_params),
            item.reason or "",
        )
    return table


def _rivals(result: "Fit") -> Table:
    """Return the laws with their mean regret at sizes they had not seen, beside the baseline's in the same trials."""
    from analysis.report.tables import rivals_table

    table = Table(title="laws", box=None, title_justify="left", header_style="dim", padding=(0, 1, 0, 0))
    for name in ("law", "status", "held-out regret", "baseline", "answered", "beyond the depths"):
        table.add_column(name, justify="left" if name in ("law", "status") else "right")
    for row in rivals_table(result):
        table.add_row(
            row.name,
            row.status,
            "-" if row.regret is None else f"{row.regret:.4f}",
            "-" if row.baseline is None else f"{row.baseline:.4f}",
            f"{row.answered} of {row.asked}" if row.asked else "-",
            str(row.outside) if row.asked else "-",
        )
    return table


def _shifts(result: "Fit") -> list[RenderableType]:
    """How far the crossings move at other learning rates and under other parametrisations."""
    from analysis.report.extras.shifts import by_key, condition, factor_interval, shift_sentence

    parts: list[RenderableType] = []
    for studies in by_key(result.shifts).values():
        title = f"crossings against {condition(studies[0].key, studies[0].base)}"
        table = Table(title=title, box=None, title_justify="left", header_style="dim", padding=(0, 1, 0, 0))
        for name in ("pair", "changed to", "N times", f"{100 * result.level:g} %", "runs", "why"):
            table.add_column(name, justify="left" if name in ("pair", "changed to", "why") else "right")
        for study in studies:
            for item in study.pairs:
                table.add_row(
                    f"{item.shallow} → {item.deep}",
                    condition(study.key, study.value).removeprefix(f"{study.key} "),
                    "-" if item.shift is None else f"{math.exp(item.shift):.2f}",
                    _ends(factor_interval(item.shift_interval)),
                    str(item.runs or study.runs),
                    item.reason or "",
                )
        parts += [table] if table.row_count else []
        parts.append(Text(shift_sentence(studies)))
    return parts


def _ends(interval: Any) -> str:
    if interval is None:
        return "-"
    low, high = ("…" if end is None else f"{end:.2f}" for end in interval)
    return f"{low} – {high}"


def _best(result: "Fit") -> Table:
    table = Table(title="best shape of each budget", box=None, title_justify="left", header_style="dim")
    for name in ("N", "depth", "width", "loss", "not told apart"):
        table.add_column(name, justify="right")
    for shape in result.best:
        others = [str(depth) for depth in shape.near or () if depth != shape.depth]
        near = "no noise estimate" if shape.near is None else ", ".join(others) or "-"
        table.add_row(
            f"{shape.params:,.0f}", str(shape.depth), f"{shape.width:.0f}", f"{shape.loss:.4f}", near
        )
    return table


def bootstrap_text(result: "Fit") -> Text:
    """Intervals of the parametric bootstrap, beside those of the law."""
    from analysis.fit.sentences import ends

    found = result.parametric_bootstrap
    if found is None:
        return Text("no parametric bootstrap: there is no noise estimate to simulate from", style="yellow")
    text = f"{found.count} simulated studies: {found.with_law} have a law"
    if found.a_interval and found.b_interval:
        text += f", a {ends(found.a_interval, 3)}, b {ends(found.b_interval, 3)} ({result.level:.0%})"
    pairs = [f"{name.replace('-', ' → ')} {show_interval(ends_)}" for name, ends_ in found.crossings.items()]
    return Text(f"{text}; N of the crossings {'; '.join(pairs)}.")


def recommendation_table(source: str, shapes: list[dict[str, Any]]) -> RenderableType:
    """Return recommended shapes as a table for a terminal, and which error it quotes."""
    with_law = any("n_transition" in shape for shape in shapes)
    measured = any(shape.get("measured") for shape in shapes)
    # Padding on one side only: the table then fits into 80 columns.
    table = Table(box=None, header_style="dim", title=source, title_justify="left", padding=(0, 1, 0, 0))
    names = ["N", "depth", "band", "width", "band"]
    names += ["overtaken at"] * with_law + ["the data"] + ["measured there"] * measured
    for name in names:
        table.add_column(name, justify="right")
    for shape in shapes:
        cells: list[str | Text] = [
            show_size(shape["params"]),
            str(shape["depth"]),
            show_interval(shape["depth_interval"]),
            str(shape["width"]),
            show_interval(shape["width_interval"]),
        ]
        if with_law:
            cells.append(_transition(shape.get("n_transition")))
        cells.append(
            Text("outside", style="yellow") if shape["extrapolated"] else Text("inside", style="dim")
        )
        if measured:
            cells.append(_found(shape.get("measured")))
        table.add_row(*cells)
    if not with_law:
        return table
    level = next(shape["level"] for shape in shapes if "level" in shape)
    transitions = [shape["n_transition"] for shape in shapes if "n_transition" in shape]
    wide = [found["relative_error"] > FIRST_ORDER for found in transitions]
    error = "± one standard error" if not all(wide) else f"as a {100 * level:.3g} % interval"
    if any(wide) and not all(wide):
        error += f" or, where that is more than half of it, a {100 * level:.3g} % interval"
    lines = [
        f"Bands: {100 * level:.3g} % at fixed N. Overtaken at: the N from which models deeper than this depth win, "
        f"{error}."
    ]
    # Where the region of the law is closed on all sides, only a slope of zero leaves the depth without a limit.
    if any(
        shape["unbounded"]
        and shape["depth_interval"][1] is None
        and None not in shape["n_transition"]["params_interval"]
        for shape in shapes
        if "n_transition" in shape
    ):
        lines.append("The law's slope cannot be told from zero: no upper limit of depth follows.")
    if any(shape.get("unbounded") for shape in shapes):
        lines.append("… : the law sets no limit on that side.")
    return Group(table, *(Text(line, style="dim") for line in lines))


def published_table_view(rows: list[dict[str, Any]]) -> RenderableType:
    """Return the published table beside the recomputed one, for a terminal."""
    table = Table(box=None, header_style="dim", title="Table 1 of Levine et al. 2020", title_justify="left")
    for name in ("model", "trained", "N", "printed", "recomputed", "L*", ""):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        trained = f"{row['trained_depth']} × {row['trained_width']}" if row["trained_depth"] else "-"
        table.add_row(
            row["model"],
            trained,
            show_size(row["params"]),
            f"{row['printed_depth']} × {row['printed_width']}",
            f"{row['depth']} × {row['width']}",
            f"{row['depth_exact']:.2f}",
            "" if row["agrees"] else Text("*", style="yellow"),
        )
    notes = [
        Text(f"{'' if row['agrees'] else '* '}{row['model']}: {row['note']}.") for row in rows if row["note"]
    ]
    counted = Text("N is 12·L·d² of the trained shape; depth × width.", style="dim")
    return Group(table, counted, *notes, Text(PROVENANCE, style="dim"))


#: Relative error, a half, up to which an estimate ± its error, a first-order rule, is shown; beyond it, the interval.
FIRST_ORDER = 0.5


def _transition(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if found["relative_error"] > FIRST_ORDER:
        return show_range(found["params_interval"])
    return f"{show_size(found['params'])} ±{100 * found['relative_error']:.0f}%"


def _found(found: dict[str, Any] | None) -> str:
    if not found:
        return "-"
    others = [str(depth) for depth in found["near"] or () if depth != found["depth"]]
    # The best of two depths says little where many were trained.
    among = f" of {found['compared']}" if found["compared"] == 2 else ""
    return f"depth {found['depth']}{among}" + (f" (or {', '.join(others)})" if others else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def show_size(params: float) -> str:
    """A number of parameters in three digits: 7e9, 1.74e11."""
    mantissa, _, exponent = f"{params:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}" if params >= 1e4 else f"{params:.3g}"


def show_range(ends: Any) -> str:
    """An interval of numbers of parameters; open ends are said."""
    # A model has one parameter at least, so an end below that limits nothing.
    low, high = (None if end is None or end < 1 else show_size(end) for end in ends)
    if low is None:
        return "no limit" if high is None else f"below {high}"
    return f"above {low}" if high is None else f"{low} – {high}"


def show_interval(ends: Any) -> str:
    """Two ends, an open one as dots."""
    if ends is None:
        return "-"
    low, high = ends
    return f"{'…' if low is None else _number(low)} – {'…' if high is None else _number(high)}"
