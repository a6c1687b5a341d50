"""The claims of presets in docs/published-claims.md, on a few of their own cells; the sources are in the presets."""

import pytest

from study.plan.plan import make_plan
from study.spec.study import load_spec
from trainables.train.loop import train

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def trained(root, preset, cell, *overrides, seed=0):
    """The result of one cell of a preset."""
    plan = make_plan(load_spec(preset, ["diagnostics=[]", *overrides]))
    return train(plan.planned(f"{cell}-s{seed}").cell, data_root=root, evaluations=1)


def loss(*arguments, seeds=(0,)):
    return sum(trained(*arguments, seed=seed).loss for seed in seeds) / len(seeds)


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


def test_three_layers_climb_every_stair_and_one_layer_only_the_lowest(root):
    """A softmax can count, so that the layers do not grow with the stair."""
    steps = "training.steps=1500"
    one, three = (graded(root, "stairs", f"L{depth}-d32", steps) for depth in (1, 3))
    assert one[1] > 0.99
    assert three[1] > 0.99
    higher = (2, 3, 4, 5)
    assert max(one[k] for k in higher) < 0.85
    assert min(three[k] for k in higher) > 0.9
