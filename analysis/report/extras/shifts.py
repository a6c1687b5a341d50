"""Table and sentence of the shifts of crossings when a key is changed: sensitivity runs and series."""

import math
from collections.abc import Sequence

from analysis.fit.crossing_shift import LEARNING_RATE, ChangedStudy, CrossingShift, moved
from analysis.fit.measures import Value, label
from analysis.numbers import digits, ends, factors, percent, short, short_range, times
from analysis.tables import Column, Table

#: Multiples of a learning rate that have a name.
_RATES = {
    0.5: "half the learning rate",
    1.0: "the study's own learning rate",
    2.0: "double the learning rate",
}
#: How the shifts of sensitivity runs are estimated.
PAIRED_NOTE = (
    "Cells around each crossing were trained again at other learning rates with the same seeds. Their losses enter no "
    "crossing. The differences from the rows of the same shape and seed change the gap between the two depths, and the "
    "slope of the gap gives the shift of the crossing."
)
#: Shifts that the sentence names; the table has all.
MOST_NAMED = 3


def condition(key: str, value: Value) -> str:
    """A value of a key in words, such as `half the learning rate` or `training.parametrisation mup`."""
    if key == LEARNING_RATE:
        return _RATES.get(float(value), f"{label(value)} times the learning rate")
    return f"{key} {label(value)}"


def factor_phrase(pair: CrossingShift, level: float) -> str:
    """A shift as a factor of N, such as `1.8 times the N (95 %: 1.2 to 2.6)`."""
    interval = factors(pair.shift_interval)
    bounds = "no noise estimate" if interval is None else f"{percent(level)}: {ends(interval, 3)}"
    if pair.shift is None:
        return f"another N ({bounds} times; {pair.reason})" if pair.reason else f"another N ({bounds} times)"
    return f"{digits(math.exp(pair.shift), 3)} times the N ({bounds})"


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
    how = f"{percent(first.level)}, {len(bounded)} comparisons together" if together else percent(first.level)
    if not found:
        limit = _excluded([end for pair in bounded for end in pair.shift_interval or ()])
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


def _excluded(limits: Sequence[float | None]) -> str:
    """The largest shift that the ends of the intervals, in ln N, leave possible."""
    if None in limits:
        return ", but the size of a shift is not bounded"
    most = max(abs(end or 0.0) for end in limits)
    return f"; a shift by more than a factor {digits(math.exp(most))} of N is excluded"


def shifts_table(studies: Sequence[ChangedStudy]) -> Table | None:
    """The shift of each crossing when one key is changed; None without a pair of depths to compare."""
    pairs = [(study, pair) for study in studies for pair in study.pairs]
    if not pairs:
        return None
    first = studies[0]
    paired = first.key == LEARNING_RATE
    interval = percent(first.level)
    own = f"N at {label(first.base)}{' ×' * paired}"
    columns = (
        Column("pair", right=False),
        Column(first.key, right=False),
        Column(own, where="page"),
        Column(f"{interval}, own", under=own, where="page"),
        Column("N, changed", where="page"),
        Column(f"{interval}, changed", under="N, changed", where="page"),
        Column("factor of N", f"{interval} interval"),
        Column(interval, under="factor of N"),
        Column("runs"),
        Column("diverged", under="runs", small="{} diverged"),
        Column("why", right=False, under=first.key),
    )
    rows = [
        (
            f"{pair.shallow} → {pair.deep}",
            f"{label(study.value)}{' ×' * paired}",
            _place(pair.params, pair.status),
            short_range(pair.params_interval),
            _place(pair.changed_params, pair.changed_status),
            short_range(pair.changed_interval),
            None if pair.shift is None else times(pair.shift),
            "none" if (bounds := factors(pair.shift_interval)) is None else ends(bounds, 3),
            str(pair.runs or study.runs),
            str(pair.diverged) if pair.diverged else None,
            pair.reason,
        )
        for study, pair in pairs
    ]
    title = f"shifts of the crossings against {condition(first.key, first.base)}"
    return Table(title, columns, rows, PAIRED_NOTE if paired else _independent_note(studies))


def _place(params: float | None, status: str) -> str:
    return status.replace("_", "-") if params is None else short(params)


def _independent_note(studies: Sequence[ChangedStudy]) -> str:
    slopes = [
        f" The slope of the law changes by {study.slope_change:+.3g} at {label(study.value)}."
        for study in studies
        if study.slope_change is not None
    ]
    start = "The estimate assumes independent studies; shared seeds and data make the true error smaller."
    return "".join([start, *slopes])
