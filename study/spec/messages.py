"""Pydantic's errors about a spec as one paragraph: the key, its value, allowed values, the near miss."""

import re
import reprlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from core.errors import did_you_mean, near_misses, shortened
from study.spec.search import SECTIONS
from trainables.data.kind import KINDS, DataKind, TextData

#: How many mistakes are listed at once.
MOST_MISTAKES = 5
#: What a value should be, where pydantic names a type of Python.
_IN_YAML = {
    "tuple_type": "it should be a list such as [1, 2]",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "it should be a section with keys"),
}


#: If aliases of YAML nest a value, its whole text could take hours.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 4
_BRIEF.maxdict = _BRIEF.maxlist = _BRIEF.maxtuple = 8
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 1000


def explain(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel], origin: str) -> str:
    """Return pydantic's errors about the document `raw`, which errors name `origin`, in one paragraph."""
    # A default that follows from other keys cannot be made while one of these is wrong.
    errors = [
        item for item in error.errors(include_url=False) if item["type"] != "default_factory_not_called"
    ]
    places = [_place(details, raw, model) for details in errors]
    meant_by_place: dict[str, list[str]] = {}
    meant: set[str] = set()
    for details, (path, holders) in zip(errors, places, strict=True):
        is_list = isinstance(details["input"], list | tuple)
        if is_list and any(other.startswith(f"{path}.") for other, _ in places):
            # One member of a union rejects the list; another one names the wrong item.
            continue
        if details["type"] == "extra_forbidden":
            parent, dot, key = path.rpartition(".")
            meant.update(f"`{parent}{dot}{near}` is missing" for near in near_misses(key, _keys(holders)))
        subject, demand = _mistake(details, path, holders, model)
        meant_by_place.setdefault(subject, []).append(demand)
    # The members of a union have one demand each. A key that is misspelt is not missing too.
    sentences = [
        "; ".join(filter(None, [subject, "; or ".join(dict.fromkeys(demands))]))
        for subject, demands in meant_by_place.items()
        if subject not in meant
    ]
    more = len(sentences) - MOST_MISTAKES
    listed = (text if text.endswith("?") else f"{text}." for text in sentences[:MOST_MISTAKES])
    return f"{origin}: {' '.join(listed)}{f' And {more} more.' if more > 0 else ''}"


def _place(
    details: ErrorDetails, raw: Mapping[str, Any], model: type[BaseModel]
) -> tuple[str, list[type[BaseModel]]]:
    """Return the dotted key as in the document, and the models that are or hold its value.

    Pydantic's location also has the names of union members, which are no keys.
    """
    value: Any = raw
    named: Any = None
    parts: list[str] = []
    holders = [model]
    for index, part in enumerate(details["loc"]):
        if value is not named and (members := _members(part, value, holders)):
            named, holders = value, members
            continue
        try:
            value = value[part]
        except (LookupError, TypeError):
            if index < len(details["loc"]) - 1 or details["type"] not in {"missing", "extra_forbidden"}:
                continue
        parts.append(shortened(str(part)))
        fields = [holder.model_fields[str(part)] for holder in holders if part in holder.model_fields]
        holders = [inner for field in fields for inner in _models(field.annotation)] or holders
    return ".".join(parts), holders


def _members(part: object, value: Any, holders: Sequence[type[BaseModel]]) -> list[type[BaseModel]]:
    """Return the models of a union that a part of a location names.

    The name of a member may also be a key: the task `hops` has a key `hops`.
    """
    if part in SECTIONS and SECTIONS[str(part)] in holders:
        return [SECTIONS[str(part)]]
    if not isinstance(value, Mapping) or part not in (value.get("kind"), value.get("rule")):
        return []
    return [
        holder
        for holder in holders
        if any(part in get_args(f.annotation) for f in holder.model_fields.values())
    ]


def _mistake(
    details: ErrorDetails, path: str, holders: Sequence[type[BaseModel]], model: type[BaseModel]
) -> tuple[str, str]:
    """Return where and what a mistake is, and what is demanded instead."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    discriminator = str(context.get("discriminator")).strip("'")
    match kind:
        case "value_error":
            text = str(context["error"]).rstrip(".")
            return f"In `{path}`: {text}" if path else text, ""
        case "missing":
            return f"`{path}` is missing", ""
        case "extra_forbidden":
            section, key, keys = path.partition(".")[0], path.rpartition(".")[2], _keys(holders)
            # A key of the same section would be the wrong advice: `training.base` for `training.lr.base`.
            homes = [
                f"; did you mean `{name}.{key}`?"
                for name, field in model.model_fields.items()
                if name != section and key in _keys(_models(field.annotation))
            ]
            hint = did_you_mean(key, keys) or "".join(homes[:1])
            return f"`{path}` is not a key", f"allowed: {', '.join(keys)}{hint}"
        case "union_tag_not_found":
            tags = [get_args(member.model_fields[discriminator].annotation)[0] for member in holders]
            return f"`{path}.{discriminator}` is missing", f"allowed: {', '.join(tags)}"
        case "union_tag_invalid":
            path, value = f"{path}.{discriminator}", context["tag"]
        case "string_pattern_mismatch" if path in model.model_fields:
            allowed = str(model.model_fields[path].description).partition(";")[0]
            return f"`{path}` is {show(value)}", f"allowed: {allowed}"
    subject = f"`{path or 'the spec'}` is {show(value)}"
    expected = context.get("expected", context.get("expected_tags"))
    if expected is None:
        message = re.sub("^(Input|Tuple|Dictionary) should", "it should", _IN_YAML.get(kind, details["msg"]))
        return subject, message[0].lower() + message[1:]
    words = str(expected).replace("'", "").replace(" or ", ", ")
    hint = did_you_mean(show(value).strip("'"), words.split(", "))
    return subject, f"allowed: {words}{hint}"


def _keys(models: Sequence[type[BaseModel]]) -> list[str]:
    return list(dict.fromkeys(key for model in models for key in model.model_fields))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return all models an annotation mentions; for the base class of data kinds all of them."""
    if annotation in (DataKind, TextData):
        return list(KINDS.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def show(value: object) -> str:
    """Return a value as it is quoted in a message, shortened."""
    try:
        return shortened(_BRIEF.repr(value))
    except ValueError:  # Python writes no whole number of more digits
        return f"a value with a number of more than {sys.get_int_max_str_digits():,} digits"
