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
#: Measurements of the page: with curves of four families, and with the posterior on a grid.
BEFORE, AFTER = (ROOT / "tests" / "data" / f"coverage_{name}.json" for name in ("before", "after"))

Result = dict[str, Any]


def _share(count: list[int]) -> str:
    return f"{100 * count[0] / count[1]:.0f}" if count[1] else "–"


def _ratio(value: float | None) -> str:
    """Two digits, or that it is far too large to be one."""
    return "–" if value is None else f"{value:.2f}" if value <= 10 else "> 10"


#: Column -> its text for one world.
COLUMNS: dict[str, Callable[[Result], str]] = {
    "crossings": lambda found: _share(found["crossings"]),
    "of the law": lambda found: _share(found["crossings_law"]) if found["crossings"][1] else "–",
    "bracketed": lambda found: _share([found["bracketed"][1], found["pairs"]]),
    "length": lambda found: _ratio(found["length"]),
    "a": lambda found: _share(found.get("intercepts", [0, 0])),
    "b": lambda found: _share(found["slopes"]),
    "L*": lambda found: _share(found["depths"]),
    "as attributed": lambda found: _share(found["depths_own"]),
    "projected": lambda found: _share([found["projections"], found["studies"]]),
    "false claims": lambda found: (
        f"{found['claims_false']} ({found['claims_own_false']}) of {found['claims']}"
    ),
    "half-width": lambda found: _ratio(found["halfwidth"]),
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


def _cell(text: Callable[[Result], str], before: Result | None, after: Result | None) -> str:
    """Figure before → after, or the one figure of a world measured once; a question mark where it was not measured."""
    if before is None and after is not None:
        return text(after)
    one, two = ("?" if found is None else text(found) for found in (before, after))
    return one if one == two == "–" else f"{one} → {two}"


def page_table(group: str, before: dict[str, Result], after: dict[str, Result]) -> str:
    """Markdown table of a group of worlds, without the columns that have no figure."""
    names = [name for name, world in WORLDS.items() if world.group == group]
    columns = {
        column: [_cell(text, before.get(name), after.get(name)) for name in names]
        for column, text in COLUMNS.items()
    }
    columns = {column: cells for column, cells in columns.items() if set(cells) != {"–"}}
    lines = [f"| world | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name, *cells in zip(names, *columns.values(), strict=True):
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_text(page: str) -> str:
    """The page with its tables, between the marks `<!-- GROUP -->` and `<!-- end -->`, made from the measurements."""
    before, after = (json.loads(path.read_text())["worlds"] for path in (BEFORE, AFTER))

    def filled(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{page_table(match[1], before, after)}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(?:.*?\n)??<!-- end -->", filled, page, flags=re.S)


def write_page() -> None:
    """Write the tables of the page."""
    PAGE.write_text(page_text(PAGE.read_text()))
