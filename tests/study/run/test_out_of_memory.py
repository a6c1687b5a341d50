"""A trial that takes all memory is killed for real, and its row has the reason, the size planned and what to set."""

import subprocess
import sys
import time

import pytest

from tests.environment import environment_without
from tests.study.workers.test_causes import memory_group


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("killer", "named"),
    [
        (
            "kernel",
            "out of memory: the kernel killed the process of the trial (ActorDiedError). The plan has ",
        ),
        ("ray", "out of memory: Ray's memory monitor killed the process of the trial ("),
    ],
)
def test_a_kill_for_memory_is_named_as_such_and_the_cell_is_tried_again(killer, named, tmp_path):
    group = memory_group("interplay-study") if killer == "kernel" else None
    if killer == "kernel" and group is None:
        pytest.skip("a memory control group of version 1 needs root")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.study.run.out_of_memory", killer, *([group] if group else []), tmp_path],
            env=environment_without("RAY_"), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    finally:
        remove(group)
    assert done.returncode == 0, done.stdout + done.stderr
    retried, *more = [line for line in done.stdout.splitlines() if line.startswith("retried")]
    assert not more
    assert retried.startswith(f"retried: {named}")
    assert "of tensors per rank" in retried
    assert "`resources.slots: 1`" in retried
    assert "told 1.0" in done.stdout, "the second try ended well"


def remove(group):
    """Remove a control group once Ray's last processes in it have ended."""
    for _ in range(300 if group else 0):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.1)
    return None
