"""Check a cluster file against Ray's schema, and each `node_config` against botocore's model of EC2."""

import contextlib
import copy
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from study.cluster.cluster_file import ClusterFile, KeyPath
from trainables.errors import did_you_mean

#: Ray's own key in a `node_config`, for a choice of subnets.
_RAY_ONLY = "SubnetIds"


def check_schema(file: ClusterFile) -> None:
    """Prepare and validate a copy of the file as `ray up` does; uses no network.

    All mistakes are reported, where Ray stops at the first. `prepare_config` fills in defaults that
    `validate_config` requires.
    """
    import jsonschema
    import ray.autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = copy.deepcopy(file.document)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    mistakes = list(jsonschema.Draft7Validator(schema).iter_errors(document))
    for error in mistakes:
        path = tuple(error.absolute_path)
        if error.validator != "additionalProperties":
            file.error(path, f"Ray's schema refuses this value: {error.message}")
            continue
        known = error.schema.get("properties", {})
        for key in (key for key in error.instance if key not in known):
            file.error((*path, key), f"`{key}` is not a key here{did_you_mean(key, known) or '; remove it'}")
    if mistakes:
        return
    try:
        # Ray also prints the reason that it raises.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            validate_config(prepare_config(document))
    except Exception as error:  # noqa: BLE001 - report any exception that would end `ray up`
        reason = " ".join(str(error).split()) or type(error).__name__
        file.error((), f"`ray up` would refuse it: {reason.rstrip('.')}")


@cache
def regions() -> frozenset[str]:
    """Return the regions in which the installed botocore has EC2."""
    from botocore.session import Session

    return frozenset(Session().get_available_regions("ec2"))


@cache
def _ec2() -> Any:
    """Return botocore's model of EC2: 170 ms to read."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("ec2", "service-2"))


def check_node_configs(file: ClusterFile) -> None:
    """Check each `node_config` by botocore's own parameter validation, which Ray's schema does not do."""
    from botocore.validate import ParamValidator

    types = _ec2().shape_for("InstanceType").enum
    shape = _ec2().operation_model("RunInstances").input_shape
    for name in file.mapping("available_node_types"):
        place: KeyPath = ("available_node_types", name, "node_config")
        # Ray sets both counts itself.
        config = {**file.mapping(*place), "MinCount": 1, "MaxCount": 1}
        config.pop(_RAY_ONLY, None)
        for line in ParamValidator().validate(config, shape).generate_report().splitlines():
            where = re.search(r"(?: in| for parameter) ([\w.\[\]]+)[,:]", line)
            parts = re.findall(r"\w+", where[1].removeprefix("input")) if where else []
            path = (*place, *(int(part) if part.isdecimal() else part for part in parts))
            if unknown := re.search(r'Unknown parameter .*: "(.*)", must be one of: (.*)', line):
                hint = did_you_mean(unknown[1], [*unknown[2].split(", "), _RAY_ONLY]) or "; remove it"
                file.error((*path, unknown[1]), f"EC2 has no parameter `{unknown[1]}` here{hint}")
            else:
                file.error(path, f"EC2 refuses this: {line}")
        kind = config.get("InstanceType")
        if kind not in types:
            hint = did_you_mean(str(kind), types) or "; give a type such as g6.xlarge"
            file.error((*place, "InstanceType"), f"EC2 has no instance type {kind}{hint}")
