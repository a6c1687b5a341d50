"""What the verbs print: JSON documents, tables, and sentences with a value to copy."""

import json
import os
import re
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from analysis.audit.recommend import Comparison
from analysis.law.answer_words import compute_sentence, limit_sentence
from analysis.law.at_limit import COST_ERROR, AtLimit
from analysis.law.shape import ComputeShape, Recommendation, buildable_width, flops_hint
from analysis.tables import EMPTY, Column, Columns, Table, table_of
from analysis.units import budget_number
from core.command_line import call, option, relative
from core.errors import InputError
from core.numbers import digits, ends, human, layers, percent, short, span
from interplay.result import VerbResult
from study.errors import SpecError

if TYPE_CHECKING:
    # A recommendation from a published law loads no numerical library.
    from analysis.fit.document import Fit
    from analysis.fit.next_runs import NextRuns
    from analysis.law.reading import AtSize

#: Stands for a blank at which no line ends: textwrap breaks lines at no-break spaces too.
_JOINED = "\x00"
#: Width of output that goes to a file or a pipe, where rich would take 80 columns.
FILE_COLUMNS = 120


@contextmanager
def to_reader() -> Iterator[None]:
    """End the command with status 0 if the reader of what is printed (head, less) has ended: this is no error.

    Typer and rich end with status 1, and only if they write after the reader has ended.

    Raises:
        InputError: what is printed cannot be written, as to a full disk.
    """
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        sys.exit(0)
    except OSError as error:
        # At its end Python writes the rest once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"What the command prints cannot be written: {error.strerror}.") from error


def show(result: VerbResult, *, as_json: bool) -> None:
    """Print the JSON document of a result, or its view for the terminal."""
    document, view = (result.to_json(), None) if as_json else (None, result.__rich__())
    with to_reader():
        if view is None:
            print(json.dumps(document, indent=2, allow_nan=False))
        else:
            _print_view(view)


def _print_view(view: RenderableType) -> None:
    # A process may be started without a standard output.
    is_file = not (sys.stdout and sys.stdout.isatty()) and "COLUMNS" not in os.environ
    console = Console(highlight=False, width=FILE_COLUMNS if is_file else None)
    console.print(view, soft_wrap=isinstance(view, Text), crop=False)


class Sentence:
    """A sentence for the terminal, whose lines end neither in a blank, before a unit, nor inside a command.

    A command that is longer than the line is not broken: a line break in it would be pasted with it.
    """

    def __init__(self, text: str, style: str = "") -> None:
        """`style` is one of rich."""
        self.text, self.style = text, style

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines for a console of this width."""
        joined = re.sub(r"(?<=\d) (?=%|[a-z×])|(?<=×) (?=\d)", _JOINED, self.text)
        joined = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", _JOINED), joined)
        lines = textwrap.wrap(joined, options.max_width, break_on_hyphens=False, break_long_words=False)
        for line in lines or [""]:
            yield Text(line.replace(_JOINED, " "), style=self.style, no_wrap=True, overflow="ignore")


@contextmanager
def working(doing: str, after: float = 1) -> Iterator[None]:
    """Show on a terminal, on stderr, what takes longer than `after` seconds."""
    status = Console(stderr=True).status(doing)
    if not status.console.is_terminal:
        yield
        return
    timer = threading.Timer(after, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # or it could start what is stopped here
        status.stop()


def say(text: str, value: object) -> None:
    """Print a sentence and a value to copy, without markup and on one line; a path relative to the working folder."""
    value = relative(value) if isinstance(value, Path) else value
    Console(highlight=False).print(Text.assemble(text, (str(value), "bold")), soft_wrap=True)


def pasteable(text: str, words: str = "") -> Text:
    """Return a sentence, and a command to copy, on one line however long it is."""
    return Text.assemble(text, (words, "bold"), no_wrap=True, overflow="ignore")


def refuse_file(folder: Path, name: str) -> None:
    """Raise a `SpecError` if the option `name` names a file instead of a folder."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{option(name, folder)} is a file; name a folder, existing or not.")


def text_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str | None]], left: Sequence[str]
) -> RenderableType:
    """Return a table for the terminal; the columns in `left` are aligned to the left, the others to the right."""
    return rich_table(Table(title, tuple(Column(name, right=name not in left) for name in names), rows))


