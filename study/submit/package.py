"""What of this machine a job takes along: the checkout, and a spec that means the same on the head."""

import shlex
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.spec import yaml_file as document
from study.spec.study import StudySpec, studies


@dataclass(frozen=True)
class Shipment:
    """A package that is unpacked on the head, and the command that runs in it there."""

    package: Path | None
    """None where nothing need be sent: no checkout is here, and the study is a preset of the machines' own package."""
    entrypoint: str


def pack(source: str, overrides: Sequence[str], spec: StudySpec, scratch: Path) -> Shipment:
    """Pack what is sent for a study.

    The package is what `ray job submit --working-dir .` sends: the checkout without what `.gitignore` and `.rayignore`
    name. A preset is called by its name with its overrides. Any other spec, which may lie outside of the checkout, is
    put into the package whole, its `data.path` relative to it.

    Args:
        source: what the user called the spec.
        overrides: `section.key=value`.
        spec: both of them read and checked.
        scratch: an empty folder that outlives the sending.

    Raises:
        SpecError: the data are files here that the cluster would not have, or the package is too large.
    """
    folder = checkout(Path.cwd())
    package = scratch / "package.zip"
    if folder is not None:
        _zip(folder, package)
    if source in document.preset_names() and not any(_paths(spec)):
        name, sets = source, [word for text in overrides for word in ("--set", text)]
    else:
        name, sets = f"{spec.name}.submitted.yaml", []
        raw = spec.model_dump(mode="json")
        with zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as archive:
            _relocate(raw, folder, set(archive.namelist()))
            archive.writestr(name, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))
    _check_size(package)
    command = shlex.join(["python", "-m", "study", "run", name, *sets])
    return Shipment(package if package.exists() else None, command)


def _zip(folder: Path, package: Path) -> None:
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    create_package(str(folder), package, include_gitignore=True, excludes=get_runtime_env_default_excludes())


def _check_size(package: Path) -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    size = package.stat().st_size if package.exists() else 0
    if size <= DASHBOARD_CLIENT_MAX_SIZE:
        return
    with zipfile.ZipFile(package) as archive:
        largest = sorted(archive.infolist(), key=lambda item: -item.compress_size)[:3]
    named = ", ".join(f"{item.filename} ({item.compress_size / 1e6:,.0f} MB)" for item in largest)
    raise SpecError(
        f"what would be sent is {size / 1e6:,.0f} MB, and Ray's dashboard takes {DASHBOARD_CLIENT_MAX_SIZE / 1e6:,.0f} "
        f"at most (it answers 413). The largest are {named}; name what the study does not need in .rayignore."
    )


def checkout(start: Path) -> Path | None:
    """The nearest folder from here upwards that holds this project's sources."""
    for folder in (start, *start.parents):
        if (folder / "study" / "__main__.py").is_file() and (folder / "pyproject.toml").is_file():
            return folder
    return None


def _sources(data: Any) -> Iterator[Any]:
    yield data
    for part in data.get("parts", ()) if isinstance(data, dict) else ():
        yield part["data"]


def _paths(spec: StudySpec) -> Iterator[str]:
    """Every file or pattern that the data of a study name, or of a study of a series."""
    for study in studies(spec):
        for source in _sources(study.model_dump(mode="json")["data"]):
            found = source.get("path")
            yield from [found] if isinstance(found, str) else found or ()


def _relocate(raw: dict[str, Any], folder: Path | None, sent: set[str]) -> None:
    for source in _sources(raw["data"]):
        found = source.get("path")
        if isinstance(found, str):
            source["path"] = _inside(found, folder, sent)
        elif found:
            source["path"] = [_inside(path, folder, sent) for path in found]
    vary = raw.get("vary") or {}
    for key in filter(document.VARIED_PATH.fullmatch, vary):
        vary[key] = [_inside(path, folder, sent) for path in vary[key]]


def _inside(path: str, folder: Path | None, sent: set[str]) -> str:
    full = Path(path).expanduser()
    if folder is None or not full.is_relative_to(folder):
        where = (
            f"put it into {folder}" if folder else "run from a checkout of this project with the file in it"
        )
        raise SpecError(
            f"`data.path` is {path}, a file of this machine that the cluster does not have; {where}, which is copied "
            "there, or take a data set of the hub."
        )
    inside = str(full.relative_to(folder))
    if not any(name == inside or name.startswith(f"{inside}/") or fnmatch(name, inside) for name in sent):
        raise SpecError(
            f"`data.path` is {path}, which .gitignore or .rayignore keeps from being sent to the cluster; put it "
            f"elsewhere in {folder}, or change the ignore file."
        )
    return inside
