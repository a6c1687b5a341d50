"""Devices by the names that drivers and Ray give them."""

import pytest
import yaml
from pydantic import ValidationError
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.devices import DEVICES, USABLE_MEMORY, device_of, usable_memory
from study.spec.resources import ResourcesSection
from study.spec.study import load_spec
from tests.gpu_driver import Driver
from tests.study.small import SMALL


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA L4", "l4-24gb"),
        ("NVIDIA L40S", "l40s-48gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-80gb-1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb-3g.20gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", "a100-80gb-1g.10gb"),
        ("NVIDIA H200 MIG 1c.3g.71gb", "h200-141gb-1c.3g.71gb"),
        # A card of the same model with more memory than the plan's.
        ("NVIDIA H100 NVL MIG 7g.94gb", "h100-80gb-7g.80gb"),
        ("Quadro K620", None),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name(model, name):
    assert device_of(model) == name
    if name:
        named_by_ray = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(model)
        assert DEVICES[name].accelerator in (named_by_ray, named_by_ray.partition("-")[0])


@pytest.mark.parametrize(
    ("name", "gigabytes", "sevenths"),
    [("h100-80gb-1g.10gb", 10, 1), ("a100-40gb-3g.20gb", 20, 3), ("h200-141gb-1c.3g.71gb", 71, 1)],
)
def test_a_slice_has_its_own_memory_and_its_part_of_the_peak(name, gigabytes, sevenths):
    part, card = DEVICES[name], DEVICES[name.rpartition("-")[0]]
    assert usable_memory(part) == int(gigabytes * 1e9 * USABLE_MEMORY)
    for precision in ("bf16", "fp32"):
        assert part.peak[precision] == pytest.approx(card.peak[precision] * sevenths / 7)
    assert (part.name, part.accelerator, part.is_gpu, part.is_slice) == (name, card.accelerator, True, True)
    assert name not in list(DEVICES), "nobody is advised to take a slice"


@pytest.mark.parametrize(
    "name",
    [
        "h100-80gb-1g.90gb",
        "h100-80gb-1g.0gb",
        "h100-80gb-8g.80gb",
        "h100-80gb-3c.2g.20gb",
        "l4-24gb-1g.10gb",
        "cpu-1g.10gb",
        "h100-80gb-",
        "v100",
    ],
)
def test_what_is_no_slice_is_no_device(name):
    with pytest.raises(KeyError):
        DEVICES[name]
    with pytest.raises(ValidationError):
        ResourcesSection(device=name)


def test_a_study_is_planned_for_a_slice_one_rank_to_a_cell():
    on_slice = make_plan(load_spec(SMALL, ["resources.device=h100-80gb-1g.10gb", "resources.slots=7"]))
    on_card = make_plan(load_spec(SMALL, ["resources.device=h100-80gb", "resources.slots=7"]))
    assert (on_slice.device, on_slice.slots) == ("h100-80gb-1g.10gb", 7)
    assert {planned.layout.ranks for planned in on_slice.cells} == {1}
    assert on_slice.device_hours > on_card.device_hours
    # Written out, it loads again.
    assert yaml.safe_load(on_slice.planner.spec.to_yaml())["resources"]["device"] == "h100-80gb-1g.10gb"
    with pytest.raises(SpecError, match="slice"):
        load_spec(SMALL, ["resources.device=h100-80gb-1g.10gb", "resources.data_parallel=2"])
    large = ["resources.device=h100-80gb-1g.10gb", "resources.slots=7", "frontier.budgets=[1e9]"]
    with pytest.raises(SpecError, match="cannot train"):
        make_plan(load_spec(SMALL, large)).trainable()


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


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("MIG-small", [1, "h100-80gb-1g.10gb"]),
        ("MIG-large,MIG-small", [2, "h100-80gb-3g.40gb"]),
        ("MIG-sm", [1, "h100-80gb-1g.10gb"]),
        # Without ids a process sees the first slice there is, on the first card.
        (None, [2, "h100-80gb-1g.10gb"]),
        ("0", [1, "h100-80gb-1g.10gb"]),
        ("", [0, "cpu"]),
    ],
)
def test_a_card_that_is_divided_is_known_by_its_slices(tmp_path, visible, found):
    assert Driver(tmp_path, slices=True).run(SHOW, visible=visible) == (found, "")


def test_a_driver_that_does_not_answer_is_named(tmp_path):
    found, shown = Driver(tmp_path, answer=18).run(SHOW)
    assert found == [0, "cpu"]
    assert "version mismatch" in shown.casefold()
