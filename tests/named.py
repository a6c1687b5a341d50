"""What a message names, whatever its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from study.errors import SpecError


def assert_named(message: str, *parts: str) -> None:
    """Assert that a message has these keys, numbers, values and fixes."""
    assert not [part for part in parts if part not in message], message


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """Assert that the block raises a SpecError that names these parts."""
    with pytest.raises(SpecError) as caught:
        yield
    assert_named(str(caught.value), *parts)
