"""Devices a study can be planned for: memory, speed, and the share of the peak speed that a plan assumes."""

import functools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from trainables.cell import Precision

#: ASSUMPTION: the share of a GPU's memory that tensors can fill; the rest is the CUDA context, cuBLAS' and
#: NCCL's buffers and what the allocator cannot use for fragmentation.
USABLE_MEMORY = 0.9
#: ASSUMPTION: the share of a GPU's peak that a step of a model of tens of millions of parameters or more
#: reaches. Megatron-LM reports 0.41 to 0.54 for its models on A100 (Narayanan et al. 2021, arXiv 2104.04473,
#: table 1); the plain HuggingFace model with no fused kernels is put below that. Small widths reach far
#: less: measure one cell and set `resources.utilisation`.
GPU_UTILISATION = 0.35
#: ASSUMPTION: time of a GPU step that no amount of speed removes: launches of the kernels of a layer (about
#: 60 of 5 µs, forward, backward and optimizer), and DeepSpeed's own 2 ms (measured on CPU, where it is the
#: same Python).
GPU_SECONDS_PER_STEP = 2e-3
GPU_SECONDS_PER_STEP_LAYER = 3e-4
#: ASSUMPTION, not measured: time that a GPU cell takes longer because its layers are compiled. 25 to 40 s are expected
#: for the first shape of a study and 8 to 15 s for each further one, which finds most kernels compiled.
GPU_SECONDS_TO_COMPILE = 12.0
#: Accelerators that MIG divides into slices, and the compute units of each. A slice is called by its units and its
#: memory, such as 1g.10gb, and 1c.3g.40gb if it shares the memory of three units with others (NVIDIA's MIG user guide).
DIVISIBLE, UNITS = ("A100", "H100", "H200", "B200"), 7
SLICE = r"(?:([1-7])c\.)?([1-7])g\.([0-9]+)gb"
#: ASSUMPTION: the share of a link's rate on the data sheet that an all-reduce reaches, and the fixed time of one.
LINK_SHARE = 0.75
GPU_SECONDS_PER_EXCHANGE = 3e-5


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one thread of a CPU (a trial on CPU trains on one thread)."""

    name: str
    title: str
    memory: int | None
    """Bytes; None for the memory of this machine."""
    peak: Mapping[Precision, float]
    """FLOP/s of dense matrix products."""
    link: float
    """Bytes per second that a rank can send while it receives as many."""
    utilisation: float = GPU_UTILISATION
    """Share of the peak that plans assume unless `resources.utilisation` is set."""
    seconds_per_step: float = GPU_SECONDS_PER_STEP
    """Fixed cost of an optimizer step."""
    seconds_per_step_layer: float = GPU_SECONDS_PER_STEP_LAYER
    """Fixed cost of each layer in a step."""
    seconds_per_exchange: float = GPU_SECONDS_PER_EXCHANGE
    """Fixed cost of a collective among ranks."""
    seconds_per_value: float = 0.0
    """Cost of the elementwise work of one token, layer and unit of width in training."""
    seconds_to_compile: float = GPU_SECONDS_TO_COMPILE
    """Time that compiled layers add to a cell before they gain any."""
    accelerator: str | None = None
    """Ray's name of the GPU, a resource of the machines that have it; None for a CPU."""
    trials: int = 1
    """Trials that share it, each with its part of the memory."""
    is_slice: bool = False
    """Whether it is a MIG slice of a card: a process sees one, and slices do not reach one another."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.accelerator is not None


def _gpu(name: str, title: str, model: str, gigabytes: int, bf16: float, fp32: float, link: float) -> Device:
    peak: Mapping[Precision, float] = {"bf16": bf16 * 1e12, "fp32": fp32 * 1e12}
    return Device(name, title, gigabytes * 10**9, peak, link * 1e9 * LINK_SHARE, accelerator=model)


# Memory in GB and TFLOP/s from NVIDIA's data sheets: dense bf16 on tensor cores (half of the figure "with
# sparsity") and plain fp32, because PyTorch does not use TF32 for matrix products by default. Links in GB/s each
# way: NVLink where there is one, half of the figure that counts both ways; else PCIe 4.0 x16.
_DEVICES = (
    Device(
        name="cpu",
        title="one thread of this machine's CPU",
        memory=None,
        # Fitted on 2026-11-22 to the step times of 16 cells of d=12 to 128, L=1 to 48 and 64 to 4,096 tokens in fp32,
        # each on one thread of an AMD EPYC with AVX-512 whose second core was equally busy: from 1.3 ms (d=16 L=1,
        # 4x16 tokens) to 384 ms (d=128 L=4, 32x128). `tests/study/plan/test_cost.py` checks the fit. An earlier fit on
        # another machine of this kind gave times 1.6 to 2.7 times as long, so other CPUs may differ as much. bf16 was
        # 0.6 to 1.2 times as fast, so both count the same.
        peak={"fp32": 79e9, "bf16": 79e9},
        utilisation=1.0,
        seconds_per_step=1e-4,
        seconds_per_step_layer=1.3e-3,
        seconds_per_value=1.9e-8,
        # Measured on 2026-11-28 beside other work: 39 s for L1 d12 with nothing compiled before, 3 s when it was.
        seconds_to_compile=40.0,
        # Gloo on loopback between two processes of the same machine, 2026-11-21: 0.4 ms for up to 128 KB, and 1.4
        # to 1.6 GB/s above.
        link=1.5e9,
        seconds_per_exchange=4e-4,
    ),
    _gpu("l4-24gb", "NVIDIA L4", "L4", 24, bf16=121, fp32=30.3, link=32),
    _gpu("a10g-24gb", "NVIDIA A10G", "A10G", 24, bf16=70, fp32=35, link=32),
    # Of consumer cards the rate with fp32 sums, in which PyTorch adds.
    _gpu("rtx4090-24gb", "NVIDIA GeForce RTX 4090", "GeForce-RTX-4090", 24, bf16=165, fp32=82.6, link=32),
    _gpu("l40s-48gb", "NVIDIA L40S", "L40S", 48, bf16=362, fp32=91.6, link=32),
    _gpu("a100-40gb", "NVIDIA A100 40 GB", "A100", 40, bf16=312, fp32=19.5, link=300),
    _gpu("a100-80gb", "NVIDIA A100 80 GB", "A100", 80, bf16=312, fp32=19.5, link=300),
    _gpu("h100-80gb", "NVIDIA H100 SXM 80 GB", "H100", 80, bf16=989, fp32=67, link=450),
    _gpu("h200-141gb", "NVIDIA H200 SXM 141 GB", "H200", 141, bf16=989, fp32=67, link=450),
    _gpu("b200-180gb", "NVIDIA B200 180 GB", "B200", 180, bf16=2250, fp32=75, link=900),
)


class _Devices(dict[str, Device]):
    """The whole devices by name, and on request the slices of them."""

    def __missing__(self, name: str) -> Device:
        """Return a slice such as `h100-80gb-1g.10gb`: its own memory, and of its card's peak a seventh per unit."""
        card, _, size = name.rpartition("-")
        slice_, whole = re.fullmatch(SLICE, size), self.get(card)
        if slice_ is None or whole is None or whole.memory is None or whole.accelerator not in DIVISIBLE:
            raise KeyError(name)
        part, units, gigabytes = slice_.groups()
        memory, share = int(gigabytes) * 10**9, int(part or units) / UNITS
        if not 0 < memory <= whole.memory or int(part or units) > int(units):
            raise KeyError(name)
        peak = {precision: share * rate for precision, rate in whole.peak.items()}
        title = f"a slice {size} of {whole.title}"
        return replace(whole, name=name, title=title, memory=memory, peak=peak, is_slice=True)


