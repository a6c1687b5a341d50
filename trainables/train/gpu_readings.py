"""What the driver of a GPU says of it: its load, power, temperature and clock."""

import logging
from collections.abc import Callable

import torch

#: By MLflow's names for system metrics, where it has one. A clock that falls at a high temperature is a GPU that is
#: cooled badly: its cells take longer, which nothing else shows.
READINGS: dict[str, Callable[[torch.device], float]] = {
    "gpu_utilization_percentage": torch.cuda.utilization,
    "gpu_power_usage_watts": lambda device: torch.cuda.power_draw(device) / 1000,
    "gpu_temperature_celsius": torch.cuda.temperature,
    "gpu_clock_megahertz": torch.cuda.clock_rate,
}


def gpu_readings(device: torch.device) -> dict[str, float]:
    """Return the readings of a GPU, of its last second or less, by name; none of a CPU.

    Those that the driver refuses are left out: a part of a GPU (MIG) has no load of its own.
    """
    if device.type != "cuda":
        return {}
    readings = {}
    for name, read in READINGS.items():
        try:
            readings[name] = float(read(device))
        except Exception as error:  # noqa: BLE001 - NVML has an exception per code, and no reading is worth a cell
            logging.getLogger(__name__).info("No %s of %s: %s", name, device, error)
    return readings
