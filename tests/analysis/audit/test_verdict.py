import dataclasses
import json
import math

import pytest
import transformers as hf
from scipy.optimize import brentq

from analysis.audit.evidence import Evidence, law_evidence, published_evidence
from analysis.audit.model_config import model_config
from analysis.audit.verdict import Audit, audit, shape_of
from analysis.law.shape import Recommendation
from analysis.law.threshold_law import LEVINE2020, ThresholdLaw
from core.errors import InputError

GPT = hf.GPT2Config
LLAMA = hf.LlamaConfig


def sized(kind, depth, width, heads, d_ff):
    return kind(num_hidden_layers=depth, hidden_size=width, num_attention_heads=heads, intermediate_size=d_ff)


#: L/L* of known models by N = 12·L·d², computed by hand from the published a and b; of some without a config class.
KNOWN = {
    "GPT-2 small": (GPT(), 0.52),
    "GPT-2 XL": (GPT(n_layer=48, n_embd=1600, n_head=25), 1.11),
    "BERT-large": (sized(hf.BertConfig, 24, 1024, 16, 4096), 0.76),
    "Llama-2-7B": (LLAMA(), 0.59),
    "Llama-2-13B": (sized(LLAMA, 40, 5120, 40, 13824), 0.67),
    "Llama-2-70B": (sized(LLAMA, 80, 8192, 64, 28672), 1.10),
    "Llama-3.1-405B": (sized(LLAMA, 126, 16384, 128, 53248), 1.44),
    "BLOOM": (hf.BloomConfig(n_layer=70, hidden_size=14336, n_head=112), 0.87),
    "Gemma-2-9B": (sized(hf.Gemma2Config, 42, 3584, 16, 14336), 0.77),
    "Qwen2.5-0.5B": (sized(hf.Qwen2Config, 24, 896, 14, 4864), 0.81),
    "Qwen2.5-14B": (sized(hf.Qwen2Config, 48, 5120, 40, 13824), 0.79),
    "Qwen2.5-32B": (sized(hf.Qwen2Config, 64, 5120, 40, 27648), 1.01),
    "PaLM": ((118, 18432), 1.33),
    "Chinchilla": ((80, 8192), 1.10),
    "Gopher": ((80, 16384), 0.96),
    "MobileLLM-125M": ((30, 576), 1.19),
    "MobileLLM-350M": ((32, 960), 0.98),
    "GPT-3": ((96, 12288), 1.19),
}
#: b = 0.1 ± 0.1, so that the depth has no upper end.
OPEN = ThresholdLaw(
    "log-linear", "ok", 0.95, 2.0, 0.1, ((1e-4, 0.0), (0.0, 0.01)), depths=(1, 2), source="a toy"
)
#: Without a limit of the size, as the paper extrapolates it.
WIDE = dataclasses.replace(LEVINE2020, params_range=(1.0, 1e15))


def by(model, law):
    """The finding of one law, or of one answer for all sizes."""
    if callable(law):
        item = Evidence("a fit", "a fit", None, None, law, lambda params, depth, within: None)
    else:
        item = law_evidence("a law", dataclasses.replace(law, params_range=(1.0, 1e15)))
    (finding,) = audit(model, [item], 0.005).findings
    return finding


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_stand_where_they_are_known_to(name):
    config, ratio = KNOWN[name]
    shape = config if isinstance(config, tuple) else (config.num_hidden_layers, config.hidden_size)
    model = shape_of(*shape) if config is shape else model_config(config.to_dict(), name)
    found = by(model, LEVINE2020)
    assert found.ratio == pytest.approx(ratio, abs=0.0051)
    assert model.law_params == found.best.params == 12 * shape[0] * shape[1] ** 2
    expected = "too deep" if ratio > 1.05 else "too shallow" if ratio < 0.95 else "within the interval"
    # Larger models without a config class have narrower intervals.
    assert found.verdict == expected or config is shape


