"""Measures of a model's layers on a few sequences, taken without changing the training."""

from collections.abc import Sequence
from typing import Literal, get_args

from core.errors import InputError
from trainables.cell import Recipe
from trainables.layout import Layout
from trainables.model.family import family

Diagnostic = Literal["rank", "layer_drop", "induction", "attention"]
DIAGNOSTICS: tuple[Diagnostic, ...] = get_args(Diagnostic)


def check_diagnostics(names: Sequence[str], layout: Layout, recipe: Recipe) -> None:
    """Raise an InputError if the layout or model does not support a diagnostic."""
    if not names:
        return
    missing = sorted(set(names) - family(recipe.network).diagnostics)
    if missing:
        raise InputError(
            f"`network: {recipe.network}` has no diagnostic {', '.join(missing)}: its blocks lack what is measured. "
            "Remove it from `diagnostics`, or choose `network: gpt2`."
        )
    if layout.tensor_parallel > 1 or layout.zero == 3:
        raise InputError(
            f"diagnostics ({', '.join(names)}) need whole layers, and each rank has a part of every layer with "
            f"tensor_parallel {layout.tensor_parallel} and zero {layout.zero}. Remove the diagnostics, or set "
            "tensor_parallel to 1 and zero to 0, 1 or 2."
        )
