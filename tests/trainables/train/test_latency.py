"""Costs of shapes by real forward passes: the bytes of the cache, the order of depths, steady medians."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainables.train import golden
from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.family import family
from trainables.train import latency as module
from trainables.train.latency import BATCHES, Asked, is_steady, latencies, plain_model, shape_times

CONTEXT, VOCABULARY = 12, 40


def model_of(network, depth, width, heads, precision="fp32", **options):
    shape = Shape(depth=depth, width=width, heads=heads, **options)
    recipe = Recipe(steps=1, batch=1, context=CONTEXT, network=network, precision=precision)
    return plain_model(shape, recipe, VOCABULARY), shape, recipe


@pytest.fixture
def quick(monkeypatch):
    """Few repetitions: what is tested here is counted and not timed."""
    monkeypatch.setattr(module, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(module, "LIMIT", 0.0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("llama", {"kv_heads": 2}),
        ("llama", {"kv_heads": 1, "head_dim": 16}),
        ("qwen3", {"kv_heads": 2}),
    ],
)
def test_the_bytes_of_the_cache_are_those_of_keys_and_values(quick, network, options, precision):
    model, shape, recipe = model_of(network, 3, 32, 4, precision, **options)
    assert model.num_parameters() == family(network).parameters(shape, recipe, VOCABULARY).total
    size = {"fp32": 4, "bf16": 2}[precision]
    kv_heads, head = options.get("kv_heads", 4), options.get("head_dim", 8)
    for batch, measured in zip(BATCHES, latencies(model, CONTEXT), strict=True):
        assert measured.kv_bytes_per_token == 2 * 3 * kv_heads * head * size
        assert measured.batch == batch
        assert measured.prefill_ms > 0
        assert measured.decode_ms > 0


def test_the_model_is_huggingfaces_own_and_generates_what_it_computes_at_once():
    model, _, _ = model_of("llama", 2, 16, 2)
    assert type(model) is type(AutoModelForCausalLM.from_config(model.config))
    assert not model.training
    tokens = torch.arange(CONTEXT)[None]
    with torch.inference_mode():
        whole = model(input_ids=tokens).logits
        first = model(input_ids=tokens[:, :5], use_cache=True)
        rest = model(input_ids=tokens[:, 5:], past_key_values=first.past_key_values, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 5:])


def test_prompt_and_new_tokens_fill_the_context(quick):
    class Recorder(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config, self.device, self.lengths = inner, inner.config, inner.device, []

        def forward(self, input_ids, **options):
            self.lengths.append(tuple(input_ids.shape))
            return self.inner(input_ids=input_ids, **options)

    for context, new in ((2, 1), (7, 3), (12, 6), (200, 64)):
        recipe = Recipe(steps=1, batch=1, context=context)
        recorder = Recorder(plain_model(Shape(depth=1, width=8, heads=2), recipe, VOCABULARY))
        latencies(recorder, context)
        # One round to warm up, then the rounds, in which the batches take turns.
        turn = [(batch, length) for batch in BATCHES for length in (context - new, *[1] * new)]
        assert recorder.lengths == turn * (1 + module.LEAST_ROUNDS)


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([1.0, 1.0, 1.0, 1.09, 1.09, 1.09], True),
        ([1.0, 1.0, 1.0, 1.11, 1.11, 1.11], False),
        ([1.11, 1.11, 1.11, 1.0, 1.0, 1.0], False),
        ([1.0, 9.0, 1.0, 1.0, 1.0, 9.0], True),
    ],
)
def test_measurements_are_steady_if_the_medians_of_both_halves_agree(seconds, steady):
    assert is_steady(seconds) == steady


def test_unsteady_times_end_at_the_limit_and_are_marked(monkeypatch):
    """A model that becomes slower from call to call, on a clock that counts the calls."""
    now = [0.0]
    model, _, _ = model_of("gpt2", 1, 8, 2)
    model.register_forward_hook(lambda *_: now.__setitem__(0, 1.05 * now[0] + 0.001))
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    for measured in latencies(model, CONTEXT):
        assert not measured.prefill_steady
        assert not measured.decode_steady
    assert now[0] > module.LIMIT


def test_only_what_was_asked_is_measured(quick, tmp_path):
    cell = golden.cell()
    of_model = shape_times(Asked(cell, Layout(), VOCABULARY, ("decode",)), str(tmp_path / "missing"))
    assert of_model.train_tokens_per_second is None
    assert [row.batch for row in of_model.latencies] == list(BATCHES)
    assert not (tmp_path / "missing").exists(), "no data is needed"


@pytest.mark.slow
def test_training_is_timed_in_tokens_per_second(tmp_path, monkeypatch):
    monkeypatch.setattr("trainables.train.step_times.SECONDS", 0.1)
    times = shape_times(Asked(golden.cell(), Layout(), VOCABULARY, ("train",)), str(tmp_path))
    assert times.latencies == []
    assert times.train_tokens_per_second > 0
    assert times.train_computing > 0


@pytest.mark.slow
def test_deeper_shapes_of_one_size_are_slower():
    """At N = 12·L·d² = 24,576 a token of 8 layers took three times that of 1: the bar is far from the noise."""
    times = []
    for depth, width in ((2, 32), (8, 16), (32, 8)):
        model, shape, _ = model_of("gpt2", depth, width, 2)
        assert shape.budget_params == 24_576
        times.append(latencies(model, CONTEXT))
    for shallow, deep, deepest in zip(*times, strict=True):
        assert shallow.decode_ms < deep.decode_ms < deepest.decode_ms
        assert shallow.prefill_ms < deep.prefill_ms < deepest.prefill_ms


@pytest.mark.extended
@pytest.mark.parametrize(("depth", "width", "heads", "context"), [(2, 24, 2, 32), (2, 512, 8, 128)])
def test_two_measurements_of_a_shape_agree(depth, width, heads, context):
    """On a machine that does nothing else: a shape of the quickstart, and one of 6.3M parameters."""
    recipe = Recipe(steps=1, batch=1, context=context)
    model = plain_model(Shape(depth=depth, width=width, heads=heads), recipe, 257)
    for first, second in zip(latencies(model, context), latencies(model, context), strict=True):
        assert first.prefill_steady
        assert first.decode_steady
        assert first.decode_ms == pytest.approx(second.decode_ms, rel=0.1)
        assert first.prefill_ms == pytest.approx(second.prefill_ms, rel=0.1)
