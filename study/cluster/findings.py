"""Findings about a cluster file, each with its line, key and message."""

import re
from dataclasses import dataclass, field
from importlib import import_module

from study.cluster.cluster_file import ClusterFile, Path
from study.errors import SpecError

#: Values that a user has not edited yet.
PLACEHOLDER = re.compile(
    r"<|>|\.\.\.|change.?me|replace|your|todo|fixme|xxx+|^(ami|sg|subnet)-0+$", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake or doubt: line, key and message with the fix."""

    line: int
    path: str
    """Dotted keys, such as `available_node_types.spot.node_config.ImageId`; empty for the whole file."""
    message: str


@dataclass
class Report:
    """The findings about one file."""

    file: ClusterFile
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Facts that this check cannot find out."""

    def error(self, path: Path, message: str) -> None:
        """Record a mistake that must be corrected."""
        self._add(self.errors, path, message)

    def warning(self, path: Path, message: str) -> None:
        """Record something that works but may be unwanted."""
        self._add(self.warnings, path, message)

    def _add(self, findings: list[Finding], path: Path, message: str) -> None:
        line = self.file.line(path)
        # An anchor repeats one line in several node types: report it once.
        if not any((found.line, found.message) == (line, message) for found in findings):
            findings.append(Finding(line, dotted(path), message))


def dotted(path: Path) -> str:
    """Write a path as `file_mounts.a.b` or `worker_ips[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def need(purpose: str, module: str) -> None:
    """Check that a library of the extra `cluster` is installed.

    Args:
        purpose: the task that needs it, as the start of a sentence.
        module: its import name.

    Raises:
        SpecError: it is missing; the message contains the command that installs it.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{purpose} needs {module}, of the extra `cluster`; install it: pip install 'interplay[cluster]'."
        ) from error
