"""What a reader must know about a table, the losses compared and their noise. The words are in `analysis.runs.words`.

Why a row is left out is in `analysis.runs.left_out`; why there is no crossing, law or depth, in `analysis.law.reasons`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

Value = int | float | str | None
Name = TypeVar("Name")

#: Names that the words of a remark list; of the others they say only that there are more.
NAMED = 5


class About(StrEnum):
    """What a remark is about, with the values that its words name."""

    LINES_ABOVE = "lines_above"
    """Lines of the file above its header are not read: the first and the last of them."""
    SEPARATOR = "separator"
    """The columns have another separator than the name of the file says: its name."""
    DECIMAL_COMMA = "decimal_comma"
    """The comma is the decimal point: in these columns."""
    COMMON_NAMES = "common_names"
    """Columns are read by common names: for each its heading, its name here, and the headings not taken for it."""
    LOSS_COLUMN = "loss_column"
    """The loss is the column of this name, and not one of these headings."""
    TRAINING_LOSS = "training_loss"
    """The only loss is a training loss: its heading."""
    CONVERTED = "converted"
    """The losses are converted to nats: their heading and their unit, `perplexity` or `bits`."""
    NOT_NUMBERS = "not_numbers"
    """A column has texts that are no numbers: its name, the number of rows, and the first texts."""
    TOKENS_NOT_READ = "tokens_not_read"
    """No column is read as tokens: headings that may name them."""
    UNFINISHED = "unfinished"
    """Runs are not finished: the number of rows, then each number of rows with its status."""

    REPLICATES = "replicates"
    """Rows that differ in the loss only are replicates: their number, and that of their shapes."""
    AVERAGED = "averaged"
    """Rows are averaged with others of the same run: their number, and the columns in which they differ."""
    LAST_STEP = "last_step"
    """Of each run the last step counts: the heading of the step, and 1 if there are tokens, else 0."""
    LAST_STEP_DIFFERS = "last_step_differs"
    """As `LAST_STEP`, but runs end at different steps: the same values, then the ends of `STEPS_DIFFER`."""
    STEPS_DIFFER = "steps_differ"
    """Runs end at different steps: the heading of the step, the first and the last end, and 1 without any tokens."""
    SETTING_NOT_READ = "setting_not_read"
    """Rows differ in a column that is not read: its heading, then each number of rows with its value."""
    TUNED = "tuned"
    """Of columns that are not read, each shape has the best value: the number of rows left out, and the headings."""
    LOWEST_RATE = "lowest_rate"
    """Shapes have the learning rate of least loss: their number, and that of those whose rate is at an end."""
    SURVIVORS = "survivors"
    """Some seeds of shapes diverged: the number of shapes, then each shape with its seeds, as `2×16: 1 of 3`."""
    PROTOCOLS = "protocols"
    """Rows come from several protocols: their number, and the first of them."""
    COUNT_DIFFERS = "count_differs"
    """The column params differs from 12·L·d², or 4·L·d²: by this share at most; and that factor of L·d²."""
    ABOVE_VOCABULARY = "above_vocabulary"
    """Widths exceed the vocabulary: the number of such rows, of how many, the largest width, and the vocabulary."""

    WITHOUT_TOKENS = "without_tokens"
    """Rows without training tokens are taken as comparable: their number, of how many."""
    ROWS_LEFT_OUT = "rows_left_out"
    """Rows are left out because of their tokens: their number, of how many, the `RowReason`, and its values."""
    SHAPES_LEFT_OUT = "shapes_left_out"
    """Shapes have no loss at the tokens compared: their number, of how many, the tokens, and the first shapes."""
    NOT_COMPARABLE = "not_comparable"
    """The tokens allow no comparison; `TokenRule.remarks` say why."""
    TOKENS_UNKNOWN = "tokens_unknown"
    """No row has its training tokens."""
    EQUAL_TOKENS = "equal_tokens"
    """All losses are at these training tokens."""
    ASKED_TOKENS = "asked_tokens"
    """Losses are compared at a level: its tokens, the number of levels, their ends, and the tokens asked for."""
    USUAL_TOKENS = "usual_tokens"
    """Losses are compared at the level that most shapes have: its tokens, the number of levels, and their ends."""
    MOST_TOKENS = "most_tokens"
    """Losses are compared at the largest level that most shapes have: as above, then how many have it, of how many."""
    EQUAL_RATIO = "equal_ratio"
    """All losses are at these training tokens per parameter."""
    WITH_PARAMS = "with_params"
    """Training tokens rise with N, and are equal at equal N: the fewest and the most."""
    LAST_CHECKPOINTS = "last_checkpoints"
    """The last checkpoints are compared, whose tokens rise with N: the fewest and the most."""
    EQUAL_COMPUTE = "equal_compute"
    """Losses are compared at one compute: its FLOPs, the number of computes, the most and the fewest tokens."""
    GROUPS = "groups"
    """Losses are compared inside groups of equal N and tokens: their number, the fewest and the most tokens."""
    COMPUTES = "computes"
    """Depths are compared at each of several budgets: the least, the largest, and their unit."""
    NO_COMMON_TOKENS = "no_common_tokens"
    """The shapes have no number of training tokens in common: the fewest and the most."""
    TOKENS_BY_TABLE_COUNT = "tokens_by_table_count"
    """Tokens follow the table's own count of parameters: tokens per parameter."""
    TOKENS_BY_WIDTH = "tokens_by_width"
    """Tokens follow the count N + k·width: tokens per parameter, and k."""

    DIFFER_AT_EQUAL_N = "differ_at_equal_n"
    """No projection: training tokens differ at equal N."""
    DIFFER_AT_SIMILAR_N = "differ_at_similar_n"
    """No projection: training tokens differ at similar N."""
    DIFFER_BETWEEN_GROUPS = "differ_between_groups"
    """No projection: training tokens differ between the groups that are compared."""
    SHRINK_WITH_N = "shrink_with_n"
    """No projection: training tokens shrink as N grows."""
    CORRELATED = "correlated"
    """No projection: the effects of size and tokens cannot be separated; the correlation of their logarithms."""

    REPEATED_DATA = "repeated_data"
    """Training reads its data several times: the epochs, and `up to ` or `at least ` if that is a bound, else empty."""
    ONE_SEED = "one_seed"
    """With one seed the noise is estimated from residuals."""
    EQUAL_LOSSES = "equal_losses"
    """All seeds of a shape have the same loss, so the noise is estimated from residuals."""
    NO_NOISE_OF_ONE_SEED = "no_noise_of_one_seed"
    """One seed and too few sizes for an estimate of the noise."""
    NO_NOISE_OF_EQUAL_LOSSES = "no_noise_of_equal_losses"
    """All seeds of a shape have the same loss."""
    UNEQUAL_SEEDS = "unequal_seeds"
    """Shapes have different numbers of seeds: the fewest and the most."""
    MISFIT = "misfit"
    """The losses deviate from power laws beyond the noise: by how much, in which unit, and p."""
    TURNED = "turned"
    """At the largest sizes the lead of the deeper model of some pairs, the values as `1 → 2`, shrinks again."""
    LOST_SHAPES = "lost_shapes"
    """All rows of some shapes diverged: the depth and N of each."""

    FEW_SIZES_AT_COMPUTE = "few_sizes_at_compute"
    """No least loss, because a depth has too few sizes: the depth, the sizes, those needed, the budget and its unit."""
    LEAST_AT_END = "least_at_end"
    """No least loss inside the sizes of a depth: the depth, the budget and its unit."""


@dataclass(frozen=True)
class Remark:
    """A remark with the values that its words name, as each member of `About` lists them."""

    about: About
    values: tuple[Value, ...] = ()


def first_names(names: Sequence[Name]) -> Sequence[Name]:
    """The names that words list, and the next one, if there are more."""
    return names[: NAMED + 1]


def flat(groups: Iterable[tuple[Value, ...]]) -> tuple[Value, ...]:
    """The values of several groups, one after the other."""
    return tuple(value for group in groups for value in group)
