"""The row of a finished cell, and the run table of rows, which a search, a fit and a report share."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from analysis.runs.columns import BITS_PER_BYTE
from analysis.runs.table import RunTable
from analysis.units import BudgetUnit
from trainables.model.family import OPTIONAL
from trainables.progress import Evaluation, Point

#: Fields of a row that are columns of the run table, where they are not None.
COLUMNS = (
    *("depth", "width", "heads", "params", "total_params", "budget", "compute"),
    *("compute_unit", "seed", "lr", "lr_factor", "tokens", "flops", "network", *OPTIONAL),
)

#: Of the `tokens` of a row, those that were taken from the trunk of a shorter one: what a study has trained counts them
#: once. A column of the run table if it is not 0 everywhere.
TRUNK_TOKENS = "trunk_tokens"
Status = Literal["done", "diverged", "failed"]
#: Values by name, as trackers record them.
Parameters = dict[str, str | int | float | None]


class CellFields(BaseModel):
    """What identifies a cell: its shape, size, seed, learning rate, data and recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    depth: int
    width: int
    heads: int
    params: int
    """N, see `Shape.budget_params`."""
    total_params: int
    """All parameters, embeddings included."""
    budget: float
    """The target of N for which the shape was chosen."""
    compute: float | None = None
    """The target of FLOPs or minutes; None unless depths are compared at equal ones."""
    compute_unit: BudgetUnit | None = None
    """`minutes` if `compute` is a time; None for FLOPs."""
    seed: int
    lr: float
    """Peak learning rate."""
    lr_factor: float
    """Multiple of the learning-rate rule, which `lr` includes."""
    tokens: int
    """Training tokens."""
    flops: float
    """Training FLOPs, without evaluations."""
    network: str | None = None
    """Name of the model family; None for the default one."""
    kv_heads: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    embeddings: str | None = None
    rope_theta: float | None = None
    vocabulary: int
    """Tokens in the vocabulary."""
    data_key: str
    """Digest of the content of the data."""
    recipe: Parameters = {}
    """The recipe by name; options of DeepSpeed and the base shape are JSON."""

    @property
    def columns(self) -> Parameters:
        """The fields that are columns of the run table, by name, without those that are None."""
        values = ((name, getattr(self, name)) for name in COLUMNS)
        return {name: value for name, value in values if value is not None}

    @property
    def parameters(self) -> Parameters:
        """All fields and the recipe as one flat mapping, for trackers."""
        return {**self.columns, "vocabulary": self.vocabulary, "data_key": self.data_key, **self.recipe}


class Row(CellFields):
    """The record of one finished cell: everything that the run table, the report and MLflow need.

    The fields from `train_seconds` to `notes` describe the training; they are empty for a failed cell.
    """

    cell: str
    name: str
    study: str = ""
    protocol: str
    purpose: str = ""
    """Purpose of a cell outside the main study, such as `sensitivity`."""
    status: Status
    reason: str | None = None
    ended: float = 0.0
    """Time at which the cell finished, in Unix seconds. No two rows of a study have the same."""
    lost: tuple[str, ...] = ()
    """Causes of the lost trials."""
    revision: str = ""
    loss: float | None = None
    """Final validation loss in nats per token; None unless the cell is done."""
    bits_per_byte: float | None = None
    train_seconds: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    """Model FLOPs per second over the peak on the data sheet of the device, for all ranks."""
    memory_bytes: float | None = None
    epochs: float | None = None
    trained_share: float = 1.0
    """Fraction of its steps for which the cell was trained."""
    measures: dict[str, float] = {}
    """Measures other than the loss at the end, by name; see `trainables.progress.Evaluation`."""
    start: dict[str, float] = {}
    """Measures before the first step, by name."""
    device: str = ""
    trunk_steps: int = 0
    """Steps that were taken from the trunk of a shorter cell, whose row has their seconds."""
    resumed_from: int = 0
    """Step of the checkpoint from which the last trial continued; 0 for none."""
    notes: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def place(self) -> tuple[Any, ...]:
        """What the rows of a study are sorted by: the main study first, then compute, N, shape, tokens, rate, seed."""
        names = ("compute", "budget", "depth", "width", "tokens", "lr_factor", "seed")
        return self.purpose, *(getattr(self, name) or 0 for name in names), self.cell

    @property
    def trunk_tokens(self) -> int:
        """Of its tokens, those of the steps that were taken from a trunk."""
        return self.trunk_steps * self.tokens // int(self.recipe["steps"] or 0) if self.trunk_steps else 0

    def record(self, measures: Collection[str]) -> dict[str, Any]:
        """Return the row as one flat record of the run table, with these measures, None for those it lacks."""
        return {
            "cell": self.cell,
            **self.columns,
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "status": self.status,
            "reason": self.reason,
            "vocabulary": self.vocabulary,
            "epochs": self.epochs,
            "train_seconds": self.train_seconds,
            "tokens_per_second": self.tokens_per_second,
            "utilisation": self.utilisation,
            TRUNK_TOKENS: self.trunk_tokens,
            **{name: self.measures.get(name) for name in measures},
            "protocol": self.protocol,
            "purpose": self.purpose,
        }

    def without_curves(self) -> Self:
        """Return the row with the validation losses as its only curve, so that memory does not grow with a study."""
        losses = tuple(evaluation.model_copy(update={"measures": {}}) for evaluation in self.evaluations)
        return self.model_copy(update={"points": (), "evaluations": losses})


def in_table_order(rows: Mapping[str, Row]) -> list[Row]:
    """Return rows in the order of the run table."""
    return sorted(rows.values(), key=lambda row: row.place)


def failed_cells(rows: Mapping[str, Row]) -> dict[str, str]:
    """Return the reasons of the failed cells by their names, in the order of the run table."""
    return {row.name: row.reason or "" for row in in_table_order(rows) if row.status == "failed"}


def run_table(rows: Mapping[str, Row], source: str, *, with_order: bool = False) -> RunTable:
    """Return the run table of rows: one line for each, sorted by budget, shape, tokens, learning rate and seed.

    If cells were trained in addition to the main study, the column `purpose` names their purpose.

    Args:
        rows: of one study, as `study_rows` returns them.
        source: name of the study, for messages.
        with_order: whether the column `order` numbers the rows in the order in which they finished, from 1 on.

    Raises:
        InputError: there are no rows.
    """
    ended = sorted(rows.values(), key=lambda row: (row.ended, row.cell))
    order = {row.cell: rank for rank, row in enumerate(ended, 1)}
    # Only text has bytes, and few studies have sensitivity runs or trunks.
    absent = {
        *([BITS_PER_BYTE] if all(row.bits_per_byte is None for row in ended) else []),
        *([] if any(row.purpose for row in ended) else ["purpose"]),
        *([] if any(row.trunk_steps for row in ended) else [TRUNK_TOKENS]),
    }
    # Measures of single layers are in `layer_table`.
    measures = sorted({name for row in ended for name in row.measures if "/" not in name})
    records = [
        {
            **{name: value for name, value in row.record(measures).items() if name not in absent},
            **({"order": order[row.cell]} if with_order else {}),
        }
        for row in in_table_order(rows)
    ]
    return RunTable.of_records(records, f"the study {source!r}")
