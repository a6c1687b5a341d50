"""Memory of a shape in closed form, without building a model."""

import math
from dataclasses import dataclass
from typing import Literal

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.family import family

#: Elements of ZeRO's buffers for reducing gradients and gathering weights: 134 MB in fp32, where DeepSpeed's default
#: takes 2 GB of every GPU.
BUCKET = 1 << 25
#: Gradient elements that DeepSpeed's stage 0 copies into one buffer before it sums them over the groups.
FLAT_GRADIENTS = 500_000_000
#: DeepSpeed's `stage3_max_live_parameters`: weights that ZeRO-3 keeps gathered.
LIVE_PARAMETERS = 1_000_000_000
_BYTES = {"fp32": 4, "bf16": 2}
#: Share added for scratch memory and rounding of the allocator; 1 to 10 % were measured on a CPU with glibc set to keep
#: no freed blocks (`tests/trainables/memory_cells.py`).
MARGIN = 0.05


def kept_activations(shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Count the bytes of a micro-batch's activations on a rank that forward keeps for backward, without the head's.

    With activation checkpointing a layer keeps its input alone. The final norm adds 2·d values per token.
    """
    stream, _, layer = _layer_bytes(shape, recipe, layout)
    masks = (2 * shape.depth + 1) * stream // _BYTES[recipe.precision] if recipe.dropout else 0
    kept = stream if layout.activation_checkpointing else layer
    return shape.depth * kept + 2 * stream + masks


def _layer_bytes(shape: Shape, recipe: Recipe, layout: Layout) -> tuple[int, int, int]:
    """Count the bytes of a vector of width d per token, of a layer's attention weights, and of all it keeps."""
    per_token = layout.sequences(recipe) * recipe.context * _BYTES[recipe.precision]
    stream = per_token * shape.width
    scores = per_token * recipe.context * (shape.heads // layout.tensor_parallel)
    return stream, scores, family(recipe.network).layer_activations(stream, scores, layout.tensor_parallel)


Moment = Literal["forward", "backward", "reduction", "step"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory in bytes of the rank that needs most.

    The peak is at the logits (forward), in a layer (backward), while gradients are summed over the groups (reduction),
    or in the optimizer (step).
    """

    moment: Moment
    weights: int
    """Weights in the precision of forward, and the fp32 copy of ZeRO's optimizer."""
    gradients: int
    """With ZeRO's copies."""
    optimizer: int
    buffers: int
    """ZeRO's, for reducing gradients and gathering weights."""
    activations: int
    """With the logits, their softmax and its gradient."""

    @property
    def state(self) -> int:
        """All but the activations and the margin."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    @property
    def total(self) -> int:
        """The peak, including the margin."""
        return (counted := self.state + self.activations) + round(MARGIN * counted)


def memory(shape: Shape, vocabulary: int, recipe: Recipe, layout: Layout) -> Memory:
    """Estimate the peak memory of a rank of a layout, without building the model.

    The peak is the largest of four moments; the parts are those of that moment. With P parameters on a rank, p = P /
    data_parallel under ZeRO, and v bytes per value (4 in fp32, 2 in bf16):

    - Throughout: stage 0 holds 4P of weights and 8P of AdamW's moments; stages 1 and 2 hold v·P of weights, 4p of
      master weights (also in fp32) and 8p of moments; stage 3 holds v·p instead of v·P, a flat gradient of v·p, its
      bucket, and during computation all weights up to `LIVE_PARAMETERS`. Gradients exist from the first piece on.
    - Forward ends with the head: log-softmax, its gradient and that of the logits in fp32, 12 bytes per token and
      symbol. With a sharded vocabulary DeepSpeed's loss keeps other three, and with bf16 the logits themselves: 14.
    - Backward begins with all activations (`kept_activations`) and adds the gradients inside a layer,
      (4/tensor_parallel + 2)·d values per token, and with activation checkpointing the layer's own activations.
    - Reduction: the gradients, the bucket they are copied to and the reduced copy; stage 0 copies all.
    - Step: ZeRO holds its gradients three times: as reduced, flat, and flat in fp32 (in fp32 twice).

    Counted in DeepSpeed 0.19.8; `tests/trainables/train/test_memory.py` compares it with measured peaks. Not counted:
    checkpoints, the export, the recipe's DeepSpeed options; on a CPU attention dropout, and freed blocks that glibc
    cannot reuse (its bug 14581, until 2.38: 116 MB above 535 at 12 layers of width 256 and 2,048 tokens, 250 above 196
    with activation checkpointing); on a GPU the unused end of the bucket with fewer than BUCKET parameters.
    """
    degree, groups, zero = layout.tensor_parallel, layout.data_parallel, layout.zero
    value = _BYTES[recipe.precision]
    model_family = family(recipe.network)
    whole = model_family.rank_parameters(shape, vocabulary, recipe.context, layout)
    part = math.ceil(whole / groups) if zero else whole
    bucket = value * min(BUCKET, whole)
    weights = value * (part if zero == 3 else whole) + (4 * part if zero else 0)
    gathered = value * min(whole, LIVE_PARAMETERS) + bucket if zero == 3 else 0

    kept = kept_activations(shape, recipe, layout)
    stream, scores, layer = _layer_bytes(shape, recipe, layout)
    inside = (4 + 2 * degree) * stream // degree + (scores if model_family.keeps_scores else 0)
    if layout.activation_checkpointing:
        inside += layer
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
        # Stage 2 allocates the flat gradient after the only reduction, unless an earlier bucket or piece did.
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
    return Memory(moment, weights, gradients, 8 * part, buffers, activations)
