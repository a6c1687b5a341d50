from study.workers.machine_losses import MachineLosses


def test_a_machine_that_loses_two_trials_is_avoided():
    losses = MachineLosses()
    losses.add("a", "first")
    losses.add("b", "second")
    assert losses.avoided == []
    losses.add("a", "third")
    assert losses.avoided == ["a"]
    losses.add("b", "second")
    assert losses.avoided == ["a", "b"], "the same cell twice: it has not been anywhere else"


def test_a_cell_that_is_lost_wherever_it_is_counts_against_no_machine():
    losses = MachineLosses()
    for node in ("a", "a", "b"):
        losses.add(node, "too large")
    assert losses.avoided == []
    losses.add("a", "another")
    assert losses.avoided == []
    losses.add("a", "a third")
    assert losses.avoided == ["a"]
