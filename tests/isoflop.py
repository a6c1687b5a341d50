"""A world of several budgets, several sizes and depths at each, a known best depth: of compute (isoFLOP) or of time."""

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


def flops(params, depth):
    """FLOPs of a token."""
    return 6 * params


def minutes(params, depth):
    """Minutes of a token on a machine on which deep models are slow: 100 TFLOP/s, and 20 ns for each layer."""
    return (6 * params / 1e14 + 2e-8 * depth) / 60


def least_loss(budget, depth, cost=flops):
    """ln N of the least loss of a depth at this budget, cost·tokens, and that loss."""
    found = minimize_scalar(
        lambda log: loss(math.exp(log), budget / cost(math.exp(log), depth), depth),
        bounds=(math.log(1e4), math.log(1e12)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return found.x, found.fun


def crossing_budget(shallow, deep, cost=flops):
    """The budget at which two depths have one least loss."""

    def gap(log):
        one, two = (least_loss(math.exp(log), depth, cost)[1] for depth in (shallow, deep))
        return one - two

    # 1e12 to 1e22 FLOPs, or the minutes that a model of 30M parameters takes for them.
    low, high = (ends * cost(3e7, deep) / flops(3e7, deep) for ends in (1e12, 1e22))
    return math.exp(brentq(gap, math.log(low), math.log(high)))


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


def timed_table(seeds=2, key=0, noise=0.003, budgets=5, sizes=5, least=1.5):
    """Rows of training times that grow four-fold from the `least` minutes, sizes that double around the best one."""
    generator = np.random.default_rng([key, 6])
    rows = []
    for time in [least * 4**power for power in range(budgets)]:
        for depth in DEPTHS:
            best = math.exp(least_loss(time, depth, minutes)[0])
            for size in range(sizes):
                # As the study's sizes are, off the best one: by a factor of up to 1.5 here.
                wanted = best * 2 ** (size - sizes // 2) * generator.uniform(0.67, 1.5)
                width = 8 * max(1, round(math.sqrt(wanted / (12 * depth)) / 8))
                params = 12 * depth * width**2
                tokens = time / minutes(params, depth)
                values = (depth, width, params, tokens, 6 * params * tokens, time, "minutes")
                expected = loss(params, tokens, depth)
                rows += [
                    (*values, seed, expected + noise * generator.standard_normal()) for seed in range(seeds)
                ]
    names = ["depth", "width", "params", "tokens", "flops", "compute", "compute_unit", "seed", "loss"]
    return pd.DataFrame(rows, columns=names)
