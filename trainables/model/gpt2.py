"""HuggingFace's `GPT2LMHeadModel`: build it, convert its weights, and take it apart for diagnostics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel
from transformers.initialization import no_init_weights
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.pytorch_utils import Conv1D

from trainables.cell import Recipe, Shape
from trainables.model.head import OnePassLoss
from trainables.model.parametrisation import attention_ratio

#: torch's attention under a name for which HuggingFace builds no mask. For its own name `sdpa` it looks for packed
#: sequences in every forward pass, which waits for the device; the attention itself is causal without a mask.
ATTENTION = "interplay_sdpa"
AttentionInterface.register(ATTENTION, sdpa_attention_forward)


class GPT2(OnePassLoss, GPT2LMHeadModel):
    """HuggingFace's model with our loss."""


def model_config(shape: Shape, recipe: Recipe, vocabulary: int) -> GPT2Config:
    """Return the configuration of a shape: tied embeddings, fourfold MLP or none, `context` learned positions."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=recipe.context,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.heads,
        # HuggingFace's class does not run an inner width of 0; weights of 0 add nothing.
        n_inner=None if shape.has_feed_forward else 1,
        # GPT-2's gelu_new as one fused kernel, which saves 6-17 % of a step on CPU.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=recipe.dropout,
        embd_pdrop=recipe.dropout,
        attn_pdrop=recipe.dropout,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=ATTENTION,
    )


def build_gpt2(shape: Shape, recipe: Recipe, vocabulary: int, change: Callable[[Any, Recipe], None]) -> Any:
    """Build a model on the CPU in fp32 with weights that are not drawn yet, after `change` of its blocks."""
    # Layers are replaced before they have weights: drawing and copying what is drawn later took 0.4 of 1.1 s at 125M.
    with no_init_weights(), torch.device("meta"):
        model = GPT2(model_config(shape, recipe, vocabulary))
        conv1d_to_linear(model)
        if not shape.has_feed_forward:
            to_attention_alone(model)
    model.to_empty(device="cpu")
    # Transformers looks up the loss by class name and warns, because it has none of this name.
    model.loss_type = "ForCausalLM"
    change(model, recipe)
    model.tie_weights()
    for block in model.transformer.h:
        block.attn.scaling *= attention_ratio(shape, recipe)
    return model


class AttentionBlock(GPT2Block):
    """A GPT-2 block without feed-forward network."""

    def forward(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """Return the stream [B, T, d] after the block; the other arguments are those of `GPT2Attention`."""
        added: torch.Tensor = self.attn(self.ln_1(hidden_states), *arguments, **options)[0]
        return hidden_states + added


def to_attention_alone(model: Any) -> None:
    """Remove the feed-forward networks of a GPT-2 and the norms before them, in place.

    The export fills HuggingFace's network of inner width 1 with zeros, so that it adds nothing.
    """
    for block in model.transformer.h:
        block.__class__ = AttentionBlock
        del block.mlp, block.ln_2


def conv1d_to_linear(model: nn.Module) -> None:
    """Turn each of GPT-2's `Conv1D` layers into the `nn.Linear` that computes the same function, in place.

    DeepSpeed's tensor parallelism and its FLOPs profiler support Linear layers only (DeepSpeed issue 3711).
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                fan_in, fan_out = child.weight.shape
                linear = nn.Linear(fan_in, fan_out, dtype=child.weight.dtype, device=child.weight.device)
                with torch.no_grad():
                    linear.weight.copy_(child.weight.t())
                    linear.bias.copy_(child.bias)
                setattr(parent, name, linear)


def fold_attention(
    state: Mapping[str, torch.Tensor], shape: Shape, recipe: Recipe
) -> dict[str, torch.Tensor]:
    """Return a model's weights with the attention ratio moved into the queries, for GPT-2's scores over sqrt(d_h)."""
    ratio, folded = attention_ratio(shape, recipe), dict(state)
    for name, value in state.items():
        if ratio != 1 and ".c_attn." in name:
            # Query, key and value are stacked.
            queries, others = value.tensor_split([len(value) // 3])
            folded[name] = torch.cat([queries * ratio, others])
    return folded


class GPT2Parts:
    """GPT-2 in parts (`trainables.model.family.Parts`); its fp32 weights are used as they are."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def embedded(self, tokens: torch.Tensor) -> Any:
        """Add the vectors of tokens and positions."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.model.transformer.wte(tokens) + self.model.transformer.wpe(positions)

    def layers(self) -> Any:
        """Return the blocks."""
        return self.model.transformer.h

    def attention_input(self, layer: Any, stream: torch.Tensor) -> Any:
        """Return the normed stream."""
        return layer.ln_1(stream)

    def attention(self, layer: Any, stream: torch.Tensor, *, skip: bool = True) -> Any:
        """Return the stream after the attention."""
        added = layer.attn(self.attention_input(layer, stream))[0]
        return stream + added if skip else added

    def feed(self, layer: Any, stream: torch.Tensor, *, skip: bool = True) -> Any:
        """Return the stream after the feed-forward network, or the stream itself without one."""
        if not hasattr(layer, "mlp"):
            return stream
        added = layer.mlp(layer.ln_2(stream))
        return stream + added if skip else added

    def attention_weights(self, layer: Any, stream: torch.Tensor) -> Any:
        """Compute the causal attention weights, which the fused kernel does not return."""
        module = layer.attn
        batch, length, _ = stream.shape
        projected = module.c_attn(self.attention_input(layer, stream))
        query, key, _ = projected.split(module.split_size, dim=2)
        query, key = (x.view(batch, length, -1, module.head_dim).transpose(1, 2) for x in (query, key))
        scores = (query @ key.transpose(2, 3)) * module.scaling
        is_later = torch.ones(length, length, dtype=torch.bool, device=stream.device).triu(1)
        return scores.masked_fill(is_later, float("-inf")).softmax(3)

    def logits(self, stream: torch.Tensor) -> Any:
        """Apply the final norm and the head."""
        return self.model.lm_head(self.model.transformer.ln_f(stream))
