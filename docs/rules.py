"""Write the numbers of docs/rules.md: `python docs/rules.py`."""

import io
import re
from pathlib import Path

from rich.console import Console

import interplay
from analysis.audit.rules import RULES
from analysis.audit.shipped_tables import TABLES

PAGE = Path(__file__).parent / "rules.md"


def output() -> str:
    """What `interplay audit --rules` prints on a terminal of 100 columns."""
    console = Console(file=io.StringIO(), width=100)
    console.print(interplay.audit_rules())
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def page(text: str) -> str:
    """The page with the output, the rules and the tables of now."""
    rules = "| rule | says | source | stated for |\n|---|---|---|---|\n" + "\n".join(
        f"| {rule.name} | {rule.statement} | {rule.source} | {rule.domain} |" for rule in RULES
    )
    tables = "\n".join(f"- `{name}`: {table.about}." for name, table in TABLES.items())
    text = re.sub(r"```text\n.*?\n```", lambda _: f"```text\n{output()}\n```", text, count=1, flags=re.DOTALL)
    text = re.sub(
        r"(they were stated for:\n\n).*?(\n\n## How)", lambda m: m[1] + rules + m[2], text, flags=re.DOTALL
    )
    return re.sub(r"(`interplay fit english`:\n\n).*", lambda m: m[1] + tables + "\n", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
