"""The estimate of memory against what real processes took, each fresh: no cell before it has left anything behind."""

import multiprocessing
from typing import Any

import pytest
import torch

from tests.trainables.memory_cells import measure
from trainables.cell import Precision, Recipe, Shape
from trainables.layout import Layout, default_zero
from trainables.model.counts import Memory, memory

pytestmark = pytest.mark.extended

#: What the project promises.
TOLERANCE = 0.15
#: Seconds a rank may take on a busy machine.
PATIENCE = 120.0
#: depth, width, heads, vocabulary, context, batch
CASES = {
    "deep": (16, 256, 4, 500, 128, 8),
    "wide": (2, 1024, 8, 500, 32, 2),
    "square": (6, 512, 8, 2000, 128, 4),
    "vocabulary": (2, 256, 4, 16_000, 128, 8),
    "context": (6, 256, 4, 500, 1024, 2),
}


def arguments(
    name: str, precision: Precision, network: str = "gpt2", **layout: Any
) -> tuple[Shape, int, Recipe, Layout]:
    depth, width, heads, vocabulary, context, batch = CASES[name]
    recipe = Recipe(steps=4, batch=batch, context=context, precision=precision, network=network)
    ranks = layout.get("tensor_parallel", 1) * layout.get("data_parallel", 1)
    spread = Layout(**{"zero": default_zero(precision, ranks), **layout})
    return Shape(depth=depth, width=width, heads=heads), vocabulary, recipe, spread


def measured(shape: Shape, vocabulary: int, recipe: Recipe, layout: Layout) -> int:
    """Bytes of the rank that held most."""
    if torch.cuda.is_available() and layout.ranks > torch.cuda.device_count():
        pytest.skip(f"{layout.ranks} ranks, and {torch.cuda.device_count()} GPU")
    # A fork server has the imports done and is otherwise as new; no process may be forked once it has used CUDA.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
    if not torch.cuda.is_available():
        context.set_forkserver_preload(["tests.trainables.memory_cells"])
    pipes, ranks = [], []
    try:
        for rank in range(layout.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=measure, args=(theirs, rank, shape, vocabulary, recipe, layout), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            ranks.append(process)
        if layout.ranks > 1:
            port = answer(pipes[0])
            for pipe in pipes[1:]:
                pipe.send(port)
        return max(answer(pipe) for pipe in pipes)
    finally:
        for process in ranks:
            process.join(5)
            process.kill()


def answer(pipe: Any) -> int:
    assert pipe.poll(PATIENCE), "a rank gave no answer"
    return int(pipe.recv())


def check(name: str, precision: Precision, **layout: Any) -> Memory:
    asked = arguments(name, precision, **layout)
    estimate, peak = memory(*asked), measured(*asked)
    ratio = estimate.total / peak
    print(
        f"| {name} | {precision} | {layout} | {estimate.moment} | {estimate.total / 1e6:.0f} | {peak / 1e6:.0f} ",
        end="",
    )
    print(f"| {ratio:.3f} |")
    assert peak > 100e6, "too small to tell"
    assert 1 - TOLERANCE <= ratio <= 1 + TOLERANCE, (estimate, peak)
    return estimate


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_what_a_rank_takes(name: str, precision: Precision, tensor_parallel: int) -> None:
    check(name, precision, tensor_parallel=tensor_parallel)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_groups_share_what_the_stage_says(zero: int, precision: Precision) -> None:
    check("wide", precision, data_parallel=2, zero=zero)


def test_stage_0_keeps_everything_in_every_group() -> None:
    check("wide", "fp32", data_parallel=2, zero=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputation_keeps_one_layer(precision: Precision) -> None:
    estimate = check("deep", precision, activation_checkpointing=True)
    assert estimate.total < memory(*arguments("deep", precision)).total


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_shared_vocabulary_halves_the_head(precision: Precision) -> None:
    estimate = check("vocabulary", precision, tensor_parallel=2, shard_vocabulary=True)
    assert estimate.total < 0.75 * memory(*arguments("vocabulary", precision, tensor_parallel=2)).total


@pytest.mark.parametrize("name", ["deep", "wide"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pieces_of_a_batch_add_up_their_gradients(name: str, precision: Precision) -> None:
    check(name, precision, micro_batch=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["deep", "context"])
def test_the_analysed_network_keeps_its_weights_of_attention(name: str, precision: Precision) -> None:
    check(name, precision, network="analysed")
