"""What presets of docs/depth.md come out as, on a few of their own cells."""

import pytest

from study.plan import make_plan
from study.spec import load_spec
from trainables.loop import train

pytestmark = pytest.mark.slow


def loss(root, preset, cell, *overrides, seeds=(0,)):
    """Mean loss of cells of a preset, all of a series taken as one study."""
    plan = make_plan(load_spec(preset, ["vary=null", *overrides]))
    results = [train(plan.cell(f"{cell}-s{seed}"), data_root=root, evaluations=1) for seed in seeds]
    return sum(result.loss for result in results) / len(results)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


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
