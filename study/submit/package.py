"""The package of a job: the checkout, and a spec whose paths hold on the head."""

import shlex
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.spec import yaml_file
from study.spec.study import StudySpec


@dataclass(frozen=True)
class JobPackage:
    """A zip file that Ray unpacks on the head, and the command that runs there."""

    archive: Path | None
    """None if there is no checkout and the study is a preset, which the package on the machines has."""
    entrypoint: str


def pack(source: str, overrides: Sequence[str], spec: StudySpec, scratch: Path) -> JobPackage:
    """Pack the files of a study.

    The archive has what `ray job submit --working-dir .` sends: the checkout without the files that `.gitignore` and
    `.rayignore` name. A preset is run by its name and overrides. Any other spec is written into the archive, with its
    `data.path` relative to the checkout.

    Args:
        source: a preset's name or a YAML file.
        overrides: `section.key=value`.
        spec: the checked spec of both.
        scratch: an empty folder that outlives the sending.

    Raises:
        SpecError: the cluster would not have the data files, or the archive is too large.
    """
    folder = checkout(Path.cwd())
    archive = scratch / "package.zip"
    if folder is not None:
        from ray._private.ray_constants import get_runtime_env_default_excludes
        from ray._private.runtime_env.packaging import create_package

        excludes = get_runtime_env_default_excludes()
        create_package(str(folder), archive, include_gitignore=True, excludes=excludes)
    raw = spec.model_dump(mode="json")
    paths: list[str] = []

    def collect(path: str) -> str:
        paths.append(path)
        return path

    _map_paths(raw, collect)
    if source in yaml_file.preset_names() and not paths:
        name, sets = source, [word for text in overrides for word in ("--set", text)]
    else:
        name, sets = f"{spec.name}.submitted.yaml", []
        with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
            sent = set(file.namelist())
            _map_paths(raw, lambda path: _inside(path, folder, sent))
            file.writestr(name, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))
    command = shlex.join(["python", "-m", "study", "run", name, *sets])
    if not archive.exists():
        return JobPackage(None, command)
    _check_size(archive)
    return JobPackage(archive, command)


def _check_size(archive: Path) -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    size = archive.stat().st_size
    if size > DASHBOARD_CLIENT_MAX_SIZE:
        with zipfile.ZipFile(archive) as file:
            largest = sorted(file.infolist(), key=lambda item: -item.compress_size)[:3]
        named = ", ".join(f"{item.filename} ({item.compress_size / 1e6:,.0f} MB)" for item in largest)
        raise SpecError(
            f"the job's package has {size / 1e6:,.0f} MB, and Ray's dashboard accepts "
            f"{DASHBOARD_CLIENT_MAX_SIZE / 1e6:,.0f} at most. The largest files are {named}; name what the study does "
            "not need in .rayignore."
        )


def checkout(start: Path) -> Path | None:
    """The nearest folder from here upwards with this project's sources."""
    for folder in (start, *start.parents):
        if (folder / "study" / "__main__.py").is_file() and (folder / "pyproject.toml").is_file():
            return folder
    return None


def _map_paths(raw: dict[str, Any], change: Callable[[str], str]) -> None:
    """Change every data file or pattern that a study names: in `data`, in the parts of a mixture, and in `vary`."""
    data = raw["data"]
    for source in (data, *(part["data"] for part in data.get("parts", ()))):
        found = source.get("path")
        if found:
            source["path"] = change(found) if isinstance(found, str) else [change(path) for path in found]
    vary = raw.get("vary") or {}
    for key in filter(yaml_file.VARIED_PATH.fullmatch, vary):
        vary[key] = [change(path) for path in vary[key]]


def _inside(path: str, folder: Path | None, sent: set[str]) -> str:
    full = Path(path).expanduser()
    if folder is None or not full.is_relative_to(folder):
        where = f"put it into {folder}" if folder else "run from a checkout of this project that contains it"
        raise SpecError(
            f"`data.path` is {path}, a file that the cluster does not have; {where}, or use a data set of the hub."
        )
    inside = str(full.relative_to(folder))
    if not any(name == inside or name.startswith(f"{inside}/") or fnmatch(name, inside) for name in sent):
        raise SpecError(
            f"`data.path` is {path}, which .gitignore or .rayignore excludes from the job; put it elsewhere in "
            f"{folder}, or change the ignore file."
        )
    return inside
