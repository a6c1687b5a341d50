"""Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama with norms of the queries and keys of each head."""

from typing import Any

from trainables.model.families.llama import Llama
from trainables.model.family import register


@register
class Qwen3(Llama):
    """Qwen3 as HuggingFace's `Qwen3ForCausalLM`."""

    name = "qwen3"
    title = "Qwen3"
    head_norms = 2
    # The norm undoes a scale of the matrix before it.
    query_scale = ".q_norm.weight"

    def huggingface(self) -> tuple[Any, Any]:
        """Return HuggingFace's classes of the configuration and of the model."""
        from transformers import Qwen3Config, Qwen3ForCausalLM

        return Qwen3Config, Qwen3ForCausalLM
