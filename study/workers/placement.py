"""The resource requests of trials in Ray Tune: several ranks in each bundle, and no machine that loses trials."""

from collections.abc import Sequence

from ray.tune import PlacementGroupFactory

from study.errors import SpecError
from study.workers.machine_losses import MachineLosses
from study.workers.machines import Slots, check_capacity, cluster_machines, live_machines
from trainables.layout import Layout

#: Ray's label for the id of a machine.
NODE_LABEL = "ray.io/node-id"


def placement(layout: Layout, slots: Slots, avoided: Sequence[str] = ()) -> PlacementGroupFactory:
    """Return Tune's resource request of a trial, which keeps off the machines to avoid (Ray's ids).

    The trial's process trains a cell of one rank itself. That of a gang only supervises: it is on the machine of the
    first bundle and takes nothing, because the ranks need all.

    Ranks that share matrices exchange activations in every layer. They must be on one machine, so they are in one
    bundle, which Ray does not divide. Groups that only share batches may be spread (PACK).
    """
    bundles = [slots.bundle(layout.tensor_parallel)] * layout.data_parallel
    labels = (
        {"bundle_label_selector": [{NODE_LABEL: f"!in({','.join(avoided)})"}] * len(bundles)}
        if avoided
        else {}
    )
    return PlacementGroupFactory([*([{}] if layout.ranks > 1 else []), *bundles], strategy="PACK", **labels)


class Placer:
    """Places the trials of a run, and counts those that each machine has lost."""

    def __init__(self, slots: Slots, *, one_machine: bool) -> None:
        """Place on `one_machine`, that of this process, or on those of a cluster."""
        self.slots, self.one_machine = slots, one_machine
        self.losses = MachineLosses()

    def request(self, layout: Layout) -> PlacementGroupFactory:
        """Return Tune's resource request of a trial that starts now."""
        return placement(layout, self.slots, self.avoided(layout))

    def avoided(self, layout: Layout) -> list[str]:
        """Return Ray's ids of the machines to avoid; none if the others could never hold the layout."""
        avoided = [] if self.one_machine else self.losses.avoided
        if avoided:
            others = [m.resources for m in cluster_machines() if m.node not in avoided]
            try:
                check_capacity(self.slots, [layout], others)
            except SpecError:
                return []
        return avoided

    def live_ranks(self) -> int:
        """Return how many ranks the live machines hold, without those to avoid."""
        live = [machine for machine in live_machines() if machine.node not in self.losses.avoided]
        return sum(self.slots.ranks_on(machine.resources) for machine in live)
