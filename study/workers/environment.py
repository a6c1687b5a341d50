"""What a process that trains cells has in its environment before it imports torch."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

#: Inductor's variable with the folder of what it compiled.
COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"
#: The variable with the settings of torch's allocator, and its older name, which torch 2.13 still reads, and
#: first (c10/cuda/CUDAAllocatorConfig.h). They are read once, when CUDA is used first.
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
#: Memory of the allocator in segments that grow. Cells of several shapes follow one another in a process, and what one
#: frees in blocks of its own sizes would not serve the next.
GROWING = "expandable_segments:True"


def added_variables(
    present: Mapping[str, str], *, on_gpu: bool, compile_cache: str | Path | None
) -> dict[str, str]:
    """Return the variables to add to an environment; what the user has set stays as it is.

    Args:
        present: the environment.
        on_gpu: whether cells train on a GPU.
        compile_cache: folder of compiled layers, absolute or below the temporary folder of this machine; None leaves
            the folder to torch.
    """
    added = {}
    if on_gpu and not {ALLOCATOR, OLD_ALLOCATOR} & present.keys():
        added[ALLOCATOR] = GROWING
    if compile_cache is not None and COMPILE_CACHE not in present:
        added[COMPILE_CACHE] = str(Path(tempfile.gettempdir(), compile_cache))
    return added
