"""The answer: what the results of a study mean.

Knows no torch, no Ray and nothing of the other packages: a table of runs goes in, crossings, a law, figures
and a report come out. Importing this package is light; numpy, scipy, pandas and matplotlib load with the
modules that use them, and MLflow only to read an experiment.
"""
