import os
import subprocess
import sys
from pathlib import Path

import pytest

from study.workers.process_loss import oom_kills


def write(root, **files):
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_the_kernels_count_is_that_of_the_control_group_else_of_the_machine(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"

    def count():
        return oom_kills(proc, groups)

    assert count() == 0, "no Linux"
    write(proc, vmstat="nr_free_pages 1\noom_kill 7\n", self__cgroup="0::/user/a\n")
    assert count() == 7, "the root has no count of its own"
    write(groups, user__a__memory_DOT_events="low 0\noom 4\noom_kill 2\noom_group_kill 0\n")
    assert count() == 2
    write(proc, self__cgroup="9:cpu:/x\n4:memory:/b\n0::/\n")
    assert count() == 7
    write(groups, memory__b__memory_DOT_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert count() == 5, "version 1 of control groups"


def memory_group(name):
    """A new memory control group of version 1 below this process's; None where this process may make none."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").is_file() else []
    own = [line.split(":", 2)[2] for line in lines if line.split(":", 2)[1] == "memory"]
    if not own:
        return None
    group = Path("/sys/fs/cgroup/memory" + own[0], f"{name}-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        return None
    return group


def test_a_kill_by_the_kernel_raises_the_count_and_one_by_a_user_does_not():
    group = memory_group("interplay-count")
    if group is None:
        pytest.skip("a memory control group of version 1 needs root")
    join = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c "
    try:
        (group / "memory.limit_in_bytes").write_text(str(80 << 20))
        program = "from study.workers.process_loss import oom_kills; print(oom_kills())"

        def count():
            return int(
                subprocess.run(["bash", "-c", f"{join}'{program}'"], capture_output=True, check=True).stdout
            )

        before = count()
        killed = subprocess.run(["bash", "-c", f"{join}'import os; os.kill(os.getpid(), 9)'"], check=False)
        assert (killed.returncode, count()) == (-9, before)
        killed = subprocess.run(["bash", "-c", f"{join}'bytearray(200 << 20)'"], check=False)
        assert (killed.returncode, count()) == (-9, before + 1)
    finally:
        group.rmdir()
