"""Configs are made by transformers' own classes; counts are compared with the models, which take no memory on meta."""

import json

import pytest
import torch
import transformers as hf

from analysis.audit.model_config import _GATED, _NOT_GATED, model_config, read_model_config
from core.errors import InputError

#: Published sizes, most of them the defaults of the class.
CONFIGS = {
    "bert": hf.BertConfig(),
    "roberta": hf.RobertaConfig(),
    "bloom": hf.BloomConfig(n_layer=70, hidden_size=14336, n_head=112, vocab_size=250880),
    "codegen": hf.CodeGenConfig(),
    "cohere": hf.CohereConfig(),
    "falcon": hf.FalconConfig(),
    "falcon-40b": hf.FalconConfig(
        num_hidden_layers=60, hidden_size=8192, num_attention_heads=128, new_decoder_architecture=True, num_kv_heads=8
    ),
    "gemma": hf.GemmaConfig(),
    "gemma2": hf.Gemma2Config(),
    "gemma3_text": hf.Gemma3TextConfig(),
    "gpt2": hf.GPT2Config(),
    "gpt_neo": hf.GPTNeoConfig(),
    "gpt_neox": hf.GPTNeoXConfig(),
    "gptj": hf.GPTJConfig(),
    "granite": hf.GraniteConfig(),
    "llama": hf.LlamaConfig(),
    "llama-3.1-8b": hf.LlamaConfig(vocab_size=128_256, num_key_value_heads=8, intermediate_size=14336),
    "mistral": hf.MistralConfig(),
    "mpt": hf.MptConfig(d_model=4096, n_layers=32, n_heads=32),
    "olmo": hf.OlmoConfig(),
    "olmo2": hf.Olmo2Config(),
    "opt": hf.OPTConfig(),
    "opt-350m": hf.OPTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096, word_embed_proj_dim=512
    ),
    "phi": hf.PhiConfig(),
    "phi3": hf.Phi3Config(),
    "qwen2": hf.Qwen2Config(
        num_hidden_layers=24, hidden_size=896, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864
    ),
    "qwen3": hf.Qwen3Config(),
    "smollm3": hf.SmolLM3Config(),
    "stablelm": hf.StableLmConfig(),
    "starcoder2": hf.Starcoder2Config(),
}  # fmt: skip
#: Blocks that are parts of larger models; their count is that of the text model they share.
PARTS = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
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
def test_the_count_is_that_of_the_model_but_for_biases_and_norms(name):
    config = CONFIGS[name]
    found = model_config(config.to_dict(), name)
    assert found.block_params == pytest.approx(parameters_of_blocks(config), rel=2e-3)
    assert found.family == config.model_type
    assert (found.depth, found.width) == (config.num_hidden_layers, config.hidden_size)
    assert found.vocabulary == config.vocab_size


def test_every_known_family_is_compared_with_a_model():
    assert {config.model_type for config in CONFIGS.values()} | PARTS == _GATED | _NOT_GATED


def test_published_totals():
    """With the token tables and the positions; of Llama 3.1 8B two tables of 128,256 × 4,096."""
    for name, total, tables in (
        ("gpt2", 124_439_808, (50257 + 1024) * 768),
        ("llama", 6_738_415_616, 2 * 32000 * 4096),
        ("llama-3.1-8b", 8_030_261_248, 2 * 128_256 * 4096),
        ("bloom", 176_247_271_424, 250880 * 14336),
    ):
        found = model_config(CONFIGS[name].to_dict(), name)
        assert found.block_params == pytest.approx(total - tables, rel=2e-3)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "llama", "opt", "gemma2"])
def test_keys_a_file_leaves_out_have_the_default_of_the_family(name):
    """Files on the hub are often older than a key, or name it otherwise."""
    document = CONFIGS[name].to_dict()
    optional = {"n_inner", "add_cross_attention", "is_encoder_decoder"}
    if name in ("llama", "opt"):
        optional |= {"num_key_value_heads", "head_dim"}
    short = {key: value for key, value in document.items() if key not in optional}
    if name == "bloom":
        short["n_embed"] = short.pop("hidden_size")
    assert model_config(short, name) == model_config(document, name)


def test_the_language_part_of_a_multimodal_model_is_read():
    document = hf.Gemma3Config(text_config=CONFIGS["gemma3_text"].to_dict()).to_dict()
    found, text = model_config(document, "here"), model_config(CONFIGS["gemma3_text"].to_dict(), "here")
    assert (found.depth, found.width, found.family) == (text.depth, text.width, "gemma3_text")
    assert found.block_params == text.block_params
    assert any("text_config" in note for note in found.notes)


@pytest.mark.parametrize(
    ("configs", "what"),
    [
        ((hf.T5Config(), hf.BartConfig(), hf.WhisperConfig(), hf.MT5Config()), "encoder-decoder"),
        ((hf.MixtralConfig(), hf.Qwen2MoeConfig(), hf.OlmoeConfig(), hf.DeepseekV3Config()), "mixture of experts"),
        ((hf.DbrxConfig(), hf.GptOssConfig()), "mixture of experts"),
        ((hf.AlbertConfig(),), "blocks more than once"),
        ((hf.MambaConfig(), hf.RwkvConfig()), "no softmax attention"),
    ],
)  # fmt: skip
def test_models_that_the_law_does_not_describe_are_refused_with_a_way_out(configs, what):
    for config in configs:
        with pytest.raises(InputError, match=rf"{what}.*interplay\.audit\(depth=\d+, width=\d+\)"):
            model_config(config.to_dict(), "here")


