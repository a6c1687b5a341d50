"""Approximate prices of AWS's machines: of one GPU for a plan, of whole machines for a cluster file."""

import datetime
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, Field


class InstanceType(BaseModel):
    """One type of machine."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    device: str = "cpu"
    """Name of its GPU in `resources.device` of a spec."""
    hour: float | None = Field(default=None, alias="on-demand")
    """Dollars per hour on demand; None if it is sold by reservation only."""


class DiskPrice(BaseModel):
    """Price of a number of a disk, such as its `VolumeSize` in GB."""

    free: int
    """Units without a price."""
    month: float
    """Dollars per month for each further unit."""


class Prices(BaseModel):
    """The table `prices.yaml`."""

    date: datetime.date
    region: str
    page: str
    spot: float
    """Price of a spot machine as a share of that on demand."""
    gp3: dict[str, DiskPrice]
    """Prices of a disk by its key in a cluster file."""
    address: float
    """Dollars per hour of a public address."""
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
    offers = [
        (machine.hour / machine.gpus, machine.gpus, name)
        for name, machine in table.types.items()
        if machine.hour and machine.gpus and machine.device == device
    ]
    if not offers:
        return None
    hour, _, name = min(offers)
    return GpuPrice(hour, f"AWS on demand, {name}, {table.region}, {table.date}")


def money(dollars: float) -> str:
    """Write a sum of money with two digits, the precision of the estimates."""
    if 0 < dollars < 0.01:
        return "1 cent"
    return f"${float(f'{dollars:.2g}'):,.0f}" if dollars >= 10 else f"${dollars:.2f}"
