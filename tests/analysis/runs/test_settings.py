import ast

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import fit
from analysis.runs.comparison import compare
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.remarks import remarks_about

SHAPES = [(2, 46), (2, 64), (2, 92), (2, 130), (2, 182), (4, 32), (4, 46), (4, 64), (4, 92), (4, 130)]


def truth(depth, width):
    """Losses whose curves of 2 and 4 layers cross at N = 238 thousand."""
    params = 12 * depth * width**2
    return 2 + 40 * params**-0.3 + (0.05 if depth == 4 else 0.05 * (params / 238e3) ** 0.5)


def table(seeds=(0, 1), shapes=SHAPES, **columns):
    generator = np.random.default_rng(0)
    rows = [
        {
            "depth": depth,
            "width": width,
            "seed": seed,
            "loss": truth(depth, width) + 0.001 * generator.normal(),
        }
        for depth, width in shapes
        for seed in seeds
    ]
    return pd.DataFrame(rows).assign(**columns)


def crossing(frame, **options):
    (found,) = fit(RunTable.from_frame(frame, **options)).crossings
    low, high = found.params_interval
    return low <= 238e3 <= high


def with_setting(name, best, others, worse=0.05):
    """The table, in which 4 layers were also tried at other values of a setting, which are worse."""
    frame = table().assign(**{name: best})
    deep = frame[frame["depth"] == 4]
    more = [deep.assign(**{name: value}, loss=deep["loss"] + worse * i) for i, value in enumerate(others, 1)]
    return pd.concat([frame, *more], ignore_index=True)


@pytest.mark.parametrize(
    ("name", "best", "others"),
    [
        ("batch_size", 64, [256, 1024]),
        ("config.optimizer.weight_decay", 0.1, [0.01]),
        ("warmup_steps", "100", ["500", "1000"]),
        ("n_kv_heads", 2, [1]),
    ],
)
def test_a_setting_that_was_tuned_has_its_best_value_in_each_shape_and_is_named(name, best, others):
    frame = with_setting(name, best, others)
    found = compare(RunTable.from_frame(frame))
    assert len(found.rows) == len(table())
    assert set(found.rows[name].astype(str)) == {str(best)}
    assert remarks_about(found.remarks, About.TUNED) == [Remark(About.TUNED, (10 * len(others), name))]
    assert crossing(frame)


@pytest.mark.parametrize(
    ("name", "best", "others"),
    [
        ("positions", "learned", ["rotary"]),
        ("use_qk_norm", True, [False]),
        ("config.activation", "gelu", ["relu", "swiglu"]),
        ("tied", 1, [0]),
    ],
)
def test_another_kind_of_model_is_refused_and_one_value_can_be_chosen(name, best, others):
    frame = with_setting(name, best, others)
    with pytest.raises(InputError, match=name) as caught:
        compare(RunTable.from_frame(frame))
    chosen = ast.literal_eval(str(caught.value).partition(" Try: where=")[2])
    assert list(chosen) == [name]
    assert chosen[name] == str(best) or (best == 1 and name != "tied")
    assert crossing(frame, where=chosen)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dataset", ["c4", "pile"]),
        ("config.tokenizer", ["gpt2", "llama"]),
        ("seq_len", [1024, 2048]),
        ("vocab_size", [32_000, 50_257]),
    ],
)
def test_losses_of_different_data_are_refused_even_if_no_run_differs_in_it(name, values):
    frame = table().assign(**{name: lambda rows: np.where(rows["depth"] == 2, *values)})
    with pytest.raises(InputError, match=name) as caught:
        compare(RunTable.from_frame(frame))
    assert str(caught.value).endswith(f" Try: where={ {name: str(values[0])} }")
    assert len(RunTable.from_frame(frame, where={name: str(values[1])}).used) == 10
    padded = table().assign(vocab_size=lambda rows: np.where(rows["depth"] == 2, 50_304, 50_432))
    assert crossing(padded)


