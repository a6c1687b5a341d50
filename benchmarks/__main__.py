"""`make bench`: every speed and memory figure the project promises, printed as a table and kept as `bench.json`."""

import argparse
import importlib
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure
from study.spec.devices import cores

#: Modules of this folder; the search takes half an hour, Muon a quarter, the driver minutes, the others seconds.
PARTS = (
    "step",
    "loss",
    "kernels",
    "host",
    "gang",
    "plan",
    "answer",
    "search",
    "muon",
    "diagnostics",
    "driver",
)


def main() -> int:
    """Run the chosen parts; return 1 if a figure is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; choose among {', '.join(PARTS)}")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="interplay-bench-") as folder:
        for part in chosen:
            place = Path(folder) / part
            place.mkdir()
            of_part: list[Figure] = importlib.import_module(f"benchmarks.{part}").measure(place)
            if not of_part:
                print(f"{part}: nothing measured, because this machine has no GPU")
            figures += of_part
    table = Table(title=f"bench on {platform.processor() or platform.machine()}, {cores()} cores", box=None)
    for name in ("figure", "ours", "rival", "value", "limit", ""):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for figure in figures:
        verdict = "[red]over[/]" if figure.over else "[green]ok[/]"
        value = f"{figure.value:.3g} {figure.unit}"
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        table.add_row(figure.what, figure.ours, figure.rival, value, limit, verdict if limit else "")
    Console().print(table)
    document = {"cores": cores(), "machine": platform.platform(), "figures": [asdict(f) for f in figures]}
    options.out.write_text(json.dumps(document, indent=2))
    return 1 if any(figure.over for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
