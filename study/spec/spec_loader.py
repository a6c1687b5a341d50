"""The YAML of a spec: 1e6 is a number and a date is text, as in YAML 1.2, and a key written twice is an error."""

import re
from typing import Any

import yaml

from trainables.errors import shortened

#: Types of YAML 1.1 that no key of a spec has. A date is text, as in YAML 1.2.
_UNUSED = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "set", "omap", "pairs", "value")}
_FLOAT = "tag:yaml.org,2002:float"


class SpecLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the rules of this module."""


SpecLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_FLOAT, *_UNUSED}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
SpecLoader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
SpecLoader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag not in _UNUSED
}


def _mapping(loader: SpecLoader, node: yaml.Node) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="`!!map` is not of a section", problem_mark=node.start_mark)
    loader.flatten_mapping(node)
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float):
            raise yaml.MarkedYAMLError(
                problem="a key must be a word or a number", problem_mark=key_node.start_mark
            )
        if key in result:
            raise yaml.MarkedYAMLError(
                problem=f"the key `{shortened(str(key))}` is written twice", problem_mark=key_node.start_mark
            )
        result[key] = loader.construct_object(value_node, deep=True)
    return result


SpecLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_yaml(text: str, loader: type[yaml.SafeLoader] = SpecLoader) -> Any:
    """Return the value of a YAML text; every fault of the text is a `YAMLError`."""
    try:
        return yaml.load(text, Loader=loader)
    except RecursionError as error:
        raise yaml.YAMLError("lists and sections are nested too deep") from error
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML's constructors fail in these ways if a scalar does not fit its tag.
        raise yaml.YAMLError(f"a value does not fit its type: {error}") from error


def yaml_problem(error: yaml.YAMLError, *, place: bool = True) -> str:
    """Return where a YAML text is wrong and why: ` at line 2, column 7: …`, or without the place the reason alone."""
    mark = getattr(error, "problem_mark", None)
    reason = shortened(getattr(error, "problem", None) or str(getattr(error, "reason", error)), 200)
    if not place:
        return reason
    return f"{f' at line {mark.line + 1}, column {mark.column + 1}' if mark else ''}: {reason}"