def rich_table(table: Table) -> RenderableType:
    """Return a table for a terminal; `under` columns become separate columns, unless they are empty."""
    # Padding on one side only, so that the tables fit into 80 columns.
    view = RichTable(
        title=table.title or None, box=None, title_justify="left", header_style="dim", padding=(0, 1, 0, 0)
    )
    shown = []
    for index, column in enumerate(table.columns):
        if column.where != "page" and (not column.under or any(row[index] for row in table.rows)):
            shown.append((index, column))
            view.add_column(column.name, justify="right" if column.right else "left")
    for row in table.rows:
        view.add_row(*(_cell(column, row[index]) for index, column in shown))
    return view


def _cell(column: Column, text: str | None) -> Text:
    if text is None:
        return Text("" if column.under else EMPTY)
    return Text(text, style="yellow" if column.look == "tag" and text == "outside" else "")


def _dim(*texts: str) -> list[RenderableType]:
    return [Sentence(text, "dim") for text in texts if text]


def fit_table(result: "Fit", next_runs: "NextRuns | None" = None) -> RenderableType:
    """Return the answer, then crossings, law, alternatives and best shapes as tables for a terminal.

    Without `next_runs`, of a plan, they are estimated.
    """
    from analysis.fit.words import (
        answers,
        epochs_sentence,
        law_sentence,
        lowest_loss_sentence,
        noise_sentence,
    )
    from analysis.report.tables import (
        best_table,
        compute_table,
        crossings_table,
        laws_table,
        rate_shifts_table,
    )

    parts: list[RenderableType] = [*(Sentence(sentence) for sentence in answers(result, next_runs)), Text("")]
    for table in (compute_table(result), crossings_table(result)):
        if table is not None:
            parts += [rich_table(table), *_dim(table.note)]
    parts.append(Sentence(law_sentence(result), "" if result.law.status == "ok" else "yellow"))
    parts.append(rich_table(laws_table(result)))
    more = (best_table(result), rate_shifts_table(result))
    parts += [rich_table(table) for table in more if table is not None]
    repeats = epochs_sentence(result.epochs) if result.epochs else ""
    parts += _dim(
        " ".join(filter(None, (repeats, noise_sentence(result), lowest_loss_sentence(result)))),
        _left_out_text(result),
    )
    return Group(*parts, *(Sentence(text, "yellow") for text in result.warnings))


def _left_out_text(result: "Fit") -> str:
    """How many rows are left out, and the most frequent reasons; empty if all are used."""
    from analysis.fit.words import reasons_phrase, used_sentence

    count = len(result.left_out)
    if not count or used_sentence(result):
        return ""  # the first line has it
    used = f"{result.used + result.merged} of {result.used + count} rows are used"
    reasons = reasons_phrase(result)
    return (
        f"{used}. Left out, or merged into others: {reasons}. `{option('json')}` has the reason of each row."
    )


def recommendation_table(source: str, shapes: Sequence[Recommendation]) -> RenderableType:
    """Return recommended shapes as a table for a terminal, with a note on the intervals."""
    level = next((shape.level for shape in shapes if shape.level is not None), None)
    theory = any(shape.source == "theory" for shape in shapes)
    columns: Columns = {Column("N"): lambda shape: short(shape.params)} | _shape_columns(level, theory=theory)
    step = next((shape.width_step for shape in shapes if shape.width_step), None)
    multiple = f"{step}, as the widths of the study are" if step else "64, or of 8 below 256"
    notes = [f"d* is a multiple of {multiple}; exact d* fills N at {'L' if theory else 'L*'}."]
    if theory:
        notes.append("A rule of thumb: it has no interval and no limit of size, and it is no best depth.")
    else:
        columns[Column("fitted depths", right=False, look="tag")] = lambda shape: (
            None if shape.depth is None else "outside" if shape.extrapolated else "inside"
        )
    if any(shape.transition for shape in shapes):
        columns[Column(f"N from which deeper wins, {percent(level or 0)}")] = lambda shape: (
            shape.transition and span(shape.transition.params_interval, short)
        )
        notes.append(
            f"Intervals: {percent(level or 0)} at fixed N, of the parameters of the law; the error of its form is not "
            "in them. Deeper wins: the interval of the one size N above which deeper models have the lower loss."
        )
    if any(shape.measured for shape in shapes):
        columns[Column("measured there", right=False)] = lambda shape: (
            shape.measured and _best_measured(shape.measured)
        )
    if any(shape.unbounded and shape.source == "band" for shape in shapes):
        notes.append("The laws set no limit on the open side of an interval.")
    checks = dict.fromkeys(shape.learning_rate for shape in shapes if shape.learning_rate)
    return Group(
        *(Text(_sentence(shape)) for shape in shapes if shape.source not in ("published", "theory")),
        rich_table(table_of(source, shapes, columns)),
        *_dim(*notes),
        *_near_optimal_tables(shapes),
        *map(Text, checks),
        *_flops_hints([shape.params for shape in shapes]),
    )


