"""Record the times of the tests, from the JUnit files that `make test-all` writes: `python -m tests.durations`."""

import datetime
import json
import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Tier -> its JUnit file.
JUNIT = {tier: ROOT / "build" / "tests" / f"{tier}.xml" for tier in ("fast", "gate", "extended")}
RECORD = ROOT / "tests" / "data" / "durations.json"


def suite_of(junit: Path) -> ElementTree.Element:
    """The suite in pytest's JUnit file."""
    return ElementTree.parse(junit).getroot()[0]


def measured(junit: Path) -> dict[str, Any]:
    """Number of tests, wall time, the ten slowest tests and the seconds of each file, the longest first."""
    suite = suite_of(junit)
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for case in suite.findall("testcase[@classname]"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        seconds = float(case.attrib["time"])
        tests[f"{file}::{case.attrib['name']}"] += seconds
        files[file] += seconds
    return {
        "tests": len(tests),
        "wall_seconds": round(float(suite.attrib["time"])),
        "slowest": {name: round(seconds, 1) for name, seconds in tests.most_common(10)},
        "files": {name: round(seconds, 1) for name, seconds in files.most_common()},
    }


def main() -> None:
    """Replace the record of each tier that has a JUnit file."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for tier, junit in JUNIT.items():
        if junit.exists():
            day = datetime.datetime.fromtimestamp(junit.stat().st_mtime, datetime.UTC).date()
            record[tier] = {"date": day.isoformat(), "cores": os.cpu_count(), **measured(junit)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
