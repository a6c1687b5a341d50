"""What Kaplan's questions found, in plain words, and the rows of the table of exponents."""

from typing import Any

from analysis.fit.kaplan import NEAR, PUBLISHED_ALPHA, Exponent, Kaplan
from analysis.fit.sentences import ends, layers, percent
from analysis.numbers import digits, human

#: Depths beyond which the table has the laws of the best shapes only; all are in `fit.json`.
MOST_DEPTHS = 8


def kaplan_sentences(found: Kaplan | None) -> list[str]:
    """Shape, exponent and count, a sentence each; what is not known is left out."""
    if found is None:
        return []
    return [text for text in (_shape(found), _exponent(found), _count(found)) if text]


def _shape(found: Kaplan) -> str:
    if not found.ranges:
        return ""
    last = found.ranges[-1]
    near = f"d/L from {digits(last.low)} to {digits(last.high)}, a factor of {digits(last.high / last.low)}"
    if last.low == last.high:
        near = f"one of the aspect ratios only, d/L = {digits(last.low)}"
    return (
        f"At N ≈ {human(last.params)}, the largest at which depths are compared, the loss is within {NEAR:g} % "
        f"of the best for {near} (measured: {digits(last.least)} to {digits(last.most)}). Kaplan et al. 2020 saw a "
        "factor of 40."
    )


def _exponent(found: Kaplan) -> str:
    plain = found.exponent("own", "power")
    if plain is None or plain.alpha is None:
        return ""
    if plain.alpha <= 0:
        return f"The loss of the best shapes does not fall with N: as N^−α it has α = {_alpha(plain, found.level)}."
    text = f"The loss of the best shapes falls like N^−α with α = {_alpha(plain, found.level)}"
    entropy = found.exponent("own", "entropy")
    if entropy is not None and entropy.alpha is not None:
        text += f", above the entropy of the data with α = {_alpha(entropy, found.level)}"
    return (
        f"{text}; Kaplan et al. 2020 found {PUBLISHED_ALPHA:g} on English web text up to 1.5 billion parameters, "
        "another regime."
    )


def _alpha(item: Exponent, level: float) -> str:
    assert item.alpha is not None
    if item.interval is None:
        return digits(item.alpha)
    return f"{digits(item.alpha)} ({percent(level)}: {ends(item.interval)})"


def _count(found: Kaplan) -> str:
    if found.spread is None:
        return ""
    spread = found.spread
    where = f"mean of {spread.budgets} budgets" if spread.budgets > 1 else "one budget"
    return (
        f"At equal N the losses of the depths lie {digits(spread.own)} % apart (lowest to highest, {where}), at "
        f"equal total parameters {digits(spread.total)} %."
    )


def exponent_rows(found: Kaplan | None) -> list[dict[str, Any]]:
    """The table of exponents: name, formula, and what it is in N and in all parameters (`Exponent` or None)."""
    if found is None:
        return []
    keys = []
    for item in found.exponents:
        key = (item.scope, item.depth, item.form)
        # Of a depth without an exponent there is nothing to say that its number of points does not say.
        if key not in keys and (item.scope == "best" or item.alpha is not None):
            keys.append(key)
    if len({depth for scope, depth, _ in keys if scope == "depth"}) > MOST_DEPTHS:
        keys = [key for key in keys if key[0] != "depth"]
    formulas = {
        "power": "(N_c/N)^α",
        "entropy": "E + (N_c/N)^α, E known",
        "offset": "E + (N_c/N)^α, E fitted",
    }
    return [
        {
            "name": "best shapes"
            if scope == "best"
            else "all curves"
            if scope == "all"
            else layers(depth or 0),
            "formula": "E_L + A_L·N^−α, one α" if scope == "all" else formulas[form],
            "own": found.exponent("own", form, scope, depth),
            "total": found.exponent("total", form, scope, depth),
        }
        for scope, depth, form in keys
    ]
