"""What a search, its sensitivity arm and a contrast of parametrisations found, in plain words."""

import math
from collections.abc import Sequence

from analysis.design.history import SearchData
from analysis.fit.crossing_shift import Contrast, Moved
from analysis.fit.document import Fit
from analysis.fit.learning_rate_shift import Shift, outstanding
from analysis.fit.sentences import ends, headlines, percent
from analysis.law.crossings import Interval
from analysis.numbers import digits
from analysis.report.extras.accuracy import score_sentences

#: Multiples of a learning rate that have a name.
_FACTORS = {0.5: "half", 2.0: "double"}


def answers(fit: Fit) -> list[str]:
    """What the models of a task can do, the headlines, and what other rates and parametrisations do to the crossings."""
    moves = sensitivity_sentence(fit.sensitivity, fit.level)
    return [
        *score_sentences(fit),
        *headlines(fit),
        *([moves] if moves else []),
        *(contrast_sentence(item) for item in fit.contrasts),
    ]


def factor_phrase(factor: float) -> str:
    """`half the learning rate`, `3 times the learning rate`."""
    return f"{_FACTORS.get(factor, f'{factor:g} times')} the learning rate"


def factor_interval(interval: Interval | None) -> Interval | None:
    """An interval of ln N as one of factors of N."""
    if interval is None:
        return None
    low, high = interval
    return (None if low is None else math.exp(low), None if high is None else math.exp(high))


def shift_sentence(item: Shift, level: float) -> str:
    """What one multiple of the learning rate does to one crossing."""
    start = f"At {factor_phrase(item.factor)} depth {item.deep} overtakes depth {item.shallow}"
    interval = factor_interval(item.shift_interval)
    if item.shift is None:
        told = f" ({percent(level)}: {ends(interval, 3)} times the N)" if interval and any(interval) else ""
        pair = f"{item.shallow} → {item.deep}"
        return f"At {factor_phrase(item.factor)} the shift of {pair} is not known: {item.reason}{told}."
    known = f" ({percent(level)}: {ends(interval, 3)})" if interval is not None else " (no noise estimate)"
    return f"{start} at {digits(math.exp(item.shift), 3)} times the N{known}."


def sensitivity_sentence(shifts: Sequence[Shift], level: float) -> str:
    """The whole arm in one sentence or two; empty without an arm."""
    if not shifts:
        return ""
    pairs = sorted({(item.shallow, item.deep) for item in shifts})
    moved = outstanding(shifts, level)
    told = [item for item in moved if item.shift is not None]
    if told:
        most = max(told, key=lambda item: abs(item.shift or 0.0))
        count = len({(item.shallow, item.deep) for item in moved})
        return (
            f"Another learning rate moves {count} of {len(pairs)} crossings. "
            f"The largest move: {_lower(shift_sentence(most, level))}"
        )
    if moved:
        return f"Another learning rate moves {moved[0].shallow} → {moved[0].deep}: {moved[0].reason}."
    bounds = [end for item in shifts for end in item.shift_interval or (None, None)]
    if all(item.shift_interval is None for item in shifts):
        return (
            "There is no noise estimate, so what another learning rate does to the crossings cannot be told."
        )
    together = f"{percent(level)}, {len(shifts)} comparisons together" if len(shifts) > 1 else percent(level)
    return f"No crossing moves with the learning rate beyond the noise ({together}){_excluded(bounds)}."


def contrast_sentence(found: Contrast) -> str:
    """Whether the threshold is a property of the shape or of the tuning, as far as two studies tell."""
    both = [item for item in found.pairs if item.shift_interval != (None, None)]
    if not both:
        return (
            f"Between {found.own} and {found.other} no crossing can be compared, because no pair of depths is settled "
            "under both: whether the threshold is a property of the shape or of the tuning stays open."
        )
    moved = [item for item in both if item.significant]
    if moved:
        parts = "; ".join(f"{item.shallow} → {item.deep} {ratio_phrase(item, found.level)}" for item in moved)
        rest = len(both) - len(moved)
        still = f" {rest} other{'s do' if rest > 1 else ' does'} not move beyond the noise." if rest else ""
        chance = f"{100 * (1 - found.level ** len(both)):.0f} %"
        doubt = (
            f" (One of {len(both)} stands out by chance in up to {chance} of studies.)"
            if len(both) > 1
            else ""
        )
        return (
            f"From {found.own} to {found.other} {len(moved)} of {len(both)} crossings move: {parts}.{still} There the "
            f"threshold is a property of the tuning too, not of the shape alone.{doubt}"
        )
    limit = _excluded([end for item in both for end in item.shift_interval])
    return (
        f"Between {found.own} and {found.other} no crossing moves beyond the noise ({percent(found.level)}){limit}: "
        "nothing here says that the threshold is a property of the tuning."
    )


def search_sentence(data: SearchData, ended: str) -> str:
    """How many cells a search trained, for how much certainty, and what a grid would be expected to need for it."""
    cells, spent = len(data.cells), float(data.cells["flops"].iloc[-1])
    last = data.steps.iloc[-1]
    start = f"The search trained {cells} cell{'s' * (cells > 1)} for {flops_phrase(spent)}"
    why = f" {ended[:1].upper()}{ended[1:]}" if ended else ""
    if not math.isfinite(last["halfwidth"]):
        return f"{start}, and has no closed interval yet.{why}"
    known = f"{start}; the half-width of its interval is {digits(last['halfwidth'])}."
    return f"{known}{why} {_against_grid(data, spent, float(last['halfwidth']))}".strip()


def _against_grid(data: SearchData, spent: float, halfwidth: float) -> str:
    """Where the expected line of the grid comes as low as was asked for; empty where there is no such line.

    A search ends where its interval happens to be narrow, so it is held to the half-width asked for and not to its own.
    """
    grid = data.grid
    if grid.empty:
        return ""
    wanted = halfwidth if data.stop_when is None else max(halfwidth, data.stop_when)
    what = "that" if wanted == halfwidth else f"the {digits(wanted)} asked for"
    enough = grid[grid["halfwidth"] <= wanted]
    if enough.empty:
        last = grid.iloc[-1]
        seeds = int(last["seeds"])
        return (
            f"A grid of the same shapes is not expected to reach {what} with {seeds} seed{'s' * (seeds > 1)} "
            f"({flops_phrase(float(last['flops']))})."
        )
    first = enough.iloc[0]
    seeds = int(first["seeds"])
    share = digits(100 * spent / float(first["flops"]), 1)
    return (
        f"A grid of the same shapes is expected to need {seeds} seed{'s' * (seeds > 1)} for {what}, "
        f"{flops_phrase(float(first['flops']))}: the search took about {share} % of it."
    )


def flops_phrase(value: float) -> str:
    """`6.5e12 training FLOPs`."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)} training FLOPs"


def ratio_phrase(item: Moved, level: float) -> str:
    """`at 1.8 times the N (95 %: 1.2 to 2.6)`."""
    interval = factor_interval(item.shift_interval)
    assert interval is not None
    if item.shift is None:
        return f"at another N ({percent(level)}: {ends(interval, 3)} times ours)"
    return f"at {digits(math.exp(item.shift), 3)} times the N ({percent(level)}: {ends(interval, 3)})"


def _excluded(ends_: Sequence[float | None]) -> str:
    """How far a crossing might have moved unseen, from the ends of all intervals of its shift in ln N."""
    if None in ends_:
        return ", but how far one might is not bounded"
    most = max(abs(end or 0.0) for end in ends_)
    return f"; a move by more than a factor {digits(math.exp(most))} of N is excluded"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
