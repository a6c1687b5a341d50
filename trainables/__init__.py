"""Train a single cell, independent of Ray and MLflow.

The import of this package is light, because `interplay plan` reads cells and data specs; only the modules that train
import torch, transformers and DeepSpeed.
"""
