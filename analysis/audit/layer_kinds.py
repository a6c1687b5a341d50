"""Whether every layer of a model is softmax attention with a feed-forward part, as all laws assume, by its config.

The kinds of single layers in the config count most, then the name of its family, then keys that only other kinds of
layers have, so that a family with a new name is recognised too.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_Values = Mapping[str, Any]

#: Lists with one word per layer, or a pattern of words that repeats.
_WORD_LISTS = (
    "layer_types", "layers_block_type", "layers_block_types", "layer_block_types", "block_types", "block_type",
    "_block_types", "layer_type", "mixer_types", "attention_layers", "attn_type_list", "temporal_block_types",
)  # fmt: skip
#: One letter per layer: M is Mamba, - a feed-forward part, E experts, * attention.
_LETTERS = ("hybrid_override_pattern", "hybrid_layer_pattern", "layer_pattern")
_LETTER_WORDS = {"M": "mamba", "-": "mlp", "E": "moe", "*": "attention"}
#: Words that name no softmax attention; of the others those that name one. The first are tried first.
_OTHER_WORD = re.compile(
    r"linear|lightning|mamba|ssm|^s[46]|recur|rwkv|gla$|delta|retent|retnet|lstm|hyena|conv|hybrid|fourier|gru|lru|"
    r"identity|no_?op|skip|^mlp|^ffn|feed_?forward|^moe|^none$|cross|kda|gdn|hgrn|ttt|lsh"
)
#: Words of ours for a layer that a config describes by its place or letter only.
_ANOTHER, _HALF = "another kind", "attention without a feed-forward part"
_ATTENTION_WORD = re.compile(r"attention|attn|^(full|global|local|sliding|swa|window|chunked)")
#: Keys that list the layers with attention, and those that give their distance.
_INDICES = re.compile(
    r"^(full_|softmax_|self_)?(attn|attention)_(layers?_)?(idxs?|indexes|indices|ids|layers|at)$|"
    r"^(full|softmax)_(attn|attention)_layers?$|^(attn|attention)_layers$"
)
_PERIOD = re.compile(
    r"^(full_|softmax_|self_)?(attn|attention)_(layer_)?(period|interval|every|every_n|every_n_layers)$"
)

_RECURRENT = re.compile(
    r"^(rwkv_?\w*|mamba_?\d*|falcon_?mamba|codestral_?mamba|retnet|gla|abc|gsa|hgrn\d*|lightnet|linear_?attn|"
    r"linear_?attention|(gated_?)?delta_?(net|product|former)|mesa_?net|comba|rodimus|xlstm|mlstm|s4|h3|hyena|"
    r"striped_?hyena|ttt|mega|fnet|performer|linformer|nystromformer|yoso|mra|reformer|poolformer)$"
)
_HYBRID = re.compile(
    r"^(jamba|bamba|zamba\d*|falcon_?h1|nemotron_?h|granite_?moe_?hybrid|lfm\d+|qwen\d*_?next|recurrent_?gemma|griffin|"
    r"hymba|samba|plamo2|phi4_?flash|kimi_?linear|olmo_?hybrid|minimax(_text_01|_m1)?|based|dragon|evo\d*)(_text)?$"
)
#: Hybrids with attention and a recurrence side by side in each layer: a list of words does not show it.
_PARALLEL = re.compile(r"^(falcon_?h1|hymba)")
_LOOPED = re.compile(r"^(albert|huginn\w*|raven|ouro|universal_?transformer|moeut)$")

#: Keys that only recurrences, linear attention and convolutions have.
_RECURRENT_KEY = re.compile(
    r"^(n_|num_|use_)?(mamba|ssm|rwkv|lru|wkv|retention|[xms]lstm|hyena|gla_|ttt_|(gated_)?delta_?net|hgrn|short_conv|"
    r"linear_(attn|attention|key|value|num|conv|head|layers))|"
    r"^(conv_L_cache|d_state|state_size|dt_rank|time_step_rank|time_mix\w*|head_size_a|rescale_every|conv1d_width|"
    r"(decay|gate|a|v)_low_rank_dim|expand_[kv]|feature_map|(decoder_)?retention_heads|attention_free|recurrent_\w+)$"
)
#: Keys of blocks that run more than once or share their weights.
_LOOP_KEY = re.compile(
    r"(^|_)(loops?|recurrences?|recursions?|num_recursion|ut_steps|layer_reuse)(_(count|num|times|steps|depth))?$|"
    r"recurrent_(depth|steps|iterations|block)|(^|_)loops?_|(num|n|layers?|blocks?)_repeats?$|repeat_(layers|blocks)$|"
    r"_cycles$|^((cross_)?layers?|weight|parameter|block)s?_sharing$|^shared?_(all_)?(layers|blocks|weights)$"
)
#: Keys of the number of blocks that have weights of their own.
_OWN_BLOCKS = re.compile(r"^num_hidden_groups$|(^|_)unique_(layers|blocks)$")
#: Keys of layers that are left out.
_SKIP_KEY = re.compile(
    r"^((layers?|blocks?|attn|attention|mlp|ffn)s?_(to_)?(skip(ped)?|no_?ops?|drop(ped)?|pruned|identity)|"
    r"(skip(ped)?|no_?op|drop(ped)?|pruned?|identity)_(layers?|blocks?|attn|attention|mlp|ffn)s?(_list|_ids?|_idxs?)?)$"
)
#: Keys that may mean that layers differ or are used more than once, and what has another meaning.
_DOUBTFUL_KEY = re.compile(
    r"_pattern$|layers?_(idxs?|ids|index|indexes|indices)|sharing|(^|_)loop|recur|(block|layer)s?_types?$|no_?op"
)
_HARMLESS_KEY = re.compile(
    r"sliding|window|swa|rope|local|sparsity|embed|token|mlp|vision|audio|image|hidden"
)


def refusal(values: _Values, family: str, depth: int | None) -> str | None:
    """Why the laws do not describe the model, as the end of a sentence that begins with its name; None if they do."""
    name = family.lower().replace("-", "_")
    groups = values.get("num_hidden_groups")
    for key, value in values.items():
        if _OWN_BLOCKS.search(key) and type(value) is int and depth is not None and 0 < value < depth:
            return _looped(f"{key} = {value}")
    if _LOOPED.match(name) and not _is_count(groups):
        return _looped(f"model_type = {family}")
    for key, value in values.items():
        if _LOOP_KEY.search(key) and _more_than_once(value):
            return _looped(f"{key} = {_short(value)}")
    if skipped := _left_out(values, depth):
        return f"has layers without attention or without a feed-forward part ({skipped}), {_ALL_LAYERS}"
    kinds = layer_words(values, depth)
    if kinds is not None:
        key, words = kinds
        softmax = sum(is_attention(word) is not False for word in words)
        if softmax < len(words):
            counts = ", ".join(f"{count} × {word}" for word, count in Counter(words).items())
            return (
                f"has softmax attention in {softmax} of {len(words)} layers ({key}: {counts}), {_ALL_LAYERS}"
            )
        if _PARALLEL.match(name) is None and _RECURRENT.match(name) is None:
            return None
    if _RECURRENT.match(name):
        return f"has no softmax attention in all or most of its layers (model_type = {family}), {_ALL_LAYERS}"
    if _HYBRID.match(name):
        return f"mixes softmax attention with another kind of layer (model_type = {family}), {_ALL_LAYERS}"
    for key, value in values.items():
        # Mamba's own files have an empty `ssm_cfg`.
        unset = value in (None, False, 0, "", [], {}) and (key != "ssm_cfg" or value is None)
        if _RECURRENT_KEY.search(key) and not _LOOP_KEY.search(key) and not unset:
            what = "has layers with a recurrence, a convolution or linear attention"
            return f"{what} ({key} = {_short(value)}), {_ALL_LAYERS}"
    return None


_ALL_LAYERS = (
    "and the laws were measured on models whose every layer is softmax attention and a feed-forward part"
)


def _looped(setting: str) -> str:
    return f"uses blocks more than once ({setting}), so N is not 12·L·d², and the laws were measured without that"


def doubts(values: _Values, depth: int | None) -> list[str]:
    """Notes on keys that may mean that layers differ or are shared, and on words that are not known."""
    notes = []
    kinds = layer_words(values, depth)
    if kinds is not None:
        unknown = sorted({word for word in kinds[1] if is_attention(word) is None})
        if unknown:
            notes.append(
                f"{kinds[0]} has kinds of layers that are not known here ({', '.join(unknown)}); the laws hold only if "
                "they are softmax attention with a feed-forward part."
            )
    for key, value in values.items():
        usual = value is not True and value in (None, False, 0, 1, "", [], {})
        if usual or key in _WORD_LISTS or (kinds is not None and key == kinds[0]):
            continue
        if _DOUBTFUL_KEY.search(key) and not _HARMLESS_KEY.search(key):
            notes.append(
                f"{key} = {_short(value)} may mean that layers differ, are shared or run more than once; the laws hold "
                "only if each layer is softmax attention with a feed-forward part of its own."
            )
    return notes


def layer_words(values: _Values, depth: int | None) -> tuple[str, list[str]] | None:
    """The key by which a config describes its layers, and one word per layer; None if it has no such key."""
    for key in _WORD_LISTS:
        words = _words(values.get(key))
        if words:
            return key, [words[layer % len(words)] for layer in range(depth or len(words))]
    for key in _LETTERS:
        letters = values.get(key)
        if isinstance(letters, str) and letters and set(letters) <= {*_LETTER_WORDS, "|"}:
            words = [_LETTER_WORDS[letter] for letter in letters if letter != "|"]
            # A layer of attention without a feed-forward part is only half a layer of the law.
            return key, words if set(words) != {"attention"} else [_HALF] * len(words)
    return None if depth is None else _words_by_place(values, depth)


def is_attention(word: str) -> bool | None:
    """Whether a word names softmax attention; None if it is not known."""
    text = word.lower()
    if _OTHER_WORD.search(text) or word in (_ANOTHER, _HALF):
        return False
    return True if _ATTENTION_WORD.search(text) else None


def _words(value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        return []
    if all(isinstance(word, str) for word in value):
        return value
    if all(type(word) is int and word in (0, 1) for word in value):
        return ["attention" if word else "linear_attention" for word in value]
    return []


def _words_by_place(values: _Values, depth: int) -> tuple[str, list[str]] | None:
    """One word per layer where the config gives the places of attention only."""
    attn = values.get("attn")
    inner = attn.get("layers") if isinstance(attn, Mapping) else None
    places = [(key, value) for key, value in values.items() if _INDICES.match(key)] + [("attn.layers", inner)]
    crossed = values.get("cross_attention_layers")
    if isinstance(crossed, list) and crossed and all(type(place) is int for place in crossed):
        words = ["cross_attention" if layer in crossed else "self_attention" for layer in range(depth)]
        return "cross_attention_layers", words
    other = "sliding_attention" if _sliding(values) else _ANOTHER
    for key, value in places:
        if (
            isinstance(value, list)
            and all(type(place) is int for place in value)
            and (value or key == "attn.layers")
        ):
            flags = len(value) == depth and set(value) <= {0, 1} and depth > 2
            inside = {layer for layer, flag in enumerate(value) if flag} if flags else set(value)
            return key, ["attention" if layer in inside else other for layer in range(depth)]
    for key, value in values.items():
        if _PERIOD.match(key) and _is_count(value):
            offset = values.get(key.rsplit("_", 1)[0] + "_offset", value - 1)
            return key, ["attention" if layer % value == offset else other for layer in range(depth)]
    return None


def _sliding(values: _Values) -> bool:
    """Whether layers without full attention have that of a window: no key of another kind is there."""
    recurrent = any(_RECURRENT_KEY.search(key) for key, value in values.items() if value)
    return bool(values.get("sliding_window")) and not recurrent


def _left_out(values: _Values, depth: int | None) -> str | None:
    """The key and number of layers that lack attention or the feed-forward part; None if there are none."""
    blocks = values.get("block_configs")
    if isinstance(blocks, list):
        count = sum(_lacks_a_part(block) for block in blocks)
        if count:
            return f"block_configs: {count} of {len(blocks)}"
    for key, value in values.items():
        if _SKIP_KEY.match(key):
            places = list(value) if isinstance(value, list | Mapping) else []
            if any(place is not False for place in places) and (places or value is True):
                return f"{key} = {_short(value)}"
            if value is True or _is_count(value):
                return f"{key} = {_short(value)}"
    return None


def _lacks_a_part(block: object) -> bool:
    parts = [block.get(name) for name in ("attention", "ffn")] if isinstance(block, Mapping) else []
    return any(
        isinstance(part, Mapping) and any(part.get(key) is True for key in ("no_op", "replace_with_linear"))
        for part in parts
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _more_than_once(value: object) -> bool:
    if isinstance(value, Mapping):
        return value.get("enable") is not False and any(map(_more_than_once, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0
    return value is True or (isinstance(value, int | float) and value > 1)


def _short(value: object) -> str:
    return reprlib.repr(value)
