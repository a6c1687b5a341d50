import pytest

from tests.ranks import Ranks


@pytest.fixture(scope="package")
def ranks():
    """Four processes that stay warm through these tests; a module that needs fewer may have its own."""
    with Ranks(4) as pool:
        yield pool
