"""How many kernels a layer adds to a training step, and how often a step waits for the device."""

import pytest
import torch

from benchmarks.kernels import (
    LIMITS,
    NETWORKS,
    READ,
    Counting,
    of_cell,
    of_compiled_cell,
    of_plain_torch,
    on_ranks,
    per_layer,
)
from tests.trainables.train import golden
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.model.gpt2 import ATTENTION


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
def test_on_one_rank_a_layer_adds_the_kernels_of_plain_torch_and_no_read(tmp_path, network, precision):
    plain = per_layer(of_plain_torch, precision, network)
    assert per_layer(of_cell, tmp_path, Layout(), {"precision": precision, "network": network}) == plain
    assert plain[0] <= NETWORKS[network][0]
    assert plain[1] == 0


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
def test_a_compiled_layer_adds_a_few_fused_kernels(tmp_path, network):
    kernels, _ = per_layer(of_compiled_cell, tmp_path, network)
    assert 0 < kernels <= NETWORKS[network][1]


@pytest.mark.parametrize("parametrisation", ["sp", "completep"])
@pytest.mark.slow
def test_on_one_rank_a_step_reads_the_device_for_the_point_of_its_curve_alone(tmp_path, parametrisation):
    """The three reads of a point: whether the loss is finite, the loss, the norm."""
    recipe = {"precision": "bf16", "parametrisation": parametrisation}
    more = of_cell(2, 8, tmp_path, Layout(), recipe)
    more.subtract(of_cell(2, 4, tmp_path, Layout(), recipe))
    assert more[READ] == 4 * 3


@pytest.mark.slow
def test_at_zero_1_on_two_ranks_a_layer_adds_few_more(ranks, tmp_path):
    layout = Layout(data_parallel=2, zero=1)
    kernels, reads = on_ranks(ranks, layout, tmp_path, precision="bf16")
    most, most_reads = LIMITS[layout]
    assert 0 < kernels <= most
    assert reads <= most_reads


@pytest.mark.parametrize(("attention", "reads"), [(ATTENTION, 0), ("sdpa", 1)])
def test_library_defect_huggingface_reads_the_device_to_build_no_mask(attention, reads):
    """Under our own name there is no mask and no read. When `sdpa` has none either, the name can go."""
    one = golden.cell()
    model = build_model(one.shape, one.recipe, 9, 0)
    model.config._attn_implementation = attention
    with Counting() as counting:
        model(input_ids=torch.zeros(2, one.recipe.context, dtype=torch.long))
    assert counting.counts[READ] == reads
