"""The diagnostics there are, and where they can be had."""

from collections.abc import Sequence
from typing import Literal, get_args

from trainables.cell import Recipe
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.model.family import family

Diagnostic = Literal["rank", "layer_drop", "induction", "gradients"]
DIAGNOSTICS: tuple[Diagnostic, ...] = get_args(Diagnostic)


def check_diagnostics(names: Sequence[str], layout: Layout, recipe: Recipe) -> None:
    """Refuse diagnostics where no rank has whole layers, or there is nothing to see, and names that are none.

    Raises:
        InputError: names what does not go together, and the way out.
    """
    unknown = sorted(set(names) - set(DIAGNOSTICS))
    if unknown:
        raise InputError(
            f"There is no diagnostic {', '.join(unknown)}; choose among {', '.join(DIAGNOSTICS)}."
        )
    if not names:
        return
    missing = sorted(set(names) - family(recipe.network).diagnostics)
    if missing:
        raise InputError(
            f"`network: {recipe.network}` has no diagnostic {', '.join(missing)}: its blocks lack what is measured. "
            "Remove it from `diagnostics`, or choose `network: gpt2`."
        )
    asked = f"diagnostics ({', '.join(names)})"
    if layout.tensor_parallel > 1:
        raise InputError(
            f"{asked} look into whole layers, and with tensor_parallel {layout.tensor_parallel} each rank has a part "
            "of every layer. Take the diagnostics out, or set tensor_parallel to 1."
        )
    if layout.zero == 3:
        raise InputError(
            f"{asked} look into whole layers, and ZeRO stage 3 keeps a part of every layer on each rank. Take the "
            "diagnostics out, or set zero to 0, 1 or 2."
        )
