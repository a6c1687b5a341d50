"""Approximate prices of AWS's machines: of one GPU for a plan, of whole machines for a cluster file."""

import datetime
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel


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
    gp3_free_throughput: int
    gp3_throughput_month: float
    gp3_free_iops: int
    gp3_iops_month: float
    public_ipv4_hour: float
    types: dict[str, InstanceType]


@cache
def prices() -> Prices:
    """Return the table; comments in the file name the sources and the assumptions."""
    text = (resources.files("study") / "plan" / "prices.yaml").read_text(encoding="utf-8")
    return Prices.model_validate(yaml.safe_load(text))


@dataclass(frozen=True)
class GpuPrice:
    """What one GPU costs."""

    hour: float
    """Dollars per hour."""
    source: str
    """Where the price is from, for people."""


def gpu_price(device: str) -> GpuPrice | None:
    """Return the lowest price on demand of one GPU of a device, without disks; None if the table has no machine."""
    table = prices()
    found = [
        (machine.hour / machine.gpus, machine.gpus, name)
        for name, machine in table.types.items()
        if machine.hour and machine.gpus and machine.device == device
    ]
    if not found:
        return None
    hour, _, name = min(found)
    return GpuPrice(hour, f"AWS on demand, {name}, {table.region}, {table.date}")


def money(dollars: float) -> str:
    """Write a sum of money with two digits, the precision of the estimates."""
    if 0 < dollars < 0.01:
        return "1 cent"
    return f"${float(f'{dollars:.2g}'):,.0f}" if dollars >= 10 else f"${dollars:.2f}"
