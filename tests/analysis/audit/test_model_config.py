"""Configs are made by transformers' own classes; counts are compared with the models, which take no memory on meta."""

import json

import pytest
import torch
import transformers as hf

from analysis.audit.block_parameters import BLOCKS
from analysis.audit.model_config import model_config, read_model_config
from analysis.audit.verdict import audit
from analysis.errors import InputError
from analysis.law.projection import LEVINE2020

SMALL = {"num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 200, "hidden_size": 48}
LLAMA = {**SMALL, "intermediate_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_layer": 3, "n_embd": 48, "n_head": 4, "vocab_size": 200}
FALCON = {**SMALL, "bos_token_id": 1, "eos_token_id": 2}
OPT = {**SMALL, "ffn_dim": 100}
NEO = {"num_layers": 2, "hidden_size": 48, "num_heads": 4, "vocab_size": 200}

CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT2),
    "gpt2, own inner width": hf.GPT2Config(**GPT2, n_inner=100),
    "gpt_neo": hf.GPTNeoConfig(**NEO, attention_types=[[["global", "local"], 1]]),
    "gpt_neox": hf.GPTNeoXConfig(**LLAMA),
    "gpt_neox, no attention bias": hf.GPTNeoXConfig(**LLAMA, attention_bias=False),
    "gptj": hf.GPTJConfig(**GPT2, rotary_dim=4),
    "codegen": hf.CodeGenConfig(**GPT2, rotary_dim=4),
    "opt": hf.OPTConfig(**OPT),
    "opt, projected embedding, norm after": hf.OPTConfig(
        **OPT, word_embed_proj_dim=24, do_layer_norm_before=False
    ),
    "opt, no bias": hf.OPTConfig(**OPT, enable_bias=False, layer_norm_elementwise_affine=False),
    "bloom": hf.BloomConfig(n_layer=3, hidden_size=48, n_head=4, vocab_size=200),
    "falcon": hf.FalconConfig(**FALCON),
    "falcon, multi-head": hf.FalconConfig(
        **FALCON, parallel_attn=False, multi_query=False, alibi=True, bias=True
    ),
    "falcon, new": hf.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon, new, one norm": hf.FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "mpt": hf.MptConfig(d_model=48, n_layers=3, n_heads=4, vocab_size=200),
    "llama": hf.LlamaConfig(**LLAMA),
    "llama, grouped, biased": hf.LlamaConfig(
        **LLAMA, num_key_value_heads=2, attention_bias=True, mlp_bias=True
    ),
    "mistral": hf.MistralConfig(**LLAMA, num_key_value_heads=2, head_dim=16),
    "qwen2": hf.Qwen2Config(**LLAMA, num_key_value_heads=2),
    "qwen3": hf.Qwen3Config(**LLAMA, num_key_value_heads=2, head_dim=16),
    "gemma": hf.GemmaConfig(**LLAMA, num_key_value_heads=1, head_dim=16),
    "gemma2": hf.Gemma2Config(**LLAMA, num_key_value_heads=2, head_dim=16),
    "gemma3_text": hf.Gemma3TextConfig(**LLAMA, num_key_value_heads=2, head_dim=16),
    "phi": hf.PhiConfig(**LLAMA, num_key_value_heads=2),
    "phi3": hf.Phi3Config(**LLAMA, num_key_value_heads=2),
    "stablelm": hf.StableLmConfig(**LLAMA, num_key_value_heads=4),
    "stablelm, parallel, biased": hf.StableLmConfig(
        **LLAMA, num_key_value_heads=2, use_qkv_bias=True, use_parallel_residual=True
    ),
    "olmo": hf.OlmoConfig(**LLAMA),
    "olmo2": hf.Olmo2Config(**LLAMA, num_key_value_heads=2),
    "starcoder2": hf.Starcoder2Config(**LLAMA),
    "starcoder2, no bias": hf.Starcoder2Config(**LLAMA, use_bias=False),
    "cohere": hf.CohereConfig(**LLAMA),
    "granite": hf.GraniteConfig(**LLAMA, attention_bias=True),
    "smollm3": hf.SmolLM3Config(**LLAMA, num_key_value_heads=2),
    "bert": hf.BertConfig(**SMALL, intermediate_size=100),
    "roberta": hf.RobertaConfig(**SMALL, intermediate_size=100),
}
#: Blocks that are parts of larger models; their count is that of the text model they share.
PARTS = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
#: How the models name their embeddings, heads and the norm of the embeddings.
OUTSIDE = ("wte", "wpe", "embed", "lm_head", "cls", "project_in", "project_out")


