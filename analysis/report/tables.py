"""The tables of a study, for its page and for the terminal."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.fit.answer import FLOPS
from analysis.fit.document import Fit
from analysis.fit.sentences import LAWS, REACH
from analysis.law.advice import law_of
from analysis.law.crossings import Crossing
from analysis.law.held_out import BASELINE, HeldOut
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.near_optimal import WITHIN, depths_text, lost_text
from analysis.law.threshold import ThresholdFit
from analysis.numbers import counted, digits, duration, ends, human, percent, short, short_range
from analysis.runs.table import RunTable
from analysis.tables import Column, Table, shapes_table

#: Projected sizes, as multiples of the largest measured one.
MULTIPLES = (3.0, REACH)
#: Different reasons in the table of left-out rows; `fit.json` has all.
MOST_REASONS = 20


def crossings_table(fit: Fit, items: Sequence[Crossing]) -> Table:
    """Status, N with its interval and width of the crossings."""
    interval = percent(fit.level)
    columns = (
        Column("pair", right=False),
        Column("status", right=False, look="tag"),
        Column("N", f"and {interval} interval"),
        Column(interval, under="N"),
        Column("width", "of the shallower model"),
        Column("why", right=False, under="status"),
    )
    return Table("crossings", columns, [_crossing(item) for item in items])


def _crossing(item: Crossing) -> tuple[str | None, ...]:
    return (
        f"{item.shallow} → {item.deep}",
        item.status.replace("_", "-"),
        _maybe(short, item.params),
        _maybe(short_range, item.params_interval),
        _maybe(digits, item.width),
        item.reason,
    )


def _maybe(text: Callable[[Any], str], value: Any) -> str | None:
    return None if value is None else text(value)


def laws_table(fit: Fit) -> Table:
    """The threshold law, its rivals and the baseline, with their held-out regret and that of the baseline.

    The regret of a law and of the baseline is the mean over the trials that both answered.
    """
    trials = {item.law: item for item in fit.held_out}
    base = trials.get(BASELINE)
    lines = (fit.law, *fit.rivals)
    rows = [_law(item.form, item.status, _line_note(item), _line(item), None, trials) for item in lines]
    for item in fit.surfaces:
        values = ", ".join(f"{name} = {value:.3g}" for name, value in item.parameters.items())
        rows.append(_law(item.form, item.status, _surface_note(item), values, item.aicc, trials))
    if base is not None:
        rows.append(_law(BASELINE, "rule", "every law should beat it", "", None, trials))
    columns = (
        Column("law", right=False),
        Column("formula", under="law", where="page"),
        Column("status", right=False, look="tag"),
        Column("note", under="status", where="page"),
        Column("parameters", right=False, where="page"),
        Column("AICc", where="page"),
        Column("held-out regret", "nats per token"),
        Column("baseline", under="held-out regret", small="baseline {}"),
        Column("answered", under="held-out regret", small="{} answered"),
        Column("beyond the depths", under="held-out regret", small="{} beyond the depths"),
    )
    note = (
        "Held-out regret: each law is fitted to the smaller budgets and gives a depth for a larger one; the regret is "
        "the loss measured there minus the lowest loss measured there (mean, nats per token). The baseline is the best "
        "depth of the largest budget seen, in the same trials. Beyond the measured depths the regret is a lower bound."
        f"{'' if fit.held_out else ' There are too few budgets here to hold one out.'} AICc compares the loss surfaces "
        "only."
    )
    return Table("laws", columns, rows, note)


def _law(
    form: str, status: str, note: str, parameters: str, aicc: float | None, trials: Mapping[str, HeldOut]
) -> tuple[str | None, ...]:
    own, base = trials.get(form), trials.get(BASELINE)
    if own is not None and own.reasons and own.unanswered == len(own.trials):
        # The note of a law without any depth gives that reason already.
        new = [f"held out: {reason}" for reason in own.reasons if reason not in note]
        note = "; ".join(text for text in (note, *new[:1]) if text)
    regret, baseline = (None, None) if own is None or base is None else paired_regret(own, base)
    answered = 0 if own is None else len(own.trials) - own.unanswered
    outside = 0 if own is None else own.outside
    asked = 0 if own is None else len(own.trials)
    return (
        *LAWS.get(form, (form, "")),
        status.replace("_", " "),
        note,
        parameters or None,
        None if aicc is None else f"{aicc:.1f}",
        # An answer beyond the depths is charged the nearest depth: a lower bound, and zero if that depth is the best.
        None if regret is None or outside == answered else f"{'≥ ' * (outside > 0)}{regret:.4f}",
        None if baseline is None or form == BASELINE else f"{baseline:.4f}",
        f"{asked - own.unanswered} of {asked}" if own is not None and asked else None,
        str(own.outside) if own is not None and own.outside else None,
    )


def paired_regret(law: HeldOut, base: HeldOut) -> tuple[float | None, float | None]:
    """Mean regret of a law and of the baseline over the trials that both answered; None if there are none."""
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


def _line(item: ThresholdFit) -> str:
    if item.a is None or item.b is None:
        return ""
    a = f"a = {item.a:.3f}" + (f" ({ends(item.a_interval, 3)})" if item.a_interval else "")
    return f"{a}, b = {item.b:.3g}" + (f" ({ends(item.b_interval, 3)})" if item.b_interval else "")


def _line_note(item: ThresholdFit) -> str:
    parts = [item.reason, item.note]
    if item.chi2 is not None and item.dof and item.p_value is not None:
        freedom = f"{counted(item.dof, 'degree')} of freedom"
        parts.append(f"χ² = {item.chi2:.2f} with {freedom}, p = {item.p_value:.2g} by an F test")
    if item.scatter:
        parts.append(f"scatter of ln d ±{digits(item.scatter)}")
    return "; ".join(part for part in parts if part)


def _surface_note(item: SurfaceFit) -> str:
    """Why the surface is not `ok`, or why it has no best depth at the largest size measured."""
    if item.reason or not item.usable or not item.params_range:
        return item.reason or ""
    return item.best_depth_reason(item.params_range[1]) or ""


def best_table(fit: Fit) -> Table:
    """The best measured shape of each budget."""
    columns = (
        Column("N"),
        Column("best depth", look="strong"),
        Column("width", look="strong"),
        Column("loss"),
        Column("statistically tied", right=False),
        Column(f"within {WITHIN:g} nats", "of the lowest loss", right=False),
    )
    rows = [
        (
            human(item.params),
            str(item.depth),
            digits(item.width),
            f"{item.loss:.4f}",
            "no noise estimate"
            if item.near is None
            else ", ".join(str(depth) for depth in item.near if depth != item.depth) or "none",
            ", ".join(
                f"{shape.depth} (+{shape.excess:.4f})"
                for shape in item.shapes
                if shape.excess <= WITHIN and shape.depth != item.depth
            )
            or "none",
        )
        for item in fit.best
    ]
    return Table(
        "best measured shapes",
        columns,
        rows,
        "Lowest loss of each budget, read off the curves at one N, and the other depths that lose less than "
        f"{WITHIN:g} nats per token, with what they lose.",
    )


def projection_table(runs: RunTable, fit: Fit) -> Table | None:
    """Projected shapes at `MULTIPLES` of the largest measured size; None if no depth is stated or bounded.

    At the measured sizes the losses are better evidence than a law of two parameters.
    """
    if law_of(fit.law) is None or runs.used.empty or fit.tokens.no_projection:
        return None
    largest = max((item.params for item in fit.best), default=float(runs.used["params"].max()))
    rows = [fit.project(factor * largest).shape() | {"outside": True} for factor in MULTIPLES]
    if all(row["depth"] is None and row["depth_interval"] == [None, None] for row in rows):
        return None
    near = [fit.near_optimal(row["params"], row["depth"]) for row in rows]
    more: dict[str, list[str | None]] = {}
    if known := next(filter(None, near), None):
        more = {
            f"within {WITHIN:g} nats": [depths_text(item) for item in near],
            "nats lost by L*": [lost_text(item) for item in near],
        }
    table = shapes_table("projected shapes", rows, fit.level, more)
    note = (
        "The depth that all laws which the data do not reject agree on within a factor of 1.25, and the width that "
        "gives N; else only the interval, which covers noise and the choice among these laws."
    )
    # The reasons grow with N, so the smallest size has the shortest.
    if (doubt := next((row for row in rows if row["reason"]), None)) is not None:
        agree = f"; they agree up to N ≈ {human(doubt['agree_to'])}" if doubt["agree_to"] else ""
        note += f" No depth at N ≈ {human(doubt['params'])}: {doubt['reason']}{agree}."
    if known:
        note += f" Depths within {WITHIN:g} nats of the lowest loss and nats lost are those of the {known['losses']}."
    return Table(table.title, table.columns, table.rows, note)


def cost_table(runs: RunTable) -> Table:
    """Outcomes, training time and FLOPs of all rows."""
    status = sorted(runs.frame["status"].value_counts().items(), key=lambda item: str(item[0]))
    rows = [("rows", str(len(runs.frame))), *((f"rows {name}", str(count)) for name, count in status)]
    seconds = runs.frame["train_seconds"].dropna()
    if len(seconds):
        missing = len(runs.frame) - len(seconds)
        unknown = f" (unknown for {missing} rows)" if missing else ""
        rows.append(("total training time", f"{duration(float(seconds.sum()))}{unknown}"))
        rows.append(("median training time per row", duration(float(seconds.median()))))
    flops, models, silent = training_flops(runs)
    if models:
        unknown = f" (tokens unknown for {silent} rows)" if silent else ""
        rows.append((f"training FLOPs, {FLOPS}·N·tokens", f"{flops:.2g} of {models} models{unknown}"))
    return Table("cost", (Column("", right=False), Column("")), rows)


def training_flops(runs: RunTable) -> tuple[float, int, int]:
    """FLOPs of the used rows' training, the number of models, and of rows without tokens.

    Checkpoints of one model (equal shape, seed and learning rate) were trained once: the one with the most tokens
    counts.
    """
    known = runs.used[runs.used["tokens"].notna()]
    same = ["depth", "width", "params", "seed", "lr"]
    models = known.groupby(same, dropna=False)["tokens"].max().reset_index()
    flops = float((FLOPS * models["params"] * models["tokens"]).sum())
    return flops, len(models), len(runs.used) - len(known)


def diverged_table(fit: Fit) -> Table:
    """The shapes with rows that diverged."""
    columns = (Column("depth"), Column("width"), Column("N"), Column("rows that diverged"))
    rows = [
        (str(item["depth"]), str(item["width"]), human(item["params"]), f"{item['diverged']} of {item['of']}")
        for item in fit.diverged
    ]
    return Table("diverged shapes", columns, rows)


def reasons_table(fit: Fit) -> Table:
    """The reasons of the rows left out, most frequent first."""
    reasons = Counter(str(item["reason"]) for item in fit.left_out).most_common()
    rows = [(str(count), reason) for reason, count in reasons[:MOST_REASONS]]
    note = "Every row is in fit.json with its reason."
    return Table("reasons", (Column("rows"), Column("reason", right=False)), rows, note)