#: All devices by name: `DEVICES[name]` also has the slices of those that can be divided, which are not listed.
DEVICES: Mapping[str, Device] = MappingProxyType(_Devices({device.name: device for device in _DEVICES}))


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory(device: Device, slots: int = 1, share: int | None = None) -> int:
    """Return the bytes a rank may fill: the memory of its GPU, or its share of this machine's memory.

    Args:
        device: what a rank trains on.
        slots: ranks that share the memory of this machine.
        share: bytes of a rank on a CPU of a cluster, if known.
    """
    if device.memory is not None:
        return int(device.memory * USABLE_MEMORY / device.trials)
    if share:
        return share
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(machine * USABLE_MEMORY / slots)


def local_gpus() -> int:
    """Return the number of NVIDIA GPUs this process may use, or of the slices that CUDA_VISIBLE_DEVICES names."""
    visible = _visible_gpus()
    return len(_gpu_names()) if visible is None else len(visible)


def _visible_gpus() -> list[str] | None:
    """The indices and ids in CUDA_VISIBLE_DEVICES; None if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else map(str.strip, visible.split(","))
    return None if names is None else [name for name in names if name not in {"", "-1"}]


def local_device() -> str:
    """Return the name of this machine's GPU, or of its MIG slice, in `DEVICES`; `cpu` if there is none."""
    slices = tuple(name for name in _visible_gpus() or () if name.startswith("MIG-"))
    models = (_gpu_names(slices) or _gpu_names()) if local_gpus() else ()
    return next(filter(None, map(device_of, models)), "cpu")


