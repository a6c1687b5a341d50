"""What would end `ray up`, cost money or open ports: Ray's schema, botocore's model of EC2, and rules of our own."""

import contextlib
import copy
import io
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import did_you_mean
from interplay.cluster.cluster_file import TOKEN, TYPES, ClusterFile, open_to_others, read_token
from study.errors import SpecError
from study.plan.prices import prices

#: Ray's own key in a `node_config`, for a choice of subnets.
RAY_ONLY = "SubnetIds"
#: Values that a user has not edited yet.
PLACEHOLDER = re.compile(
    r"<|>|\.\.\.|change.?me|replace|your|todo|fixme|xxx+|^(ami|sg|subnet)-0+$", re.IGNORECASE
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: ASSUMPTION: an image with NVIDIA's driver takes 45 to 65 GB, the environment with CUDA's libraries 8; the rest must
#: hold tokens and checkpoints of running cells.
LEAST_DISK_GB = 80
#: Ray's services on a head take 1.2 GiB and MLflow's server 0.7, measured on a simulated cluster; drivers add to it.
LEAST_HEAD_GIB = 4

#: Keys of `metadata` that a user edits: the form of the value, and what to give.
AWS_METADATA = {
    "region": (r".+", "an AWS region, such as us-west-2"),
    "zones": (r".+", "availability zones of the region, such as us-west-2a,us-west-2b"),
    "image": (
        r"ami-([0-9a-f]{17}|[0-9a-f]{8})",
        "the id of an image of your region: ami- with 8 or 17 digits (cluster/README.md finds one)",
    ),
    "bucket": (
        r"(?!.*\.\.)(?!(\d+\.){3}\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "the bare name of your S3 bucket: 3 to 63 of a-z, 0-9, `-` and `.`, without s3:// or a folder",
    ),
    "head_profile": (r".+", "the name of the head's instance profile (cluster/README.md makes it)"),
    "worker_profile": (r".+", "the name of the workers' instance profile (cluster/README.md makes it)"),
    "security_group": (
        r"sg-([0-9a-f]{17}|[0-9a-f]{8})",
        "the id of your security group: sg- with 8 or 17 digits (cluster/README.md makes it)",
    ),
}
LOCAL_METADATA = {"storage": (r".+", "a folder or URI that all machines reach")}
#: Keys of each `node_config`, and what Ray would do without them.
REQUIRED = {
    "ImageId": "Ray's default is an image of Ubuntu 18.04 with old drivers; give one",
    "IamInstanceProfile": "the head would get all rights on EC2 and S3, and workers could not reach the bucket; write "
    "{Name: …}",
    "SecurityGroupIds": "Ray would make a group that opens port 22 to everyone; give your own",
}

#: Keys of the form before Ray 1.0, and what replaces each.
LEGACY = {
    "head_node": "`node_config` of the type that `head_node_type` names",
    "worker_nodes": f"`node_config` of another type in `{TYPES}`",
    "initial_workers": "`min_workers` of each type",
    "autoscaling_mode": "`upscaling_speed`",
    "target_utilization_fraction": "`upscaling_speed` and `idle_timeout_minutes`",
    "worker_default_node_type": f"`{TYPES}`, from which Ray takes the cheapest that fits",
}

SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|aws_(secret_)?access_key|(PASSWORD|AUTH_TOKEN|ACCESS_KEY)=[^\s$]", re.IGNORECASE
)


