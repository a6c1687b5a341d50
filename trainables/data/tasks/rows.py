"""Training and validation rows of a task."""

from collections.abc import Iterator

import numpy as np

from trainables.data.tasks import connectivity, expressions, hops, repeats
from trainables.data.tasks.random_rows import ROWS_AT_A_TIME, Draws, Symbols, one_side
from trainables.data.tasks.spec import UNSCORED, AnyTask, ConnectivityData, HopsData, RepeatsData
from trainables.errors import InputError


def rows(spec: AnyTask, context: int) -> tuple[Iterator[Symbols], Iterator[Symbols]]:
    """Training and validation rows in pieces of int64 [n, 2·context]: the inputs, then the target of each.

    Targets that are not scored are the id one past the vocabulary. Rows of equal inputs are on one side.

    Raises:
        InputError: the context does not fit; or, while they are drawn, there are too few different rows.
    """
    check_task(spec, context)
    return _side(spec, context, validation=False), _side(spec, context, validation=True)


def check_task(spec: AnyTask, context: int) -> None:
    """Refuse a context that cannot hold a task.

    Raises:
        InputError: says why, and the way out.
    """
    misfit = spec.misfit(context)
    if misfit:
        raise InputError(misfit)


def draw(spec: AnyTask, context: int, seed: str, count: int) -> Symbols:
    """At most `count` rows, int64 [n, 2·context], the same for the same seed on every machine."""
    draws = Draws(seed)
    if isinstance(spec, RepeatsData):
        inputs, targets = repeats.draw(spec, context, draws, count)
    elif isinstance(spec, HopsData):
        inputs, targets = hops.draw(spec, context, draws, count)
    elif isinstance(spec, ConnectivityData):
        inputs, targets = connectivity.draw(spec, context, draws, count)
    else:
        inputs, targets = expressions.draw(spec, context, draws, count)
    return np.concatenate([inputs, np.where(targets == UNSCORED, spec.ids, targets)], axis=1)


def _side(spec: AnyTask, context: int, *, validation: bool) -> Iterator[Symbols]:
    sizes = (spec.validation_sequences, spec.sequences)
    wanted, others = sizes if validation else sizes[::-1]
    return one_side(
        lambda piece: draw(spec, context, f"{spec.kind} {spec.draw_seed} {piece}", ROWS_AT_A_TIME),
        wanted,
        others,
        validation=validation,
        content=context,
        few=f"the task `{spec.kind}` has too few different sequences for two separate splits; ask for fewer by "
        "`sequences` and `validation_sequences`, or make the task larger",
    )