def _shape_columns(level: float | None, *, theory: bool = False) -> Columns:
    interval = "interval" if level is None else percent(level)
    name = "least L" if theory else "L*"
    columns: Columns = {Column(f"depth {name}"): lambda shape: shape.depth and str(shape.depth)}
    if not theory:
        columns[Column(interval, under=f"depth {name}")] = lambda shape: (
            None if shape.depth_interval == (None, None) else ends(shape.depth_interval, between="–")
        )
    columns[Column("width d*")] = lambda shape: shape.width and f"{shape.width:,}"
    columns[Column("exact d*")] = lambda shape: shape.width_exact and digits(shape.width_exact, 4)
    if not theory:
        columns[Column(interval, under="width d*")] = lambda shape: (
            None if shape.width_interval == (None, None) else span(shape.width_interval)
        )
    return columns


def comparison_table(comparisons: Sequence[Comparison]) -> RenderableType:
    """Return the shapes by all published evidence: a sentence per size, and a table of one row per law."""
    rows = [(item, shape) for item in comparisons for shape in item.shapes]
    columns: Columns = {
        Column("N"): lambda row: short(row[0].params),
        Column("by", right=False): lambda row: row[1].law.split(" (")[0].split(",")[0],
        Column("depth L*"): lambda row: row[1].depth and str(row[1].depth),
        Column("95 %", under="depth L*"): lambda row: (
            row[1].depth and ends(row[1].depth_interval, between="–")
        ),
        Column("width d*"): lambda row: row[1].width and f"{row[1].width:,}",
        Column("exact d*"): lambda row: row[1].width_exact and digits(row[1].width_exact, 4),
        Column("fitted depths", right=False, look="tag"): lambda row: (
            None if row[1].depth is None else "outside" if row[1].extrapolated else "inside"
        ),
        Column(f"depths within {comparisons[0].within:g} nats"): lambda row: (
            row[1].near_optimal and row[1].near_optimal.depths_text
        ),
    }
    reasons = dict.fromkeys(
        f"{shape.law.split(' (')[0]} states no depth at {human(item.params)}: {shape.reason}."
        for item, shape in rows
        if shape.depth is None
    )
    return Group(
        *(Text(item.sentence) for item in comparisons),
        rich_table(table_of("all published evidence", rows, columns)),
        *_dim(
            "The 95 % are those of each law's parameters; the error of its form is not in them, so the laws may differ "
            "by more. d* is a multiple of 64, or of 8 below 256. Levine et al. give no losses.",
            *reasons,
        ),
        *_flops_hints([item.params for item in comparisons]),
    )


def compute_shapes_table(source: str, shapes: Sequence[ComputeShape]) -> RenderableType:
    """Return the shapes at budgets of FLOPs or of training time: a sentence for each, and a table."""
    published = any(shape.source == "published" for shape in shapes)
    is_flops = shapes[0].budget_unit == "FLOPs"
    columns: Columns = {
        Column("FLOPs" if is_flops else "training time"): lambda shape: budget_number(
            shape.budget, shape.budget_unit
        ),
        Column("depth L*"): lambda shape: shape.depth and str(shape.depth),
        Column("95 %" if published else "interval", under="depth L*"): lambda shape: (
            None if shape.depth_interval == (None, None) else ends(shape.depth_interval, between="–")
        ),
        Column("width d*"): lambda shape: shape.width and f"{shape.width:,}",
        Column("N"): lambda shape: shape.params and short(shape.params),
        Column("tokens"): lambda shape: shape.tokens and short(shape.tokens),
        Column("per parameter", under="tokens"): lambda shape: (
            shape.tokens and digits(shape.tokens / shape.params)
        ),
        Column("fitted range" if published else "measured range", right=False, look="tag"): lambda shape: (
            "outside" if shape.extrapolated else "inside"
        ),
    }
    step = next((shape.width_step for shape in shapes if shape.width_step), None)
    multiple = f"{step}, as the widths of the study are" if step else "64, or of 8 below 256"
    interval = (
        "The 95 % are those of the depth at this N, by the parameters of the law; the error of its form is not in them."
        if published
        else "The interval reaches to the next measured depths that are excluded."
    )
    return Group(
        *(Sentence(compute_sentence(shape)) for shape in shapes),
        rich_table(table_of(source, shapes, columns)),
        *_dim(
            f"N and tokens have the least loss for this {'compute' if is_flops else 'time'} and depth. d* is a "
            f"multiple of {multiple}. {interval}"
        ),
    )


