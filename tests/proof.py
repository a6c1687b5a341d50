"""Skip extended tests whose code has not changed since they passed.

Three groups of tests take half of `make test-all` and depend each on a part of the code. When all of a
group have passed, `python -m tests.proof` records a hash of that part in `tests/data/proved.json`, and later runs skip
the group as long as the hash is the same; `pytest --prove` runs it all the same.
"""

import datetime
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import durations
from tests.durations import ROOT, suite_of

RECORD = ROOT / "tests" / "data" / "proved.json"
JUNIT = durations.JUNIT["extended"]


@dataclass(frozen=True)
class Group:
    """Extended tests in a folder, and the files and folders on which they depend besides."""

    tests: str
    code: tuple[str, ...]

    def files(self) -> list[Path]:
        """All files that can change what the tests find."""
        places = [ROOT / name for name in (self.tests, *self.code, "constraints.txt")]
        found = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
        return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)

    def hash(self) -> str:
        """Sixteen hex digits of the names and contents of the files."""
        digest = hashlib.sha256()
        for path in self.files():
            digest.update(
                f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
            )
        return digest.hexdigest()[:16]


GROUPS = {
    # The simulated clouds train studies of seconds. What a study does is tested elsewhere; here machines start, join,
    # fail and end.
    "cluster": Group(
        "tests/cluster",
        (
            "cluster",
            "interplay/cluster",
            "study/workers",
            "study/run",
            "tests/clouds.py",
            "tests/environment.py",
        ),
    ),
    "coverage": Group(
        "tests/coverage",
        (
            "analysis/curves",
            "analysis/law",
            "analysis/design",
            "analysis/runs",
            "analysis/intervals.py",
            "analysis/threads.py",
            "tests/simulated_study.py",
        ),
    ),
    "training": Group(
        "tests/trainables",
        (
            "trainables",
            "tests/clouds.py",
            "tests/disks.py",
            "tests/environment.py",
            "tests/plain_gpt2.py",
            "tests/ranks.py",
        ),
    ),
}


@cache
def unchanged() -> dict[str, str]:
    """Folder of each group that passed with the code as it is -> the day on which it did."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    same = {
        name: entry
        for name, entry in record.items()
        if name in GROUPS and entry["hash"] == GROUPS[name].hash()
    }
    return {GROUPS[name].tests: entry["date"] for name, entry in same.items()}


def passed(name: str, junit: Path) -> dict[str, Any] | None:
    """The record of a group if all of its extended tests ran and passed, after its files last changed; else None."""
    suite = suite_of(junit)
    start = datetime.datetime.fromisoformat(suite.attrib["timestamp"])
    place = GROUPS[name].tests.replace("/", ".") + "."
    cases = [case for case in suite.iter("testcase") if case.get("classname", "").startswith(place)]
    bad = [case for case in cases if any(child.tag in ("failure", "error", "skipped") for child in case)]
    changed = max(path.stat().st_mtime for path in GROUPS[name].files()) > start.timestamp()
    if bad or changed or not cases:
        return None
    seconds = round(sum(float(case.attrib["time"]) for case in cases))
    return {
        "hash": GROUPS[name].hash(),
        "date": start.date().isoformat(),
        "tests": len(cases),
        "seconds": seconds,
    }


def main() -> None:
    """Record the groups that passed in the last run of `make test-all`."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {name: found for name in GROUPS if (found := passed(name, JUNIT))}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
