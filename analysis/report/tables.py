"""The tables of a study, for its page and for the terminal."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.curves.unusual_runs import UNUSUAL
from analysis.fit.compared_studies import ByValue, ShiftedStudy, SlopeDifference, crossing_row
from analysis.fit.crossing_shift import CrossingShift
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData, label
from analysis.fit.words import GAP_LAWS, LAWS, law_formula, negligible_words, reason_counts
from analysis.intervals import Interval
from analysis.law.crossings import NEAR_END
from analysis.law.near_optimal import WITHIN
from analysis.law.reading import AtSize, DepthAt
from analysis.law.shape import ComputeShape, buildable_width
from analysis.law.threshold_law import ThresholdLaw
from analysis.law.words import text_of
from analysis.runs.columns import numeric
from analysis.runs.costs import ShapeCosts, costs_of_one_device
from analysis.runs.table import RunTable
from analysis.tables import Column, Columns, Table, table_of
from analysis.units import NATS, BudgetUnit, UnitName, budget_number, times
from core.numbers import (
    counted,
    digits,
    duration,
    ends,
    factors,
    first_few,
    percent,
    prefixed,
    short,
    span,
)

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
    """The crossings of neighbouring depths in N, or of a study at equal FLOPs or time in these; None without any.

    At most `MOST_MISSING` pairs with too few sizes in common are listed; the note counts the others.
    """
    by_budget = fit.tokens.rule == "compute"
    crossings = fit.crossings if not by_budget else fit.compute.crossings if fit.compute else ()
    if not crossings:
        return None
    missing = [item for item in crossings if item.status == "insufficient"]
    hidden = missing[MOST_MISSING:]
    rows = [crossing_row(item) for item in crossings if item not in hidden]
    more = counted(len(hidden), "more pair")
    note = (
        f"{more} with too few {'budgets' if by_budget else 'sizes'} in common: see fit.json."
        if hidden
        else ""
    )
    columns = _crossing_columns(fit.level)
    if by_budget and fit.compute:
        columns = _budget_columns(fit.level, fit.compute.unit)
    return table_of("crossings", rows, columns, note)


def _budget_columns(level: float, unit: BudgetUnit) -> Columns:
    """The columns of a table of `crossing_row`s whose places are budgets; there is no width at one budget."""

    def text(value: float) -> str:
        return budget_number(value, unit)

    name = "FLOPs" if unit == "FLOPs" else "training time"
    columns = _crossing_columns(level)
    of_pair, of_status, *_, why = columns
    return {
        of_pair: columns[of_pair],
        of_status: columns[of_status],
        Column(name, f"and {percent(level)} interval"): lambda row: _number(row["params"], text),
        Column(percent(level), under=name): lambda row: span(finite_ends(row), text),
        why: columns[why],
    }


def crossings_by_value(key: str, data: ByValue, level: float) -> Table:
    """The crossings of the studies by pair and value."""
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
    """The laws through the crossings, and those of the gaps between depths with their share of a decision."""
    rows: list[tuple[str | None, ...]] = [
        (*LAWS[item.form], item.status.replace("_", " "), _line(item) or None, _p_value(item.p_value), None)
        for item in (fit.law, *fit.alternatives)
    ]
    for law in fit.gap_laws.laws:
        named = {
            name.replace("alpha", "α").replace("_", " "): value for name, value in law.parameters.items()
        }
        values = ", ".join(f"{name}\u00a0=\u00a0{value:.3g}" for name, value in named.items())
        weight = f"{100 * law.weight:.0f} %" if law.status == "ok" else None
        rows.append((*GAP_LAWS[law.form], law.status, values or None, _p_value(law.p_value), weight))
    columns = (
        Column("law", right=False),
        Column("formula", under="law", where="page"),
        Column("status", right=False, look="tag"),
        Column("parameters", right=False, where="page"),
        Column("p", "F test"),
        Column("weight", "beyond the data"),
    )
    note = (
        "The first three go through the crossings. The others are laws of the gaps between depths, through all losses, "
        "with any curve of N that the depths share; those that their test does not reject give the shape beyond the "
        "data, each by its weight."
    )
    return Table("laws", columns, rows, note)


def _p_value(value: float | None) -> str | None:
    return None if value is None else f"{value:.2g}"


def law_reasons_table(fit: Fit) -> Table | None:
    """Each reason for the status of a law, with all laws that it applies to; None without any."""
    notes = [(LAWS[item.form][0], _line_notes(item)) for item in (fit.law, *fit.alternatives)]
    notes += [(GAP_LAWS[law.form][0], [*map(text_of, law.reasons)]) for law in fit.gap_laws.laws]
    laws: dict[str, list[str]] = {}
    for name, texts in notes:
        for text in texts:
            laws.setdefault(text, []).append(name)
    columns: Columns = {
        Column("laws", right=False): lambda item: ", ".join(item[1]),
        Column("reason", right=False): lambda item: item[0],
    }
    return table_of("reasons of the laws", laws.items(), columns) if laws else None


def _line(item: ThresholdLaw) -> str:
    if item.a is None or item.b is None:
        return ""
    a = f"a = {item.a:.3f}" + (f" ({ends(item.a_interval, 3)})" if item.a_interval else "")
    return f"{a}, b = {item.b:.3g}" + (f" ({ends(item.b_interval, 3)})" if item.b_interval else "")


def _line_notes(item: ThresholdLaw) -> list[str]:
    scatter = [f"scatter of ln d ±{digits(item.scatter)}"] if item.scatter else []
    return [*map(text_of, (*item.reasons, *item.notes)), *scatter]


def best_table(fit: Fit) -> Table | None:
    """The best measured shape of each budget; None if no budget has two depths."""
    if not fit.best:
        return None
    unit = fit.loss_unit
    within = negligible_words(unit)
    columns: Columns = {
        Column("N"): lambda best: short(best.params),
        Column("best depth", look="strong"): lambda best: str(best.depth),
        Column("width", look="strong"): lambda best: str(buildable_width(best.width, best.width_step)),
        Column("exact", under="width"): lambda best: digits(best.width, 3),
        _loss_column(unit.name): lambda best: f"{unit.per_nat * best.loss:.4f}",
        Column("statistically tied", right=False): lambda best: (
            "no noise estimate" if best.near is None else _others(best, best.near, "{}")
        ),
        Column(f"within {within}", "of the lowest loss", right=False): lambda best: _others(
            times(best, unit.per_nat), [shape.depth for shape in best.within(WITHIN)], "{} (+{:.4f})"
        ),
    }
    note = (
        "Lowest loss of each budget, read off the curves at one N; the width that the study can build next to the "
        f"exact one, and the other depths that lose less than {unit.per_nat * WITHIN:.3g} {unit.name}, with what they "
        "lose."
    )
    return table_of("best shapes by the curves", fit.best, columns, note)


def gains_table(fit: Fit, costs: Sequence[ShapeCosts]) -> Table | None:
    """What each depth gains and what it costs, at the largest size with measured costs; None without such a size.

    The shape of a depth is the one whose N is next to that size, at most `NEAR_END` away in ln N.
    """
    rows = costs_of_one_device(costs)
    for best in reversed(fit.best):
        near = [row for row in rows if abs(math.log(row.size(fit.layer_weights) / best.params)) <= NEAR_END]
        shapes = {
            shape: nearest
            for shape in best.shapes
            if (nearest := _nearest(near, shape.depth, shape.width)) is not None
        }
        if len(shapes) > 1 and any(shape.depth == best.depth for shape in shapes):
            break
    else:
        return None
    reference = next(of_batch for shape, of_batch in shapes.items() if shape.depth == best.depth)

    def measure(name: str, batch: int, text: Callable[[float], str]) -> Callable[[Any], str | None]:
        def shown(item: tuple[DepthAt, dict[int, ShapeCosts]]) -> str | None:
            value = getattr(item[1].get(batch), name, None)
            if value is None:
                return None
            least = getattr(reference.get(batch), name, None)
            ratio = f" ({digits(value / least)}×)" if least and item[0].depth != best.depth else ""
            return f"{text(value)}{ratio}"

        return shown

    batches = sorted({row.batch for row in rows if row.decode_ms is not None})
    first = batches[0] if batches else rows[0].batch
    columns: Columns = {
        Column("shape", look="strong"): lambda item: f"{item[0].depth} × {item[1][min(item[1])].width}",
        Column("loss"): lambda item: (
            "lowest" if item[0].depth == best.depth else f"+{digits(100 * item[0].excess / best.loss)} %"
        ),
        Column("training tokens/s"): measure("train_tokens_per_second", first, prefixed),
        **{
            Column(f"ms per token, batch {batch}"): measure(
                "decode_ms", batch, lambda value: digits(value, 3)
            )
            for batch in batches
        },
        Column("prefill ms"): measure("prefill_ms", first, lambda value: digits(value, 3)),
        Column("cache bytes per token"): measure("kv_bytes_per_token", first, prefixed),
    }
    title = f"what a depth gains and costs at N = {short(best.params)}"
    note = (
        f"Loss of each depth against the lowest at this size, and costs measured alone ({rows[0].machine}, "
        f"{rows[0].precision}), each also over that of the best depth."
    )
    return table_of(title, shapes.items(), columns, note)


def _nearest(rows: Sequence[ShapeCosts], depth: int, width: float) -> dict[int, ShapeCosts] | None:
    """The costs by batch of the shape of a depth next to a width; None without one."""
    of_depth = [row for row in rows if row.depth == depth]
    if not of_depth:
        return None
    nearest = min(of_depth, key=lambda row: (abs(math.log(row.width / width)), row.width)).width
    return {row.batch: row for row in of_depth if row.width == nearest}


def compute_table(fit: Fit) -> Table | None:
    """The best shape and tokens of each budget of compute or training time; None without several budgets."""
    if fit.compute is None or not fit.compute.best:
        return None
    unit, is_flops = fit.loss_unit, fit.compute.unit == "FLOPs"

    def tied(shape: ComputeShape) -> str:
        if shape.near is None:
            return "no noise estimate"
        return ", ".join(str(depth) for depth in shape.near if depth != shape.depth) or "none"

    columns: Columns = {
        Column("FLOPs" if is_flops else "training time"): lambda shape: budget_number(
            shape.budget, shape.budget_unit
        ),
        Column("best depth", look="strong"): lambda shape: str(shape.depth),
        Column("width", look="strong"): lambda shape: str(shape.width),
        Column("N"): lambda shape: short(shape.params),
        Column("tokens"): lambda shape: short(shape.tokens),
        _loss_column(unit.name): lambda shape: f"{unit.per_nat * shape.loss:.4f}",
        Column("statistically tied", right=False): tied,
    }
    note = (
        f"N and tokens of least loss for each {'compute' if is_flops else 'training time'}, from a line through the "
        f"best sizes of each depth, about which one scatters by {percent(round(math.expm1(fit.compute.size_sd), 2))}. "
        "There is no law in the width for these crossings, because N differs between depths at one "
        f"{'compute' if is_flops else 'time'}."
    )
    left_out = fit.compute.left_out
    if left_out:
        note += f" Without a least loss: {first_few(left_out, '; ')}."
    return table_of(
        f"best shapes at equal {'compute' if is_flops else 'training time'}", fit.compute.best, columns, note
    )


def _loss_column(unit: UnitName) -> Column:
    """The heading of losses, with their unit unless it is the usual one."""
    return Column("loss" if unit == NATS.name else f"loss, {unit}")


def _others(best: AtSize, depths: Collection[int], text: str) -> str:
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
        models = _trained_flops(runs.used)
        rows.append(("training FLOPs", f"{models.sum():.3g} of {counted(len(models), 'model')}"))
    return Table("cost", (Column("", right=False), Column("")), rows)


def _trained_flops(used: pd.DataFrame) -> pd.Series:
    """The training FLOPs of each model.

    Each row of a study is a training of its own, without the tokens that it took from the trunk of another. In other
    tables checkpoints of one model were trained once: the one with the most tokens counts.
    """
    if "cell" in used and used["cell"].is_unique and used["cell"].notna().all():
        shared = numeric(used["trunk_tokens"]).fillna(0.0) / used["tokens"] if "trunk_tokens" in used else 0.0
        trained: pd.Series = used["flops"] * (1 - shared)
        return trained
    each: pd.Series = used.groupby(["depth", "width", "params", "seed", "lr"], dropna=False)["flops"].max()
    return each


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


def unusual_table(fit: Fit) -> Table | None:
    """The runs whose loss lies far off the others; None without any."""
    unit = fit.loss_unit
    columns: Columns = {
        Column("depth"): lambda run: str(run.depth),
        Column("width"): lambda run: str(run.width),
        Column("N"): lambda run: short(run.params),
        Column("seed"): lambda run: str(run.seed),
        _loss_column(unit.name): lambda run: f"{unit.per_nat * run.loss:.4f}",
        Column("off by", unit.name): lambda run: f"{unit.per_nat * run.above:+.4f}",
        Column("deviations", "robust standard deviations"): lambda run: f"{abs(run.deviations):.0f}",
    }
    note = (
        f"Runs more than {UNUSUAL:g} robust standard deviations off the curve of their depth, or off the other seeds "
        f"of their shape; they are compared all the same. Without them: {' '.join(fit.answer_without)}"
    )
    return table_of("unusual runs", fit.unusual, columns, note) if fit.unusual else None


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


def studies_table(key: str, about: Sequence[Mapping[str, Any]]) -> Table:
    """Rows, depths, sizes and the law of each study; `about` is `studies` of `comparison.json`."""

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
    return table_of("studies", about, columns)


def best_by_value(key: str, data: ByValue, unit: UnitName) -> Table:
    """The best depth of each budget by value, with the depths tied with it."""
    columns: Columns = {
        Column(key, right=False): lambda row: label(row["value"]),
        Column("budget N"): lambda row: short(row["budget"]),
        Column("depth L", look="strong"): lambda row: str(row["depth"]),
        Column("tied", under="depth L", small="of {}"): lambda row: ", ".join(row["near"].split()) or None,
        Column("width"): lambda row: digits(row["width"]),
        _loss_column(unit): lambda row: f"{row['loss']:.4g}",
    }
    return table_of("best depth of each budget", data.rows.to_dict("records"), columns)


def shifts_by_value_table(key: str, studies: Sequence[ShiftedStudy], level: float) -> Table | None:
    """The shift of each crossing from that of the first study; None without any."""
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


def slopes_table(key: str, slopes: Sequence[SlopeDifference], level: float) -> Table | None:
    """The slope of each threshold law less that of the first study; None without any."""
    if not slopes:
        return None
    columns: Columns = {
        Column(key, right=False): lambda item: label(item.value),
        Column("slope b"): lambda item: None if item.slope is None else digits(item.slope, 3),
        Column("difference", f"{percent(level)} interval"): lambda item: (
            None if item.difference is None else digits(item.difference, 3)
        ),
        Column(percent(level), under="difference"): lambda item: (
            None if item.interval is None else ends(item.interval, 3)
        ),
    }
    note = "Without a difference one of the two studies has no law."
    return table_of(
        f"slopes of ln d = a + b·L less that at {key} {label(slopes[0].base)}", slopes, columns, note
    )


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
