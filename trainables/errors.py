"""Errors of data and of training."""

from core.errors import InputError


class DataError(InputError):
    """The data cannot be used: missing, unreadable, empty, too small, or changed since it was planned."""


class InterruptedTrainingError(Exception):
    """Training was asked to stop; where it has storage, a checkpoint of its last step is saved."""
