"""The estimate of memory against what real processes took, each fresh: no cell before it has left anything behind."""

import itertools
import multiprocessing
from typing import Any

import pytest
import torch

from tests.trainables.memory_cells import measure
from tests.trainables.pairs import Case, cover
from trainables.cell import Precision, Recipe, Shape
from trainables.layout import Layout, default_zero
from trainables.model.counts import memory

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
    "vocabulary": (2, 256, 4, 32_000, 128, 8),
    "context": (6, 384, 6, 500, 1024, 2),
}

#: Tensor-parallel ranks and groups.
SPREADS = {"one": (1, 1), "tp2": (2, 1), "dp2": (1, 2)}
#: Values of the case, the ranks, the precision, the stage, recomputation, a shared vocabulary and the batch in pieces.
VALUES = (
    tuple(CASES),
    tuple(SPREADS),
    ("fp32", "bf16"),
    range(4),
    (True, False),
    (True, False),
    (True, False),
)

#: What one rank does by default in bf16, and a second stage of the longest context.
NAMED = [
    ("deep", "one", "bf16", 0, False, False, False),
    ("context", "one", "bf16", 1, False, False, False),
]
#: Each size is measured in two stages or more, not in all four.
APART = [(0, 3)]


def is_feasible(case: Case) -> bool:
    """A vocabulary is shared by tensor-parallel ranks, and one sequence has no pieces."""
    name, spread, _, _, _, vocabulary, pieces = case
    tensor, data = SPREADS[spread]
    share = CASES[name][-1] // data
    return (tensor > 1 or not vocabulary) and (share > 1 or not pieces)


def cases() -> list[Case]:
    """A case of each size and number of ranks; one more, because those of two ranks share a vocabulary or do not."""
    options = sorted(itertools.product(*VALUES[2:]), key=lambda option: sum(option[2:]))
    groups = [*itertools.product(*VALUES[:2]), ("context", "tp2")]
    return cover(groups, options, is_feasible, NAMED, apart=APART)


def arguments(
    name: str,
    precision: Precision,
    network: str = "gpt2",
    embeddings: str = "tied",
    optimizer: str = "adamw",
    **layout: Any,
) -> tuple[Shape, int, Recipe, Layout]:
    depth, width, heads, vocabulary, context, batch = CASES[name]
    recipe = Recipe(
        steps=4,
        batch=batch,
        context=context,
        precision=precision,
        network=network,
        embeddings=embeddings,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
    )
    ranks = layout.get("tensor_parallel", 1) * layout.get("data_parallel", 1)
    spread = Layout(**{"zero": default_zero(recipe, ranks), **layout})
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


def check(name: str, precision: Precision, **layout: Any) -> None:
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


def named(case: Case) -> str:
    options = zip(("recomputation", "vocabulary", "pieces"), case[4:], strict=True)
    return "-".join([*case[:3], f"zero{case[3]}", *(word for word, on in options if on)])


@pytest.mark.parametrize("case", cases(), ids=named)
def test_the_estimate_is_what_a_rank_takes(case: Case) -> None:
    name, spread, precision, zero, recomputes, vocabulary, pieces = case
    tensor, data = SPREADS[spread]
    layout = {"tensor_parallel": tensor, "data_parallel": data, "zero": zero}
    layout |= {"activation_checkpointing": recomputes, "shard_vocabulary": vocabulary}
    check(name, precision, **layout, **({"micro_batch": 1} if pieces else {}))


@pytest.mark.parametrize(("name", "precision"), [("deep", "bf16"), ("context", "fp32")])
def test_the_analysed_network_keeps_its_weights_of_attention(name: str, precision: Precision) -> None:
    check(name, precision, network="analysed")


@pytest.mark.parametrize("embeddings", ["tied", "untied"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("deep", {}),
        ("vocabulary", {}),
        ("context", {"activation_checkpointing": True}),
        ("square", {"tensor_parallel": 2, "shard_vocabulary": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
@pytest.mark.parametrize("network", ["llama", "qwen3"])
def test_the_estimate_is_what_a_rank_of_a_rotary_family_takes(
    network: str, name: str, layout: dict[str, Any], embeddings: str
) -> None:
    """A gated network keeps more of a layer than GPT-2's, and an untied embedding has a gradient of its own."""
    check(name, "fp32", network=network, embeddings=embeddings, **layout)


@pytest.mark.parametrize("network", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["wide", "square"])
def test_the_estimate_is_what_muon_takes(name: str, network: str) -> None:
    check(name, "fp32", network=network, optimizer="muon")
