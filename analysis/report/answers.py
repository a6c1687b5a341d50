"""The answers of a study in plain sentences, and what its search found."""

import math

from analysis.design.history import SearchData
from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.numbers import digits
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import by_key, shift_sentence


def answers(fit: Fit) -> list[str]:
    """Scores of tasks, the headlines of the fit, and how far the crossings move when a key is changed."""
    shifts = [shift_sentence(studies) for studies in by_key(fit.shifts).values()]
    return [*score_sentences(fit), *headlines(fit), *shifts]


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