LLAMA = CONFIGS["llama"].to_dict()


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (CONFIGS["bert"].to_dict(), "encoder"),
        (hf.DistilBertConfig().to_dict(), "encoder"),
        (hf.ViTConfig().to_dict(), "vocabulary"),
        (hf.ViTConfig().to_dict(), "images"),
        (hf.Wav2Vec2Config().to_dict(), "sound"),
        (LLAMA, None),
        (LLAMA | {"layer_types": ["sliding_attention", "full_attention"]}, None),
    ],
)
def test_what_the_law_does_not_describe_exactly_is_noted(document, word):
    notes = model_config(document, "here").notes
    assert any(word in note for note in notes) if word else not notes


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"model_type": "novel"}),
        ("llama", {"intermediate_size": [100, 90, 80]}),
        ("gpt2", {"n_inner": [100, 90, 80]}),
        ("llama", {"num_attention_heads": None}),
        ("llama", {"num_key_value_heads": [4, 2, 1]}),
        ("gpt2", {"add_cross_attention": True}),
    ],
)
def test_where_the_count_is_not_sure_there_is_none(name, change):
    document = CONFIGS[name].to_dict()
    found = model_config({**document, **change}, "here")
    assert (found.depth, found.block_params) == (model_config(document, "here").depth, None)


def test_a_missing_depth_names_what_was_looked_for():
    with pytest.raises(InputError, match=r"has no depth: none of num_hidden_layers, n_layer.*depth=L"):
        model_config({"hidden_size": 48}, "here")
    with pytest.raises(InputError, match=r"has no width: none of hidden_size, n_embd"):
        model_config({"n_layer": 3}, "here")
    # As on the hub where a text part equals the default of its class.
    with pytest.raises(InputError, match="text_config"):
        model_config({"text_config": {"model_type": "llama"}}, "here")


#: As a file has them: Python reads NaN, Infinity and 1e400 where JSON has no such numbers.
NO_SIZES = ["NaN", "1e400", "true", '"768"', "-768", "0", "7.5", "[768]", "{}", "9" * 400]


@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: text[:9])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_a_shape_that_is_no_size_is_one_paragraph(tmp_path, key, text):
    path = write_with(tmp_path, "llama", key, text)
    with pytest.raises(InputError, match=f"{key} is .*must be a positive whole number") as caught:
        read_model_config(path)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: text[:9])
@pytest.mark.parametrize(
    ("name", "key"),
    [("llama", "intermediate_size"), ("llama", "num_key_value_heads"), ("mpt", "expansion_ratio")],
)
def test_a_number_that_is_no_size_gives_no_count_and_no_traceback(tmp_path, name, key, text):
    found = read_model_config(write_with(tmp_path, name, key, text))
    assert (found.depth, found.width, found.block_params) == (32, 4096, None)
    assert found.law_params == 12 * 32 * 4096**2


NONSENSE = [(key, text) for key in ("vocab_size", "head_dim", "word_embed_proj_dim") for text in NO_SIZES]
NONSENSE += [("vocab_size", '"many"'), ("head_dim", '"x"'), ("layer_types", "{}"), ("num_experts", '"few"')]
NONSENSE += [("text_config", "3"), ("expansion_ratio", "null"), ("attn_config", '"none"')]


@pytest.mark.parametrize(("key", "text"), NONSENSE, ids=lambda value: value[:19])
def test_what_does_not_make_the_shape_may_be_nonsense(tmp_path, key, text):
    found = read_model_config(write_with(tmp_path, "llama", key, text))
    assert found.vocabulary == (None if key == "vocab_size" else 32000)
    assert (found.block_params, found.embedding_width) == (model_config(LLAMA, "usual").block_params, 4096)


def test_the_feed_forward_width_of_a_ratio(tmp_path):
    found = read_model_config(write_with(tmp_path, "mpt", "expansion_ratio", "2"))
    assert found.block_params == 32 * 4096 * (4 * 4096 + 2 * 8192)


def write_with(folder, name, key, text):
    """The config file of `name` with the text `text` as the value of `key`."""
    document = {**CONFIGS[name].to_dict(), key: "HERE"}
    (folder / "config.json").write_text(json.dumps(document).replace('"HERE"', text))
    return folder


def test_a_folder_or_a_file_is_read(tmp_path):
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        read_model_config(tmp_path / "config.json")
    CONFIGS["llama"].save_pretrained(tmp_path)
    assert read_model_config(tmp_path).depth == read_model_config(tmp_path / "config.json").depth == 32


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"[" * 100_000, b'{"n_layer": %s}' % (b"9" * 5000)]
)
def test_a_file_that_is_no_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match="depth=L, width=D"):
        read_model_config(tmp_path)
