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
#: Repetitions and seconds that a measurement takes at least, and seconds after which it ends in any case.
LEAST_REPETITIONS, LEAST_SECONDS, LIMIT = 6, 1.0, 20.0


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
    computing: float | None = None
    """CPU time over wall time of the training, see `StepTimes.computing`."""
    latencies: list[Latency] = []


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


def latency(model: Any, context: int, batch: int) -> Latency:
    """Time prefill and decode of a plain model until the times are steady, or for `LIMIT` seconds.

    The prompt is what a sequence of `context` tokens has before its new tokens.
    """
    import torch
    from transformers import DynamicCache

    new = min(NEW_TOKENS, int(NEW_SHARE * context))
    prompt = torch.randint(model.config.vocab_size, (batch, context - new), device=model.device)

    def generated() -> tuple[float, float, Any]:
        cache = DynamicCache(config=model.config)
        step = functools.partial(model, past_key_values=cache, use_cache=True)
        output, prefill = _timed(functools.partial(step, input_ids=prompt, logits_to_keep=1), model.device)
        each = []
        for _ in range(new):
            token = output.logits[:, -1:].argmax(-1)
            output, seconds = _timed(functools.partial(step, input_ids=token), model.device)
            each.append(seconds)
        return prefill, median(each), cache

    with torch.inference_mode():
        # The first launches of all kernels are not counted.
        cache = generated()[2]
        began, prefills, decodes = time.perf_counter(), list[float](), list[float]()
        while not _is_enough(time.perf_counter() - began, prefills, decodes):
            prefill, decode, cache = generated()
            prefills.append(prefill)
            decodes.append(decode)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    return Latency(
        batch=batch,
        prefill_ms=1000 * median(prefills),
        decode_ms=1000 * median(decodes),
        kv_bytes_per_token=held // (batch * context),
        prefill_steady=is_steady(prefills),
        decode_steady=is_steady(decodes),
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


def _is_enough(seconds: float, *measured: Sequence[float]) -> bool:
    if len(measured[0]) < LEAST_REPETITIONS:
        return False
    return seconds >= LIMIT or (seconds >= LEAST_SECONDS and all(map(is_steady, measured)))


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
    cell, rate, computing = asked.cell, None, None
    if "train" in asked.measures:
        steps = step_times(cell, asked.layout, data)
        rate = cell.recipe.batch * cell.recipe.context / steps.step_seconds
        computing = steps.computing
    latencies = []
    if {"prefill", "decode"} & set(asked.measures):
        model = plain_model(cell.shape, cell.recipe, asked.vocabulary)
        latencies = [latency(model, cell.recipe.context, batch) for batch in BATCHES]
    return ShapeTimes(train_tokens_per_second=rate, computing=computing, latencies=latencies)


def main() -> None:
    """Measure the shapes of stdin."""
    for asked in TypeAdapter(list[Asked]).validate_json(sys.stdin.buffer.read()):
        print(shape_times(asked, sys.argv[1]).model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
