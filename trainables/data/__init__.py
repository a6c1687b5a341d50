"""Corpora, tokenizers, the packed token store, and batches as a pure function of (seed, step)."""
