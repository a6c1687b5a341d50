"""The display of a running study: a live table in a terminal, otherwise one line per cell."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from study.plan.cells import PlannedCell
from study.plan.plan import Plan, wall_seconds
from study.plan.table import duration
from trainables.progress import Progress, Result

#: Most lines that fit a screen. With more budgets the table has only depths; running cells fill the rest.
MOST_ROWS = 24
#: Number of slots from which the live table is drawn half as often: one line per running cell then costs most CPU.
MANY_SLOTS = 8


@dataclass
class _Running:
    planned: PlannedCell
    since: float
    share: float = 0.0
    loss: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class _Group:
    """Counts of the cells of one depth at one budget. Immutable, because another thread draws the table."""

    cells: int = 0
    ended: int = 0
    losses: int = 0
    total: float = 0.0
    """Sum of the losses."""

    def __add__(self, other: "_Group") -> "_Group":
        return _Group(
            self.cells + other.cells,
            self.ended + other.ended,
            self.losses + other.losses,
            self.total + other.total,
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.losses if self.losses else None


class Board:
    """The state of a study for its viewer: losses, running cells, and an estimate of the time left.

    It is updated as cells start and end, so the cost of drawing does not grow with the number of cells.
    """

    def __init__(self, plan: Plan, slots: int, total: int) -> None:
        """Begin without finished cells.

        Args:
            plan: the cells.
            slots: how many run at once.
            total: cells that will have ended at the end.
        """
        self.plan, self.slots, self.total = plan, slots, total
        self.losses: dict[str, float | None] = {}
        self.failed: dict[str, str] = {}
        self.running: dict[str, _Running] = {}
        self.began = time.monotonic()
        self.note = ""
        """The estimate of a search, in a sentence."""
        self.measured = self.estimated = 0.0
        self.groups: dict[tuple[float, int], _Group] = defaultdict(_Group)
        """The groups of the table, by budget and depth; of a search that chooses cells, only those it has chosen."""
        self._is_search = plan.search.chooses_cells
        self._listed = {planned.cell.key for planned in (plan.main if self._is_search else plan.cells)}
        self._missing = {planned.cell.key: planned for planned in plan.main}
        self._missing_seconds: dict[int, float] = defaultdict(float)
        """Estimated time of the missing cells, by number of ranks."""
        for planned in plan.main:
            self._missing_seconds[planned.layout.ranks] += planned.seconds
        for planned in () if self._is_search else plan.cells:
            self._count(planned, _Group(cells=1))

    @property
    def ended(self) -> int:
        """Cells that need no more work in this run."""
        return len(self.losses) + len(self.failed)

    def add_finished(self, losses: Mapping[str, float | None]) -> None:
        """Add the losses of cells that finished in earlier runs."""
        for key, loss in losses.items():
            if planned := self.plan.by_key(key):
                self.end(planned, loss)
            else:
                self.losses[key] = loss

    def start(self, planned: PlannedCell) -> None:
        """Add a cell that has started or starts again."""
        self._touch(planned)
        self.running[planned.cell.key] = _Running(planned, time.monotonic())

    def end(self, planned: PlannedCell, loss: float | None) -> None:
        """Move a cell to the finished ones, with a loss or without."""
        self._leave(planned)
        self.losses[planned.cell.key] = loss
        if loss is not None and planned.cell.key in self._listed:
            self._count(planned, _Group(losses=1, total=loss))

    def fail(self, planned: PlannedCell, reason: str) -> None:
        """Move a cell to those that failed in this run."""
        self._leave(planned)
        self.failed[planned.cell.key] = reason

    def seconds_left(self) -> float | None:
        """Return the time left: the plan's estimates of the missing cells, times their error so far."""
        # Copies, because another thread draws the table while cells start and end.
        begun = list(self.running.values())
        running = [r for r in begun if r.share > 0.02]
        measured = self.measured + sum(time.monotonic() - r.since for r in running)
        estimated = self.estimated + sum(r.planned.seconds * r.share for r in running)
        if estimated <= 0 or measured <= 0:
            return None
        # An adaptive search trains only some of the candidates.
        wanted = max(0, self.total - self.ended - len(begun))
        share = wanted / len(self._missing) if self._missing else 0
        work = [(seconds * share, ranks) for ranks, seconds in self._missing_seconds.items()]
        work += [(r.planned.seconds * (1 - r.share), r.planned.layout.ranks) for r in begun]
        return wall_seconds(work, max(1, self.slots)) * (measured / estimated)

    def _count(self, planned: PlannedCell, more: _Group) -> None:
        key = planned.budget, planned.cell.shape.depth
        self.groups[key] += more

    def _touch(self, planned: PlannedCell) -> None:
        if self._missing.pop(planned.cell.key, None):
            self._missing_seconds[planned.layout.ranks] -= planned.seconds
            if self._is_search:
                self._count(planned, _Group(cells=1))

    def _leave(self, planned: PlannedCell) -> None:
        self._touch(planned)
        self.running.pop(planned.cell.key, None)
        if planned.cell.key in self._listed:
            self._count(planned, _Group(ended=1))


