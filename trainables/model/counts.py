"""How much a shape costs: exact parameters, FLOPs and memory in closed form, without building a model."""

import math
from dataclasses import dataclass
from typing import Literal

from trainables.cell import Recipe, Residual, Shape
from trainables.layout import Layout
from trainables.model.family import Flops, Parameters, family

#: Elements of the buffers ZeRO reduces gradients and gathers weights through. DeepSpeed's own 5e8 would take 2 GB of
#: every GPU whatever the model; 2**25 are 134 MB in fp32, large enough to hide latency.
BUCKET = 1 << 25
#: Elements of the gradients that DeepSpeed's stage 0 copies into one before it sums them over the groups.
FLAT_GRADIENTS = 500_000_000
#: DeepSpeed's `stage3_max_live_parameters`: weights that ZeRO-3 keeps gathered.
LIVE_PARAMETERS = 1_000_000_000
_BYTES = {"fp32": 4, "bf16": 2}
#: Of an estimate, for what it does not count: kernels' scratch memory, an allocator's rounding. On a CPU 1 to 10 %
#: were measured with glibc told to keep no freed block (`tests/trainables/memory_cells.py`).
MARGIN = 0.05


def parameters(
    shape: Shape, vocabulary: int, context: int, network: str = "gpt2", residual: Residual = "pre"
) -> Parameters:
    """Count the parameters of a shape exactly."""
    return family(network).parameters(shape, vocabulary, context, residual)


def flops(shape: Shape, vocabulary: int, context: int, network: str = "gpt2") -> Flops:
    """Count the FLOPs of one token of a sequence of `context` tokens."""
    return family(network).flops(shape, vocabulary, context)


def rank_parameters(
    shape: Shape, vocabulary: int, context: int, layout: Layout, network: str = "gpt2"
) -> int:
    """Count the parameters that one tensor-parallel rank holds before ZeRO divides them.

    With an uneven vocabulary this is the rank that holds most of it.
    """
    return family(network).rank_parameters(shape, vocabulary, context, layout)


