"""What the trainer is compared with: a plain torch loop of the same model, and a compiled one in nanoGPT's way."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from tests.plain_gpt2 import PlainGPT2
from trainables.cell import Cell
from trainables.data.store.batches import batch
from trainables.data.store.open import open_store
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.parametrisation import param_groups
from trainables.ranks.process_group import device
from trainables.train.engine import schedule

#: The parameters as groups of an optimizer, and the mean loss of a micro-batch from inputs and targets.
Rival = tuple[list[dict[str, Any]], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]


def plain(cell: Cell, root: Path) -> Rival:
    """The trainer's own HuggingFace model."""
    vocabulary = open_store(cell.data, context=cell.recipe.context, root=root, key=cell.data_key).vocabulary
    model = build_model(cell.shape, cell.recipe, vocabulary, cell.seed).to(device())
    groups = param_groups(model.named_parameters(), cell.shape, cell.recipe, cell.lr)
    return groups, lambda x, y: model(input_ids=x, labels=y, shift_labels=y).loss


def compiled(cell: Cell, root: Path, backend: str) -> Rival:
    """A hand-written GPT-2 that is compiled as a whole with its loss."""
    store = open_store(cell.data, context=cell.recipe.context, root=root, key=cell.data_key)
    shape = cell.shape
    model = PlainGPT2(shape.depth, shape.width, shape.heads, store.vocabulary, cell.recipe.context)
    model.copy_from(build_model(shape, cell.recipe, store.vocabulary, cell.seed))
    model.to(device())

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))

    return [{"params": list(model.parameters())}], torch.compile(loss, backend=backend)


def run(cell: Cell, root: Path, rival: Rival, layout: Layout) -> tuple[list[float], float]:
    """Train a cell as a careful person writes it: fp32 weights, autocast, fused AdamW, clipping, the same schedule.

    Returns:
        The loss of every step, and the seconds of a step of the second half.
    """
    recipe, (groups, loss_of) = cell.recipe, rival
    store = open_store(cell.data, context=recipe.context, root=root, key=cell.data_key)
    optimizer = torch.optim.AdamW(groups, lr=cell.lr, betas=(recipe.beta1, recipe.beta2), fused=True)
    parameters = [parameter for group in groups for parameter in group["params"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    factor, pieces = schedule(recipe), layout.pieces(recipe)
    losses, begun = [], 0.0
    for step in range(recipe.steps):
        if step == recipe.steps // 2:
            wait()
            begun = time.perf_counter()
        x, y = (
            torch.from_numpy(part).to(device())
            for part in batch(store, context=recipe.context, batch=recipe.batch, seed=cell.seed, step=step)
        )
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor(step)
        total = torch.zeros((), device=device())
        for inputs, targets in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            with autocast(recipe.precision):
                loss = loss_of(inputs, targets) / pieces
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    wait()
    seconds = (time.perf_counter() - begun) / (recipe.steps - recipe.steps // 2)
    return [float(loss) for loss in losses], seconds


def autocast(precision: str) -> AbstractContextManager[object]:
    """Compute in bf16 where the recipe says so."""
    return torch.autocast(device().type, torch.bfloat16) if precision == "bf16" else nullcontext()


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
