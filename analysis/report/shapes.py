"""The table of best shapes, for a terminal and for a page; loads no numerical library."""

from collections.abc import Mapping, Sequence

from analysis.law.shape import Shape
from analysis.numbers import percent, short, span
from analysis.tables import Column, Table


def shapes_table(
    title: str,
    shapes: Sequence[Shape],
    level: float | None,
    more: Mapping[str, Sequence[str | None]] | None = None,
) -> Table:
    """Shapes with `more` columns by name; `level` is that of the intervals, None if they have none."""
    interval = "interval" if level is None else percent(level)
    columns = (
        Column("N"),
        Column("depth L*", f"and {interval} interval" if level else "", look="strong"),
        Column(interval, under="depth L*"),
        Column("width d*", f"and {interval} interval" if level else "", look="strong"),
        Column(interval, under="width d*"),
        Column("measured range", right=False, look="tag"),
        *(Column(name) for name in more or {}),
    )
    rows = [
        (
            short(shape.params),
            None if shape.depth is None else str(shape.depth),
            span(shape.depth_interval),
            None if shape.width is None else str(shape.width),
            span(shape.width_interval),
            "outside" if shape.extrapolated else "inside",
            *others,
        )
        for shape, *others in zip(shapes, *(more or {}).values(), strict=True)
    ]
    return Table(title, columns, rows)
