"""Text or generated sequences, packed once into a store of tokens, and batches as a pure function of (seed, step)."""

from trainables.data.packing.data_key import data_key
from trainables.data.spec import DataSpec

__all__ = ["DataSpec", "data_key"]
