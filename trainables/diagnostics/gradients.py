"""The size of each layer's gradient and of its weight update."""

import importlib
import math
from typing import Any

import torch

from trainables.cell import Cell
from trainables.model.parametrisation import param_groups

Tensor = torch.Tensor


class StepMeter:
    """Measure one step of a DeepSpeed engine below ZeRO stage 3: call `before` it and `after` it, on every rank."""

    def __init__(self, model: Any, optimizer: Any, cell: Cell, zero: int) -> None:
        self.layers = [list(block.parameters()) for block in model.transformer.h]
        self.betas = (cell.recipe.beta1, cell.recipe.beta2)
        groups = param_groups(model.named_parameters(), cell.shape, cell.recipe, cell.lr)
        self.groups = {id(p): group for group in groups for p in group["params"]}
        self.source = _Shared(optimizer) if zero else _Whole(optimizer)
        self._norms: list[float] = []

    def before(self) -> None:
        """Keep the norms of the whole gradients before DeepSpeed clips and drops them."""
        self._norms = [_norm([self.source.gradient(p) for p in layer]) for layer in self.layers]

    def after(self, steps: int) -> dict[str, float]:
        """Return `grad_norm/LAYER` before clipping, and `update_ratio/LAYER` after `steps` steps; layers count from 1.

        The ratio is the norm of AdamW's update of a layer over the norm of its weights, at the peak learning rate
        because a schedule may end at zero; multiply by the schedule's factor for the actual step.
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
        """Return AdamW's update at the peak rate (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2)."""
        group, (beta1, beta2) = self.groups[id(parameter)], self.betas
        mean = self.source.moment(parameter, "exp_avg") / (1 - beta1**steps)
        root = (self.source.moment(parameter, "exp_avg_sq") / (1 - beta2**steps)).sqrt()
        decay = group["weight_decay"] * self.source.weight(parameter)
        update: Tensor = float(group["lr"]) * (mean / (root + group["eps"]) + decay)
        return update


class _Whole:
    """Gradients, weights and moments of stage 0, whole on this rank."""

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        self.optimizer = optimizer

    def link(self) -> None:
        """Do nothing: the moments are in the optimizer."""

    def gradient(self, parameter: Tensor) -> Any:
        return parameter.grad

    def weight(self, parameter: Tensor) -> Any:
        return parameter.detach()

    def moment(self, parameter: Tensor, name: str) -> Any:
        return self.optimizer.state[parameter][name]


class _Shared:
    """Gradients, weights and moments that ZeRO shards, gathered one parameter at a time in fp32."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.deepspeed = optimizer, importlib.import_module("deepspeed.utils")

    def link(self) -> None:
        """Link the moments of all groups; DeepSpeed 0.19.8 links them when only the first group has moments."""
        self.optimizer._hp_optimizer_states_linked = False
        self.optimizer._lazy_init_hp_params_optimizer_state()

    def gradient(self, parameter: Tensor) -> Any:
        return self.deepspeed.safe_get_full_grad(parameter)

    def weight(self, parameter: Tensor) -> Any:
        return self.deepspeed.safe_get_full_fp32_param(parameter).detach()

    def moment(self, parameter: Tensor, name: str) -> Any:
        return self.deepspeed.safe_get_full_optimizer_state(parameter, name)


def _norm(tensors: list[Tensor | None]) -> float:
    present = [tensor for tensor in tensors if tensor is not None]
    return float(torch.nn.utils.get_total_norm(present)) if present else math.nan
