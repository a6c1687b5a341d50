"""Machines of AWS, their approximate prices from a dated table, and the pools of a cluster file."""

import datetime
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel

from study.cluster.cluster_file import ClusterFile

#: Hours per month in AWS's disk prices.
MONTH_HOURS = 730


class InstanceType(BaseModel):
    """One type of machine."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    device: str = "cpu"
    """Name of its GPU in `resources.device` of a spec."""
    hour: float | None = None
    """Dollars per hour on demand; None if it is sold by reservation only."""


class Prices(BaseModel):
    """The table `prices.yaml`."""

    date: datetime.date
    region: str
    page: str
    spot_share: float
    gp3_gb_month: float
    types: dict[str, InstanceType]


@cache
def prices() -> Prices:
    """Return the table; comments in the file name the sources and the assumptions."""
    text = (resources.files("study") / "cluster" / "prices.yaml").read_text(encoding="utf-8")
    return Prices.model_validate(yaml.safe_load(text))


@dataclass(frozen=True)
class Pool:
    """One node type of workers."""

    name: str
    """Its name in `resources.pool` of a spec."""
    node_type: str
    machine: str
    """The instance type."""
    most: int
    """Maximum number of machines at a time."""
    spot: bool
    what: InstanceType | None
    """None if the table does not have the type."""
    hour: float | None
    """Dollars per hour of one machine with its disk; None if the table has no price."""

    def to_json(self) -> dict[str, Any]:
        """Return the pool as a record."""
        record = {name: getattr(self, name) for name in ("machine", "most", "spot", "hour")}
        holds = None if self.what is None else self.what.model_dump(exclude={"hour"})
        return {"pool": self.name, **record, "holds": holds}


def pools(file: ClusterFile) -> list[Pool]:
    """Return the pools of a file for AWS; existing machines have no price and no pools."""
    found = []
    for name, kind in file.mapping("available_node_types").items() if file.provider == "aws" else ():
        own = kind.get("max_workers") if isinstance(kind, dict) else None
        if name != file.head:
            machine = instance_type(file, name)
            found.append(
                Pool(
                    name=str(file.get("available_node_types", name, "labels", "pool") or name),
                    node_type=name,
                    machine=machine,
                    most=min(own, file.most) if isinstance(own, int) else file.most,
                    spot=is_spot(file, name),
                    what=prices().types.get(machine),
                    hour=hour(file, name),
                )
            )
    return found


def hour(file: ClusterFile, node_type: str) -> float | None:
    """Dollars per hour of a machine with its disk; None if it has no known price."""
    table = prices()
    what = table.types.get(instance_type(file, node_type)) if file.provider == "aws" else None
    if what is None or what.hour is None:
        return None
    share = table.spot_share if is_spot(file, node_type) else 1.0
    return what.hour * share + sum(disk_sizes(file, node_type)) * table.gp3_gb_month / MONTH_HOURS


def disk_sizes(file: ClusterFile, node_type: str) -> list[int]:
    """Sizes in GB of the disks of a node type."""
    place = ("available_node_types", node_type, "node_config", "BlockDeviceMappings")
    sizes = [file.get(*place, index, "Ebs", "VolumeSize") for index in range(len(file.sequence(*place)))]
    return [size for size in sizes if isinstance(size, int)]


def is_spot(file: ClusterFile, node_type: str) -> bool:
    """Whether a node type requests spot machines."""
    place = ("available_node_types", node_type, "node_config", "InstanceMarketOptions", "MarketType")
    return bool(file.get(*place) == "spot")


def instance_type(file: ClusterFile, node_type: str) -> str:
    """The instance type of a node type."""
    return str(file.get("available_node_types", node_type, "node_config", "InstanceType"))
