"""A resource request of Ray Tune with several ranks in each bundle."""

from collections.abc import Mapping

from ray.tune import PlacementGroupFactory

from study.workers.machines import Slots
from trainables.layout import Layout


class SharedBundles(PlacementGroupFactory):
    """Bundles of several ranks each; the trial's own process takes the resources of one rank.

    Ray never divides a bundle between machines. Tune (2.60) would give the trial's process all of the first bundle,
    GPUs included: it reads the resources of the process from `bundles`, and makes the placement group from the
    arguments of the constructor.
    """

    def __init__(self, bundle: Mapping[str, float], count: int, share: Mapping[str, float]) -> None:
        super().__init__([dict(bundle)] * count, strategy="PACK")
        self._share = {name: amount for name, amount in share.items() if amount}

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of a process in each bundle."""
        return [dict(self._share) for _ in self._bundles]


def placement(layout: Layout, slots: Slots, *, one_machine: bool) -> SharedBundles:
    """Return Tune's resource request of a trial: the first bundle holds the trial's own process.

    Ranks that share matrices exchange activations in every layer. They must be on one machine, so they are in one
    bundle, which Ray does not divide. Groups that only share batches may be spread (PACK). No machine is named, because
    it may be lost, and machines that are still to come have no name. On `one_machine`, with one bundle per rank,
    layouts of as many ranks request the same and share their processes.
    """
    together = 1 if one_machine else layout.tensor_parallel
    return SharedBundles(slots.bundle(together), layout.ranks // together, slots.bundle())