def limit_table(source: str, answer: AtLimit) -> RenderableType:
    """Return the answer at a limit of cost: a sentence, and a row per depth."""
    columns: Columns = {
        Column("depth"): lambda shape: str(shape.depth),
        Column("width"): lambda shape: f"{buildable_width(shape.width, answer.width_step):,}",
        Column("N"): lambda shape: short(shape.params),
        Column("loss"): lambda shape: f"{shape.loss:.4f}",
        Column("above the best"): lambda shape: f"{shape.excess:.4f}",
        Column("standard error"): lambda shape: (
            None if shape.excess_se is None or shape is answer.best else f"{shape.excess_se:.4f}"
        ),
        Column("may be best", right=False): lambda shape: (
            None if answer.near is None else "yes" if shape.depth in answer.near else "no"
        ),
    }
    if not answer.shapes:
        return Sentence(limit_sentence(answer))
    return Group(
        Sentence(limit_sentence(answer)),
        rich_table(table_of(source, answer.shapes, columns)),
        *_dim(
            f"Each depth at the largest N within the limit, by costs measured alone with an error of "
            f"{percent(COST_ERROR)}."
        ),
    )


def _flops_hints(sizes: Sequence[float]) -> list[Text]:
    return [Text(hint, style="yellow") for hint in dict.fromkeys(map(flops_hint, sizes)) if hint]


def _sentence(shape: Recommendation) -> str:
    """The shape that a fit recommends for one N, by which rule and what it can cost; or why it states none."""
    at, near = f"At {human(shape.params)} parameters", shape.near_optimal
    if shape.depth is not None:
        text = f"{at}: {layers(shape.depth)} × {shape.width:,} wide, by {shape.law}"
        if near is not None and near.most is not None:
            text += f"; it loses at most {near.most:.4f} {shape.unit} against the best depth"
        return f"{text} ({shape.reason})." if shape.reason else f"{text}."
    text = f"{at} no depth is stated: {shape.reason}."
    if shape.source == "band":
        text += f" The best depth lies within {ends(shape.depth_interval)}."
    return f"{text} By published evidence: {call('recommend', f'{shape.params:.6g}')}"


def _near_optimal_tables(shapes: Sequence[Recommendation]) -> list[RenderableType]:
    """Per source of losses: the depths that lose next to nothing at each N, and what L* loses if that is more."""
    rows: dict[str, list[tuple[str | None, ...]]] = {}
    within, unit = 0.0, "nats"
    for shape in shapes:
        if near := shape.near_optimal:
            within, unit = near.within, "nats" if shape.unit == "nats per token" else shape.unit
            row = (human(shape.params), near.depths_text, near.lost_text)
            rows.setdefault(f"by the losses of {near.losses}", []).append(row)
    names = ("N", f"depths within {within:.3g} {unit} of the best", f"{unit} that L* loses")
    return [
        # By its own losses the best depth loses nothing.
        text_table(title, names, lines, left=())
        if any(line[2] not in (None, "0.0000") for line in lines)
        else text_table(title, names[:2], [line[:2] for line in lines], left=())
        for title, lines in rows.items()
    ]


def _best_measured(measured: "AtSize") -> str:
    others = [str(depth) for depth in measured.near or () if depth != measured.depth]
    # The best of two depths is weak evidence if many were trained.
    among = " of 2" if len(measured.shapes) == 2 else ""
    return f"depth {measured.depth}{among}" + (f" (or {', '.join(others)})" if others else "")
