import pytest
import torch

from tests.gpu_driver import Driver
from trainables.train.gpu_readings import READINGS, gpu_readings

SHOW = """
import json, torch
from trainables.train.gpu_readings import gpu_readings
print(json.dumps(gpu_readings(torch.device("cuda", 0))))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return Driver(tmp_path_factory.mktemp("driver"))


def test_the_numbers_of_the_driver_are_read_without_those_that_it_refuses(driver):
    found, _ = driver.run(SHOW)
    assert found == {
        "gpu_utilization_percentage": 87,
        "gpu_power_usage_watts": 512.5,
        "gpu_temperature_celsius": 60,
    }
    assert READINGS.keys() - found.keys() == {"gpu_clock_megahertz"}


def test_the_gpu_is_that_of_the_process_and_not_the_first_of_its_machine(driver):
    found, _ = driver.run(SHOW, visible="1")
    assert found["gpu_temperature_celsius"] == 70


def test_a_cpu_has_no_readings_and_a_gpu_without_a_driver_none_either(caplog):
    assert gpu_readings(torch.device("cpu")) == {}
    if not torch.cuda.is_available():
        with caplog.at_level("INFO"):
            assert gpu_readings(torch.device("cuda", 0)) == {}
        assert len(caplog.records) == len(READINGS)