class Viewer:
    """Shows a board, and the events of cells; see `study.run.tuner.CellCallback`."""

    def __init__(self, board: Board, console: Console) -> None:
        """Show `board` on `console`; nothing is drawn before the viewer is entered."""
        self.board, self.console = board, console
        rate = 1 if board.slots >= MANY_SLOTS else 2
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=rate, transient=True
        )
        self._is_terminal = console.is_terminal

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            self._live.stop()

    def started(self, planned: PlannedCell) -> None:
        """Show a cell that has started or starts again."""
        self.board.start(planned)

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """Show the progress of a running cell."""
        running = self.board.running.get(planned.cell.key)
        if running is None:
            return
        running.share = progress.step / progress.steps
        if progress.points:
            running.loss = progress.points[-1].train_loss
            running.rate = progress.points[-1].tokens_per_second

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """Show a cell that is done, was stopped early, or diverged."""
        board = self.board
        board.end(planned, result.loss)
        if not result.resumed_from:
            board.measured += result.train_seconds
            board.estimated += planned.seconds
        outcome = (
            f"loss {result.loss:.4f}" if result.status == "done" else f"{result.status}: {result.reason}"
        )
        self._line(
            f"{planned.title}  N={planned.cell.shape.budget_params:,}  {outcome}", result.train_seconds
        )

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """Show a cell that failed."""
        self.board.fail(planned, reason)
        self.console.print(f"[red]failed[/] {planned.title}: ", Text(reason))

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """Show that a trial was lost; its cell resumes from its checkpoint."""
        self.console.print(f"[yellow]again[/] {planned.title}: ", Text(reason))

    def _line(self, text: str, seconds: float) -> None:
        if not self._is_terminal:
            left = self.board.seconds_left()
            tail = f"  left about {duration(left)}" if left is not None and self.board.running else ""
            self.console.print(
                Text(f"[{self.board.ended}/{self.board.total}] {text}  {seconds:.1f} s{tail}"), soft_wrap=True
            )

    def render(self) -> RenderableType:
        """Draw the board."""
        board = self.board
        left = board.seconds_left()
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"{board.ended} of {board.total} cells", style="bold"),
            ProgressBar(total=max(1, board.total), completed=self._completed(), width=30),
            Text(f"{duration(time.monotonic() - board.began)} elapsed"),
            Text(f"about {duration(left)} left" if left is not None else "estimating time left", style="dim"),
        )
        table = self._table()
        parts: list[RenderableType] = [head, *([Text(board.note)] if board.note else []), table]
        begun = list(board.running.values())
        room = max(1, MOST_ROWS - table.row_count)
        for running in begun[:room]:
            loss = f"loss {running.loss:.3f}" if running.loss is not None else "starting"
            rate = f"{running.rate / 1000:,.0f}k tokens/s" if running.rate else ""
            row = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=1, completed=running.share, width=20)
            row.add_row(Text(f"{running.planned.title:<12}"), bar, Text(f"{loss}  {rate}", style="dim"))
            parts.append(row)
        if len(begun) > room:
            parts.append(Text(f"and {len(begun) - room} more", style="dim"))
        return Group(*parts)

    def _completed(self) -> float:
        return self.board.ended + sum(r.share for r in list(self.board.running.values()))

    def _table(self) -> Table:
        """Return the mean loss by budget (row) and depth (column), with the number of finished cells."""
        groups = dict(self.board.groups)
        depths = sorted({depth for _, depth in groups})
        budgets = sorted({budget for budget, _ in groups})
        by_budget = len(budgets) <= MOST_ROWS
        if not by_budget:
            groups = {(0.0, d): sum((g for (_, e), g in groups.items() if e == d), _Group()) for d in depths}
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("N" if by_budget else "", justify="right", style="dim")
        for depth in depths:
            table.add_column(f"L={depth}", justify="right")
        for budget in budgets if by_budget else [0.0]:
            row = [groups.get((budget, depth), _Group()) for depth in depths]
            known = [group.mean for group in row if group.mean is not None]
            best = min(known) if by_budget and len(known) > 1 else None
            table.add_row(f"{budget:,.0f}" if by_budget else "all", *(_cell(g, g.mean == best) for g in row))
        return table


def _cell(group: _Group, best: bool) -> Text:
    if not group.cells:
        return Text("-", style="dim")
    count = f" {group.ended}/{group.cells}"
    if group.mean is None:
        return Text(f"·{count}", style="dim")
    return Text.assemble((f"{group.mean:.4f}", "bold green" if best else ""), (count, "dim"))
