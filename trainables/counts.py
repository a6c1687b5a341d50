"""How much a shape costs: exact parameters, FLOPs and memory in closed form, without building a model."""

from dataclasses import dataclass

from trainables.cell import Precision, Shape

#: Backward computes two products of the same size for each product of forward (Kaplan et al. 2020, section
#: 2.1).
TRAINING_OVER_FORWARD = 3


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of HuggingFace's `GPT2LMHeadModel` with tied embeddings, by where they sit."""

    embedding: int
    """V·d, shared with the head."""
    position: int
    """T·d, one learned vector a position."""
    non_embedding: int
    """All blocks and the final norm; the paper's N = 12·L·d² leaves out its biases and norms."""

    @property
    def total(self) -> int:
        """What `model.num_parameters()` says."""
        return self.embedding + self.position + self.non_embedding


def parameters(shape: Shape, vocabulary: int, context: int) -> Parameters:
    """Count the parameters of a shape exactly.

    A block holds four matrices of 12·d² weights and 9·d biases, and two norms of 2·d each; one more norm ends
    the model.
    """
    depth, width = shape.depth, shape.width
    return Parameters(
        embedding=vocabulary * width,
        position=context * width,
        non_embedding=depth * (12 * width**2 + 13 * width) + 2 * width,
    )


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one token's forward pass; a multiply-add is two."""

    matrices: int
    """The four matrices of each block: 24·L·d²."""
    attention: int
    """Scores and weighted values over the whole context: 4·L·T·d (a causal kernel may skip half of it)."""
    head: int
    """Logits: 2·V·d."""
    norms: int
    """Five a value: 10·L·d + 5·d, one per cent of the whole at d = 32."""

    @property
    def forward(self) -> int:
        """All of them, as DeepSpeed's flops profiler counts them: without biases, residual sums and GELU."""
        return self.matrices + self.attention + self.head + self.norms

    @property
    def training(self) -> int:
        """Forward and backward of one token."""
        return TRAINING_OVER_FORWARD * self.forward


def flops(shape: Shape, vocabulary: int, context: int) -> Flops:
    """Count the FLOPs of one token of a sequence of `context` tokens."""
    depth, width = shape.depth, shape.width
    return Flops(
        matrices=24 * depth * width**2,
        attention=4 * depth * context * width,
        head=2 * vocabulary * width,
        norms=10 * depth * width + 5 * width,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes one device holds while it trains a cell with a given micro-batch."""

    state: int
    """Weights, gradients and optimizer."""
    activations: int
    """What forward keeps for backward, and the logits with their softmax and gradient."""

    @property
    def total(self) -> int:
        """State and activations together, the peak at the end of forward."""
        return self.state + self.activations


def memory(shape: Shape, vocabulary: int, context: int, sequences: int, precision: Precision) -> Memory:
    """Estimate the memory of training `sequences` sequences at once on one device.

    State, bytes a parameter: fp32 has 4 of weight, 4 of gradient and 8 of AdamW's moments. bf16 under ZeRO-1
    has 2 of weight, 2 of gradient, 4 of master weight, 8 of moments and 4 of the fp32 gradient the step
    works on (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1, and the copy DeepSpeed makes).

    Activations: 16 values of d a token and layer. Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1)
    count 34·s·b·h bytes of 16-bit values and dropout masks plus 5·a·s²·b of attention scores; without
    dropout the masks go (32 bytes = 16 values) and with a fused attention kernel the scores are never
    stored. The head holds logits, an fp32 copy where they are not fp32, log-softmax and gradients: 12 or 16
    bytes a token and symbol. The first and last stream and the final norm add 4·d.
    """
    count = parameters(shape, vocabulary, context).total
    tokens = sequences * context
    value, state, logit = (4, 16, 12) if precision == "fp32" else (2, 20, 16)
    return Memory(
        state=state * count,
        activations=tokens * (value * shape.width * (16 * shape.depth + 4) + logit * vocabulary),
    )
