"""What a fit says about what is missing: a depth, sizes, or the check of the learning rate."""

from typing import Any

from analysis.fit.next_runs import NextDepth, NextSizes
from analysis.fit.rate_check import RateCheck
from core.files import to_json
from core.numbers import counted, duration, layers, listed, listed_layers, scientific


def next_depth_sentence(step: NextDepth) -> str:
    """The depth to train next."""
    cost = counted(step.runs, "run") + (f", {scientific(step.flops)} FLOPs" if step.flops else "")
    add = f"; add it with `{step.how}`" if step.how else ""
    return f"Next: train {layers(step.depth)} at the same sizes ({cost}){add}."


def next_sizes_sentence(step: NextSizes) -> str:
    """The sizes to train next."""
    sides = (("smallest", "smaller", step.smaller), ("largest", "larger", step.larger))
    ends = [f"at the {end} size of {_places(places)}" for end, _, places in sides if places]
    wanted = " and ".join(word for _, word, places in sides if places)
    cost = f" ({counted(step.runs, 'run')}, {scientific(step.flops)} FLOPs)" if step.flops else ""
    add = f"; add them with `{step.how}`" if step.how else ""
    why = f" The spec does not allow them as it is: {step.refused}" if step.refused else ""
    return f"Next: train {wanted} sizes{cost}, because the least loss is {listed(ends)}{add}.{why}"


def _places(places: tuple[tuple[int, float], ...]) -> str:
    """`2 and 4 layers at 1e15 FLOPs and 4 layers at 1e16 FLOPs`."""
    computes = dict.fromkeys(flops for _, flops in places)
    each = ((listed_layers([depth for depth, at in places if at == flops]), flops) for flops in computes)
    return listed([f"{depths} at {scientific(flops)} FLOPs" for depths, flops in each])


def rate_sentence(check: RateCheck) -> str:
    """The state of the check of the learning rate, and what the missing part of it takes."""
    missing = [pair for pair in check.pairs if pair.reasons]
    if not missing:
        shifted = any(pair.shift for pair in check.pairs)
        words = "; the intervals of crossings include the shift to the best rates" if shifted else ""
        return f"The learning rate is checked: rates bracket the best one at every crossing{words}."
    names = listed([f"{pair.shallow} → {pair.deep}" for pair in missing])
    where = f" for {names}" if len(missing) < len(check.pairs) else ""
    cost = "" if check.seconds is None else f", about {duration(check.seconds)}"
    return f"The learning rate is not checked{where}: {check.how} ({counted(check.runs, 'run')}{cost})."


def rate_document(check: RateCheck) -> dict[str, Any]:
    """The check of the learning rate as JSON types, with its sentence."""
    return {**to_json(check), "sentence": rate_sentence(check)}
