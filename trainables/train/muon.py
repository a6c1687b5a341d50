"""Muon for DeepSpeed: matrices of one shape are updated as one stack, and all other parameters by AdamW."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from trainables.model.counts import stack_sizes

Tensor = torch.Tensor


class StackedMuon(Muon):
    """torch's Muon with Nesterov's momentum and the rate `match_rms_adamw`, on matrices of one shape at once.

    torch starts 23 kernels per matrix; this starts 23 per stack, and two per group. The numbers, the state and the
    options of the groups are torch's, so that each continues the other's state. While a stack of k matrices m x n is
    updated, it takes 8·k·m·n + 4·k·min(m, n)² bytes.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; `closure` must be None."""
        assert closure is None
        for group in self.param_groups:
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            for matrix in matrices:
                if not self.state[matrix]:
                    self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
            gradients = [matrix.grad for matrix in matrices]
            momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for indices in stacks([matrix.shape for matrix in matrices]):
                # No name holds the stack while the next is allocated.
                _update(
                    [matrices[i] for i in indices],
                    torch.stack([gradients[i] for i in indices]),
                    [momenta[i] for i in indices],
                    group,
                )


def stacks(shapes: list[torch.Size]) -> list[list[int]]:
    """Return the indices of each stack: matrices of one shape, of `MUON_STACK` elements at most or one."""
    by_shape: dict[torch.Size, list[int]] = {}
    for index, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(index)
    divided = []
    for shape, indices in by_shape.items():
        remaining = iter(indices)
        sizes = stack_sizes(len(indices), shape.numel())
        divided += [list(itertools.islice(remaining, size)) for size in sizes]
    return divided


def _update(matrices: list[Tensor], stack: Tensor, momenta: list[Tensor], group: Any) -> None:
    """Add the orthogonalised momentum to matrices of one shape; `stack` has their gradients [k, m, n], and is lost."""
    shape = matrices[0].shape
    views = list(stack.unbind())
    torch._foreach_lerp_(views, momenta, group["momentum"])
    # A foreach operation on tensors of two types or strides would start a kernel for each.
    stack.copy_(orthogonalise(stack, group["ns_coefficients"], group["ns_steps"], group["eps"]))
    torch._foreach_add_(matrices, views, alpha=-group["lr"] * 0.2 * math.sqrt(max(shape)))


def orthogonalise(
    stack: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float
) -> Tensor:
    """Return each matrix of a stack [k, m, n] with singular values near 1, in bf16.

    Newton-Schulz iterations of Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), as in torch's Muon.
    """
    a, b, c = coefficients
    is_tall = stack.shape[1] > stack.shape[2]
    x = stack.bfloat16()
    x.div_(torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp_(min=epsilon))
    if is_tall:
        x = x.mT
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class MuonAndAdamW(Optimizer):
    """Muon on the groups that have a `momentum`, torch's fused AdamW on the others, as one optimizer for DeepSpeed.

    A matrix of Muon changes by 0.2 · lr per element and step, as under AdamW (Liu et al. 2025, arXiv 2502.16982,
    section 2.2), whatever its shape. So one rate serves both, and all widths and depths.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {})
        # Each adds its options to the groups, which are the same objects here.
        self._parts: list[Optimizer] = [
            StackedMuon([group for group in groups if "momentum" in group], adjust_lr_fn="match_rms_adamw"),
            AdamW([group for group in groups if "momentum" not in group], betas=betas, fused=True),
        ]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters; `closure` must be None."""
        assert closure is None
        for part in self._parts:
            # Loading a state replaces the groups and the state.
            is_muon = isinstance(part, Muon)
            part.param_groups = [group for group in self.param_groups if ("momentum" in group) == is_muon]
            part.state = self.state
            part.step()
