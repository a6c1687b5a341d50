"""The JSON schema of a spec, for editors, and the page `docs/spec.md`, both from the models.

`python -m study.spec.schema > docs/spec.md` writes the page.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from study.spec.study import StudySpec
from trainables.data.kind import KINDS, TextData

#: Headings of the page below `data`, and the models that they describe by their names in the schema.
HEADINGS = {
    "## `frontier`": "FrontierSection",
    "### `frontier.budgets` as a range": "BudgetRange",
    "### `frontier.flops` as a range": "ComputeRange",
    "## `training`": "TrainingSection",
    "### `training.lr`, `rule: fixed`": "FixedRate",
    "### `training.lr`, `rule: width`": "WidthRate",
    "### `training.lr`, `rule: table`": "TableRate",
    "### `training.base`": "BaseSection",
    "## `search`, `sampler: grid`": "GridSection",
    "## `search`, `sampler` of Optuna": "OptunaSection",
    "## `search`, `sampler: crossing`": "CrossingSection",
    "## `sensitivity`": "SensitivitySection",
    "## `resources`": "ResourcesSection",
    "### `tensor_parallel` and `data_parallel` by width": "MinWidth",
    "## `tracking`": "TrackingSection",
    "### `tracking.wandb`": "WandbSection",
}
#: Upper bounds from here on are above any study; the page leaves them out.
NO_BOUND = 1_000_000
#: Bounds in a JSON schema and how the page writes them.
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a spec file.

    It has the registered kinds of data. A file needs no `name`, which is that of the file by default, no `training`
    and, with a `path`, no `data.kind`. Rules between keys are checked only when a spec is loaded.
    """
    _, kinds = models_json_schema([(kind, "validation") for kind in KINDS.values()])
    study = StudySpec.model_json_schema()
    definitions: dict[str, Any] = {**kinds["$defs"], **study["$defs"]}
    for name, kind in KINDS.items():
        if name != "files":
            definitions[kind.__name__].setdefault("required", []).append("kind")
    mixable = [kind for kind in KINDS.values() if issubclass(kind, TextData) and kind.mixable]
    for holder, allowed in ((study, list(KINDS.values())), (definitions["MixturePart"], mixable)):
        holder["properties"]["data"]["oneOf"] = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in allowed]
    for field in (
        field for model in (study, *definitions.values()) for field in model["properties"].values()
    ):
        if "description" in field:
            # Written over several lines in the code.
            field["description"] = " ".join(field["description"].split())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **study, "required": ["data", "frontier"], "$defs": definitions}


def reference() -> str:
    """Return the page of all keys, with type, default and meaning, in Markdown."""
    schema = json_schema()
    definitions = schema["$defs"]
    lines = [
        "# All keys of a spec",
        "",
        "A spec is a YAML file. Only `data` and `frontier` are required; every other key has the default below. Counts "
        "of parameters and tokens may be written as `2k`, `1.5M`, `7B`. `interplay schema > spec.schema.json` writes "
        "the schema for editors. This page is made from the code by `python -m study.spec.schema`.",
        "",
        *_table(schema),
        "## `data`",
        "",
        "`kind` names the kind of data; with a `path` it is `files` by default.",
        "",
    ]
    for name, kind in sorted(KINDS.items()):
        lines += _described(f"### `kind: {name}`", definitions[kind.__name__])
    for heading, model in HEADINGS.items():
        lines += _described(heading, definitions[model])
    return "\n".join(lines).rstrip() + "\n"


def _described(heading: str, model: Mapping[str, Any]) -> list[str]:
    return [heading, "", *model.get("description", "").splitlines(), "", *_table(model)]


def _table(model: Mapping[str, Any]) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in model["properties"].items():
        if key == "kind":
            continue
        default = "required" if key in model.get("required", ()) else _default(field)
        cells = (f"`{key}`", _type(field), default, field.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*rows, ""]


def _default(field: Mapping[str, Any]) -> str:
    """Return the default; empty where it is nothing or follows from other keys, which the meaning then states."""
    value = field.get("default")
    if value in (None, "", {}, []):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _type(field: Mapping[str, Any]) -> str:
    """Return the type of a value in words."""
    if "$ref" in field:
        return "section"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if names := [member for member in field.get("anyOf", ()) if "enum" in member and "type" in field]:
        return f"{_type(names[0])} or text"
    if "type" not in field:
        members = field.get("anyOf", field.get("oneOf", ()))
        return " or ".join(dict.fromkeys(_type(member) for member in members if member.get("type") != "null"))
    if field["type"] == "array":
        return f"list of {_type(field.get('items') or field['prefixItems'][0])}"
    limits = [
        f"{sign} {field[name]:g}" for name, sign in _BOUNDS.items() if field.get(name, NO_BOUND) < NO_BOUND
    ]
    return ", ".join([{"string": "text", "object": "section"}.get(field["type"], field["type"]), *limits])


if __name__ == "__main__":
    print(reference(), end="")
