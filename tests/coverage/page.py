"""Tables of coverage: for a terminal, and of `docs/coverage.md` from the recorded measurements."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.coverage.worlds import WORLDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coverage.md"
#: Measurements of the page.
RECORDED = ROOT / "tests" / "data" / "coverage.json"

Result = dict[str, Any]


def _share(count: list[int]) -> str:
    return f"{100 * count[0] / count[1]:.0f}" if count[1] else "–"


def _ratio(value: float | None) -> str:
    """Two digits, or that it is far too large to be one."""
    return "–" if value is None else f"{value:.2f}" if value <= 10 else "> 10"


def _missed(count: list[int]) -> str:
    return f"{count[1] - count[0]} of {count[1]}" if count[1] else "–"


#: Column -> its text for one world.
COLUMNS: dict[str, Callable[[Result], str]] = {
    "crossings": lambda found: _share(found["crossings"]),
    "of the law": lambda found: _share(found["crossings_law"]) if found["crossings"][1] else "–",
    "bracketed": lambda found: _share([found["bracketed"][1], found["pairs"]]),
    "length": lambda found: _ratio(found["length"]),
    "a": lambda found: _share(found.get("intercepts", [0, 0])),
    "b": lambda found: _share(found["slopes"]),
    "decided": lambda found: _share([found["decided"], found["studies"]]),
    "stated": lambda found: _share([found["stated"], found["studies"]]),
    "L*": lambda found: _share(found["depths"]),
    "missed": lambda found: _missed(found["stated_depths"]),
    "bound": lambda found: "–" if found["bound"] is None else f"{1000 * found['bound']:.3g}",
    "factor": lambda found: _ratio(found["factor"]),
}


def table_of(worlds: dict[str, Result]) -> Table:
    """For a terminal."""
    table = Table(box=None)
    table.add_column("world")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for world, found in worlds.items():
        table.add_row(world, *(text(found) for text in COLUMNS.values()))
    return table


def page_table(group: str, worlds: dict[str, Result]) -> str:
    """Markdown table of a group of worlds, without the columns that have no figure."""
    names = [name for name, world in WORLDS.items() if world.group == group]
    columns = {
        column: [text(worlds[name]) if name in worlds else "?" for name in names]
        for column, text in COLUMNS.items()
    }
    columns = {column: cells for column, cells in columns.items() if set(cells) != {"–"}}
    lines = [f"| world | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name, *cells in zip(names, *columns.values(), strict=True):
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_text(page: str) -> str:
    """The page with its tables, between the marks `<!-- GROUP -->` and `<!-- end -->`, made from the measurements."""
    worlds = json.loads(RECORDED.read_text())["worlds"]

    def filled(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{page_table(match[1], worlds)}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(?:.*?\n)??<!-- end -->", filled, page, flags=re.S)


def write_page() -> None:
    """Write the tables of the page."""
    PAGE.write_text(page_text(PAGE.read_text()))
