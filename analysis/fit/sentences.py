"""The findings of a fit in sentences: headlines, scores of a task, next steps."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable

import pandas as pd

from analysis.fit.answer import shape_sentence, use_sentence
from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, Value, label, measure_by_value
from analysis.intervals import Interval
from analysis.law.crossings import NO_NOISE, Crossing
from analysis.law.held_out import BASELINE
from analysis.law.near_optimal import WITHIN, measured_within
from analysis.law.prediction import rejected
from analysis.law.shape import REACH
from analysis.law.threshold import TWO_POINTS
from analysis.numbers import counted, digits, ends, human, human_range, layers, listed, percent

#: Share of used rows from which on the first line does not count the others.
MOSTLY = 0.8
#: Reasons of left-out rows that are listed.
MOST_REASONS = 3
#: Maximum number of pairs of depths with a sentence among the headlines.
MAX_SENTENCES = 2
#: Least depths for a sentence about the response surface: a quadratic goes through any three.
DEPTHS_FOR_SURFACE = 5
#: Measures other than the loss in a run table, for which more is better, and their names in sentences.
SCORES = {
    "accuracy": "accuracy",
    "induction_score": "induction score of a head",
    "induction_score_shifted": "induction score of a head at its best distance",
}
#: Columns of the accuracy at one difficulty of a task: `accuracy_hops_8` covers the sequences of eight hops. Other
#: columns of a foreign table, such as `accuracy_top_5`, do not match.
GRADED = re.compile(r"accuracy_(hops|diameter)_(\d+)")


def count_phrase(count: str) -> str:
    """The count of N: 12·L·d², or the column of the table."""
    if count == "table":
        return "N is the table's own parameter count"
    return "N counts non-embedding parameters, 12·L·d²"


def noise_sentence(fit: Fit) -> str:
    """The source and the size of the noise estimate."""
    noise = fit.noise
    if not noise.get("known"):
        return "There is no noise estimate, so there are no intervals and no tests."
    size = f"±{digits(noise['sd'])} nats"
    if noise.get("source") == "residuals":
        return f"One seed per shape: the noise ({size}) is estimated from the residuals of the curves."
    return f"The noise of one seed is {size}, pooled over all shapes."


def crossing_sentence(item: Crossing, level: float) -> str:
    """The finding for one pair of depths."""
    deep, shallow = layers(item.deep), layers(item.shallow)
    smallest, largest = (human(end) for end in item.range or (0.0, 0.0))
    aside = f" ({NO_NOISE})" if item.reason == NO_NOISE else ""
    match item.status:
        case "bracketed":
            interval = f"{percent(level)}: {human_range(item.params_interval)}"
            return (
                f"{deep} overtake {shallow} at N ≈ {human(item.params or 0.0)} ({interval}), where the shallower "
                f"model is {digits(item.width or 0.0)} wide."
            )
        case "left_censored":
            return f"{deep} are ahead of {shallow} at every size measured, from N ≈ {smallest} on{aside}."
        case "right_censored":
            return f"{deep} do not overtake {shallow} up to N ≈ {largest}, the largest size measured{aside}."
        case "ambiguous":
            near = "" if item.params is None else f" near N ≈ {human(item.params)}"
            return f"Whether {deep} overtake {shallow}{near} is not settled: {item.reason}."
        case "insufficient":
            return f"{shallow} and {deep} cannot be compared: {item.reason}."


def law_sentence(fit: Fit) -> str:
    """The threshold law, or the reason why there is none."""
    law = fit.law
    if law.a is None or law.b is None or law.b_interval is None:
        return f"No threshold law: {law.reason}."
    text = f"Threshold law: {law_formula(law.a, law.b)}"
    if law.status == "not_converged":
        return f"{text}, but the fit did not converge ({law.reason}): do not use it."
    if len(law.depths) == 2:
        return f"{text} ({law.note or TWO_POINTS})."
    if rejected(law.p_value):
        return f"{text}; the crossings reject its form (p = {law.p_value:.1g}): do not use it."
    text += f", slope {percent(law.level)}: {ends(law.b_interval)}"
    if holds_zero(law.b_interval):
        text += "; the slope is compatible with zero"
    if law.status == "open":
        return f"{text}. The data bound it on one side only."
    return f"{text} ({law.note})." if law.note else f"{text}."


def holds_zero(interval: Interval) -> bool:
    """Whether an interval contains zero; an open end is unbounded."""
    low, high = interval
    return (low is None or low <= 0) and (high is None or high >= 0)


def law_formula(a: float, b: float) -> str:
    """`ln d = 2.50 + 0.3·L`."""
    return f"ln d = {a:.2f} {'+' if b >= 0 else '−'} {abs(b):.3g}·L"


#: Form of a law -> its name and its formula.
LAWS = {
    "log-linear": ("threshold law", "ln d = a + b·L"),
    "root": ("root law", "ln d = a + b·√L"),
    "power": ("power law", "ln d = a + b·ln L"),
    "additive": ("additive loss", "E + c_m·d^−α_m + c_l·L^−α_l"),
    "response": ("response surface", "loss quadratic in ln N and ln L"),
    BASELINE: ("nearest measured", "the depth that was best at the largest size seen"),
}


def law_name(form: str) -> str:
    """The name of a form of law."""
    return LAWS[form][0] if form in LAWS else form


def largest_size(fit: Fit) -> float | None:
    """The largest N measured; None if it is not known."""
    ranges = [item.range for item in fit.crossings] + [item.params_range for item in fit.surfaces]
    return max([item.params for item in fit.best] + [ends[1] for ends in ranges if ends], default=None)


def best_sentence(fit: Fit) -> str:
    """The best measured depth of each budget; neighbouring budgets with the same depth are joined."""
    if not fit.best:
        return "No budget has two depths that can be compared at one N, so there is no best shape."
    groups: list[tuple[tuple[int, ...], list[float]]] = []
    for item in fit.best:
        # The best depth, then those that lose next to nothing.
        near = (item.depth, *(depth for depth in measured_within(item) if depth != item.depth))
        if groups and groups[-1][0] == near:
            groups[-1][1].append(item.params)
        else:
            groups.append((near, [item.params]))
    parts = []
    for (depth, *others), sizes in groups:
        span = human(sizes[0]) if len(sizes) == 1 else human_range((sizes[0], sizes[-1]))
        flat = f" ({listed([str(other) for other in others])} within {WITHIN:g} nats)" if others else ""
        parts.append(f"{layers(depth)} at N ≈ {span}{flat}")
    compared, among = max(len(item.shapes) for item in fit.best), ""
    # In a table with one size per depth few depths can be compared at one N.
    if 2 * compared < len(_depths(fit)):
        among = f" among the depths that can be compared there (at most {compared})"
    return f"Lowest loss measured{among}: {', '.join(parts)}."


def _depths(fit: Fit) -> set[int]:
    return {depth for item in fit.crossings for depth in (item.shallow, item.deep)}


def surface_sentence(fit: Fit) -> str:
    """The best depths by the loss surfaces if there is no law; empty without a best depth with an interval."""
    ranges = [item.params_range for item in fit.surfaces if item.params_range]
    if fit.law.a is not None or not ranges or len(_depths(fit)) < DEPTHS_FOR_SURFACE:
        return ""
    low, high = (math.log10(end) for end in ranges[0])
    # The powers of ten inside the data, and the next one.
    parts, form = [], ""
    for power in range(math.ceil(low), math.floor(high) + 2):
        found, outside = fit.predict(10.0**power), power > high
        if not outside and (found.depth is None or found.unbounded):
            return ""
        if found.depth is None:
            continue
        notes = [ends(found.depth_interval)]
        if near := fit.near_optimal(found, found.depth_exact):
            notes.append(f"{near.depths_text} within {WITHIN:g} nats")
        if outside:
            notes.append("outside the data")
        parts.append(f"{digits(found.depth_exact or 0)} at N ≈ {human(10.0**power)} ({'; '.join(notes)})")
        form = found.laws[0]
    if not parts:
        return ""
    return (
        f"The {form} surface through all losses puts the best depth at {listed(parts)}; intervals at "
        f"{percent(fit.level)}, over every surface that the losses do not rule out."
    )


def beyond_sentence(fit: Fit) -> str:
    """The best depth at ten times the largest size, or why it is not determined; empty without a size."""
    largest = largest_size(fit)
    if largest is None:
        return ""
    found = fit.predict(REACH * largest)
    if found.depth is None or found.deeper_than_wide:
        return f"Beyond {human(largest)} parameters the best depth is not determined ({found.reason or 'no law'})."
    return (
        f"At {human(found.params)} parameters, {REACH:g} times the largest size: about {layers(found.depth)} × "
        f"{found.width} wide (depth {percent(fit.level)}: {ends(found.depth_interval)}), by the "
        f"{law_name(found.laws[0])}."
    )


def headlines(fit: Fit) -> list[str]:
    """The answer, most important sentence first."""
    about = [noise_sentence(fit)] if fit.noise.get("source") == "residuals" else []
    about += [fit.tokens.sentence] if fit.tokens.sentence else []
    before = [*filter(None, [used_sentence(fit)]), *(about if fit.tokens.rule == "unequal" else [])]
    about = about if fit.tokens.rule != "unequal" else []
    if not fit.crossings:
        return [*before, "There is one depth only; a crossing needs two.", best_sentence(fit), *about]
    if not fit.best and all(item.range is None for item in fit.crossings):
        depths = listed([str(depth) for depth in sorted(_depths(fit))])
        none = f"No two depths ({depths} layers) meet at similar sizes, so this table compares no depths; a crossing"
        return [*before, f"{none} needs several sizes of each depth, with a common range.", *about]
    use, surface = use_sentence(fit.crossings, fit.level), surface_sentence(fit)
    # Without a settled crossing the surface through all losses is the best answer, else the lowest loss measured.
    lines = [*before, *([use] if use else [text for text in (surface, best_sentence(fit)) if text])]
    lines += [shape_sentence(fit.best[-1])] if fit.best else []
    open_pairs = [item for item in fit.crossings if item.status == "ambiguous"]
    lines += [crossing_sentence(item, fit.level) for item in open_pairs[:MAX_SENTENCES]]
    missing = [item for item in fit.crossings if item.status == "insufficient"]
    if missing:
        lines.append(
            f"{len(missing)} of {len(fit.crossings)} pairs of neighbouring depths cannot be compared: each depth needs "
            "two sizes, and both need a common range."
        )
    return [*lines, *filter(None, [beyond_sentence(fit), surface if use else ""]), *about]


def used_sentence(fit: Fit) -> str:
    """How many rows are used, and why the others are not; empty from `MOSTLY` of them on."""
    count, entered = fit.used + len(fit.left_out), fit.used + fit.merged
    if not count or entered >= MOSTLY * count:
        return ""
    return f"{entered} of {count} rows are used; left out: {reasons_phrase(fit)}."


def reasons_phrase(fit: Fit) -> str:
    """The most frequent reasons of the rows left out, each with its number of rows."""
    reasons = reason_counts(fit)
    parts = [f"{number} × {reason}" for reason, number in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        parts.append(f"and {counted(len(reasons) - MOST_REASONS, 'other reason')}")
    return "; ".join(parts)


def reason_counts(fit: Fit) -> list[tuple[str, int]]:
    """The reasons of the rows left out with the number of their rows, the most frequent first.

    Reasons that differ in their numbers only are one, worded as the first of them.
    """
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for item in fit.left_out:
        reason = str(item["reason"])
        kind = re.sub(r"\d[\d.,]*(?:e[+-]?\d+)?", "#", reason)
        counts[first.setdefault(kind, reason)] += 1
    return counts.most_common()


def answers(fit: Fit) -> list[str]:
    """What was found, and what to do next."""
    return [*findings(fit), *next_steps(fit)]


def findings(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, and the check of the learning rate."""
    check = fit.learning_rate
    checked = [check.sentence] if check and check.checked else []
    return [*score_sentences(fit), *headlines(fit), *checked]


