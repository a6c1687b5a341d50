"""`make bench`: every speed and memory figure the project promises, printed as a table and kept as `bench.json`."""

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: Parts by name; the whole quickstart takes minutes, the others seconds.
PARTS = ("step", "trial", "memory", "plan", "quickstart")


def main() -> int:
    """Run the chosen parts; return 1 if a figure is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; choose among {', '.join(PARTS)}")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="interplay-bench-") as folder:
        for part in chosen:
            rows += _measure(part, Path(folder) / part)
    table = Table(title=f"bench on {platform.processor() or platform.machine()}, {_cores()} cores", box=None)
    for name in ("figure", "ours", "rival", "value", "limit", ""):
        table.add_column(name, justify="left" if name == "figure" else "right")
    over = 0
    for row in rows:
        value, limit = float(str(row["value"])), float(str(row["limit"]))
        over += value > limit
        verdict = "[red]over[/]" if value > limit else "[green]ok[/]"
        rival = f"{row['rival']} ({row['rival_name']})" if row["rival"] else ""
        table.add_row(str(row["what"]), str(row["ours"]), rival, f"{value:.3g} {row['unit']}", f"{limit:g}", verdict)
    Console().print(table)
    options.out.write_text(json.dumps({"cores": _cores(), "machine": platform.platform(), "rows": rows}, indent=2))
    return 1 if over else 0


def _measure(part: str, folder: Path) -> list[dict[str, object]]:
    from tests.bench import scheduling, step, whole

    folder.mkdir(parents=True)
    if part == "step":
        return step.measure(folder)
    if part == "trial":
        return [scheduling.trial_cost(folder)]
    if part == "memory":
        return [scheduling.driver_memory(folder)]
    if part == "plan":
        return [scheduling.plan_time()]
    return whole.measure(folder)


def _cores() -> int:
    from study.devices import cores

    return cores()


if __name__ == "__main__":
    sys.exit(main())
