"""The answer of a study in sentences: scores of a task, headlines, shifts of crossings, next steps."""

import itertools
import math
import re
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.fit.crossing_shift import LEARNING_RATE, ChangedStudy, CrossingShift, moved
from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, Value, label, measure_by_value
from analysis.fit.sentences import headlines
from analysis.intervals import Interval
from analysis.numbers import digits, ends, layers, listed, percent

#: Measures other than the loss in a run table, for which more is better, and their names in sentences.
SCORES = {
    "accuracy": "accuracy",
    "induction_score": "induction score of a head",
    "induction_score_shifted": "induction score of a head at its best distance",
}
#: Columns of the accuracy at one difficulty of a task: `accuracy_hops_8` covers the sequences of eight hops. Other
#: columns of a foreign table, such as `accuracy_top_5`, do not match.
GRADED = re.compile(r"accuracy_(hops|diameter)_(\d+)")
#: Multiples of a learning rate that have a name.
RATES = {0.5: "half the learning rate", 1.0: "the study's own learning rate", 2.0: "double the learning rate"}
#: Shifts that the sentence names; the table has all.
MOST_NAMED = 3


def answers(fit: Fit) -> list[str]:
    """What was found, and what to do next."""
    return [*findings(fit), *next_steps(fit)]


def findings(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, and the shifts at other learning rates."""
    check = fit.learning_rate
    checked = check.sentence if check and check.checked else ""
    return [*score_sentences(fit), *headlines(fit), *filter(None, [shift_sentence(fit.shifts), checked])]


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


def condition(key: str, value: Value) -> str:
    """A value of a key in words, such as `half the learning rate` or `training.parametrisation mup`."""
    if key == LEARNING_RATE:
        return RATES.get(float(value), f"{label(value)} times the learning rate")
    return f"{key} {label(value)}"


def factors(interval: Interval | None) -> str:
    """An interval of ln N as one of factors of N, such as `1.2 to 2.6`; `none` without one."""
    if interval is None:
        return "none"
    low, high = (None if end is None else math.exp(end) for end in interval)
    return ends((low, high), 3)


def factor_phrase(pair: CrossingShift, level: float) -> str:
    """A shift as a factor of N, such as `1.8 times the N (95 %: 1.2 to 2.6)`."""
    bounds = f"{percent(level)}: {factors(pair.shift_interval)}"
    if pair.shift_interval is None:
        bounds = "no noise estimate"
    if pair.shift is not None:
        return f"{digits(math.exp(pair.shift), 3)} times the N ({bounds})"
    return f"another N ({bounds} times; {pair.reason})" if pair.reason else f"another N ({bounds} times)"


def shift_sentence(studies: Sequence[ChangedStudy]) -> str:
    """Whether a change of one key moves the crossings; empty without a study of that key."""
    if not studies:
        return ""
    first = studies[0]
    pairs = [pair for study in studies for pair in study.pairs]
    bounded = [pair for pair in pairs if pair.shift_interval is not None]
    start = condition(first.key, first.base)
    changed = f"other values of the {first.key}" if len(studies) > 1 else condition(first.key, first.value)
    if not bounded:
        why = (
            "there is no noise estimate"
            if any(pair.shift is not None for pair in pairs)
            else "no pair of depths has a crossing on both sides"
        )
        return f"Whether crossings move between {start} and {changed} is unknown: {why}."
    found = moved(studies)
    together = any(pair.p_value is not None for pair in pairs)
    if not found:
        how = percent(first.level) + (f", {len(bounded)} comparisons together" if together else "")
        limits = [end for pair in bounded for end in pair.shift_interval or ()]
        most = math.exp(max(abs(end or 0.0) for end in limits))
        limit = f"; a shift by more than a factor {digits(most)} of N is excluded"
        limit = ", but the size of a shift is not bounded" if None in limits else limit
        return f"No crossing moves beyond the noise between {start} and {changed} ({how}){limit}."
    parts = [
        f"{pair.shallow} → {pair.deep} at {condition(study.key, study.value)} to {factor_phrase(pair, study.level)}"
        for study, pair in found[:MOST_NAMED]
    ]
    more = f"; {len(found) - MOST_NAMED} more are in the table" if len(found) > MOST_NAMED else ""
    share = f"{len(found)} of {len(bounded)} comparisons"
    sentence = f"Against {start}, crossings move in {share}: {'; '.join(parts)}{more}."
    if together or len(bounded) == 1:
        return sentence
    chance = f"{100 * (1 - first.level ** len(bounded)):.0f} %"
    return f"{sentence} (By chance alone one of {len(bounded)} stands out in up to {chance} of studies.)"
