"""A program of `test_out_of_memory`: a study whose first trial takes all memory there is, under Ray Tune.

`kernel GROUP ROOT`: in the memory control group GROUP, whose limit the kernel enforces. `ray ROOT`: Ray's monitor kills
at a little more memory than is in use now. Prints the reason of the loss and what became of the cell.
"""

import os
import sys
import time
from pathlib import Path

import psutil

from study.plan.plan import make_plan
from study.run.trial import TrialSettings, run_with
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.stubs import Cells, Recorder, stub_result
from tests.study.small import SMALL

#: Memory that the trial takes at most, in pieces; the limit of the control group; and what Ray's monitor leaves.
MOST, PIECE, LIMIT, LEFT = 5 << 30, 64 << 20, 3 << 30, 3 << 29
SLOTS = Slots(2, 1, 0)


def greedy(cell, *, data_root, **options):
    """`train` that takes memory until its process is killed, in the first try."""
    if not (data_root / "full").exists():
        (data_root / "full").touch()
        taken = []
        while len(taken) * PIECE < MOST:
            taken.append(bytearray(b"1") * PIECE)
            time.sleep(0.02)
        time.sleep(60)
    return stub_result()


def trial(config):
    run_with(greedy, config)


def main(killer, *places):
    if killer == "kernel":
        Path(places[0], "memory.limit_in_bytes").write_text(str(LIMIT))
        Path(places[0], "cgroup.procs").write_text(str(os.getpid()))
    else:
        memory = psutil.virtual_memory()
        share = 1 - (memory.available - LEFT) / memory.total
        os.environ |= {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    root = Path(places[-1])
    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    source, listener = Cells(plan.cells), Recorder()
    settings = TrialSettings(data_root=root, checkpoint_root=root, checkpoint_every=1, evaluations=1)
    with private_ray(SLOTS):
        assert run_cells(source, SLOTS, settings, 1, listener, root / "tune", trainable=trial)
    for kind, _, reason in listener.events:
        print(kind, reason, sep=": ")
    print("told", *source.told.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
