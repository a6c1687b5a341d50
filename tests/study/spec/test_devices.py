"""Devices by the names that drivers and Ray give them."""

import pytest
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from study.spec.devices import DEVICES, device_of


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
