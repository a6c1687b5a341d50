"""Machines of AWS, their approximate prices from a dated table, and the pools of a cluster file."""

import datetime
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from study.cluster.cluster_file import ClusterFile

#: Hours per month in AWS's disk prices.
MONTH_HOURS = 730


class Machine(BaseModel):
    """One instance type."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: int
    memory_gib: int
    gpus: int = 0
    device: str = "cpu"
    """Name of its GPU in `resources.device` of a spec."""
    hour: float | None = None
    """Dollars per hour on demand; None if it is sold by reservation only."""


class Prices(BaseModel):
    """The table `prices.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: datetime.date
    region: str
    page: str
    spot_share: float
    gp3_gb_month: float
    types: dict[str, Machine]


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
    what: Machine | None
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
    workers = [name for name in file.mapping("available_node_types") if name != file.head]
    return [_pool(file, name) for name in workers] if file.provider == "aws" else []


def _pool(file: ClusterFile, name: str) -> Pool:
    place, machine = ("available_node_types", name), instance_type(file, name)
    own = file.get(*place, "max_workers")
    return Pool(
        name=str(file.get(*place, "labels", "pool") or name),
        node_type=name,
        machine=machine,
        most=min(own, file.most) if isinstance(own, int) else file.most,
        spot=is_spot(file, name),
        what=prices().types.get(machine),
        hour=_hour(file, name),
    )


def head_hour(file: ClusterFile) -> float | None:
    """Dollars per hour of the head with its disk; None if it has no known price."""
    return _hour(file, file.head) if file.provider == "aws" else None


def _hour(file: ClusterFile, name: str) -> float | None:
    table = prices()
    what = table.types.get(instance_type(file, name))
    if what is None or what.hour is None:
        return None
    share = table.spot_share if is_spot(file, name) else 1.0
    return what.hour * share + sum(disk_sizes(file, name)) * table.gp3_gb_month / MONTH_HOURS


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
