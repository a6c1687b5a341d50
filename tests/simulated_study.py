"""Shapes of a study, and its rows from one stream of noise."""

import math

import numpy as np

from analysis.design.simulated_study import Truth, draw_curves, study_rows

__all__ = ["Truth", "shapes_of", "simulate"]


def shapes_of(depths, budgets, multiple=2):
    """Return (depth, width, budget) per depth and budget, the width being the multiple nearest to sqrt(N/(12·L))."""
    return [
        (depth, max(multiple, multiple * round(math.sqrt(budget / (12 * depth)) / multiple)), budget)
        for depth in depths
        for budget in budgets
    ]


def simulate(truth, shapes, seeds, generator):
    """Simulate the rows of one study: depth, width, params, budget, seed, loss."""
    common = generator.standard_normal(seeds)
    own = generator.standard_normal((len(shapes), seeds))
    misfit = generator.standard_normal(len(shapes)) if truth.misfit_sd else np.zeros(len(shapes))
    drawn = truth.scatter or truth.misfit_length
    curves = draw_curves(truth, [int(generator.integers(2**32))] if drawn else [0])
    by_depth = np.zeros((len(truth.depths), seeds))
    if truth.depth_shared:
        by_depth = generator.standard_normal(by_depth.shape)
    return study_rows(curves, shapes, common, own, misfit, by_depth)
