"""The shape of a model from its HuggingFace `config.json`, by the key names of common families.

The file is read as plain JSON, without a model library, and nothing in it is executed. The exact number of parameters
in the blocks is counted for the families of `analysis.audit.block_parameters`.
"""

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from analysis.audit.block_parameters import BLOCKS, Block, Sizes, count_blocks
from analysis.errors import InputError

#: Key names, the most common first.
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "n_embed", "dim", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_D_FF = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim")
_VOCABULARY = ("vocab_size",)
#: Larger than any size of a model; a larger number is an error in the file.
_BEYOND = 10**9
#: Language part of a multimodal model.
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")

# fmt: off
_ENCODERS = {
    "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "megatron-bert",
    "modernbert", "mpnet", "nomic_bert", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl",
}
# fmt: on
#: Families whose depth and width have another meaning than in the law.
_NOT_STACKS = {
    "albert": "shares one block among its layers, so N is not 12·L·d²",
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm"),
        "has no self-attention in all or most of its layers, and the law is one of self-attention",
    ),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Sizes):
    """The shape of a model.

    Attributes:
        name: of the model, or of its file.
        gated: whether the feed-forward part has three matrices (such as SwiGLU); None if unknown.
        vocabulary: number of tokens.
        embedding_width: width of the token table; differs from `width` if the model projects it.
        tied: whether the token table is also the output layer.
        exact_params: parameters of the blocks and the norm after them, with biases and norms, without embeddings
            and output layer; None with `exact_reason`.
        notes: sentences for the reader.
    """

    name: str
    gated: bool | None = None
    vocabulary: int | None = None
    embedding_width: int | None = None
    tied: bool | None = None
    exact_params: int | None = None
    exact_reason: str | None = None
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
            "one, or the shape itself: --depth L --width D."
        ) from error
    if not isinstance(document, dict):
        raise InputError(
            f"{file} holds no JSON object, so it is no model config. Give --depth L --width D instead."
        )
    return model_config(document, str(path))


