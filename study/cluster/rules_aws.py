"""What a file for AWS must say besides what Ray asks: whose machines, which image, which disks, open to whom."""

import re
from collections.abc import Callable
from typing import Any

from study.cluster.cluster_file import Path
from study.cluster.findings import PLACEHOLDER, Report, near
from study.cluster.node_config import instance_types, mistakes, regions
from study.cluster.prices import prices

#: What a user edits, in one place at the top of the file.
METADATA = ("region", "zones", "image", "bucket", "head_profile", "worker_profile", "security_group")
#: Keys of `provider` that Ray's code for AWS reads.
PROVIDER = (
    *(
        "type",
        "region",
        "availability_zone",
        "cache_stopped_nodes",
        "use_internal_ips",
        "security_group",
        "key_pair",
    ),
    *("aws_credentials", "cloudwatch", "disable_node_updaters", "disable_launch_config_check"),
    *("foreground_node_launch", "worker_liveness_check"),
)
#: ASSUMPTION: an image with NVIDIA's driver takes 45 to 65 GB of its disk, the environment 8 with CUDA's libraries, and
#: what is left must hold the tokens and checkpoints of running cells.
LEAST_DISK_GB = 80
#: The root of Ubuntu's images, and of Amazon Linux's.
ROOT_DEVICES = frozenset({"/dev/sda1", "/dev/xvda"})

#: Ray's services on a head take 1.2 GiB and MLflow's server 0.7, measured on a simulated cluster; each driver more.
LEAST_HEAD_GIB = 4

_IMAGE = re.compile(r"ami-([0-9a-f]{17}|[0-9a-f]{8})")
_GROUP = re.compile(r"sg-([0-9a-f]{17}|[0-9a-f]{8})")
#: Families with a `g` after their number have AWS's own processors, which run another machine code.
ARM = re.compile(r"a1\.|[a-z]+\d+[a-z]*g[a-z]*\.")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def check_aws(report: Report) -> None:
    """Apply every rule for AWS."""
    check_metadata(report)
    _provider(report)
    _processors(report)
    for name in report.file.mapping("available_node_types"):
        config = report.file.mapping("available_node_types", name, "node_config")
        place: Path = ("available_node_types", name, "node_config")
        for path, text in mistakes(config):
            report.error((*place, *path), text)
        _machine(report, name, config, place)
        _network(report, name, config, place)
        _disk(report, config, place)


def check_metadata(report: Report) -> None:
    """Check what a user edits: that it is there, is no longer the placeholder, and has its form."""
    values = report.file.mapping("metadata")
    for key in METADATA:
        if key not in values:
            meant = [other for other in values if near(str(other), [key]) and other not in METADATA]
            hint = f"; did you mean it by `{meant[0]}`?" if meant else f"; add it: {_purpose(key)}"
            report.error(("metadata",), f"`{key}` is missing{hint}")
        elif values[key] is None or (isinstance(values[key], str) and not values[key].strip()):
            report.error(("metadata", key), f"`{key}` is empty; give {_purpose(key)}")
        elif PLACEHOLDER.search(str(values[key])):
            report.error(("metadata", key), f"`{key}` still is {values[key]}; give {_purpose(key)}")
        elif key in _FORMS and not _FORMS[key][0](values[key]):
            report.error(("metadata", key), f"`{key}` is {values[key]}, {_FORMS[key][1]}")


def _purpose(key: str) -> str:
    return {
        "region": "the region of AWS, such as us-west-2",
        "zones": "availability zones of the region, such as us-west-2a,us-west-2b",
        "image": "the id of an image of your region, such as ami-0123456789abcdef0 (cluster/README.md finds one)",
        "bucket": "the name of your S3 bucket, without s3://",
        "head_profile": "the name of the head's instance profile (cluster/README.md makes it)",
        "worker_profile": "the name of the workers' instance profile (cluster/README.md makes it)",
        "security_group": "the id of your security group (cluster/README.md makes it)",
    }[key]


