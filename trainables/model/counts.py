"""Memory of a shape in closed form, without building a model."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.attention_kernel import attention_kernel
from trainables.model.family import VALUE_BYTES, family

#: Elements of ZeRO's buffers for reducing gradients and gathering weights: 134 MB in fp32, where DeepSpeed's default
#: takes 2 GB of every GPU.
BUCKET = 1 << 25
#: Logits of a micro-batch above which loss and gradients are computed in one pass (`trainables.model.head`).
ONE_PASS_LOGITS = 1 << 20
#: Logits that such a pass holds at once, by the type of the device. On one thread of a CPU all sizes from 2^22 on take
#: the same time. On a GPU each chunk reads and writes the gradient of the matrix, 12 bytes per element: at 125M
#: parameters and 2^28 logits 2 % of a step (counted, not measured).
CHUNK_LOGITS = {"cpu": 1 << 25, "cuda": 1 << 28}
#: Elements of a stack of matrices that Muon updates at once, or one matrix: its products then take tens of microseconds
#: on a GPU, several times what it takes to start them (43 at 600 TFLOP/s and width 768), so that larger stacks would
#: only take memory.
MUON_STACK = 1 << 24
#: Gradient elements that DeepSpeed's stage 0 copies into one buffer before it sums them over the groups.
FLAT_GRADIENTS = 500_000_000
#: DeepSpeed's `stage3_max_live_parameters`: weights that ZeRO-3 keeps gathered.
LIVE_PARAMETERS = 1_000_000_000
#: Share added for scratch memory and rounding of the allocator; 1 to 10 % were measured on a CPU with glibc set to keep
#: no freed blocks (`tests/trainables/memory_cells.py`).
MARGIN = 0.05


def kept_activations(shape: Shape, recipe: Recipe, layout: Layout) -> int:
    """Count the bytes of a micro-batch's activations on a rank that forward keeps for backward, without the head's.

    With activation checkpointing a layer keeps its input alone. The final norm adds its input and its output.
    """
    layer = family(recipe.network).layer_activations(shape, recipe, layout)
    kept = 4 * shape.width if layout.activation_checkpointing else layer
    masks = (2 * shape.depth + 1) * shape.width if recipe.dropout else 0
    per_token = shape.depth * kept + (4 + VALUE_BYTES[recipe.precision]) * shape.width + masks
    return layout.sequences(recipe) * recipe.context * per_token


Moment = Literal["forward", "backward", "embedding", "reduction", "step"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory in bytes of the rank that needs most.

    The peak is at the logits (forward), in a layer (backward), at the end of backward (embedding), while gradients are
    summed over the groups (reduction), or in the optimizer (step).
    """

    moment: Moment
    weights: int
    """With the copy of ZeRO's optimizer."""
    gradients: int
    """With ZeRO's copies."""
    optimizer: int
    buffers: int
    """ZeRO's, for reducing gradients and gathering weights."""
    activations: int
    """With the logits, their softmax and its gradient, and the weights in bf16."""

    @property
    def state(self) -> int:
        """All but the activations and the margin."""
        return self.weights + self.gradients + self.optimizer + self.buffers

    @property
    def total(self) -> int:
        """The peak, including the margin."""
        return (counted := self.state + self.activations) + round(MARGIN * counted)


