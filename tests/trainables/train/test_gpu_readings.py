import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from trainables.train.gpu_readings import READINGS, gpu_readings

#: A driver's library that knows two GPUs; the second one is 10 degrees warmer. It has no function for the clock.
LIBRARY = """
typedef struct { unsigned gpu, memory; } Load;
static char cards[2];
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return "refused"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = cards + index; return 0; }
int nvmlDeviceGetUtilizationRates(void *card, Load *load) { load->gpu = 87; load->memory = 40; return 0; }
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) { *milliwatts = 512500; return 0; }
int nvmlDeviceGetTemperature(void *card, unsigned sensor, unsigned *degrees) {
  *degrees = 60 + 10 * (unsigned)((char *)card - cards);
  return 0;
}
"""

SHOW = """
import json, torch
from trainables.train.gpu_readings import gpu_readings
print(json.dumps(gpu_readings(torch.device("cuda", 0))))
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Readings of the first GPU that a new process sees, by number, from the library above."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.c").write_text(LIBRARY)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)

    def run(visible):
        own = {"LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": visible}
        shown = subprocess.run(
            [sys.executable, "-c", SHOW], env=os.environ | own, check=True, capture_output=True
        )
        return json.loads(shown.stdout)

    return run


def test_the_numbers_of_the_driver_are_read_without_those_that_it_refuses(read):
    found = read("0")
    assert found == {
        "gpu_utilization_percentage": 87,
        "gpu_power_usage_watts": 512.5,
        "gpu_temperature_celsius": 60,
    }
    assert READINGS.keys() - found.keys() == {"gpu_clock_megahertz"}


def test_the_gpu_is_that_of_the_process_and_not_the_first_of_its_machine(read):
    assert read("1")["gpu_temperature_celsius"] == 70


def test_a_cpu_has_no_readings_and_a_gpu_without_a_driver_none_either(caplog):
    assert gpu_readings(torch.device("cpu")) == {}
    if not torch.cuda.is_available():
        with caplog.at_level("INFO"):
            assert gpu_readings(torch.device("cuda", 0)) == {}
        assert len(caplog.records) == len(READINGS)
