"""The weights of a whole model, as HuggingFace's class reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

#: HuggingFace's files omit it where it is tied to the embedding.
HEAD = "lm_head.weight"


def whole_weights(
    state: Mapping[str, torch.Tensor], huggingface: Any, config: Any, absent: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Return the weights of HuggingFace's class on the CPU; a RuntimeError if they are not all of it.

    Weights [out, in] become [in, out] where the class has `Conv1D`; a tied head is omitted. Weights whose names contain
    one of `absent` are not in the state: gains of norms are 1 and all others 0, so that such a network adds 0.
    """
    with torch.device("meta"), no_init_weights():
        model = huggingface(config)
    transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    omitted = {HEAD} if config.tie_word_embeddings else set()
    wanted = {name: value.shape for name, value in model.state_dict().items() if name not in omitted}
    tensors = {
        name: (value.t() if name in transposed else value).detach().cpu().contiguous()
        for name, value in state.items()
        if name not in omitted
    }
    for name, shape in wanted.items():
        if any(part in name for part in absent):
            is_gain = len(shape) == 1 and name.endswith(".weight")
            tensors[name] = torch.ones(shape) if is_gain else torch.zeros(shape)
    given = {name: value.shape for name, value in tensors.items()}
    if given != wanted:
        wrong = sorted(name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name))
        raise RuntimeError(f"the weights are not those of the whole model: {', '.join(wrong[:3])} differ")
    return tensors
