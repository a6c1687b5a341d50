"""The tables of a study, for its page and for the terminal."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.curves.best_shapes import BestShape
from analysis.fit.crossing_shift import CrossingShift
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData, label
from analysis.fit.sentences import LAWS, law_formula, reason_counts
from analysis.fit.series import ByValue, ShiftedStudy, crossing_row
from analysis.intervals import Interval
from analysis.law.held_out import BASELINE, HeldOut
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.near_optimal import WITHIN
from analysis.law.shape import buildable_width
from analysis.law.threshold_law import ThresholdLaw
from analysis.numbers import counted, digits, duration, ends, factors, percent, short, span
from analysis.runs.table import RunTable
from analysis.tables import Column, Columns, Table, table_of

#: Pairs with too few sizes in common that are listed.
MOST_MISSING = 4
#: Note of the shifts of sensitivity runs.
RATES_NOTE = (
    "Cells around each crossing were trained again at other learning rates with the same seeds. Their losses enter no "
    "crossing. Their differences from the rows of the same shape and seed give the loss of each shape at its best "
    "rate, and so the change of the gap between the two depths."
)
#: Different reasons in the table of left-out rows; `fit.json` has all.
MOST_REASONS = 20


def crossings_table(fit: Fit) -> Table | None:
    """The crossings of neighbouring depths; None without two depths.

    At most `MOST_MISSING` pairs with too few sizes in common are listed; the note counts the others.
    """
    if not fit.crossings:
        return None
    missing = [item for item in fit.crossings if item.status == "insufficient"]
    hidden = missing[MOST_MISSING:]
    rows = [crossing_row(item) for item in fit.crossings if item not in hidden]
    more = counted(len(hidden), "more pair")
    note = f"{more} with too few sizes in common: see fit.json." if hidden else ""
    return table_of("crossings", rows, _crossing_columns(fit.level), note)


def crossings_by_value(key: str, data: ByValue, level: float) -> Table:
    """The crossings of a series by pair and value."""
    rows = data.rows.sort_values(["shallow", "deep"], kind="stable").to_dict("records")
    return table_of("crossings by value", rows, _crossing_columns(level, key))


def _crossing_columns(level: float, key: str = "") -> Columns:
    """The columns of a table of `crossing_row`s; with a key each row has its `value`."""
    return {
        Column("pair", right=False): lambda row: f"{row['shallow']} → {row['deep']}",
        **({Column(key, right=False): lambda row: label(row["value"])} if key else {}),
        Column("status", right=False, look="tag"): lambda row: row["status"].replace("_", "-"),
        Column("N", f"and {percent(level)} interval"): lambda row: _number(row["params"], short),
        Column(percent(level), under="N"): lambda row: span(finite_ends(row), short),
        Column("width", "of the shallower model"): lambda row: _number(row["width"], digits),
        Column("why", right=False, under="status"): lambda row: row["reason"],
    }


def _number(value: float, text: Callable[[float], str]) -> str | None:
    return None if math.isnan(value) else text(value)


def finite_ends(row: Mapping[Any, Any]) -> Interval | None:
    """The interval in `low` and `high` of a row, whose open ends are NaN; None without any end."""
    low, high = (None if math.isnan(row[name]) else float(row[name]) for name in ("low", "high"))
    return None if low is None and high is None else (low, high)


def laws_table(fit: Fit) -> Table:
    """The threshold law, its alternatives and the baseline, with their held-out regret and that of the baseline.

    The regret of a law and of the baseline is the mean over the trials that both answered.
    """
    trials = {item.law: item for item in fit.held_out}
    base = trials.get(BASELINE)
    lines = (fit.law, *fit.alternatives)
    rows = [_law(item.form, item.status, _line(item), trials) for item in lines]
    for item in fit.surfaces:
        named = {name.replace("alpha", "α"): value for name, value in item.parameters.items()}
        values = ", ".join(f"{name}\u00a0=\u00a0{value:.3g}" for name, value in named.items())
        rows.append(_law(item.form, item.status, values, trials))
    if base is not None:
        rows.append(_law(BASELINE, "rule", "", trials))
    columns = (
        Column("law", right=False),
        Column("formula", under="law", where="page"),
        Column("status", right=False, look="tag"),
        Column("parameters", right=False, where="page"),
        Column("held-out regret", "nats per token"),
        Column("baseline", "same trials"),
        Column("answered", "of the trials"),
        Column("beyond", "the depths"),
    )
    note = (
        "Held-out regret: each law is fitted to the smaller budgets and gives a depth for a larger one; the regret is "
        "the loss measured there minus the lowest loss measured there (mean, nats per token). The baseline is the best "
        "depth of the largest budget seen, in the same trials; every law should beat it. Beyond the "
        "measured depths the regret is a lower bound."
        f"{'' if fit.held_out else ' There are too few budgets here to hold one out.'}"
    )
    return Table("laws", columns, rows, note)


def _law(form: str, status: str, parameters: str, trials: Mapping[str, HeldOut]) -> tuple[str | None, ...]:
    own, base = (trials.get(name, HeldOut(name, ())) for name in (form, BASELINE))
    asked, outside = len(own.trials), own.outside
    answered = asked - own.unanswered
    regret, baseline = paired_regret(own, base)
    at_least = "≥ " if outside else ""
    return (
        *LAWS.get(form, (form, "")),
        status.replace("_", " "),
        parameters or None,
        # An answer beyond the depths is charged the nearest depth: a lower bound, and zero if that depth is the best.
        None if regret is None or outside == answered else f"{at_least}{regret:.4f}",
        None if baseline is None or form == BASELINE else f"{baseline:.4f}",
        f"{answered} of {asked}" if asked else None,
        str(outside) if outside else None,
    )


def law_reasons_table(fit: Fit) -> Table | None:
    """Each reason for the status of a law, with all laws that it applies to; None without any."""
    trials = {item.law: item for item in fit.held_out}
    notes: dict[str, str] = {item.form: _line_note(item) for item in (fit.law, *fit.alternatives)}
    notes |= {item.form: _surface_note(item) for item in fit.surfaces}
    laws: dict[str, list[str]] = {}
    for form, note in notes.items():
        parts = [part for part in note.split("; ") if part]
        own = trials.get(form)
        if own is not None and own.reasons and own.unanswered == len(own.trials):
            # The note of a law without any depth gives that reason already.
            parts += [f"held out: {reason}" for reason in own.reasons[:1] if reason not in note]
        for part in dict.fromkeys(parts):
            laws.setdefault(part, []).append(LAWS.get(form, (form, ""))[0])
    columns: Columns = {
        Column("laws", right=False): lambda item: ", ".join(item[1]),
        Column("reason", right=False): lambda item: item[0],
    }
    return table_of("reasons of the laws", laws.items(), columns) if laws else None


def paired_regret(law: HeldOut, base: HeldOut) -> tuple[float | None, float | None]:
    """Mean regret of a law and of the baseline over the trials that both answered; None if there are none."""
    there = {(trial.budget, trial.trained_to): trial.regret for trial in base.trials}
    pairs = [(trial.regret, there.get((trial.budget, trial.trained_to))) for trial in law.trials]
    both = [pair for pair in pairs if None not in pair]
    if not both:
        return None, None
    own, others = np.mean(np.array(both, dtype=float), axis=0)
    return float(own), float(others)


def _line(item: ThresholdLaw) -> str:
    if item.a is None or item.b is None:
        return ""
    a = f"a = {item.a:.3f}" + (f" ({ends(item.a_interval, 3)})" if item.a_interval else "")
    return f"{a}, b = {item.b:.3g}" + (f" ({ends(item.b_interval, 3)})" if item.b_interval else "")


def _line_note(item: ThresholdLaw) -> str:
    parts = [item.reason, item.note]
    if item.dof and item.p_value is not None:
        parts.append(f"p = {item.p_value:.2g} by an F test")
    if item.scatter:
        parts.append(f"scatter of ln d ±{digits(item.scatter)}")
    return "; ".join(part for part in parts if part)


def _surface_note(item: SurfaceFit) -> str:
    """Why the surface is not `ok`, or why it has no best depth at the largest size measured."""
    if item.reason or not item.usable or not item.params_range:
        return item.reason or ""
    return item.why_not(item.params_range[1]) or ""


def best_table(fit: Fit) -> Table | None:
    """The best measured shape of each budget; None if no budget has two depths."""
    if not fit.best:
        return None
    columns: Columns = {
        Column("N"): lambda best: short(best.params),
        Column("best depth", look="strong"): lambda best: str(best.depth),
        Column("width", look="strong"): lambda best: str(buildable_width(best.width, best.width_step)),
        Column("exact", under="width"): lambda best: digits(best.width, 3),
        Column("loss"): lambda best: f"{best.loss:.4f}",
        Column("statistically tied", right=False): lambda best: (
            "no noise estimate" if best.near is None else _others(best, best.near, "{}")
        ),
        Column(f"within {WITHIN:g} nats", "of the lowest loss", right=False): lambda best: _others(
            best, [shape.depth for shape in best.shapes if shape.excess <= WITHIN], "{} (+{:.4f})"
        ),
    }
    note = (
        "Lowest loss of each budget, read off the curves at one N; the width that the study can build next to the "
        f"exact one, and the other depths that lose less than {WITHIN:g} nats per token, with what they lose."
    )
    return table_of("best shapes by the curves", fit.best, columns, note)


def _others(best: BestShape, depths: Collection[int], text: str) -> str:
    """The depths but the best one; `text` formats a depth and its excess over the lowest loss."""
    shapes = [shape for shape in best.shapes if shape.depth in depths and shape.depth != best.depth]
    return ", ".join(text.format(shape.depth, shape.excess) for shape in shapes) or "none"


def cost_table(runs: RunTable) -> Table:
    """Outcomes, training time and FLOPs of all rows."""
    status = sorted(runs.frame["status"].value_counts().items(), key=lambda item: str(item[0]))
    by_status = [(f"rows {name}", str(count)) for name, count in status] if len(status) > 1 else []
    rows = [("rows", str(len(runs.frame))), *by_status]
    seconds = runs.frame["train_seconds"].dropna()
    if len(seconds):
        missing = len(runs.frame) - len(seconds)
        unknown = f" (unknown for {missing} rows)" if missing else ""
        rows.append(("total training time", f"{duration(float(seconds.sum()))}{unknown}"))
        rows.append(("median training time per row", duration(float(seconds.median()))))
    if "flops" in runs.used and runs.used["flops"].notna().all():
        # Checkpoints of one model were trained once: the one with the most tokens counts.
        models = runs.used.groupby(["depth", "width", "params", "seed", "lr"], dropna=False)["flops"].max()
        rows.append(("training FLOPs", f"{models.sum():.3g} of {counted(len(models), 'model')}"))
    return Table("cost", (Column("", right=False), Column("")), rows)


def diverged_table(fit: Fit) -> Table | None:
    """The shapes with rows that diverged; None without any."""
    if not fit.diverged:
        return None
    columns: Columns = {
        Column("depth"): lambda item: str(item["depth"]),
        Column("width"): lambda item: str(item["width"]),
        Column("N"): lambda item: short(item["params"]),
        Column("rows that diverged"): lambda item: f"{item['diverged']} of {item['of']}",
    }
    return table_of("diverged shapes", fit.diverged, columns)


def reasons_table(fit: Fit) -> Table | None:
    """The reasons of the rows left out, most frequent first; None if every row is used."""
    if not fit.left_out:
        return None
    rows = [(str(count), reason) for reason, count in reason_counts(fit)[:MOST_REASONS]]
    note = "Every row is in fit.json with its reason."
    return Table("reasons", (Column("rows"), Column("reason", right=False)), rows, note)


def needed_table(key: str, data: MeasureData) -> Table | None:
    """The fewest layers of each value that reach the target; None without a target."""
    if data.needed.empty:
        return None

    def seeds(row: Any) -> str:
        return f"{row['low']:.3g} to {row['high']:.3g} ({counted(int(row['seeds']), 'seed')})"

    columns: Columns = {
        Column(key, right=False): lambda row: label(row["value"]),
        Column("depth L", look="strong"): lambda row: (
            _number(row["depth"], "{:.0f}".format) or f"above {row['deepest']}"
        ),
        Column("heads H"): lambda row: _number(row["heads"], "{:.0f}".format),
        Column("head width m"): lambda row: _number(row["head_width"], "{:g}".format),
        Column("width", "m·H"): lambda row: _number(row["width"], "{:.0f}".format),
        Column("N"): lambda row: _number(row["params"], short),
        Column("mean"): lambda row: _number(row["mean"], "{:.4g}".format) or "not reached",
        Column("range", under="mean"): lambda row: None if math.isnan(row["low"]) else seeds(row),
        Column("best", "of any depth"): lambda row: f"{row['best']:.4g}",
    }
    title = f"The fewest layers for {data.name} of at least {data.target:g}"
    return table_of(title, data.needed.to_dict("records"), columns)


def members_table(key: str, about: Sequence[Mapping[str, Any]]) -> Table:
    """Rows, depths, sizes and the law of each member; `about` is `members` of `series.json`."""

    def law_words(law: Mapping[str, Any] | None) -> str:
        if law is None:
            return "no fit"
        return f"none: {law['reason']}" if None in (law["a"], law["b"]) else law_formula(law["a"], law["b"])

    columns: Columns = {
        Column(key, right=False): lambda item: label(item["value"]),
        Column("rows used"): lambda item: f"{item['used']} of {item['rows']}",
        Column("depths"): lambda item: ", ".join(map(str, item["depths"])) or None,
        Column("N"): lambda item: span(item["params"], short) if item["params"] else None,
        Column("seeds"): lambda item: str(item["seeds"]),
        Column("threshold law", right=False): lambda item: law_words(item["law"]),
    }
    return table_of("members", about, columns)


def best_by_value(key: str, data: ByValue) -> Table:
    """The best depth of each budget by value, with the depths tied with it."""
    columns: Columns = {
        Column(key, right=False): lambda row: label(row["value"]),
        Column("budget N"): lambda row: short(row["budget"]),
        Column("depth L", look="strong"): lambda row: str(row["depth"]),
        Column("tied", under="depth L", small="of {}"): lambda row: ", ".join(row["near"].split()) or None,
        Column("width"): lambda row: digits(row["width"]),
        Column("loss"): lambda row: f"{row['loss']:.4g}",
    }
    return table_of("best depth of each budget", data.rows.to_dict("records"), columns)


def shifts_by_value_table(key: str, studies: Sequence[ShiftedStudy], level: float) -> Table | None:
    """The shift of each crossing from the first value of a series; None without any."""
    rows = [(study.value, pair) for study in studies for pair in study.pairs]
    if not rows:
        return None
    columns: Columns = {
        Column("pair", right=False): lambda row: f"{row[1].shallow} → {row[1].deep}",
        Column(key, right=False): lambda row: label(row[0]),
        **_shift_columns(level, lambda row: row[1]),
    }
    note = "The estimate assumes independent studies; shared seeds and data make the true error smaller."
    return table_of(f"shifts of the crossings against {key} {label(studies[0].base)}", rows, columns, note)


def rate_shifts_table(fit: Fit) -> Table | None:
    """The shift of each crossing to the best learning rates; None without sensitivity runs next to one."""
    pairs = [pair for pair in (fit.learning_rate.pairs if fit.learning_rate else ()) if pair.shift]
    if not pairs:
        return None
    columns: Columns = {
        Column("pair", right=False): lambda pair: f"{pair.shallow} → {pair.deep}",
        **_shift_columns(fit.level, lambda pair: pair.shift),
        Column("runs"): lambda pair: str(pair.shift.runs),
        Column("diverged", under="runs", small="{} diverged"): lambda pair: (
            str(pair.shift.diverged or "") or None
        ),
        Column("why", right=False, under="pair"): lambda pair: pair.reason or pair.shift.reason,
    }
    return table_of("shifts of the crossings to the best learning rates", pairs, columns, RATES_NOTE)


def _shift_columns(level: float, of: Callable[[Any], CrossingShift]) -> Columns:
    """The factor of N by which a crossing moves; `of` is the shift of a row."""

    def factor(row: Any) -> str | None:
        shift = of(row).shift
        return None if shift is None else f"× {digits(math.exp(shift), 3)}"

    return {
        Column("factor of N", f"{percent(level)} interval"): factor,
        Column(percent(level), under="factor of N"): lambda row: factors(of(row).shift_interval),
    }
