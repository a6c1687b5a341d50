"""The spec with which a study was run, as its results folder has it, compared with one that was given."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.command_line import relative
from core.errors import shortened
from study.errors import SpecError
from study.spec.study import StudySpec, load_spec
from study.spec.yaml_file import SPEC, find

#: Keys that change neither the cells of a study nor which of them are trained.
NOT_COMPARED = ("name", "description", "claim", "diagnostics", "resources", "tracking")
#: Most differences that a message lists.
MOST_LISTED = 4


def recorded_file(name: str, results: Path) -> Path | None:
    """Return the spec in the folder of a study; None if it has not been run."""
    file = results / name / SPEC
    return file if file.is_file() else None


def recorded_source(file: Path, results: Path) -> str:
    """Return how a command names the study of a results folder: by its name, or by its path if that is another spec."""
    name = file.parent.name
    if find(name, results) == file:
        return name
    try:
        is_same = load_spec(name).model_dump() == load_spec(str(file)).model_dump()
    except SpecError:
        is_same = False
    return name if is_same else str(relative(file.parent))


def study_source(spec: StudySpec, results: Path) -> str:
    """Return how a command names a study, with the overrides with which it was run."""
    file = recorded_file(spec.name, results)
    return spec.name if file is None else recorded_source(file, results)


def differences(spec: StudySpec, other: StudySpec) -> dict[str, tuple[str, str]]:
    """Return the keys that change cells and in which two specs differ, with both values; `-` for none."""
    ours, theirs = _values(spec), _values(other)
    keys = [key for key in {**ours, **theirs} if ours.get(key, "-") != theirs.get(key, "-")]
    # Each kind of data has its own keys, of which the kind and the path are enough.
    if "data.kind" in keys:
        keys = [key for key in keys if not key.startswith("data.") or key in ("data.kind", "data.path")]
    return {key: (ours.get(key, "-"), theirs.get(key, "-")) for key in keys}


def _values(spec: StudySpec) -> dict[str, str]:
    raw = {key: value for key, value in spec.model_dump(mode="json").items() if key not in NOT_COMPARED}
    raw["training"]["precision"] = spec.precision
    return _flat(raw)


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {
            path: text
            for name, part in value.items()
            for path, text in _flat(part, f"{key}.{name}" if key else str(name)).items()
        }
    if value is None:
        return {}
    return {key: value if isinstance(value, str) else json.dumps(value)}


def differences_text(differing: Mapping[str, tuple[str, str]]) -> str:
    """Return differences as `key: here / there; …`."""
    listed = [f"{key}: {shortened(first)} / {shortened(two)}" for key, (first, two) in differing.items()]
    more = [f"and {len(listed) - MOST_LISTED} more"] if len(listed) > MOST_LISTED else []
    return "; ".join([*listed[:MOST_LISTED], *more])


def difference_note(spec: StudySpec, given: set[str], results: Path) -> tuple[str, str] | None:
    """Return how a study that was run under the name of `spec` differs, in words, and how a command names it.

    None if nothing was run under this name, or nothing differs but the keys in `given`, those of overrides.
    """
    file = recorded_file(spec.name, results)
    if file is None:
        return None
    source = recorded_source(file, results)
    try:
        differing = differences(spec, load_spec(str(file)))
    except SpecError:
        return f"the spec in {file} is of another version and was not compared", source
    differing = {
        key: both
        for key, both in differing.items()
        if not any(f"{key}.".startswith(f"{chosen}.") for chosen in given)
    }
    if not differing:
        return None
    return (
        f"the study in {file.parent} was run with other values (here / there): {differences_text(differing)}",
        source,
    )


def file_note(
    source: str, overrides: Sequence[str], spec: StudySpec, results: Path
) -> tuple[str, str] | None:
    """Return how SOURCE.yaml differs from the study SOURCE that was read instead, and the name of that file."""
    file = next(
        (candidate for end in (".yaml", ".yml") if (candidate := Path(f"{source}{end}")).is_file()), None
    )
    if file is None or find(source, results).name != SPEC:
        return None
    read = f"{source} is the study in {results / source}"
    try:
        differing = differences(spec, load_spec(str(file), overrides))
    except SpecError:
        return f"{read}; {file} is no valid spec and was not compared", str(file)
    if not differing:
        return None
    return f"{read}; {file} has other values (study / file): {differences_text(differing)}", str(file)
