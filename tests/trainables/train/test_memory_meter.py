import mmap
from pathlib import Path

import pytest
import torch

from trainables.train.memory_meter import MemoryMeter


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read where Linux keeps it")
def test_the_peak_is_of_what_was_held_and_given_back_without_pages_of_files(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(b"\1" * (64 << 20))
    meter = MemoryMeter(torch.device("cpu"))
    assert meter.peak() < 4 << 20
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) == (64 << 20) // mmap.PAGESIZE
        assert meter.peak() < 8 << 20
        torch.ones(100 << 20, dtype=torch.uint8)
        assert meter.peak() == pytest.approx(100 << 20, rel=0.1)
    # The next cell's meter begins anew.
    assert MemoryMeter(torch.device("cpu")).peak() < 4 << 20