def kept_activations(shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Bytes of a micro-batch's activations that forward keeps on a rank for backward, without those of the head.

    Each layer keeps what its family counts (`ModelFamily.layer_activations`), or with activation checkpointing its
    input alone. The final norm adds 2·d per token, dropout its masks.
    """
    stream = _stream(shape, recipe, layout)
    masks = (2 * shape.depth + 1) * stream // _BYTES[recipe.precision] if recipe.dropout else 0
    layer = stream if layout.activation_checkpointing else _layer(stream, shape, recipe, layout)
    return shape.depth * layer + 2 * stream + masks


def _stream(shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Bytes of one vector of width d a token."""
    return layout.sequences(recipe) * recipe.context * shape.width * _BYTES[recipe.precision]


def _layer(stream: int, shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Bytes that backward needs of a layer."""
    scores = _scores(shape, recipe, layout)
    return family(recipe.network).layer_activations(stream, scores, layout.tensor_parallel)


def _scores(shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Bytes of a layer's weights of attention: each head has [T, T] of them a sequence."""
    heads = shape.heads // layout.tensor_parallel
    return layout.sequences(recipe) * heads * recipe.context**2 * _BYTES[recipe.precision]


Moment = Literal["forward", "backward", "reduction", "step"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the rank which holds most needs at the moment it holds most, while it trains a cell."""

    moment: Moment
    """When that is: at the logits (forward), in a layer (backward), while the gradients are summed over the groups
    (reduction), or in the optimizer (step)."""
    weights: int
    """In the precision forward computes with, and the fp32 copy that ZeRO's optimizer works on."""
    gradients: int
    """Of the weights, with the copies that ZeRO makes of them."""
    optimizer: int
    """AdamW's two moments in fp32."""
    buffers: int
    """What ZeRO reduces gradients and gathers weights through."""
    activations: int
    """What forward keeps for backward, and the logits with their softmax and gradient."""
    construction: int
    """Bytes of the whole model in fp32, which every rank builds on its host before it is shared; not in `total`, and
    above it only at degrees that no CPU has."""

    @property
    def state(self) -> int:
        """All but the activations."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    @property
    def margin(self) -> int:
        """MARGIN of all that is counted: what an allocator rounds up, and the scratch memory of kernels."""
        return round(MARGIN * (self.state + self.activations))

    @property
    def total(self) -> int:
        """The peak, margin and all."""
        return self.state + self.activations + self.margin


def memory(shape: Shape, vocabulary: int, recipe: Recipe, layout: Layout) -> Memory:
    """Estimate the peak memory of a rank of a layout, without building the model.

    The peak is that of four moments; parts are given of the one that needs most. With P parameters on a rank (see
    `rank_parameters`), p = P / data_parallel under ZeRO, and v bytes a value (4 in fp32, 2 in bf16):

    - Held throughout: stage 0 has 4P of weights and 8P of AdamW's moments; stages 1 and 2 v·P of weights, 4p of
      master weights (in fp32 too, where they are a plain copy) and 8p of moments; stage 3 v·p instead of v·P, a
      flat gradient of v·p, its bucket, and while it computes all weights: DeepSpeed lets go of none below
      `stage3_max_live_parameters`. Gradients are there from the first micro-batch on.
    - Forward ends, and backward begins, with the head: log-softmax and the gradients of it and of the logits, all in
      fp32, are 12 bytes a token and symbol; DeepSpeed's loss over a shared vocabulary has the logits, those less
      their maximum and their exponentials in fp32, and keeps bf16 logits beside them: 12 or 14.
    - Backward begins with all activations (`kept_activations`) and adds the gradients inside a layer, which are
      (4/tensor_parallel + 2)·d a token, and with recomputation that layer's own activations.
    - Reduction: the gradients, the bucket they are copied to and the copy that is reduced; stage 0 copies all.
    - The step, where ZeRO has its gradients three times: as reduced, flat, and flat in fp32 (in fp32 twice).

    Counted in DeepSpeed 0.19.8 (`zero/stage_1_and_2.py`, `zero/stage3.py`) and held to measured peaks by
    `tests/trainables/train/test_memory.py`. Not counted:

    - on a CPU what glibc keeps of freed blocks, because it cannot use them again for tensors of the same size (its
      bug 14581, until 2.38): at 12 layers of width 256 and 2,048 tokens 116 MB above 535, and 250 above 196 with
      recomputation, which so saves little there; giving them back at once costs up to 40 % of a step;
    - on a CPU attention dropout, which has no fused kernel;
    - on a GPU the unused end of the bucket where there are fewer than BUCKET parameters (a CPU never touches it);
    - checkpoints, the export of the weights, and the recipe's own DeepSpeed options.
    """
    degree, groups, zero = layout.tensor_parallel, layout.data_parallel, layout.zero
    value = _BYTES[recipe.precision]
    whole = rank_parameters(shape, vocabulary, recipe.context, layout, recipe.network)
    part = math.ceil(whole / groups) if zero else whole
    bucket = value * min(BUCKET, whole)
    weights = value * (part if zero == 3 else whole) + (4 * part if zero else 0)
    gathered = value * min(whole, LIVE_PARAMETERS) + bucket if zero == 3 else 0

    kept, stream = kept_activations(shape, recipe, layout), _stream(shape, recipe, layout)
    inside = (_layer(stream, shape, recipe, layout) if layout.activation_checkpointing else 0) + (
        4 + 2 * degree
    ) * stream // degree
    inside += family(recipe.network).score_gradients(_scores(shape, recipe, layout))
    symbols = math.ceil(vocabulary / degree) if layout.shard_vocabulary else vocabulary
    logit = 14 if layout.shard_vocabulary and value == 2 else 12
    head = layout.sequences(recipe) * recipe.context * symbols * logit

    accumulated = value * (whole if zero < 2 else part) if zero == 3 or layout.pieces(recipe) > 1 else 0
    embedding = value * symbols * shape.width
    buckets = bucket if zero == 2 else gathered
    if zero == 0:
        reduction = (4 * whole, 4 * min(whole, FLAT_GRADIENTS) if groups > 1 else 0)
        step = 4 * whole
    else:
        # The flat gradient of stage 2 comes after the only reduction, unless an earlier bucket or piece made it.
        summed = value * whole if zero == 1 else value * part
        if zero == 2 and whole <= BUCKET and layout.pieces(recipe) == 1:
            summed = 0
        reduction = (summed, max(bucket, value * part if zero == 1 and whole > BUCKET else 0))
        step = 2 * value * part + (4 * part if value == 2 else 0)
    moments: list[tuple[Moment, int, int, int]] = [
        ("forward", accumulated, buckets, kept + head),
        ("backward", max(accumulated, embedding), buckets, kept + inside),
        ("step", step, gathered, 0),
        ("reduction", reduction[0], reduction[1] + buckets, 0),
    ]
    moment, gradients, buffers, activations = max(moments, key=lambda m: sum(m[1:]))
    return Memory(
        moment=moment,
        weights=weights,
        gradients=gradients,
        optimizer=8 * part,
        buffers=buffers,
        activations=activations,
        construction=4 * parameters(shape, vocabulary, recipe.context, recipe.network).total,
    )
