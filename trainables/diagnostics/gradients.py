"""How large the gradient of each layer is, and how far a step moves its weights."""

import math
from typing import Any

import torch

Tensor = torch.Tensor


class StepMeter:
    """Measures one optimizer step: call `before` it, when the gradient is whole, and `after` it."""

    def __init__(self, model: Any, optimizer: torch.optim.AdamW) -> None:
        """Measure the layers of a GPT-2 whose gradients are on one rank (no ZeRO)."""
        self.layers = [list(block.parameters()) for block in model.transformer.h]
        self.optimizer = optimizer
        self._norms: list[float] = []

    def before(self) -> None:
        """Keep the norms of the gradients, which DeepSpeed is about to clip and drop."""
        self._norms = [_norm([p.grad for p in layer if p.grad is not None]) for layer in self.layers]

    def after(self) -> dict[str, float]:
        """`grad_norm/LAYER` before clipping, and `update_ratio/LAYER`; layers count from 1 on.

        The ratio is the norm of what AdamW, as its moments stand, takes from a layer's weights in one step at the peak
        learning rate, over the norm of these. Times the schedule's factor it is that of the step itself, which would be
        zero at the end of every cell whose schedule ends there.
        """
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        found: dict[str, float] = {}
        for layer, (norm, weights) in enumerate(zip(self._norms, self.layers, strict=True), 1):
            update = _norm([_update(p, self.optimizer.state[p], groups[id(p)]) for p in weights])
            size = _norm([p.detach() for p in weights])
            found[f"grad_norm/{layer}"] = norm
            found[f"update_ratio/{layer}"] = update / size if size else math.nan
        return found


def _update(weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """AdamW's step at the peak rate (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2)."""
    beta1, beta2 = group["betas"]
    steps = float(state["step"])
    mean = state["exp_avg"] / (1 - beta1**steps)
    root = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt()
    update: Tensor = mean / (root + group["eps"]) + group["weight_decay"] * weight.detach()
    return update * float(group.get("initial_lr", group["lr"]))


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(tensors)) if tensors else math.nan
