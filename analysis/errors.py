"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and the fix."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A run table, a fit file or a value given by the user is wrong; the command ends with status 2."""


def near_misses(word: str, words: Iterable[str]) -> list[str]:
    """Return the one of `words` that `word` may be a misspelling of, or an empty list; case does not count."""
    by_lower = {other.lower(): other for other in words}
    return [by_lower[near] for near in difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)]
