"""The tables of a report: rivals, projection, health and cost, as rows of plain words and numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fit.document import Fit
from analysis.fit.sentences import LAWS, ends, law_name
from analysis.law.held_out import BASELINE, HeldOut
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.projection import recommend
from analysis.law.threshold import ThresholdFit
from analysis.numbers import digits, short
from analysis.report.figures.frames import drawn_law
from analysis.runs.table import RunTable

#: Sizes that are projected, in units of the largest measured; and fixed ones, where they lie beyond it.
MULTIPLES, SIZES = (3.0, 10.0, 100.0), (1e9, 1e12)
#: A size is far outside the data beyond so many times the largest measured.
FAR = 100.0
#: In the place of a rival's depth that exceeds the width of its own shape, sqrt(N / (12·L)).
BEYOND_USE = math.inf
#: Forward and backward pass of one token cost about this many FLOPs a parameter (Kaplan et al. 2020, section 2.1).
FLOPS = 6


@dataclass(frozen=True)
class RivalRow:
    """One law in the table of rivals.

    Attributes:
        name, formula: see `wording.LAWS`.
        status, note: of its fit, and what a reader must know of it.
        parameters: name and value of each, in words.
        aicc: comparable between the loss surfaces only; None where there is none.
        regret: mean held-out regret in nats a token, None where it answered nothing; `baseline` is that of the nearest
            measured depth in the same trials.
        answered, asked, outside: trials with an answer, all trials, answers beyond the measured depths.
    """

    name: str
    formula: str
    status: str
    note: str
    parameters: tuple[str, ...]
    aicc: float | None
    regret: float | None
    baseline: float | None
    answered: int
    asked: int
    outside: int


def rivals_table(fit: Fit) -> list[RivalRow]:
    """The threshold law, its rivals, and the baseline of the held-out sizes."""
    trials = {item.law: item for item in fit.held_out}
    base = trials.get(BASELINE)
    rows = [
        _row(item.form, item.status, _line_note(item), _line(item), None, trials, base) for item in _laws(fit)
    ]
    for item in fit.surfaces:
        values = tuple(f"{name} = {value:.3g}" for name, value in item.parameters.items())
        rows.append(_row(item.form, item.status, _surface_note(fit, item), values, item.aicc, trials, base))
    if base is not None:
        rows.append(_row(BASELINE, "rule", "what every law has to beat", (), None, trials, base))
    return rows


def _laws(fit: Fit) -> tuple[ThresholdFit, ...]:
    return (fit.law, *fit.rivals)


def _row(
    form: str,
    status: str,
    note: str,
    parameters: tuple[str, ...],
    aicc: float | None,
    trials: Mapping[str, HeldOut],
    base: HeldOut | None,
) -> RivalRow:
    own = trials.get(form)
    name, formula = LAWS.get(form, (form, ""))
    if own is not None and own.reasons and own.unanswered == len(own.trials):
        # Of a law that names no depth at all, the note says it already.
        said = [reason for reason in own.reasons if reason not in note]
        note = "; ".join(text for text in (note, *(f"held out: {reason}" for reason in said[:1])) if text)
    regret, baseline = (None, None) if own is None or base is None else paired_regret(own, base)
    return RivalRow(
        name=name,
        formula=formula,
        status=status.replace("_", " "),
        note=note,
        parameters=parameters,
        aicc=aicc,
        regret=regret,
        baseline=baseline,
        answered=0 if own is None else len(own.trials) - own.unanswered,
        asked=0 if own is None else len(own.trials),
        outside=0 if own is None else own.outside,
    )


def paired_regret(law: HeldOut, base: HeldOut) -> tuple[float | None, float | None]:
    """Mean regret of a law and of the baseline over the trials that both answered; None where there are none."""
    there = {(trial.budget, trial.trained_to): trial.regret for trial in base.trials}
    pairs = [
        (trial.regret, other)
        for trial in law.trials
        if trial.regret is not None and (other := there.get((trial.budget, trial.trained_to))) is not None
    ]
    if not pairs:
        return None, None
    own, others = np.mean(np.array(pairs), axis=0)
    return float(own), float(others)


def _line(item: ThresholdFit) -> tuple[str, ...]:
    if item.a is None or item.b is None:
        return ()
    a = f"a = {item.a:.3f}" + (f" ({ends(item.a_interval, 3)})" if item.a_interval else "")
    b = f"b = {item.b:.3g}" + (f" ({ends(item.b_interval, 3)})" if item.b_interval else "")
    return a, b


def _line_note(item: ThresholdFit) -> str:
    parts = [item.reason or "", item.note or ""]
    if item.chi2 is not None and item.dof and item.p_value is not None:
        parts.append(
            f"χ² = {item.chi2:.2f} with {item.dof} degree{'s' * (item.dof > 1)} of freedom, p = {item.p_value:.2g}"
        )
    if item.scatter:
        parts.append(f"scatter of ln d ±{digits(item.scatter)}")
    return "; ".join(part for part in parts if part)


def _surface_note(fit: Fit, item: SurfaceFit) -> str:
    """Why it is not `ok`, or why it names no depth at the largest size measured."""
    if item.reason:
        return item.reason
    if item.params_range and item.usable:
        return item.best_depth_reason(item.params_range[1]) or ""
    return ""


def projection_sizes(largest: float) -> list[float]:
    """3, 10 and 100 times the largest size measured, and 1e9 and 1e12 where they lie beyond it; ascending."""
    return sorted({*(factor * largest for factor in MULTIPLES), *(size for size in SIZES if size > largest)})


def default_recommendations(runs: RunTable, fit: Fit) -> list[dict[str, Any]]:
    """Shapes for the sizes of `projection_sizes`, or none without a rising law.

    Not for the measured budgets: there the data speak for themselves, and better than two numbers fitted to them.
    """
    law = drawn_law(fit)
    if law is None or law.b <= 0 or runs.used.empty:
        return []
    return recommend(law, projection_sizes(largest_size(runs, fit)))


def largest_size(runs: RunTable, fit: Fit) -> float:
    """The largest budget at which depths were compared, else the largest N used."""
    return max((item.params for item in fit.best), default=float(runs.used["params"].max()))


def projection_table(
    runs: RunTable, fit: Fit, recommendations: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the rivals, and each recommendation with `outside`, `far` and `rivals`, their depths in that order.

    A rival's depth is None where it names none, and `BEYOND_USE` where a model of that depth would have more layers than
    it is wide. A size is inside the data where N lies among the measured sizes and the depth among those the law was
    fitted on.
    """
    choosers = {
        form: layout_planner for form, layout_planner in fit.advices().items() if form != fit.law.form
    }
    low, high = (float(end) for end in (runs.used["params"].min(), runs.used["params"].max()))
    rows = []
    for row in recommendations:
        params = float(row["params"])
        rows.append(
            {
                **row,
                "outside": bool(row["extrapolated"]) or not low <= params <= high,
                # Ten times ten is a hundred to rounding only.
                "far": params > FAR * high * (1 + 1e-9),
                "rivals": [_shapely(layout_planner(params), params) for layout_planner in choosers.values()],
            }
        )
    silent = [all(row["rivals"][index] is None for row in rows) for index in range(len(choosers))]
    names = [law_name(form) for form, quiet in zip(choosers, silent, strict=True) if not quiet]
    for row in rows:
        row["rivals"] = [value for value, quiet in zip(row["rivals"], silent, strict=True) if not quiet]
    return names, rows


