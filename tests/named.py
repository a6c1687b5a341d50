"""What a message names, whatever its words."""


def assert_named(message: str, *parts: str) -> None:
    """Assert that a message has these keys, numbers, values and fixes."""
    assert not [part for part in parts if part not in message], message
