"""GPT-2 (Radford et al. 2019) as HuggingFace's `GPT2LMHeadModel`, with tied embeddings and a fourfold MLP or none."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.family import VALUE_BYTES, Flops, ModelFamily, Parameters, Parts, Role, register

if TYPE_CHECKING:
    import torch

_STACKED = {"shape": [3, -1], "partition_dim": 0}
#: How tensor-parallel ranks share the matrices (Shoeybi et al. 2019, arXiv 1909.08053, section 3); query, key and value
#: are sharded separately. DeepSpeed's own rules do not cover GPT-2 (its issue 3711).
PARTITION_CONFIG: Mapping[str, Any] = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*\.attn\.c_attn\.weight$"], "partition_type": "column"} | _STACKED,
        {"patterns": [r".*\.attn\.c_proj\.weight$"], "partition_type": "row"},
        {"patterns": [r".*\.mlp\.c_fc\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\.mlp\.c_proj\.weight$"], "partition_type": "row"},
    ],
}


@register
class GPT2Family(ModelFamily):
    """The default family."""

    name = "gpt2"
    title = "GPT-2"
    options = frozenset({"d_ff"})
    residuals = ModelFamily.residuals | {"post", "admin"}
    diagnostics = frozenset({"rank", "layer_drop", "induction", "attention"})
    partition_config = PARTITION_CONFIG

    def check_shape(self, shape: Shape, recipe: Recipe) -> None:
        """Refuse feed-forward networks of another width than 4·d or 0, and none where a norm follows each sum."""
        super().check_shape(shape, recipe)
        if shape.has_feed_forward and shape.d_ff is not None:
            raise ValueError(
                f"`network: {self.name}` has feed-forward networks of four times the width, or none; set "
                "`frontier.d_ff: 0`, take it out, or choose `network: llama`"
            )
        if not shape.has_feed_forward and recipe.residual in ("post", "admin"):
            raise ValueError(
                f"`residual: {recipe.residual}` needs the feed-forward network; take `frontier.d_ff: 0` out, or "
                "choose another `training.residual`"
            )

    def parameters(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Parameters:
        """Count 12·d² weights, 9·d biases and two norms of 2·d per block, a final norm, and ADMIN's stream weights.

        Without feed-forward networks 4·d² weights, 4·d biases and one norm are left.
        """
        depth, width = shape.depth, shape.width
        block = 12 * width**2 + 13 * width if shape.has_feed_forward else 4 * width**2 + 6 * width
        stream_weights = 2 * depth * width if recipe.residual == "admin" else 0
        return Parameters(
            embedding=vocabulary * width,
            position=recipe.context * width,
            non_embedding=depth * block + 2 * width + stream_weights,
        )

    def matrices(self, shape: Shape) -> list[tuple[int, int]]:
        """Return query, key and value as one, the attention's output, and the two of the feed-forward network."""
        width = shape.width
        attention, feed = [(3 * width, width), (width, width)], [(4 * width, width), (width, 4 * width)]
        return attention + feed if shape.has_feed_forward else attention

    def flops(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Flops:
        """Count the FLOPs of one token."""
        depth, width = shape.depth, shape.width
        norms = 2 if shape.has_feed_forward else 1
        return Flops(
            matrices=2 * depth * sum(rows * columns for rows, columns in self.matrices(shape)),
            attention=4 * depth * recipe.context * width,
            head=2 * vocabulary * width,
            norms=5 * norms * depth * width + 5 * width,
        )

    def rank_parameters(self, shape: Shape, recipe: Recipe, vocabulary: int, layout: Layout) -> int:
        """Count the parameters of the largest rank.

        Ranks share the four matrices of each block, the biases of the two before a nonlinearity, and with
        `shard_vocabulary` the embedding.
        """
        degree, width = layout.tensor_parallel, shape.width
        symbols = math.ceil(vocabulary / degree) if layout.shard_vocabulary else vocabulary
        shared, whole = (
            (12 * width**2 + 7 * width, 6 * width)
            if shape.has_feed_forward
            else (4 * width**2 + 3 * width, 3 * width)
        )
        block = shared // degree + whole
        return symbols * width + recipe.context * width + shape.depth * block + 2 * width

    def layer_activations(self, shape: Shape, recipe: Recipe, layout: Layout) -> int:
        """Count 16·d values, of which ranks share 12·d; the inputs of the two norms are fp32.

        Without feed-forward networks the second norm's and 8·d of the shared are missing.

        These are the 34·s·b·h bytes of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) without dropout masks; a
        fused attention kernel stores no scores.
        """
        value, degree = VALUE_BYTES[recipe.precision], layout.tensor_parallel
        norms, shared = (2, 12) if shape.has_feed_forward else (1, 4)
        return shape.width * norms * (4 + value) + shared * value * shape.width // degree

    def gradients_inside(self, shape: Shape, layout: Layout) -> int:
        """Count those inside the feed-forward network; without one, those of queries, keys and values."""
        return (4 if shape.has_feed_forward else 3) * shape.width // layout.tensor_parallel

    def role(self, name: str) -> Role:
        """Return the role of a parameter of `GPT2LMHeadModel`."""
        block = re.search(r"\.h\.(\d+)\.", name)
        if block is None:
            is_norm = ".ln_f." in name
            return Role("final_norm" if is_norm else "embedding", not is_norm)
        layer, is_weight = int(block[1]), name.endswith(".weight")
        if ".ln_" in name:
            return Role("norm", False, layer)
        return Role("branch_output" if ".c_proj." in name else "hidden", is_weight, layer)

    def summed_branches(self, shape: Shape, recipe: Recipe, depth: float) -> float:
        """Return 1 for `post` and `admin`, as in Vaswani et al. 2017, because a norm follows each sum."""
        return 1 if recipe.residual in ("post", "admin") else super().summed_branches(shape, recipe, depth)

    def build(self, shape: Shape, recipe: Recipe, vocabulary: int) -> Any:
        """Build `GPT2LMHeadModel`, with other residual connections where the recipe names them."""
        from trainables.model.gpt2 import build_gpt2

        return build_gpt2(shape, recipe, vocabulary, self.change)

    def change(self, model: Any, recipe: Recipe) -> None:
        """Change HuggingFace's model in place before its weights are drawn."""
        if recipe.residual in ("post", "admin"):
            from trainables.model.residual import to_post_norm

            to_post_norm(model, weighted=recipe.residual == "admin")

    def finish_weights(self, model: Any, recipe: Recipe, seed: int) -> None:
        """Set ADMIN's weights on the stream, which depend on the initial branches."""
        if recipe.residual == "admin":
            from trainables.model.residual import weigh_streams

            weigh_streams(model, seed)

    def finish_sharding(self, model: Any, layout: Layout) -> None:
        """Set the width of each attention's local heads, which DeepSpeed does not."""
        for block in model.transformer.h:
            block.attn.split_size = model.config.n_embd // layout.tensor_parallel

    def parts(self, model: Any, recipe: Recipe) -> Parts:
        """Return the model in parts, by where its norms are."""
        from trainables.model.gpt2 import GPT2Parts
        from trainables.model.residual import PostNormParts

        return PostNormParts(model) if recipe.residual in ("post", "admin") else GPT2Parts(model)

    def is_huggingface(self, recipe: Recipe) -> bool:
        """Whether norms come before the branches, as in HuggingFace's class."""
        return recipe.residual not in ("post", "admin")

    def exported(
        self, state: Mapping[str, "torch.Tensor"], shape: Shape, recipe: Recipe, vocabulary: int
    ) -> tuple[Any, dict[str, "torch.Tensor"]]:
        """Return the configuration, and the weights with `Conv1D` matrices and the attention ratio folded in."""
        from transformers import GPT2LMHeadModel

        from trainables.model.gpt2 import fold_attention, model_config
        from trainables.model.whole import whole_weights

        config = model_config(shape, recipe, vocabulary)
        config.architectures = [GPT2LMHeadModel.__name__]
        absent = () if shape.has_feed_forward else (".ln_2.", ".mlp.")
        return config, whole_weights(fold_attention(state, shape, recipe), GPT2LMHeadModel, config, absent)