@pytest.mark.parametrize(
    "columns",
    [
        {"run_name": lambda rows: [f"run-{i}" for i in range(len(rows))]},
        {"hostname": lambda rows: ["a", "b"] * (len(rows) // 2)},
        {"train_loss": lambda rows: rows["loss"] - 0.1, "_timestamp": lambda rows: np.arange(len(rows))},
        {"hellaswag": lambda rows: (rows["loss"] * 100).round()},
    ],
)
def test_names_machines_and_measures_are_no_settings_of_replicates(columns):
    frame = table().drop(columns="seed").assign(**columns)
    found = compare(RunTable.from_frame(frame))
    assert (len(found.rows), found.left_out) == (20, {})
    assert Remark(About.REPLICATES, (20, 10)) in found.remarks
    document = fit(RunTable.from_frame(frame))
    # The spread of the replicates is the noise; the minimum of two would have none.
    assert document.noise.source == "seeds"
    assert 0.0005 < document.noise.sd < 0.002
    assert crossing(frame)


@pytest.mark.parametrize("name", ["step", "_step", "train/global_step", "epoch"])
def test_the_last_step_of_a_history_counts(name):
    frame = table()
    early = frame.assign(**{name: 100}, loss=frame["loss"] + 0.5)
    frame = pd.concat([early, frame.assign(**{name: 200})], ignore_index=True).sample(frac=1, random_state=0)
    found = compare(RunTable.from_frame(frame))
    assert set(found.rows[name]) == {200}
    assert len(found.left_out) == len(early)
    assert found.remarks == (Remark(About.LAST_STEP, (name, 0)),)
    assert crossing(frame)
    # Runs that ended early are named.
    ended = frame[~((frame["depth"] == 4) & (frame[name] == 200))]
    remarks = compare(RunTable.from_frame(ended)).remarks
    assert remarks == (Remark(About.LAST_STEP_DIFFERS, (name, 0, 100.0, 200.0, 1)),)


def test_the_last_step_of_a_history_counts_where_each_run_has_its_final_number_of_tokens():
    frame = table(tokens=1e7)
    history = pd.concat(
        [frame.assign(step=step, loss=frame["loss"] + 1 - step / 300) for step in (100, 200, 300)]
    )
    found = compare(RunTable.from_frame(history))
    assert set(found.rows["step"]) == {300}
    assert found.remarks == (Remark(About.LAST_STEP, ("step", 1)),)
    assert len(found.left_out) == 40
    # Tokens of each step, and steps of another batch size, are no such history.
    for other in (
        history.assign(tokens=history["step"] * 1e5),
        history.assign(batch_size=1e4 / history["step"]),
    ):
        assert not remarks_about(compare(RunTable.from_frame(other)).remarks, About.LAST_STEP)


@pytest.mark.parametrize("name", ["step", "consumed_train_samples"])
def test_ends_that_differ_between_runs_without_tokens_are_said(name):
    frame = table()
    other = frame.assign(**{name: np.where(frame["depth"] == 2, 5000, 10000)})
    for rows, said in (other, True), (frame.assign(**{name: 5000}), False):
        remark = Remark(About.STEPS_DIFFER, (name, 5000.0, 10000.0, 1))
        assert compare(RunTable.from_frame(rows)).remarks == ((remark,) if said else ())


def test_a_switch_that_differs_between_the_shapes_is_said():
    frame = table().assign(positions=lambda rows: np.where(rows["depth"] == 2, "learned", "rotary"))
    values = "positions", 10, "learned", 10, "rotary"
    assert compare(RunTable.from_frame(frame)).remarks[-1] == Remark(About.SETTING_NOT_READ, values)


@pytest.mark.parametrize("name", ["weight_decay", "num_experts", "batch_size"])
def test_a_number_that_changes_with_depth_is_said(name):
    frame = table()
    by_depth, by_width = (
        frame.assign(**{name: np.where(condition, 1, 8)})
        for condition in (frame["depth"] == 2, frame["width"] < 90)
    )
    for rows, said in (by_depth, True), (by_width, False):
        remark = Remark(About.SETTING_NOT_READ, (name, 10, "1", 10, "8"))
        assert (remark in compare(RunTable.from_frame(rows)).remarks) is said


def test_the_proposed_value_is_one_that_where_takes():
    frame = pd.concat([table().assign(loss=lambda rows: rows["loss"] + 0.3), table(dataset="c4")]).fillna(
        {"dataset": ""}
    )
    with pytest.raises(InputError) as caught:
        compare(RunTable.from_frame(frame))
    assert str(caught.value).endswith(" Try: where={'dataset': 'c4'}")


def test_where_names_what_the_table_lacks():
    frame = table().assign(kind=1.0)
    assert len(RunTable.from_frame(frame, where={"kind": "1"}).used) == 20
    one = RunTable.from_frame(frame, where={"width": "46", "depth": "4"})
    assert one.used.index.tolist() == [13, 14], "rows keep the numbers of their source"
    for wrong, words in ({"knd": "1"}, "did you mean `kind`"), ({"kind": "2"}, "it has 1: 20 rows"):
        with pytest.raises(ValueError, match=words):
            RunTable.from_frame(frame, where=wrong)


def test_an_empty_value_is_not_proposed():
    without = [table().assign(loss=lambda rows, i=i: rows["loss"] + 0.01 * i, norm=None) for i in range(2)]
    frame = pd.concat([*without, table().assign(loss=lambda rows: rows["loss"] + 0.1, norm="rms")])
    with pytest.raises(InputError) as error:
        compare(RunTable.from_frame(frame.reset_index(drop=True)))
    assert str(error.value).endswith(" Try: where={'norm': 'rms'}")
