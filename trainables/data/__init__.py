"""Corpora, tokenizers, the packed token store, and batches as a pure function of (seed, step).

What the rest of the project needs is named here and imported on first use, so that reading a spec or a plan
loads neither numpy nor `datasets`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainables.data.packing.data_key import data_key, vocabulary_size
    from trainables.data.store.batches import batch, validation_batches
    from trainables.data.store.open import TokenStore, open_store

_HOMES = {
    "batch": "store.batches",
    "validation_batches": "store.batches",
    "data_key": "packing.data_key",
    "vocabulary_size": "packing.data_key",
    "TokenStore": "store.open",
    "open_store": "store.open",
}

__all__ = ["TokenStore", "batch", "data_key", "open_store", "validation_batches", "vocabulary_size"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
