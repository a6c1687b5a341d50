"""What a person sees while a study runs: a live table in a terminal, one line a cell anywhere else."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from study.plan import Plan, PlannedCell, wall_seconds
from study.tables import duration
from trainables.progress import Progress, Result

#: More rows than this do not fit a screen; the table then counts cells by depth only.
MOST_ROWS = 24


@dataclass
class _Running:
    planned: PlannedCell
    since: float
    share: float = 0.0
    loss: float | None = None
    rate: float | None = None


@dataclass
class Board:
    """The state of a study as its viewer needs it: losses, running cells, and an estimate of the time left."""

    plan: Plan
    slots: int
    total: int
    losses: dict[str, float | None] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, _Running] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    note: str = ""
    """What a search knows, in a sentence."""
    measured: float = 0.0
    estimated: float = 0.0

    @property
    def ended(self) -> int:
        """Cells that need no more work in this run."""
        return len(self.losses) + len(self.failed)

    def touched(self) -> list[PlannedCell]:
        """The cells that run or have ended: of those a search may train most never will."""
        keys = {*self.losses, *self.failed, *self.running}
        return [planned for planned in self.plan.main if planned.cell.key in keys]

    def seconds_left(self) -> float | None:
        """Time left: the plan's estimates of the missing cells, corrected by how wrong they were so far."""
        running = [r for r in self.running.values() if r.share > 0.02]
        measured = self.measured + sum(time.monotonic() - r.since for r in running)
        estimated = self.estimated + sum(r.planned.seconds * r.share for r in running)
        if estimated <= 0 or measured <= 0:
            return None
        missing = [
            p
            for p in self.plan.main
            if p.cell.key not in self.losses
            and p.cell.key not in self.failed
            and p.cell.key not in self.running
        ]
        # An adaptive search tries only some of the candidates.
        wanted = max(0, self.total - self.ended - len(self.running))
        share = wanted / len(missing) if missing else 0
        work = [(p.seconds * share, p.layout.ranks) for p in missing]
        work += [(r.planned.seconds * (1 - r.share), r.planned.layout.ranks) for r in self.running.values()]
        return wall_seconds(work, max(1, self.slots)) * (measured / estimated)


class Viewer:
    """Shows a board; a `Listener`'s events pass through here on their way to the screen."""

    def __init__(self, board: Board, console: Console) -> None:
        """Show `board` on `console`; nothing is drawn before the viewer is entered."""
        self.board, self.console = board, console
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2, transient=True)
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
        """A cell has begun, or begins again."""
        self.board.running[planned.cell.key] = _Running(planned, time.monotonic())

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """A running cell has news."""
        running = self.board.running.get(planned.cell.key)
        if running is None:
            return
        running.share = progress.step / progress.steps
        if progress.points:
            running.loss = progress.points[-1].train_loss
            running.rate = progress.points[-1].tokens_per_second

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """A cell is done, was stopped, or diverged."""
        board = self.board
        board.running.pop(planned.cell.key, None)
        board.losses[planned.cell.key] = result.loss
        if not result.resumed_from:
            board.measured += result.train_seconds
            board.estimated += planned.seconds
        outcome = (
            f"loss {result.loss:.4f}" if result.status == "done" else f"{result.status}: {result.reason}"
        )
        self._line(
            f"{planned.cell.name}  N={planned.cell.shape.budget_params:,}  {outcome}", result.train_seconds
        )

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """A cell failed for good in this run."""
        self.board.running.pop(planned.cell.key, None)
        self.board.failed[planned.cell.key] = reason
        self.console.print(f"[red]failed[/] {planned.cell.name}: ", Text(reason))

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """A trial was lost; its cell goes on from its checkpoint."""
        self.console.print(f"[yellow]again[/] {planned.cell.name}: ", Text(reason))

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
            Text(f"{duration(time.monotonic() - board.began)} gone"),
            Text(f"about {duration(left)} left" if left is not None else "estimating", style="dim"),
        )
        parts: list[RenderableType] = [head, *([Text(board.note)] if board.note else []), self._table()]
        for running in board.running.values():
            loss = f"loss {running.loss:.3f}" if running.loss is not None else "starting"
            rate = f"{running.rate / 1000:,.0f}k tokens/s" if running.rate else ""
            row = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=1, completed=running.share, width=20)
            row.add_row(Text(f"{running.planned.cell.name:<12}"), bar, Text(f"{loss}  {rate}", style="dim"))
            parts.append(row)
        return Group(*parts)

    def _completed(self) -> float:
        return self.board.ended + sum(r.share for r in self.board.running.values())

    def _table(self) -> Table:
        """Mean loss of each budget (row) and depth (column), with how many of its cells have ended."""
        board = self.board
        cells = board.plan.cells if board.plan.sampler != "crossing" else board.touched()
        depths = sorted({p.cell.shape.depth for p in cells})
        groups: dict[tuple[float, int], list[PlannedCell]] = defaultdict(list)
        budgets = sorted({p.budget for p in cells})
        by_budget = len(budgets) <= MOST_ROWS
        for planned in cells:
            groups[planned.budget if by_budget else 0.0, planned.cell.shape.depth].append(planned)
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("N" if by_budget else "", justify="right", style="dim")
        for depth in depths:
            table.add_column(f"L={depth}", justify="right")
        for budget in budgets if by_budget else [0.0]:
            means = {depth: self._mean(groups.get((budget, depth), [])) for depth in depths}
            known = [mean for mean in means.values() if mean is not None]
            best = min(known) if by_budget and len(known) > 1 else None
            shown = [self._cell(groups.get((budget, d), []), means[d], means[d] == best) for d in depths]
            table.add_row(f"{budget:,.0f}" if by_budget else "all", *shown)
        return table

    def _mean(self, cells: list[PlannedCell]) -> float | None:
        losses = [loss for p in cells if (loss := self.board.losses.get(p.cell.key)) is not None]
        return sum(losses) / len(losses) if losses else None

    def _cell(self, cells: list[PlannedCell], mean: float | None, best: bool) -> Text:
        if not cells:
            return Text("-", style="dim")
        ended = sum(p.cell.key in self.board.losses or p.cell.key in self.board.failed for p in cells)
        count = f" {ended}/{len(cells)}"
        if mean is None:
            return Text(f"·{count}", style="dim")
        return Text.assemble((f"{mean:.4f}", "bold green" if best else ""), (count, "dim"))
