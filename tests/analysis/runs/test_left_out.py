"""Reasons of rows that are left out."""

from analysis.runs.left_out import WORDS, RowReason, WhyNot, entry, kind_of


def test_every_reason_has_words():
    assert set(WORDS) == set(RowReason)


def test_reasons_of_one_kind_differ_in_numbers_only():
    def kind(reason, *values):
        return kind_of(entry(1, "", WhyNot(reason, values)))

    assert kind(RowReason.NOT_WHOLE, "depth", 1.5) == kind(RowReason.NOT_WHOLE, "depth", 2.5)
    assert kind(RowReason.NOT_WHOLE, "depth", 1.5) != kind(RowReason.NOT_WHOLE, "width", 1.5)
    assert kind(RowReason.COPY, 3) == kind(RowReason.COPY, 4) != kind(RowReason.AVERAGED, 4)
    # A file without codes has the text only.
    assert kind_of({"row": 1, "reason": "lost"}) == "lost"


def test_an_entry_has_the_cell_if_there_is_one():
    why = WhyNot(RowReason.OTHER_TOKENS, (20.0,))
    text = "at other training tokens than the 20 compared"
    code = [{"reason": "other_tokens", "values": [20.0]}]
    assert entry(4, "", why) == {"row": 4, "reason": text, "reasons": code}
    assert entry(4, "abc", why) == {"row": 4, "cell": "abc", "reason": text, "reasons": code}
