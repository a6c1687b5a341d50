"""Measure the coverage of all worlds, or write the tables of `docs/coverage.md` from the recorded measurements."""

import argparse
import datetime
import json
import sys
from pathlib import Path

from rich.console import Console

from study.revision import revision
from tests.coverage.measure import measure
from tests.coverage.page import table_of, write_page
from tests.coverage.worlds import WORLDS


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--studies", type=int, default=100, help="simulated studies of each world")
    parser.add_argument("--processes", type=int, default=2, help="studies that are fitted at a time")
    parser.add_argument("--json", type=Path, help="results; worlds that the file has are not measured again")
    parser.add_argument("--only", default="", help="only worlds of this group, or with this in their name")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/coverage.md and stop")
    options = parser.parse_args()
    if options.page:
        write_page()
        return 0
    found = {"studies": options.studies, "worlds": {}}
    if options.json and options.json.exists():
        found = json.loads(options.json.read_text())
        if found["studies"] != options.studies:
            parser.error(f"{options.json} has {found['studies']} studies of each world; give another file")
    asked = [name for name, world in WORLDS.items() if options.only in name or options.only == world.group]
    names = [name for name in asked if name not in found["worlds"]]
    for name, result in measure(names, options.studies, options.processes):
        found["worlds"][name] = result
        print(f"{name}: crossings {result['crossings']}, depths {result['depths']}", file=sys.stderr)
        if options.json:
            found |= {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "revision": revision()}
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    Console(width=160).print(table_of(found["worlds"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
