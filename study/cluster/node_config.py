"""A node type's `node_config` against EC2's own description of RunInstances, which Ray's schema does not look at."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ListShape, ServiceModel, Shape, StringShape, StructureShape

from study.cluster.cluster_file import Path
from study.cluster.findings import near

#: Ray's own key among EC2's: it starts machines in the first of these subnets that has room.
RAY_KEYS = ("SubnetIds",)
#: Ray sets these itself for every machine.
RAYS_OWN = ("MinCount", "MaxCount", "SubnetId")

_PYTHON: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "structure": ((dict,), "a mapping"),
    "list": ((list,), "a list"),
}


@cache
def _service() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("ec2", "service-2"))


@cache
def instance_types() -> frozenset[str]:
    """Every instance type that the installed botocore knows."""
    shape = _service().shape_for("InstanceType")
    return frozenset(shape.enum if isinstance(shape, StringShape) else ())


@cache
def regions() -> frozenset[str]:
    """Every region in which the installed botocore knows EC2."""
    from botocore.session import Session

    return frozenset(Session().get_available_regions("ec2"))


def mistakes(node_config: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Return where a `node_config` differs from what EC2 takes, each with a message that says the fix.

    Args:
        node_config: as in the file.
    """
    shape = _service().operation_model("RunInstances").input_shape
    yield from _structure(node_config, shape, (), extra=RAY_KEYS, optional=RAYS_OWN)


def _structure(
    value: dict[str, Any],
    shape: StructureShape,
    path: Path,
    extra: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> Iterator[tuple[Path, str]]:
    for key, item in value.items():
        here = (*path, key)
        if key in extra:
            if not isinstance(item, list) or not all(isinstance(one, str) for one in item):
                yield here, f"`{key}` is {_shown(item)}, and Ray wants a list of texts, such as [subnet-0abc]"
        elif key not in shape.members:
            yield here, f"EC2 knows no `{key}` here{near(str(key), [*shape.members, *extra])}"
        else:
            yield from _value(item, shape.members[key], here)
    for key in shape.required_members:
        if key not in value and key not in optional:
            yield path, f"`{key}` is missing, which EC2 needs here; add it"


def _value(value: Any, shape: Shape, path: Path) -> Iterator[tuple[Path, str]]:
    wanted, words = _PYTHON.get(shape.type_name, ((object,), "something else"))
    # Compared by `type`, because true is a number to `isinstance`.
    fits: bool = object in wanted or type(value) in wanted
    if not fits:
        yield path, f"`{path[-1]}` is {_shown(value)}, and EC2 wants {words}"
        return
    if isinstance(shape, StructureShape):
        yield from _structure(value, shape, path)
    elif isinstance(shape, ListShape):
        for index, item in enumerate(value):
            yield from _value(item, shape.member, (*path, index))
    elif isinstance(shape, StringShape) and shape.enum and value not in shape.enum:
        allowed = f"; allowed: {', '.join(shape.enum)}" if len(shape.enum) <= 12 else ""
        yield path, f"`{path[-1]}` is {value}, which EC2 does not know{near(value, shape.enum) or allowed}"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
