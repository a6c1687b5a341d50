"""How large the gradient of each layer is, and how far a step moves its weights."""

import math
from typing import Any

import torch

from trainables.cell import Cell
from trainables.model.parametrisation import param_groups

Tensor = torch.Tensor


class StepMeter:
    """Measures one optimizer step: call `before` it, when the gradient is whole, and `after` it, on every rank."""

    def __init__(self, model: Any, optimizer: Any, cell: Cell, zero: int) -> None:
        """Measure the layers of a GPT-2.

        Args:
            model: the module of a DeepSpeed engine.
            optimizer: the engine's.
            cell: what is trained.
            zero: stage of ZeRO; below 3, where the weights are whole.
        """
        self.layers = [list(block.parameters()) for block in model.transformer.h]
        self.betas = (cell.recipe.beta1, cell.recipe.beta2)
        groups = param_groups(model.named_parameters(), cell.shape, cell.recipe, cell.lr)
        self.groups = {id(p): group for group in groups for p in group["params"]}
        self.source = _Shared(optimizer) if zero else _Whole(optimizer)
        self._norms: list[float] = []

    def before(self) -> None:
        """Keep the norms of the gradients, which DeepSpeed is about to clip and drop."""
        self._norms = [_norm([self.source.gradient(p) for p in layer]) for layer in self.layers]

    def after(self, steps: int) -> dict[str, float]:
        """`grad_norm/LAYER` before clipping, and `update_ratio/LAYER`; layers count from 1 on.

        The ratio is the norm of what AdamW, as its moments stand, takes from a layer's weights in one step at the peak
        learning rate, over the norm of these. Times the schedule's factor it is that of the step itself, which would be
        zero at the end of every cell whose schedule ends there.

        Args:
            steps: made so far, this one included.
        """
        found: dict[str, float] = {}
        self.source.link()
        for layer, (norm, weights) in enumerate(zip(self._norms, self.layers, strict=True), 1):
            update = _norm([self._update(p, steps) for p in weights])
            size = _norm([self.source.weight(p) for p in weights])
            found[f"grad_norm/{layer}"] = norm
            found[f"update_ratio/{layer}"] = update / size if size else math.nan
        return found

    def _update(self, parameter: Tensor, steps: int) -> Tensor:
        """AdamW's step at the peak rate (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2)."""
        group, (beta1, beta2) = self.groups[id(parameter)], self.betas
        mean = self.source.moment(parameter, "exp_avg") / (1 - beta1**steps)
        root = (self.source.moment(parameter, "exp_avg_sq") / (1 - beta2**steps)).sqrt()
        decay = group["weight_decay"] * self.source.weight(parameter)
        update: Tensor = float(group["lr"]) * (mean / (root + group["eps"]) + decay)
        return update


class _Whole:
    """Gradients, weights and moments that lie on this rank as a whole."""

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        self.optimizer = optimizer

    def link(self) -> None:
        """There is nothing to find."""

    def gradient(self, parameter: Tensor) -> Tensor | None:
        return parameter.grad

    def weight(self, parameter: Tensor) -> Tensor:
        return parameter.detach()

    def moment(self, parameter: Tensor, name: str) -> Tensor:
        moment: Tensor = self.optimizer.state[parameter][name]
        return moment


class _Shared:
    """Those that ZeRO shares among ranks, brought together one parameter at a time, in fp32."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def link(self) -> None:
        """Let DeepSpeed find the moments of every group.

        It does so itself in its first step, after the first group's part of it: the others have no moments by then, and
        it never looks again (0.19.8).
        """
        self.optimizer._hp_optimizer_states_linked = False
        self.optimizer._lazy_init_hp_params_optimizer_state()

    def gradient(self, parameter: Tensor) -> Tensor | None:
        from deepspeed.utils import safe_get_full_grad

        gradient: Tensor | None = safe_get_full_grad(parameter)
        return gradient

    def weight(self, parameter: Tensor) -> Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        weight: Tensor = safe_get_full_fp32_param(parameter)
        return weight.detach()

    def moment(self, parameter: Tensor, name: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        moment: Tensor = safe_get_full_optimizer_state(parameter, name)
        return moment


def _norm(tensors: list[Tensor | None]) -> float:
    there = [tensor for tensor in tensors if tensor is not None]
    return float(torch.nn.utils.get_total_norm(there)) if there else math.nan
