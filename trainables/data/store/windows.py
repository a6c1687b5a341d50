"""Number of windows of a context in a split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainables.errors import DataError


def window_count(tokens: int, context: int, row: int | None) -> int:
    """Return the windows of a split of `tokens` tokens; `row` is the length of a row if the split is made of rows."""
    return tokens // row if row else max(0, tokens - 1) // context


def too_short(where: str | Path, split: str, tokens: int, context: int) -> DataError:
    """Return the error for a split that does not hold one window."""
    share = (
        "data.validation_fraction" if split == "validation" else "max_tokens or the share kept for training"
    )
    return DataError(
        f"the {split} split in {where} has {tokens} tokens, fewer than one window of {context} + 1; give more "
        f"text, raise {share}, or lower the context"
    )


def check_length(manifest: Mapping[str, Any], where: str | Path, context: int) -> None:
    """Refuse a store one of whose splits does not hold one window.

    Raises:
        DataError: names the split.
    """
    for split, tokens in manifest["tokens"].items():
        if not window_count(tokens, context, manifest["row"]):
            raise too_short(where, split, tokens, context)
