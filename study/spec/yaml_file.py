"""A spec as nested mappings: read YAML files and presets, apply overrides, resolve paths.

As in YAML 1.2, 1e6 is a number and a date is text. A key written twice is an error.
"""

import copy
import os
import re
from collections.abc import Mapping, Sequence
from glob import escape, has_magic
from pathlib import Path
from typing import Any

import yaml

from core.errors import did_you_mean, shortened
from study.errors import SpecError
from study.spec.messages import show
from study.spec.search import SECTIONS, search_tag
from study.spec.training import LENGTHS
from trainables.data.kind import KINDS, TOKENIZERS, TextData

PRESETS = Path(__file__).parent.parent / "presets"
#: Keys of the data that are paths; a tokenizer may also be one of `TOKENIZERS`.
PATHS = frozenset(("path", "validation_path", "tokenizer"))
#: The spec of a study in its folder.
SPEC = "spec.yaml"
#: The longest spec that makes sense is a table of 10,000 learning rates.
MOST_BYTES = 2_000_000
#: Levels of a key in an override.
MOST_LEVELS = 50
#: Setting the key on the left removes the keys on the right: they exclude one another, or belong to what was replaced.
_REPLACES: dict[str, tuple[str, ...]] = {
    "data.validation_path": ("data.validation_fraction",),
    "data.validation_fraction": ("data.validation_path",),
    **{
        f"training.{name}": tuple(f"training.{other}" for other in LENGTHS if other != name)
        for name in LENGTHS
    },
    "frontier.heads": ("frontier.head_dim",),
    "frontier.head_dim": ("frontier.heads",),
    "frontier.budgets": ("frontier.widths", "frontier.flops", "frontier.spread", "frontier.minutes"),
    "frontier.widths": (
        *("frontier.budgets", "frontier.depths", "frontier.flops", "frontier.spread", "frontier.minutes"),
    ),
    "frontier.flops": (
        *("frontier.budgets", "frontier.widths", "frontier.minutes", "training.steps", "training.tokens"),
    ),
    "frontier.minutes": (
        *("frontier.budgets", "frontier.widths", "frontier.depths", "frontier.flops", "frontier.spread"),
        *(f"training.{name}" for name in LENGTHS),
    ),
}
_TAG = "tag:yaml.org,2002:"


class SpecLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the rules of this module."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a second key of the same name."""
        result = super().construct_mapping(node, deep=True)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"the key `{shortened(str(key))}` is written twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return result


SpecLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_EXPONENT = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
SpecLoader.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+0123456789."))
# At once, not by PyYAML's generator, which would build a section that contains itself.
SpecLoader.add_constructor(f"{_TAG}map", SpecLoader.construct_mapping)


def load_yaml(text: str, loader: type[yaml.SafeLoader] = SpecLoader) -> Any:
    """Return the value of a YAML text; every fault of the text is a `YAMLError`."""
    try:
        return yaml.load(text, Loader=loader)
    except (RecursionError, ValueError, LookupError, AttributeError) as error:
        # PyYAML's constructors fail in the last three ways if a scalar does not fit its tag.
        words = "a value does not fit its type, or lists and sections are nested too deep"
        raise yaml.YAMLError(f"{words}: {error}") from error


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return where a YAML text is wrong and why: ` at line 2, column 7: …`."""
    mark = getattr(error, "problem_mark", None)
    reason = shortened(getattr(error, "problem", None) or str(getattr(error, "reason", error)), 200)
    return f"{f' at line {mark.line + 1}, column {mark.column + 1}' if mark else ''}: {reason}"


def preset_names() -> list[str]:
    """Return the names of the built-in presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def find(source: str, results: Path | None = None) -> Path:
    """Return the file of a spec: a preset, a file, the folder of a study, a study in `results`, or SOURCE.yaml.

    The first of these that exists; the path `source` itself if none does.
    """
    if source in preset_names():
        return PRESETS / f"{source}.yaml"
    path = Path(source)
    candidates = [path, path / SPEC]
    # Names only: `..` and paths would leave the folder.
    if results is not None and path.name == source != "..":
        candidates.append(results / source / SPEC)
    if path.name not in ("", ".."):
        candidates += [path.with_name(f"{path.name}{ending}") for ending in (".yaml", ".yml")]
    return next((file for file in candidates if file.is_file()), path)