def parameters_of_blocks(config):
    """Everything but embeddings and head, counted from the model."""
    with torch.device("meta"):
        model = hf.AutoModel.from_config(config)
    return sum(
        value.numel()
        for name, value in model.named_parameters()
        if not any(word in name for word in OUTSIDE) and "pooler" not in name
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_exact_count_is_that_of_the_model(name):
    config = CONFIGS[name]
    found = model_config(config.to_dict(), name)
    assert found.exact_reason is None
    assert found.exact_params == parameters_of_blocks(config)
    assert found.family == config.model_type
    assert (found.depth, found.width, found.heads) == (config.num_hidden_layers, 48, 4)
    assert found.vocabulary == 200
    assert found.tied == config.tie_word_embeddings


def test_every_known_block_is_compared_with_a_model():
    assert {config.model_type for config in CONFIGS.values()} | set(PARTS) == set(BLOCKS)
    assert all(BLOCKS[part] == BLOCKS[whole] for part, whole in PARTS.items())


def test_what_is_read_besides_depth_and_width():
    found = model_config(CONFIGS["gemma2"].to_dict(), "here")
    assert (found.kv_heads, found.head_dim, found.d_ff, found.gated) == (2, 16, 100, True)
    found = model_config(CONFIGS["falcon"].to_dict(), "here")
    assert (found.kv_heads, found.head_dim, found.d_ff, found.gated) == (1, 12, 192, False)
    found = model_config(CONFIGS["opt, projected embedding, norm after"].to_dict(), "here")
    assert (found.width, found.embedding_width) == (48, 24)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "llama", "opt", "mistral", "gemma2"])
def test_keys_a_file_leaves_out_have_the_default_of_the_family(name):
    """Files on the hub are often older than a key; what is left must still give the whole."""
    document = CONFIGS[name].to_dict()
    optional = {"tie_word_embeddings", "attention_bias", "mlp_bias", "enable_bias", "n_inner"}
    optional |= {"add_cross_attention", "is_encoder_decoder", "do_layer_norm_before"}
    if name in ("llama", "opt"):
        optional |= {"num_key_value_heads", "head_dim"}
    short = {key: value for key, value in document.items() if key not in optional}
    assert model_config(short, name) == model_config(document, name)


def test_an_old_bloom_file_names_its_width_otherwise():
    found = model_config(
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
        "bloom",
    )  # fmt: skip
    assert (found.depth, found.width, found.heads) == (70, 14336, 112)
    # The published 176,247,271,424 are these, the token table and the norm of the embedding.
    assert found.exact_params + 250880 * 14336 + 2 * 14336 == 176_247_271_424


def test_published_totals():
    gpt2 = model_config(hf.GPT2Config().to_dict(), "gpt2")
    assert gpt2.exact_params + (50257 + 1024) * 768 == 124_439_808
    llama = model_config(hf.LlamaConfig().to_dict(), "Llama-2-7B")
    assert llama.exact_params + 2 * 32000 * 4096 == 6_738_415_616


def test_the_language_part_of_a_multimodal_model_is_read():
    text = {**LLAMA, "num_key_value_heads": 2, "head_dim": 16}
    document = hf.Gemma3Config(text_config=text).to_dict()
    found = model_config(document, "here")
    assert (found.depth, found.width, found.family) == (3, 48, "gemma3_text")
    assert found.exact_params == model_config(CONFIGS["gemma3_text"].to_dict(), "here").exact_params
    assert any("text_config" in note for note in found.notes)


@pytest.mark.parametrize("config", [hf.T5Config(), hf.BartConfig(), hf.WhisperConfig(), hf.MT5Config()])
def test_encoder_decoders_are_refused_with_a_way_out(config):
    with pytest.raises(InputError, match=r"encoder-decoder.*--depth L --width D"):
        model_config(config.to_dict(), "here")


@pytest.mark.parametrize(
    "config",
    [
        *(hf.MixtralConfig(), hf.Qwen2MoeConfig(), hf.OlmoeConfig(), hf.DeepseekV3Config(), hf.DbrxConfig()),
        hf.GptOssConfig(),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_mixtures_of_experts_are_refused_with_a_way_out(config):
    with pytest.raises(InputError, match=r"mixture of experts.*--depth L --width D"):
        model_config(config.to_dict(), "here")


@pytest.mark.parametrize("config", [hf.AlbertConfig(), hf.MambaConfig(), hf.RwkvConfig()])
def test_models_that_are_no_stack_of_attention_blocks_are_refused(config):
    with pytest.raises(InputError, match="--depth L --width D"):
        model_config(config.to_dict(), "here")


def test_encoders_and_pictures_are_read_with_a_note():
    assert any("encoder" in note for note in model_config(CONFIGS["bert"].to_dict(), "b").notes)
    assert any("encoder" in n for n in model_config(hf.DistilBertConfig().to_dict(), "d").notes)
    assert not model_config(CONFIGS["llama"].to_dict(), "l").notes
    assert any("vocabulary" in note for note in model_config(hf.ViTConfig().to_dict(), "v").notes)


def test_layers_that_are_no_attention_are_noted():
    config = hf.Qwen3NextConfig(num_experts=0) if hasattr(hf, "Qwen3NextConfig") else None
    document = {**CONFIGS["llama"].to_dict(), "layer_types": ["linear_attention", "full_attention"]}
    for value in [document, *([config.to_dict()] if config else [])]:
        assert any("linear_attention" in note for note in model_config(value, "here").notes)
    document["layer_types"] = ["sliding_attention", "full_attention"]
    assert not model_config(document, "here").notes


def test_a_family_that_is_not_known_has_a_shape_and_no_exact_count():
    document = {**CONFIGS["llama"].to_dict(), "model_type": "novel"}
    found = model_config(document, "here")
    assert (found.depth, found.width, found.exact_params) == (3, 48, None)
    assert "novel" in found.exact_reason


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("llama", {"intermediate_size": [100, 90, 80]}, "feed-forward width"),
        ("llama", {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None}, "heads"),
        ("llama", {"num_key_value_heads": [4, 2, 1]}, "key-value heads"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_where_the_count_is_not_sure_there_is_none(name, change, reason):
    found = model_config({**CONFIGS[name].to_dict(), **change}, "here")
    assert found.exact_params is None
    assert reason in found.exact_reason


def test_a_missing_depth_names_what_was_looked_for():
    with pytest.raises(InputError, match=r"has no depth: none of num_hidden_layers, n_layer.*--depth L"):
        model_config({"hidden_size": 48}, "here")
    with pytest.raises(InputError, match=r"has no width: none of hidden_size, n_embd"):
        model_config({"n_layer": 3}, "here")
    # As on the hub where a text part equals the default of its class.
    with pytest.raises(InputError, match="text_config"):
        model_config({"text_config": {"model_type": "llama"}}, "here")


#: As a file has them: Python reads NaN, Infinity and 1e400 where JSON has no such numbers.
NO_SIZES = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "true",
    '"768"',
    "-768",
    "0",
    "7.5",
    "[768]",
    "{}",
    "9" * 400,
]


@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: text[:9])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_a_shape_that_is_no_size_is_one_paragraph(tmp_path, key, text):
    path = write_with(tmp_path, "llama", key, text)
    with pytest.raises(InputError, match=f"{key} is .*must be a positive whole number") as caught:
        read_model_config(path)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: text[:9])