def _is_bucket(value: Any) -> bool:
    return (
        isinstance(value, str)
        and _BUCKET.fullmatch(value) is not None
        and ".." not in value
        and not re.fullmatch(r"(\d+\.){3}\d+", value)
    )


_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "image": (
        lambda value: isinstance(value, str) and _IMAGE.fullmatch(value) is not None,
        "and the id of an image is ami- with 8 or 17 digits of 0-9 and a-f; copy it from the console",
    ),
    "bucket": (
        _is_bucket,
        "and the name of a bucket has 3 to 63 of a-z, 0-9, `-` and `.`, no s3:// and no folder; give the bare name",
    ),
    "security_group": (
        lambda value: isinstance(value, str) and _GROUP.fullmatch(value) is not None,
        "and the id of a group is sg- with 8 or 17 digits of 0-9 and a-f; copy it from the console",
    ),
}


def _provider(report: Report) -> None:
    provider = report.file.mapping("provider")
    for key in provider:
        if key not in PROVIDER:
            report.error(
                ("provider", key),
                f"Ray's code for AWS reads no `{key}`{near(str(key), PROVIDER) or '; take it out'}",
            )
    region = provider.get("region")
    if region is None:
        report.error(("provider",), "`region` is missing, and Ray would take us-west-2; name yours")
    elif str(region) not in regions():
        report.error(("provider", "region"), f"AWS has no region {region}{near(str(region), regions())}")
    for key, name in (("region", "region"), ("zones", "availability_zone")):
        said = report.file.get("metadata", key)
        if said is not None and name in provider and provider[name] != said:
            report.error(
                ("provider", name),
                f"`{name}` is {provider[name]}, and `metadata.{key}`, which the machines read, is {said}; write "
                f"`{name}: *{key}`",
            )
    zones = provider.get("availability_zone")
    for zone in [] if zones is None else str(zones).split(","):
        if not re.fullmatch(rf"{re.escape(str(region))}(-[a-z]+-\d)?[a-z]", zone.strip()):
            report.error(
                ("provider", "availability_zone"),
                f"the zone {zone.strip()} is not one of the region {region}; write them as {region}a,{region}b",
            )
    if "aws_credentials" in provider:
        report.error(
            ("provider", "aws_credentials"),
            "keys of AWS stand in a file that is copied to every machine; take them out, and set AWS_PROFILE or "
            "`aws configure` on this machine",
        )
    if provider.get("cache_stopped_nodes", True) is not False:
        report.warning(
            ("provider",),
            "machines are stopped and not ended where `cache_stopped_nodes` is not false, and you pay for their disks "
            "until you delete them",
        )
    rules = provider.get("security_group", {})
    if isinstance(rules, dict) and "0.0.0.0/0" in str(rules.get("IpPermissions")):
        report.error(
            ("provider", "security_group", "IpPermissions"),
            "a rule lets everybody in (0.0.0.0/0); name your own address, such as 203.0.113.7/32",
        )


