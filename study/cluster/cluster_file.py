"""A cluster file as Ray reads it, and the line each of its keys stands on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import yaml

from study.errors import SpecError

#: Keys and places of lists from the top of the document.
Path = tuple[str | int, ...]

#: Where Ray looks for its token on every machine.
TOKEN = "~/.ray/auth_token"

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class ClusterFile:
    """The file that `ray up` is given."""

    name: str
    """As the user wrote it."""
    document: dict[str, Any]
    """Its content by the rules of Ray's own loader (YAML 1.1)."""
    lines: dict[Path, int]
    """Line of each key and each item of a list, from 1."""
    repeated: tuple[tuple[Path, int], ...]
    """Keys written again in one mapping, where the last one silently wins."""

    def line(self, path: Path) -> int:
        """Line of a path; of the nearest one above it where the key itself is not there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def get(self, *path: str | int) -> Any:
        """The value at a path; None where there is none."""
        here: Any = self.document
        for part in path:
            if isinstance(here, dict):
                here = here.get(part)
            elif isinstance(here, list) and isinstance(part, int) and part < len(here):
                here = here[part]
            else:
                return None
        return here

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; empty where there is something else, which the schema tells of."""
        found = self.get(*path)
        return found if isinstance(found, dict) else {}

    def sequence(self, *path: str | int) -> list[Any]:
        """The list at a path; empty where there is something else, which the schema tells of."""
        found = self.get(*path)
        return found if isinstance(found, list) else []

    def commands(self, key: str) -> list[str]:
        """A top-level list of shell commands; what is no text is left out, and the schema tells of it."""
        return [item for item in self.sequence(key) if isinstance(item, str)]

    @property
    def provider(self) -> str:
        """Kind of the machines, such as aws or local."""
        return str(self.get("provider", "type"))

    @cached_property
    def head(self) -> str | None:
        """Name of the head's node type."""
        name = self.document.get("head_node_type")
        return name if isinstance(name, str) and name in self.mapping("available_node_types") else None

    @cached_property
    def workers(self) -> list[str]:
        """Names of the node types of workers."""
        return [
            name
            for name in self.mapping("available_node_types")
            if name != self.document.get("head_node_type")
        ]

    @property
    def token(self) -> FilePath | None:
        """The file here that the machines have as their Ray token; None where none is mounted."""
        return self.local(TOKEN)

    def local(self, remote: str) -> FilePath | None:
        """What is here of a path on the machines, by the longest of `file_mounts` that holds it."""
        target = _home(remote, self.user)
        best = None
        for mount, local in self.mapping("file_mounts").items():
            there = _home(str(mount), self.user).rstrip("/")
            inside = target == there or target.startswith(f"{there}/")
            if inside and isinstance(local, str) and (best is None or len(there) > len(best[0])):
                best = (there, local)
        return None if best is None else FilePath(best[1]).expanduser() / target[len(best[0]) :].lstrip("/")

    @property
    def user(self) -> str:
        """Who logs in on the machines."""
        return str(self.get("auth", "ssh_user") or "ubuntu")


def _home(path: str, user: str) -> str:
    for start in (f"/home/{user}/", "/root/", "$HOME/"):
        if path.startswith(start):
            return "~/" + path.removeprefix(start)
    return path


def read(name: str) -> ClusterFile:
    """Read a cluster file.

    Raises:
        SpecError: there is no such file, or it is not YAML, or no mapping; the line is in the message.
    """
    path = FilePath(name)
    if not path.is_file():
        raise SpecError(
            f"there is no cluster file {name}; name one such as cluster/aws.yaml, from the top of the repository."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{name} is not a text file in UTF-8 ({error.reason} at byte {error.start})."
        ) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{name} is not YAML{_where(error)}: {_problem(error)}.") from error
    if not isinstance(document, dict) or not isinstance(root, yaml.MappingNode):
        found = "empty" if document is None else f"a {type(document).__name__}"
        raise SpecError(f"{name} is {found}; a cluster file is a mapping with `cluster_name` and `provider`.")
    odd = next(_odd_keys(root), None)
    if odd is not None:
        raise SpecError(
            f"{name} has the key `{odd.value}` on line {odd.start_mark.line + 1}, which YAML does not read "
            "as text, and all keys of a cluster file are texts; write it in quotes, or mend it."
        )
    lines = dict(reversed(list(_walk(root, ()))))
    repeated = tuple((path, line) for path, line in _repeated(root, ()))
    return ClusterFile(name, document, lines, repeated)


def _walk(node: yaml.Node, path: Path) -> Iterator[tuple[Path, int]]:
    """Every path below a node with its line. What is merged in by `<<` comes last, so that the file's own wins."""
    merged: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == _MERGE:
                merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
                continue
            here = (*path, _key(key))
            yield here, key.start_mark.line + 1
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _walk(item, (*path, index))
    for other in merged:
        yield from _walk(other, path)


def _repeated(node: yaml.Node, path: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            here = (*path, _key(key))
            if here in seen:
                yield here, key.start_mark.line + 1
            seen.add(here)
            yield from _repeated(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*path, index))


def _odd_keys(node: yaml.Node) -> Iterator[yaml.Node]:
    """Keys that YAML reads as numbers, truth values or nothing."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", _MERGE):
                yield key
            yield from _odd_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _odd_keys(item)


def _key(node: yaml.Node) -> str:
    return str(node.value)


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"


def _problem(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(getattr(error, "reason", error))
