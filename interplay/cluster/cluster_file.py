"""Read a Ray cluster file with the line of each key, collect the findings about it, and make its token.

Whoever has the token can run programs on every machine, so it is never printed.
"""

import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from study.errors import SpecError
from study.spec.yaml_file import load_yaml, yaml_problem

#: Keys and list indices from the top of the document.
KeyPath = tuple[str | int, ...]

#: Where Ray reads its token on every machine.
TOKEN = "~/.ray/auth_token"
#: Key of the node types, by name.
TYPES = "available_node_types"


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
        self.add(self.errors, path, message)

    def add(self, findings: list[Finding], path: KeyPath, message: str) -> None:
        """Record a mistake or a doubt with its line."""
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        # A key that is not in the file has the line of its nearest ancestor.
        ancestors = (path[:end] for end in range(len(path), 0, -1))
        line = next((self.lines[key] for key in ancestors if key in self.lines), 1)
        # An anchor repeats one line in several node types: report it once.
        if all((line, message) != (other.line, other.message) for other in findings):
            findings.append(Finding(line, dotted.removeprefix("."), message))

    def get(self, *path: str | int) -> Any:
        """The value at a path; None if there is none."""
        value: Any = self.document
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; empty if the value has another type, which the schema check reports."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def sequence(self, *path: str | int) -> list[Any]:
        """The list at a path; empty if the value has another type, which the schema check reports."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def machine(self, node_type: str) -> str:
        """The instance type of a node type."""
        return str(self.get(TYPES, node_type, "node_config", "InstanceType"))

    def market(self, node_type: str) -> str:
        """How a node type buys its machines: "spot", "capacity-block", or "on-demand" if it does not say."""
        market = self.get(TYPES, node_type, "node_config", "InstanceMarketOptions", "MarketType")
        return str(market or "on-demand")

    def disks(self, node_type: str) -> list[dict[str, int]]:
        """The numbers of the disks of a node type: `VolumeSize` in GB, and `Throughput` in MB/s and `Iops` if given."""
        place = (TYPES, node_type, "node_config", "BlockDeviceMappings")
        disks = [self.mapping(*place, index, "Ebs") for index in range(len(self.sequence(*place)))]
        numbers = [{key: value for key, value in disk.items() if type(value) is int} for disk in disks]
        return [disk for disk in numbers if "VolumeSize" in disk]

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
        most = self.get("max_workers")
        return most if isinstance(most, int) else 2

    @property
    def shipped_token(self) -> str:
        """The token's file by the name of the cluster: one that leaks from a cluster opens no other."""
        return f"~/.ray/{self.get('cluster_name')}-token"

    @property
    def token(self) -> Path | None:
        """The local file that is mounted as Ray's token; None if none is mounted."""
        user = self.get("auth", "ssh_user") or "ubuntu"
        names = [f"{home}/.ray/auth_token" for home in ("~", f"/home/{user}", "/root", "$HOME")]
        mounts = [self.get("file_mounts", name) for name in names]
        return next((Path(local).expanduser() for local in mounts if isinstance(local, str)), None)


def read(name: str) -> ClusterFile:
    """Read a cluster file; SpecError, with the line, if there is none, it is another tool's, or not a YAML mapping."""
    try:
        text = Path(name).read_text(encoding="utf-8")
        if other := _kind_of_text(text):
            raise SpecError(f"{name} is {other}.")
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
        content = "empty" if document is None else f"a {type(document).__name__}"
        raise SpecError(
            f"{name} is {content}; a cluster file is a mapping with `cluster_name` and `provider`."
        )
    if other := _kind_of_mapping(document):
        raise SpecError(f"{name} is {other}.")
    return ClusterFile(name, document, lines)


