"""A program of `test_shared_gpu`: eight cells under Ray Tune on one simulated GPU that four trials share.

Each cell waits until four have begun. Prints the GPU that each saw, and how many ran at a time at most.
"""

import os
import sys
import time
from pathlib import Path

from study.plan.plan import make_plan
from study.run.trial import TrialSettings, run_with
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.stubs import Cells, Recorder, stub_result
from tests.study.small import SMALL

OVERRIDES = (
    *("resources.device=h100-80gb", "resources.slots=4", "resources.trials_per_gpu=4"),
    *("resources.cpus_per_trial=0.25", "training.seeds=8", "frontier.depths=[1]", "frontier.budgets=[1600]"),
)


def waiting(cell, *, data_root, **options):
    """`train` that waits for three others, and notes the GPU that it sees."""
    mark = data_root / f"running-{cell.seed}"
    mark.touch()
    deadline = time.monotonic() + 120
    while len(list(data_root.glob("*-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    running = len(list(data_root.glob("running-*")))
    time.sleep(1)
    mark.rename(data_root / f"ended-{cell.seed}")
    (data_root / f"saw{cell.seed}").write_text(f"{os.environ['CUDA_VISIBLE_DEVICES']} {running}")
    return stub_result()


def trial(config):
    run_with(waiting, config)


def main(root):
    plan = make_plan(load_spec(SMALL, OVERRIDES))
    resources = plan.planner.spec.resources
    slots = Slots(plan.slots, resources.cpus_per_trial, resources.gpus_per_trial)
    source, listener = Cells(plan.cells), Recorder()
    settings = TrialSettings(data_root=root, checkpoint_root=root, checkpoint_every=1, evaluations=1)
    with private_ray(slots):
        assert run_cells(source, slots, settings, 1, listener, root / "tune", trainable=trial)
    saw = [file.read_text().split() for file in root.glob("saw*")]
    print("GPUs", *sorted({gpu for gpu, _ in saw}), "cells", len(saw), "most", max(int(n) for _, n in saw))
    print("told", *source.told.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
