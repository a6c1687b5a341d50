"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and how to mend it."""


class InputError(ValueError):
    """The input (a spec, a data set, a cell file) is wrong; the command ends with status 2 and this text."""


class DataError(InputError):
    """The data cannot be used: missing, unreadable, empty, too small, or changed since it was planned."""