@pytest.mark.parametrize(("depth", "width"), [(32, 4096), (96, 12288), (80, 13461), (24, 640)])
def test_the_numbers_agree_with_each_other(depth, width):
    found = by(shape_of(depth, width), LEVINE2020)
    # The law as it is written.
    law, params = LEVINE2020, 12 * depth * width**2
    star = brentq(lambda best: math.log(12 * best / params) + 2 * (law.a + law.b * best), 1e-9, 1000)
    assert found.ratio == pytest.approx(depth / star)
    assert found.star == pytest.approx(star)
    low, high = found.best.depth_interval
    assert found.ratio_interval == pytest.approx((depth / high, depth / low))
    # N above N_transition(L) is too shallow, below too deep.
    assert (found.best.params > found.transition.params) == (depth < found.star)


def test_both_readings_of_the_rule_give_one_verdict_and_all_occur_in_one_order_as_the_width_grows():
    """L outside the band of L* at this N, and N outside the band of N_transition(L), are the same statement."""
    order = ["too deep", "within the interval", "too shallow"]
    verdicts = []
    for width in (500, 3000, *range(4500, 8000, 50), 20_000):
        found = by(shape_of(66, width), LEVINE2020)
        low, high = found.transition.params_interval
        if found.best.depth != 66:
            size = found.best.params
            assert found.verdict == order[(size >= low) + (size > high)]
        verdicts.append(order.index(found.verdict))
    assert sorted(set(verdicts)) == [0, 1, 2]
    assert verdicts == sorted(verdicts)


def test_the_best_whole_depth_is_never_blamed():
    # The band at this small N is narrower than a layer.
    found = by(shape_of(32, 887), LEVINE2020)
    sure = by(shape_of(32, 887), dataclasses.replace(LEVINE2020, covariance=((1e-12, 0.0), (0.0, 1e-12))))
    assert found.best.depth == 32
    assert sure.best.depth_interval[1] < 32
    assert sure.verdict == found.verdict == "within the interval"


def test_an_open_end_blames_nobody_on_that_side():
    deep, shallow = by(shape_of(500, 8), OPEN), by(shape_of(1, 500), OPEN)
    assert (deep.verdict, deep.ratio_interval[0]) == ("within the interval", None)
    assert shallow.verdict == "too shallow"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((4.0, None), "not settled"),
        ((None, 20.0), "not settled"),
        ((None, 9.0), "too deep"),
        ((4, 20), "within the interval"),
    ],
)
def test_without_a_best_depth_an_open_interval_settles_only_what_lies_outside_it(ends, verdict):
    best = Recommendation(12 * 12 * 64**2, None, ends, 0.95, "band", "fit.json")
    assert by(shape_of(12, 64), lambda params: best).verdict == verdict


def test_blocks_of_another_size_are_noted():
    config = LLAMA(vocab_size=128_256, num_key_value_heads=8, intermediate_size=14336)
    found = audit(model_config(config.to_dict(), "8B"), published_evidence(), 0.005)
    assert found.model.law_params == 12 * 32 * 4096**2
    # Llama 3.1 8B has 8.03e9 parameters, of these 1.05e9 in two tables.
    (note,) = [note for note in found.notes if "8% more" in note]
    assert "`interplay.recommend(6979321856)`" in note
    usual = audit(model_config(LLAMA().to_dict(), "7B"), published_evidence(), 0.005)
    assert not any("12·L·d²" in note for note in usual.notes)


def test_widths_above_the_rank_of_the_embedding_are_warned_of():
    def warned(model):
        return audit(model, published_evidence(), 0.005).warnings

    assert not warned(shape_of(6, 256, 256))
    (warning,) = warned(shape_of(6, 257, 256))
    assert "257" in warning
    assert "256 of its vocabulary" in warning
    assert "Wies" in warning
    opt = hf.OPTConfig(hidden_size=1024, word_embed_proj_dim=512, num_hidden_layers=24)
    (warning,) = warned(model_config(opt.to_dict(), "OPT-350M"))
    assert "512 of its projected embedding" in warning


