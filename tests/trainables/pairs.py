"""Few cases that hold every pair of values: most defects of combined options show with two of them."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Case = tuple[Any, ...]


def pairs(cases: Iterable[Case], apart: Sequence[tuple[int, int]] = ()) -> set[tuple[Any, ...]]:
    """All pairs of values of each case, every value with its place; none of the places that stand `apart`."""
    return {
        ((i, case[i]), (j, case[j]))
        for case in cases
        for i, j in itertools.combinations(range(len(case)), 2)
        if (i, j) not in apart
    }


def cover(
    groups: Iterable[Case],
    options: Sequence[Case],
    is_feasible: Callable[[Case], bool],
    named: Sequence[Case] = (),
    apart: Sequence[tuple[int, int]] = (),
) -> list[Case]:
    """One case of each group, in their order: the group's values and those options that add most pairs.

    - `groups`: the first values of each case.
    - `options`: the last values, the first of which are preferred among equals.
    - `named`: cases that must be there; of their groups no other is taken.
    - `apart`: places whose pairs need not be there.
    """
    found, seen = [], pairs(named, apart)
    for group in groups:
        possible = list(filter(is_feasible, ((*group, *rest) for rest in options)))
        best = max(
            [case for case in named if case in possible] or possible,
            key=lambda case: len(pairs([case], apart) - seen),
        )
        seen |= pairs([best], apart)
        found.append(best)
    return found