def read(source: str, path: Path, results: Path | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name of a spec as used in errors, and the content of its file as nested mappings.

    Raises:
        SpecError: there is no such preset, study or file, or it cannot be read as a mapping.
    """
    origin = shortened(source if str(path) == source else str(path), 200)
    if path.parent == PRESETS:
        origin = f"preset {path.stem}"
    try:
        if not path.is_file():
            raise SpecError(_no_such_spec(origin, path, results))
        if path.stat().st_size > MOST_BYTES:
            raise SpecError(f"{origin} has more than {MOST_BYTES:,} bytes, so it is no spec.")
        value = load_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{origin} is not a text file in UTF-8 ({error.reason} at byte {error.start})."
        ) from error
    except OSError as error:
        raise SpecError(f"{origin} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{origin} is not YAML{yaml_problem(error)}.") from error
    if not isinstance(value, dict):
        raise SpecError(
            f"{origin} {'has no keys' if value else 'is empty'}; a spec is a YAML file with keys such as `data` and "
            "`frontier`. The name of a run table ends in .csv, .jsonl or .parquet."
        )
    return origin, value


def _no_such_spec(source: str, path: Path, results: Path | None) -> str:
    names = preset_names()
    beside = map(str, path.parent.glob("*.y*ml") if path.parent.is_dir() else ())
    studies = sorted(file.parent.name for file in (results or path).glob(f"*/{SPEC}"))
    hint = did_you_mean(source, [*names, *beside, *studies]) or "."
    text = f"There is no preset, no file and no study in {results} named {source}{hint}"
    if results is None:
        text = f"There is no preset and no file named {source}{hint}"
    if path.is_dir():
        text = f"{source} is a folder without the spec of a study; name a YAML file, or a preset."
    elif path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        text = f"There is no file {source}{hint} Give the path of a YAML file, or a preset."
    listed = f" Studies in {results}: {', '.join(studies)}." if results and studies else ""
    return f"{text} Presets: {', '.join(names)}.{listed}"


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a document with overrides `section.key=value` applied; `study.spec.study.load_spec` has the rules.

    Raises:
        SpecError: an override has no `=`, its value is not YAML, or its key leads through a plain value.
    """
    return changed(raw, dict(_parse_override(text) for text in overrides))


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key, shown = key.strip(), shortened(text, 120)
    parts = key.split(".")
    if not equals or "" in parts or len(parts) > MOST_LEVELS:
        raise SpecError(f"`{shown}` is not of the form section.key=value, for example training.seeds=5.")
    try:
        return key, value.strip() if _is_literal(value) else load_yaml(value)
    except yaml.YAMLError as error:
        raise SpecError(f"the value of `{shown}` is not YAML{yaml_problem(error)}.") from error


def _is_literal(value: str) -> bool:
    """Whether YAML would misread a file name: as a comment in `my #1 file.txt`, as an alias in `*.txt`."""
    if value.lstrip().startswith("*"):
        return True
    if not re.search(r"(^|\s)#", value):
        return False
    node = yaml.compose(value, Loader=SpecLoader)
    return node is None or (isinstance(node, yaml.ScalarNode) and node.style is None)


def changed(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with values set by their dotted keys, as `override` does.

    Raises:
        SpecError: a key leads through a plain value.
    """
    changes = dict(values)
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    _drop_replaced(result, changes)
    for key, value in changes.items():
        _assign(result, key, value)
    return result


def _drop_replaced(result: dict[str, Any], changes: dict[str, Any]) -> None:
    """Remove what changes exclude, and the keys of another kind of data, learning-rate rule or sampler.

    A `data.path` on data without a path adds the change to `files`.
    """
    data, training, search = (_section(result, name) for name in ("data", "training", "search"))
    before = None if "data" in changes else KINDS.get(str(data.get("kind")))
    if before and "data.path" in changes and "path" not in before.model_fields:
        changes.setdefault("data.kind", "files")
    after = KINDS.get(str(changes.get("data.kind")))
    if before and after and before is not after:
        # Kinds of text share tokenizer and limits. The `vocabulary` of the grammar is not that of a tokenizer.
        are_text = issubclass(before, TextData) and issubclass(after, TextData)
        result["data"] = {k: v for k, v in data.items() if are_text and k in after.model_fields}
    if changes.get("training.lr.rule") not in (None, _section(training, "lr").get("rule")):
        _section(training, "lr").clear()
    if changes.get("training.schedule") not in (None, training.get("schedule", "cosine")):
        for name in ("warmup", "warmup_steps", "decay"):
            training.pop(name, None)
    if (sampler := changes.get("search.sampler")) is not None and search:
        kept = SECTIONS[search_tag({"sampler": sampler})].model_fields
        result["search"] = {key: value for key, value in search.items() if key in kept}
    heads = _section(result, "frontier")
    have_own_width = {f"frontier.{name}" for name in ("heads", "head_dim") if heads.get(name) is not None}
    gone = [
        old
        for key, value in changes.items()
        for old in _REPLACES.get(key, ())
        # A document with heads of their own width has both keys, and keeps them.
        if value is not None and not {key, old} <= have_own_width
    ]
    if (tokenizer := changes.get("data.tokenizer")) is not None:
        # Each tokenizer of a file has its own size.
        if tokenizer != "bpe" or data.get("tokenizer", "bytes") not in TOKENIZERS:
            gone.append("data.vocabulary")
        if tokenizer in TOKENIZERS:
            gone.append("data.end_of_text")
    for section, _, name in (key.partition(".") for key in gone if key not in changes):
        _section(result, section).pop(name, None)


def _section(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a section; an empty one if it is missing or no mapping, which the checks of the spec report."""
    section = document.get(key)
    return section if isinstance(section, dict) else {}


def _assign(result: dict[str, Any], key: str, value: Any) -> None:
    part_of_spec: Any = result
    parts = key.split(".")
    for depth, part in enumerate(parts):
        place = f"`{shortened(key, 120)}`: `{shortened('.'.join(parts[:depth]), 120)}` is"
        slot: Any = int(part) if re.fullmatch(r"\d{1,9}", part) else part
        if isinstance(part_of_spec, dict):
            # YAML reads the keys of `widths` as numbers.
            slot = part if part in part_of_spec else slot
            part_of_spec.setdefault(slot, None)
        elif not isinstance(part_of_spec, list):
            raise SpecError(f"{place} the value {show(part_of_spec)} and has no keys.")
        elif isinstance(slot, str) or slot >= len(part_of_spec):
            raise SpecError(
                f"{place} a list of {len(part_of_spec)}; `{shortened(part)}` is none of its places."
            )
        if depth == len(parts) - 1:
            part_of_spec[slot] = value
        elif part_of_spec[slot] is None:
            part_of_spec[slot] = {}
        part_of_spec = part_of_spec[slot]


def resolve_relative_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make relative paths of the data (`PATHS`) absolute, also in a mixture.

    Paths that start with `~` stay as they are. Values of a wrong type are left for the checks of the spec.
    """
    data = _section(raw, "data")
    for key in PATHS.intersection(data):
        data[key] = _from(folder, data[key])
    parts = data.get("parts")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            resolve_relative_paths(part, folder)


def _from(folder: Path, path: Any) -> Any:
    if isinstance(path, list):
        return [_from(folder, item) for item in path]
    if not isinstance(path, str) or path in ("", *TOKENIZERS) or path[0] == "~" or Path(path).is_absolute():
        return path
    # A `[` in the name of the folder is not part of a pattern.
    # `Path.exists` raises an error if the name is too long for the system.
    is_pattern = has_magic(path) and not os.path.exists(folder / path)  # noqa: PTH110
    return str(Path(escape(str(folder)) if is_pattern else folder) / path)
