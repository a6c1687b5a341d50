"""What machines of AWS are and about what they cost, from a dated table; asks nothing of the network."""

import datetime
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict

#: A month as AWS counts it for disks, in hours.
MONTH_HOURS = 730


class Machine(BaseModel):
    """One instance type."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: int
    memory_gib: int
    gpus: int = 0
    device: str = "cpu"
    """What `resources.device` of a spec calls one of its GPUs."""
    efa_cards: int | None = None
    hour: float | None = None
    """Dollars on demand; None where it is sold by reservation only."""


class Prices(BaseModel):
    """The table `prices.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: datetime.date
    region: str
    page: str
    spot_share: float
    gp3_gb_month: float
    s3_gb_month: float
    types: dict[str, Machine]


@cache
def prices() -> Prices:
    """Return the table; its file says where each number is from and which are assumptions."""
    text = (resources.files("study") / "cluster" / "prices.yaml").read_text(encoding="utf-8")
    return Prices.model_validate(yaml.safe_load(text))
