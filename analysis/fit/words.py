"""What a fit says: headlines, noise, crossings, laws, unusual runs, rows left out, epochs, and scores of a task.

The depth to use is in `analysis.law.answer_words`, what to train next in `analysis.fit.next_words`, warnings in
`analysis.runs.words`, and why there is no answer in `analysis.law.words`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace

from analysis.fit.compute import ComputeAnswer
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData, Value, label
from analysis.fit.next_runs import NextRuns
from analysis.fit.next_words import next_depth_sentence, next_sizes_sentence, rate_sentence
from analysis.fit.scores import SCORES, accuracy_data, graded_accuracy
from analysis.intervals import LAYER_WEIGHTS, Interval
from analysis.law.answer_words import (
    COMPUTES,
    TIMES,
    compute_sentence,
    largest,
    shape_sentence,
    short_answer,
    use_sentence,
)
from analysis.law.crossings import NEAR_END, Crossing
from analysis.law.decision import deciding_run
from analysis.law.near_optimal import WITHIN
from analysis.law.prediction import LAWS_WORDS
from analysis.law.reasons import Because, Reason, has
from analysis.law.shape import REACH
from analysis.law.words import text_of
from analysis.runs.epochs import Epochs
from analysis.runs.isoflop import LEAST_BUDGETS, LEAST_DEPTHS, LEAST_SIZES
from analysis.runs.left_out import is_sensitivity_run, kind_of
from analysis.runs.words import qualified
from analysis.units import LossUnit, bits_per_byte
from core.command_line import option
from core.numbers import counted, digits, ends, human, human_range, layers, listed, listed_layers, percent

#: Share of used rows from which on the first line does not count the others.
MOSTLY = 0.8
#: Reasons of left-out rows that are listed.
MOST_REASONS = 3
#: Maximum number of pairs of depths with a sentence among the headlines.
MAX_SENTENCES = 2
#: Unusual runs that are named in the sentence; the table has all.
MAX_UNUSUAL = 3
#: Least depths for a sentence about the laws inside the data.
DEPTHS_FOR_LAWS = 5
#: Factor on the largest size at which a shape is given if it is not determined at `REACH`.
BETWEEN = 3.0


def count_phrase(fit: Fit) -> str:
    """The count of N: 12·L·d², 4·L·d² without feed-forward networks, or the column of the table."""
    if fit.count == "table":
        return "N is the table's own parameter count"
    without = "" if fit.layer_weights == LAYER_WEIGHTS else ": the models have no feed-forward networks"
    return f"N counts non-embedding parameters, {fit.layer_weights:g}·L·d²{without}"


def in_short(fit: Fit) -> list[str]:
    """The answer in one or two sentences, at a number of parameters or at equal FLOPs; empty without one."""
    if fit.compute is not None:
        return compute_sentences(fit.compute, fit.level)
    return short_answer(fit.reading, fit.best, fit.level, fit.tokens)


def compute_sentences(compute: ComputeAnswer, level: float) -> list[str]:
    """The best shape of the largest budget with one, which depth to use at which compute, and why a budget has none."""
    use = use_sentence(compute.reading, level, COMPUTES if compute.unit == "FLOPs" else TIMES)
    highest = compute.at(compute.budgets[-1])
    lines = [*map(compute_sentence, compute.best[-1:]), *filter(None, [use])]
    return lines if highest.depth else [*lines, compute_sentence(highest)]


def epochs_sentence(epochs: Epochs) -> str:
    """How often training read the data of the rows."""
    low, high = digits(epochs.low, 3), digits(epochs.high, 3)
    span = f"{low} epochs" if low == high else f"{low} to {high} epochs"
    rows = f" (unknown for {counted(epochs.unknown, 'row')})" if epochs.unknown else ""
    return f"Training read {span} of its data{rows}."


def noise_sentence(fit: Fit) -> str:
    """The source and the size of the noise estimate."""
    noise = fit.noise
    if not noise.is_measured:
        return "There is no noise estimate, so there are no intervals and no tests."
    unit = fit.loss_unit
    size = f"±{digits(unit.per_nat * (noise.sd or 0.0))} {unit.short}"
    if noise.source == "residuals" and not fit.tokens.comparable:
        return "One seed per shape, and no common training tokens: there is no noise estimate."
    if noise.source == "residuals":
        why = "One seed per shape" if noise.seeds == 1 else "All seeds of a shape have the same loss"
        return f"{why}: the noise ({size}) is estimated from the residuals of the curves."
    return f"The noise of one seed is {size}, pooled over all shapes."


def crossing_sentence(item: Crossing, level: float) -> str:
    """The finding for one pair of depths."""
    deep, shallow = layers(item.deep), layers(item.shallow)
    smallest, largest = (human(end) for end in item.range or (0.0, 0.0))
    aside = f" ({item.reason})" if has(item.reasons, Reason.NO_NOISE) else ""
    match item.status:
        case "bracketed":
            interval = f"{percent(level)}: {human_range(item.params_interval)}"
            return (
                f"{deep} overtake {shallow} at N ≈ {human(item.params or 0.0)} ({interval}), where the shallower "
                f"model is {digits(item.width or 0.0)} wide."
            )
        case "left_censored":
            return f"{deep} are ahead of {shallow} at every size measured, from N ≈ {smallest} on{aside}."
        case "right_censored":
            return f"{deep} do not overtake {shallow} up to N ≈ {largest}, the largest size measured{aside}."
        case "ambiguous":
            near = "" if item.params is None else f" near N ≈ {human(item.params)}"
            return f"Whether {deep} overtake {shallow}{near} is not settled: {item.reason}."
        case "insufficient":
            return f"{shallow} and {deep} cannot be compared: {item.reason}."


def law_sentence(fit: Fit) -> str:
    """The threshold law, or the reason why there is none."""
    law = fit.law
    if law.a is None or law.b is None or law.b_interval is None:
        return f"No threshold law: {law.reason}."
    text = f"Threshold law: {law_formula(law.a, law.b)}"
    if law.status == "not_converged":
        return f"{text}, but the fit did not converge ({law.reason}): do not use it."
    if len(law.depths) == 2:
        return f"{text} ({law.note or text_of(Because(Reason.TWO_POINTS))})."
    if law.rejected:
        return f"{text}; the crossings reject its form (p = {law.p_value:.1g}): do not use it."
    text += f", slope {percent(law.level)}: {ends(law.b_interval)}"
    if holds_zero(law.b_interval):
        text += "; the slope is compatible with zero"
    if law.status == "open":
        return f"{text}. The data bound it on one side only."
    return f"{text} ({law.note})." if law.note else f"{text}."


def holds_zero(interval: Interval) -> bool:
    """Whether an interval contains zero; an open end is unbounded."""
    low, high = interval
    return (low is None or low <= 0) and (high is None or high >= 0)


def law_formula(a: float, b: float) -> str:
    """`ln d = 2.50 + 0.3·L`."""
    return f"ln d = {a:.2f} {'+' if b >= 0 else '−'} {abs(b):.3g}·L"


#: Form of a law through crossings -> its name and its formula.
LAWS = {
    "log-linear": ("threshold law", "ln d = a + b·L"),
    "power": ("power law", "ln d = a + b·ln L"),
    "root": ("root law", "ln d = a + b·√L"),
}
#: The same for the laws of the gaps between depths.
GAP_LAWS = {
    "additive": ("additive", "c_m·d^−α_m + c_l·L^−α_l"),
    "log-linear": ("valley, threshold law", "k·(ln L − ln L*)², ln d = a + b·L*"),
    "root": ("valley, root law", "k·(ln L − ln L*)², ln d = a + b·√L*"),
    "power": ("valley, power law", "k·(ln L − ln L*)², ln d = a + b·ln L*"),
    "crossings, log-linear": ("gaps, threshold law", "−σ·(ln N − ln X) per ln L, ln d = a + b·L"),
    "crossings, root": ("gaps, root law", "−σ·(ln N − ln X) per ln L, ln d = a + b·√L"),
    "crossings, power": ("gaps, power law", "−σ·(ln N − ln X) per ln L, ln d = a + b·ln L"),
    "saturating": ("valley, saturating", "k·(ln L − ln L*)², ln d = a + b·L*⁴"),
}


def best_sentence(fit: Fit) -> str:
    """The best measured depth of each budget; neighbouring budgets with the same depth are joined."""
    if not fit.best:
        return "No budget has two depths that can be compared at one N, so there is no best shape."
    groups: list[tuple[tuple[int, ...], list[float]]] = []
    for item in fit.best:
        # The best depth, then those that lose next to nothing.
        near = (
            item.depth,
            *(depth for depth in (shape.depth for shape in item.within(WITHIN)) if depth != item.depth),
        )
        if groups and groups[-1][0] == near:
            groups[-1][1].append(item.params)
        else:
            groups.append((near, [item.params]))
    parts = []
    for (depth, *others), sizes in groups:
        span = human(sizes[0]) if len(sizes) == 1 else human_range((sizes[0], sizes[-1]))
        flat = (
            f" ({listed([str(other) for other in others])} within {negligible_words(fit.loss_unit)})"
            if others
            else ""
        )
        parts.append(f"{layers(depth)} at N ≈ {span}{flat}")
    compared, among = max(len(item.shapes) for item in fit.best), ""
    # In a table with one size per depth few depths can be compared at one N.
    if 2 * compared < len(_depths(fit)):
        among = f" among the depths that can be compared there (at most {compared})"
    return f"Lowest loss measured{among}: {', '.join(parts)}."


def _depths(fit: Fit) -> set[int]:
    return {depth for item in fit.crossings for depth in (item.shallow, item.deep)}


def laws_sentence(fit: Fit) -> str:
    """The depths of least expected loss at the powers of ten inside the data; empty unless all are determined."""
    if fit.sizes is None or len(_depths(fit)) < DEPTHS_FOR_LAWS:
        return ""
    low, high = (math.log10(end) for end in fit.sizes)
    shapes = [fit.predict(10.0**power) for power in range(math.ceil(low), math.floor(high) + 1)]
    if not shapes or any(item.depth is None for item in shapes):
        return ""
    parts = [
        f"{layers(item.depth or 0)} at N ≈ {human(item.params)} ({ends(item.depth_interval)})"
        for item in shapes
    ]
    return f"By {LAWS_WORDS} use {listed(parts)}; in brackets the {percent(fit.level)} interval of the best depth."


def beyond_sentence(fit: Fit) -> str:
    """The shape at ten times the largest size, or else at three times, and what it can cost; or why there is none."""
    if fit.sizes is None:
        return ""
    largest = fit.sizes[1]
    far, near = (fit.predict(factor * largest) for factor in (REACH, BETWEEN))
    chosen, times = (near, "three") if far.depth is None and near.depth is not None else (far, "ten")
    if chosen.depth is None or chosen.near_optimal is None:
        where = f"at {human(far.params)} " if far.source == "band" else ""
        text = f"Beyond {human(largest)} parameters no depth is determined: {where}{far.reason}."
        return f"{text} {deciding_sentence(fit, far.params)}".rstrip()
    costs = loss_words(chosen.near_optimal.most or 0.0, fit.gap_laws.loss, fit.loss_unit)
    return (
        f"At {human(chosen.params)} parameters, {times} times the largest size: {layers(chosen.depth)} × "
        f"{chosen.width} wide; by {LAWS_WORDS} this loses at most {costs} against the best depth "
        f"({ends(chosen.depth_interval)}, {percent(fit.level)})."
    )


def deciding_sentence(fit: Fit, params: float) -> str:
    """The run at the largest size that would tell most about the depth at N = `params`; empty without any."""
    depths, noise = fit.gap_laws.depths, fit.noise.sd
    if fit.sizes is None or len(depths) < 2 or noise is None or fit.predict(params).source != "band":
        return ""
    candidates = [(depth, fit.sizes[1]) for depth in (*depths, round(depths[-1] ** 2 / depths[-2]))]
    run = deciding_run(fit.gap_laws, params, candidates, noise)
    if run is None:
        return ""
    return f"The run that would tell most is {layers(run[0])} at {human(run[1])} parameters."


def negligible_words(unit: LossUnit) -> str:
    """`0.005 nats`: what counts as next to nothing."""
    return f"{unit.per_nat * WITHIN:.3g} {unit.short}"


def lowest_loss_sentence(fit: Fit) -> str:
    """The lowest loss of a run in nats per token and in bits per byte; empty if bytes are not known."""
    if fit.bytes_per_token is None or fit.study is None:
        return ""
    lowest = float(fit.study.entered["loss"].min())
    bits = bits_per_byte(lowest, fit.bytes_per_token)
    return (
        f"The lowest loss is {lowest:.4f} nats per token, {bits:.4f} bits per byte "
        f"({digits(fit.bytes_per_token, 4)} bytes per token)."
    )


def loss_words(nats: float, loss: float | None, unit: LossUnit) -> str:
    """`0.0012 nats (0.05 %)`, the share of the loss if that is known."""
    text = f"{unit.per_nat * nats:.4f} {unit.short}"
    return text if loss is None else f"{text} ({digits(100 * nats / loss)} %)"


#: Why a study at equal FLOPs or equal training time has no answer.
TOO_FEW = (
    f"No depth is stated at any budget: at least {LEAST_BUDGETS} of them are needed, each with {LEAST_DEPTHS} depths "
    f"of {LEAST_SIZES} sizes, and a least loss inside these sizes."
)


def headlines(fit: Fit) -> list[str]:
    """The answer, most important sentence first."""
    about = [noise_sentence(fit)] if fit.noise.source == "residuals" else []
    about += [fit.tokens.sentence] if fit.tokens.sentence else []
    about += [f"{count_phrase(fit)}."] if fit.layer_weights != LAYER_WEIGHTS else []
    before = [
        *filter(None, [used_sentence(fit)]),
        *unusual_sentences(fit),
        *(compute_sentences(fit.compute, fit.level) if fit.compute else []),
    ]
    if fit.tokens.rule == "compute" and fit.compute is None:
        if not any(math.isfinite(tokens) for tokens in fit.tokens.levels):
            column = option("column", "tokens=HEADING")
            return [
                *before,
                f"No depth is stated at any budget: no row has training tokens; name them with {column}.",
            ]
        before.append(
            TOO_FEW if len(_depths(fit)) > 1 else "There is one depth only; a comparison needs two."
        )
    if not fit.tokens.comparable:
        # Why nothing is compared comes first; residuals of losses that cannot be compared are no noise.
        return [*before, fit.tokens.sentence]
    if not fit.crossings:
        return [*before, "There is one depth only; a crossing needs two.", best_sentence(fit), *about]
    if not fit.best and all(item.range is None for item in fit.crossings):
        depths = listed([str(depth) for depth in sorted(_depths(fit))])
        low, high = fit.sizes or (1.0, math.inf)
        if math.log(high / low) <= NEAR_END:
            return [
                *before,
                f"All depths ({depths} layers) were measured near one size, {human(math.sqrt(low * high))} parameters. "
                "Their sizes differ, because widths are whole numbers, so a comparison needs a second size of each "
                "depth.",
                *about,
            ]
        none = f"No two depths ({depths} layers) meet at similar sizes, so this table compares no depths; a crossing"
        return [*before, f"{none} needs several sizes of each depth, with a common range.", *about]
    use = use_sentence(fit.reading, fit.level)
    # In a table with one size per depth the laws through all losses are the best answer.
    first, *more = [use] if use else [text for text in (laws_sentence(fit), best_sentence(fit)) if text]
    lines = [*before, qualified(first, fit.tokens.ratio), *more]
    lines += map(shape_sentence, largest(fit.best))
    open_pairs = [item for item in fit.crossings if item.status == "ambiguous" and not use]
    lines += [crossing_sentence(item, fit.level) for item in open_pairs[:MAX_SENTENCES]]
    reasons = Counter(str(item.reason) for item in fit.crossings if item.status == "insufficient")
    if reasons:
        parts = [
            reason if len(reasons) == 1 else f"{count} × {reason}" for reason, count in reasons.most_common()
        ]
        lines.append(
            f"{reasons.total()} of {len(fit.crossings)} pairs of neighbouring depths cannot be compared: "
            f"{'; '.join(parts)}."
        )
    return [*lines, *filter(None, [qualified(beyond_sentence(fit), fit.tokens.ratio)]), *about]


def unusual_sentences(fit: Fit) -> list[str]:
    """The runs whose loss lies far off the others, and the answer without them; empty without such a run."""
    if not fit.unusual:
        return []
    per_nat = fit.loss_unit.per_nat
    parts = [
        f"{run.depth} × {run.width}, seed {run.seed} (loss {digits(per_nat * run.loss, 4)}, "
        f"{digits(abs(per_nat * run.above))} {fit.loss_unit.short} {'above' if run.above > 0 else 'below'} the others)"
        for run in fit.unusual[:MAX_UNUSUAL]
    ]
    if len(fit.unusual) > MAX_UNUSUAL:
        parts.append(f"{len(fit.unusual) - MAX_UNUSUAL} more")
    single = len(fit.unusual) == 1
    named = (
        f"{'One run does' if single else f'{len(fit.unusual)} runs do'} not fit the others: {listed(parts)}."
    )
    return [named, *(f"Without {'it' if single else 'them'}: {line}" for line in fit.answer_without[:1])]


def used_sentence(fit: Fit) -> str:
    """How many rows are used, and why the others are not; empty from `MOSTLY` of them on.

    Sensitivity runs are not counted: they are trained for the check of the learning rate, which is stated apart.
    """
    main = replace(fit, left_out=tuple(item for item in fit.left_out if not is_sensitivity_run(item)))
    count, entered = main.used + len(main.left_out), main.used + main.merged
    if not count or entered >= MOSTLY * count:
        return ""
    return f"{entered} of {count} rows are used; left out: {reasons_phrase(main)}."


def reasons_phrase(fit: Fit) -> str:
    """The most frequent reasons of the rows left out, each with its number of rows."""
    reasons = reason_counts(fit)
    parts = [f"{number} × {reason}" for reason, number in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        parts.append(f"and {counted(len(reasons) - MOST_REASONS, 'other reason')}")
    return "; ".join(parts)


def reason_counts(fit: Fit) -> list[tuple[str, int]]:
    """The reasons of the rows left out with the number of their rows, the most frequent first.

    Reasons of one kind are one, worded as the first of them.
    """
    first: dict[Hashable, str] = {}
    counts: Counter[str] = Counter()
    for item in fit.left_out:
        counts[first.setdefault(kind_of(item), str(item["reason"]))] += 1
    return counts.most_common()


def answers(fit: Fit, next_runs: NextRuns | None = None) -> list[str]:
    """What was found, and what to do next; without `next_runs`, of a plan, their number is estimated."""
    return [*findings(fit), *next_steps(fit, next_runs)]


def findings(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, and the check of the learning rate."""
    check = fit.learning_rate
    checked = [rate_sentence(check, None)] if check and check.checked else []
    scores = score_sentences(fit) if fit.tokens.comparable else []
    return [*scores, *headlines(fit), *checked]


