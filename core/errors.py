"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and the fix."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

#: Most characters of a message; values are shortened where they are quoted, this bounds their sum.
LONGEST_MESSAGE = 1900


class InputError(ValueError):
    """What the user gave (a spec, data, a run table, a fit, a value) is wrong; the command ends with status 2."""

    def __init__(self, message: str) -> None:
        """Cut the middle of a very long message, so that what is wrong and the fix remain."""
        super().__init__(shortened(message, LONGEST_MESSAGE))


def shortened(text: str, most: int = 60) -> str:
    """Return a text as it is quoted in a message: of one longer than `most` characters the beginning and the end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[-end:]}"


def printable(text: str, kept: str = "") -> str:
    """Return a text with its characters that cannot be printed escaped, apart from those of `kept`.

    A terminal would obey them: clear the screen, or copy to the clipboard.
    """
    return "".join(
        sign if sign.isprintable() or sign in kept else sign.encode("unicode_escape").decode()
        for sign in text
    )


def some(words: Sequence[object], most: int = 12) -> str:
    """Return at most so many words of a list, and the number of the others."""
    listed = ", ".join(shortened(str(word)) for word in words[:most])
    return listed if len(words) <= most else f"{listed} and {len(words) - most} more"


def near_misses(word: str, words: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the at most `most` words that are similar to `word` by `cutoff` (0 to 1), ignoring case; nearest first."""
    by_lower = {other.lower(): other for other in words}
    return [by_lower[near] for near in difflib.get_close_matches(word.lower(), by_lower, most, cutoff)]


def refuse_no_mapping(shown: str, given: object, example: str) -> None:
    """Raise an InputError if an argument that is a dict, such as `columns=`, is something else."""
    if not isinstance(given, Mapping):
        raise InputError(f"{shown} is {shortened(repr(given))}; give a dict, such as {example}.")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` if there is a near miss, else an empty string."""
    return "".join(f"; did you mean `{near}`?" for near in near_misses(word, words))