@pytest.mark.parametrize("key", ["intermediate_size", "num_key_value_heads", "num_attention_heads"])
def test_a_number_that_is_no_size_gives_no_exact_count_and_no_traceback(tmp_path, key, text):
    without_count(read_model_config(write_with(tmp_path, "llama", key, text)))


# Of these 7.5 is a ratio.
@pytest.mark.parametrize("text", [text for text in NO_SIZES if text != "7.5"], ids=lambda text: text[:9])
def test_an_expansion_ratio_that_is_none_gives_no_exact_count_and_no_traceback(tmp_path, text):
    without_count(read_model_config(write_with(tmp_path, "mpt", "expansion_ratio", text)))


def without_count(found):
    assert (found.depth, found.width, found.exact_params) == (3, 48, None)
    assert "the file does not have one number for" in found.exact_reason
    assert audit(found, LEVINE2020).params == 12 * 3 * 48**2


@pytest.mark.parametrize("key", ["vocab_size", "head_dim", "word_embed_proj_dim"])
@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: text[:9])
def test_what_does_not_make_the_shape_may_be_nonsense(tmp_path, key, text):
    found = read_model_config(write_with(tmp_path, "llama", key, text))
    assert found.vocabulary == (None if key == "vocab_size" else 200)
    assert (found.head_dim, found.embedding_width) == (12, 48)
    assert audit(found, LEVINE2020).params == 12 * 3 * 48**2


@pytest.mark.parametrize(
    ("ratio", "inner"), [("2", 96), ("2.5", 120), ("7.5", 360), ("1e-3", None), ("1e8", None)]
)
def test_the_feed_forward_width_of_a_ratio(tmp_path, ratio, inner):
    assert read_model_config(write_with(tmp_path, "mpt", "expansion_ratio", ratio)).d_ff == inner


def write_with(folder, name, key, text):
    """The config file of `name` with the text `text` as the value of `key`."""
    document = {**CONFIGS[name].to_dict(), key: "HERE"}
    (folder / "config.json").write_text(json.dumps(document).replace('"HERE"', text))
    return folder


@pytest.mark.parametrize("value", ["12", 12.0, True, 0, -1, [12], 10**12])
def test_a_depth_is_a_positive_whole_number(value):
    with pytest.raises(InputError, match=r"n_layer is .*positive whole number"):
        model_config({"n_layer": value, "n_embd": 48}, "here")


def test_a_folder_or_a_file_is_read(tmp_path):
    CONFIGS["llama"].save_pretrained(tmp_path)
    assert read_model_config(tmp_path).depth == read_model_config(tmp_path / "config.json").depth == 3


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"[" * 100_000, b'{"n_layer": %s}' % (b"9" * 5000)]
)
def test_a_file_that_is_no_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match="--depth L --width D"):
        read_model_config(tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        read_model_config(tmp_path)


def test_keys_may_be_nonsense_but_nothing_breaks():
    document = json.loads(json.dumps(CONFIGS["llama"].to_dict()))
    document |= {
        "vocab_size": "many",
        "head_dim": "x",
        "layer_types": {},
        "num_experts": "few",
        "text_config": 3,
    }
    document |= {"tie_word_embeddings": "yes", "expansion_ratio": None, "attn_config": "none"}
    found = model_config(document, "here")
    assert found.vocabulary is None
    assert (found.head_dim, found.tied) == (12, False)
