"""The resource requests of trials in Ray Tune: several ranks in each bundle, and no machine that loses trials."""

from collections.abc import Mapping, Sequence

from ray.tune import PlacementGroupFactory

from study.errors import SpecError
from study.workers.machine_losses import MachineLosses
from study.workers.machines import Slots, check_capacity, cluster_machines, live_machines
from trainables.layout import Layout

#: Ray's label for the id of a machine.
NODE_LABEL = "ray.io/node-id"


class SharedBundles(PlacementGroupFactory):
    """Bundles of several ranks each; the trial's own process takes the resources of one rank.

    Ray never divides a bundle between machines. Tune (2.60) would give the trial's process all of the first bundle,
    GPUs included: it reads the resources of the process from `bundles`, and makes the placement group from the
    arguments of the constructor.
    """

    def __init__(
        self, bundle: Mapping[str, float], count: int, share: Mapping[str, float], avoided: Sequence[str] = ()
    ) -> None:
        labels = (
            {"bundle_label_selector": [{NODE_LABEL: f"!in({','.join(avoided)})"}] * count} if avoided else {}
        )
        super().__init__([dict(bundle)] * count, strategy="PACK", **labels)
        self._share = {name: amount for name, amount in share.items() if amount}

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of a process in each bundle."""
        return [dict(self._share) for _ in self._bundles]


def placement(
    layout: Layout, slots: Slots, *, one_machine: bool, avoided: Sequence[str] = ()
) -> SharedBundles:
    """Return Tune's resource request of a trial: the first bundle holds the trial's own process.

    Ranks that share matrices exchange activations in every layer. They must be on one machine, so they are in one
    bundle, which Ray does not divide. Groups that only share batches may be spread (PACK). No machine is named but
    those to avoid (Ray's ids), because it may be lost, and machines that are still to come have no name. On
    `one_machine`, with one bundle per rank, layouts of as many ranks request the same and share their processes.
    """
    together = 1 if one_machine else layout.tensor_parallel
    return SharedBundles(slots.bundle(together), layout.ranks // together, slots.bundle(), avoided)


class Placer:
    """Places the trials of a run, and counts those that each machine has lost."""

    def __init__(self, slots: Slots, *, one_machine: bool) -> None:
        """Place on `one_machine`, that of this process, or on those of a cluster."""
        self.slots, self.one_machine = slots, one_machine
        self.losses = MachineLosses()

    def request(self, layout: Layout) -> SharedBundles:
        """Return Tune's resource request of a trial that starts now."""
        return placement(layout, self.slots, one_machine=self.one_machine, avoided=self.avoided(layout))

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
