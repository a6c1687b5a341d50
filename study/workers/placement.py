"""A resource request of Ray Tune in whose bundles several ranks are together."""

from collections.abc import Mapping

from ray.tune import PlacementGroupFactory


class SharedBundles(PlacementGroupFactory):  # type: ignore[misc, unused-ignore]
    """Bundles of several ranks each, of which the trial's own process takes the share of one.

    Ray never divides a bundle between machines, whatever is free on them, whichever are lost, and whichever its
    autoscaler starts. Tune (2.60) would give the trial's process all of the first bundle, its GPUs among it: it asks
    `bundles` for what the process takes, and makes the placement group of what was given to the constructor.
    """

    def __init__(self, bundle: Mapping[str, float], count: int, share: Mapping[str, float]) -> None:
        super().__init__([dict(bundle)] * count, strategy="PACK")
        self._share = {name: amount for name, amount in share.items() if amount}

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What a process in each bundle takes."""
        return [dict(self._share) for _ in self._bundles]
