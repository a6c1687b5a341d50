"""HuggingFace's Llama and its relatives: build them, and take them apart for diagnostics."""

import functools
from typing import Any

import torch
from torch import nn
from transformers.initialization import no_init_weights
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from trainables.cell import Recipe, Shape
from trainables.model.gpt2 import ATTENTION
from trainables.model.head import OnePassLoss

Tensor = torch.Tensor
#: Added to the mean square in each norm: the value of Llama 2 and of Qwen3.
NORM_EPSILON = 1e-6


@functools.cache
def with_our_loss(huggingface: type) -> Any:
    """Return HuggingFace's class of a model with our loss.

    HuggingFace's plan for tensor parallelism shards an untied head, which gathers its logits and has no loss in chunks;
    without the plan of this class only that of the base model is left, for the layers.
    """
    return type(huggingface.__name__, (OnePassLoss, huggingface), {"_tp_plan": {}})


def config_values(shape: Shape, recipe: Recipe, vocabulary: int, d_ff: int) -> dict[str, Any]:
    """Return the values of HuggingFace's configuration of a shape."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": d_ff,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": recipe.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "rms_norm_eps": NORM_EPSILON,
        "tie_word_embeddings": recipe.embeddings == "tied",
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": ATTENTION,
    }


def build_llama(huggingface: type, config: Any, attention_ratio: float) -> Any:
    """Build a model of HuggingFace's class on the CPU in fp32 with weights that are not drawn yet.

    `attention_ratio` is that of `trainables.model.parametrisation`.
    """
    with no_init_weights():
        model = with_our_loss(huggingface)(config)
    if not config.intermediate_size:
        to_attention_alone(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                # The same function with the same parameter; torch's is one kernel on a GPU, HuggingFace's six.
                setattr(parent, name, nn.RMSNorm(child.weight.shape, child.variance_epsilon))
    model.tie_weights()
    for layer in model.model.layers:
        layer.self_attn.scaling *= attention_ratio
    return model


class AttentionLayer:
    """What a layer without feed-forward network has in place of HuggingFace's."""

    self_attn: Any
    input_layernorm: Any

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the stream [B, T, d] after the layer; the other arguments are those of the attention."""
        added: Tensor = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)[0]
        return hidden_states + added


@functools.cache
def _without_feed_forward(layer_class: type) -> Any:
    return type(f"{layer_class.__name__}WithoutFeedForward", (AttentionLayer, layer_class), {})


def to_attention_alone(model: Any) -> None:
    """Remove the gated networks and the norms before them, in place; those of inner width 0 add 0."""
    for layer in model.model.layers:
        layer_class: type = type(layer)
        layer.__class__ = _without_feed_forward(layer_class)
        del layer.mlp, layer.post_attention_layernorm


class LlamaParts:
    """Llama in parts (`trainables.model.family.Parts`); its fp32 weights are used as they are."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def embedded(self, tokens: Tensor) -> Any:
        """Return the vectors of the tokens; each attention adds the positions."""
        return self.model.model.embed_tokens(tokens)

    def layers(self) -> Any:
        """Return the layers."""
        return self.model.model.layers

    def _rotation(self, stream: Tensor) -> Any:
        """Return the cosines and sines of the positions, [1, T, head width] each."""
        positions = torch.arange(stream.shape[1], device=stream.device)[None]
        return self.model.model.rotary_emb(stream, positions)

    def attention(self, layer: Any, stream: Tensor, *, skip: bool = True) -> Any:
        """Return the stream after the attention."""
        added = layer.self_attn(layer.input_layernorm(stream), self._rotation(stream), None)[0]
        return stream + added if skip else added

    def feed(self, layer: Any, stream: Tensor, *, skip: bool = True) -> Any:
        """Return the stream after the gated network, or the stream itself without one."""
        if not hasattr(layer, "mlp"):
            return stream
        added = layer.mlp(layer.post_attention_layernorm(stream))
        return stream + added if skip else added

    def attention_weights(self, layer: Any, stream: Tensor) -> Any:
        """Compute the causal attention weights, which the fused kernel does not return."""
        module, normed = layer.self_attn, layer.input_layernorm(stream)
        split = (*normed.shape[:-1], -1, module.head_dim)
        query, key = module.q_proj(normed).view(split), module.k_proj(normed).view(split)
        if hasattr(module, "q_norm"):
            query, key = module.q_norm(query), module.k_norm(key)
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *self._rotation(stream))
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query @ key.transpose(2, 3)) * module.scaling
        is_later = torch.ones(scores.shape[2:], dtype=torch.bool, device=stream.device).triu(1)
        return scores.masked_fill(is_later, float("-inf")).softmax(3)

    def logits(self, stream: Tensor) -> Any:
        """Apply the final norm and the head."""
        return self.model.lm_head(self.model.model.norm(stream))
