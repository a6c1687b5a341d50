"""A study under another parametrisation: one override, one base rate, cells of its own."""

import pytest

from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.spec.study import load_spec
from trainables.cell import Base, Shape

#: The quickstart's Muon has one parametrisation only.
ADAMW = ("training.optimizer=adamw", "training.lr={rule: width, base: 0.4, exponent: -1, cap: 0.04}")


def plan_of(source: str, *overrides: str) -> Plan:
    return make_plan(load_spec(source, overrides))


def test_one_override_repeats_a_study_with_cells_of_its_own_and_one_base_rate() -> None:
    sp, completep = (
        plan_of("quickstart", *ADAMW),
        plan_of("quickstart", *ADAMW, "training.parametrisation=completep"),
    )
    assert [p.cell.shape for p in completep.cells] == [p.cell.shape for p in sp.cells]
    assert not {p.cell.key for p in completep.cells} & {p.cell.key for p in sp.cells}
    assert completep.protocol != sp.protocol
    # The rule min(0.04, 0.4/d) at the base width of 64; under sp it is that of each width.
    assert {p.cell.lr for p in completep.cells} == {0.4 / 64}
    assert len({p.cell.lr for p in sp.cells}) > 4
    assert any("rate of the base shape L2-d64" in note for note in completep.notes)
    assert not any("base shape" in note for note in sp.notes)


def test_factors_of_a_search_are_multiples_of_the_base_rate() -> None:
    plan = plan_of("quickstart", *ADAMW, "training.parametrisation=mup", "search.lr_factors=[0.5, 1, 2]")
    assert {(p.lr_factor, p.cell.lr) for p in plan.cells} == {(f, 0.4 / 64 * f) for f in (0.5, 1.0, 2.0)}


def test_the_base_is_said_once_and_its_heads_are_those_of_the_frontier() -> None:
    mup = "training.parametrisation=mup"
    base = load_spec(
        "quickstart", [*ADAMW, mup, "training.base.width=16", "training.base.depth=4"]
    ).recipe.base
    assert base == Base(depth=4, width=16, head_width=8)
    spec = load_spec("quickstart", [*ADAMW, mup, "frontier.head_dim=2"])
    assert spec.recipe.base.head_width == 2
    assert spec.training.rate(Shape(depth=1, width=16, heads=8)) == 0.4 / 64
    assert load_spec("quickstart", [*ADAMW, mup, "frontier.heads=3"]).recipe.base.head_width == 64 / 3


def test_the_base_makes_no_difference_to_a_study_under_sp() -> None:
    ours, theirs = plan_of("quickstart", *ADAMW, "training.base.width=16"), plan_of("quickstart", *ADAMW)
    assert [p.cell for p in ours.cells] == [p.cell for p in theirs.cells]
    assert ours.protocol == theirs.protocol


def test_rates_given_by_hand_are_base_rates() -> None:
    fixed = [ADAMW[0], "training.lr={rule: fixed, value: 0.01}", "training.parametrisation=mup"]
    assert load_spec("quickstart", fixed).training.rate(Shape(depth=2, width=16, heads=2)) == 0.01
    table = ["frontier={widths: {1: [8], 2: [6]}, heads: 2}",
             "training.lr={rule: table, values: {L1-d8: 0.03, L2-d6: 0.02}}"]  # fmt: skip
    spec = load_spec("quickstart", [ADAMW[0], *table, "training.parametrisation=mup"])
    assert spec.training.rate(Shape(depth=2, width=6, heads=2)) == 0.02


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.parametrisation=mu-p", ("training.parametrisation", "sp", "mup", "completep")),
        ("training.base={width: 0}", ("training.base.width", "0")),
        ("training.base={heads: 2}", ("training.base", "heads", "depth", "width")),
    ],
)
def test_what_is_no_parametrisation_is_refused(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec("quickstart", [*ADAMW, override])
    assert all(word in str(refused.value) for word in words), refused.value
