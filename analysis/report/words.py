"""The sentences that only the pages say; those about one fit are in `analysis.fit.words`."""

from analysis.design.objective import estimate_from, estimate_sentence
from analysis.fit.compared_studies import ByValue
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData, label
from analysis.fit.words import count_phrase, epochs_sentence, grouped, lowest_loss_sentence, noise_sentence
from analysis.report.figures.figure import Context, study_of_fit
from analysis.report.tables import finite_ends
from core.numbers import counted, digits, human, human_range, layers, percent, scientific

#: Words of the table of crossings.
STATUS_WORDS = (
    "From the N of a crossing on the deeper model has the lower loss. Bracketed: beyond the noise, the shallower model "
    "leads at the small end and the deeper one at the large end. Left-censored: the deeper model leads at every size "
    "measured; right-censored: at none. Ambiguous: inconclusive. The interval holds every N at which a gap of zero is "
    "not rejected, for these data, tokens and recipe; no curve is extrapolated."
)
COMPARED = (
    "All studies have the same data and number of tokens, so their losses may be compared; each shape has the best of "
    "its learning rates."
)
NOTHING = "No study has two depths that can be compared, and none has a measure to show by"
APART = "The studies are not known to have the same data and tokens, so their losses are not compared."
BOUND = (
    "The fewest layers that reach a target are those of the models trained here, with this recipe, these tokens and "
    "widths: an upper bound on the depth that the task needs."
)
#: Maximum number of pairs of depths with a sentence.
MOST_PAIRS = 3
#: Text for an inconclusive number.
UNSETTLED = "inconclusive"


def about_sentences(fit: Fit) -> str:
    """The rows, shapes, seeds, noise and tokens, and how N is counted."""
    rows_compared = study_of_fit(fit).rows
    shapes, seeds = (
        len(rows_compared[["depth", "params"]].drop_duplicates()),
        counted(fit.noise.seeds, "seed"),
    )
    rows = f"{fit.used} of {fit.used + len(fit.left_out)} runs of {counted(shapes, 'shape')}, {seeds}."
    epochs = epochs_sentence(fit.epochs) if fit.epochs else ""
    parts = [rows, noise_sentence(fit), lowest_loss_sentence(fit), fit.tokens.sentence, epochs]
    parts.append(f"{count_phrase(fit)}.")
    return " ".join(filter(None, parts))


def confidence(fit: Fit) -> tuple[str, str] | None:
    """`settled`, `partly settled` or `not settled`, and why; None without a pair of depths."""
    at_compute = fit.tokens.rule == "compute"
    crossings = fit.crossings if not at_compute else fit.compute.crossings if fit.compute else ()
    if not crossings:
        return None
    settled = [item.settled for item in crossings]
    checked = fit.learning_rate is not None and fit.learning_rate.checked
    word = "settled" if all(settled) else "partly settled" if any(settled) else "not settled"
    if all(settled) and not checked:
        word = "settled at these learning rates"
    rate = "checked" if checked else "not checked"
    return word, f"{sum(settled)} of {counted(len(settled), 'pair')} of depths settled; learning rate {rate}"


def search_sentence(context: Context) -> str:
    """The work of a search, the estimate of its objective, and why it ended; empty without one."""
    if context.search is None:
        return ""
    study = study_of_fit(context.fit)
    cells = study.runs.frame
    work = f" for {scientific(float(cells['flops'].sum()))} training FLOPs" if "flops" in cells else ""
    estimate = estimate_from(study, context.search.objective)
    ended = context.search.ended
    parts = [f"The search trained {counted(len(cells), 'cell')}{work}.", estimate_sentence(estimate)]
    return " ".join([*parts, ended[:1].upper() + ended[1:]]).strip()


def compared_sentence(key: str, data: MeasureData, unit: str) -> str:
    """The measure at the largest depth and size that all values have, the best value first; empty for one value.

    The best width of a depth counts, and the mean over the seeds of a shape. `unit` stands behind the name.
    """
    shapes = data.shapes.dropna(subset=["mean"])
    values = shapes["place"].nunique()
    counts = shapes.groupby(["depth", "params"])["place"].nunique()
    common = counts[counts == values]
    if values < 2 or common.empty:
        return ""
    depth, params = max(common.index)
    rows = shapes[(shapes["depth"] == depth) & (shapes["params"] == params)]
    rows = rows.sort_values("mean", ascending=data.lower)
    parts = [f"{digits(row['mean'], 4)} at {label(row['value'])}" for row in rows.to_dict("records")]
    where = f"{layers(int(depth))} at N ≈ {human(float(params))}"
    return f"Mean {data.name}{unit} of {where}, by {key}: {', '.join(parts)}."


def crossing_sentences(key: str, data: ByValue | None, level: float) -> list[str]:
    """The crossing at each value, for the first `MOST_PAIRS` pairs of depths that are settled at some value."""
    if data is None:
        return []
    bounds = {"left_censored": "below all sizes measured", "right_censored": "nowhere up to the largest size"}
    sentences = []
    for (_, deep), rows in data.rows.groupby(["shallow", "deep"], sort=True):
        if (rows["status"] == "bracketed").any():
            places = [
                f"N ≈ {human(row['params'])} ({percent(level)}: {human_range(finite_ends(row))})"
                if row["status"] == "bracketed"
                else bounds.get(row["status"], UNSETTLED)
                for row in rows.to_dict("records")
            ]
            parts = "; ".join(grouped(places, rows["value"]))
            sentences.append(f"{deep} layers overtake {layers(rows['shallow'].iloc[0])}, by {key}: {parts}.")
    nothing = "At no value does a crossing lie between two measured sizes; the table lists the bounds."
    return sentences[:MOST_PAIRS] or [nothing]


def best_depths_sentence(key: str, data: ByValue | None) -> str:
    """The best depth by value, at the largest budget that most values have; empty if no two values share one."""
    if data is None or (counts := data.rows.groupby("budget").size()).max() < 2:
        return ""
    budget = float(counts[counts == counts.max()].index.max())
    rows = data.rows[data.rows["budget"] == budget].sort_values("place")
    parts = grouped([layers(depth) for depth in rows["depth"]], rows["value"], f"{key} ")
    return f"Lowest loss at a budget of N ≈ {human(budget)}: {', '.join(parts)}."
