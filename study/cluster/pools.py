"""The pools of a cluster file: which machines each may have, and about what one of them costs an hour."""

from dataclasses import dataclass
from typing import Any

from study.cluster.cluster_file import ClusterFile, Path
from study.cluster.prices import MONTH_HOURS, Machine, prices


@dataclass(frozen=True)
class Pool:
    """One node type of workers."""

    name: str
    """What `resources.pool` of a spec calls it."""
    path: Path
    machine: str
    """The instance type."""
    most: int
    """Machines at a time."""
    spot: bool
    what: Machine | None
    """None where our table does not have the type."""
    hour: float | None
    """Dollars for an hour of one machine with its disk; None where our table has no price."""

    def ranks(self, cpus: float, gpus: int) -> int:
        """How many ranks of so many CPUs and GPUs one machine holds; 0 where it is not known."""
        if self.what is None:
            return 0
        by_cpus = int(self.what.cpus / cpus)
        return min(by_cpus, self.what.gpus // gpus) if gpus else by_cpus

    def to_json(self) -> dict[str, Any]:
        """Return the pool as a record."""
        what = None if self.what is None else self.what.model_dump(exclude={"hour"})
        return {
            "pool": self.name,
            "machine": self.machine,
            "most": self.most,
            "spot": self.spot,
            "hour": self.hour,
            "holds": what,
        }


def pools(file: ClusterFile) -> list[Pool]:
    """Return the pools of a file for AWS; machines that are there already have no price and are not described."""
    return [_pool(file, name) for name in file.workers] if file.provider == "aws" else []


def head_hour(file: ClusterFile) -> float | None:
    """Dollars for an hour of the head with its disk; None where it cannot be priced."""
    if file.provider != "aws" or file.head is None:
        return None
    return _hour(file.mapping("available_node_types", file.head, "node_config"))


def _pool(file: ClusterFile, name: str) -> Pool:
    here: Path = ("available_node_types", name)
    config = file.mapping(*here, "node_config")
    most = file.get(*here, "max_workers")
    limit = file.document.get("max_workers")
    bounds = [count for count in (most, limit) if isinstance(count, int)]
    return Pool(
        name=str(file.get(*here, "labels", "pool") or name),
        path=here,
        machine=str(config.get("InstanceType")),
        most=min(bounds, default=0),
        spot=_is_spot(config),
        what=prices().types.get(str(config.get("InstanceType"))),
        hour=_hour(config),
    )


def _hour(config: dict[str, Any]) -> float | None:
    table = prices()
    what = table.types.get(str(config.get("InstanceType")))
    if what is None or what.hour is None:
        return None
    share = table.spot_share if _is_spot(config) else 1.0
    return what.hour * share + _disk_gb(config) * table.gp3_gb_month / MONTH_HOURS


def _is_spot(config: dict[str, Any]) -> bool:
    options = config.get("InstanceMarketOptions")
    return isinstance(options, dict) and options.get("MarketType") == "spot"


def _disk_gb(config: dict[str, Any]) -> int:
    found = config.get("BlockDeviceMappings")
    disks = [one.get("Ebs") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    sizes = [disk.get("VolumeSize") for disk in disks if isinstance(disk, dict)]
    return sum(size for size in sizes if type(size) is int)
