"""Parameters of the blocks of common model families, from the keys of their `config.json`.

The tests compare the counts with the parameters of the models themselves. There is no exact count for other families,
nor if the file sets a key that adds parameters not counted here. Transformers' AutoConfig is not used: it takes more
than ten seconds to import, and an audit takes less than one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

#: A constant, or a key of the file and its default.
Switch = bool | tuple[str, bool]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a model.

    Attributes:
        family: `model_type` of the (language) model, or "".
        depth, width: L and d.
        heads, kv_heads, head_dim, d_ff: of a block; None if the file does not have one number for all layers.
    """

    family: str
    depth: int
    width: int
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None


@dataclass(frozen=True)
class Block:
    """Parameters of a family's block besides its attention matrices.

    Attributes:
        gated: whether the feed-forward part has three matrices (such as SwiGLU) instead of two.
        qkv_bias, out_bias, mlp_bias, norm_bias: biases.
        norms: scale vectors of width d in a block.
        final_norm: whether a norm follows the last block.
        qk_norm: width of the norms of queries and keys: one head (`head`), all heads (`all`), or none ("").
        tied: default of whether the token table is also the output layer.
        d_ff_over_width: default of the feed-forward width over d, if any.
        unknown: keys that add parameters not counted here.
    """

    gated: bool
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    norm_bias: Switch = False
    norms: int = 2
    final_norm: bool = True
    qk_norm: str = ""
    tied: bool = False
    d_ff_over_width: int | None = None
    unknown: tuple[str, ...] = ()


def _with_bias(bias: Switch, **more: Any) -> Block:
    """A block of two feed-forward matrices, with a bias everywhere or by one key, and LayerNorms with bias."""
    return Block(False, qkv_bias=bias, out_bias=bias, mlp_bias=bias, norm_bias=True, **more)


_KEY = ("attention_bias", False)
_PLAIN = Block(True)
_ATTENTION_BIAS = Block(True, qkv_bias=_KEY, out_bias=_KEY)
_LLAMA = replace(_ATTENTION_BIAS, mlp_bias=("mlp_bias", False))
_QWEN2 = Block(True, qkv_bias=True)
_QWEN3 = replace(_ATTENTION_BIAS, qk_norm="head")
_GPTJ = Block(False, mlp_bias=True, norm_bias=True, norms=1, d_ff_over_width=4)
_BERT = _with_bias(True, final_norm=False, tied=True, unknown=("add_cross_attention",))

BLOCKS: Mapping[str, Block] = {
    "bert": _BERT,
    "bloom": _with_bias(True, tied=True, d_ff_over_width=4),
    "codegen": _GPTJ,
    "cohere": replace(_ATTENTION_BIAS, norms=1, tied=True, unknown=("use_qk_norm",)),
    "falcon": _with_bias(("bias", False), tied=True, d_ff_over_width=4),
    "gemma": replace(_ATTENTION_BIAS, tied=True),
    "gemma2": replace(_ATTENTION_BIAS, norms=4, tied=True),
    "gemma3_text": replace(_ATTENTION_BIAS, norms=4, qk_norm="head", tied=True),
    "gpt2": _with_bias(True, tied=True, d_ff_over_width=4, unknown=("add_cross_attention",)),
    "gpt_neo": Block(False, out_bias=True, mlp_bias=True, norm_bias=True, tied=True, d_ff_over_width=4),
    "gpt_neox": replace(_with_bias(("attention_bias", True)), mlp_bias=True),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "mpt": Block(False, tied=True, d_ff_over_width=4),
    "olmo": replace(_ATTENTION_BIAS, norms=0, final_norm=False),
    "olmo2": replace(_ATTENTION_BIAS, qk_norm="all"),
    "opt": _with_bias(("enable_bias", True), tied=True),
    "phi": _with_bias(True, norms=1, unknown=("qk_layernorm",)),
    "phi3": _PLAIN,
    "qwen2": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "roberta": _BERT,
    "smollm3": replace(_LLAMA, tied=True),
    "stablelm": Block(True, qkv_bias=("use_qkv_bias", False), norm_bias=True, unknown=("qk_layernorm",)),
    "starcoder2": _with_bias(("use_bias", True), tied=True),
}


def count_blocks(sizes: Sizes, values: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Count the parameters of all blocks and of the norm after them, without embeddings and output layer.

    Args:
        sizes: of the model.
        values: the file's keys.

    Returns:
        The count and None, or None and the reason.
    """
    family = sizes.family
    block = BLOCKS.get(family)
    if block is None:
        return None, f"the blocks of {family or 'a model without model_type'} are not known"
    if extra := [key for key in block.unknown if values.get(key)]:
        return None, f"{extra[0]} adds parameters that are not counted"
    heads, kv_heads, head_dim, d_ff = sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.d_ff
    if heads is None or kv_heads is None or head_dim is None or d_ff is None:
        names = ("heads", "key-value heads", "head width", "feed-forward width")
        numbers = (heads, kv_heads, head_dim, d_ff)
        missing = ", ".join(name for name, value in zip(names, numbers, strict=True) if value is None)
        return None, f"the file does not have one number for: {missing}"
    d, query, key = sizes.width, heads * head_dim, kv_heads * head_dim
    attention = 2 * d * query + 2 * d * key
    attention += (query + 2 * key) * _on(block.qkv_bias, values) + d * _on(block.out_bias, values)
    inner = 2 if block.gated else 1
    feed_forward = (inner + 1) * d * d_ff + (inner * d_ff + d) * _on(block.mlp_bias, values)
    norms, final_norm, norm = _norms(family, block, values, d)
    qk_norm = {"": 0, "head": 2 * head_dim, "all": query + key}[block.qk_norm]
    return sizes.depth * (attention + feed_forward + norms * norm + qk_norm) + final_norm * norm, None


def _norms(family: str, block: Block, values: Mapping[str, Any], width: int) -> tuple[int, bool, int]:
    """Return the norms of a block, whether one follows the last block, and the parameters of one."""
    norms, final_norm = block.norms, block.final_norm
    norm = width * (2 if _on(block.norm_bias, values) else 1)
    if family == "falcon":
        if values.get("new_decoder_architecture"):
            norms = 1 if values.get("num_ln_in_parallel_attn") == 1 else 2
        else:
            norms = 1 if values.get("parallel_attn", True) else 2
    elif family == "stablelm":
        norms = 1 if values.get("use_parallel_residual") else 2
    elif family == "opt":
        final_norm = bool(values.get("do_layer_norm_before", True)) and not values.get(
            "_remove_final_layer_norm"
        )
        norm *= bool(values.get("layer_norm_elementwise_affine", True))
    return norms, final_norm, norm


def _on(switch: Switch, values: Mapping[str, Any]) -> bool:
    if isinstance(switch, bool):
        return switch
    key, otherwise = switch
    value = values.get(key)
    return otherwise if value is None else bool(value)
