"""A spec as nested mappings: read YAML files and presets, apply overrides, resolve paths."""

import copy
import os
import re
from collections.abc import Mapping, Sequence
from glob import escape, has_magic
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.spec.messages import show
from study.spec.search import SECTIONS, search_tag
from study.spec.spec_loader import SpecLoader, load_yaml, yaml_problem
from trainables.data.kind import KINDS
from trainables.errors import did_you_mean, shortened

#: The longest spec that makes sense is a table of 10,000 learning rates.
MOST_BYTES = 2_000_000
#: Levels of a key in an override.
MOST_LEVELS = 50
#: Setting the key on the left removes the keys on the right: they exclude one another, or belong to what was replaced.
_REPLACES: dict[str, tuple[str, ...]] = {
    "training.steps": ("training.tokens",),
    "training.tokens": ("training.steps",),
    "frontier.heads": ("frontier.head_dim",),
    "frontier.head_dim": ("frontier.heads",),
    "frontier.budgets": ("frontier.widths",),
    "frontier.widths": ("frontier.budgets", "frontier.depths"),
}


def preset_names() -> list[str]:
    """Return the names of the built-in presets."""
    folder = resources.files("study") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def read(source: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a preset or YAML file as used in errors, and its content as nested mappings.

    Raises:
        SpecError: there is no such preset or file, or it cannot be read as a mapping.
    """
    names = preset_names()
    if source in names:
        text = (resources.files("study") / "presets" / f"{source}.yaml").read_text(encoding="utf-8")
        return f"preset {source}", _parse(text, f"preset {source}")
    path, origin = Path(source), shortened(source, 200)
    try:
        if not path.is_file():
            raise SpecError(_no_such_spec(origin, path, names))
        if path.stat().st_size > MOST_BYTES:
            raise SpecError(f"{origin} has more than {MOST_BYTES:,} bytes, so it is no spec.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{origin} is not a text file in UTF-8 ({error.reason} at byte {error.start})."
        ) from error
    except OSError as error:
        raise SpecError(f"{origin} cannot be read: {error.strerror}.") from error
    return origin, _parse(text, origin)


def _no_such_spec(source: str, path: Path, names: Sequence[str]) -> str:
    listed = f"Presets: {', '.join(names)}."
    if path.is_dir():
        return f"{source} is a folder; name the YAML file in it, or a preset. {listed}"
    beside = [str(found) for found in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    hint = did_you_mean(source, [*names, *beside]) or "."
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        return f"There is no file {source}{hint} Give the path of a YAML file, or a preset. {listed}"
    return f"There is no preset and no file named {source}{hint} {listed}"


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        value = load_yaml(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{origin} is not YAML{yaml_problem(error)}.") from error
    if not isinstance(value, dict):
        found = "is empty" if value is None else "has no keys"
        raise SpecError(
            f"{origin} {found}; a spec is a YAML file with keys such as `data` and `frontier`. The name of a "
            "run table ends in .csv, .jsonl or .parquet."
        )
    return value


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a document with overrides `section.key=value` applied; `study.spec.study.load_spec` has the rules.

    Raises:
        SpecError: an override has no `=`, its value is not YAML, or its key leads through a plain value.
    """
    return changed(raw, dict(_parse_override(text) for text in overrides))


def changed(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with values set by their dotted keys, as `override` does.

    Raises:
        SpecError: a key leads through a plain value.
    """
    changes = dict(values)
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    _follow_data(result, changes)
    _follow_names(result, changes)
    gone = [old for key, value in changes.items() if value is not None for old in _REPLACES.get(key, ())]
    if changes.get("data.tokenizer") == "bytes":
        gone.append("data.vocabulary")
    for section, _, name in (key.partition(".") for key in gone if key not in changes):
        if isinstance(result.get(section), dict):
            result[section].pop(name, None)
    for key, value in changes.items():
        _assign(result, key, value)
    return result


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key, shown = key.strip(), shortened(text, 120)
    parts = key.split(".")
    if not equals or "" in parts or len(parts) > MOST_LEVELS:
        raise SpecError(f"`{shown}` is not of the form section.key=value, for example training.seeds=5.")
    try:
        if _is_literal(value):
            return key, value.strip()
        return key, load_yaml(value)
    except yaml.YAMLError as error:
        raise SpecError(f"the value of `{shown}` is not YAML: {yaml_problem(error, place=False)}.") from error


def _is_literal(value: str) -> bool:
    """Whether YAML would misread a file name: as a comment in `my #1 file.txt`, as an alias in `*.txt`."""
    if value.lstrip().startswith("*"):
        return True
    if not re.search(r"(^|\s)#", value):
        return False
    node = yaml.compose(value, Loader=SpecLoader)
    return node is None or (isinstance(node, yaml.ScalarNode) and node.style is None)


def resolve_relative_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make relative `data.path`s of a document absolute, also in a mixture and in `vary`.

    Paths that start with `~` stay as they are. Values of a wrong type are left for the checks of the spec.
    """
    vary: Any = raw.get("vary")
    for key, paths in vary.items() if isinstance(vary, dict) else ():
        if str(key).endswith(".path"):
            vary[key] = _from(folder, paths)
    _resolve(raw.get("data"), folder)


def _resolve(data: Any, folder: Path) -> None:
    if not isinstance(data, dict):
        return
    if "path" in data:
        data["path"] = _from(folder, data["path"])
    parts = data.get("parts")
    for part in parts if isinstance(parts, list) else ():
        _resolve(part.get("data") if isinstance(part, dict) else None, folder)


def _from(folder: Path, path: Any) -> Any:
    if isinstance(path, list):
        return [_from(folder, one) for one in path]
    if not isinstance(path, str) or not path or path.startswith("~") or Path(path).is_absolute():
        return path
    # A `[` in the name of the folder is not part of a pattern.
    # `Path.exists` raises an error if the name is too long for the system.
    is_pattern = has_magic(path) and not os.path.exists(folder / path)  # noqa: PTH110
    return str(Path(escape(str(folder)) if is_pattern else folder) / path)


def _follow_data(result: dict[str, Any], changes: dict[str, Any]) -> None:
    """Remove the keys of the old kind of data if `data.kind` names another one, or `data.path` implies files."""
    data = result.get("data")
    if not isinstance(data, dict) or "data" in changes:
        return
    here = KINDS.get(str(data.get("kind")))
    if "data.path" in changes and "data.kind" not in changes and here and "path" not in here.model_fields:
        changes["data.kind"] = "files"
    there = KINDS.get(str(changes.get("data.kind")))
    if here and there and here is not there:
        # Kinds of text share tokenizer and limits. The `vocabulary` of the grammar is not that of a tokenizer.
        are_text = "tokenizer" in here.model_fields and "tokenizer" in there.model_fields
        result["data"] = {k: v for k, v in data.items() if are_text and k in there.model_fields}


def _follow_names(result: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Remove the keys of the old learning-rate rule or sampler if an override names another one."""
    training, rule = result.get("training"), changes.get("training.lr.rule")
    lr = training.get("lr") if isinstance(training, dict) else None
    if isinstance(lr, dict) and rule not in (None, lr.get("rule")):
        lr.clear()
    search, name = result.get("search"), changes.get("search.sampler")
    if isinstance(search, dict) and name is not None:
        kept = SECTIONS[search_tag({"sampler": name})].model_fields
        result["search"] = {key: value for key, value in search.items() if key in kept}


def _assign(result: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    here: Any = result
    for depth, part in enumerate(parts):
        place = f"`{shortened(key, 120)}`: `{shortened('.'.join(parts[:depth]), 120)}` is"
        number = int(part) if re.fullmatch(r"\d{1,9}", part) else None
        if isinstance(here, list):
            if number is None or number >= len(here):
                raise SpecError(f"{place} a list of {len(here)}; `{shortened(part)}` is none of its places.")
            slot: Any = number
        elif isinstance(here, dict):
            # YAML reads the keys of `widths` as numbers.
            slot = part if number is None or part in here else number
            if here.get(slot) is None:
                here[slot] = {}
        else:
            raise SpecError(f"{place} the value {show(here)} and has no keys.")
        if depth == len(parts) - 1:
            here[slot] = value
        here = here[slot]
