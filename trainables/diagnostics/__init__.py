"""What a model looks like inside, measured at every evaluation on a few sequences: `rank`, `layer_drop` and others.

A diagnostic reads the model and changes nothing of it, so it changes no loss and is in no cell's key. This package's
import is light, because specs name diagnostics; torch is imported by `trainables.diagnostics.probe` and what it uses.
"""
