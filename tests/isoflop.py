"""A world of isoFLOP tables: several budgets of compute, several sizes and depths at each, a known best depth."""

import math

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar

DEPTHS = (2, 4, 8, 16)
#: The shape's part of the loss, c_m·d^-ALPHA + c_l·L^-BETA, with a crossing of 4 and 8 layers at FIRST parameters.
ALPHA, BETA, C_L, FIRST = 0.8, 1.4, 0.42, 21.7e6
C_M = C_L * (4**-BETA - 8**-BETA) / ((8 ** (ALPHA / 2) - 4 ** (ALPHA / 2)) * (FIRST / 12) ** (-ALPHA / 2))


def shape_part(params, depth):
    """The part of the loss that depends on the shape, nats per token."""
    return C_M * np.sqrt(params / (12 * depth)) ** -ALPHA + C_L * depth**-BETA


def loss(params, tokens, depth):
    """The expected loss, nats per token."""
    others = 1.75 + 0.35 * (params / 3e7) ** -0.34 + 0.35 * (tokens / 1e9) ** -0.28
    return others + shape_part(params, depth)


def crossing(shallow, deep):
    """N at which two depths have one loss at equal tokens."""
    gap = lambda log: shape_part(math.exp(log), shallow) - shape_part(math.exp(log), deep)  # noqa: E731
    return math.exp(brentq(gap, 5, 30))


def least_loss(compute, depth):
    """ln N of the least loss of a depth at this compute, 6·N·tokens, and that loss."""
    found = minimize_scalar(
        lambda log: loss(math.exp(log), compute / (6 * math.exp(log)), depth),
        bounds=(math.log(1e4), math.log(1e12)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return found.x, found.fun


def crossing_compute(shallow, deep):
    """The compute in FLOPs at which two depths have one least loss."""
    gap = lambda log: least_loss(math.exp(log), shallow)[1] - least_loss(math.exp(log), deep)[1]  # noqa: E731
    return math.exp(brentq(gap, math.log(1e12), math.log(1e22)))


def isoflop_table(seeds=1, key=0, noise=0.003, budgets=5, sizes=6, least=1.2e16):
    """Rows of budgets of compute that grow five-fold from the `least`, with sizes that double around the best one."""
    generator = np.random.default_rng([key, 5])
    rows = []
    for budget in range(budgets):
        flops = least * 5**budget
        for depth in DEPTHS:
            for size in range(sizes):
                width = 8 * max(
                    1, round(math.sqrt(1.77e6 * math.sqrt(flops / 1.2e16) * 2**size / (12 * depth)) / 8)
                )
                params = 12 * depth * width**2
                tokens = flops / (6 * params)
                expected = loss(params, tokens, depth)
                rows += [
                    (
                        depth,
                        width,
                        params,
                        seed,
                        tokens,
                        flops,
                        expected + noise * generator.standard_normal(),
                    )
                    for seed in range(seeds)
                ]
    return pd.DataFrame(rows, columns=["depth", "width", "params", "seed", "tokens", "flops", "loss"])
