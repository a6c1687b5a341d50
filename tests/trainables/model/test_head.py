"""The loss in one pass against HuggingFace's loss of all logits, and what it holds at once."""

import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import loss as bench
from trainables.cell import Recipe, Shape
from trainables.data.store.batches import IGNORED
from trainables.model import head
from trainables.model.build import build_model

VOCABULARY, BATCH, CONTEXT = 500, 4, 32
TOKENS = BATCH * CONTEXT


class Largest(TorchDispatchMode):
    """The most elements that one result of an operation had."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


class LiveBytes(TorchDispatchMode):
    """The bytes that results of operations had after the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[Any, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            storage = tensor.untyped_storage()
            self.storages[storage.data_ptr()] = weakref.ref(storage), storage.nbytes()
        self.bytes = sum(count for alive, count in self.storages.values() if alive())
        return result


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, VOCABULARY, (2, BATCH, CONTEXT), generator=generator)
    y[0, :9] = IGNORED
    return x, y


def model_of(network: str = "gpt2", embeddings: str = "tied") -> Any:
    recipe = Recipe(steps=1, batch=BATCH, context=CONTEXT, network=network, embeddings=embeddings)
    return build_model(Shape(depth=1, width=16, heads=2), recipe, VOCABULARY, 0)


def step(model: Any, precision: str, **options: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Loss and gradients of a batch, and the most elements at once."""
    x, y = batch()
    with Largest() as largest, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = model(input_ids=x, labels=y, shift_labels=y, **options).loss
        loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, largest.elements


def one_pass(monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(head, "ONE_PASS_LOGITS", 0)
    monkeypatch.setitem(head.CHUNK_LOGITS, "cpu", chunk)


def apart(gradient: torch.Tensor, truth: torch.Tensor) -> float:
    return float((gradient - truth).norm() / truth.norm())


NETWORKS = (("gpt2", "tied"), ("llama", "tied"), ("llama", "untied"), ("qwen3", "tied"), ("qwen3", "untied"))


@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 7}], ids=["mean", "sum"])
@pytest.mark.parametrize("chunk", [9_000, 20_001, 30_000, 1 << 20])
@pytest.mark.parametrize(("network", "embeddings"), NETWORKS)
def test_loss_and_gradients_are_those_of_whole_logits(monkeypatch, options, chunk, network, embeddings):
    """In fp32. In bf16 the loss is the same and gradients are about as far from those of fp32 (at most 1.37 times)."""
    whole = {p: step(model_of(network, embeddings), p, **options) for p in ("fp32", "bf16")}
    one_pass(monkeypatch, chunk)
    ours = {p: step(model_of(network, embeddings), p, **options) for p in ("fp32", "bf16")}
    for precision in whole:
        assert float(ours[precision][0]) == pytest.approx(float(whole[precision][0]), rel=1e-6)
        assert whole[precision][2] == TOKENS * VOCABULARY
        assert ours[precision][2] <= max(chunk, VOCABULARY * 16)
    exact = whole["fp32"][1]
    assert exact.keys() == ours["fp32"][1].keys()
    for name, truth in exact.items():
        assert apart(ours["fp32"][1][name], truth) < 1e-6, name
        assert apart(ours["bf16"][1][name], truth) < 1.5 * apart(whole["bf16"][1][name], truth), name


@pytest.mark.parametrize("multiple", [64, 512])
def test_symbols_that_fill_up_the_vocabulary_change_nothing(multiple):
    """As on a GPU, where the matrix gets rows of zeros."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator)
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    padded = functional.pad(logits, (0, -VOCABULARY % multiple))
    loss, gradient = head.scored(logits, targets, VOCABULARY)
    same, wide = head.scored(padded, targets, VOCABULARY)
    assert torch.equal(loss, same)
    assert wide.shape == padded.shape
    assert torch.equal(wide[:, :VOCABULARY], gradient)
    assert not wide[:, VOCABULARY:].any()


def test_the_last_operation_on_a_chunk_in_bf16_has_no_copy_in_fp32_beside_it():
    """With symbols beyond the vocabulary, as on a GPU: logits, the gradient and the gradient filled up."""
    logits = torch.zeros(TOKENS, VOCABULARY + 12, dtype=torch.bfloat16)
    with LiveBytes() as live:
        head.scored(logits, torch.zeros(TOKENS, dtype=torch.int64), VOCABULARY)
    assert 3 * logits.nbytes * 0.95 < live.bytes < 3 * logits.nbytes * 1.05


def test_a_small_vocabulary_is_scored_whole():
    x, y = batch()
    assert model_of()(input_ids=x, labels=y, shift_labels=y).logits is not None


def test_without_gradients_the_loss_is_the_same(monkeypatch):
    x, y = batch()
    model = model_of()
    whole = model(input_ids=x, labels=y, shift_labels=y, num_items_in_batch=1).loss
    one_pass(monkeypatch, 9_000)
    with torch.no_grad(), Largest() as largest:
        loss = model(input_ids=x, labels=y, shift_labels=y, num_items_in_batch=1).loss
    assert float(loss) == pytest.approx(float(whole), rel=1e-6)
    assert largest.elements <= 9_000


def test_logits_are_there_when_they_are_asked_for(monkeypatch):
    one_pass(monkeypatch, 1)
    model, (x, y) = model_of(), batch()
    output = model(input_ids=x, labels=y, shift_labels=y, needs_logits=True)
    assert output.logits.shape == (BATCH, CONTEXT, VOCABULARY)
    assert model(input_ids=x).logits.shape == output.logits.shape
    scored = model(input_ids=x, labels=y, shift_labels=y)
    assert scored.logits is None
    assert scored.loss.item() == pytest.approx(output.loss.item(), rel=1e-6)


def test_a_second_backward_is_refused(monkeypatch):
    one_pass(monkeypatch, 9_000)
    x, y = batch()
    loss = model_of()(input_ids=x, labels=y, shift_labels=y).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward runs once"):
        loss.backward()


@pytest.mark.parametrize(
    ("tokens", "most", "lengths"),
    [(64, 64, [64]), (64, 20, [16] * 4), (60, 50, [30, 30]), (7, 3, [3, 3, 1]), (7, 1, [1] * 7)],
)
def test_chunks_are_equally_long_where_they_can_be(monkeypatch, tokens, most, lengths):
    monkeypatch.setitem(head.CHUNK_LOGITS, "cpu", most * VOCABULARY)
    hidden = torch.zeros(tokens, 3)
    assert [len(hidden[rows]) for rows in head.chunks(hidden, VOCABULARY)] == lengths


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("multiple", [1, 64])
def test_the_compiled_loss_is_the_same(precision, multiple):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator).to(dtype)
    logits = functional.pad(logits, (0, -VOCABULARY % multiple))
    targets = batch()[1].flatten()
    compiled = torch.compile(head.scored, dynamic=False)
    (loss, gradient), (fused, of_fused) = (
        score(logits, targets, VOCABULARY) for score in (head.scored, compiled)
    )
    torch.compiler.reset()
    assert float(fused) == pytest.approx(float(loss), rel=1e-6)
    counts = targets != IGNORED
    assert float((of_fused[counts] - gradient[counts]).abs().max()) <= (1e-6 if precision == "fp32" else 4e-3)


@pytest.mark.slow
def test_one_pass_moves_fewer_bytes_than_whole_logits_and_compiled_a_quarter():
    """Of few tokens, where the gradient of the matrix weighs more than it does in training."""
    assert bench.bytes_moved(bench.ours, "fp32", 700) < bench.bytes_moved(bench.whole, "fp32", 700)
    compiled, whole = bench.compiled_bytes(tokens=100), bench.bytes_moved(bench.whole, "bf16", 700)
    assert 0 < compiled <= bench.COMPILED_BYTES < 0.25 * whole


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_library_defect_torchs_linear_cross_entropy_rounds_the_loss_to_bf16(reduction):
    """When this fails, `linear_cross_entropy` can take the place of our chunks: it saves a pass of the head."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(256, 64, generator=generator).bfloat16()
    weight = torch.randn(4000, 64, generator=generator).bfloat16()
    target = torch.randint(0, 4000, (256,), generator=generator)
    options = torch.nn.LinearCrossEntropyOptions()
    loss = torch.nn.functional.linear_cross_entropy(
        hidden, weight, target, reduction=reduction, options=options
    )
    assert loss.dtype == torch.bfloat16
