"""Linear algebra on one thread."""

import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def single_threaded(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` with BLAS limited to one thread while it runs.

    The matrices here are small. On two busy cores the second thread of OpenBLAS, which waits by spinning, made the
    crossings of a study thirty times slower (450 ms instead of 15).
    """

    @wraps(function)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # Libraries are loaded by imports only; finding them takes as long as a small fit.
        with _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The loaded libraries, cached while the number of imported modules is the same."""
    return ThreadpoolController()
