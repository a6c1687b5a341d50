"""Turn pydantic's errors about a spec into one paragraph: the key, its value, allowed values, the near miss."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from study.spec.search import Sampler, samplers
from trainables.data.kind import KINDS, DataKind, TextData
from trainables.errors import did_you_mean, near_misses

#: How many mistakes are listed at once.
MOST_MISTAKES = 5


def explain(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel], origin: str) -> str:
    """Return pydantic's errors about a document in one paragraph.

    Args:
        error: pydantic's error.
        raw: the document.
        model: the model it was checked against.
        origin: name of the document.
    """
    found: dict[str, list[str]] = {}
    errors = list(_without_echoes(error.errors(include_url=False), model))
    paths = [_path(details, raw) for details in errors]
    for details, path in zip(errors, paths, strict=True):
        if isinstance(details["input"], list | tuple) and any(
            other.startswith(f"{path}.") for other in paths
        ):
            # One member of a union rejects the list; another one names the wrong item.
            continue
        # The members of a union report one value each; other mistakes at one place are separate.
        group = path if details["type"] != "value_error" else f"{path} {details['msg']}"
        found.setdefault(group, []).append(_sentence(details, path, model))
    sentences = [_merge(texts) for texts in found.values()]
    more = len(sentences) - MOST_MISTAKES
    tail = f" And {more} more." if more > 0 else ""
    return f"{origin}: " + " ".join(map(_ended, sentences[:MOST_MISTAKES])) + tail


def _without_echoes(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> Iterator[ErrorDetails]:
    """Leave out consequences of other mistakes: a missing key that is misspelt, a list that lost its wrong items."""
    meant: set[tuple[int | str, ...]] = set()
    for details in errors:
        if details["type"] == "extra_forbidden":
            *parents, key = details["loc"]
            meant.update((*parents, close) for close in near_misses(str(key), _keys(model, parents)))
    for details in errors:
        place, below = details["loc"], len(details["loc"])
        if details["type"] == "missing" and place in meant:
            continue
        if details["type"] == "too_short" and any(
            len(other["loc"]) > below and other["loc"][:below] == place for other in errors
        ):
            continue
        yield details


def _path(details: ErrorDetails, raw: Mapping[str, Any]) -> str:
    """Return the dotted key as in the document: pydantic's location without the names of union members."""
    here: Any = raw
    parts: list[str] = []
    named: Any = None
    for index, part in enumerate(details["loc"]):
        if isinstance(here, Mapping) and here is not named and part in (here.get("kind"), here.get("rule")):
            # The name of a member, which may also be a key: the task `hops` has a key `hops`.
            named = here
            continue
        number = isinstance(part, str) and part.isdecimal() and isinstance(here, Mapping) and part not in here
        key = int(part) if number else part
        if (isinstance(here, Mapping) and key in here) or (
            isinstance(here, list | tuple) and isinstance(key, int) and key < len(here)
        ):
            here = here[key]  # type: ignore[index]
            parts.append(str(part))
        elif index == len(details["loc"]) - 1 and details["type"] in {"missing", "extra_forbidden"}:
            parts.append(str(part))
    return ".".join(parts)


def _sentence(details: ErrorDetails, path: str, model: type[BaseModel]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    shown = f"`{path}` is {show(value)}"
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
            return f"{shown}; allowed: {', '.join(allowed)}{did_you_mean(str(value), allowed)}"
        case "union_tag_invalid" | "union_tag_not_found":
            name = str(context["discriminator"]).strip("'")
            if kind == "union_tag_not_found":
                return f"`{path}.{name}` is missing; allowed: {', '.join(_tags(model, details['loc'], name))}"
            allowed = re.findall(r"'([^']*)'", str(context["expected_tags"]))
            tag = str(context["tag"])
            return f"`{path}.{name}` is {tag!r}; allowed: {', '.join(allowed)}{did_you_mean(tag, allowed)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"`{path or 'the spec'}` is {show(value)}; it should be a section with keys"
        case "string_pattern_mismatch":
            return f"{shown}; it should match {context['pattern']}"
        case "tuple_type" | "list_type":
            return f"{shown}; it should be a list such as [1, 2]"
        case _:
            return f"{shown}; it should be {details['msg'].removeprefix('Input should be ')}"


def _unknown_key(details: ErrorDetails, path: str, model: type[BaseModel]) -> str:
    key = str(details["loc"][-1])
    keys = _keys(model, details["loc"][:-1])
    parent = path.rpartition(".")[0]
    hint = did_you_mean(key, keys)
    if not hint:
        homes = [
            name
            for name, section in model.model_fields.items()
            for one in models(section.annotation)
            if key in one.model_fields and name != parent
        ]
        hint = f"; it belongs to `{homes[0]}`: write `{homes[0]}.{key}`" if homes else ""
    where = f"keys of `{parent}`" if parent else "top-level keys"
    return f"{_ended(f'`{path}` is not a key{hint}')} The {where} are {', '.join(keys)}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"{sentence}."


def _merge(sentences: Sequence[str]) -> str:
    """Join the sentences of the members of one union about one value."""
    first, *others = dict.fromkeys(sentences)
    for other in others:
        first = f"{first}; or it should be {other.split('; ', 1)[-1].removeprefix('it should be ')}"
    return first


def _keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    return list(dict.fromkeys(key for one in _models_at(model, location) for key in one.model_fields))


def _tags(model: type[BaseModel], location: Sequence[int | str], discriminator: str) -> list[str]:
    fields = (one.model_fields.get(discriminator) for one in _models_at(model, location))
    return [str(value) for field in fields if field is not None for value in get_args(field.annotation)]


def _models_at(model: type[BaseModel], location: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models at a location; names of union members in it narrow the choice."""
    here = [model]
    for part in location:
        inner = [
            found
            for one in here
            if part in one.model_fields
            for found in models(one.model_fields[str(part)].annotation)
        ]
        tagged = [
            one for one in here if any(part in _literals(f.annotation) for f in one.model_fields.values())
        ]
        here = inner or tagged or here
    return here


def models(annotation: Any) -> list[type[BaseModel]]:
    """Return all models an annotation mentions; for the base class of samplers or data kinds all of them."""
    if annotation is Sampler:
        return list(samplers().values())
    if annotation in (DataKind, TextData):
        return list(KINDS.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in models(argument)]


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def show(value: object) -> str:
    """Return a value as it is quoted in a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