def next_steps(fit: Fit, next_runs: NextRuns | None = None) -> list[str]:
    """Sizes or a depth that are missing, and the check of the learning rate; the arguments are those of `answers`."""
    runs, check = next_runs or fit.estimated_runs, fit.learning_rate
    rates = [rate_sentence(check, runs.rates)] if check and not check.checked else []
    last = fit.reading.ranges[-1] if fit.reading.ranges else None
    if last and last.missing:
        train = f"train {listed_layers(last.missing)} at the sizes above {human(last.high)} too"
        return [
            f"Next: {train}, where they may be the best.",
            *rates,
        ]
    return [
        *([next_sizes_sentence(fit.next_sizes, runs.sizes)] if fit.next_sizes else []),
        *([next_depth_sentence(fit.next_depth, runs.depth)] if fit.next_depth else []),
        *rates,
    ]


def score_sentences(fit: Fit) -> list[str]:
    """The depth that each difficulty of a task needs, and the best mean score of each depth."""
    graded = graded_accuracy(fit)
    sentences = [needed_sentence(*graded)] if graded else []
    for name, title in SCORES.items():
        data = accuracy_data(fit, name)
        if data is not None:
            best = data.loc[data.groupby("depth")["mean"].idxmax()].to_dict("records")
            parts = [f"{digits(row['mean'], 3)} with {layers(int(row['depth']))}" for row in best]
            sentences.append(f"Best mean {title}: {', '.join(parts)}.")
    return sentences


def needed_sentence(key: str, data: MeasureData) -> str:
    """The depth that each value needs to reach the target; empty without a target."""
    if data.target is None or data.needed.empty:
        return ""
    texts = [
        f"no depth up to {row['deepest']}" if math.isnan(row["depth"]) else layers(int(row["depth"]))
        for row in data.needed.to_dict("records")
    ]
    parts = grouped(texts, data.needed["value"], f"{key} ")
    return f"For a mean {data.name} of at least {data.target:g}: {', '.join(parts)}."


def grouped(texts: Iterable[str], values: Iterable[Value], key: str = "") -> list[str]:
    """`TEXT at 1, 2 and 4` for consecutive values of equal text; `key` stands before the values."""
    groups = itertools.groupby(zip(texts, values, strict=True), lambda pair: pair[0])
    return [f"{text} at {key}{listed([label(value) for _, value in group])}" for text, group in groups]