def memory(shape: Shape, vocabulary: int, recipe: Recipe, layout: Layout, *, on_gpu: bool = False) -> Memory:
    """Estimate the peak memory of a rank of a layout, without building the model.

    The peak is the largest of five moments; the parts are those of that moment. With P parameters on a rank, p = P /
    data_parallel under ZeRO, and v bytes per value that a layer computes (4 in fp32, 2 in bf16):

    - Throughout: stage 0 holds 4P of weights and 8P of AdamW's moments; stages 1 and 2 hold also 4p of weights that
      the optimizer updates, and 8p of moments; stage 3 holds 4p instead of 4P, a flat gradient of 4p, its bucket, and
      during computation all weights up to `LIVE_PARAMETERS`. Gradients exist from the first piece on. In bf16 the
      passes hold a copy of the weights, 2P.
    - Forward ends with the head. Up to `ONE_PASS_LOGITS` it holds the log-softmax, its gradient and that of the logits
      in fp32: 12 bytes per token and symbol. Above, 8 of `CHUNK_LOGITS` at most, and the gradients of the matrix and of
      the hidden states. With a sharded vocabulary DeepSpeed's loss keeps three fp32 values of all, and with bf16 the
      logits themselves: 14.
    - Backward begins with all activations (`kept_activations`) and the gradient of the head's weights, which are those
      of a tied embedding, and adds the gradients inside a layer, 2·d fp32 values per token and those that the family
      counts (4·d/tensor_parallel in GPT-2), and with activation checkpointing the layer's own activations.
      Where a GPU has no fused kernel for the width of heads (`trainables.model.attention_kernel`), layers also keep
      their attention weights and copies of query, key and value, in fp32, and two more such weights are inside.
    - Embedding: backward ends with the gradients of the other weights, and three times that of the embedding: the
      head's, the lookup's and their sum (once if it is untied). After one pass over the logits the lookup's is added
      to the head's in place. A bucket does not hold it yet.
    - Reduction: the gradients, the bucket they are copied to and the reduced copy; stage 0 copies all.
    - Step: ZeRO holds its gradients twice: as reduced, and flat. Muon holds a stack of matrices of one shape.

    Counted in DeepSpeed 0.19.8; `tests/trainables/train/test_memory.py` compares it with measured peaks. Not counted:
    checkpoints, the export, the recipe's DeepSpeed options; on a CPU attention dropout, and freed blocks that glibc
    cannot reuse (its bug 14581, until 2.38: 116 MB above 535 at 12 layers of width 256 and 2,048 tokens, 250 above 196
    with activation checkpointing); on a GPU the unused end of the bucket with fewer than BUCKET parameters.
    """
    degree, groups, zero = layout.tensor_parallel, layout.data_parallel, layout.zero
    value = VALUE_BYTES[recipe.precision]
    model_family = family(recipe.network)
    whole = model_family.rank_parameters(shape, recipe, vocabulary, layout)
    part = math.ceil(whole / groups) if zero else whole
    bucket = 4 * min(BUCKET, whole)
    weights = 4 * (part if zero == 3 else whole) + (4 * part if zero else 0)
    gathered = 4 * min(whole, LIVE_PARAMETERS) + bucket if zero == 3 else 0
    cast = 2 * whole if recipe.precision == "bf16" else 0

    tokens = layout.sequences(recipe) * recipe.context
    kept = kept_activations(shape, recipe, layout)
    inside = tokens * (value * model_family.gradients_inside(shape, layout) + 2 * 4 * shape.width)
    if model_family.keeps_scores:
        inside += tokens * value * recipe.context * shape.heads // degree
    elif on_gpu and attention_kernel(shape.head_width, recipe.precision) == "math":
        scores, copies = recipe.context * shape.heads, 3 * shape.heads * shape.head_width
        plain = tokens * 4 * (scores + copies) // degree
        kept += 0 if layout.activation_checkpointing else shape.depth * plain
        inside += tokens * 2 * 4 * scores // degree + (plain if layout.activation_checkpointing else 0)
    if layout.activation_checkpointing:
        inside += tokens * model_family.layer_activations(shape, recipe, layout)
    symbols = math.ceil(vocabulary / degree) if layout.shard_vocabulary else vocabulary
    logit = 14 if layout.shard_vocabulary and value == 2 else 12
    scored = 0
    if layout.shard_vocabulary or tokens * symbols <= ONE_PASS_LOGITS:
        head = logit * tokens * symbols
    else:
        held = min(tokens * symbols, CHUNK_LOGITS["cuda" if on_gpu else "cpu"])
        head, scored = 8 * held + value * tokens * shape.width, 4 * symbols * shape.width

    accumulated = 4 * (whole if zero < 2 else part) if zero == 3 or layout.pieces(recipe) > 1 else 0
    embedding = 4 * symbols * shape.width
    # An untied embedding is whole on each rank, and its gradient is that of the lookup alone.
    untied = recipe.embeddings == "untied"
    copies = 1 if untied else 2 if scored else 3
    looked_up = 4 * (vocabulary if untied else symbols) * shape.width
    bucket_before_embedding = 4 * min(BUCKET, whole - looked_up // 4) if zero > 1 else 0
    others = accumulated or (4 * whole - looked_up if zero < 2 else 0)
    buckets = bucket if zero == 2 else gathered
    if zero == 0:
        reduction = (4 * whole, 4 * min(whole, FLAT_GRADIENTS) if groups > 1 else 0)
        step = 4 * whole
    else:
        # Stage 2 allocates the flat gradient after the only reduction, unless an earlier bucket or piece did.
        summed = 4 * (whole if zero == 1 else part)
        if zero == 2 and whole <= BUCKET and layout.pieces(recipe) == 1:
            summed = 0
        reduction = (summed, max(bucket, 4 * part if zero == 1 and whole > BUCKET else 0))
        step = 2 * 4 * part
    moments: list[tuple[Moment, int, int, int]] = [
        ("forward", accumulated + scored, buckets, cast + kept + head),
        ("backward", accumulated + embedding, buckets, cast + kept + inside),
        (
            "embedding",
            others + copies * looked_up,
            bucket_before_embedding + max(gathered - bucket, 0),
            0,
        ),
        ("step", step, gathered, muon_stack_bytes(shape, recipe) if recipe.optimizer == "muon" else 0),
        ("reduction", reduction[0], reduction[1] + buckets, 0),
    ]
    moment, gradients, buffers, activations = max(moments, key=lambda m: sum(m[1:]))
    # Muon has one moment of each matrix of the layers.
    matrices = shape.depth * sum(rows * columns for rows, columns in model_family.matrices(shape))
    optimizer = 8 * part - (4 * matrices if recipe.optimizer == "muon" else 0)
    return Memory(moment, weights, gradients, optimizer, buffers, activations)


def stack_sizes(count: int, elements: int) -> list[int]:
    """Return how many of `count` matrices of one shape Muon updates at once: about as many each time.

    `elements` are those of a matrix.
    """
    number = math.ceil(count / max(1, MUON_STACK // elements))
    size = math.ceil(count / number)
    return [min(size, count - first) for first in range(0, count, size)]


def muon_stack_bytes(shape: Shape, recipe: Recipe) -> int:
    """Count the bytes of Muon's largest stack of k matrices m x n while it is updated: 8·k·m·n + 4·k·min(m, n)²."""
    counts = Counter(family(recipe.network).matrices(shape))
    return max(
        stack_sizes(shape.depth * count, rows * columns)[0]
        * (8 * rows * columns + 4 * min(rows, columns) ** 2)
        for (rows, columns), count in counts.items()
    )
