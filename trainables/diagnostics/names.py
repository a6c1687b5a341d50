"""Names of the diagnostics, and the layouts and models that support them."""

from collections.abc import Sequence
from typing import Literal, get_args

from trainables.cell import Recipe
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.model.family import family

Diagnostic = Literal["rank", "layer_drop", "induction", "gradients"]
DIAGNOSTICS: tuple[Diagnostic, ...] = get_args(Diagnostic)


def check_diagnostics(names: Sequence[str], layout: Layout, recipe: Recipe) -> None:
    """Check that the names exist and that the layout and the model support them.

    Raises:
        InputError: names the conflict and the fix.
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
            f"{asked} need whole layers, and with tensor_parallel {layout.tensor_parallel} each rank has a part "
            "of every layer. Remove the diagnostics, or set tensor_parallel to 1."
        )
    if layout.zero == 3:
        raise InputError(
            f"{asked} need whole layers, and ZeRO stage 3 keeps a part of every layer on each rank. Remove the "
            "diagnostics, or set zero to 0, 1 or 2."
        )
