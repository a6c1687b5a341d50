"""How many kernels a training step starts and how often it waits for a number: what `make bench` cannot attribute."""

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainables.train import golden
from trainables.layout import Layout
from trainables.model.family import build_model
from trainables.model.gpt2 import ATTENTION
from trainables.train.loop import train

READ = "aten::_local_scalar_dense"


class Counting(TorchDispatchMode):
    """Counts the operations that are carried out, by name; views of tensors are none."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = [value.alias_info for value in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        if not is_view and not func.namespace.startswith("profiler"):
            self.counts[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


def counts(root, layout, steps, **recipe):
    one = golden.cell(**recipe)
    one = one.model_copy(update={"recipe": one.recipe.model_copy(update={"steps": steps})})
    with Counting() as counting:
        train(one, data_root=root, layout=layout, evaluations=1)
    return counting.counts


@pytest.mark.parametrize(
    ("layout", "recipe", "kernels", "reads"),
    [(Layout(), {}, 98, 3), (Layout(zero=1), {"precision": "bf16"}, 662, 7)],
    ids=["fp32 stage 0", "bf16 stage 1"],
)
def test_a_step_starts_no_more_kernels_and_waits_no_more_often_than_it_did(
    tmp_path, layout, recipe, kernels, reads
):
    """A step of two layers with its point of the curve, by the difference of eight steps and four.

    Three reads are those of the point. The numbers are those of today, and may fall: lower them then. On a GPU each
    read of a number waits for the device, and each kernel of so small a cell takes longer to start than to run.
    """
    counts(tmp_path, layout, 2, **recipe)  # what is done once in a process
    more = counts(tmp_path, layout, 8, **recipe)
    more.subtract(counts(tmp_path, layout, 4, **recipe))
    assert more[READ] <= 4 * reads, more
    assert more.total() <= 4 * kernels, more


@pytest.mark.parametrize(("attention", "reads"), [(ATTENTION, 0), ("sdpa", 1)])
def test_library_defect_huggingface_reads_the_device_to_build_no_mask(attention, reads):
    """Under our own name there is no mask and no read. When `sdpa` has none either, the name can go."""
    one = golden.cell()
    model = build_model(one.shape, one.recipe, 9, 0)
    model.config._attn_implementation = attention
    with Counting() as counting:
        model(input_ids=torch.zeros(2, one.recipe.context, dtype=torch.long))
    assert counting.counts[READ] == reads
