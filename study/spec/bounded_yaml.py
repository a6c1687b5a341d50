"""YAML whose size, depth and aliases are bounded before it is expanded, with numbers as in YAML 1.2."""

import re
from typing import Any

import yaml

from trainables.errors import shortened

#: Bounds of a document, aliases expanded. The longest spec that makes sense is a table of 10,000 learning rates, with
#: 20,000 keys and values; PyYAML reads about 30,000 values per second.
MOST_CHARACTERS = 500_000
MOST_VALUES = 50_000
MOST_LEVELS = 50
#: Python refuses to read or write integers of more than 4,300 digits, and no number of a spec has 100.
MOST_DIGITS = 100
#: Types of YAML 1.1 that no key of a spec has. A date is text, as in YAML 1.2.
_UNUSED = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "set", "omap", "pairs", "value")}
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class BoundedLoader(yaml.SafeLoader):
    """Safe YAML with bounds; every fault of a document is a `YAMLError`."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise yaml.YAMLError(f"it has more than {MOST_CHARACTERS:,} characters")
        super().__init__(text)
        self._values = self._level = self._deepest = 0
        self._sizes: dict[yaml.Node | None, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, and count its values and levels with those that an alias stands for."""
        # The stubs of PyYAML leave `peek_event` without types.
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        values, deepest = self._values, self._deepest
        self._level += 1
        self._values, self._deepest = values + 1, self._level
        self._check(mark)
        node = super().compose_node(parent, index)
        if not isinstance(event, yaml.AliasEvent):
            self._sizes[node] = self._values - values, self._deepest - self._level
        elif node not in self._sizes:
            raise yaml.MarkedYAMLError(
                problem="an alias stands for a list or section that contains it", problem_mark=mark
            )
        else:
            more, levels = self._sizes[node]
            self._values, self._deepest = values + more, self._level + levels
            self._check(mark)
        self._level -= 1
        self._deepest = max(deepest, self._deepest)
        return node

    def _check(self, mark: Any) -> None:
        problem = None
        if self._values > MOST_VALUES:
            problem = f"the document has more than {MOST_VALUES:,} keys and values, aliases included"
        elif self._deepest > MOST_LEVELS:
            problem = f"lists and sections are nested more than {MOST_LEVELS} deep"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; PyYAML's own constructors fail in several ways if a scalar does not fit its tag."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        problem = f"`{shortened(node.value)}` is not of the type `!!{shortened(node.tag.rpartition(':')[2])}`"
        try:
            if node.tag in (_INT, _FLOAT) and len(node.value) > MOST_DIGITS:
                problem = f"the number `{shortened(node.value)}` has more than {MOST_DIGITS} digits"
                raise ValueError
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


class SpecLoader(BoundedLoader):
    """The YAML of a spec: 1e6 is a number and a date is text, as in YAML 1.2, and a key written twice is an error."""


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


def yaml_problem(error: yaml.YAMLError, *, place: bool = True) -> str:
    """Return where a YAML text is wrong and why: ` at line 2, column 7: …`, or without the place the reason alone."""
    mark = getattr(error, "problem_mark", None)
    reason = shortened(getattr(error, "problem", None) or str(getattr(error, "reason", error)), 200)
    if not place:
        return reason
    return f"{f' at line {mark.line + 1}, column {mark.column + 1}' if mark else ''}: {reason}"