def next_steps(fit: Fit) -> list[str]:
    """A deeper model if the deepest one is the best, and the check of the learning rate, each with its cost."""
    check = fit.learning_rate
    steps = [fit.next_depth, check if check and not check.checked else None]
    return [step.sentence for step in steps if step]


def score_sentences(fit: Fit) -> list[str]:
    """The depth that each difficulty of a task needs, and the best mean score of each depth."""
    graded = graded_accuracy(fit)
    sentences = [needed_sentence(*graded)] if graded else []
    for name, title in SCORES.items():
        data = accuracy_data(fit, name)
        if data is not None:
            best = data.loc[data.groupby("depth")["mean"].idxmax()].to_dict("records")
            parts = [f"{digits(row['mean'], 3)} with {layers(int(row['depth']))}" for row in best]
            sentences.append(f"Best mean {title}: {', '.join(parts)}.")
    return sentences


def accuracy_data(fit: Fit, name: str = "accuracy") -> pd.DataFrame | None:
    """Depth, width, params, seeds, mean, low, high of one of `SCORES` for each shape; None without any."""
    rows = _rows_with(fit, name)
    if rows.empty:
        return None
    groups = rows.groupby(["depth", "width", "params"], sort=True)[name]
    return groups.agg(seeds="size", mean="mean", low="min", high="max").reset_index()


