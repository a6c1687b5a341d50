"""The words of every `Remark`; no code compares them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.remarks import NAMED, About, Remark, Value
from analysis.units import budget_number, budget_text
from core.command_line import option
from core.numbers import counted, digits, first_few, human, layers, listed, scientific

_UNITS: Mapping[str, tuple[str, str]] = {
    "perplexity": ("perplexities", "the natural logarithm is compared"),
    "bits": ("bits", "times ln 2 they are compared, in nats per token or byte, as the bits are"),
}


def _grouped(values: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
    """The values in groups of a size."""
    return list(zip(*[iter(values)] * size, strict=True))


def _lines_above(first: int, last: int) -> str:
    which = f"Line {first} is" if first == last else f"Lines {first} to {last} are"
    return f"{which} above the header and not read."


def _common_names(*names: str) -> str:
    read = [
        f"{heading} as {column}{f' (not {others})' if others else ''}"
        for heading, column, others in _grouped(names, 3)
    ]
    return f"Columns are read by their common names: {', '.join(read)}."


def _tokens_not_read(*headings: str) -> str:
    return (
        f"The training tokens are not read; {first_few(headings)} may be them: name the column with "
        f"{option('column', f'tokens={headings[0]}')}."
    )


def _pairs(pairs: Sequence[Any], text: str, separator: str = ", ") -> str:
    """The first pairs of values, each as a text of both."""
    return first_few([text.format(*pair) for pair in _grouped(pairs, 2)], separator)


def shares(counts: Iterable[tuple[Any, ...]]) -> str:
    """`64: 3 rows, empty: 1 row`, for numbers of rows with their value."""
    return first_few([f"{value or 'empty'}: {counted(count, 'row')}" for count, value in counts])


def _averaged(rows: int, *columns: str) -> str:
    what = ", ".join(columns) or "no other known column"
    return f"{rows} rows are averaged with another of the same depth, N, seed and learning rate; they differ in {what}."


def _last_step(step: str, has_tokens: int, differs: str = "") -> str:
    why = "Each run has one number of training tokens" if has_tokens else "The table has no training tokens"
    return f"{why}; each run counts with its last {step}{differs or '.'}"


def _ends_differ(low: float, high: float, without_tokens: int) -> str:
    name = f" Name their column with {option('column', 'tokens=HEADING')}." if without_tokens else ""
    return f"differs between the runs ({low:g} to {high:g}): losses are comparable only at equal training tokens.{name}"


def _lowest_rate(shapes: int, at_end: int) -> str:
    text = (
        f"{counted(shapes, 'shape')} {'have' if shapes > 1 else 'has'} several learning rates but no minimum between "
        "three; the one with the lowest mean loss is used. The lowest of several is biased down, more for the shapes "
        "with more rates."
    )
    if at_end:
        text += f" In {at_end} of them it is the lowest or highest rate tried: a better one may lie beyond."
    return text


def _above_vocabulary(rows: int, of: int, width: float, vocabulary: float) -> str:
    rank = f"{vocabulary:g}"
    return (
        f"{rows} of {of} runs have widths up to {width:g}, above the vocabulary of {rank} tokens, so the rank of their "
        f"embedding is at most {rank}: the crossings are those of this vocabulary, and lie elsewhere with a larger one "
        "(Wies et al. 2021)."
    )


def _at_level(why: str, tokens: float, levels: int, low: float, high: float) -> str:
    return (
        f"Losses are compared at {human(tokens, 3)} training tokens, {why} ({levels} levels from {human(low, 3)} to "
        f"{human(high, 3)})."
    )


def _most_tokens(tokens: float, levels: int, low: float, high: float, shapes: int, of: int) -> str:
    who = "all" if shapes == of else f"{shapes} of the {of}"
    return _at_level(f"the most that {who} shapes have", tokens, levels, low, high)


def _equal_compute(flops: float, computes: int, most: float, fewest: float) -> str:
    which = f", the largest of {computes} budgets" if computes > 1 else ""
    return (
        f"Losses are compared at equal compute, {scientific(flops)} FLOPs (6·N·tokens){which}: training tokens shrink "
        f"with N, from {most:.4g} to {fewest:.4g}, and are equal at equal N."
    )


def _correlated(correlation: float) -> str:
    how = "size and training tokens grow together" if correlation > 0 else "training tokens shrink as N grows"
    return (
        f"{how} (correlation of their logarithms {correlation:.2f}), so their effects on the best depth cannot be "
        "separated; train shapes of several sizes on equal tokens, or on one number of tokens per parameter"
    )


def _by_table_count() -> str:
    return f"; with {option('count', 'table')}, depths are compared at equal tokens."


def _lost_shapes(*shapes: float) -> str:
    names = [f"{layers(int(depth))} at N = {params:,.0f}" for depth, params in _grouped(shapes, 2)]
    others = " and others" if len(names) > NAMED else ""
    return f"Every row of {', '.join(names[:NAMED])}{others} diverged; these shapes count as worse."


def repeated_data(epochs: float, bound: str = "") -> str:
    """The consequence of this many epochs, after a word such as `at least `."""
    return (
        f"Training reads its data {bound}{digits(epochs, 3)} times (epochs). Repeated tokens lower the loss less than "
        "new ones (Muennighoff et al. 2023, arXiv 2305.16264), so crossings hold for this amount of data only."
    )


_FROM_RESIDUALS = (
    "noise is estimated from residuals. An error common to all sizes of one depth leaves none, so no interval includes "
    "it"
)
#: The text of each remark, or a function of its values.
WORDS: Mapping[About, str | Callable[..., str]] = {
    About.LINES_ABOVE: _lines_above,
    About.SEPARATOR: "The columns are separated by {}.".format,
    About.DECIMAL_COMMA: lambda *columns: f"The comma is read as the decimal point in {listed(columns)}.",
    About.COMMON_NAMES: _common_names,
    About.LOSS_COLUMN: lambda name, *others: f"The loss is the column {name}, not {', '.join(others)}.",
    About.TRAINING_LOSS: lambda heading: (
        f"{heading} is a training loss, and the table has no evaluation loss: a model that has seen data several times "
        "looks better by it than on new data."
    ),
    About.CONVERTED: lambda heading, unit: "The losses ({}) are {}; {}.".format(heading, *_UNITS[unit]),
    About.NOT_NUMBERS: lambda name, rows, *texts: (
        f"{name} is no number in {counted(rows, 'row')} ({first_few([repr(text) for text in texts])}) and counts as "
        "missing there."
    ),
    About.TOKENS_NOT_READ: _tokens_not_read,
    About.UNFINISHED: lambda rows, *states: (
        f"Left out, because their runs are not finished: {counted(rows, 'row')} ({_pairs(states, '{} {}')})."
    ),
    About.REPLICATES: lambda rows, shapes: (
        f"{rows} rows of {counted(shapes, 'shape')} have no seed and differ in the loss only: they are taken as "
        "replicates, whose mean is compared and whose differences are the noise."
    ),
    About.AVERAGED: _averaged,
    About.LAST_STEP: _last_step,
    About.LAST_STEP_DIFFERS: lambda step, has_tokens, *ends: _last_step(
        step, has_tokens, f", which {_ends_differ(*ends)}"
    ),
    About.STEPS_DIFFER: lambda step, *ends: (
        f"The table has no training tokens, and {step} {_ends_differ(*ends)}"
    ),
    About.SETTING_NOT_READ: lambda name, *counts: (
        f"The rows compared differ in {name} ({shares(_grouped(counts, 2))}), which is not read."
    ),
    About.TUNED: lambda rows, *names: (
        f"{counted(rows, 'row')} differ from others of the same shape, seed and learning rate in {listed(names)}, "
        "which is not read: per shape the value with the lowest mean loss is compared. The lowest of several is biased "
        "down."
    ),
    About.LOWEST_RATE: _lowest_rate,
    About.SURVIVORS: lambda shapes, *names: (
        f"Some seeds of {counted(shapes, 'shape')} diverged (depth×width {first_few(names, '; ')}); such a shape is "
        "compared by its survivors, whose mean loss is biased down."
    ),
    About.PROTOCOLS: lambda count, *names: (
        f"Rows come from {count} protocols ({', '.join(names)}), that is other data, another recipe or another rule of "
        "the learning rate; losses are comparable only within one."
    ),
    About.COUNT_DIFFERS: lambda share, weights: (
        f"The column params differs from {weights:g}·L·d² by up to {share:.0%}; crossings are in the given params, "
        f"widths follow from {weights:g}·L·d²."
    ),
    About.ABOVE_VOCABULARY: _above_vocabulary,
    About.WITHOUT_TOKENS: "{} of {} rows have no training tokens; they are taken as comparable.".format,
    About.ROWS_LEFT_OUT: lambda rows, of, reason, *values: (
        f"{rows} of {of} rows are left out: {WhyNot(RowReason(reason), values).text}."
    ),
    About.SHAPES_LEFT_OUT: lambda shapes, of, tokens, *names: (
        f"{shapes} of {of} shapes have no loss at the {tokens:.4g} training tokens compared and are left out "
        f"(depth×width {first_few(names)})."
    ),
    About.NOT_COMPARABLE: "The training tokens allow no comparison.",
    About.TOKENS_UNKNOWN: "No row has its training tokens; losses are compared as if at equal tokens.",
    About.EQUAL_TOKENS: lambda tokens: f"All losses are at {human(tokens, 3)} training tokens.",
    About.ASKED_TOKENS: lambda tokens, levels, low, high, asked: _at_level(
        f"the level nearest to the {human(asked, 3)} asked for", tokens, levels, low, high
    ),
    About.USUAL_TOKENS: lambda *level: _at_level("the number that most shapes have", *level),
    About.MOST_TOKENS: _most_tokens,
    About.EQUAL_RATIO: "All losses are at {:.3g} training tokens per parameter.".format,
    About.WITH_PARAMS: (
        "Training tokens rise with N ({:.4g} to {:.4g}) and are equal at equal N, where depths are compared."
    ).format,
    About.LAST_CHECKPOINTS: (
        "Losses are compared at the last checkpoint of each shape: training tokens grow with N, from {:.4g} to {:.4g}, "
        "and are equal at equal N."
    ).format,
    About.EQUAL_COMPUTE: _equal_compute,
    About.GROUPS: (
        "Losses are compared inside {} groups of equal N and equal training tokens ({:.4g} to {:.4g}), in which the "
        "best depth is taken to depend on N alone."
    ).format,
    About.COMPUTES: lambda low, high, unit: (
        f"Depths are compared at equal {'FLOPs' if unit == 'FLOPs' else 'training time'} ({budget_number(low, unit)} "
        f"to {budget_number(high, unit)}), each at its best size. Training tokens differ at equal N, so there is no "
        f"crossing in N, and no projection beyond {'these FLOPs' if unit == 'FLOPs' else 'this time'}."
    ),
    About.NO_COMMON_TOKENS: (
        "No number of training tokens is common to the shapes ({:.4g} to {:.4g}), and tokens differ at similar N; "
        "losses are comparable only at equal tokens, so there is no crossing."
    ).format,
    About.TOKENS_BY_TABLE_COUNT: lambda ratio: (
        f"Tokens are {ratio:.3g} per parameter of the table's own count{_by_table_count()}"
    ),
    About.TOKENS_BY_WIDTH: lambda ratio, by_width: (
        f"Tokens are {ratio:.3g}·(N + {by_width:,.0f}·width, as of all parameters with embeddings): give the table "
        f"that count as its column params{_by_table_count()}"
    ),
    About.DIFFER_AT_EQUAL_N: "training tokens differ at equal N",
    About.DIFFER_AT_SIMILAR_N: "tokens differ at similar N",
    About.DIFFER_BETWEEN_GROUPS: "training tokens differ between the groups that are compared",
    About.SHRINK_WITH_N: "training tokens shrink as N grows",
    About.CORRELATED: _correlated,
    About.REPEATED_DATA: repeated_data,
    About.ONE_SEED: f"One seed: {_FROM_RESIDUALS}; more seeds show it.",
    About.EQUAL_LOSSES: (
        f"All seeds of a shape have the same loss: {_FROM_RESIDUALS}. Check the seed column."
    ),
    About.NO_NOISE_OF_ONE_SEED: (
        "One seed and too few sizes: there is no noise estimate, so crossings have no interval and no test, and there "
        "is no threshold law."
    ),
    About.NO_NOISE_OF_EQUAL_LOSSES: (
        "All seeds of a shape have the same loss, so there is no noise estimate. Check the seed column."
    ),
    About.UNEQUAL_SEEDS: "Shapes have between {} and {} seeds.".format,
    About.MISFIT: (
        "The losses deviate from power laws by {:.2g} {} beyond the seed noise (p = {:.1g}); the intervals include "
        "this misfit."
    ).format,
    About.TURNED: lambda *pairs: (
        f"At the largest sizes the lead of the deeper model shrinks again, or its loss rises ({', '.join(pairs)} "
        "layers). Deep models may be trained too little there: do not project from these crossings."
    ),
    About.LOST_SHAPES: _lost_shapes,
    About.FEW_SIZES_AT_COMPUTE: lambda depth, sizes, needed, budget, unit: (
        f"{layers(depth)}: {counted(sizes, 'size')}, and a minimum needs {needed}, at {budget_text(budget, unit)}"
    ),
    About.LEAST_AT_END: lambda depth, budget, unit: (
        f"{layers(depth)}: the least loss is at an end of the sizes at {budget_text(budget, unit)}"
    ),
}


def qualified(statement: str, ratio: float | None) -> str:
    """A statement about sizes, with or without its full stop, with the tokens per parameter at which alone it holds.

    An empty statement stays empty, and without a ratio it stays as it is.
    """
    if not statement or ratio is None:
        return statement
    text = statement.removesuffix(".")
    return f"{text}, at {ratio:.3g} tokens per parameter{statement[len(text) :]}"


def filled(words: str | Callable[..., str], values: Iterable[Value]) -> str:
    """Words that are a text, or a function of values, with these values; None, which JSON has for no number, is NaN."""
    given: list[Any] = [math.nan if value is None else value for value in values]
    return words if isinstance(words, str) else words(*given)


def text_of(remark: Remark) -> str:
    """The words of one remark."""
    return filled(WORDS[remark.about], remark.values)


def texts_of(remarks: Iterable[Remark]) -> list[str]:
    """The words of several remarks."""
    return [text_of(remark) for remark in remarks]
