"""`interplay cluster check` foretells what the driver of a study finds on the head, and refuses the same."""

from contextlib import ExitStack, nullcontext

import pytest
import yaml
from moto.ec2.models.instance_types import INSTANCE_TYPES
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config
from rich.console import Console

from interplay.cluster.cluster_file import read
from interplay.cluster.prices import capacity_of, price_study
from study.errors import SpecError
from study.plan.plan import make_plan
from study.run import runner
from study.spec.study import load_spec
from study.workers.machines import Machine
from tests.cluster.files import aws


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return what the driver finds on the head of a file, where Ray has filled in the resources from EC2's data."""

    def driver(file, spec):
        filled = AWSNodeProvider.fillout_available_node_types_resources(prepare_config(file.document))
        (tmp_path / "bootstrap.yaml").write_text(yaml.safe_dump(filled))
        resources = filled["available_node_types"][file.head]["resources"]
        # The live head also has a memory, and marks of Ray's own.
        live = Machine(resources | {"memory": 9e9, "node:10.0.0.1": 1.0}, "head", file.head)
        monkeypatch.setattr("study.workers.machines.live_machines", lambda: [live])
        with ExitStack() as stack:
            found = runner._joined(stack, spec, Console(quiet=True))
            plan = make_plan(spec, capacity=found.capacity).trainable()
            found.check({planned.layout for planned in plan.pool})
            return found

    types = list(INSTANCE_TYPES.values())
    monkeypatch.setattr("ray.autoscaler._private.aws.node_provider.list_ec2_instances", lambda *_: types)
    monkeypatch.setenv("INTERPLAY_CLUSTER_FILE", str(tmp_path / "bootstrap.yaml"))
    monkeypatch.setattr(runner, "joined_cluster", lambda **_: nullcontext())
    return driver


def without(*types, **changes):
    """A change of a cluster file: some machine types removed, and top-level keys set."""

    def change(document):
        for name in types:
            del document["available_node_types"][name]
        return document | changes

    return change


FILES = {
    "the shipped one": without(),
    "no GPUs": without("spot", "on_demand", "h100", "wide"),
    "GPUs alone": without("cpu"),
    "no more than two machines": without("wide", max_workers=2),
    "no pools": lambda document: (
        document
        | {
            "available_node_types": {
                name: kind | {"resources": {"CPU": 0, "head": 1} if name == "head" else {}}
                for name, kind in document["available_node_types"].items()
                if name in ("head", "cpu")
            }
        }
    ),
}
#: File, overrides of a study, and a part of the refusal if there is one.
CASES = [
    ("the shipped one", ["resources.device=cpu"], None),
    ("the shipped one", ["resources.device=l4-24gb"], None),
    ("the shipped one", ["resources.device=cpu", "resources.slots=500"], None),
    ("the shipped one", ["resources.device=cpu", "resources.pool=large"], "cpu, h100, on_demand, spot, wide"),
    ("the shipped one", ["resources.device=h200-141gb"], "are A100, H100, L4"),
    ("the shipped one", ["resources.device=cpu", "resources.cpus_per_trial=500"], "with cpu has them .*: 8 CPUs"),
    (
        "the shipped one",
        ["resources.device=cpu", "resources.slots=1", "resources.data_parallel=2"],
        "`slots` is 1",
    ),
    (
        "the shipped one",
        ["resources.device=cpu", "resources.slots=64", "resources.data_parallel=32", "resources.pool=spot",
         "resources.cpus_per_trial=2"],
        "hold 16",
    ),
    ("no GPUs", ["resources.device=cpu", "resources.cpus_per_trial=3"], None),
    ("no GPUs", ["resources.device=l4-24gb"], "GPU"),
    ("GPUs alone", ["resources.device=cpu"], None),
    ("no more than two machines", ["resources.device=l4-24gb", "resources.pool=on_demand"], None),
    ("no more than two machines", ["resources.device=cpu", "resources.pool=spot"], None),
    ("no more than two machines", ["resources.device=cpu"], None),
    ("no pools", ["resources.device=cpu"], None),
    ("no pools", ["resources.device=cpu", "resources.pool=cpu"], "no pools"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "overrides", "refusal"), CASES)
def test_the_check_of_a_file_and_the_driver_agree(tmp_path, driver, kind, overrides, refusal):
    path = aws(tmp_path)
    path.write_text(yaml.safe_dump(FILES[kind](yaml.safe_load(path.read_text()))))
    file, spec = read(str(path)), load_spec("quickstart", overrides)
    price_study(file, spec)
    told = [found.message for found in file.errors]
    if refusal:
        with pytest.raises(SpecError, match=refusal) as refused:
            driver(file, spec)
        assert told == [
            f"the study quickstart cannot be planned on these machines: {str(refused.value).rstrip('.')}"
        ]
        return
    assert not told
    found, foretold = driver(file, spec), capacity_of(file, spec.resources)
    assert (found.slots, found.held, found.capacity) == (foretold.slots, foretold.held, foretold.capacity)
    assert bool(file.warnings) == (found.slots.devices > found.held)