def _machine(report: Report, name: str, config: dict[str, Any], place: Path) -> None:
    kind = config.get("InstanceType")
    if kind is None:
        report.error(place, "`InstanceType` is missing; name one, such as g6.xlarge")
    elif str(kind) in instance_types() and str(kind) not in prices().types:
        report.notes.append(f"what {kind} costs and holds is not in our table, so `{name}` is not priced")
    if name == report.file.head:
        _head(report, config, place)
    if "LaunchTemplate" in config:
        report.notes.append(
            f"the launch template of `{name}` cannot be read here; what it sets was not checked"
        )
        return
    if "ImageId" not in config:
        report.error(
            place,
            "`ImageId` is missing, and Ray's own default is an image of Ubuntu 18.04 with old drivers; name one",
        )
    elif report.file.get("metadata", "image") != config["ImageId"] and not _IMAGE.fullmatch(
        str(config["ImageId"])
    ):
        report.error((*place, "ImageId"), f"`ImageId` is {config['ImageId']}, {_FORMS['image'][1]}")
    profile = config.get("IamInstanceProfile")
    if not isinstance(profile, dict) or not {"Name", "Arn"} & profile.keys():
        what = (
            "Ray would make a role with all rights on EC2 and S3"
            if name == report.file.head
            else "these machines could not reach the bucket"
        )
        report.error(place, f"`IamInstanceProfile` is missing: {what}; name the profile, as {{Name: …}}")
    tokens = config.get("MetadataOptions")
    if not isinstance(tokens, dict) or tokens.get("HttpTokens") != "required":
        report.error(
            place if tokens is None else (*place, "MetadataOptions"),
            "`MetadataOptions: {HttpTokens: required}` is missing: without it any program that can be made to fetch an "
            "address on the machine can take its rights",
        )
    if report.file.get("auth", "ssh_private_key") and "KeyName" not in config and "UserData" not in config:
        report.error(
            place,
            "`KeyName` is missing, which Ray wants for every type where `auth.ssh_private_key` is given; add it",
        )


def _head(report: Report, config: dict[str, Any], place: Path) -> None:
    what = prices().types.get(str(config.get("InstanceType")))
    if what is not None and what.memory_gib < LEAST_HEAD_GIB:
        report.error(
            (*place, "InstanceType"),
            f"{config['InstanceType']} has {what.memory_gib} GiB for Ray, MLflow and a driver for each study; take one "
            f"with {LEAST_HEAD_GIB} or more, such as m7i.xlarge",
        )
    if "InstanceMarketOptions" in config:
        report.error(
            (*place, "InstanceMarketOptions"),
            "the head may be taken away any minute, and driver and MLflow with it; take this out",
        )


def _processors(report: Report) -> None:
    """One image is for one kind of processor."""
    by_image: dict[str, dict[bool, str]] = {}
    for name in report.file.mapping("available_node_types"):
        config = report.file.mapping("available_node_types", name, "node_config")
        kind = str(config.get("InstanceType"))
        if kind in instance_types():
            by_image.setdefault(str(config.get("ImageId")), {})[ARM.match(kind) is not None] = name
    for kinds in by_image.values():
        if len(kinds) == 2:
            place = ("available_node_types", kinds[True], "node_config", "InstanceType")
            report.error(
                place,
                f"{report.file.get(*place)} has an ARM processor and `{kinds[False]}` an x86 one, and both start the "
                "same image; take a type without the `g`, such as m7i for m7g",
            )


