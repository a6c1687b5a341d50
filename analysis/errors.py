"""Errors a user can cause. Each message is one paragraph: what is wrong, where, and the fix."""

import difflib
from collections.abc import Iterable, Sequence

#: Most characters of a message; values are shortened where they are quoted, this bounds their sum.
LONGEST_MESSAGE = 1900


class InputError(ValueError):
    """A run table, a fit file or a value given by the user is wrong; the command ends with status 2."""

    def __init__(self, message: str) -> None:
        """Cut the middle of a very long message, so that what is wrong and the fix remain."""
        super().__init__(shortened(message, LONGEST_MESSAGE))


class OptionNeededError(InputError):
    """A run table can be read with an option that only the user can choose.

    Attributes:
        options: the option and its value that probably helps, as of the command.
    """

    def __init__(self, message: str, options: Sequence[tuple[str, str]]) -> None:
        """See the class."""
        super().__init__(message)
        self.options = tuple(options)


def shortened(text: str, most: int = 60) -> str:
    """Return a text as it is quoted in a message: of one longer than `most` characters the beginning and the end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[-end:]}"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ` Did you mean 'loss'?` if one of `words` may be meant, else an empty text."""
    return "".join(f" Did you mean {near!r}?" for near in near_misses(word, words))


def near_misses(word: str, words: Iterable[str]) -> list[str]:
    """Return the one of `words` that `word` may be a misspelling of, or an empty list; case does not count."""
    by_lower = {other.lower(): other for other in words}
    return [by_lower[near] for near in difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)]
