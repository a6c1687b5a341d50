"""What a process that trains cells has in its environment before it imports torch."""

import logging
from collections.abc import Mapping
from pathlib import Path

from trainables.storage.scratch import is_own, own_folder

_LOG = logging.getLogger(__name__)

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
        compile_cache: folder of compiled layers, absolute or below this user's own folder of this machine; None
            leaves the folder to torch. Compiled layers are libraries that torch loads, so one that others may write to
            is replaced by one in the user's own folder.
    """
    added = {}
    if on_gpu and not {ALLOCATOR, OLD_ALLOCATOR} & present.keys():
        added[ALLOCATOR] = GROWING
    if compile_cache is not None and COMPILE_CACHE not in present:
        added[COMPILE_CACHE] = str(_cache_folder(Path(compile_cache)))
    return added


def _cache_folder(folder: Path) -> Path:
    if not folder.is_absolute():
        return own_folder() / "compiled" / folder
    # Closed also where new folders are open to a group (Ubuntu).
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_own(folder):
        return folder
    instead = own_folder() / "compiled" / folder.parent.name
    _LOG.warning(
        "Compiled layers are kept in %s, because others may write to %s, and torch runs what lies there; with "
        "`chmod go-w` on that folder they outlive the temporary folder.",
        instead, folder,
    )  # fmt: skip
    return instead
