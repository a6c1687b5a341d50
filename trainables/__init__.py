"""The one: how a single cell is trained. Knows no Ray and no MLflow, so it runs by hand or under any scheduler.

This package's import is light on purpose: `study plan` reads cells and data specs in milliseconds.
torch, transformers and deepspeed are imported inside the modules that train.
"""