def test_the_law_whose_models_have_this_size_and_depth_decides_and_another_is_an_extrapolation():
    found = audit(shape_of(12, 768), published_evidence(), 0.005)
    assert [item.law for item in found.findings] == ["Levine 2020", "Liu 2026", "Gemstones"]
    assert [item.law for item in found.deciding] == ["Gemstones"]
    assert (found.verdict, found.extrapolated) == ("near the best", False)
    assert found.findings[0].verdict == "too shallow"
    assert found.lost == (found.findings[2].lost, found.findings[2].lost)
    far = audit(shape_of(64, 5120), published_evidence(), 0.005)
    assert ([item.law for item in far.deciding], far.extrapolated) == (["Liu 2026"], True)
    assert any("extrapolation" in note for note in far.notes)
    both = audit(shape_of(24, 896), published_evidence(), 0.005)
    assert both.verdict == "laws disagree"
    assert both.lost[0] < 0.005 < both.lost[1]
    assert audit(shape_of(24, 896), published_evidence()[1:2], 0.005).verdict == "too deep"


@pytest.mark.parametrize(("depth", "width"), [(126, 16384), (96, 12288), (3, 3), (10_000, 4096)])
def test_ten_times_outside_the_sizes_of_every_law_there_is_no_verdict(depth, width):
    found = audit(shape_of(depth, width), published_evidence(), 0.005)
    assert (found.verdict, found.deciding, found.lost) == ("no verdict", (), None)
    assert all((item.best.depth, item.near_optimal) == (None, None) for item in found.findings)
    assert all(item.best.reason for item in found.findings)


def test_a_model_lies_above_or_below_the_least_depth_of_theory():
    for depth, width, side in ((5, 243, "above"), (5, 244, "below"), (6, 244, "above")):
        found = audit(shape_of(depth, width), published_evidence(), 0.005)
        assert (found.least_depth <= depth + 1e-12) == (side == "above")
        assert any(f"lies {side} log3(width)" in note for note in found.notes)


def test_the_document_is_strict_json_and_holds_everything():
    model = model_config(GPT().to_dict(), "gpt2")
    document = audit(model, published_evidence(), 0.005).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["depth"], document["width"], document["vocabulary"]) == (12, 768, 50257)
    assert document["nonembedding_params"] == document["block_params"] == 12 * 12 * 768**2
    assert document["verdict"] == "near the best"
    levine = document["laws"][0]
    assert (levine["verdict"], levine["best"]["depth"], levine["best"]["width"]) == ("too shallow", 23, 576)
    (alone,) = audit(model, [law_evidence("levine2020", LEVINE2020)], 0.005).to_json()["laws"]
    assert alone["transition"]["depth"] == 12
    for law in (WIDE, OPEN):
        finding = by(model, law)
        assert json.dumps(Audit(model, (finding,), (), ()).to_json(), allow_nan=False)
        assert finding.source == law.source


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 3)])
def test_a_share_of_less_than_a_layer_is_not_told(depth, width):
    found = by(shape_of(depth, width), LEVINE2020)
    assert found.best.depth_exact < 1
    assert (found.ratio, found.ratio_interval) == (None, (None, None))
    noted = audit(shape_of(depth, width), [law_evidence("a law", LEVINE2020)], 0.005)
    assert any("no depth of one layer or more" in note for note in noted.notes)
    # The first N at which the law has a whole layer has a ratio again.
    width = math.ceil(math.exp(LEVINE2020.a + LEVINE2020.b))
    assert by(shape_of(1, width), LEVINE2020).ratio == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("depth", "width"), [(0, 5), (-1, 5), (5, 0), (50_000, 64)])
def test_a_shape_that_cannot_be_is_refused(depth, width):
    with pytest.raises(InputError):
        by(shape_of(depth, width), LEVINE2020)


@pytest.mark.parametrize(
    ("depth", "interval", "verdict"),
    [
        (27.0, (None, None), "not settled"),
        (None, (20.0, None), "not settled"),
        (27.0, (20.0, None), "within the interval"),
        (50.0, (40.0, None), "too shallow"),
    ],
)
def test_an_interval_without_ends_contains_no_depth(depth, interval, verdict):
    def best(params):
        return Recommendation(params, depth, interval, None, "measured")

    assert by(shape_of(32, 2048), best).verdict == verdict
