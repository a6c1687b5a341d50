"""A spec as a document: reading YAML, applying `--set`, and saying in words what is wrong with it."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import escape, has_magic
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from study.errors import SpecError
from trainables.data.kind import KINDS, DataKind

#: A person mends a few mistakes at a time.
MOST_MISTAKES = 5

#: Setting the key on the left takes the keys on the right out of the document: they exclude one another, or
#: their values belong to what was replaced.
_REPLACES: dict[str, tuple[str, ...]] = {
    "training.steps": ("training.tokens",),
    "training.tokens": ("training.steps",),
    "frontier.heads": ("frontier.head_dim",),
    "frontier.head_dim": ("frontier.heads",),
    "frontier.budgets": ("frontier.widths",),
    "frontier.widths": ("frontier.budgets", "frontier.depths"),
    "resources.device": ("resources.gpus_per_trial",),
    "search.stop_when.projected_depth_halfwidth": (
        *("search.stop_when.b_halfwidth", "search.stop_when.crossing_halfwidth", "search.objective"),
    ),
    "search.stop_when.b_halfwidth": (
        *(
            "search.stop_when.projected_depth_halfwidth",
            "search.stop_when.crossing_halfwidth",
            "search.objective",
        ),
        "search.target_params",
    ),
    "search.stop_when.crossing_halfwidth": (
        *("search.stop_when.projected_depth_halfwidth", "search.stop_when.b_halfwidth", "search.objective"),
        "search.target_params",
    ),
}
#: What of the section `search` only the sampler `crossing` knows.
CROSSING_KEYS = (
    *(
        "objective",
        "target_params",
        "stop_when",
        "max_flops",
        "max_cells",
        "max_seeds",
        "new_budgets",
        "limits",
    ),
)

#: Keys of a series whose studies have different files; a mixture has some in its parts.
VARIED_PATH = re.compile(r"data(\.parts\.\d+\.data)*\.path")


class _Loader(yaml.SafeLoader):
    """Safe YAML where 1e6 is a number, as in YAML 1.2, and a key written twice is an error."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a word or a number", key_node.start_mark
            )
        if key in result:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key `{key}` is written twice", key_node.start_mark
            )
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def preset_names() -> list[str]:
    """Names of the presets that come with the package."""
    folder = resources.files("study") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset(name: str) -> dict[str, Any]:
    """Return a preset as nested mappings."""
    text = (resources.files("study") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse(text, f"preset {name}")


def read(source: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a preset or YAML file for use in errors, and its content as nested mappings.

    Raises:
        SpecError: there is no such preset or file, or it cannot be read as a mapping.
    """
    names = preset_names()
    if source in names:
        return f"preset {source}", preset(source)
    path = Path(source)
    if not path.is_file():
        raise SpecError(_no_such_spec(source, path, names))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{source} is not a text file in UTF-8 ({error.reason} at byte {error.start})."
        ) from error
    except OSError as error:
        raise SpecError(f"{source} cannot be read: {error.strerror}.") from error
    return source, _parse(text, source)


def _no_such_spec(source: str, path: Path, names: Sequence[str]) -> str:
    listed = f"Presets: {', '.join(names)}."
    if path.is_dir():
        return f"{source} is a folder; name the YAML file in it, or a preset. {listed}"
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        return f"There is no file {source}. Give the path of a YAML file, or a preset. {listed}"
    return f"There is no preset and no file named {source}{_did_you_mean(source, names)} {listed}"


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecError(f"{origin} is not YAML{_where(error)}: {_problem(error)}.") from error
    if not isinstance(value, dict):
        found = "empty" if value is None else f"a {type(value).__name__}"
        raise SpecError(
            f"{origin} is {found}; a spec is a mapping with keys such as `name`, `data`, `frontier`."
        )
    return value


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"


def _problem(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(getattr(error, "reason", error))


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the document with `section.key=value` overrides applied; `study.spec.study.load_spec` has the rules.

    Raises:
        SpecError: an override has no `=`, its value is not YAML, or its key leads through a plain value.
    """
    return changed(raw, dict(_parse_override(text) for text in overrides))


def changed(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with values set by their dotted keys, as `override` does.

    Raises:
        SpecError: a key leads through a plain value.
    """
    changes = dict(values)
    result: dict[str, Any] = _copy(dict(raw))
    _follow_data(result, changes)
    _follow_variant(result, changes, ("training", "lr"), "rule")
    for key, value in changes.items():
        if value is not None:
            for replaced in _REPLACES.get(key, ()):
                _drop(result, replaced, changes)
    if changes.get("data.tokenizer") == "bytes":
        _drop(result, "data.vocabulary", changes)
    sampler = changes.get("search.sampler")
    if sampler in ("grid", "crossing"):
        _drop(result, "search.candidates", changes)
    if sampler is not None and sampler != "crossing":
        for name in CROSSING_KEYS:
            _drop(result, f"search.{name}", changes)
    for key, value in changes.items():
        _assign(result, key, value)
    return result


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or "" in key.split("."):
        raise SpecError(f"`--set {text}` is not of the form section.key=value, for example training.seeds=5.")
    try:
        if _is_literal(value):
            return key, value.strip()
        return key, yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecError(f"the value of `--set {text}` is not YAML: {_problem(error)}.") from error


def _is_literal(value: str) -> bool:
    """Whether YAML would misread a file's name: drop the end of `my #1 file.txt`, look for an alias in `*.txt`."""
    if value.lstrip().startswith("*"):
        return True
    if not re.search(r"(^|\s)#", value):
        return False
    node = yaml.compose(value, Loader=_Loader)
    return node is None or (isinstance(node, yaml.ScalarNode) and node.style is None)


def resolve_relative_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make every relative `data.path` of a document start from a folder, also in a mixture and in `vary`.

    A path that is absolute already, or starts with `~`, stays as it is. A wrong document stays as wrong as it was.
    """
    data = raw.get("data")
    parts = data.get("parts") if isinstance(data, dict) else None
    vary = raw.get("vary")
    varied = vary if isinstance(vary, dict) else {}
    for key, paths in varied.items():
        if VARIED_PATH.fullmatch(str(key)) and isinstance(paths, list):
            varied[key] = [_from(folder, path) if isinstance(path, str) else path for path in paths]
    nested = [part.get("data") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    for source in (data, *nested):
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            source["path"] = _from(folder, source["path"])
        elif isinstance(source, dict) and isinstance(source.get("path"), list):
            source["path"] = [_from(folder, p) if isinstance(p, str) else p for p in source["path"]]


def _from(folder: Path, path: str) -> str:
    if not path or path.startswith("~") or Path(path).is_absolute():
        return path
    # In a pattern, a `[` of the folder's own name must not count.
    is_pattern = has_magic(path) and not (folder / path).exists()
    return str(Path(escape(str(folder)) if is_pattern else folder) / path)


def _follow_data(result: dict[str, Any], changes: dict[str, Any]) -> None:
    """Make room for another kind of data: named by `data.kind`, or meant by `data.path`."""
    data = result.get("data")
    if not isinstance(data, dict) or "data" in changes:
        return
    kinds = KINDS
    here = kinds.get(str(data.get("kind")))
    if "data.path" in changes and "data.kind" not in changes and here and "path" not in here.model_fields:
        changes["data.kind"] = "files"
    there = kinds.get(str(changes.get("data.kind")))
    if here and there and here is not there:
        # Kinds of text share tokenizer and limits. The grammar's `vocabulary` is another thing of the same
        # name.
        are_text = "tokenizer" in here.model_fields and "tokenizer" in there.model_fields
        result["data"] = {k: v for k, v in data.items() if are_text and k in there.model_fields}


def _follow_variant(
    result: dict[str, Any], changes: Mapping[str, Any], path: tuple[str, str], tag: str
) -> None:
    """Take out what belonged to the old rule where an override names a new one."""
    section = result.get(path[0])
    table = section.get(path[1]) if isinstance(section, dict) else None
    chosen = changes.get(".".join((*path, tag)))
    if (
        isinstance(section, dict)
        and isinstance(table, dict)
        and chosen is not None
        and table.get(tag) != chosen
    ):
        section[path[1]] = {}


def _drop(result: dict[str, Any], key: str, changes: Mapping[str, Any]) -> None:
    *sections, name = key.split(".")
    table: Any = result
    for section in sections:
        table = table.get(section) if isinstance(table, dict) else None
    if key not in changes and isinstance(table, dict):
        table.pop(name, None)


def _assign(result: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    here: Any = result
    for depth, part in enumerate(parts):
        done = ".".join(parts[:depth])
        if isinstance(here, list):
            if not part.isdecimal() or int(part) >= len(here):
                raise SpecError(
                    f"`--set {key}`: `{done}` is a list of {len(here)}; `{part}` is none of its places."
                )
            slot: Any = int(part)
        elif isinstance(here, dict):
            # YAML reads the keys of `widths` as numbers.
            slot = int(part) if part.isdecimal() and part not in here else part
        else:
            raise SpecError(f"`--set {key}`: `{done}` is the value {_show(here)} and has no keys of its own.")
        if depth == len(parts) - 1:
            here[slot] = value
        else:
            if isinstance(here, dict) and here.get(slot) is None:
                here[slot] = {}
            here = here[slot]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def explain(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel], origin: str) -> str:
    """Put what pydantic found into one paragraph: key, value, what is allowed, near miss."""
    found: dict[str, list[str]] = {}
    told = [
        (details, _path(details, raw)) for details in _without_echoes(error.errors(include_url=False), model)
    ]
    for details, path in told:
        if isinstance(details["input"], list | tuple) and any(
            other.startswith(f"{path}.") for _, other in told
        ):
            # That a list is no number is what one member of a union says; another says which of its items is wrong.
            continue
        # Several mistakes at one place are what the members of a union say of one value.
        group = path if details["type"] != "value_error" else f"{path} {details['msg']}"
        found.setdefault(group, []).append(_sentence(details, path, model))
    sentences = [_merge(texts) for texts in found.values()]
    more = len(sentences) - MOST_MISTAKES
    tail = f" And {more} more." if more > 0 else ""
    return f"{origin}: " + " ".join(f"{text}." for text in sentences[:MOST_MISTAKES]) + tail


def _without_echoes(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> Iterator[ErrorDetails]:
    """Leave out what is only the echo of another mistake, such as a missing key that is misspelt."""
    meant = set()
    for details in errors:
        if details["type"] == "extra_forbidden":
            *parents, key = details["loc"]
            close = _near(str(key), _keys(model, details["loc"][:-1]))
            if close:
                meant.add((*parents, close))
    for details in errors:
        echo = details["type"] == "missing" and details["loc"] in meant
        # A list whose items are wrong is also called too short, because the wrong ones do not count.
        echo = echo or (
            details["type"] == "too_short"
            and any(_is_below(other["loc"], details["loc"]) for other in errors if other is not details)
        )
        if not echo:
            yield details


def _is_below(location: Sequence[int | str], parent: Sequence[int | str]) -> bool:
    return len(location) > len(parent) and tuple(location[: len(parent)]) == tuple(parent)


def _path(details: ErrorDetails, raw: Mapping[str, Any]) -> str:
    """The dotted key as the person wrote it: pydantic's location without the names of union members."""
    here: Any = raw
    parts: list[str] = []
    location = details["loc"]
    named: Any = None
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(here, Mapping) and here is not named and part in (here.get("kind"), here.get("rule")):
            # The member's name, which may be that of a key as well: the task `hops` has a key `hops`.
            named = here
            continue
        if (isinstance(here, Mapping) and part in here) or (
            isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        ):
            here = here[part]  # type: ignore[index]
            parts.append(str(part))
        elif isinstance(here, Mapping) and isinstance(part, str) and part.isdecimal() and int(part) in here:
            here = here[int(part)]
            parts.append(part)
        elif last and details["type"] in {"missing", "extra_forbidden"}:
            parts.append(str(part))
    return ".".join(parts)


def _sentence(details: ErrorDetails, path: str, model: type[BaseModel]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return _unknown_key(details, path, model)
        case "missing":
            return f"`{path}` is missing"
        case "value_error":
            text = str(context.get("error", details["msg"])).rstrip(".")
            return f"In `{path}`: {text}" if path else text
        case "literal_error":
            # 'auto', 0 or 1: words in quotes, numbers without.
            allowed = [
                word or number for word, number in re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))
            ]
            return f"`{path}` is {_show(value)}; allowed: {', '.join(allowed)}{_suggest(value, allowed)}"
        case "union_tag_invalid":
            name = str(context["discriminator"]).strip("'")
            allowed = re.findall(r"'([^']*)'", str(context["expected_tags"]))
            tag = str(context["tag"])
            return f"`{path}.{name}` is {tag!r}; allowed: {', '.join(allowed)}{_suggest(tag, allowed)}"
        case "union_tag_not_found":
            name = str(context["discriminator"]).strip("'")
            tags = ", ".join(_tags(model, details["loc"], name))
            return f"`{path}.{name}` is missing; allowed: {tags}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"`{path or 'the spec'}` is {_show(value)}; it should be a section of its own with keys"
        case "string_pattern_mismatch":
            return f"`{path}` is {_show(value)}; it should match {context['pattern']}"
        case _:
            text = details["msg"].removeprefix("Input should be ")
            if kind in {"tuple_type", "list_type"}:
                text = "a list such as [1, 2]"
            return f"`{path}` is {_show(value)}; it should be {text}"


def _unknown_key(details: ErrorDetails, path: str, model: type[BaseModel]) -> str:
    key = str(details["loc"][-1])
    keys = _keys(model, details["loc"][:-1])
    parent = path.rpartition(".")[0]
    close = _near(key, keys)
    if close:
        hint = f"; did you mean `{close}`?"
    else:
        home = [
            name
            for name, section in model.model_fields.items()
            for one in _models(section.annotation)
            if key in one.model_fields and name != parent
        ]
        hint = f"; it belongs to `{home[0]}`: write `{home[0]}.{key}`." if home else "."
    where = f"keys of `{parent}`" if parent else "top-level keys"
    return f"`{path}` is not a key{hint} The {where} are {', '.join(keys)}"


def _merge(sentences: Sequence[str]) -> str:
    """Join what the members of one union say about one value."""
    first, *others = dict.fromkeys(sentences)
    for other in others:
        tail = other.split("; ", 1)[-1].removeprefix("it should be ")
        first = f"{first}; or it should be {tail}"
    return first


def _keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    keys: dict[str, None] = {}
    for one in _models_at(model, location):
        keys.update(dict.fromkeys(one.model_fields))
    return list(keys)


def _tags(model: type[BaseModel], location: Sequence[int | str], discriminator: str) -> list[str]:
    tags: list[str] = []
    for one in _models_at(model, location):
        field = one.model_fields.get(discriminator)
        if field is not None:
            tags.extend(str(value) for value in get_args(field.annotation))
    return tags


def _models_at(model: type[BaseModel], location: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models a location leads to; names of union members in it narrow the choice."""
    here = [model]
    for part in location:
        inner = [
            found
            for one in here
            if part in one.model_fields
            for found in _models(one.model_fields[str(part)].annotation)
        ]
        tagged = [
            one for one in here if any(part in _literals(f.annotation) for f in one.model_fields.values())
        ]
        here = inner or tagged or here
    return here


def _models(annotation: Any) -> list[type[BaseModel]]:
    """All models that an annotation mentions; all kinds of data for their base class."""
    if annotation is DataKind:
        return list(KINDS.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models(argument)]


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _near(word: str, words: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return close[0] if close else None


def _suggest(value: object, allowed: Sequence[str]) -> str:
    close = _near(str(value), allowed)
    return f" (did you mean `{close}`?)" if close else ""


def _did_you_mean(word: str, words: Sequence[str]) -> str:
    close = _near(word, words)
    return f"; did you mean `{close}`?" if close else "."


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
