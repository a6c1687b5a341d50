"""Which models the laws do not describe: by single layers, by the name of the family, and by keys of a new family."""

import pytest
import transformers as hf

from analysis.audit.layer_kinds import doubts, is_attention, layer_words, refusal
from analysis.audit.model_config import model_config
from core.errors import InputError

BASE = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 32000}
ONE_IN_FOUR = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]

#: Layers with softmax attention and all layers, where the config says so.
COUNTED = {
    "Nemotron-H 8B": (
        {"model_type": "nemotron_h", "num_hidden_layers": 52}
        | {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
        (4, 52),
    ),
    "letters, another family": ({"model_type": "novel", "hybrid_layer_pattern": "M*" * 12}, (12, 24)),
    "half layers": ({"model_type": "novel", "hybrid_override_pattern": "*-" * 12}, (12, 24)),
    "attention only": ({"model_type": "novel", "hybrid_override_pattern": "*" * 24}, (0, 24)),
    "LFM2 1.2B": (
        {"model_type": "lfm2", "num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3},
        (6, 16),
    ),
    "indices, another family": ({"model_type": "novel", "attn_layer_indices": [9, 18]}, (2, 24)),
    "flags": ({"model_type": "novel", "attention_layers_idx": None, "attn_layers": [0, 1] * 12}, (12, 24)),
    "Bamba 9B": ({"model_type": "bamba", "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27]}, (3, 32)),
    "Jamba": ({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "num_experts": 1}, (3, 24)),
    "Qwen3-Next, dense": ({"model_type": "qwen3_next", "full_attention_interval": 4}, (6, 24)),
    "Qwen3.5": ({"model_type": "qwen3_5_text", "layer_types": ONE_IN_FOUR * 6}, (6, 24)),
    "RecurrentGemma": (
        {"model_type": "recurrent_gemma", "block_types": ["recurrent", "recurrent", "attention"]},
        (8, 24),
    ),
    "Granite 4 H": ({"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 22 + ["attention"] * 2}, (2, 24)),
    "MiniMax": ({"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 0, 0, 1] * 4}, (4, 24)),
    "Zamba2": ({"model_type": "zamba2", "layers_block_type": ["mamba"] * 5 + ["hybrid"]}, (0, 24)),
    "flash-linear-attention": ({"model_type": "novel", "attn": {"layers": [3, 7], "num_heads": 16}}, (2, 24)),
    "Llama 3.2 Vision": ({"model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 13]}, (21, 24)),
}  # fmt: skip
#: Whole kinds, by family and by a key, with a word of the reason.
KINDS = {
    "softmax attention": [
        *({"model_type": name} for name in ("rwkv", "rwkv5", "rwkv6", "rwkv7", "gla", "retnet", "delta_net", "mamba2")),
        *({"model_type": name} for name in ("gated_deltanet", "xlstm", "falcon_mamba", "hgrn2", "reformer")),
        *({"model_type": name} for name in ("jamba", "hymba", "falcon_h1", "kimi_linear", "samba")),
    ],
    "linear attention": [
        {"model_type": "novel", **keys}
        for keys in (
            {"mamba_d_state": 128, "mamba_expand": 2},
            {"linear_num_key_heads": 16},
            {"linear_attn_config": {"kda_layers": [1, 2]}},
            {"state_size": 16, "time_step_rank": 48},
            {"decay_low_rank_dim": 64, "head_dim": 64},
            {"expand_k": 0.5, "use_short_conv": True},
            {"slstm_at": [1]},
            {"lru_width": 2560},
            {"ssm_cfg": {"layer": "Mamba2"}},
            {"ssm_cfg": {}},
        )
    ],
    "more than once": [
        {"model_type": "albert", "num_hidden_groups": 1},
        {"model_type": "albert"},
        {"model_type": "mobilellm", "layer_sharing": True},
        {"model_type": "huginn_raven", "mean_recurrence": 32},
        *({"model_type": "novel", key: 4} for key in ("mean_recurrence", "num_loops", "recurrent_depth", "loop_count")),
        *({"model_type": "novel", key: 4} for key in ("total_ut_steps", "layer_repeats", "H_cycles")),
        {"model_type": "novel", "recursion": {"enable": True, "num_recursion": 3}},
        {"model_type": "novel", "num_hidden_groups": 4},
        {"model_type": "novel", "num_unique_layers": 12},
        {"model_type": "novel", "share_layers": True},
    ],
    "without attention or without": [
        {
            "model_type": "nemotron-nas",
            "block_configs": [{"attention": {"no_op": layer % 2 == 0}, "ffn": {"no_op": False}} for layer in range(24)],
        },
        {"model_type": "deci", "block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {}}] * 24},
        {"model_type": "novel", "block_configs": [{"attention": {"no_op": False}, "ffn": {"no_op": True}}] * 24},
        {"model_type": "novel", "drop_attn_list": [20, 21]},
        {"model_type": "novel", "block_skip": [False, True] * 12},
        {"model_type": "novel", "skip_layers": [5]},
    ],
    "encoder-decoder": [
        {"model_type": "novel", "encoder_layers": 12},
        {"model_type": "novel", "num_encoder_layers": 6},
    ],
}  # fmt: skip
#: Models of softmax attention and feed-forward parts throughout: they are judged, without a doubt about their layers.
JUDGED = [
    {"model_type": "gemma3_text", "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4},
    {"model_type": "cohere2", "sliding_window_pattern": 4, "sliding_window": 4096},
    {"model_type": "gpt_neo", "attention_layers": ["global", "local"] * 12},
    {
        "model_type": "granitemoehybrid",
        "layer_types": ["attention"] * 24,
        "mamba_d_state": 128,
        "num_local_experts": 0,
    },
    {"model_type": "lfm2", "full_attn_idxs": list(range(24)), "conv_L_cache": 3},
    {"model_type": "novel", "full_attn_idxs": [5, 11, 17, 23], "sliding_window": 1024},
    {"model_type": "mobilellm", "layer_sharing": False},
    {
        "model_type": "nemotron-nas",
        "block_configs": [{"attention": {"no_op": False}, "ffn": {"no_op": False}}] * 24,
    },
    {"model_type": "novel", "num_loops": 1, "recurrent_depth": 1, "skip_layers": [], "num_hidden_groups": 24},
    {"model_type": "gpt2", "no_repeat_ngram_size": 3, "layerdrop": 0.1},
    {"model_type": "bamba", "attn_layer_indices": list(range(24)), "mamba_d_state": 128},
    *(
        kind().to_dict()
        for kind in (hf.Qwen3Config, hf.Gemma3nTextConfig, hf.ModernBertDecoderConfig, hf.Cohere2Config)
    ),
]


@pytest.mark.parametrize("name", COUNTED)
def test_layers_with_another_kind_are_counted(name):
    changes, (softmax, depth) = COUNTED[name]
    with pytest.raises(
        InputError, match=rf"softmax attention in {softmax} of {depth} layers.*audit\(depth={depth}, width="
    ):
        model_config({**BASE, **changes}, "here")


@pytest.mark.parametrize(
    ("word", "changes"), [(word, changes) for word, cases in KINDS.items() for changes in cases], ids=str
)
def test_whole_kinds_are_refused_with_the_key_and_a_command(word, changes):
    with pytest.raises(InputError, match=rf"{word}.*interplay\.audit\(depth=24, width=2048\)") as caught:
        model_config({**BASE, **changes}, "here")
    family, *keys = changes
    assert any(key in str(caught.value) for key in keys) or changes[family] in str(caught.value)


@pytest.mark.parametrize("changes", JUDGED, ids=lambda changes: changes["model_type"])
def test_attention_of_a_window_and_switched_off_keys_are_judged_without_a_note(changes):
    assert not model_config({**BASE, **changes}, "here").notes


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention", "novel_mixer"] * 12),
        ("layers_block_type", ["wavelet"] * 24),
        ("odd_layer_pattern", "AABA"),
        ("memory_layer_idx", [3, 9]),
        ("memory_layer_ids", [3, 9]),
        ("key_sharing", True),
        ("loop_gate", 0.5),
    ],
)
def test_a_key_that_may_be_such_a_thing_is_noted_with_its_value(key, value):
    (note,) = model_config({**BASE, "model_type": "novel", key: value}, "here").notes
    assert key in note
    assert (sorted(set(value))[-1] if isinstance(value, list) and "memory" not in key else str(value)) in note
    for usual in (None, False, [], 0):
        assert not model_config({**BASE, "model_type": "novel", key: usual}, "here").notes


def test_words_of_layers():
    for word in ("full_attention", "sliding_attention", "chunked_attention", "local", "global", "attn"):
        assert is_attention(word) is True
    for word in (
        "linear_attention",
        "lightning_attn",
        "mamba2",
        "conv",
        "recurrent",
        "hybrid",
        "cross_attention",
        "moe",
    ):
        assert is_attention(word) is False
    assert is_attention("novel") is None
    assert layer_words({"block_types": ["recurrent", "attention"]}, 3) == (
        "block_types",
        ["recurrent", "attention", "recurrent"],
    )
    assert layer_words({"layer_types": {}}, 3) is None


@pytest.mark.parametrize("value", [None, 3, "x", {}, [], [None], [[1]], {"a": 1}, True, 0.5, float("nan")])
def test_nonsense_raises_nothing(value):
    keys = (
        *(
            "layer_types",
            "block_configs",
            "hybrid_override_pattern",
            "full_attn_idxs",
            "attn_layer_period",
            "attn",
        ),
        *("num_hidden_groups", "layer_sharing", "skip_layers", "mamba_d_state", "cross_attention_layers"),
    )
    for key in keys:
        for depth in (None, 4):
            refusal({key: value}, "novel", depth)
            doubts({key: value}, depth)
