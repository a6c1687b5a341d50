"""What a check has to say of a cluster file: each finding with its place, all of them at once."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from study.cluster.cluster_file import ClusterFile, Path

#: What stands in a file until somebody has edited it.
PLACEHOLDER = re.compile(
    r"<|>|\.\.\.|change.?me|replace|your|todo|fixme|xxx+|^(ami|sg|subnet)-0+$", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong or doubtful: where, what and how to mend it."""

    line: int
    """Line of the file, from 1."""
    path: str
    """Dotted keys, such as `available_node_types.spot.node_config.ImageId`; empty for the file as a whole."""
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a record."""
        return {"path": self.path, "line": self.line, "message": self.message}


@dataclass
class Report:
    """The findings of one file, gathered by the rules."""

    file: ClusterFile
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What cannot be known here."""

    def error(self, path: Path, message: str) -> None:
        """Note something that cannot be left as it is."""
        self._add(self.errors, path, message)

    def warning(self, path: Path, message: str) -> None:
        """Note something that works and that the user should know of."""
        self._add(self.warnings, path, message)

    def _add(self, findings: list[Finding], path: Path, message: str) -> None:
        line = self.file.line(path)
        # What one line says to several machine types by an anchor is one mistake.
        if not any((found.line, found.message) == (line, message) for found in findings):
            findings.append(Finding(line, dotted(path), message))


def dotted(path: Path) -> str:
    """Write a path as people do: `file_mounts.a.b`, `worker_ips[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def near(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` where there is a near miss, else nothing."""
    by_lower = {other.lower(): other for other in words}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""
