import numpy as np

from analysis.groups import numbered


def test_groups_are_numbered_in_the_order_of_their_values_and_nan_comes_last():
    depth = np.array([4, 1, 4, 1, 4])
    rate = np.array([np.nan, 0.1, 0.2, -0.0, np.nan])
    assert numbered(depth).tolist() == [1, 0, 1, 0, 1]
    assert numbered(depth, rate).tolist() == [3, 1, 2, 0, 3]
    assert numbered(np.array(["b", "a", "b"]), np.array([1, 1, 1])).tolist() == [1, 0, 1]
    assert numbered(np.array([])).tolist() == []
