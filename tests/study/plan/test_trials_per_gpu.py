"""How many trials share a GPU, and what each of them gets."""

import pytest

from study.errors import SpecError
from study.plan.cells import MOST_TRIALS, with_trials_per_gpu
from study.plan.plan import make_plan
from study.spec.devices import DEVICES, USABLE_MEMORY
from study.spec.study import StudySpec, load_spec
from tests.study.small import SMALL

GPU = ("resources.device=h100-80gb", "resources.slots=8")


def shared(*overrides: str) -> StudySpec:
    return with_trials_per_gpu(load_spec(SMALL, (*GPU, "resources.trials_per_gpu=auto", *overrides)))


def test_tiny_cells_share_a_gpu_and_large_ones_do_not() -> None:
    assert shared().resources.trials_per_gpu == MOST_TRIALS
    assert shared("frontier.budgets=[3e8, 1e9]", "frontier.head_dim=64").resources.trials_per_gpu == 1


def test_auto_is_as_many_as_leave_the_gpu_idle_for_each_other() -> None:
    """A step of the largest cell and the fixed part of it, by the constants of the device."""
    overrides = ("frontier.budgets=[2e6, 6e6]", "training.batch=64", "frontier.tolerance=0.5")
    spec, alone = shared(*overrides), make_plan(load_spec(SMALL, (*GPU, *overrides)))
    device = DEVICES["h100-80gb"]
    steps = [
        (planned.seconds / planned.cell.recipe.steps, planned.cell.shape.depth) for planned in alone.cells
    ]
    fixed = [device.seconds_per_step + depth * device.seconds_per_step_layer for _, depth in steps]
    least = min(step / (step - part) for (step, _), part in zip(steps, fixed, strict=True))
    # The seconds of a cell have its evaluations too, a few per cent.
    assert 1 <= spec.resources.sharing <= min(MOST_TRIALS, least * 1.1)


def test_each_has_its_part_of_the_memory_and_of_the_slots() -> None:
    plan = make_plan(load_spec(SMALL, (*GPU, "resources.trials_per_gpu=4", "resources.price_per_hour=2")))
    whole = make_plan(load_spec(SMALL, (*GPU, "resources.price_per_hour=2")))
    assert plan.planner.layouts.usable == int(80e9 * USABLE_MEMORY / 4)
    assert plan.planner.spec.resources.gpus_per_trial == 0.25
    assert {planned.layout.ranks for planned in plan.cells} == {1}
    assert whole.cost
    assert plan.cost == pytest.approx(whole.cost / 4)
    assert any("4 trials share a GPU" in note for note in plan.notes)


def test_three_trials_of_a_third_fit_on_a_gpu() -> None:
    resources = load_spec(SMALL, (*GPU, "resources.trials_per_gpu=3")).resources
    assert 3 * resources.gpus_per_trial <= 1
    assert resources.gpus_per_trial == pytest.approx(1 / 3, abs=1e-4)


def test_a_cell_of_several_ranks_shares_no_gpu() -> None:
    with pytest.raises(SpecError, match=r"`trials_per_gpu` is 2, and `tensor_parallel`"):
        load_spec(SMALL, (*GPU, "resources.trials_per_gpu=2", "resources.tensor_parallel=2"))


def test_on_a_cpu_nothing_is_shared() -> None:
    spec = with_trials_per_gpu(load_spec(SMALL, ["resources.trials_per_gpu=auto"]))
    assert (spec.resources.sharing, spec.resources.gpus_per_trial) == (1, 0)
