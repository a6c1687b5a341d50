"""Rules for machines of AWS: their cost, their disks, and who can reach them."""

import re
from typing import Any

from study.cluster.cluster_file import Path
from study.cluster.findings import Report
from study.cluster.prices import disk_sizes, instance_type, is_spot, prices
from study.cluster.rules import AWS_METADATA, check_metadata
from study.cluster.schema import check_node_configs, regions
from trainables.errors import did_you_mean

#: ASSUMPTION: an image with NVIDIA's driver takes 45 to 65 GB, the environment with CUDA's libraries 8; the rest must
#: hold tokens and checkpoints of running cells.
LEAST_DISK_GB = 80
#: Ray's services on a head take 1.2 GiB and MLflow's server 0.7, measured on a simulated cluster; drivers add to it.
LEAST_HEAD_GIB = 4

_TYPES = "available_node_types"


def check_aws(report: Report) -> None:
    """Apply every rule for AWS."""
    check_metadata(report, AWS_METADATA)
    check_node_configs(report)
    _provider(report)
    _head(report)
    _pools(report)
    for name in report.file.mapping(_TYPES):
        place: Path = (_TYPES, name, "node_config")
        config = report.file.mapping(*place)
        if instance_type(report.file, name) not in prices().types:
            report.notes.append(
                f"the price table has no {config.get('InstanceType')}, so `{name}` is not priced"
            )
        if "LaunchTemplate" in config:
            report.notes.append(f"the settings in the launch template of `{name}` are not checked")
            continue
        _machine(report, config, place)
        _disks(report, name)
        _efa(report, name)


def _provider(report: Report) -> None:
    provider = report.file.mapping("provider")
    region = str(provider.get("region"))
    if region not in regions():
        report.error(
            ("provider", "region"),
            f"AWS has no region {region}{did_you_mean(region, regions()) or '; give yours'}",
        )
    for zone in str(provider.get("availability_zone") or f"{region}a").split(","):
        if not re.fullmatch(rf"{re.escape(region)}(-[a-z]+-\d)?[a-z]", zone.strip()):
            report.error(
                ("provider", "availability_zone"),
                f"the zone {zone.strip()} is not in the region {region}; write zones as {region}a,{region}b",
            )
    if provider.get("cache_stopped_nodes", True) is not False:
        report.warning(
            ("provider",),
            "without `cache_stopped_nodes: false`, idle machines are stopped instead of terminated, and their disks "
            "cost money until you delete them",
        )
    if "0.0.0.0/0" in str(provider.get("security_group")):
        report.error(
            ("provider", "security_group"),
            "a rule admits everyone (0.0.0.0/0); give your own address, such as 203.0.113.7/32",
        )


def _head(report: Report) -> None:
    file, head = report.file, report.file.head
    if head not in file.mapping(_TYPES):
        return
    if file.get(_TYPES, head, "resources", "CPU") != 0:
        report.error(
            (_TYPES, head, "resources"),
            "the head offers its CPUs to trials, which would starve the driver, Ray and MLflow; write "
            "`resources: {CPU: 0, head: 1}`",
        )
    if is_spot(file, head):
        report.error(
            (_TYPES, head, "node_config", "InstanceMarketOptions"),
            "AWS may take a spot head away at any time, with the driver and MLflow; remove this",
        )
    machine = instance_type(file, head)
    known = prices().types.get(machine)
    if known is not None and known.memory_gib < LEAST_HEAD_GIB:
        report.error(
            (_TYPES, head, "node_config", "InstanceType"),
            f"{machine} has {known.memory_gib} GiB for Ray, MLflow and one driver per study; use a type with "
            f"{LEAST_HEAD_GIB} or more, such as m7i.xlarge",
        )


def _pools(report: Report) -> None:
    file = report.file
    for name in file.workers:
        place = (_TYPES, name)
        if file.get(*place, "max_workers") is None:
            report.error(
                place, "`max_workers` is missing, so this pool may take all machines; give it a bound"
            )
        if file.get(*place, "labels", "pool") == "spot" and not is_spot(file, name):
            report.error(
                (*place, "node_config"),
                "the pool spot asks for on-demand machines at full price; add "
                "`InstanceMarketOptions: {MarketType: spot}`",
            )
        least = file.get(*place, "min_workers")
        if isinstance(least, int) and least > 0:
            report.warning((*place, "min_workers"), f"{least} of these machines cost money even when idle")
    most, counts = file.get("max_workers"), [file.get(_TYPES, name, "max_workers") for name in file.workers]
    total = sum(count for count in counts if isinstance(count, int))
    if most is None:
        report.error(
            (), "`max_workers` is missing, and Ray's default is 2 for all pools together; give a bound"
        )
    elif isinstance(most, int) and total > most:
        report.notes.append(
            f"the pools may have {total} machines in sum, but all workers together {most} (`max_workers`)"
        )


def _machine(report: Report, config: dict[str, Any], place: Path) -> None:
    """Rules against old images, too many rights and open ports."""
    required = {
        "ImageId": "Ray's default is an image of Ubuntu 18.04 with old drivers; give one",
        "IamInstanceProfile": "the head would get a role with all rights on EC2 and S3, and workers could not reach "
        "the bucket; write {Name: …}",
        "SecurityGroupIds": "Ray would make a group that opens port 22 to everyone; give your own",
    }
    for key, reason in required.items():
        # Network interfaces have separate security groups.
        if not config.get(key) and not (key == "SecurityGroupIds" and config.get("NetworkInterfaces")):
            report.error(place, f"`{key}` is missing: {reason}")
    options = config.get("MetadataOptions")
    if not isinstance(options, dict) or options.get("HttpTokens") != "required":
        report.error(
            place if options is None else (*place, "MetadataOptions"),
            "`MetadataOptions: {HttpTokens: required}` is missing: without it, any program that can be made to fetch "
            "an address on the machine can take its rights",
        )


def _disks(report: Report, name: str) -> None:
    place: Path = (_TYPES, name, "node_config", "BlockDeviceMappings")
    sizes = disk_sizes(report.file, name)
    if max(sizes, default=0) < LEAST_DISK_GB:
        found = f"the disk has {max(sizes)} GB" if sizes else "no disk is given, so the image's own is used"
        report.error(
            place,
            f"{found}, too little for image, environment, tokens and checkpoints; write `[{{DeviceName: /dev/sda1, "
            f"Ebs: {{VolumeSize: {2 * LEAST_DISK_GB}, VolumeType: gp3}}}}]`",
        )
    for index in range(len(report.file.sequence(*place))):
        key = (*place, index, "Ebs", "DeleteOnTermination")
        if report.file.get(*key) is False:
            report.error(key, "the disk of every terminated machine would stay and cost money; write true")


def _efa(report: Report, name: str) -> None:
    """Check that EFA is on for all network cards: with some missing, NCCL silently uses sockets."""
    place: Path = (_TYPES, name, "node_config", "NetworkInterfaces")
    cards = [card for card in report.file.sequence(*place) if isinstance(card, dict)]
    indices = [card.get("NetworkCardIndex", 0) for card in cards if "efa" in str(card.get("InterfaceType"))]
    known = prices().types.get(instance_type(report.file, name))
    if indices and known and sorted(map(str, indices)) != sorted(map(str, range(known.efa_cards or 0))):
        report.error(
            place,
            f"{instance_type(report.file, name)} has {known.efa_cards or 0} network cards with EFA, and "
            f"`NetworkCardIndex` of yours are {indices}; list one interface per card, else NCCL silently uses sockets",
        )
