import itertools
import random

import pytest

from trainables.data.packing.train_validation_split import BLOCK, HASHED, Units, choose_units, split
from trainables.data.sources.source import Stretch, TextSource
from trainables.errors import DataError

WHOLE = Units(BLOCK, whole=True)


def document(seed, lines=200):
    words = random.Random(seed)
    return "".join(" ".join(f"w{words.randrange(5000)}" for _ in range(12)) + "\n" for _ in range(lines))


def source(documents, known=None):
    return TextSource("corpus", lambda: (Stretch(text, True) for text in documents), None, {}, known)


def splits(documents, fraction):
    one = source(documents)
    return list(split(one.stretches(), fraction, choose_units(one, fraction)))


def held_out_documents(documents, fraction):
    """Which documents are held out, in their order; an error if one is in both splits."""
    sides, current = [], set()
    for block in splits(documents, fraction):
        current.add(block.held_out)
        if block.last:
            (side,) = current
            sides.append(side)
            current = set()
    return sides


@pytest.mark.parametrize("units", [Units(BLOCK), Units(100), WHOLE])
def test_blocks_are_the_documents_again_and_end_where_they_end(units):
    documents = [document(i, i) for i in range(1, 60)]
    blocks = list(split((Stretch(d, True) for d in documents), 0.1, units))
    again, current = [], b""
    for block in blocks:
        current += block.content
        if block.last:
            again.append(current.decode())
            current = b""
    assert again == documents
    assert current == b""


@pytest.mark.parametrize("units", [Units(BLOCK), WHOLE])
def test_how_a_document_is_streamed_does_not_matter(units):
    text = document(0, 20_000)
    assert len(text) > HASHED
    whole = list(split([Stretch(text, True)], 0.1, units))
    pieces = [Stretch(text[i : i + 1000], False) for i in range(0, len(text), 1000)]
    assert list(split([*pieces, Stretch("", True)], 0.1, units)) == whole


def test_sides_never_share_a_block_although_the_text_repeats():
    documents = [document(i % 20, 100) for i in range(60)]
    blocks = splits(documents, 0.2)
    train = {b.content.strip() for b in blocks if not b.held_out}
    validation = {b.content.strip() for b in blocks if b.held_out}
    assert train
    assert validation
    assert not train & validation


def long_document(i):
    """About 30 blocks."""
    return "".join(f"{i} line {n} {'x' * 50}\n" for n in range(1950))


def test_of_many_documents_each_is_on_one_side_however_long_it_is():
    sides = held_out_documents([long_document(i) for i in range(1000)], 0.05)
    assert len(sides) == 1000
    # Four standard deviations of 6.9.
    assert sum(sides) == pytest.approx(50, abs=28)


def test_of_a_few_long_documents_most_are_on_both_sides():
    """They are cut into blocks: of 100 documents of 30 blocks as many are cut as by chance, 1 - 0.95^30 - 0.05^30."""
    on_both, current = 0, set()
    for block in splits([long_document(i) for i in range(100)], 0.05):
        current.add(block.held_out)
        if block.last:
            on_both += len(current) == 2
            current = set()
    assert on_both == 81


@pytest.mark.parametrize(("fraction", "enough"), [(0.05, 1000), (0.95, 1000), (0.5, 100), (0.01, 5000)])
def test_whole_documents_need_fifty_in_the_smaller_split(fraction, enough):
    texts = [f"document {i}" for i in range(enough)]
    assert choose_units(source(texts), fraction).whole
    assert not choose_units(source(texts[1:]), fraction).whole
    assert choose_units(source(texts, enough), fraction) == choose_units(source(texts), fraction)
    assert not choose_units(source(texts, enough - 1), fraction).whole


def test_neither_the_order_nor_copies_of_documents_change_their_sides():
    texts = [document(i, 1 + i % 300) for i in range(1500)]
    sides = dict(zip(texts, held_out_documents(texts, 0.05), strict=True))
    # Copies of a document come first, and the long documents last: the first megabytes differ.
    mixed = [texts[0]] * 1000 + sorted(texts, key=len)
    assert held_out_documents(mixed, 0.05) == [sides[text] for text in mixed]
    assert held_out_documents(mixed[::-1], 0.05) == [sides[text] for text in mixed[::-1]]


def test_copies_of_one_document_are_cut_into_blocks():
    copies = [document(0, 300)] * 1100
    assert not choose_units(source(copies), 0.05).whole
    assert {block.held_out for block in splits(copies, 0.05)} == {True, False}


def test_documents_longer_than_what_is_hashed_go_by_their_beginning():
    beginning = document(0, 20_000)[:HASHED]
    ends = [document(seed, 500) for seed in range(20)]
    for fraction in (0.05, 0.95):
        stretches = [Stretch(beginning + end, True) for end in ends]
        assert len({block.held_out for block in split(stretches, fraction, WHOLE)}) == 1
    stretches = [Stretch(f"{end}{beginning}", True) for end in ends]
    assert {block.held_out for block in split(stretches, 0.5, WHOLE)} == {True, False}


def test_text_that_is_known_to_be_few_documents_is_not_read_to_count_them():
    def endless():
        for number in itertools.count():
            assert number < 10_000, "100 MB were read"
            yield Stretch(f"{number} " * 2000, False)

    assert choose_units(TextSource("corpus", endless, None, {}, 1), 0.05) == Units(BLOCK)


def test_text_too_short_for_two_splits_says_which_is_empty():
    with pytest.raises(
        DataError, match=r"corpus holds only 4 bytes.*the validation split is empty; give more text, or raise"
    ):
        choose_units(source(["tiny"]), 0.05)
    with pytest.raises(DataError, match="the training split is empty; give more text, or lower"):
        choose_units(source(["tiny"]), 0.999)
    with pytest.raises(DataError, match="corpus holds no text"):
        choose_units(source([]), 0.05)


@pytest.mark.parametrize("fraction", [0.02, 0.2, 0.9])
def test_the_share_held_out_is_about_the_fraction(fraction):
    blocks = splits([document(i, 900) for i in range(40)], fraction)
    held_out = sum(len(b.content) for b in blocks if b.held_out) / sum(len(b.content) for b in blocks)
    assert held_out == pytest.approx(fraction, rel=0.5)


def test_large_text_is_cut_at_line_breaks_in_blocks_of_some_kilobytes():
    blocks = splits([document(i, 2000) for i in range(30)], 0.05)
    assert all(b.content.endswith(b"\n") for b in blocks)
    assert all(4096 <= len(b.content) <= 8192 for b in blocks if not b.last)


def test_small_text_gets_small_blocks_so_that_both_sides_have_some():
    blocks = splits([document(1, 100)], 0.05)
    assert {b.held_out for b in blocks} == {True, False}
    assert max(len(b.content) for b in blocks) < 512


def test_text_without_line_breaks_or_spaces_and_with_wide_letters_is_cut_between_letters():
    text = "ß漢🙂" * 4000
    blocks = splits([text], 0.05)
    assert len(blocks) > 10
    assert "".join(b.content.decode() for b in blocks) == text
