"""The words of every `Reason`; no code compares them."""

from collections.abc import Callable, Mapping, Sequence

from analysis.law.reasons import Because, Reason
from analysis.runs.remarks import About, Remark
from analysis.runs.words import filled
from analysis.runs.words import text_of as remark_text
from analysis.units import budget_number, budget_text
from core.numbers import counted, digits, human, layers, listed


def _small_lead(end: str, model: str) -> Callable[..., str]:
    return lambda lead, needed: (
        f"at the {end} common N the {model} model leads by only {lead:.1f} standard errors ({needed:.1f} are needed)"
    )


def _few(what: str) -> Callable[..., str]:
    return lambda least, count: (
        f"the laws need {counted(least, what)}, and there {'is' if count == 1 else 'are'} {count}"
    )


def _diverged(side: str) -> Callable[..., str]:
    return lambda depth, params, runs: (
        f"depth {depth} diverged at N = {params:,.0f} ({'its only run' if runs == 1 else f'all {runs} runs'}), {side} "
        "the crossing of the others"
    )


def _unbounded(model: str) -> str:
    return (
        f"no {model} model is significantly worse at any size, so nothing bounds the best depth on that side"
    )


#: The text of each reason, or a function of its values.
WORDS: Mapping[Reason, str | Callable[..., str]] = {
    Reason.NO_NOISE: "no noise estimate",
    Reason.DIFFERENT_TOKENS: "the depths have different training tokens at similar N",
    Reason.ONE_SIZE: lambda depth: f"depth {depth} has only 1 size; a curve needs two",
    Reason.TWO_SIZES: lambda depth, sizes, needed: (
        f"depth {depth} has only {counted(sizes, 'size')}, and a crossing needs {needed}, because two do not show how "
        "a curve bends"
    ),
    Reason.NO_COMMON_RANGE: "the two depths have no common range of N",
    Reason.SEVERAL_CHANGES: "the curves change sign several times, or in the reverse order",
    Reason.MAY_CROSS: "the curves do not cross, but within the noise they might on either side",
    Reason.DEEP_UNSURE: "the deep model is better everywhere, but not beyond the noise",
    Reason.SHALLOW_UNSURE: "the shallow model is better everywhere, but not beyond the noise",
    Reason.DEEP_UNSURE_AT_SMALLEST: (
        "the deep model is better everywhere, but not beyond the noise at the smallest size"
    ),
    Reason.SHALLOW_UNSURE_AT_LARGEST: (
        "the shallow model is better everywhere, but not beyond the noise at the largest size"
    ),
    Reason.DEEP_AHEAD: "the deep model is better at every size measured",
    Reason.DEEP_BEHIND: "the deep model is better at no size measured",
    Reason.SMALL_LEAD_AT_SMALLEST: _small_lead("smallest", "shallow"),
    Reason.SMALL_LEAD_AT_LARGEST: _small_lead("largest", "deep"),
    Reason.SEPARATE_RANGES: "the gap is within the noise in several separate ranges of N",
    Reason.DIVERGED_ABOVE: _diverged("above"),
    Reason.DIVERGED_BELOW: _diverged("below"),
    Reason.BEST_RATES_OUTSIDE: "at the best learning rates the crossing may lie outside the sizes measured",
    Reason.NO_RATES: "no three rates bracket the best one",
    Reason.RATE_BEYOND: lambda *depths: (
        f"the best rate at depth {listed([str(depth) for depth in depths])} may lie beyond those tried"
    ),
    Reason.MOVED_BELOW: "the crossing moves below the sizes at which both depths were measured",
    Reason.MOVED_ABOVE: "the crossing moves above the sizes at which both depths were measured",
    Reason.NO_ERRORS: "there is no noise estimate, so the errors of the crossings are not known",
    Reason.FEW_CROSSINGS: lambda count, pairs: (
        "a law needs two crossings of neighbouring depths with an estimate; "
        f"{count} of {pairs} {'has' if count == 1 else 'have'} one"
    ),
    Reason.NOT_CONVERGED: str,
    Reason.TWO_POINTS: "a law through two crossings has no interval, more depths give it one",
    Reason.ASSUMED_SCATTER: lambda scatter: (
        f"scatter about the law assumed at least {scatter:.2g} in ln d, as published"
    ),
    Reason.WITHOUT_DIVERGED: lambda *pairs: (
        f"without {', '.join(pairs)}, where a model diverged on the wrong side of the crossing"
    ),
    Reason.ONE_SIDED: "the data bound the law on one side only",
    Reason.NOT_IN_FILE: "not in the file",
    Reason.FEW_DEPTHS: _few("depth"),
    Reason.FEW_SIZES: _few("size"),
    Reason.COLLINEAR: "depth and size move together, so their effects cannot be separated",
    Reason.FEW_GAPS: lambda gaps, parameters: (
        f"{gaps} independent gaps are too few for its {parameters} parameters"
    ),
    Reason.RESIDUALS: lambda p_value: f"its residuals exceed the noise (p = {p_value:.2g})",
    Reason.ALL_REJECTED: lambda p_value: (
        f"the losses reject every law of the gaps between depths (the largest p is {p_value:.1g})"
    ),
    Reason.TOKENS_OF_TABLE: lambda about, *values: remark_text(Remark(About(about), values)),
    Reason.ABOVE_SIZES: lambda factor, size: (
        f"N is more than {factor:g} times the largest size measured, {human(size)}"
    ),
    Reason.BELOW_SIZES: lambda factor, size: (
        f"N is less than 1/{factor:g} of the smallest size measured, {human(size)}"
    ),
    Reason.ABOVE_FITTED: lambda factor, size: (
        f"N is more than {factor:g} times the largest size that the law was fitted on, {human(size)}"
    ),
    Reason.BEST_ABOVE_FITTED: lambda best, factor, size: (
        f"the best N is {human(best)}, more than {factor:g} times the largest size that the law was fitted on, "
        f"{human(size)}"
    ),
    Reason.ABOVE_MODELS: lambda factor, size: (
        f"N is more than {factor:g} times the largest size of its models, {human(size)}"
    ),
    Reason.BELOW_MODELS: lambda factor, size: (
        f"N is less than 1/{factor:g} of the smallest size of its models, {human(size)}"
    ),
    Reason.NO_DEEPER_WORSE: _unbounded("deeper"),
    Reason.NO_SHALLOWER_WORSE: _unbounded("shallower"),
    Reason.TURNED: lambda *pairs: (
        "at the largest sizes the lead of the deeper model shrinks again, or its loss rises "
        f"({', '.join(pairs)} layers), so deep models may be trained too little"
    ),
    Reason.MAY_LOSE: lambda depth, bound, unit, within: (
        f"{layers(depth)} have the least expected loss, but may lose {digits(bound)} {unit} against the best depth, "
        f"more than the {digits(within)} of `within`"
    ),
    Reason.MORE_THAN_WITHIN: lambda within: f"more than the {digits(within)} of `within`",
    Reason.NOT_MEASURED: lambda *depths: (
        f"{listed([layers(depth) for depth in depths])} are not measured there"
    ),
    Reason.WIDTH_FALLS: "the width at the crossing does not rise with the depth",
    Reason.NO_FINITE_DEPTH: "the law gives no finite depth with a width of one or more",
    Reason.OUTSIDE_COMPUTES: lambda low, high, unit: (
        f"the budgets measured reach from {budget_number(low, unit)} to {budget_text(high, unit)}"
    ),
    Reason.FEW_MINIMA: "no two depths have a least loss inside their sizes there",
    Reason.BETTER_AT_END: lambda depth, percent, params, budget, unit: (
        f"{layers(depth)} have a loss {digits(percent)} % below the least one of any other depth, with "
        f"{human(params)} parameters at {budget_text(budget, unit)}, but no least loss inside their sizes"
    ),
    Reason.WITHOUT_MINIMUM: lambda *depths: (
        f"{listed([layers(depth) for depth in depths])} have no least loss inside their sizes there"
    ),
}


def text_of(because: Because) -> str:
    """The words of one reason."""
    return filled(WORDS[because.reason], because.values)


def texts_of(reasons: Sequence[Because]) -> str | None:
    """The words of several reasons; None without any."""
    return "; ".join(map(text_of, reasons)) or None