def refuse_legacy(file: ClusterFile) -> None:
    """Raise a SpecError if a file has the form before Ray 1.0, whose other findings would mislead."""
    old = [key for key in LEGACY if key in file.document]
    if not old:
        return
    line = min(file.lines[(key,)] for key in old)
    if file.provider == "local":
        fix = "Remove them: Ray makes the node types of your own machines from `head_ip` and `worker_ips` of `provider`"
    elif TYPES in file.document:
        fix = "Remove them. " + "; ".join(f"`{key}` is now {LEGACY[key]}" for key in old)
    else:
        fix = (
            f"Write `{TYPES}: {{head: {{node_config: {{…}}, max_workers: 0}}, worker: {{node_config: {{…}}, "
            "min_workers: …, max_workers: …}}` and `head_node_type: head`, as cluster/aws.yaml does: "
        ) + "; ".join(f"`{key}` is now {LEGACY[key]}" for key in old)
    raise SpecError(f"{file.name}, line {line}: {', '.join(old)} are of the form before Ray 1.0. {fix}.")


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
    if file.provider == "local":
        # Ray moves it to the node type that it makes of these machines, before it validates.
        schema["properties"]["min_workers"] = {"type": "integer", "minimum": 0}
    mistakes = list(jsonschema.Draft7Validator(schema).iter_errors(document))
    for error in mistakes:
        path = tuple(error.absolute_path)
        if error.validator != "additionalProperties":
            file.error(path, f"Ray's schema refuses this value: {error.message}")
            continue
        properties = error.schema.get("properties", {})
        for key in (key for key in error.instance if key not in properties):
            if path == () and key == "min_workers":
                file.error((key,), f"`min_workers` belongs to each type of `{TYPES}`; move it there")
                continue
            file.error(
                (*path, key), f"`{key}` is not a key here{did_you_mean(key, properties) or '; remove it'}"
            )
    if mistakes:
        return
    try:
        # Ray also prints the reason that it raises.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            validate_config(prepare_config(document))
    except Exception as error:  # noqa: BLE001 - report any exception that would end `ray up`
        reason = " ".join(str(error).split()) or type(error).__name__
        file.error((), f"`ray up` would refuse it: {reason.rstrip('.')}")


def check_metadata(file: ClusterFile, forms: Mapping[str, tuple[str, str]]) -> None:
    """Check that the values a user edits are set, are no placeholders, and have the right form."""
    values = file.mapping("metadata")
    for key in (*forms, *(key for key in values if key not in forms)):
        form, purpose = forms.get(key, (r"(?s).*", "your own value"))
        value = values.get(key)
        if key not in values:
            file.error(("metadata",), f"`{key}` is missing; give {purpose}")
        elif value is None or PLACEHOLDER.search(str(value)) or not re.fullmatch(form, str(value)):
            file.error(("metadata", key), f"`{key}` is {value}; give {purpose}")


def check_any(file: ClusterFile) -> None:
    """Apply the rules for any provider: token, access, secrets and mounted files."""
    _check_token(file)
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        _check_start(file, key)
    for key, value in file.document.items():
        if SECRET.search(str(value)):
            file.error(
                (key,),
                "a password, token or AWS key is written here, and each machine gets a copy of this file; remove it. "
                "Machines have their rights by instance profile; on this machine use AWS_PROFILE or `aws configure`",
            )
    for remote, local in file.mapping("file_mounts").items():
        if remote != TOKEN and not Path(str(local)).expanduser().exists():
            message = f"there is no {local} here; run from the top of the repository, or correct the path"
            file.error(("file_mounts", remote), message)


def check_local(file: ClusterFile) -> None:
    """Apply the rules for existing machines, reached by SSH."""
    check_metadata(file, LOCAL_METADATA)
    if "coordinator_address" not in file.mapping("provider"):
        _check_addresses(file)
    key = file.get("auth", "ssh_private_key")
    if isinstance(key, str) and not Path(key).expanduser().is_file():
        message = f"there is no {key} here; give the path of your private SSH key"
        file.error(("auth", "ssh_private_key"), message)


def _check_addresses(file: ClusterFile) -> None:
    """Check the addresses of the machines, and the counts of workers against them."""
    head, workers = file.get("provider", "head_ip"), file.sequence("provider", "worker_ips")
    for index, worker in enumerate(workers):
        if worker == head or worker in workers[:index]:
            which = "the head's" if worker == head else "there twice"
            message = f"{worker} is {which}, and `ray up` ends by an AssertionError; remove it here"
            file.error(("provider", "worker_ips", index), message)
    counts = {key: file.get(key) for key in ("min_workers", "max_workers")}
    for key, count in counts.items():
        if isinstance(count, int) and count > len(workers):
            message = f"`{key}` is {count}, and `worker_ips` has {len(workers)}; Ray takes {len(workers)}"
            file.add(file.warnings, (key,), message)
    most, least = counts["max_workers"], counts["min_workers"]
    if isinstance(most, int) and most < len(workers):
        if least is None or (isinstance(least, int) and least > most):
            file.error(
                ("max_workers",),
                f"`max_workers` is {most}, and Ray would start "
                f"{len(workers) if least is None else min(least, len(workers))}; write `min_workers: {most}` too",
            )
        else:
            message = f"{len(workers) - most} of the {len(workers)} machines in `worker_ips` will not be used"
            file.add(file.warnings, ("max_workers",), message)


