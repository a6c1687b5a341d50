"""Text or generated sequences, packed once into a store of tokens, and batches as a pure function of (seed, step)."""

from typing import Any

from trainables.data.packing.data_key import data_key
from trainables.data.spec import DataSpec

__all__ = ["DataSpec", "data_key", "open_store"]


def __getattr__(name: str) -> Any:
    # Imported on first use: reading a spec must not load numpy.
    if name == "open_store":
        from trainables.data.store.open import open_store

        return open_store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
