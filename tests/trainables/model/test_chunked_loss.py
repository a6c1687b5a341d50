"""The loss in chunks against the loss of all logits, and what it holds at once."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.cell import Recipe, Shape
from trainables.data.store.batches import IGNORED
from trainables.model import chunked_loss
from trainables.model.build import build_model

VOCABULARY, BATCH, CONTEXT = 500, 4, 32


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


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, VOCABULARY, (2, BATCH, CONTEXT), generator=generator)
    y[0, :9] = IGNORED
    return x, y


def step(precision: str, **options: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Loss and gradients of a batch, and the most elements at once."""
    recipe = Recipe(steps=1, batch=BATCH, context=CONTEXT)
    model = build_model(Shape(depth=1, width=16, heads=2), recipe, VOCABULARY, 0)
    x, y = batch()
    with Largest() as largest, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = model(input_ids=x, labels=y, shift_labels=y, **options).loss
        loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, largest.elements


@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-6), ("bf16", 4e-3)])
@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 7}], ids=["mean", "sum"])
@pytest.mark.parametrize("chunk", [9_000, 20_001, 30_000])
def test_chunks_give_the_loss_and_the_gradients_of_the_whole(monkeypatch, precision, close, options, chunk):
    """In bf16 the gradient of the head's matrix is rounded for each chunk; loss and logits have the same bits."""
    loss, gradients, whole = step(precision, **options)
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", chunk)
    ours, found, held = step(precision, **options)
    assert float(ours) == pytest.approx(float(loss), rel=1e-6)
    for name, gradient in found.items():
        assert float((gradient - gradients[name]).norm() / gradients[name].norm()) < close, name
    assert whole == BATCH * CONTEXT * VOCABULARY
    assert held <= chunk


def test_logits_are_there_when_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 1)
    recipe = Recipe(steps=1, batch=BATCH, context=CONTEXT)
    model = build_model(Shape(depth=1, width=16, heads=2), recipe, VOCABULARY, 0)
    x, y = batch()
    output = model(input_ids=x, labels=y, shift_labels=y, needs_logits=True)
    assert output.logits.shape == (BATCH, CONTEXT, VOCABULARY)
    assert model(input_ids=x).logits.shape == output.logits.shape
    chunked = model(input_ids=x, labels=y, shift_labels=y)
    assert chunked.loss.item() == pytest.approx(output.loss.item(), rel=1e-6)


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
