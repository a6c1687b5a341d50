"""Llama (Touvron et al. 2023, arXiv 2302.13971): rotary positions, RMSNorm, a gated network, no biases.

A layer has 12·d² weights, as N = 12·L·d² counts, unless `frontier.d_ff` is given: the gated network is as wide as the
attention leaves room for, 8/3·d with as many key-value heads as heads, and 19/6·d with a quarter of them. With
`frontier.d_ff: 0` a layer has neither the network nor the norm before it.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.family import VALUE_BYTES, Flops, ModelFamily, Parameters, Parts, Role, register

if TYPE_CHECKING:
    import torch

#: The inner width that is not given is a multiple of the largest power of two up to d/16, and of this at most: 6,144
#: for a Qwen3 of width 2,048 with 8 of 16 key-value heads, as in its own configuration.
LARGEST_STEP = 64


@register
class Llama(ModelFamily):
    """Llama as HuggingFace's `LlamaForCausalLM`."""

    name = "llama"
    title = "Llama"
    options = frozenset({"kv_heads", "head_dim", "d_ff", "embeddings", "rope_theta"})
    is_rotary = True
    diagnostics = frozenset({"rank", "layer_drop", "induction", "attention"})
    #: Norms of a head's queries and keys in each layer.
    head_norms: ClassVar[int] = 0
    #: Parameter whose scale is that of the attention scores; the export folds the attention ratio into it.
    query_scale: ClassVar[str] = ".q_proj.weight"

    def huggingface(self) -> tuple[Any, Any]:
        """Return HuggingFace's classes of the configuration and of the model."""
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaConfig, LlamaForCausalLM

    def check(self, recipe: Recipe) -> None:
        """Refuse dropout, which HuggingFace's class has in the attention only."""
        super().check(recipe)
        if recipe.dropout:
            raise ValueError(f"`network: {self.name}` has no dropout; set `dropout: 0`")

    def check_shape(self, shape: Shape, recipe: Recipe) -> None:
        """Refuse heads of odd width, attention that leaves no weights to the gated network, and mup with free heads."""
        super().check_shape(shape, recipe)
        where = f"depth {shape.depth}, width {shape.width}"
        if shape.head_width % 2:
            # Only heads whose width was not given follow from that of the model.
            even = f"`frontier.head_dim: {shape.head_width + 1}`"
            if shape.head_dim is None:
                heads = f"`frontier.heads: {shape.heads}` with `frontier.width_multiple: {2 * shape.heads}`"
                even = f"{heads}, or {even}"
            raise ValueError(
                f"`network: {self.name}` rotates pairs of a head's values, and the heads of {where} have "
                f"{shape.head_width}; set {even}"
            )
        if shape.d_ff is None and self.d_ff(shape) < 1:
            raise ValueError(
                f"the attention of {where} has more than the 12·d² weights of a layer; set `frontier.d_ff`, or fewer "
                "or narrower heads"
            )
        if recipe.parametrisation != "sp" and shape.head_dim is not None:
            raise ValueError(
                f"`parametrisation: {recipe.parametrisation}` needs heads whose widths sum to that of the model; keep "
                "one of `frontier.heads` and `frontier.head_dim`"
            )

    def d_ff(self, shape: Shape) -> int:
        """Return the inner width of the gated network."""
        if shape.d_ff is not None:
            return shape.d_ff
        step = min(LARGEST_STEP, 1 << max(0, (shape.width // 16).bit_length() - 1))
        return round((12 * shape.width**2 - self._attention(shape)) / (3 * shape.width) / step) * step

    def _attention(self, shape: Shape) -> int:
        """Count the weights of a layer's attention: queries and output by heads, keys and values by key-value heads."""
        return 2 * shape.width * shape.head_width * (shape.heads + shape.key_value_heads)

    def matrices(self, shape: Shape) -> list[tuple[int, int]]:
        """Return query, key, value and output of the attention, and the three of the gated network."""
        width, inner = shape.width, self.d_ff(shape)
        queries, keys = (heads * shape.head_width for heads in (shape.heads, shape.key_value_heads))
        attention = [(queries, width), (keys, width), (keys, width), (width, queries)]
        return [*attention, (inner, width), (inner, width), (width, inner)] if inner else attention

    def _norms(self, shape: Shape) -> int:
        """Count the gains of a layer's norms."""
        return (2 if shape.has_feed_forward else 1) * shape.width + self.head_norms * shape.head_width

    def parameters(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Parameters:
        """Count matrices and norms."""
        layer = self._attention(shape) + 3 * shape.width * self.d_ff(shape) + self._norms(shape)
        return Parameters(
            embedding=vocabulary * shape.width,
            position=0,
            non_embedding=shape.depth * layer + shape.width,
            head=vocabulary * shape.width if recipe.embeddings == "untied" else 0,
        )

    def flops(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Flops:
        """Count the FLOPs of one token as DeepSpeed's profiler: SiLU, but no fused norms, rotations or products."""
        depth, width, inner = shape.depth, shape.width, self.d_ff(shape)
        return Flops(
            matrices=2 * depth * (self._attention(shape) + 3 * width * inner),
            attention=4 * depth * recipe.context * shape.heads * shape.head_width,
            head=2 * vocabulary * width,
            norms=depth * inner,
        )

    def rank_parameters(self, shape: Shape, recipe: Recipe, vocabulary: int, layout: Layout) -> int:
        """Count the parameters of the largest rank: its share of the matrices, and of the head with `shard_vocabulary`.

        The inner width may be no multiple of the degree. An untied embedding is whole on each rank.
        """
        degree, width = layout.tensor_parallel, shape.width
        symbols = math.ceil(vocabulary / degree) if layout.shard_vocabulary else vocabulary
        outside = symbols + (vocabulary if recipe.embeddings == "untied" else 0)
        gated = 3 * width * math.ceil(self.d_ff(shape) / degree)
        layer = self._attention(shape) // degree + gated + self._norms(shape)
        return outside * width + shape.depth * layer + width

    def layer_activations(self, shape: Shape, recipe: Recipe, layout: Layout) -> int:
        """Count the bytes per token that backward needs of a layer on a rank.

        Replicated: the fp32 inputs of two norms, their fp32 normed values (a fused norm on a GPU keeps none, so that
        this is about 10 % too much there), and their outputs. Shared: rotated queries and keys, values and the
        attention's output, the same again with norms of queries and keys, and of the gated network the gate, the
        activated gate, the other factor and the product.
        """
        value, degree = VALUE_BYTES[recipe.precision], layout.tensor_parallel
        heads = (shape.heads + shape.key_value_heads) * shape.head_width
        shared = heads * (4 if self.head_norms else 2) + 4 * self.d_ff(shape)
        norms = 2 if shape.has_feed_forward else 1
        return shape.width * norms * (2 * 4 + value) + value * shared // degree

    def gradients_inside(self, shape: Shape, layout: Layout) -> int:
        """Count those of the gated network's two factors and of their product; without it, those of the heads."""
        if not shape.has_feed_forward:
            heads = shape.heads + 2 * shape.key_value_heads
            return heads * shape.head_width // layout.tensor_parallel
        return 3 * math.ceil(self.d_ff(shape) / layout.tensor_parallel)

    def role(self, name: str) -> Role:
        """Return the role of a parameter of HuggingFace's class."""
        layer = int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else None
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return Role("head_norm", False, layer)
        if name.endswith("norm.weight"):
            return Role("final_norm" if layer is None else "norm", False, layer)
        if layer is None:
            return Role("embedding", True)
        is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
        return Role("branch_output" if is_output else "hidden", True, layer)

    def build(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Any:
        """Build HuggingFace's class with our loss."""
        from trainables.model.llama import build_llama
        from trainables.model.parametrisation import attention_ratio

        config = self._config(shape, recipe, vocabulary)
        return build_llama(self.huggingface()[1], config, attention_ratio(shape, recipe))

    def _config(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Any:
        from trainables.model.llama import config_values

        return self.huggingface()[0](**config_values(shape, recipe, vocabulary, self.d_ff(shape)))

    def parts(self, model: Any, recipe: Recipe) -> Parts:
        """Return the model in parts."""
        from trainables.model.llama import LlamaParts

        return LlamaParts(model)

    def exported(
        self, state: Mapping[str, "torch.Tensor"], shape: Shape, recipe: Recipe, vocabulary: int
    ) -> tuple[Any, dict[str, "torch.Tensor"]]:
        """Return the configuration, and the weights with the attention ratio folded into the queries."""
        from trainables.model.parametrisation import attention_ratio
        from trainables.model.whole import whole_weights

        ratio = attention_ratio(shape, recipe)
        folded = {
            name: value * ratio if ratio != 1 and name.endswith(self.query_scale) else value
            for name, value in state.items()
        }
        config, model_class = self._config(shape, recipe, vocabulary), self.huggingface()[1]
        config.architectures = [model_class.__name__]
        absent = () if shape.has_feed_forward else (".post_attention_layernorm.", ".mlp.")
        return config, whole_weights(folded, model_class, config, absent)
