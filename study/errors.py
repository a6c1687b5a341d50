"""The error a wrong spec causes."""

from trainables.errors import InputError


class SpecError(InputError):
    """The spec cannot be used.

    The message is one paragraph for the person who wrote it: what is wrong, where, which values are allowed,
    the near miss if there is one, and the way out. The command prints it without a traceback and ends with
    status 2.
    """
