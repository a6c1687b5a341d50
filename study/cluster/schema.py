"""Check a cluster file against Ray's schema, and each `node_config` against botocore's model of EC2."""

import contextlib
import copy
import io
import json
import re
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from study.cluster.cluster_file import Path
from study.cluster.findings import Report
from trainables.errors import did_you_mean

#: Ray's own key in a `node_config`, for a choice of subnets.
_RAY_ONLY = "SubnetIds"


def check_schema(report: Report) -> None:
    """Prepare and validate a copy of the file as `ray up` does; uses no network.

    All mistakes are reported, where Ray stops at the first. `prepare_config` fills in defaults that
    `validate_config` requires.
    """
    import jsonschema
    import ray.autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = copy.deepcopy(report.file.document)
    schema = json.loads((FilePath(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    mistakes = list(jsonschema.Draft7Validator(schema).iter_errors(document))
    for error in mistakes:
        path = tuple(error.absolute_path)
        known = error.schema.get("properties", {}) if error.validator == "additionalProperties" else ()
        unknown = [key for key in error.instance if key not in known] if known else []
        for key in unknown:
            hint = did_you_mean(key, known) or "; remove it"
            report.error((*path, key), f"`{key}` is not a key here{hint}")
        if not unknown:
            report.error(path, f"Ray's schema refuses this value: {error.message}")
    if mistakes:
        return
    output = io.StringIO()
    try:
        # Ray also prints the reason that it raises.
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            validate_config(prepare_config(document))
    except Exception as error:  # noqa: BLE001 - report any exception that would end `ray up`
        reason = " ".join(str(error).split()) or type(error).__name__
        report.error((), f"`ray up` would refuse it: {reason.rstrip('.')}")


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


def check_node_configs(report: Report) -> None:
    """Check each `node_config` by botocore's own parameter validation, which Ray's schema does not do."""
    from botocore.validate import ParamValidator

    ec2 = _ec2()
    types = ec2.shape_for("InstanceType").enum
    shape = ec2.operation_model("RunInstances").input_shape
    for name in report.file.mapping("available_node_types"):
        place: Path = ("available_node_types", name, "node_config")
        # Ray sets both counts itself.
        config = {**report.file.mapping(*place), "MinCount": 1, "MaxCount": 1}
        config.pop(_RAY_ONLY, None)
        for reason, where, details in ParamValidator().validate(config, shape)._errors:
            parts = re.findall(r"\w+", where)
            path = (*place, *(int(part) if part.isdecimal() else part for part in parts))
            if reason == "unknown field":
                key = details["unknown_param"]
                hint = did_you_mean(key, [*details["valid_names"], _RAY_ONLY]) or "; remove it"
                report.error((*path, key), f"EC2 has no parameter `{key}` here{hint}")
            elif reason == "missing required field":
                report.error(path, f"`{details['required_name']}` is missing, which EC2 requires; add it")
            else:
                wanted = " or ".join(re.findall(r"'(\w+)'", str(details.get("valid_types"))))
                fix = f"; EC2 requires {wanted}" if wanted else ""
                report.error(path, f"`{path[-1]}` has an {reason}: {details.get('param')!r}{fix}")
        kind = config.get("InstanceType")
        if kind not in types:
            hint = did_you_mean(str(kind), types) or "; give a type such as g6.xlarge"
            report.error((*place, "InstanceType"), f"EC2 has no instance type {kind}{hint}")