def _kind_of_text(text: str) -> str | None:
    """Return what a file is if it is a manifest of Kubernetes or a script of Slurm, with what to do; else None.

    A manifest may be several documents of YAML, or a template that is none.
    """
    if re.search(r"""(?m)^(\{\s*)?["']?apiVersion["']?\s*:""", text):
        kinds = re.findall(r"""(?m)^(?:kind|\s*"kind")\s*:\s*["']?(\w+)""", text)
        tags = f" ({', '.join(dict.fromkeys(kinds))})" if kinds else ""
        return (
            f"a Kubernetes manifest{tags}, and this command reads cluster files of `ray up`. On Kubernetes a study "
            "runs by KubeRay: edit cluster/kuberay/rayjob.yaml as cluster/README.md describes, then "
            "`kubectl apply -f cluster/kuberay/rayjob.yaml`"
        )
    if re.search(r"(?m)^#SBATCH\b", text):
        return (
            "a script of Slurm, which needs no cluster file: `sbatch cluster/slurm.sbatch SPEC` runs a study"
        )
    return None


def _kind_of_mapping(document: dict[str, Any]) -> str | None:
    """Return what a file is if its keys are those of another tool, with what to do; else None."""
    if "provider" in document or "cluster_name" in document:
        return None
    if isinstance(document.get("services"), dict):
        return (
            "a file of Docker Compose, which starts containers of one machine; a study needs none: "
            "`interplay run SPEC` uses all of this machine, and cluster/onprem.yaml is for several"
        )
    if "resources" in document and ("run" in document or "setup" in document):
        return (
            "a task of SkyPilot, and this command reads cluster files of `ray up`; edit cluster/skypilot.yaml, then "
            "`sky jobs launch cluster/skypilot.yaml --env SPEC=SPEC`"
        )
    if "frontier" in document:
        return "a study and no cluster file; `interplay cluster check cluster/aws.yaml SPEC` checks both"
    return None


def _lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Every path below a node with its line, merged keys last; a repeated key or one that is not text is an error."""
    merged: list[yaml.Node] = []
    items: list[tuple[KeyPath, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if key.value in seen or key.tag != "tag:yaml.org,2002:str":
                wrong = "written twice; remove one" if key.value in seen else "not text; write it in quotes"
                problem = f"the key `{key.value}` is {wrong}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
            items.append(((*path, key.value), key, value))
    elif isinstance(node, yaml.SequenceNode):
        items = [((*path, index), item, item) for index, item in enumerate(node.value)]
    for place, key, value in items:
        yield place, key.start_mark.line + 1
        yield from _lines(value, place)
    for other in merged:
        yield from _lines(other, path)


def make_token(cluster: ClusterFile) -> tuple[Path, Literal["made", "kept", "corrected"]]:
    """Make the token that a cluster file mounts, or keep an existing one; SpecError if it mounts none.

    A kept one is corrected if other users could read its file until now.
    """
    if cluster.token is None:
        raise SpecError(
            f"{cluster.name} mounts no token; add `{TOKEN}: {cluster.shipped_token}` to its `file_mounts`."
        )
    path = cluster.token.absolute()
    # `Path.mkdir(parents=True)` would not apply the mode to the parents.
    for folder in reversed([folder for folder in path.parents if not folder.exists()]):
        folder.mkdir(mode=0o700)
    try:
        # With its mode before it has a byte.
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        read_token(path, cluster.name)
        if open_to_others(path) is None:
            return path, "kept"
        path.chmod(0o600)
        return path, "corrected"
    # As many random bytes as in Ray's own.
    path.write_text(secrets.token_hex(32), encoding="ascii")
    return path, "made"


def read_token(path: Path, cluster: str = "FILE") -> str:
    """Return the token in a file; SpecError, with the cluster file, if it is missing or not one word."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise SpecError(f"the token {path} {what}; make it with `interplay cluster token {cluster}`.")
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise SpecError(
            f"{path} holds no token ({'one word is expected' if text else 'it is empty'}); delete it and run "
            f"`interplay cluster token {cluster}`."
        )
    return text


def open_to_others(path: Path) -> str | None:
    """The mode of a file if others than its owner can access it, such as `0644`; else None."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{mode:04o}" if mode & 0o077 else None
