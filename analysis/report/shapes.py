"""The table of best shapes, for a terminal and for a page; loads no numerical library."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.law.shape import Shape
from analysis.numbers import percent, short, span
from analysis.tables import Column, Columns, Table, table_of


def shapes_table(
    title: str,
    shapes: Sequence[Shape],
    level: float | None,
    more: Mapping[str, Sequence[str | None]] | None = None,
    note: str = "",
) -> Table:
    """Shapes with `more` columns by name; `level` is that of the intervals, None if they have none."""
    interval = "interval" if level is None else percent(level)
    detail = f"and {interval} interval" if level else ""
    columns: Columns = {
        Column("N"): lambda shape: short(shape.params),
        Column("depth L*", detail, look="strong"): lambda shape: shape.depth and str(shape.depth),
        Column(interval, under="depth L*"): lambda shape: span(shape.depth_interval),
        Column("width d*", detail, look="strong"): lambda shape: shape.width and str(shape.width),
        Column(interval, under="width d*"): lambda shape: span(shape.width_interval),
        Column("measured range", right=False, look="tag"): lambda shape: (
            "outside" if shape.extrapolated else "inside"
        ),
    }
    table = table_of(title, shapes, columns, note)
    rows = [(*row, *others) for row, *others in zip(table.rows, *(more or {}).values(), strict=True)]
    return replace(table, columns=(*table.columns, *map(Column, more or {})), rows=rows)