def _shapely(depth: float | None, params: float) -> float | None:
    if depth is None or not math.isfinite(depth):
        return None
    return BEYOND_USE if depth > math.sqrt(params / (12 * depth)) else depth


def cost_table(runs: RunTable) -> list[tuple[str, str]]:
    """Outcomes, training time and FLOPs of all rows: (what, how much)."""
    status = runs.frame["status"].value_counts()
    rows = [("rows", str(len(runs.frame)))]
    rows += [
        (f"rows {name}", str(count)) for name, count in sorted(status.items(), key=lambda item: str(item[0]))
    ]
    seconds = runs.frame["train_seconds"].dropna()
    if len(seconds):
        missing = len(runs.frame) - len(seconds)
        unknown = f" ({missing} rows do not say)" if missing else ""
        rows.append(("training time in all", f"{hours(float(seconds.sum()))}{unknown}"))
        rows.append(("training time of a row, median", hours(float(seconds.median()))))
    flops, models, silent = training_flops(runs)
    if models:
        unknown = f" ({silent} rows do not say their tokens)" if silent else ""
        rows.append((f"training FLOPs, {FLOPS}·N·tokens", f"{flops:.2g} of {models} models{unknown}"))
    return rows


def training_flops(runs: RunTable) -> tuple[float, int, int]:
    """FLOPs of the used rows' training, the number of models, and of rows without tokens.

    Checkpoints of one model (equal shape, seed and learning rate) were trained once: the one with the most tokens
    counts.
    """
    known = runs.used[runs.used["tokens"].notna()]
    models = (
        known.groupby(["depth", "width", "params", "seed", "lr"], dropna=False)["tokens"].max().reset_index()
    )
    return (
        float((FLOPS * models["params"] * models["tokens"]).sum()),
        len(models),
        len(runs.used) - len(known),
    )


def hours(seconds: float) -> str:
    """A duration such as `2.5 h`."""
    if seconds >= 5400:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.1f} s"


def named_depth(value: float | None) -> str:
    """The depth a rival names, for a cell of the projection table."""
    if value is None:
        return "–"
    if value == BEYOND_USE:
        return "beyond use"
    return short(value) if value >= 1000 else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
