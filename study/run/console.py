"""The display of a running study: a live table in a terminal, otherwise one line per cell."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.design.objective import estimate_sentence
from analysis.units import bits_per_byte, budget_number
from core.numbers import duration
from study.plan.cells import PlannedCell
from study.plan.plan import Plan, wall_seconds
from study.search import Search
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


class Viewer:
    """Shows losses, running cells and the time left; a `study.run.cell_queue.CellCallback`.

    Another thread draws the table while cells start and end, so it iterates over copies.
    """

    def __init__(
        self, plan: Plan, slots: int, total: int, console: Console, search: Search | None = None
    ) -> None:
        """Begin without finished cells, of which there will be `total`; `live` draws the table.

        The estimates of the `search` are shown.
        """
        self.search = search
        self.plan, self.slots, self.total, self.console = plan, slots, total, console
        self.losses: dict[str, float | None] = {}
        self.running: dict[str, _Running] = {}
        self.note = ""
        """The estimate of a search, in a sentence."""
        self.measured = self.estimated = 0.0
        """Seconds of the cells that ended in this run, and the plan's estimate of them."""
        self._failed: set[str] = set()
        self._missing = {planned.cell.key: planned for planned in plan.pool}
        self._began = time.monotonic()
        rate = 1 if slots >= MANY_SLOTS else 2
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=rate, transient=True)

    @property
    def count(self) -> int:
        """Cells that need no more work in this run."""
        return len(self.losses) + len(self._failed)

    def add_finished(self, losses: Mapping[str, float | None]) -> None:
        """Add cells that have ended, with their losses if they have any."""
        self.losses.update(losses)
        for key in losses:
            self._missing.pop(key, None)
            self.running.pop(key, None)

    def started(self, planned: PlannedCell) -> None:
        """Show a cell that has started or starts again."""
        self._missing.pop(planned.cell.key, None)
        self.running[planned.cell.key] = _Running(self._as_planned(planned), time.monotonic())

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """Show the progress of a running cell."""
        running = self.running.get(planned.cell.key)
        if running is None:
            return
        taken = running.planned.trunk_steps
        running.share = max(0, progress.step - taken) / (progress.steps - taken)
        if progress.points:
            running.loss = progress.points[-1].train_loss
            running.rate = progress.points[-1].tokens_per_second

    def ended(self, planned: PlannedCell, result: Result) -> None:
        """Show a cell that is done or diverged."""
        self.add_finished({planned.cell.key: result.loss})
        self._read_news(planned)
        if not result.resumed_seconds and result.trunk_steps == self._as_planned(planned).trunk_steps:
            self.measured += result.train_seconds
            self.estimated += self._as_planned(planned).seconds
        if self.console.is_terminal:
            return
        if result.status == "done" and result.loss is not None:
            bits = bits_per_byte(result.loss, result.bytes_per_token)
            loss = f"loss {result.loss:.4f}" + (f" ({bits:.4f} bits per byte)" if bits is not None else "")
        else:
            loss = f"{result.status}: {result.reason}"
        left = self.seconds_left()
        tail = f"  left about {duration(left)}" if left is not None and self.running else ""
        text = f"[{self.count}/{self.total}] {planned.title}  N={planned.cell.shape.budget_params:,}  {loss}"
        self.console.print(Text(f"{text}  {result.train_seconds:.1f} s{tail}"), soft_wrap=True)

    def failed(self, planned: PlannedCell, reason: str) -> None:
        """Show a cell that failed."""
        self._missing.pop(planned.cell.key, None)
        self.running.pop(planned.cell.key, None)
        self._failed.add(planned.cell.key)
        self._read_news(planned)
        self.console.print(f"[red]failed[/] {planned.title}: ", Text(reason))

    def _read_news(self, planned: PlannedCell) -> None:
        if self.search and not planned.purpose and (state := self.search.news()):
            self.note = estimate_sentence(state.estimate) if state.estimate else ""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """Show that a trial was lost; its cell resumes from its checkpoint."""
        self.console.print(f"[yellow]again[/] {planned.title}: ", Text(reason))

    def notice(self, text: str) -> None:
        """Show a sentence about the run."""
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def _as_planned(self, planned: PlannedCell) -> PlannedCell:
        """The cell in the plan shown, which has the speed of this machine; a search keeps the cells it began with."""
        return self.plan.by_key(planned.cell.key) or planned

    def seconds_left(self) -> float | None:
        """Return the time left: the plan's estimates of the missing cells, times their error so far."""
        begun, missing = list(self.running.values()), list(self._missing.values())
        running = [r for r in begun if r.share > 0.02]
        measured = self.measured + sum(time.monotonic() - r.since for r in running)
        estimated = self.estimated + sum(r.planned.seconds * r.share for r in running)
        if estimated <= 0 or measured <= 0:
            return None
        # An adaptive search trains only some of the candidates.
        wanted = max(0, self.total - self.count - len(begun))
        share = wanted / len(missing) if missing else 0
        work = [(planned.seconds * share, planned.layout.ranks) for planned in missing]
        work += [(r.planned.seconds * (1 - r.share), r.planned.layout.ranks) for r in begun]
        return wall_seconds(work, max(1, self.slots)) * (measured / estimated)

    def render(self) -> RenderableType:
        """Draw the table and the running cells."""
        left, begun = self.seconds_left(), list(self.running.values())
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"{self.count} of {self.total} cells", style="bold"),
            ProgressBar(max(1, self.total), self.count + sum(r.share for r in begun), width=30),
            Text(f"{duration(time.monotonic() - self._began)} elapsed"),
            Text(f"about {duration(left)} left" if left is not None else "estimating time left", style="dim"),
        )
        table = self._table()
        parts: list[RenderableType] = [head, *([Text(self.note)] if self.note else []), table]
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

    def _table(self) -> Table:
        """Return the mean loss by budget or compute (row) and depth (column), with the number of finished cells.

        Of a search that chooses cells, the table has only those that it has chosen.
        """
        cells: Sequence[PlannedCell] = self.plan.cells
        if self.plan.search.may_end_early:
            cells = [planned for planned in self.plan.pool if planned.cell.key not in self._missing]
        by_budget = len({planned.compared_at for planned in cells}) <= MOST_ROWS
        unit = self.plan.planner.spec.frontier.compute_unit
        groups: dict[float, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for planned in cells:
            groups[planned.compared_at if by_budget else 0.0][planned.cell.shape.depth].append(
                planned.cell.key
            )
        depths = sorted({planned.cell.shape.depth for planned in cells})
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column(("N" if unit is None else unit) if by_budget else "", justify="right", style="dim")
        for depth in depths:
            table.add_column(f"L={depth}", justify="right")
        for budget, by_depth in sorted(groups.items()):
            losses = {
                depth: [loss for key in keys if (loss := self.losses.get(key)) is not None]
                for depth, keys in by_depth.items()
            }
            means = {depth: fmean(of_depth) for depth, of_depth in losses.items() if of_depth}
            best = min(means.values()) if by_budget and len(means) > 1 else None
            row = [self._summary(by_depth.get(depth, []), means.get(depth), best) for depth in depths]
            name = f"{budget:,.0f}" if unit is None else budget_number(budget, unit, 3)
            table.add_row(name if by_budget else "all", *row)
        return table

    def _summary(self, keys: Sequence[str], mean: float | None, best: float | None) -> Text:
        """Return the mean loss of the cells of one depth at one budget, and how many have ended."""
        if not keys:
            return Text("-", style="dim")
        count = f" {sum(key in self.losses or key in self._failed for key in keys)}/{len(keys)}"
        if mean is None:
            return Text(f"·{count}", style="dim")
        return Text.assemble((f"{mean:.4f}", "bold green" if mean == best else ""), (count, "dim"))
