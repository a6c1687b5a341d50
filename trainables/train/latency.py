"""Measure what shapes cost that run alone: `python -m trainables.train.latency DATA < SHAPES`.

DATA is the folder or URI of their packed data, SHAPES a JSON list of `[cell, layout, vocabulary, measures]`. Prints a
`ShapeTimes` as a JSON line for each. Prefill and decode are those of the plain HuggingFace model, as `interplay export`
writes it, with random weights, HuggingFace's growing cache and no CUDA graphs: not those of a server such as vLLM.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

from trainables.cell import Cell, Precision, Recipe, Shape
from trainables.layout import Layout
from trainables.train.step_times import step_times

#: `train`: training tokens per second; `prefill`, `decode`: milliseconds of a prompt, and of each new token after it.
Measure = Literal["train", "prefill", "decode"]
#: Sequences that are generated at a time.
BATCHES = (1, 8)
#: New tokens that are generated after a prompt, and at most this share of the context.
NEW_TOKENS, NEW_SHARE = 64, 0.5
#: The medians of the first and the second half of the repetitions must agree to this share.
AGREEMENT = 0.1
#: Rounds of all batches at least, seconds of a batch in a round at least, and seconds after which no round begins.
LEAST_ROUNDS, ROUND_SECONDS, LIMIT = 2, 0.5, 15.0


class Asked(NamedTuple):
    """A cell of a shape, its layout of one rank, its vocabulary, and what is measured."""

    cell: Cell
    layout: Layout
    vocabulary: int
    measures: tuple[Measure, ...]


class Latency(BaseModel):
    """Medians of one shape at one batch, and whether both halves of the repetitions agree to `AGREEMENT`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: int
    prefill_ms: float
    """Of a prompt that leaves the context room for the new tokens."""
    decode_ms: float
    """Of each new token, of all sequences of the batch."""
    kv_bytes_per_token: int
    """Bytes of the cache's tensors, for each token of a sequence."""
    prefill_steady: bool
    decode_steady: bool


class ShapeTimes(BaseModel):
    """What a shape costs; None and empty where it was not asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_tokens_per_second: float | None = None
    train_computing: float | None = None
    """CPU time over wall time of the training, see `StepTimes.computing`."""
    latencies: list[Latency] = []
    generate_computing: float | None = None
    """The same of prefill and decode."""


def plain_model(shape: Shape, recipe: Recipe, vocabulary: int) -> Any:
    """Return the plain HuggingFace model of a shape with random weights, in the precision of the recipe.

    The family must have one (`ModelFamily.is_huggingface`).
    """
    import torch
    from transformers import AutoModelForCausalLM

    from trainables.model.build import build_model
    from trainables.model.family import family
    from trainables.ranks.process_group import device

    state = build_model(shape, recipe, vocabulary, seed=0).state_dict()
    config, _ = family(recipe.network).exported(state, shape, recipe, vocabulary)
    types: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
    # Our own kernel of training has no cache.
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=types[recipe.precision]
    )
    return model.eval().to(device())


def latencies(model: Any, context: int) -> list[Latency]:
    """Time prefill and decode of a plain model at each batch until the times are steady, or for `LIMIT` seconds.

    The batches take turns, so that both halves of the repetitions of each are seconds apart. A prompt is what a
    sequence of `context` tokens has before its new tokens.
    """
    import torch

    generations = [_Generation(model, context, batch) for batch in BATCHES]
    with torch.inference_mode():
        for generation in generations:
            # The first launches of all kernels are not counted.
            generation.repeat()
        began, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or (
            time.perf_counter() - began < LIMIT and not all(generation.agrees for generation in generations)
        ):
            for generation in generations:
                end = time.perf_counter() + ROUND_SECONDS
                generation.measure()
                while time.perf_counter() < end:
                    generation.measure()
            rounds += 1
    return [generation.latency() for generation in generations]


class _Generation:
    """Prompts of one batch, and the seconds of their prefill and of each new token in all repetitions."""

    def __init__(self, model: Any, context: int, batch: int) -> None:
        import torch

        self.model, self.context = model, context
        self.new = min(NEW_TOKENS, int(NEW_SHARE * context))
        self.prompts = torch.randint(
            model.config.vocab_size, (batch, context - self.new), device=model.device
        )
        self.prefills: list[float] = []
        self.decodes: list[float] = []
        self.cache_bytes = 0

    def repeat(self) -> tuple[float, float]:
        """Generate once; return the seconds of the prefill, and the median of a new token's."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        step = functools.partial(self.model, past_key_values=cache, use_cache=True)
        prompted = functools.partial(step, input_ids=self.prompts, logits_to_keep=1)
        output, prefill = _timed(prompted, self.model.device)
        each = []
        for _ in range(self.new):
            token = output.logits[:, -1:].argmax(-1)
            output, seconds = _timed(functools.partial(step, input_ids=token), self.model.device)
            each.append(seconds)
        self.cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        return prefill, median(each)

    def measure(self) -> None:
        """Generate once more, and keep the times."""
        for kept, seconds in zip((self.prefills, self.decodes), self.repeat(), strict=True):
            kept.append(seconds)

    @property
    def agrees(self) -> bool:
        """Whether prefill and decode are steady."""
        return is_steady(self.prefills) and is_steady(self.decodes)

    def latency(self) -> Latency:
        """Return the medians."""
        batch = len(self.prompts)
        return Latency(
            batch=batch,
            prefill_ms=1000 * median(self.prefills),
            decode_ms=1000 * median(self.decodes),
            kv_bytes_per_token=self.cache_bytes // (batch * self.context),
            prefill_steady=is_steady(self.prefills),
            decode_steady=is_steady(self.decodes),
        )


def _timed(call: Callable[[], Any], place: Any) -> tuple[Any, float]:
    """Return what a call gives, and its seconds; those of a GPU from an idle GPU to its last kernel."""
    import torch

    if place.type != "cuda":
        began = time.perf_counter()
        return call(), time.perf_counter() - began
    event: Callable[..., Any] = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(place)
    start.record()
    given = call()
    end.record()
    torch.cuda.synchronize(place)
    return given, start.elapsed_time(end) / 1000


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether the medians of the first and the second half of measurements agree to `AGREEMENT`."""
    half = len(seconds) // 2
    first, second = median(seconds[:half]), median(seconds[half:])
    return abs(first - second) <= AGREEMENT * min(first, second)


def shape_times(asked: Asked, data: str) -> ShapeTimes:
    """Measure one shape in this process; `data` is the folder or URI of the packed data.

    Raises:
        DataError: the data cannot be used.
        InputError: the cell cannot be trained in this layout.
    """
    cell, times = asked.cell, ShapeTimes()
    if "train" in asked.measures:
        steps = step_times(cell, asked.layout, data)
        rate = cell.recipe.batch * cell.recipe.context / steps.step_seconds
        times = ShapeTimes(train_tokens_per_second=rate, train_computing=steps.computing)
    if {"prefill", "decode"} & set(asked.measures):
        model = plain_model(cell.shape, cell.recipe, asked.vocabulary)
        began, used = time.perf_counter(), time.process_time()
        generated = latencies(model, cell.recipe.context)
        computing = (time.process_time() - used) / (time.perf_counter() - began)
        times = times.model_copy(update={"latencies": generated, "generate_computing": computing})
    return times


def main() -> None:
    """Measure the shapes of stdin."""
    for asked in TypeAdapter(list[Asked]).validate_json(sys.stdin.buffer.read()):
        print(shape_times(asked, sys.argv[1]).model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
