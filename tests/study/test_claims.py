"""The claims of presets in docs/depth.md, on a few of their own cells; the sources are in the presets."""

import pytest

from study.plan.plan import make_plan
from study.spec.study import load_spec
from trainables.train.loop import train

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def trained(root, preset, cell, *overrides, seed=0):
    """The result of one cell of a preset, all of a series taken as one study."""
    plan = make_plan(load_spec(preset, ["vary=null", "diagnostics=[]", *overrides]))
    return train(plan.planned(f"{cell}-s{seed}").cell, data_root=root, evaluations=1)


def loss(*arguments, seeds=(0,)):
    return sum(trained(*arguments, seed=seed).loss for seed in seeds) / len(seeds)


def accuracy(*arguments):
    return trained(*arguments).evaluations[-1].measures["accuracy"]


def test_at_48_layers_scaled_branches_lead_and_norms_behind_the_sum_learn_nothing(root):
    found = {
        residual: loss(
            root,
            "very-deep",
            "L48-d16",
            f"training.residual={residual}",
            "search.lr_factors=[1]",
            "training.steps=80",
        )
        for residual in ("pre", "linear", "post")
    }
    assert found["linear"] < 0.95 * found["pre"]
    assert found["pre"] < 0.95 * found["post"]


def test_half_of_the_tokens_take_the_lead_of_four_layers_away(root):
    """At N = 27,500 four layers are 5 % of the loss ahead of one on 720,000 tokens, and on half of these nothing."""

    def lead(tokens):
        one, four = (
            loss(root, "low-resource", cell, f"training.tokens={tokens}", seeds=(0, 1))
            for cell in ("L1-d48", "L4-d24")
        )
        return one / four - 1

    assert lead(720_000) > 0.04
    assert abs(lead(360_000)) < 0.02


def test_four_layers_lead_with_8_symbols_and_trail_with_1024(root):
    def lead(vocabulary):
        one, four = (
            loss(root, "vocabulary", cell, f"data.vocabulary={vocabulary}") for cell in ("L1-d48", "L4-d24")
        )
        return one / four - 1

    assert lead(8) > 0.01
    assert lead(1024) < -0.05


def test_depth_pays_more_in_the_network_of_the_theory(root):
    """At N = 27,500, each network at its better rate: four layers against one."""

    def lead(network, factor):
        one, four = (
            loss(
                root, "analysed-network", cell, f"training.network={network}", f"search.lr_factors=[{factor}]"
            )
            for cell in ("L1-d48", "L4-d24")
        )
        return one / four - 1

    gpt2, analysed = lead("gpt2", 1), lead("analysed", 3)
    assert gpt2 > 0.04
    assert analysed > gpt2 + 0.01


def graded(root, preset, cell, *overrides):
    """The accuracy of each difficulty."""
    measures = trained(root, preset, cell, *overrides).evaluations[-1].measures
    return {int(name.rpartition("_")[2]): value for name, value in measures.items() if name != "accuracy"}


def test_the_more_layers_the_more_hops_are_made(root):
    steps = "training.steps=1000"
    one, three = (graded(root, "hops", f"L{depth}-d32", steps) for depth in (1, 3))
    # A quarter of the preset's steps. A guess among the two letters that can follow is right in half.
    assert one[1] > 0.75
    assert one[4] < 0.6
    assert three[1] > 0.97
    assert min(three[k] - one[k] for k in (2, 4, 8)) > 0.08
    assert three[1] > three[2] > three[4] > three[8] > three[16]
    # Nobody makes sixteen yet.
    assert max(one[16], three[16]) < 0.45


def test_the_more_layers_the_farther_connected_vertices_are_told(root):
    steps = "training.steps=1000"
    one, four = (graded(root, "connectivity", f"L{depth}-d48", steps) for depth in (1, 4))
    # A third of the preset's steps. Two cycles of twelve have two answers, so half of those at 6 are right by a guess.
    assert max(one[diameter] for diameter in (1, 2, 3, 4)) < 0.45
    assert four[1] > 0.8
    assert four[1] > four[2] > four[3] > four[4]
    assert four[3] > one[3] + 0.2


def test_one_wide_layer_does_as_well_as_four_narrow_ones(root):
    wide, deep = (accuracy(root, "one-wide-layer", cell) for cell in ("L1-d64", "L4-d32"))
    # One answer in ten is right by chance, and 1,024 answers move an accuracy by 0.016.
    assert min(wide, deep) > 0.35
    assert abs(wide - deep) < 0.06
