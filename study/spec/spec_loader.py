"""The YAML of a spec: 1e6 is a number and a date is text, as in YAML 1.2, and a key written twice is an error."""

import re
from typing import Any

import yaml

from trainables.errors import shortened

_FLOAT, _DATE, _EQUALS = (f"tag:yaml.org,2002:{name}" for name in ("float", "timestamp", "value"))


class SpecLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the rules of this module."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse what PyYAML accepts as a key: a second one of the same name, a date or a truth value."""
        result = super().construct_mapping(node, deep=True)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = "a key must be a word or a number" if not isinstance(key, str | int | float) else ""
            if key in seen:
                problem = f"the key `{shortened(str(key))}` is written twice"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return result


SpecLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_FLOAT, _DATE, _EQUALS)]
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
# At once, not by PyYAML's generator, which would build a section that contains itself.
SpecLoader.add_constructor("tag:yaml.org,2002:map", SpecLoader.construct_mapping)


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