def check_aws(file: ClusterFile) -> None:
    """Apply every rule for machines of AWS."""
    check_metadata(file, AWS_METADATA)
    ec2, regions = _ec2()
    for name in file.mapping(TYPES):
        _check_by_model(file, name, ec2)
        _check_machine(file, name)
    if file.mapping(TYPES, file.head):
        _check_head(file)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", cluster := str(file.get("cluster_name"))):
        message = (
            f"`{cluster}` is no plain word, so cluster/account.sh refuses it; write letters, digits, _ . -"
        )
        file.error(("cluster_name",), message)
    region = str(file.get("provider", "region"))
    if region not in regions:
        hint = did_you_mean(region, regions) or "; give yours"
        file.error(("provider", "region"), f"AWS has no region {region}{hint}")
    zones = str(file.get("provider", "availability_zone") or region).split(",")
    if outside := [zone.strip() for zone in zones if not zone.strip().startswith(region)]:
        message = f"not in the region {region}: {', '.join(outside)}; write zones as {region}a,{region}b"
        file.error(("provider", "availability_zone"), message)


@cache
def _ec2() -> tuple[Any, list[str]]:
    """Botocore's model of EC2 and its regions; 0.4 s to read."""
    from botocore.session import Session

    session = Session()
    return session.get_service_model("ec2"), session.get_available_regions("ec2")


def _check_by_model(file: ClusterFile, name: str, ec2: Any) -> None:
    """Check a `node_config` by botocore's own parameter validation, which Ray's schema does not do."""
    from botocore.validate import ParamValidator

    place = (TYPES, name, "node_config")
    # Ray sets both counts itself.
    config = {**file.mapping(*place), "MinCount": 1, "MaxCount": 1}
    config.pop(RAY_ONLY, None)
    report = ParamValidator().validate(config, ec2.operation_model("RunInstances").input_shape)
    for line in report.generate_report().splitlines():
        where = re.search(r"(?: in| for parameter) ([\w.\[\]]+)[,:]", line)
        parts = re.findall(r"\w+", where[1].removeprefix("input")) if where else []
        path = (*place, *(int(part) if part.isdecimal() else part for part in parts))
        if unknown := re.search(r'Unknown parameter .*: "(.*)", must be one of: (.*)', line):
            hint = did_you_mean(unknown[1], [*unknown[2].split(", "), RAY_ONLY]) or "; remove it"
            file.error((*path, unknown[1]), f"EC2 has no parameter `{unknown[1]}` here{hint}")
        else:
            file.error(path, f"EC2 refuses this: {line}")
    markets = ec2.shape_for("MarketType").enum
    market = file.get(*place, "InstanceMarketOptions", "MarketType")
    if isinstance(market, str) and market not in markets:
        # Botocore does not compare values with their list.
        hint = did_you_mean(market, markets) or f"; write one of {', '.join(markets)}"
        file.error((*place, "InstanceMarketOptions", "MarketType"), f"EC2 has no market {market}{hint}")
    machine, types = file.machine(name), ec2.shape_for("InstanceType").enum
    if machine not in types:
        hint = did_you_mean(machine, types) or "; give a type such as g6.xlarge"
        file.error((*place, "InstanceType"), f"EC2 has no instance type {machine}{hint}")


def _check_token(file: ClusterFile) -> None:
    path = file.token
    if path is None:
        file.error(
            ("file_mounts",),
            "no token is mounted, so anyone who reaches a port of the machines can run programs there; add "
            f"`{TOKEN}: {file.shipped_token}`",
        )
        return
    named_by_cluster = Path(file.shipped_token).expanduser()
    if path.parent == named_by_cluster.parent and path.match("*-token") and path != named_by_cluster:
        message = (
            f"the token {path} is that of another cluster, so whoever reads it on a machine of one can run programs on "
            f"the other; write `{TOKEN}: {file.shipped_token}`"
        )
        file.add(file.warnings, ("file_mounts", TOKEN), message)
    try:
        read_token(path, file.name)
    except SpecError as error:
        file.error(("file_mounts", TOKEN), str(error).rstrip("."))
        return
    if mode := open_to_others(path):
        message = f"others can read {path} (mode {mode}); correct it by `interplay cluster token {file.name}`"
        file.error(("file_mounts", TOKEN), message)


