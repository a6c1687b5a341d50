"""Bounds of the separation rank of a shape, and the width that matches a deeper model.

Levine et al. 2020 (arXiv 2006.12467) bound the separation rank of self-attention without softmax, normalisation and
ReLU (eq. 3), for almost all weights. Below the threshold L = log3 d the rank grows doubly exponentially with depth
(Theorem 1), above it only exponentially, with width as much as with depth (Theorem 2). Bounds are log3 of the rank,
because the rank itself has up to 10^47 digits.

The theorems are those of an earlier revision of the paper, with one constant of Theorem 2 restored, see `equation_8`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from analysis.errors import InputError

#: The side of L = log3 d on which a shape lies. Below it depth multiplies the exponent, above it depth adds like width.
Regime = Literal["depth-efficient", "boundary", "depth-inefficient"]

#: Larger shapes are refused: below these limits no formula leaves the range of a float.
DEEPEST, WIDEST = 10**6, 10**100
#: Example of Corollary 1, a model like BERT-large: depth, width, heads.
EXAMPLE = (6, 1000, 16)
#: The part of Corollary 2 that gives no number.
COROLLARY_2 = (
    "A model of depth β1·L + β2 and width 3^β2·d then has a higher separation rank. The theorem only proves that such "
    "a β2 = O(log H · log d · log L) exists; it gives no value, so no shape follows from it."
)


@dataclass(frozen=True)
class Bounds:
    """Bounds of the separation rank of a shape, as log3 of the rank; None where undefined or not covered.

    `vacuous`: the lower bound is undefined or at most 0, the log3 of rank 1, which every function but zero has.
    `theorem`: 1 or 2, or None on the boundary L = log3 d, which neither covers. `reason`: why a bound is missing.
    """

    depth: int
    width: int
    heads: int
    lower: float | None
    upper: float | None
    regime: Regime
    vacuous: bool
    theorem: Literal[1, 2] | None
    reason: str | None = None


@dataclass(frozen=True)
class MatchingWidth:
    """The width at which a shallower model's upper bound reaches a deeper model's lower bound.

    Attributes:
        shallow: depth of the shallower model.
        needed: the deeper model's lower bound, log3.
        log10_width: None where every width is enough.
        width: the same as a number; None where every width is enough, or where it is too large for a float.
        binding: the width is larger than the deeper model's, and Theorem 1 covers the shallower model at it.
            Otherwise the bounds do not separate the two models.
    """

    shallow: int
    needed: float
    log10_width: float | None
    width: float | None
    binding: bool


def log3(value: float) -> float:
    """Logarithm to base 3, exact for the powers of 3 (a quotient of logarithms gives 4.999… for 243)."""
    quotient = math.log(value) / math.log(3)
    nearest = round(quotient)
    return float(nearest) if nearest >= 0 and 3**nearest == value else quotient


def threshold(width: int) -> float:
    """Return the depth log3 d up to which depth is efficient at this width."""
    check_shape(1, width, 1)
    return log3(width)


def regime(depth: int, width: int) -> Regime:
    """Return the side of L = log3 d on which a shape lies, computed in whole numbers."""
    # 3^L > 2^L > d: avoids a power with a million digits.
    if depth > width.bit_length():
        return "depth-inefficient"
    power = 3**depth
    if power == width:
        return "boundary"
    return "depth-efficient" if power < width else "depth-inefficient"


def equation_7(depth: int, width: int, heads: int) -> tuple[float | None, float]:
    """Evaluate the formulas of Theorem 1, which is about L < log3 d.

    3^(L-2)·(log3(d - H) - L + 2 - log3 2) <= log3 sep <= (3^L - 1)/2 · log3(d + H).

    Returns:
        Lower bound (None for d <= H, where log3(d - H) does not exist) and upper bound, log3 of the rank.
    """
    lower = None
    if heads < width:
        lower = 3.0 ** (depth - 2) * (log3(width - heads) - depth + 2 - log3(2))
    return lower, (3**depth - 1) // 2 * log3(width + heads)


def equation_8(depth: int, width: int, heads: int) -> tuple[float | None, float]:
    """Evaluate the formulas of Theorem 2, which is about L > log3 d.

    d·L/2 + b1 + b2 <= log3 sep <= 2·d·L + c1 + c2 with b1 = -L·(H/2 + 1), b2 = -d·(1 + log3((d - H)/2)/2), c1 = L and
    c2 = -2·d·log3(d / (2·sqrt(2e))) + log3 d.

    c2 differs from the available text of the earlier revision, where a fraction has lost its bar. Read as a product it
    puts the upper bound below the lower one (-413 < 2071 at L = 12, d = 1000, H = 16).

    Returns:
        Lower bound (None for d <= H) and upper bound, log3 of the rank.
    """
    lower = None
    if heads < width:
        b1 = -depth * (heads / 2 + 1)
        b2 = -width * (1 + log3((width - heads) / 2) / 2)
        lower = width * depth / 2 + b1 + b2
    c2 = -2 * width * log3(width / (2 * math.sqrt(2 * math.e))) + log3(width)
    return lower, 2 * width * depth + depth + c2


def bounds(depth: int, width: int, heads: int = 1) -> Bounds:
    """Bound the separation rank by the theorem that covers the shape.

    The heads need not divide the width; in the paper's own example (d = 1000, H = 16) they do not.

    Raises:
        InputError: depth, width or heads below 1, or too large for a float.
    """
    check_shape(depth, width, heads)
    side = regime(depth, width)
    if side == "boundary":
        reason = f"width is 3^{depth} exactly: Theorem 1 needs a depth below log3(width), Theorem 2 one above"
        return Bounds(depth, width, heads, None, None, side, True, None, reason)
    first = side == "depth-efficient"
    lower, upper = (equation_7 if first else equation_8)(depth, width, heads)
    missing = None
    if lower is None:
        missing = f"the lower bound needs more width than heads, log3(d - H) with d > H = {heads}"
    vacuous = lower is None or lower <= 0
    return Bounds(depth, width, heads, lower, upper, side, vacuous, 1 if first else 2, missing)


def matching_width(shallow: int, depth: int, width: int, heads: int) -> MatchingWidth:
    """Compute the width at which a shallower model's upper bound reaches the deeper model's lower bound (Corollary 1).

    Solves (3^Ls - 1)/2 · log3(w + H) = lower bound of (7) at the deeper model for w; the heads are the same in both.

    Raises:
        InputError: the shallower model is not shallower, or Theorem 1 has no lower bound for the deeper one.
    """
    check_shape(shallow, width, heads)
    deep = bounds(depth, width, heads)
    if shallow >= depth:
        raise InputError(
            f"The shallower model has depth {shallow} and the deeper one {depth}; the first must be less."
        )
    if deep.theorem != 1 or deep.lower is None:
        why = deep.reason or f"log3({width}) is {threshold(width):.2f}"
        raise InputError(
            "Corollary 1 compares with a model in the range of Theorem 1, of depth below log3(width) and with more "
            f"width than heads; depth {depth}, width {width}, heads {heads} is not ({why}). Take a width above "
            f"{max(3 ** min(depth, 200), heads):,}."
        )
    exponent = deep.lower / ((3**shallow - 1) // 2)
    # w = 3^exponent - H, in logarithms because the power leaves the range of a float.
    rest = -math.expm1(math.log(heads) - exponent * math.log(3)) if log3(heads) < exponent else 0.0
    if rest <= 0:
        return MatchingWidth(shallow, deep.lower, None, None, False)
    log10_width = exponent * math.log10(3) + math.log10(rest)
    found = 10.0**log10_width if log10_width < 308 else None
    binding = log10_width > math.log10(max(width, 3**shallow))
    return MatchingWidth(shallow, deep.lower, log10_width, found, binding)


def check_shape(depth: int, width: int, heads: int) -> None:
    """Raise `InputError` unless depth, width and heads are positive and not too large for a float."""
    for name, value, most in (("depth", depth, DEEPEST), ("width", width, WIDEST), ("heads", heads, WIDEST)):
        if value < 1:
            raise InputError(f"The {name} is {value}; it must be a whole number of at least 1.")
        if value > most:
            raise InputError(f"The {name} is too large: the formulas are evaluated up to {most:.0e}.")
