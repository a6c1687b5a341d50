"""The loss of a language model whose logits are too many to hold at once."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

from trainables.data.store.batches import IGNORED
from trainables.model.counts import CHUNK_LOGITS


class ChunkedLoss:
    """Mixin for a HuggingFace causal language model, before its class.

    A batch of more than `CHUNK_LOGITS` logits is scored in chunks of tokens: backward computes the logits of each chunk
    again, so that a rank never holds those of two. The loss differs by rounding only. It costs the FLOPs of one more
    forward pass of the head. torch's `linear_cross_entropy` would not, but returns the loss itself in bf16: 8.5625 for
    8.4945.
    """

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: int | None = None,
        needs_logits: bool = False,
        **others: Any,
    ) -> Any:
        """Return HuggingFace's output; without logits if the loss was computed in chunks.

        - `shift_labels`: the target of each token, [B, T]; `IGNORED` targets do not count.
        - `num_items_in_batch`: what the sum over targets is divided by; None: their number.
        - `needs_logits`: return the logits, however many they are.
        """
        head: Any = self.get_output_embeddings()  # type: ignore[attr-defined]
        vocabulary: int = self.config.vocab_size  # type: ignore[attr-defined]
        # With a shared vocabulary DeepSpeed has put a layer and a loss of its own here.
        is_chunked = shift_labels is not None and not needs_logits and type(head) is nn.Linear
        if not is_chunked or input_ids.numel() * vocabulary <= CHUNK_LOGITS:
            return super().forward(  # type: ignore[misc]
                input_ids=input_ids, labels=labels, shift_labels=shift_labels,
                **({} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}), **others,
            )  # fmt: skip
        assert shift_labels is not None

        def loss_sum(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            # Without the cache each chunk has its own bf16 copy of the matrix, so that the chunks' gradients of it are
            # added in fp32: in bf16 128 chunks were 2 % off.
            kind = hidden.device.type
            active, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            with torch.autocast(kind, dtype, enabled=active, cache_enabled=False):
                logits = head(hidden).float()
            return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

        hidden = self.base_model(input_ids=input_ids, **others).last_hidden_state  # type: ignore[attr-defined]
        chunks = math.ceil(input_ids.numel() * vocabulary / CHUNK_LOGITS)
        pairs = zip(hidden.flatten(0, 1).chunk(chunks), shift_labels.flatten().chunk(chunks), strict=True)
        sums = [checkpoint(loss_sum, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
        items = (shift_labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=torch.stack(sums).sum() / items)
