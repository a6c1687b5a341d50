import numpy as np
import pytest
from threadpoolctl import threadpool_info

from analysis.threads import single_threaded


def threads():
    """Of each BLAS that is loaded."""
    np.linalg.solve(np.eye(2), np.ones(2))
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@single_threaded
def counted(factor, *, more=0):
    """Its words."""
    return [factor * number + more for number in threads()]


def test_linear_algebra_has_one_thread_inside_and_as_many_as_before_outside_also_after_an_error():
    before = threads()
    assert counted(2, more=1) == [3] * len(before)
    assert threads() == before
    assert counted.__doc__ == "Its words."
    with pytest.raises(ValueError, match="no"):
        single_threaded(int)("no")
    assert threads() == before
