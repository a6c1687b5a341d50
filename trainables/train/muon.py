"""Muon for the matrices of the blocks and AdamW for all else, as the one optimizer that DeepSpeed takes."""

from collections.abc import Callable
from typing import Any

from torch.optim import AdamW, Muon, Optimizer


class MuonAndAdamW(Optimizer):
    """torch's Muon on the groups that have a `momentum`, its fused AdamW on the others.

    A matrix of Muon changes by 0.2 · lr per element and step, as under AdamW (Liu et al. 2025, arXiv 2502.16982,
    section 2.2), whatever its shape. So one rate serves both, and all widths and depths.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {})
        # Each adds its options to the groups, which are the same objects here.
        self._parts: list[Optimizer] = [
            Muon([group for group in groups if _is_muon(group)], adjust_lr_fn="match_rms_adamw"),
            AdamW([group for group in groups if not _is_muon(group)], betas=betas, fused=True),
        ]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters; `closure` must be None."""
        assert closure is None
        for part in self._parts:
            # Loading a state replaces the groups and the state.
            is_muon = isinstance(part, Muon)
            part.param_groups = [group for group in self.param_groups if _is_muon(group) == is_muon]
            part.state = self.state
            part.step()


def _is_muon(group: dict[str, Any]) -> bool:
    return "momentum" in group
