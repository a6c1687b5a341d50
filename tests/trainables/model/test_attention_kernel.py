"""The kernel of attention by head width, and what the plain one stores, counted in torch's own."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.attention_kernel import attention_kernel
from trainables.model.counts import memory


@pytest.mark.parametrize(
    ("head_width", "bf16", "fp32"),
    [
        (64, "flash", "efficient"),
        (50, "flash", "math"),
        (68, "flash", "efficient"),
        (256, "flash", "efficient"),
        (257, "math", "math"),
        (260, "math", "efficient"),
        (264, "efficient", "efficient"),
        (984, "efficient", "efficient"),
    ],
)
def test_the_kernel_by_head_width(head_width, bf16, fp32):
    assert attention_kernel(head_width, "bf16") == bf16
    assert attention_kernel(head_width, "fp32") == fp32


class LargestScores(TorchDispatchMode):
    """The bytes of all results of [..., T, T] that do not share their memory."""

    def __init__(self, context):
        super().__init__()
        self.context, self.tensors = context, {}

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor) and result.shape[-2:] == (self.context, self.context):
            # Kept, so that no other takes its place.
            self.tensors[result.untyped_storage().data_ptr()] = result
        return result

    @property
    def bytes(self):
        return sum(tensor.nbytes for tensor in self.tensors.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scores_are_counted_as_torch_stores_them(precision):
    """One layer more keeps one more fp32 matrix of attention weights, and a layer's backward makes two more."""
    batch, heads, width, context = 2, 3, 261 * 3, 1024
    saved = {}

    def pack(tensor):
        if tensor.shape[-2:] == (context, context):
            saved[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    query, key, value = torch.randn(3, batch, heads, context, 5, requires_grad=True).unbind()
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"),
    ):
        output = scaled_dot_product_attention(query, key, value, is_causal=True)
    with LargestScores(context) as backward:
        output.sum().backward()
    # Backward reads what forward saved, too.
    stored, inside = sum(saved.values()), backward.bytes - sum(saved.values())
    assert (stored, inside) == (4 * batch * heads * context**2, 2 * 4 * batch * heads * context**2)

    # More of them, so that backward is the moment of the peak with any kernel.
    more = 32
    recipe = Recipe(steps=1, batch=more * batch, context=context, precision=precision)
    copies = 4 * batch * context * 3 * width
    for again in (False, True):
        layout = Layout(activation_checkpointing=again)
        for depth in (4, 5):
            shape = Shape(depth=depth, width=width, heads=heads)
            fused, plain = (memory(shape, 16, recipe, layout, on_gpu=on_gpu) for on_gpu in (False, True))
            assert fused.moment == plain.moment == "backward"
            kept = 1 if again else depth
            assert plain.activations - fused.activations == more * (kept * (stored + copies) + inside)


def test_a_fused_kernel_stores_no_scores_whatever_the_device():
    shape, recipe = Shape(depth=4, width=512, heads=8), Recipe(steps=1, batch=2, context=128)
    assert memory(shape, 16, recipe, Layout()) == memory(shape, 16, recipe, Layout(), on_gpu=True)
