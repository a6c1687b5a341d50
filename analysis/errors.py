"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and how to fix it."""


class InputError(ValueError):
    """A run table, a fit file or a value given by the user is wrong; the command ends with status 2."""
