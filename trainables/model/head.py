"""The head of a language model, and its loss in one pass over the logits."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutput

from trainables.data.store.batches import IGNORED
from trainables.model.counts import CHUNK_LOGITS, ONE_PASS_LOGITS

Tensor = torch.Tensor
#: From logits in the compute precision [n, V] and targets [n], the sum of the losses and its gradient by the logits, in
#: their precision. Rows of ignored targets have any gradient.
Scored = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
#: On a GPU the bf16 copy of the matrix is padded with rows of zeros to a multiple of so many symbols. Tensor cores need
#: rows of logits that are aligned to 16 bytes: with 50,257 symbols the products of the head take two to four times as
#: long as with 50,304 (as others measured; no GPU has run this code).
ALIGNED = 64


def scored(logits: Tensor, targets: Tensor, symbols: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of logits [n, V'] and its gradient by them. Only the first `symbols` count.

    `torch.compile` makes it two or three reads and one write of the logits. Eagerly it works in place, in fp32.
    """
    log_p = functional.log_softmax(logits[:, :symbols], dim=-1, dtype=torch.float32)
    loss = functional.nll_loss(log_p, targets, ignore_index=IGNORED, reduction="sum")
    at = targets.clamp(min=0)
    if torch.compiler.is_compiling():
        hit = torch.arange(symbols, device=targets.device) == at[:, None]
        gradient = log_p.exp() - hit.float()
    else:
        gradient = log_p.exp_()
        gradient[torch.arange(len(at), device=at.device), at] -= 1
    gradient, beyond = gradient.to(logits.dtype), logits.shape[1] - symbols
    # Or bf16 would have 10 bytes per logit at once below, and the estimate of memory has 8.
    del log_p
    return loss, functional.pad(gradient, (0, beyond)) if beyond else gradient


class _LossSum(torch.autograd.Function):
    """The sum of the losses over tokens; forward computes the gradients by hidden states and matrix too."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, score: Scored
    ) -> Tensor:
        symbols = len(weight)
        beyond = -symbols % ALIGNED if weight.is_cuda and dtype != weight.dtype else 0
        cast = functional.pad(weight.to(dtype), (0, 0, 0, beyond)) if beyond else weight.to(dtype)
        counts = (targets != IGNORED)[:, None]
        of_hidden = torch.empty(hidden.shape, dtype=dtype, device=hidden.device)
        of_weight, total = torch.zeros_like(weight), torch.zeros((), device=hidden.device)
        for rows in chunks(hidden, symbols):
            part = hidden[rows].to(dtype)
            loss, gradient = score(part @ cast.t(), targets[rows], symbols)
            total += loss
            torch.mm(gradient, cast, out=of_hidden[rows])
            # An ignored target has no weight here, which is cheaper than in the gradient by the logits.
            part = part * counts[rows]
            if dtype == weight.dtype:
                of_weight.addmm_(gradient[:, :symbols].t(), part)
            else:
                # Sums in fp32: in bf16 128 chunks were 2 % off.
                of_weight += (gradient.t() @ part)[:symbols]
            del gradient
        ctx.gradients = of_hidden.mul_(counts), of_weight, hidden.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of this loss are scaled in place, so backward runs once")
        of_hidden, of_weight, dtype = ctx.gradients
        ctx.gradients = None
        return of_hidden.to(dtype).mul_(factor), of_weight.mul_(factor), None, None, None


def chunks(hidden: Tensor, symbols: int) -> Iterator[slice]:
    """Yield the rows of hidden states [n, d] whose logits exist at once, `CHUNK_LOGITS` of the device at most.

    Chunks are equally long where a divisor of `n` allows it: for each length the compiled loss is compiled again.
    """
    count = len(hidden)
    fewest = math.ceil(count * symbols / CHUNK_LOGITS[hidden.device.type])
    number = next((n for n in range(fewest, 2 * fewest) if count % n == 0), fewest)
    rows = math.ceil(count / number)
    for first in range(0, count, rows):
        yield slice(first, first + rows)


class Head(nn.Linear):
    """The head of a language model, which can score its own logits.

    It is a module of its own, because ZeRO-3 gathers a weight when the module that holds it is called.
    """

    #: What computes a chunk's losses; the trainer may set its compiled form.
    score: Scored = staticmethod(scored)

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits [.., V] of hidden states [.., d]; with targets [..] the sum of their losses instead."""
        if targets is None:
            return super().forward(hidden)
        hidden, targets, kind = hidden.flatten(0, -2), targets.flatten(), hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        if torch.is_grad_enabled():
            with torch.autocast(kind, enabled=False):
                total: Tensor = _LossSum.apply(  # type: ignore[no-untyped-call]
                    hidden, self.weight, targets, dtype, self.score
                )
            return total
        sums = [
            functional.cross_entropy(
                super(Head, self).forward(hidden[rows]).float(),
                targets[rows],
                ignore_index=IGNORED,
                reduction="sum",
            )
            for rows in chunks(hidden, self.out_features)
        ]
        return torch.stack(sums).sum()


class OnePassLoss:
    """Mixin for a HuggingFace causal language model, before its class.

    For a micro-batch of more than `ONE_PASS_LOGITS` logits, loss and both gradients of a chunk of tokens are computed
    at once, so that no logits are kept for backward or computed again. For fewer the overhead, 50 µs on a CPU, is
    more than it saves. torch's `linear_cross_entropy` also works in chunks, but returns the loss itself in bf16: 8.5625
    for 8.4945.
    """

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)  # type: ignore[call-arg]
        # In place, so that a tied weight stays tied.
        self.get_output_embeddings().__class__ = Head  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: int | None = None,
        needs_logits: bool = False,
        **others: Any,
    ) -> Any:
        """Return HuggingFace's output; without logits if the loss was computed in one pass.

        - `shift_labels`: the target of each token, [B, T]; `IGNORED` targets do not count.
        - `num_items_in_batch`: what the sum over targets is divided by; None: their number.
        - `needs_logits`: return the logits, however many they are.
        """
        head: Any = self.get_output_embeddings()  # type: ignore[attr-defined]
        # With a shared vocabulary DeepSpeed has put a layer and a loss of its own here.
        can_score = shift_labels is not None and not needs_logits and isinstance(head, Head)
        if not can_score or input_ids.numel() * head.out_features <= ONE_PASS_LOGITS:
            return super().forward(  # type: ignore[misc]
                input_ids=input_ids, labels=labels, shift_labels=shift_labels,
                **({} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}), **others,
            )  # fmt: skip
        assert shift_labels is not None
        hidden = self.base_model(input_ids=input_ids, **others).last_hidden_state  # type: ignore[attr-defined]
        items = (shift_labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=head(hidden, shift_labels) / items)
