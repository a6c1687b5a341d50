"""Read a Ray cluster file with the line of each key, and collect the findings about it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.spec.yaml_file import load_yaml, yaml_problem

#: Keys and list indices from the top of the document.
KeyPath = tuple[str | int, ...]

#: Where Ray reads its token on every machine.
TOKEN = "~/.ray/auth_token"
#: Where `ray dashboard` makes the dashboard of the head available by default.
ADDRESS = "http://127.0.0.1:8265"

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake or doubt: line, key and message with the fix."""

    line: int
    path: str
    """Dotted keys, such as `available_node_types.spot.node_config.ImageId`; empty for the whole file."""
    message: str


@dataclass(frozen=True)
class ClusterFile:
    """The file that `ray up` reads, and the findings about it."""

    name: str
    """Path as the user wrote it."""
    document: dict[str, Any]
    lines: dict[KeyPath, int]
    """Line of each key and of each list item, from 1."""
    errors: list[Finding] = field(default_factory=list)
    """Mistakes that must be corrected."""
    warnings: list[Finding] = field(default_factory=list)
    """What works but may be unwanted."""
    notes: list[str] = field(default_factory=list)
    """Facts that cannot be checked here."""

    def error(self, path: KeyPath, message: str) -> None:
        """Record a mistake."""
        self._add(self.errors, path, message)

    def warning(self, path: KeyPath, message: str) -> None:
        """Record a doubt."""
        self._add(self.warnings, path, message)

    def _add(self, findings: list[Finding], path: KeyPath, message: str) -> None:
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        # A key that is not in the file has the line of its nearest ancestor.
        line = next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 1
        )
        # An anchor repeats one line in several node types: report it once.
        if all((line, message) != (other.line, other.message) for other in findings):
            findings.append(Finding(line, dotted.removeprefix("."), message))

    def get(self, *path: str | int) -> Any:
        """The value at a path; None if there is none."""
        here: Any = self.document
        for part in path:
            try:
                here = here[part]
            except (KeyError, IndexError, TypeError):
                return None
        return here

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; empty if the value has another type, which the schema check reports."""
        found = self.get(*path)
        return found if isinstance(found, dict) else {}

    def sequence(self, *path: str | int) -> list[Any]:
        """The list at a path; empty if the value has another type, which the schema check reports."""
        found = self.get(*path)
        return found if isinstance(found, list) else []

    @property
    def provider(self) -> str:
        """Type of the provider, such as aws or local."""
        return str(self.get("provider", "type"))

    @property
    def head(self) -> str:
        """Name of the head's node type."""
        return str(self.get("head_node_type"))

    @property
    def most(self) -> int:
        """Maximum number of workers of all types together; without one, Ray's default."""
        found = self.get("max_workers")
        return found if isinstance(found, int) else 2

    @property
    def token(self) -> Path | None:
        """The local file that is mounted as Ray's token; None if none is mounted."""
        user = self.get("auth", "ssh_user") or "ubuntu"
        names = [TOKEN, *(f"{home}/.ray/auth_token" for home in (f"/home/{user}", "/root", "$HOME"))]
        mounts = self.mapping("file_mounts")
        found = next((mounts[name] for name in names if isinstance(mounts.get(name), str)), None)
        return None if found is None else Path(found).expanduser()


def read(name: str) -> ClusterFile:
    """Read a cluster file.

    Raises:
        SpecError: there is no such file, or it is not a YAML mapping; the message names the line.
    """
    try:
        text = Path(name).read_text(encoding="utf-8")
        document = load_yaml(text, yaml.SafeLoader)
        # The first entry of a path wins: the file's own keys come before those merged in by `<<`.
        lines = dict(reversed(list(_lines(yaml.compose(text, Loader=yaml.SafeLoader), ()))))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SpecError(
            f"there is no cluster file {name}; give a path such as cluster/aws.yaml, relative to this folder."
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{name} is not a UTF-8 text file ({error.reason} at byte {error.start}).") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{name} is not YAML{yaml_problem(error)}.") from error
    if not isinstance(document, dict):
        found = "empty" if document is None else f"a {type(document).__name__}"
        raise SpecError(f"{name} is {found}; a cluster file is a mapping with `cluster_name` and `provider`.")
    return ClusterFile(name, document, lines)


def _lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Every path below a node with its line, merged keys last; a repeated key or one that is not text is an error."""
    merged: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if key.value in seen or key.tag != "tag:yaml.org,2002:str":
                wrong = "written twice; remove one" if key.value in seen else "not text; write it in quotes"
                problem = f"the key `{key.value}` is {wrong}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
            yield (*path, str(key.value)), key.start_mark.line + 1
            yield from _lines(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _lines(item, (*path, index))
    for other in merged:
        yield from _lines(other, path)


def need(purpose: str, module: str) -> None:
    """Raise a SpecError with the command that installs a library of the extra `cluster`, if it is missing."""
    try:
        import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{purpose} needs {module}, of the extra `cluster`; install it: pip install 'interplay[cluster]'."
        ) from error
