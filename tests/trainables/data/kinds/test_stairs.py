"""Stairs against the formula that defines them, the depth that the formula needs, and answers without the order."""

from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from trainables.data.kinds.stairs import StairsData, letters_a, members
from trainables.data.sources.random_rows import Draws

HEIGHTS = (1, 2, 3, 4, 5)


def since(hold, begin, at):
    """Strict `since`: `begin` held at an earlier place, and `hold` at each place between it and this one."""
    for place in reversed(range(at)):
        if begin(place):
            return True
        if not hold(place):
            return False
    return False


def satisfies(word, height):
    """At the end: an earlier a, and before it, with only c between, an a, and so on: `height` nested `since`."""

    def stair(height, at):
        begin = word[at] == "a"
        return begin and (
            height == 1 or since(lambda place: word[place] == "c", lambda place: stair(height - 1, place), at)
        )

    return since(lambda place: True, lambda place: stair(height, place), len(word))


def test_every_word_up_to_eight_letters_is_a_member_just_if_it_satisfies_the_formula():
    words = np.array(list(product(range(3), repeat=8)))
    # The beginnings of the words of eight letters are all shorter words.
    for height in HEIGHTS:
        reached = members(words, np.full(len(words), height))
        assert reached.shape == (3**8, 8)
        answers = {}
        for row, answer in zip(words.tolist(), reached.tolist(), strict=True):
            word = "".join("abc"[letter] for letter in row)
            answers.update({word[: end + 1]: answer[end] for end in range(8)})
        assert len(answers) == sum(3**length for length in range(1, 9))
        assert all(answer == satisfies(word, height) for word, answer in answers.items())


def told_apart(word, nested):
    """What formulas of `nested` strict `since` can express about the end of a word.

    Such a formula depends on its place and on which formulas of less depth hold at an earlier place and between: of
    equal earlier places the nearest has the fewest between.
    """
    places = [*word, "end"]
    for _ in range(nested):
        deeper = []
        for at, place in enumerate(places):
            between, pairs = frozenset(), {}
            for before in reversed(places[:at]):
                pairs.setdefault(before, between)
                between |= {before}
            deeper.append((place, frozenset(pairs.items())))
        places = deeper
    return places[-1]


@pytest.mark.parametrize("height", HEIGHTS)
def test_no_formula_that_nests_fewer_since_defines_the_stair(height):
    lower, member = "a" * (height - 1), "a" * height
    assert not satisfies(lower, height)
    assert satisfies(member, height)
    assert told_apart(lower, height - 1) == told_apart(member, height - 1)
    assert told_apart(lower, height) != told_apart(member, height)


def drawn(height, context):
    """Counts of the letters, int [n, 3], and whether each word is a member."""
    inputs, targets = StairsData(height=height).draw(context, Draws("shortcuts"), 8192)
    counts = np.stack([(inputs[:, 1:] == letter).sum(axis=1) for letter in range(3)], axis=1)
    assert (counts.sum(axis=1) == context - 1).all()
    return counts, targets[:, -1] == 4


@pytest.mark.parametrize("context", [32, 64, 128])
@pytest.mark.parametrize("height", HEIGHTS)
def test_half_of_the_words_are_members_and_letter_counts_do_not_tell_which(height, context):
    counts, member = drawn(height, context)
    assert member.mean() == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 8192))
    features = np.concatenate([counts, counts.sum(axis=1, keepdims=True), counts > 0], axis=1)
    model = LogisticRegression().fit(features[:4096], member[:4096])
    right = model.score(features[4096:], member[4096:])
    # The stair of one letter is that there is an a.
    assert right == 1 if height == 1 else right < 0.6


@pytest.mark.parametrize("height", [2, 3, 4, 5])
def test_as_many_a_are_drawn_as_make_half_of_the_orders_members(height):
    """By counting all orders; one a more or less is farther from half."""
    solid = 12
    shares = {}
    for risers in range(height, solid):
        orders = np.array([row for row in product((0, 1), repeat=solid) if row.count(0) == risers])
        shares[risers] = members(orders, np.full(len(orders), height))[:, -1].mean()
    assert letters_a(solid, height) == min(shares, key=lambda risers: abs(shares[risers] - 0.5))
