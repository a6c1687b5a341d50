import itertools
import math

import pandas as pd
import pytest

from analysis.runs.headings import NAMES, column_of, last_part, loss_heading, unit_of
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable
from analysis.runs.words import text_of
from core.errors import InputError
from tests.remarks import remarks_about


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        ("config.n_layer", "depth"),
        ("params_n_layer", "depth"),
        ("params.num_hidden_layers", "depth"),
        ("Num Layers", "depth"),
        ("nLayer", "depth"),
        ("L", "depth"),
        ("model/d-model", "width"),
        ("hyperparameters.hidden_size", "width"),
        ("hidden", "width"),
        ("d", "width"),
        ("config.optimizer.learning_rate", "lr"),
        ("Learning Rate", "lr"),
        ("train/num_input_tokens_seen", "tokens"),
        ("D", "tokens"),
        ("random_seed", "seed"),
        ("State", "status"),
        ("model.vocab_size", "vocabulary"),
        # The rate of the last step; sizes of other networks and of parts; what only looks like a column.
        ("train/learning_rate", None),
        ("teacher.n_layer", None),
        ("config.mlp.hidden_size", None),
        ("tokens_per_second", None),
        ("eval/tokens", None),
        ("l", None),
    ],
)
def test_a_heading_is_a_column_by_its_last_part(heading, column):
    assert column_of(heading) == column


def test_every_known_name_is_read_under_the_prefix_of_every_tracker():
    for column, name in ((column, name) for column, names in NAMES.items() for name in names):
        for form in (
            "{}",
            "config.{}",
            "params.{}",
            "params_{}",
            "summary.{}",
            "hyperparameters.{}",
            "user_attrs_{}",
        ):
            assert column_of(form.format(name)) == column, form.format(name)
        assert column_of(name.title()) == column
        assert last_part(f"config/{name.upper()}") == name


@pytest.mark.parametrize(
    ("headings", "chosen"),
    [
        (["loss", "val_loss"], "val_loss"),
        (["train_loss", "eval_loss", "loss"], "eval_loss"),
        (["loss", "summary.eval/loss"], "summary.eval/loss"),
        (["test_loss", "validation_loss"], "validation_loss"),
        (["final_loss", "loss"], "final_loss"),
        (["eval/c4_ce", "hyperparameters.z_loss"], "eval/c4_ce"),
        (["loss", "moe_aux_loss", "loss_scale", "loss_std"], "loss"),
        (["Validation Cross-Entropy", "accuracy"], "Validation Cross-Entropy"),
        (["ppl", "loss"], "loss"),
        (["eval_ppl", "train_loss"], "eval_ppl"),
        (["Loss (nats)", "lr"], "Loss (nats)"),
    ],
)
def test_the_evaluation_loss_wins_and_parts_of_the_objective_are_none(headings, chosen):
    for order in itertools.permutations(headings):
        values = {name: [3.0 + i / 10, 2.5] for i, name in enumerate(sorted(headings))}
        frame = pd.DataFrame({"depth": 2, "width": [8, 16], **{name: values[name] for name in order}})
        runs = RunTable.from_frame(frame)
        first = values[chosen][0]
        assert runs.used["loss"].iloc[0] == pytest.approx(math.log(first) if "ppl" in chosen else first)
        if len([name for name in headings if loss_heading(name)]) > 1:
            assert any(chosen in note.values for note in runs.notes)


@pytest.mark.parametrize("headings", [["val_loss", "eval_loss"], ["eval/c4_loss", "eval/pile_loss", "loss"]])
def test_losses_between_which_nothing_decides_are_a_choice_of_the_user(headings):
    frame = pd.DataFrame({"depth": 2, "width": [8, 16], **{name: [3.0, 2.5] for name in headings}})
    with pytest.raises(InputError, match="Several headings can be the loss"):
        RunTable.from_frame(frame)
    assert len(RunTable.from_frame(frame, {"loss": headings[1]}).used) == 2


def test_another_logarithm_of_a_loss_is_no_loss():
    with pytest.raises(InputError, match="no column 'loss'"):
        RunTable.from_frame(pd.DataFrame({"depth": 2, "width": [8, 16], "log10_loss": [0.48, 0.4]}))


def test_a_training_loss_alone_is_taken_and_said():
    runs = RunTable.from_frame(pd.DataFrame({"depth": 2, "width": [8, 16], "train_loss": [3.0, 2.5]}))
    assert runs.used["loss"].tolist() == [3.0, 2.5]
    assert Remark(About.TRAINING_LOSS, ("train_loss",)) in runs.notes


