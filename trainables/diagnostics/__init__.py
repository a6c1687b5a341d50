"""Diagnostics: measures of a model's layers on a few sequences, taken without changing the training.

Importing this package loads no torch, because specs name diagnostics.
"""
