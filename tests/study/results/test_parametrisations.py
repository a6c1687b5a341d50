"""Rows of other parametrisations in a study's experiment, and which of them its crossings are compared with."""

import numpy as np
import pytest

from analysis.design.simulated_study import Truth
from analysis.fit.document import fit
from study.plan.plan import make_plan
from study.results.parametrisations import others, parametrisation_shifts, table_of
from study.run.recorder import cell_params
from study.spec.study import load_spec
from study.tracking.rows import Row
from tests.study.small import SMALL

TRUTH = Truth(a=2.4, b=0.25, depths=(1, 2, 4))


def plan_of(*overrides):
    return make_plan(load_spec(SMALL, overrides))


def rows_of(plan, shift=0.0, status="done"):
    """What MLflow gives back of a study: parameters went through text."""
    rows = []
    for planned in plan.cells:
        shape, seed = planned.cell.shape, planned.cell.seed
        stray = np.random.default_rng([shape.depth, shape.width, seed]).standard_normal()
        loss = TRUTH.loss(shape.depth, np.array([shape.budget_params]))[0] + 0.003 * stray
        rows.append(
            Row(
                cell=planned.cell.key,
                name=planned.cell.name,
                protocol=plan.protocol,
                status=status,
                reason=None,
                params=cell_params(plan, planned),
                metrics={"loss": float(loss) + shift * (shape.depth == 2)},
                tags={},
            )
        )
    # As the ledger keeps them.
    return [Row.model_validate_json(row.model_dump_json()) for row in rows]


@pytest.fixture(scope="module")
def plan():
    return plan_of()


@pytest.fixture(scope="module")
def mup():
    return plan_of("training.parametrisation=mup")


def test_rows_that_differ_in_the_parametrisation_alone_are_found_from_both_sides(plan, mup):
    here, there = rows_of(plan), rows_of(mup)
    assert others(plan, [*here, *there]) == {mup.protocol: there}
    assert others(mup, [*here, *there]) == {plan.protocol: here}


@pytest.mark.parametrize(
    "override",
    ["training.steps=600", "training.weight_decay=0", "data.grammar_seed=1", "training.grad_clip=0.5"],
)
def test_rows_of_another_recipe_or_data_are_not(plan, override):
    assert others(plan, rows_of(plan_of("training.parametrisation=mup", override))) == {}
    assert others(plan, rows_of(plan_of(override))) == {}


def test_two_protocols_of_one_parametrisation_stand_apart(plan, mup):
    again = plan_of("training.parametrisation=mup", "training.lr.base=0.2")
    assert set(others(plan, [*rows_of(mup), *rows_of(again)])) == {mup.protocol, again.protocol}


@pytest.fixture(scope="module")
def own(plan):
    return fit(table_of(rows_of(plan)), draws=100)


def test_the_crossings_are_compared(plan, mup, own):
    rows = [*rows_of(plan), *rows_of(mup, shift=0.05)]
    (found,) = parametrisation_shifts(plan, own, rows)
    assert (found.base, found.value, found.protocol) == ("sp", "mup", mup.protocol)
    assert found.runs == len(mup.cells)
    first = found.pairs[0]
    assert (first.shallow, first.deep) == (1, 2)
    # Two layers are the worse under mup, so they overtake one at a larger size.
    assert first.shift is None or first.shift > 0
    assert first.significant


def test_without_other_rows_or_a_loss_nothing_is_compared(plan, mup, own):
    assert parametrisation_shifts(plan, own, rows_of(plan)) == ()
    assert parametrisation_shifts(plan, own, rows_of(mup, status="diverged")) == ()
