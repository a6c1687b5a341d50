"""A program of `test_machines`: gangs under Ray Tune on three machines of two devices, which are raylets of this one.

Devices are busy, a machine is lost; prints where the ranks of each try were.
"""

import os
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from study.plan.plan import make_plan
from study.run.trial import TrialSettings, run_with
from study.run.tune_interface import resource_request
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots, live_machines
from tests.stubs import Cells, Recorder, in_layout, stub_result
from tests.study.small import SMALL
from trainables.layout import Layout
from trainables.progress import Progress

PAIRS = Layout(tensor_parallel=2, data_parallel=2, zero=1)
SLOTS = Slots(6, 1, 1)
SMALL_STORE = 80 << 20


def noted(cell, *, rank_info, data_root, report=None, **options):
    """`train` that notes where each rank is, and in the first try waits for the loss of a machine."""
    node = ray.get_runtime_context().get_node_id()
    (data_root / f"rank-{rank_info.rank}").write_text(f"{node} {os.environ['LOCAL_RANK']}")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "each rank sees all GPUs of its machine"
    if not (data_root / "lost").exists():
        while len(list(data_root.glob("rank-*"))) < rank_info.size:
            time.sleep(0.1)
        if report:
            report(Progress(step=1, steps=2, train_seconds=1, points=(), evaluations=()))
        time.sleep(3600)
    return stub_result()


def trial(config):
    run_with(noted, config)


def noted_places(root):
    """The machine and the GPU of each rank."""
    return [(root / f"rank-{rank}").read_text().split() for rank in range(PAIRS.ranks)]


class Losing(Recorder):
    """Takes the machine of the last rank away once all are training."""

    def __init__(self, root, cluster):
        super().__init__()
        self.root, self.cluster = root, cluster

    def progress(self, planned, progress):
        self.first = noted_places(self.root)
        node = next(n for n in self.cluster.worker_nodes if n.node_id == self.first[-1][0])
        self.cluster.remove_node(node, allow_graceful=False)

    def retried(self, planned, reason):
        super().retried(planned, reason)
        (self.root / "lost").touch()


@ray.remote(num_cpus=1, num_gpus=1)
class Busy:
    def ready(self):
        return True


def wait_for_whole_groups(nodes):
    """Two of three machines have one device free: as many as two groups have ranks, and no room for the second."""
    busy = [
        Busy.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes[:2]
    ]
    ray.get([actor.ready.remote() for actor in busy])
    config = {"layout": PAIRS.model_dump_json(), "avoided": "[]"}
    group = resource_request(config, SLOTS).to_placement_group()
    assert not group.wait(5), "torn"
    ray.kill(busy[0])
    assert group.wait(60)
    placed = placement_group_table(group)["bundles_to_node_id"].values()
    assert set(placed) == {nodes[0], nodes[2]}, placed
    ray.kill(busy[1])
    remove_placement_group(group)


def main(root):
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "object_store_memory": SMALL_STORE})
    for _ in range(3):
        cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=SMALL_STORE)
    ray.init(address=cluster.address, log_to_driver=False)
    wait_for_whole_groups([m.node for m in live_machines() if m.resources.get("GPU")])

    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    (planned,) = plan.cells
    source = Cells([in_layout(planned, PAIRS)])
    listener = Losing(root, cluster)
    settings = TrialSettings(data_root=root, checkpoint_root=root, checkpoint_every=1, evaluations=1)
    assert run_cells(source, SLOTS, settings, 1, listener, root / "tune", trainable=trial, one_machine=False)
    second = noted_places(root)
    for places in (listener.first, second):
        assert [gpu for _, gpu in places] in (["0", "1", "0", "1"], ["0", "1", "1", "0"], ["1", "0"] * 2), (
            places
        )
        (a, _), (b, _), (c, _), (d, _) = places
        assert a == b != c == d, places
    lost = listener.first[-1][0]
    assert lost not in {node for node, _ in second}
    print("retried", *listener.of("retried").values())
    print("told", *source.told.values())
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
