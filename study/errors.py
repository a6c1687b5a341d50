"""The error a wrong spec causes."""

from core.errors import InputError, printable


class SpecError(InputError):
    """The spec cannot be used.

    The message is one paragraph for the person who wrote it: what is wrong, where, which values are allowed, the near
    miss if there is one, and the fix. The command prints it without a traceback and ends with status 2.
    """

    def __init__(self, message: str) -> None:
        """Keep the message in one line: a key or a value of a spec may hold anything, as a newline."""
        super().__init__(printable(message))