def graded_accuracy(fit: Fit) -> tuple[str, MeasureData] | None:
    """The key that makes the task harder, and the accuracy against depth of each difficulty.

    None if the table has fewer than two difficulties, or the fit was read from a file.
    """
    columns = () if fit.study is None else fit.study.rows.columns
    found = [match for name in columns if (match := GRADED.fullmatch(str(name)))]
    tables: list[tuple[Value, pd.DataFrame | None]] = []
    for match in sorted(found, key=lambda match: int(match[2])):
        rows = _rows_with(fit, match[0])
        # A task has one key of difficulty; a foreign table may have columns of another.
        if match[1] == found[0][1] and len(rows):
            tables.append((int(match[2]), rows.assign(accuracy=rows[match[0]])))
    data = measure_by_value(tables, "accuracy", TARGETS["accuracy"]) if len(tables) > 1 else None
    return None if data is None else (found[0][1], data)


def _rows_with(fit: Fit, name: str) -> pd.DataFrame:
    """The compared rows with a number from 0 to 1 in the column; a foreign table may hold percent there."""
    if fit.study is None or name not in fit.study.rows:
        return pd.DataFrame()
    rows = fit.study.rows
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    return rows.assign(**{name: numbers})[(numbers >= 0) & (numbers <= 1)]


def needed_sentence(key: str, data: MeasureData) -> str:
    """The depth that each value needs to reach the target; empty without a target."""
    if data.target is None or data.needed.empty:
        return ""
    texts = [
        f"no depth up to {row['deepest']}" if math.isnan(row["depth"]) else layers(int(row["depth"]))
        for row in data.needed.to_dict("records")
    ]
    parts = grouped(texts, data.needed["value"], f"{key} ")
    return f"For a mean {data.name} of at least {data.target:g}: {', '.join(parts)}."


def grouped(texts: Iterable[str], values: Iterable[Value], key: str = "") -> list[str]:
    """`TEXT at 1, 2 and 4` for consecutive values of equal text; `key` stands before the values."""
    groups = itertools.groupby(zip(texts, values, strict=True), lambda pair: pair[0])
    return [f"{text} at {key}{listed([label(value) for _, value in group])}" for text, group in groups]
