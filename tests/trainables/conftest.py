import gc
import sys

import pytest

from tests.ranks import Ranks

_FROZEN = []


@pytest.fixture(scope="package")
def ranks():
    """Four processes that stay warm through these tests; a module that needs fewer may have its own."""
    with Ranks(4) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _only_what_a_test_made_is_collected():
    """Set the objects of the libraries aside, once they are imported.

    Every cell begins with a full collection. With what the test's own imports bring it takes 0.3 s, as long as the
    training of a small cell.
    """
    # Once a process: `gc.get_freeze_count` would count the objects before every test.
    if "deepspeed" in sys.modules and not _FROZEN:
        gc.collect()
        gc.freeze()
        _FROZEN.append(True)
