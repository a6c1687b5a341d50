"""A program of `test_machines`: cells under Ray Tune on two machines, raylets of this one, of which one kills trials.

Prints the machine of each try, the notices and what became of the cells.
"""

import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from study.plan.plan import make_plan
from study.run.trial import TrialSettings, run_with
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots, live_machines
from tests.stubs import Cells, Recorder, stub_result
from tests.study.small import SMALL

SLOTS = Slots(2, 1, 0)
SMALL_STORE = 80 << 20


def noted(cell, *, data_root, **options):
    """`train` that notes its machine; on the ill one its process is killed."""
    node = ray.get_runtime_context().get_node_id()
    with (data_root / "tries").open("a") as file:
        print(cell.seed, node, file=file)
    ill = (data_root / "ill").read_text()
    if ill == node:
        os.kill(os.getpid(), signal.SIGKILL)
    # A cell of the other machine lasts until the ill one has had its two, for whose processes take seconds to start.
    while (data_root / "tries").read_text().count(ill) < 2:
        time.sleep(0.2)
    return stub_result()


def trial(config):
    run_with(noted, config)


def main(root):
    cluster = Cluster(
        True, head_node_args={"num_cpus": 0, "object_store_memory": SMALL_STORE, "include_dashboard": False}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=SMALL_STORE)
    ray.init(address=cluster.address, log_to_driver=False)
    ill = next(machine.node for machine in live_machines() if machine.resources.get("CPU"))
    (root / "ill").write_text(ill)
    plan = make_plan(load_spec(SMALL, ["training.seeds=6", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    source, listener = Cells(plan.cells), Recorder()
    settings = TrialSettings(data_root=root, checkpoint_root=root, checkpoint_every=1, evaluations=1)
    assert run_cells(source, SLOTS, settings, 2, listener, root / "tune", trainable=trial, one_machine=False)
    for line in (root / "tries").read_text().splitlines():
        seed, node = line.split()
        print("try", seed, "ill" if node == ill else "well")
    for kind, _, text in listener.events:
        if kind == "notice":
            print("notice", text, ill[:8])
    print("told", *source.told.values())
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