def _disk(report: Report, config: dict[str, Any], place: Path) -> None:
    if "LaunchTemplate" in config:
        return
    devices = config.get("BlockDeviceMappings")
    disks = [one.get("Ebs") for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    sizes = [
        disk["VolumeSize"] for disk in disks if isinstance(disk, dict) and type(disk.get("VolumeSize")) is int
    ]
    if not sizes:
        report.error(
            place,
            "no disk is asked for, so the image's own is taken, with little room; add `BlockDeviceMappings: "
            f"[{{DeviceName: /dev/sda1, Ebs: {{VolumeSize: {2 * LEAST_DISK_GB}, VolumeType: gp3}}}}]`",
        )
    elif max(sizes) < LEAST_DISK_GB:
        report.error(
            (*place, "BlockDeviceMappings"),
            f"the disk of {max(sizes)} GB is too small for image, environment, tokens and checkpoints; take "
            f"{LEAST_DISK_GB} or more",
        )
    names = (
        [one.get("DeviceName") for one in devices if isinstance(one, dict)]
        if isinstance(devices, list)
        else []
    )
    if names and not ROOT_DEVICES & {str(name) for name in names}:
        report.warning(
            (*place, "BlockDeviceMappings"),
            f"no disk is called {' or '.join(sorted(ROOT_DEVICES))}, as the root of images is, so this may be a "
            "second disk beside a small one",
        )
    for index, disk in enumerate(disks):
        if isinstance(disk, dict) and disk.get("DeleteOnTermination") is False:
            report.error(
                (*place, "BlockDeviceMappings", index, "Ebs", "DeleteOnTermination"),
                "every machine that ends would leave its disk behind, and you would pay for all of them; write true",
            )
    for disk in disks:
        if isinstance(disk, dict) and disk.get("VolumeType") in (None, "gp2", "standard"):
            report.warning(
                (*place, "BlockDeviceMappings"),
                "a disk is not of `VolumeType: gp3`, which is faster and cheaper",
            )


def _network(report: Report, name: str, config: dict[str, Any], place: Path) -> None:
    cards = config.get("NetworkInterfaces")
    if not isinstance(cards, list):
        if not config.get("SecurityGroupIds") and "LaunchTemplate" not in config:
            report.error(
                place,
                "`SecurityGroupIds` is missing, and the group that Ray makes lets everybody try port 22; name your own",
            )
        for index, group in enumerate(report.file.sequence(*place, "SecurityGroupIds")):
            if group != report.file.get("metadata", "security_group") and not _GROUP.fullmatch(str(group)):
                report.error(
                    (*place, "SecurityGroupIds", index),
                    f"`SecurityGroupIds` has {group}, {_FORMS['security_group'][1]}",
                )
        known = prices().types.get(str(config.get("InstanceType")))
        most = report.file.get("available_node_types", name, "max_workers")
        if known and (known.efa_cards or 0) > 1 and isinstance(most, int) and most > 1:
            report.notes.append(
                f"`{name}` has no EFA, so ranks on different machines of it would talk over ordinary sockets; a cell "
                "whose ranks fit one machine loses nothing by that"
            )
        return
    both = [key for key in ("SubnetId", "SubnetIds", "SecurityGroupIds") if key in config]
    if both:
        report.error(
            (*place, both[0]),
            f"with `NetworkInterfaces` Ray refuses `{both[0]}`; give it in each of the interfaces",
        )
    for index, card in enumerate(cards):
        for key in ("SubnetId", "Groups"):
            if isinstance(card, dict) and not card.get(key):
                report.error(
                    (*place, "NetworkInterfaces", index),
                    f"`{key}` is missing, and Ray wants it in each; add it",
                )
    _efa(report, config, [card for card in cards if isinstance(card, dict)], place)


def _efa(report: Report, config: dict[str, Any], cards: list[dict[str, Any]], place: Path) -> None:
    """EFA that is half written starts, and NCCL then falls back to sockets without a word."""
    fast = [card for card in cards if str(card.get("InterfaceType", "")).startswith("efa")]
    kind = str(config.get("InstanceType"))
    known = prices().types.get(kind)
    if not fast or not known:
        return
    here = (*place, "NetworkInterfaces")
    if not known.efa_cards:
        report.error(here, f"{kind} has no EFA; take `InterfaceType: efa` out")
        return
    indices = sorted(card.get("NetworkCardIndex", 0) for card in fast)
    if indices != list(range(known.efa_cards)):
        report.error(
            here,
            f"{kind} has {known.efa_cards} network cards with EFA and {len(fast)} are written, of `NetworkCardIndex` "
            f"{', '.join(map(str, indices))}; list one for each from 0 to {known.efa_cards - 1}, else NCCL takes "
            "sockets and says nothing",
        )
    for index, card in enumerate(cards):
        right = 0 if card.get("NetworkCardIndex", 0) == 0 else 1
        if card in fast and card.get("DeviceIndex") != right:
            report.error(
                (*here, index),
                f"`DeviceIndex` is {card.get('DeviceIndex')} on card {card.get('NetworkCardIndex', 0)}; EC2 wants "
                f"{right} there",
            )
