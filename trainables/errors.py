"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and the fix."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The input (a spec, a data set, a cell file) is wrong; the command ends with status 2 and this text."""


class DataError(InputError):
    """The data cannot be used: missing, unreadable, empty, too small, or changed since it was planned."""


def near_misses(word: str, words: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the at most `most` words that are similar to `word` by `cutoff` (0 to 1), ignoring case; nearest first."""
    by_lower = {other.lower(): other for other in words}
    return [by_lower[near] for near in difflib.get_close_matches(word.lower(), by_lower, most, cutoff)]


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` if there is a near miss, else an empty string."""
    return "".join(f"; did you mean `{near}`?" for near in near_misses(word, words))
