"""Every remark has words, and its values stand in them."""

import pytest

from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.remarks import NAMED, About, Remark, first_names, flat
from analysis.runs.words import WORDS, qualified, text_of
from core.numbers import human, scientific

#: Values of the remarks that have some.
VALUES = {
    About.LINES_ABOVE: (1, 7),
    About.SEPARATOR: ("semicolons",),
    About.DECIMAL_COMMA: ("loss", "lr"),
    About.COMMON_NAMES: ("n_layer", "depth", "layers", "n_embd", "width", ""),
    About.LOSS_COLUMN: ("loss", "val_loss"),
    About.TRAINING_LOSS: ("train_loss",),
    About.CONVERTED: ("eval/ppl", "perplexity"),
    About.NOT_NUMBERS: ("tokens", 7, "many"),
    About.TOKENS_NOT_READ: ("seen_tok", "tok_2"),
    About.UNFINISHED: (9, 7, "failed", 2, "running"),
    About.REPLICATES: (21, 7),
    About.AVERAGED: (21, "heads", "width"),
    About.LAST_STEP: ("global_step", 1),
    About.LAST_STEP_DIFFERS: ("global_step", 0, 512.0, 900.0, 1),
    About.STEPS_DIFFER: ("global_step", 512.0, 900.0, 0),
    About.SETTING_NOT_READ: ("positions", 7, "learned", 9, "rotary"),
    About.TUNED: (21, "batch_size", "wd"),
    About.LOWEST_RATE: (7, 3),
    About.SURVIVORS: (7, "1×16: 2 of 3"),
    About.PROTOCOLS: (7, "ab", "cd"),
    About.COUNT_DIFFERS: (0.25, 12.0),
    About.ABOVE_VOCABULARY: (7, 9, 512, 256.0),
    About.WITHOUT_TOKENS: (7, 9),
    About.ROWS_LEFT_OUT: (7, 9, RowReason.OTHER_RATIO.value, 21.0),
    About.SHAPES_LEFT_OUT: (7, 9, 512.0, "1×16"),
    About.EQUAL_TOKENS: (2e9,),
    About.ASKED_TOKENS: (2e9, 7, 1e9, 9e9, 3e9),
    About.USUAL_TOKENS: (2e9, 7, 1e9, 9e9),
    About.MOST_TOKENS: (2e9, 7, 1e9, 9e9, 5, 6),
    About.EQUAL_RATIO: (21.0,),
    About.WITH_PARAMS: (512.0, 900.0),
    About.LAST_CHECKPOINTS: (512.0, 900.0),
    About.EQUAL_COMPUTE: (2e18, 7, 900.0, 512.0),
    About.GROUPS: (7, 512.0, 900.0),
    About.COMPUTES: (2e18, 9e18, "FLOPs"),
    About.NO_COMMON_TOKENS: (512.0, 900.0),
    About.TOKENS_BY_TABLE_COUNT: (21.0,),
    About.TOKENS_BY_WIDTH: (21.0, 512.0),
    About.CORRELATED: (0.75,),
    About.REPEATED_DATA: (7.0, "at least "),
    About.UNEQUAL_SEEDS: (2, 7),
    About.MISFIT: (0.25, "nats", 0.001),
    About.TURNED: ("1 → 2", "2 → 4"),
    About.LOST_SHAPES: (7, 512.0),
    About.FEW_SIZES_AT_COMPUTE: (7, 2, 3, 2e18, "FLOPs"),
    About.LEAST_AT_END: (7, 2e18, "FLOPs"),
}
#: Places of values that are no text of their own: flags, and what a word stands for.
NOT_WRITTEN = {
    About.CONVERTED: (1,),
    About.LAST_STEP: (1,),
    About.LAST_STEP_DIFFERS: (1, 4),
    About.STEPS_DIFFER: (3,),
    About.ROWS_LEFT_OUT: (2,),
}
#: Parts of a sentence, which others begin and end.
PARTS = {
    About.DIFFER_AT_EQUAL_N,
    About.DIFFER_AT_SIMILAR_N,
    About.DIFFER_BETWEEN_GROUPS,
    About.SHRINK_WITH_N,
    About.CORRELATED,
    About.FEW_SIZES_AT_COMPUTE,
    About.LEAST_AT_END,
}


@pytest.mark.parametrize("about", About)
def test_each_remark_has_words_with_its_values(about):
    values = VALUES.get(about, ())
    text = text_of(Remark(about, values))
    assert text
    assert text.endswith(".") == (about not in PARTS)
    for place, value in enumerate(values):
        if place not in NOT_WRITTEN.get(about, ()):
            number = value if isinstance(value, str) else f"{value:g}"
            forms = (
                {number}
                if isinstance(value, str)
                else {number, scientific(value), human(value, 3), f"{value:.0%}"}
            )
            assert any(form in text for form in forms), value
    assert callable(WORDS[about]) == (about in VALUES)


def test_words_of_flags_and_bounds():
    assert "of them" not in text_of(Remark(About.LOWEST_RATE, (7, 0)))
    assert "In 3 of them" in text_of(Remark(About.LOWEST_RATE, (7, 3)))
    assert "Line 4 is" in text_of(Remark(About.LINES_ABOVE, (4, 4)))
    assert "in no other known column" in text_of(Remark(About.AVERAGED, (2,)))
    assert "columns={'tokens': 'HEADING'}" in text_of(Remark(About.STEPS_DIFFER, ("step", 1.0, 2.0, 1)))
    assert "HEADING" not in text_of(Remark(About.STEPS_DIFFER, ("step", 1.0, 2.0, 0)))
    assert "all shapes have" in text_of(Remark(About.MOST_TOKENS, (2.0, 3, 1.0, 4.0, 6, 6)))
    assert "5 of the 6 shapes have" in text_of(Remark(About.MOST_TOKENS, (2.0, 3, 1.0, 4.0, 5, 6)))
    assert "budgets" not in text_of(Remark(About.EQUAL_COMPUTE, (1e18, 1, 9.0, 8.0)))
    assert "shrink as N grows" in text_of(Remark(About.CORRELATED, (-0.98,)))
    why = WhyNot(RowReason.NO_OTHER_DEPTH)
    assert why.text in text_of(Remark(About.ROWS_LEFT_OUT, (1, 9, why.reason, *why.values)))


def test_words_list_the_first_names_and_say_that_there_are_more():
    names = [f"name{i}" for i in range(NAMED + 3)]
    text = text_of(Remark(About.SURVIVORS, (len(names), *first_names(names))))
    assert names[NAMED - 1] in text
    assert names[NAMED] not in text
    assert "..." in text
    assert "..." not in text_of(Remark(About.SURVIVORS, (NAMED, *first_names(names[:NAMED]))))
    shapes = [(depth, 100.0 * depth) for depth in range(1, NAMED + 3)]
    lost = text_of(Remark(About.LOST_SHAPES, flat(shapes)))
    assert "5 layers at N = 500 and others" in lost
    assert "6 layers" not in lost


def test_a_statement_about_sizes_names_the_ratio_of_tokens_at_which_it_holds():
    assert qualified("Use 4 layers.", 20.0) == "Use 4 layers, at 20 tokens per parameter."
    assert qualified("a law", 20.0) == "a law, at 20 tokens per parameter"
    assert qualified("", 20.0) == ""
    assert qualified("Use 4 layers.", None) == "Use 4 layers."
