"""The tables of `fit` and `recommend` for a terminal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from analysis.law.shape import Measured, Shape
from analysis.numbers import counted, ends, human, layers, percent, short, span
from analysis.tables import EMPTY, Column, Columns, Table, table_of
from study.results.recommend import LEAST_TRIALS

if TYPE_CHECKING:
    # A recommendation from a published law loads no numerical library.
    from analysis.fit.document import Fit

#: Reasons of left-out rows that are listed.
MOST_REASONS = 3
#: Tags that need attention.
_ALERTS = ("outside",)


def rich_table(table: Table) -> RenderableType:
    """Return a table for a terminal; `under` columns become separate columns, unless they are empty."""
    # Padding on one side only, so that the tables fit into 80 columns.
    view = RichTable(
        title=table.title or None, box=None, title_justify="left", header_style="dim", padding=(0, 1, 0, 0)
    )
    shown = [
        (index, column)
        for index, column in enumerate(table.columns)
        if column.where != "page" and (not column.under or any(row[index] for row in table.rows))
    ]
    for _, column in shown:
        view.add_column(column.name, justify="right" if column.right else "left")
    for row in table.rows:
        view.add_row(*(_cell(column, row[index]) for index, column in shown))
    return view


def _cell(column: Column, text: str | None) -> Text:
    if text is None:
        return Text("" if column.under else EMPTY)
    return Text(text, style="yellow" if column.look == "tag" and text in _ALERTS else "")


def fit_table(result: "Fit") -> RenderableType:
    """Return the answer, then crossings, law, alternatives and best shapes as tables for a terminal."""
    from analysis.fit.sentences import answers, law_sentence, noise_sentence
    from analysis.report.tables import best_table, crossings_table, laws_table, rate_shifts_table

    parts: list[RenderableType] = [*(Text(sentence) for sentence in answers(result)), Text("")]
    if (crossings := crossings_table(result)) is not None:
        parts += [rich_table(crossings), *_dim([crossings.note])]
    parts.append(Text(law_sentence(result), style="" if result.law.status == "ok" else "yellow"))
    if max((len(item.trials) for item in result.held_out), default=0) >= LEAST_TRIALS:
        parts.append(rich_table(laws_table(result)))
    more = (best_table(result), rate_shifts_table(result))
    parts += [rich_table(table) for table in more if table is not None]
    read = (result.epochs.sentence if result.epochs else "", noise_sentence(result))
    parts += _dim([" ".join(filter(None, read)), _left_out_text(result)])
    return Group(*parts, *(Text(text, style="yellow") for text in result.warnings))


def _left_out_text(result: "Fit") -> str:
    """How many rows are left out, and the most frequent reasons; empty if all are used."""
    count = len(result.left_out)
    if not count:
        return ""
    reasons = Counter(str(item["reason"]) for item in result.left_out).most_common()
    shown = "; ".join(f"{number} × {reason}" for reason, number in reasons[:MOST_REASONS])
    more = (
        f"; and {counted(len(reasons) - MOST_REASONS, 'other reason')}" if len(reasons) > MOST_REASONS else ""
    )
    return f"{result.used} of {result.used + count} rows are used. Left out: {shown}{more}. fit.json has each row's."


def _dim(texts: Sequence[str]) -> list[RenderableType]:
    return [Text(text, style="dim") for text in texts if text]


def recommendation_table(source: str, shapes: Sequence[Shape]) -> RenderableType:
    """Return recommended shapes as a table for a terminal, with a note on the intervals."""
    level = next((shape.level for shape in shapes if shape.level is not None), None)
    interval = "interval" if level is None else percent(level)
    columns: Columns = {
        Column("N"): lambda shape: short(shape.params),
        Column("depth L*"): lambda shape: shape.depth and str(shape.depth),
        Column(interval, under="depth L*"): lambda shape: span(shape.depth_interval),
        Column("width d*"): lambda shape: shape.width and str(shape.width),
        Column(interval, under="width d*"): lambda shape: span(shape.width_interval),
        Column("measured range", right=False, look="tag"): lambda shape: (
            "outside" if shape.extrapolated else "inside"
        ),
    }
    notes = []
    if any(shape.transition for shape in shapes):
        columns[Column("overtaken at")] = lambda shape: span(shape.transition.params_interval, short)
        notes = [
            f"Intervals: {percent(level or 0)} at fixed N. Overtaken at: the N from which deeper models win."
        ]
    if any(shape.measured for shape in shapes):
        columns[Column("best measured there")] = lambda shape: (
            shape.measured and _best_measured(shape.measured)
        )
    sentences = [Text(_sentence(shape)) for shape in shapes if shape.source != "published"]
    checks = dict.fromkeys(shape.learning_rate for shape in shapes if shape.learning_rate)
    if any(shape.unbounded and shape.source not in ("measured", "none") for shape in shapes):
        notes.append("The laws set no limit on the open side of an interval.")
    table = rich_table(table_of(source, shapes, columns))
    return Group(*sentences, table, *_dim(notes), *_near_optimal_tables(shapes), *map(Text, checks))


def _sentence(shape: Shape) -> str:
    """The shape that a fit recommends for one N, and by which rule; or why it states none."""
    at = f"At {human(shape.params)} parameters"
    if shape.depth is not None:
        return f"{at}: {layers(shape.depth)} × {shape.width:,} wide, by {shape.law}."
    if shape.source == "none":
        return f"{at} no depth is stated: {shape.reason}."
    agree = f" The laws agree up to N = {human(shape.agree_to)}." if shape.agree_to else ""
    return (
        f"{at} no depth is stated: {shape.reason}. The laws give {ends(shape.depth_interval)} layers.{agree}"
    )


def _near_optimal_tables(shapes: Sequence[Shape]) -> list[RenderableType]:
    """Per source of losses: the depths that lose next to nothing at each N, and what L* itself loses."""
    tables: dict[str, Table] = {}
    for shape in shapes:
        if near := shape.near_optimal:
            names = ("N", f"depths within {near.within:g} nats of the best", "nats lost by L*")
            title = f"by the losses of {near.losses}"
            table = tables.setdefault(title, Table(title, tuple(map(Column, names)), []))
            row = (human(shape.params), near.depths_text, near.lost_text)
            tables[title] = replace(table, rows=[*table.rows, row])
    return [rich_table(table) for table in tables.values()]


def _best_measured(found: Measured) -> str:
    others = [str(depth) for depth in found.near or () if depth != found.depth]
    # The best of two depths is weak evidence if many were trained.
    among = " of 2" if found.compared == 2 else ""
    return f"depth {found.depth}{among}" + (f" (or {', '.join(others)})" if others else "")
