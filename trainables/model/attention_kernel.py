"""The kernel that torch takes for softmax attention on a GPU, by the width of a head and the precision."""

from typing import Literal

from trainables.cell import Precision

Kernel = Literal["flash", "efficient", "math"]
#: The widest head of flash attention.
FLASH_WIDTH = 256


def attention_kernel(head_width: int, precision: Precision) -> Kernel:
    """Return the kernel of `scaled_dot_product_attention` for causal attention without a mask on an NVIDIA GPU.

    `flash` stands for cuDNN too, which torch prefers on an H100 up to 128 in multiples of 8; flash attention itself
    takes bf16 alone, and pads a width to a multiple of 8. `efficient` (of xformers) needs values in groups of 16
    bytes: 8 in bf16, 4 in fp32. `math` is a product, a softmax and a product in fp32, and backward needs its
    attention weights, [B, heads, T, T].

    Source: the conditions in ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.11 to 2.13, for compute capability
    8.0 and above. Not run on a GPU.
    """
    if precision == "bf16" and head_width <= FLASH_WIDTH:
        return "flash"
    return "efficient" if head_width % (8 if precision == "bf16" else 4) == 0 else "math"