@functools.cache
def _gpu_names(slices: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The driver's names of this machine's NVIDIA GPUs, or of slices by their ids, without CUDA.

    CUDA's context takes memory of each GPU.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return ()
    except pynvml.NVMLError as error:
        # Such as a driver that was updated and whose old module still runs.
        logging.getLogger(__name__).warning(
            "NVIDIA's driver does not answer (%s), so this machine counts as one without a GPU.", error
        )
        return ()
    if slices:
        try:
            return tuple(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(name)) for name in slices)
        except pynvml.NVMLError:
            # CUDA also takes the beginning of an id. The cards then name their first slices.
            return ()
    cards = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return tuple(pynvml.nvmlDeviceGetName(_first_slice(card) or card) for card in cards)


def _first_slice(card: Any) -> Any:
    """The handle of a divided card's first slice, the only one that CUDA shows without ids; None if it is whole."""
    import pynvml

    try:
        is_divided, _ = pynvml.nvmlDeviceGetMigMode(card)
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(card) if is_divided else 0
    except pynvml.NVMLError:
        # Such as a card that cannot be divided.
        return None
    for index in range(count):
        try:
            return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except pynvml.NVMLError_NotFound:
            continue
    return None


def device_of(model: str) -> str | None:
    """Return the name in `DEVICES` of a GPU by its driver's name of it, such as `NVIDIA A100-SXM4-40GB`.

    A slice is named by its card and its size: `NVIDIA A100-SXM4-40GB MIG 1g.5gb` is `a100-40gb-1g.5gb`. It has no more
    memory than the card in `DEVICES`: `NVIDIA H100 NVL MIG 7g.94gb` is `h100-80gb-7g.80gb`.
    """
    model, _, size = model.partition(" MIG ")
    matches = {
        name: (len(device.accelerator), name.partition("-")[2].upper() in model)
        for name, device in DEVICES.items()
        if device.accelerator and device.accelerator.replace("-", " ") in model
    }
    # "L4" is part of "L40S", and an A100 has 40 or 80 GB.
    card = max(matches, key=lambda name: matches[name], default=None)
    slice_ = re.match(SLICE, size)
    if not (card and slice_):
        return card
    units, gigabytes = slice_[0].rpartition(".")[0], min(int(slice_[3]), (DEVICES[card].memory or 0) // 10**9)
    return f"{card}-{units}.{gigabytes}gb"
