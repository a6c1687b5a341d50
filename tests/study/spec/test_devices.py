"""Devices by the names that drivers and Ray give them."""

import pytest
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from study.spec.devices import DEVICES, device_of
from tests.gpu_driver import Driver


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA L4", "l4-24gb"),
        ("NVIDIA L40S", "l40s-48gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("Quadro K620", None),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name(model, name):
    assert device_of(model) == name
    if name:
        named_by_ray = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(model)
        assert DEVICES[name].accelerator in (named_by_ray, named_by_ray.partition("-")[0])


SHOW = """
import json
from study.spec.devices import local_device, local_gpus
print(json.dumps([local_gpus(), local_device()]))
"""


@pytest.mark.parametrize(
    ("visible", "found"), [(None, [2, "h100-80gb"]), ("1", [1, "h100-80gb"]), ("", [0, "cpu"])]
)
def test_the_gpus_of_this_machine_are_those_of_its_driver(tmp_path, visible, found):
    assert Driver(tmp_path).run(SHOW, visible=visible) == (found, "")


def test_a_driver_that_does_not_answer_is_named(tmp_path):
    found, shown = Driver(tmp_path, answer=18).run(SHOW)
    assert found == [0, "cpu"]
    assert "version mismatch" in shown.casefold()