def _check_start(file: ClusterFile, key: str) -> None:
    """Check that Ray starts with the token, and with its dashboard on the loopback address."""
    commands = [str(command) for command in file.sequence(key)]
    starts = [index for index, command in enumerate(commands) if re.search(r"\bray start\b", command)]
    if not starts:
        file.error((key,), f"`{key}` has no `ray start`, so Ray would use its own, without a token; add it")
    for index in starts:
        if "RAY_AUTH_MODE=token" not in commands[index]:
            file.error(
                (key, index),
                "Ray starts without the token, so anyone who reaches the port can run programs; write "
                "`export RAY_AUTH_MODE=token;` before `ray start`, in the same command",
            )
        host = re.search(r"--dashboard-host[= ]['\"]?([^\s'\"]+)", commands[index])
        if host and host[1] not in LOOPBACK:
            message = f"the dashboard listens on {host[1]} and accepts jobs; write --dashboard-host=127.0.0.1"
            file.error((key, index), message)


def _check_head(file: ClusterFile) -> None:
    place, machine = (TYPES, file.head), file.machine(file.head)
    if file.get(*place, "resources", "CPU") != 0:
        file.error(
            (*place, "resources"),
            "trials on the head would starve the driver, Ray and MLflow; write `resources: {CPU: 0, head: 1}`",
        )
    if file.market(file.head) == "spot":
        file.error(
            (*place, "node_config", "InstanceMarketOptions"),
            "AWS may take a spot head away at any time, with the driver and MLflow; remove this",
        )
    what = prices().types.get(machine)
    if what and what.memory_gib < LEAST_HEAD_GIB:
        file.error(
            (*place, "node_config", "InstanceType"),
            f"{machine} has {what.memory_gib} GiB for Ray, MLflow and one driver per study; use a type with "
            f"{LEAST_HEAD_GIB} or more, such as m7i.xlarge",
        )


def _check_machine(file: ClusterFile, name: str) -> None:
    """Rules against old images, too many rights, open ports and small disks."""
    place = (TYPES, name, "node_config")
    config, disks = file.mapping(*place), [disk["VolumeSize"] for disk in file.disks(name)]
    for key, reason in REQUIRED.items():
        if not config.get(key):
            file.error(place, f"`{key}` is missing: {reason}")
    if file.get(*place, "MetadataOptions", "HttpTokens") != "required":
        file.error(
            (*place, "MetadataOptions") if "MetadataOptions" in config else place,
            "`MetadataOptions: {HttpTokens: required}` is missing: without it, any program that can be made to fetch "
            "an address on the machine can take its rights",
        )
    reservation = ("CapacityReservationSpecification", "CapacityReservationTarget", "CapacityReservationId")
    if file.market(name) == "capacity-block":
        if not re.fullmatch(r"cr-[0-9a-f]+", str(file.get(*place, *reservation))):
            file.error(
                (*place, "InstanceMarketOptions"),
                "a Capacity Block needs its id: write `CapacityReservationSpecification: {CapacityReservationTarget: "
                "{CapacityReservationId: cr-…}}` beside it",
            )
        subnets = file.sequence(*place, "SubnetIds")
        if not subnets or not all(re.fullmatch(r"subnet-[0-9a-f]+", str(subnet)) for subnet in subnets):
            file.error(
                (*place, "InstanceMarketOptions"),
                "a Capacity Block is in one zone: write `SubnetIds: [subnet-…]` with a subnet of that zone beside it",
            )
    if max(disks, default=0) < LEAST_DISK_GB:
        has = f"the disk has {max(disks)} GB" if disks else "no disk is given, so the image's own is used"
        file.error(
            (*place, "BlockDeviceMappings"),
            f"{has}, too little for image, environment, tokens and checkpoints; write "
            f"`[{{DeviceName: /dev/sda1, Ebs: {{VolumeSize: {2 * LEAST_DISK_GB}, VolumeType: gp3}}}}]`",
        )
