"""The shape of a model from its HuggingFace `config.json`, by the key names of common families.

The file is read as plain JSON, without a model library (Transformers' AutoConfig takes more than ten seconds to
import), and nothing in it is executed.
"""

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.audit.layer_kinds import doubts, refusal
from core.command_line import call, options
from core.errors import InputError

#: Key names, the most common first.
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "n_embed", "dim", "model_dim")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
_D_FF = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim")
#: Larger than any size of a model; a larger number is an error in the file.
_BEYOND = 10**9
#: Language part of a multimodal model.
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config")
_EXPERTS = (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "num_moe_experts",
    "n_experts", "moe_num_routed_experts", "num_total_experts",
)  # fmt: skip

#: Depth of the first of two stacks; a model of one stack has none of them.
_ENCODER_DEPTHS = (
    "encoder_layers", "num_encoder_layers", "n_encoder_layers", "encoder_num_layers", "encoder_num_hidden_layers",
)  # fmt: skip
#: Keys of models that read images, and sound.
_IMAGES = ("image_size", "patch_size", "num_channels")
_SOUND = ("num_mel_bins", "feat_extract_norm", "num_feat_extract_layers", "sampling_rate", "num_codebooks")

# fmt: off
#: Families with three feed-forward matrices (such as SwiGLU), and with two. The blocks of others are not counted.
_GATED = {
    "cohere", "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo", "olmo2", "phi3", "qwen2",
    "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_vl_text", "smollm3", "stablelm",
}
_NOT_GATED = {
    "bert", "bloom", "codegen", "falcon", "gpt2", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi", "roberta",
    "starcoder2",
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model.

    Attributes:
        name: of the model, or of its file.
        family: `model_type` of the (language) model, or "".
        depth, width: L and d.
        vocabulary: number of tokens.
        embedding_width: width of the token table; differs from `width` if the model projects it.
        block_params: parameters of the blocks without biases and norms, which are about 0.1 %; None if not known.
        notes: sentences for the reader.
    """

    name: str
    depth: int
    width: int
    family: str = ""
    vocabulary: int | None = None
    embedding_width: int | None = None
    block_params: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def law_params(self) -> int:
        """N as the law counts it, 12·L·d²."""
        return 12 * self.depth * self.width**2


def read_model_config(path: Path) -> ModelConfig:
    """Read a `config.json` or a folder that holds one.

    Raises:
        InputError: the file cannot be read or is no JSON object; and see `model_config`.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON or too many digits
        raise InputError(
            f"The model config {file} cannot be read: {error}. Give a HuggingFace config.json, a folder that holds "
            f"one, or the shape itself: {options(depth='L', width='D')}."
        ) from error
    if not isinstance(document, dict):
        raise InputError(f"{file} holds no JSON object. Give {options(depth='L', width='D')} instead.")
    return model_config(document, str(path))


def model_config(document: Mapping[str, Any], name: str) -> ModelConfig:
    """Read the shape from a config.

    Args:
        document: the parsed `config.json`.
        name: source of the config, for messages; `_name_or_path` is the model it was made from and is not used.

    Raises:
        InputError: depth or width is missing or no positive whole number; or no law applies, because the model has two
            stacks (encoder and decoder), experts, shared blocks, or layers that are not softmax attention with a
            feed-forward part.
    """
    nested = [key for key in _LANGUAGE_PARTS if isinstance(document.get(key), Mapping)]
    part = nested[0] if nested and not any(key in document for key in DEPTH_KEYS) else None
    values = document[part] if part else document
    family = _text(values.get("model_type")) or (_text(document.get("model_type")) if part is None else "")
    _refuse_other_kinds(document, values, family, name)
    width = _required(values, WIDTH_KEYS, "width", name)
    depth = _required(values, DEPTH_KEYS, "depth", name)
    vocabulary = _size(values, "vocab_size") or _size(document, "vocab_size")
    return ModelConfig(
        name=name,
        family=family,
        depth=depth,
        width=width,
        vocabulary=vocabulary,
        embedding_width=_size(values, "word_embed_proj_dim", "embedding_size") or width,
        block_params=_block_params(values, family, depth, width),
        notes=tuple(_notes(values, part, family, vocabulary, depth)),
    )


def _refuse_other_kinds(
    document: Mapping[str, Any], values: Mapping[str, Any], family: str, name: str
) -> None:
    kind = _text(document.get("model_type")) or family or "unknown kind"
    decoder = _size(values, "decoder_layers", "num_decoder_layers")
    depth, width = decoder or _size(values, *DEPTH_KEYS), _size(values, *WIDTH_KEYS)
    again = call("audit", depth=depth or "L", width=width or "D")
    way_out = f"To compare one shape anyway, as if dense and decoder-only: {again}"
    if (
        True in (document.get("is_encoder_decoder"), values.get("is_encoder_decoder"))
        or any(_size(values, key) for key in _ENCODER_DEPTHS)
        or "num_decoder_layers" in values
        or (_mapping(document, "encoder") and _mapping(document, "decoder"))
    ):
        raise InputError(
            f"{name} is an encoder-decoder ({kind}): it has two stacks, and the laws were measured on one decoder "
            f"stack. {way_out} (the shape of its decoder)."
        )
    for place in (values, _mapping(values, "ffn_config"), _mapping(values, "moe_config")):
        for key in _EXPERTS:
            numbers = value if isinstance(value := place.get(key), list) else [value]
            if any(isinstance(experts, int) and experts > 1 for experts in numbers):
                raise InputError(
                    f"{name} is a mixture of experts ({kind}, {key} = {value}): the laws were measured on dense "
                    f"models, and it is unknown whether all parameters or the active ones count as N. {way_out}."
                )
    if reason := refusal(values, family, depth):
        raise InputError(f"{name} ({kind}) {reason}. {way_out}.")


def _required(values: Mapping[str, Any], keys: tuple[str, ...], what: str, name: str) -> int:
    key = next((key for key in keys if values.get(key) is not None), None)
    if key is None:
        raise InputError(
            f"{name} has no {what}: none of {', '.join(keys)} is in the file (nor in a part named "
            f"{', '.join(_LANGUAGE_PARTS)}). Give the shape itself: {options(depth='L', width='D')}."
        )
    if size := _size(values, key):
        return size
    raise InputError(
        f"{name}: {key} is {reprlib.repr(values[key])}; the {what} must be a positive whole number. "
        f"Correct the file, or give {options(depth='L', width='D')}."
    )


def _block_params(values: Mapping[str, Any], family: str, depth: int, width: int) -> int | None:
    """L·(2·d·q + 2·d·kv + (2 or 3)·d·d_ff) with q = heads·head size; None unless each is one number for all layers."""
    heads = _size(values, "num_attention_heads", "n_head", "n_heads", "num_heads")
    # MPT has a ratio.
    ratio = _size(values, "expansion_ratio", default=4)
    d_ff = _size(values, *_D_FF, default=ratio * width if ratio and family in _NOT_GATED else None)
    kv_heads = _size({**_mapping(values, "attn_config"), **values}, *_KV_HEADS, default=heads)
    if family == "falcon" and not values.get("new_decoder_architecture"):
        # Falcon ignores its number of key-value heads unless it is of the new architecture.
        kv_heads = 1 if values.get("multi_query", True) else heads
    is_countable = family in _GATED | _NOT_GATED and not values.get("add_cross_attention")
    if not heads or not kv_heads or not d_ff or not is_countable:
        return None
    head_size = _size(values, "head_dim") or width / heads
    matrices = 3 if family in _GATED else 2
    return round(depth * width * (2 * head_size * (heads + kv_heads) + matrices * d_ff))


def _size(values: Mapping[str, Any], *keys: str, default: int | None = None) -> int | None:
    """Return the first value that is not null, or None if the size of a model cannot be it; else the default."""
    value = next((value for key in keys if (value := values.get(key)) is not None), default)
    return value if type(value) is int and 0 < value < _BEYOND else None


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return value if isinstance(value := values.get(key), Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _notes(
    values: Mapping[str, Any], part: str | None, family: str, vocabulary: int | None, depth: int
) -> list[str]:
    notes = []
    if part is not None:
        notes.append(f"A model of several parts; its language part ({part}) is audited.")
    else:
        for keys, what in ((_IMAGES, "images"), (_SOUND, "sound")):
            if media := next((key for key in keys if values.get(key) is not None), None):
                notes.append(
                    f"A model of {what} (it has {media}): the laws were measured on text, so this is only a comparison."
                )
    encoder = "bert" in family or family in ("electra", "ernie", "esm", "mpnet")
    if encoder and "decoder" not in family and values.get("is_decoder") is not True:
        notes.append("An encoder: the laws were measured on decoders, so this is only a comparison.")
    if vocabulary is None:
        notes.append("The file has no vocabulary; the laws were measured on text.")
    return [*notes, *doubts(values, depth)]
