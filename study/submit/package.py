"""The package of a job: the checkout, and a spec whose paths hold on the head."""

import shlex
import zipfile
from collections.abc import Iterator, Sequence
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
    """Pack the files of a study into an empty folder that outlives the sending.

    The archive has what `ray job submit --working-dir .` sends: the checkout without the files that `.gitignore` and
    `.rayignore` name. A preset is run by its name and overrides. Any other spec is written into the archive, with its
    `data.path` relative to the checkout.

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
    paths = list(_paths(raw))
    if source in yaml_file.preset_names() and not paths:
        name, sets = source, [word for text in overrides for word in ("--set", text)]
    else:
        name, sets = f"{spec.name}.submitted.yaml", []
        with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
            sent = set(file.namelist())
            for holder, key in paths:
                holder[key] = _inside(holder[key], folder, sent)
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


def _paths(raw: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Every data file or pattern that a study names, as a mapping or list and the key of the path in it."""
    data, vary = raw["data"], raw.get("vary") or {}
    lists = [vary[key] for key in filter(yaml_file.VARIED_PATH.fullmatch, vary)]
    for source in (data, *(part["data"] for part in data.get("parts", ()))):
        if isinstance(source.get("path"), list):
            lists.append(source["path"])
        elif source.get("path"):
            yield source, "path"
    for paths in lists:
        yield from ((paths, index) for index in range(len(paths)))


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
