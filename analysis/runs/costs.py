"""The costs of shapes, each measured alone: the rows of `costs.csv`, written and read."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from analysis.intervals import LAYER_WEIGHTS
from core.errors import InputError, shortened
from core.files import write_text

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class ShapeCosts:
    """What one shape costs on one device at one batch. None was not measured.

    Attributes:
        depth, width, heads, kv_heads: of the shape; as many `kv_heads` as heads where they are not shared.
        params: all parameters of the model, with its embedding.
        device: name in a spec, such as cpu or h100-80gb.
        machine: the processors that were measured, such as a CPU's name and its cores.
        precision: of training; weights and cache have it in prefill and decode.
        context: tokens of a sequence.
        batch: sequences that are generated at a time.
        train_tokens_per_second: in training, at the study's own batch.
        prefill_ms: of the prompt of all sequences; the prompt is the context without the new tokens.
        decode_ms: of one new token for all sequences.
        kv_bytes_per_token: of the cache, for each token of a sequence.
        unsteady: measures whose repetitions did not agree, or beside which other work ran: a subset of
            train, prefill and decode.
        date: day of the measurement.
        versions: of the libraries.
    """

    depth: Count
    width: Count
    heads: Count
    kv_heads: Count
    params: Count
    device: Text
    machine: Text
    precision: Text
    context: Count
    batch: Count
    train_tokens_per_second: Positive | None = None
    prefill_ms: Positive | None = None
    decode_ms: Positive | None = None
    kv_bytes_per_token: Count | None = None
    unsteady: tuple[str, ...] = ()
    date: Text
    versions: Text

    def size(self, layer_weights: float) -> float:
        """N = `layer_weights`·L·d²."""
        return layer_weights * self.depth * self.width**2

    @property
    def shape(self) -> tuple[int, ...]:
        """Depth, width, heads, heads of keys and values, and all parameters."""
        return self.depth, self.width, self.heads, self.kv_heads, self.params

    @property
    def place(self) -> tuple[str, str]:
        """Where it was measured: device and machine."""
        return self.device, self.machine

    @property
    def measured_as(self) -> tuple[object, ...]:
        """What the rows of one shape on one device share, whatever their batch."""
        return (*self.place, *self.shape, self.precision, self.context)


#: Name of the file in the folder of a study.
COSTS = "costs.csv"
COLUMNS = tuple(field.name for field in fields(ShapeCosts))
_ROW = TypeAdapter(ShapeCosts)


def write_costs(path: Path, rows: Sequence[ShapeCosts]) -> Path:
    """Write rows in one step, by device, size, depth and batch; empty cells were not measured."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in sorted(
        rows, key=lambda row: (row.place, row.size(LAYER_WEIGHTS), row.depth, row.width, row.batch)
    ):
        table.writerow({**asdict(row), "unsteady": " ".join(row.unsteady)})
    return write_text(path, text.getvalue())


def read_costs(path: Path) -> list[ShapeCosts]:
    """Read the rows of a `costs.csv`; none if there is no such file.

    Raises:
        InputError: the file cannot be read, a column is missing or not known, or a value is wrong; it names the line.
    """
    if not path.exists():
        return []
    fix = "Delete the file, and `interplay cost` measures again."
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file, strict=True)
            heading = tuple(table.fieldnames or ())
            if sorted(heading) != sorted(COLUMNS):
                wrong = sorted(set(heading) ^ set(COLUMNS)) or ["one is there twice"]
                raise InputError(
                    f"{path} has not the columns of a costs.csv: {shortened(', '.join(wrong))}. {fix}"
                )
            rows = []
            for line in table:
                if None in line or None in line.values():
                    raise InputError(f"{path}, line {table.line_num} has not {len(COLUMNS)} cells. {fix}")
                try:
                    rows.append(_row(line))
                except ValidationError as error:
                    first = error.errors(include_url=False)[0]
                    raise InputError(
                        f"{path}, line {table.line_num}: {'.'.join(map(str, first['loc']))}: {first['msg']} (it is "
                        f"{shortened(repr(first['input']))}). {fix}"
                    ) from error
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}). {fix}") from error


def costs_of_one_device(rows: Sequence[ShapeCosts]) -> list[ShapeCosts]:
    """Return the rows of the device and machine that has most of them; of several, the first by name."""
    places = sorted({row.place for row in rows})
    most = max(places, key=lambda place: sum(row.place == place for row in rows), default=None)
    return [row for row in rows if row.place == most]


def measured_costs(rows: Iterable[ShapeCosts]) -> dict[tuple[int, ...], dict[str, float]]:
    """Return the costs of each shape (`ShapeCosts.shape`) by name, those of one device and machine.

    Latencies of a batch above 1 have its number in their name, as `decode_ms_batch_8`.
    """
    costs: dict[tuple[int, ...], dict[str, float]] = {}
    for row in costs_of_one_device(list(rows)):
        suffix = "" if row.batch == 1 else f"_batch_{row.batch}"
        values = {
            f"prefill_ms{suffix}": row.prefill_ms,
            f"decode_ms{suffix}": row.decode_ms,
            # The same at every batch.
            "train_tokens_per_second": row.train_tokens_per_second,
            "kv_bytes_per_token": row.kv_bytes_per_token,
        }
        given = {name: float(value) for name, value in values.items() if value is not None}
        costs[row.shape] = costs.get(row.shape, {}) | given
    return costs


def _row(line: dict[str, str]) -> ShapeCosts:
    """Return the row of a line; a ValidationError if a value is missing or wrong."""
    values: dict[str, object] = {name: value for name, value in line.items() if value}
    values["unsteady"] = tuple(line["unsteady"].split())
    return _ROW.validate_python(values)