@pytest.mark.parametrize(
    ("heading", "values", "nats"),
    [
        ("perplexity", [20.0, 15.0], [math.log(20), math.log(15)]),
        ("eval/PPL", [2.5, 2.25], [math.log(2.5), math.log(2.25)]),
        ("val_bpb", [1.0, 0.75], [math.log(2), 0.75 * math.log(2)]),
        ("bits_per_byte", [1.5, 1.25], [1.5 * math.log(2), 1.25 * math.log(2)]),
        ("Loss (bits)", [1.5, 1.25], [1.5 * math.log(2), 1.25 * math.log(2)]),
        ("val_loss (bits)", [3.0, 2.5], [3 * math.log(2), 2.5 * math.log(2)]),
    ],
)
def test_a_loss_in_another_unit_is_converted_and_it_is_said(heading, values, nats):
    frame = pd.DataFrame({"depth": 2, "width": [8, 16], heading: values})
    for runs in (RunTable.from_frame(frame), RunTable.from_frame(frame, {"loss": heading})):
        assert runs.used["loss"].tolist() == pytest.approx(nats)
        assert Remark(About.CONVERTED, (heading, unit_of(heading))) in runs.notes


def test_losses_that_cannot_be_nats_are_refused_with_the_fix():
    frame = pd.DataFrame({"depth": 2, "width": [8, 16, 32], "loss": [96.2, 71.6, 12.0]})
    with pytest.raises(InputError, match=r"at most ln\(vocabulary\)") as caught:
        RunTable.from_frame(frame)
    assert str(caught.value).endswith(" Try: columns={'perplexity': 'loss'}")
    assert RunTable.from_frame(frame, {"perplexity": "loss"}).used["loss"].iloc[0] == pytest.approx(
        math.log(96.2)
    )
    # One run that went wrong does not change the unit of the others.
    one = RunTable.from_frame(frame.assign(loss=[3.0, 2.5, 30.0]))
    assert (len(one.used), one.left_out[0]["row"]) == (2, 3)


@pytest.mark.parametrize(
    ("heading", "value", "tokens"),
    [("tokens (M)", 10, 1e7), ("Train Tokens [B]", "1.5", 1.5e9), ("tokens_seen (in billions)", 2, 2e9)],
)
def test_a_prefix_in_brackets_counts(heading, value, tokens):
    frame = pd.DataFrame({"depth": 2, "width": [8, 16], "loss": [3.0, 2.5], heading: [value, "many"]})
    runs = RunTable.from_frame(frame)
    assert runs.used["tokens"].iloc[0] == tokens
    assert Remark(About.NOT_NUMBERS, ("tokens", 1, "many")) in runs.notes


def test_a_heading_that_may_be_the_tokens_is_named():
    frame = pd.DataFrame(
        {"depth": 2, "width": [8, 16], "loss": [3.0, 2.5], "ktok": 1, "tokens_per_second": 2}
    )
    assert not remarks_about(RunTable.from_frame(frame).notes, About.TOKENS_NOT_READ)
    named = RunTable.from_frame(frame.assign(seen_train_tok=5)).notes
    (note,) = remarks_about(named, About.TOKENS_NOT_READ)
    assert note.values == ("seen_train_tok",)
    assert "columns={'tokens': 'seen_train_tok'}" in text_of(note)


@pytest.mark.parametrize(
    ("frame", "columns"),
    [
        ({"depth": [2], "width": [8], "config.seed": [3], "config.loss_coef": [0.1]}, None),
        ({"depth": [2, 2], "width": [8, 16], "z_loss": [1e-4, 1e-4]}, None),
        (
            {"depth": [2, 4], "width": [8, 16], "score_of_model": [2.5, 2.25]},
            {"loss": "score_of_model"},
        ),
        (
            {"blocks_of_net": [2, 4], "width": [8, 16], "loss": [2.5, 2.25]},
            {"depth": "blocks_of_net"},
        ),
    ],
)
def test_a_proposal_names_only_what_can_be_the_column_and_is_complete(frame, columns):
    with pytest.raises(InputError) as caught:
        RunTable.from_frame(pd.DataFrame(frame))
    assert str(caught.value).partition(" Try: columns=")[2] == ("" if columns is None else repr(columns))
    assert "THEIRS" not in str(caught.value)
    if columns is None:
        assert "Perhaps" not in str(caught.value)


def test_a_state_that_is_no_status_is_another_column():
    frame = pd.DataFrame({"depth": 2, "width": [8, 16], "loss": [2.5, 2.25], "state": ["Texas", "Ohio"]})
    assert len(RunTable.from_frame(frame).used) == 2
    ended = RunTable.from_frame(frame.assign(state=["TrialState.COMPLETE", "TrialState.PRUNED"]))
    assert ended.used["width"].tolist() == [8]
    assert Remark(About.UNFINISHED, (1, 1, "pruned")) in ended.notes
