"""What a fit says about what is missing: a depth, sizes, or the check of the learning rate."""

from typing import Any

from analysis.fit.next_runs import AddedRuns, NextSizes
from analysis.fit.rate_check import RateCheck
from analysis.units import BudgetUnit, budget_text
from core.files import to_json
from core.numbers import counted, duration, layers, listed, listed_layers, scientific

#: How to check the learning rate of a table of runs that has no spec.
ADD_RATES = (
    "train the shapes next to each crossing again at half and at double their learning rate, and add them as rows "
    "whose column `purpose` is `sensitivity`"
)


def next_depth_sentence(depth: int, runs: AddedRuns | None) -> str:
    """The depth to train next."""
    cost = _runs_and_flops(runs) if runs else ""
    add = f"; add it with `{runs.how}`" if runs and runs.how else ""
    return f"Next: train {layers(depth)} at the same sizes{cost}{add}."


def next_sizes_sentence(sizes: NextSizes, runs: AddedRuns | None) -> str:
    """The sizes to train next."""
    sides = (("smallest", "smaller", sizes.smaller), ("largest", "larger", sizes.larger))
    ends = [f"at the {end} size of {_places(places, sizes.unit)}" for end, _, places in sides if places]
    wanted = " and ".join(word for _, word, places in sides if places)
    cost = add = why = ""
    if runs and runs.refused:
        why = f" The spec does not allow them as it is: {runs.refused}"
    elif runs:
        cost = _runs_and_flops(runs)
        add = f"; add them with `{runs.how}`" if runs.how else ""
    return f"Next: train {wanted} sizes{cost}, because the least loss is {listed(ends)}{add}.{why}"


def _runs_and_flops(runs: AddedRuns) -> str:
    flops = f", {scientific(runs.flops)} FLOPs" if runs.flops else ""
    return f" ({counted(runs.runs, 'run')}{flops})"


def _places(places: tuple[tuple[int, float], ...], unit: BudgetUnit) -> str:
    """`2 and 4 layers at 1e15 FLOPs and 4 layers at 1e16 FLOPs`."""
    budgets = dict.fromkeys(budget for _, budget in places)
    each = ((listed_layers([depth for depth, at in places if at == budget]), budget) for budget in budgets)
    return listed([f"{depths} at {budget_text(budget, unit)}" for depths, budget in each])


def rate_sentence(check: RateCheck, runs: AddedRuns | None) -> str:
    """The state of the check of the learning rate, and what the missing part of it takes."""
    missing = [pair for pair in check.pairs if pair.reasons]
    if not missing:
        shifted = any(pair.shift for pair in check.pairs)
        words = "; the intervals of crossings include the shift to the best rates" if shifted else ""
        return f"The learning rate is checked: rates bracket the best one at every crossing{words}."
    names = listed([f"{pair.shallow} → {pair.deep}" for pair in missing])
    where = f" for {names}" if len(missing) < len(check.pairs) else ""
    cost, how = "", ADD_RATES
    if runs:
        time = "" if runs.seconds is None else f", about {duration(runs.seconds)}"
        cost = f" ({counted(runs.runs, 'run')}{time})"
        how = f"add it with `{runs.how}`" if runs.how else how
    return f"The learning rate is not checked{where}: {how}{cost}."


def rate_document(check: RateCheck, runs: AddedRuns | None) -> dict[str, Any]:
    """The check of the learning rate as JSON types, with its sentence."""
    return {**to_json(check), "sentence": rate_sentence(check, runs)}