def model_config(document: Mapping[str, Any], name: str) -> ModelConfig:
    """Read the shape from a config.

    Args:
        document: the parsed `config.json`.
        name: source of the config, for messages; `_name_or_path` is the model it was made from and is not used.

    Raises:
        InputError: depth or width is missing or no positive whole number; or the law does not apply, because the model
            has two stacks (encoder and decoder), experts, shared blocks or no self-attention.
    """
    part, values = _language_part(document)
    family = _text(values.get("model_type")) or (_text(document.get("model_type")) if part is None else "")
    _refuse_other_kinds(document, values, family, name)
    width = _required(values, WIDTH_KEYS, "width", name)
    heads = _whole(values, _HEADS)
    block = BLOCKS.get(family)
    found = ModelConfig(
        name=name,
        family=family,
        depth=_required(values, DEPTH_KEYS, "depth", name),
        width=width,
        heads=heads,
        kv_heads=_kv_heads(values, family, heads),
        head_dim=_whole(values, ("head_dim",)) or (width // heads if heads and width % heads == 0 else None),
        d_ff=_d_ff(values, width, block),
        gated=block.gated if block else None,
        vocabulary=_whole(values, _VOCABULARY) or _whole(document, _VOCABULARY),
        embedding_width=_whole(values, ("word_embed_proj_dim", "embedding_size")) or width,
        tied=_tied(document, values, block),
    )
    count, reason = count_blocks(found, values)
    notes = tuple(_notes(values, part, found))
    return replace(found, exact_params=count, exact_reason=reason, notes=notes)


def _language_part(document: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return the name and content of the nested part that has the shape, or None and the document itself."""
    if not any(key in document for key in DEPTH_KEYS):
        for key in _LANGUAGE_PARTS:
            if isinstance(nested := document.get(key), Mapping):
                return key, nested
    return None, document


def _refuse_other_kinds(
    document: Mapping[str, Any], values: Mapping[str, Any], family: str, name: str
) -> None:
    whole = _text(document.get("model_type")) or family or "unknown kind"
    way_out = "To compare one shape anyway, as if dense and decoder-only, give --depth L --width D"
    stacks = (
        True in (document.get("is_encoder_decoder"), values.get("is_encoder_decoder")),
        {"encoder_layers", "decoder_layers"} <= set(values),
        "num_decoder_layers" in values,
        isinstance(document.get("encoder"), Mapping) and isinstance(document.get("decoder"), Mapping),
    )
    if any(stacks):
        raise InputError(
            f"{name} is an encoder-decoder ({whole}): it has two stacks, and the law was measured on one decoder "
            f"stack. {way_out} (of its decoder)."
        )
    if reason := _NOT_STACKS.get(family):
        raise InputError(f"{name} ({family}) {reason}. {way_out}.")
    places: list[Mapping[str, Any]] = [values]
    places += [v for key in ("ffn_config", "moe_config") if isinstance(v := values.get(key), Mapping)]
    for place in places:
        for key in _EXPERTS:
            experts = place.get(key)
            if isinstance(experts, list):
                experts = max((item for item in experts if isinstance(item, int)), default=0)
            if isinstance(experts, int) and experts > 1:
                raise InputError(
                    f"{name} is a mixture of experts ({whole}, {key} = {experts}): the law was measured on dense "
                    "models, and it is unknown whether all parameters or the active ones count as N. "
                    f"{way_out}."
                )


def _required(values: Mapping[str, Any], keys: tuple[str, ...], what: str, name: str) -> int:
    for key in keys:
        value = values.get(key)
        if value is None:
            continue
        if not _is_size(value):
            raise InputError(
                f"{name}: {key} is {reprlib.repr(value)}; the {what} must be a positive whole number. "
                "Correct the file, or give --depth L --width D."
            )
        return value
    raise InputError(
        f"{name} has no {what}: none of {', '.join(keys)} is in the file (nor in a part named "
        f"{', '.join(_LANGUAGE_PARTS)}). Give the shape itself: --depth L --width D."
    )


def _whole(values: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The first positive whole number among the keys; a list (one value per layer) is not one number."""
    return next((value for key in keys if _is_size(value := values.get(key))), None)


def _is_size(value: object) -> TypeGuard[int]:
    """Whether `value` is a positive whole number that the size of a model can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _BEYOND


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _kv_heads(values: Mapping[str, Any], family: str, heads: int | None) -> int | None:
    if family == "falcon" and not values.get("new_decoder_architecture"):
        # Falcon ignores its number of key-value heads unless it is of the new architecture.
        return 1 if values.get("multi_query", True) else heads
    nested = values.get("attn_config")
    # A list (one value per layer) or nonsense is neither one number nor the default.
    if any(values.get(key) is not None and not _is_size(values[key]) for key in _KV_HEADS):
        return None
    inner = _whole(nested, ("kv_n_heads",)) if isinstance(nested, Mapping) else None
    return _whole(values, _KV_HEADS) or inner or heads


def _d_ff(values: Mapping[str, Any], width: int, block: Block | None) -> int | None:
    if (given := _whole(values, _D_FF)) is not None:
        return given
    if any(values.get(key) is not None for key in _D_FF):
        return None
    # MPT. Transformers' own class ignores the file and takes 4.
    if (ratio := values.get("expansion_ratio")) is not None:
        # NaN and infinities, which Python reads from JSON, fail these comparisons.
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < _BEYOND:
            return None
        inner = int(ratio * width)
        return inner if _is_size(inner) else None
    return block.d_ff_over_width * width if block and block.d_ff_over_width else None


def _tied(document: Mapping[str, Any], values: Mapping[str, Any], block: Block | None) -> bool | None:
    for place in (document, values):
        if isinstance(tied := place.get("tie_word_embeddings"), bool):
            return tied
    return block.tied if block else None


def _notes(values: Mapping[str, Any], part: str | None, found: ModelConfig) -> list[str]:
    notes = []
    if part is not None:
        notes.append(f"A model of several parts; its language part ({part}) is audited.")
    if found.family in _ENCODERS and values.get("is_decoder") is not True:
        notes.append(
            "An encoder: the law was measured on decoders, so this is a comparison, not a prediction."
        )
    if found.vocabulary is None:
        notes.append("The file has no vocabulary; the law was measured on text.")
    kinds = values.get("layer_types") or values.get("layers_block_type")
    if isinstance(kinds, list):
        other = sorted({str(kind) for kind in kinds if "attention" not in str(kind) or "linear" in str(kind)})
        if other:
            notes.append(
                f"Some layers are not softmax attention ({', '.join(other)}); the law has no such layers."
            )
    return notes
