"""Measures of a model's layers on a few sequences, taken without changing the training."""
