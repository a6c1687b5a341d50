"""Findings about a cluster file, each with its line, key and message."""

from dataclasses import dataclass, field
from importlib import import_module

from study.cluster.cluster_file import ClusterFile, Path
from study.errors import SpecError


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
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        found = Finding(self.file.line(path), dotted.removeprefix("."), message)
        # An anchor repeats one line in several node types: report it once.
        if (found.line, message) not in {(other.line, other.message) for other in findings}:
            findings.append(found)


def need(purpose: str, module: str) -> None:
    """Raise a SpecError with the command that installs a library of the extra `cluster`, if it is missing."""
    try:
        import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{purpose} needs {module}, of the extra `cluster`; install it: pip install 'interplay[cluster]'."
        ) from error
