"""The table of devices and the estimate of time, against the measurements it was fitted to."""

from typing import get_args

import pytest

from study.devices import DEVICES, local_gpus, step_seconds, usable_memory
from study.spec import DeviceName
from trainables.cell import Shape
from trainables.counts import flops

# depth, width, sequences, context, vocabulary, milliseconds a step: see the comment in `study/devices.py`. The second
# group was measured without DeepSpeed, whose own cost (1.4 ms) is added.
MEASURED = [
    (1, 16, 4, 16, 256, 3.63),
    (2, 32, 8, 64, 256, 9.88),
    (2, 32, 32, 128, 256, 57.5),
    (4, 128, 32, 128, 256, 635.0),
    (1, 16, 16, 64, 9, 7e3 / 1200 + 1.4),
    (2, 12, 16, 64, 9, 12e3 / 1200 + 1.4),
    (1, 44, 16, 64, 9, 12e3 / 1200 + 1.4),
    (2, 32, 16, 64, 9, 15e3 / 1200 + 1.4),
    (4, 22, 16, 64, 9, 25.5e3 / 1200 + 1.4),
]


@pytest.mark.parametrize(("depth", "width", "batch", "context", "vocabulary", "milliseconds"), MEASURED)
def test_cpu_time_is_within_a_third_of_what_was_measured(
    depth: int, width: int, batch: int, context: int, vocabulary: int, milliseconds: float
) -> None:
    shape = Shape(depth=depth, width=width, heads=2)
    tokens = batch * context
    work = flops(shape, vocabulary, context).training * tokens
    estimate = 1e3 * step_seconds(DEVICES["cpu"], shape, tokens, work, "fp32")
    assert milliseconds / 1.33 < estimate < milliseconds * 1.33


def test_a_step_of_a_large_model_on_a_gpu_is_its_flops_over_the_share_of_the_peak() -> None:
    shape = Shape(depth=48, width=4096, heads=32)
    device = DEVICES["a100-80gb"]
    work = flops(shape, 50_000, 1024).training * 65_536
    assert step_seconds(device, shape, 65_536, work, "bf16") == pytest.approx(
        work / (312e12 * device.utilisation), rel=0.01
    )
    halved = step_seconds(device, shape, 65_536, work, "bf16", utilisation=device.utilisation / 2)
    assert halved == pytest.approx(2 * step_seconds(device, shape, 65_536, work, "bf16"), rel=0.01)


def test_spec_names_exactly_the_devices_there_are() -> None:
    assert get_args(DeviceName) == tuple(DEVICES)


def test_a_gpus_memory_is_its_own_and_the_cpus_is_shared_among_slots() -> None:
    assert usable_memory(DEVICES["a100-40gb"], slots=8) == usable_memory(DEVICES["a100-40gb"]) < 40e9
    assert usable_memory(DEVICES["cpu"], slots=4) == pytest.approx(usable_memory(DEVICES["cpu"]) / 4, abs=1)


@pytest.mark.parametrize(("visible", "count"), [("0,1,3", 3), ("", 0), ("-1", 0), ("GPU-8932f937", 1)])
def test_visible_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_gpus() == count
