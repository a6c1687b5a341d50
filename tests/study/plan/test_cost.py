"""The table of devices and the estimate of time, against the measurements it was fitted to."""

import pytest

from study.plan.cost import step_seconds
from study.spec.devices import DEVICES, local_gpus, usable_memory
from trainables.cell import Recipe, Shape
from trainables.model.family import family

# depth, width, sequences, context, vocabulary, milliseconds a step: see the comment in `study/spec/devices.py`.
MEASURED = [
    (1, 16, 4, 16, 9, 1.33),
    (2, 32, 8, 64, 9, 3.59),
    (2, 32, 32, 128, 9, 21.3),
    (4, 128, 32, 128, 9, 384),
    (1, 16, 16, 64, 9, 2.63),
    (2, 12, 16, 64, 9, 4.15),
    (1, 44, 16, 64, 9, 4.68),
    (2, 32, 16, 64, 9, 5.77),
    (4, 22, 16, 64, 9, 11.4),
    (2, 32, 64, 64, 9, 19.2),
    (4, 48, 64, 64, 9, 61.7),
    (4, 24, 32, 64, 9, 15.4),
    (1, 48, 32, 64, 9, 8.04),
    (48, 16, 16, 64, 9, 113),
    (12, 32, 16, 64, 9, 35.2),
    (2, 64, 32, 64, 9, 23.6),
]


@pytest.mark.parametrize(("depth", "width", "batch", "context", "vocabulary", "milliseconds"), MEASURED)
def test_cpu_time_is_within_a_third_of_what_was_measured(
    depth: int, width: int, batch: int, context: int, vocabulary: int, milliseconds: float
) -> None:
    shape = Shape(depth=depth, width=width, heads=2)
    tokens = batch * context
    work = (
        family("gpt2").flops(shape, Recipe(steps=1, batch=batch, context=context), vocabulary).training
        * tokens
    )
    estimate = 1e3 * step_seconds(DEVICES["cpu"], shape, tokens, work, "fp32")
    assert milliseconds / 1.33 < estimate < milliseconds * 1.33


def test_a_step_of_a_large_model_on_a_gpu_is_its_flops_over_the_share_of_the_peak() -> None:
    shape = Shape(depth=48, width=4096, heads=32)
    device = DEVICES["a100-80gb"]
    work = family("gpt2").flops(shape, Recipe(steps=1, batch=64, context=1024), 50_000).training * 65_536
    assert step_seconds(device, shape, 65_536, work, "bf16") == pytest.approx(
        work / (312e12 * device.utilisation), rel=0.01
    )
    halved = step_seconds(device, shape, 65_536, work, "bf16", utilisation=device.utilisation / 2)
    assert halved == pytest.approx(2 * step_seconds(device, shape, 65_536, work, "bf16"), rel=0.01)


def test_a_gpus_memory_is_its_own_and_the_cpus_is_shared_among_slots() -> None:
    assert usable_memory(DEVICES["a100-40gb"], slots=8) == usable_memory(DEVICES["a100-40gb"]) < 40e9
    assert usable_memory(DEVICES["cpu"], slots=4) == pytest.approx(usable_memory(DEVICES["cpu"]) / 4, abs=1)


@pytest.mark.parametrize(("visible", "count"), [("0,1,3", 3), ("", 0), ("-1", 0), ("GPU-8932f937", 1)])
def test_visible_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_gpus() == count
