"""Every reason has words, and its values stand in them."""

import pytest

from analysis.law.crossings import Crossing
from analysis.law.reasons import Because, Reason
from analysis.law.words import WORDS, text_of, texts_of
from core.files import from_json, to_json
from core.numbers import scientific

#: Values of the reasons that have some.
VALUES = {
    Reason.ONE_SIZE: (7,),
    Reason.TWO_SIZES: (7, 2, 3),
    Reason.SMALL_LEAD_AT_SMALLEST: (1.5, 2.5),
    Reason.SMALL_LEAD_AT_LARGEST: (1.5, 2.5),
    Reason.DIVERGED_ABOVE: (7, 512.0, 3),
    Reason.DIVERGED_BELOW: (7, 512.0, 3),
    Reason.RATE_BEYOND: (7, 9),
    Reason.FEW_CROSSINGS: (1, 2),
    Reason.NOT_CONVERGED: ("stopped",),
    Reason.ASSUMED_SCATTER: (0.25,),
    Reason.WITHOUT_DIVERGED: ("1 → 2", "2 → 4"),
    Reason.FEW_DEPTHS: (4, 3),
    Reason.FEW_SIZES: (3, 2),
    Reason.FEW_GAPS: (4, 5),
    Reason.RESIDUALS: (0.25,),
    Reason.ALL_REJECTED: (0.5,),
    Reason.TOKENS_OF_TABLE: ("correlated", 0.75),
    Reason.ABOVE_SIZES: (10.0, 512),
    Reason.BELOW_SIZES: (10.0, 512),
    Reason.ABOVE_FITTED: (10.0, 512),
    Reason.BEST_ABOVE_FITTED: (900, 10.0, 512),
    Reason.ABOVE_MODELS: (10.0, 512),
    Reason.BELOW_MODELS: (10.0, 512),
    Reason.TURNED: ("1 → 2", "2 → 4"),
    Reason.MAY_LOSE: (7, 0.25, "nats per token", 0.12),
    Reason.MORE_THAN_WITHIN: (0.12,),
    Reason.NOT_MEASURED: (7, 9),
    Reason.OUTSIDE_COMPUTES: (512, 900, "FLOPs"),
    Reason.BETTER_AT_END: (7, 25, 512, 900, "FLOPs"),
    Reason.WITHOUT_MINIMUM: (7, 9),
}


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_words_with_its_values(reason):
    because = Because(reason, VALUES.get(reason, ()))
    text = text_of(because)
    assert text
    assert not text.endswith(".")
    # The first value of this reason names another one.
    for value in because.values[reason is Reason.TOKENS_OF_TABLE :]:
        forms = {str(value)} if isinstance(value, str) else {f"{value:g}", scientific(value)}
        assert any(form in text for form in forms)
    assert callable(WORDS[reason]) == (reason in VALUES)


def test_several_reasons_are_joined_and_none_is_none():
    few, noise = Because(Reason.ONE_SIZE, (2,)), Because(Reason.NO_NOISE)
    assert texts_of((few, noise)) == f"{text_of(few)}; {text_of(noise)}"
    assert texts_of(()) is None


def test_a_file_holds_identifiers_and_values_beside_the_words():
    crossing = Crossing(1, 2, "ambiguous", (Because(Reason.SMALL_LEAD_AT_LARGEST, (float("-inf"), 2.0)),))
    document = to_json(crossing)
    assert document["reasons"] == [{"reason": "small_lead_at_largest", "values": [None, 2.0]}]
    assert document["reason"] == crossing.reason
    again = from_json(Crossing, document, "crossing")
    assert again.reasons == (Because(Reason.SMALL_LEAD_AT_LARGEST, (None, 2.0)),)
    assert "2.0 are needed" in again.reason
