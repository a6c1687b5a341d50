"""What the expensive tests leave out is a product of options; every pair of them is still measured."""

import itertools

import pytest

from tests.trainables.pairs import cover, pairs
from tests.trainables.train import test_memory, test_parallel
from trainables.model.counts import memory


def test_every_feasible_pair_of_a_layout_is_trained_and_each_case_changes_the_degree():
    cases = test_parallel.cases()
    assert pairs(cases) == pairs(filter(test_parallel.is_feasible, itertools.product(*test_parallel.VALUES)))
    assert {*test_parallel.GATE, test_parallel.PLAIN} < set(cases)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(cases))


def test_every_feasible_pair_of_the_options_that_need_memory_is_measured():
    cases, apart = test_memory.cases(), test_memory.APART
    feasible = filter(test_memory.is_feasible, itertools.product(*test_memory.VALUES))
    assert pairs(cases, apart) == pairs(feasible, apart)
    for name in test_memory.CASES:
        assert len({zero for size, _, _, zero, *_ in cases if size == name}) >= 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_estimate_falls_by_what_the_cases_measure(precision):
    """Recomputation keeps one layer, and a shared vocabulary halves the head."""

    def total(name, **layout):
        return memory(*test_memory.arguments(name, precision, **layout)).total

    assert total("deep", activation_checkpointing=True) < 0.9 * total("deep")
    assert total("vocabulary", tensor_parallel=2, shard_vocabulary=True) < 0.75 * total(
        "vocabulary", tensor_parallel=2
    )


def test_a_named_case_stands_in_place_of_that_of_its_group():
    found = cover(
        [("a",), ("b",)], [(0, 0), (0, 1), (1, 0), (1, 1)], lambda case: case != ("a", 0, 0), [("b", 1, 0)]
    )
    assert found == [("a", 0, 1), ("b", 1, 0)]
