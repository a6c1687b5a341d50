"""The cost of one shape in one layout: parameters, FLOPs, memory and time, from closed forms."""

from dataclasses import dataclass
from functools import cached_property

from study.spec.devices import Device
from trainables.cell import Precision, Recipe, Shape
from trainables.layout import Layout
from trainables.model.counts import Memory, memory
from trainables.model.family import VALUE_BYTES, Flops, Parameters, family


@dataclass(frozen=True)
class Cost:
    """The cost of training a shape by a recipe; each number is computed on first use."""

    shape: Shape
    vocabulary: int
    recipe: Recipe
    layout: Layout
    device: Device
    utilisation: float | None = None
    """Share of the device's peak; None for the share assumed of the device."""

    @cached_property
    def parameters(self) -> Parameters:
        """Counts of parameters."""
        recipe = self.recipe
        return family(recipe.network).parameters(self.shape, recipe, self.vocabulary)

    @cached_property
    def flops(self) -> Flops:
        """Operations per token."""
        return family(self.recipe.network).flops(self.shape, self.recipe, self.vocabulary)

    @cached_property
    def memory(self) -> Memory:
        """Bytes of the tensors on the rank that holds most."""
        return memory(self.shape, self.vocabulary, self.recipe, self.layout, on_gpu=self.device.is_gpu)

    @cached_property
    def training_flops(self) -> float:
        """Training FLOPs of the whole cell, without evaluations."""
        return float(self.flops.training * self.recipe.tokens)

    @cached_property
    def rank_flops(self) -> float:
        """FLOPs of a rank for forward and backward on one micro-batch, with what is computed again.

        Tensor-parallel ranks share the matrices and heads of the layers; each computes all norms, and all logits unless
        `shard_vocabulary` divides these too.
        """
        layout, work, tokens = self.layout, self.flops, self._piece_tokens
        layers = (work.matrices + work.attention) / layout.tensor_parallel + work.norms
        head = work.head / (layout.tensor_parallel if layout.shard_vocabulary else 1)
        passes = 4 if layout.activation_checkpointing else 3
        return tokens * (passes * layers + 3 * head)

    @property
    def _piece_tokens(self) -> int:
        return self.layout.sequences(self.recipe) * self.recipe.context

    @cached_property
    def piece_seconds(self) -> float:
        """Seconds of forward and backward on one micro-batch, all ranks side by side."""
        layout, tokens, precision = self.layout, self._piece_tokens, self.recipe.precision
        of_rank = tokens / layout.tensor_parallel
        computing = step_seconds(
            self.device, self.shape, of_rank, self.rank_flops, precision, self.utilisation
        )
        return computing + tensor_exchange_seconds(self.device, self.shape, tokens, precision, layout)

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of one optimizer step."""
        exchange = data_exchange_seconds(self.device, self.parameters.total, self.layout)
        return self.layout.pieces(self.recipe) * self.piece_seconds + exchange

    @property
    def compile_seconds(self) -> float:
        """Seconds of compiling layers and loss; 0 if neither is."""
        return self.device.seconds_to_compile if self.layout.compiled else 0.0

    def seconds(self, evaluations: int, validation_tokens: int) -> float:
        """Return the seconds of the whole cell with its evaluations and with compiling."""
        recipe = self.recipe
        tokens = self._piece_tokens * self.layout.data_parallel
        # An evaluation is forward only: a third of the work of training on as many tokens.
        evaluation = -(-validation_tokens // tokens) * self.piece_seconds / 3
        return recipe.steps * self.step_seconds + evaluations * evaluation + self.compile_seconds


def step_seconds(
    device: Device,
    shape: Shape,
    tokens: float,
    flops: float,
    precision: Precision,
    utilisation: float | None = None,
) -> float:
    """Estimate the seconds of a training step of `tokens` tokens and `flops` operations on one device."""
    share = device.utilisation if utilisation is None else utilisation
    return (
        device.seconds_per_step
        + shape.depth * device.seconds_per_step_layer
        + tokens * shape.depth * shape.width * device.seconds_per_value
        + flops / (device.peak[precision] * share)
    )


def tensor_exchange_seconds(
    device: Device, shape: Shape, tokens: int, precision: Precision, layout: Layout
) -> float:
    """Estimate the seconds of the all-reduces among tensor-parallel ranks for a micro-batch of `tokens` tokens.

    Per layer two sums in forward, of outputs, and two in backward, of gradients of the fp32 residual stream (Shoeybi et
    al. 2019, arXiv 1909.08053, section 3); forward again if activations are recomputed. ASSUMPTION: none of it overlaps
    with computation.
    """
    forward, backward = (
        _all_reduce_seconds(device, tokens * shape.width * size, layout.tensor_parallel)
        for size in (VALUE_BYTES[precision], 4)
    )
    return shape.depth * ((4 if layout.activation_checkpointing else 2) * forward + 2 * backward)


def data_exchange_seconds(device: Device, parameters: int, layout: Layout) -> float:
    """Estimate the seconds of the all-reduce of fp32 gradients among data-parallel groups in one step.

    ZeRO stage 3 sends half as much again as stages 0 to 2 (Rajbhandari et al. 2020, arXiv 1910.02054, section 7).
    ASSUMPTION: none of it overlaps with computation.
    """
    held = parameters / layout.tensor_parallel
    whole = _all_reduce_seconds(device, held * 4, layout.data_parallel)
    return whole * (1.5 if layout.zero == 3 else 1.0)


def _all_reduce_seconds(device: Device, size: float, ranks: int) -> float:
    """Return the seconds of a ring all-reduce: every rank sends and receives 2·(n-1)/n of the size."""
    if ranks == 1:
        return 0.0
    return device.seconds_per_exchange + 2 * (ranks - 1) / ranks * size / device.link
