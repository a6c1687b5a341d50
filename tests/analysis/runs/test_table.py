import json

import numpy as np
import pandas as pd
import pytest

from analysis.runs.columns import COLUMNS
from analysis.runs.comparison import compare
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable, read_runs
from core.errors import InputError


def test_three_columns_are_enough():
    runs = RunTable.from_frame(pd.DataFrame({"depth": [2], "width": [8], "loss": [1.5]}))
    row = runs.used.iloc[0]
    assert (row["params"], row["seed"], row["status"]) == (12 * 2 * 64, 0, "done")
    assert tuple(runs.frame.columns[: len(COLUMNS)]) == COLUMNS
    assert runs.used["depth"].dtype == np.int64


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": None}, "loss is missing"),
        ({"loss": "n/a"}, "loss is missing"),
        ({"loss": "low"}, "loss is 'low', not a number"),
        ({"loss": [2.0]}, "loss is '[2.0]', not a number"),
        ({"loss": float("nan")}, "loss is missing"),
        ({"loss": 10**400}, "diverged: loss is not finite"),
        ({"loss": float("inf")}, "diverged: loss is not finite"),
        ({"loss": "NaN"}, "diverged: loss is not finite"),
        ({"loss": -0.5}, "loss is -0.5; a loss in nats per token is positive"),
        ({"loss": 0}, "loss is 0; a loss"),
        ({"loss": 1e200}, "loss is 1e+200, above ln(vocabulary)"),
        ({"loss": 1e-200}, "loss is 1e-200; no loss"),
        ({"depth": 0}, "depth is 0, not a positive whole number"),
        ({"depth": "two"}, "depth is 'two', not a number"),
        ({"width": -8}, "width is -8, not a positive"),
        ({"width": 8.5}, "width is 8.5, not a positive whole"),
        ({"width": float("inf")}, "width is inf, not a positive whole"),
        ({"width": 1e300}, "width is 1e+300, not a positive whole"),
        ({"depth": None}, "depth is missing"),
        ({"status": "diverged", "reason": "NaN at step 7"}, "diverged: NaN at step 7"),
        ({"status": "diverged", "loss": float("nan")}, "diverged"),
        ({"status": "failed", "loss": float("nan")}, "failed"),
        ({"status": " Failed "}, "failed"),
        ({"status": "blue", "reason": "moon"}, "blue: moon"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(change, reason):
    good = {"depth": 1, "width": 4, "params": 192, "seed": 0, "loss": 2.0, "status": "done", "reason": None}
    runs = RunTable.from_frame(pd.DataFrame([good, {**good, "seed": 1, **change}], dtype=object))
    assert list(runs.used.index) == [1]
    assert [item["row"] for item in runs.left_out] == [2]
    assert runs.left_out[0]["reason"].startswith(reason)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_loss_that_is_infinite_or_the_text_nan_diverged_and_any_other_is_missing(tmp_path, ending):
    path = tmp_path / f"runs.{ending}"
    if ending == "jsonl":
        values = [2.5, None, "NaN", float("-inf")]
        lines = [{"depth": 1, "width": 8 * i, "loss": value} for i, value in enumerate(values, start=1)]
        # Rows need not have the same keys.
        path.write_text("\n\n".join(map(json.dumps, [*lines, {"depth": 1, "width": 40}])))
    elif ending == "parquet":
        frame = pd.DataFrame({"depth": 1, "width": [8, 16, 24, 32], "loss": ["2.5", None, "nan", "-inf"]})
        frame.to_parquet(path)
    else:
        text = "depth,width,lr,loss\n1,8,,2.5\n1,16,nan,\n1,24,0.1,nan\n1,32,0.1,-inf\n"
        path.write_text(text if ending == "csv" else text.replace(",", "\t"))
    runs = read_runs(path)
    assert [item["reason"] for item in runs.left_out][:3] == [
        "loss is missing", "diverged: loss is not finite", "diverged: loss is not finite"
    ]  # fmt: skip
    assert runs.frame["status"].tolist()[:4] == ["done", "done", "diverged", "diverged"]
    # A table that is written and read again has the same statuses.
    again = read_runs(runs.write_csv(tmp_path / "again.csv"))
    assert again.frame["status"].tolist() == runs.frame["status"].tolist()
    assert [item["row"] for item in again.left_out] == [item["row"] for item in runs.left_out]


#: Of the form of the Gemstones table: several checkpoints a shape, sizes that count the embeddings, no seed.
GEMSTONES = [
    {"run_name": f"{width}x{depth}", "params_active_precise": 12 * depth * width**2 + 100_608 * width, "width": width,
     "depth": depth, "tokens": tokens, "step": tokens // 4_194_304, "final_loss": 4 - 0.05 * depth - tokens / 1e11}
    for depth, width in ((3, 768), (12, 512), (13, 384)) for tokens in (10_003_415_040, 20_006_830_080)
]  # fmt: skip


@pytest.mark.parametrize("count", ["nonembedding", "table"])
def test_n_is_counted_as_asked_and_the_other_count_is_kept(tmp_path, count):
    path = tmp_path / "gemstones.jsonl"
    path.write_text("\n".join(map(json.dumps, GEMSTONES)))
    runs = read_runs(path, {"params": "params_active_precise", "loss": "final_loss"}, count=count)
    assert runs.count == count
    assert not runs.left_out
    counted = (12 * runs.used["depth"] * runs.used["width"] ** 2).tolist()
    theirs = [row["params_active_precise"] for row in GEMSTONES]
    assert runs.used["params"].tolist() == (theirs if count == "table" else counted)
    assert count == "table" or runs.used["table_params"].tolist() == theirs
    assert ("table_params" in runs.frame) == (count != "table")
    # Either count can be asked for of the table that is written.
    written = runs.write_csv(tmp_path / "runs.csv")
    assert read_runs(written).used["params"].tolist() == counted
    assert read_runs(written, count="table").used["params"].tolist() == theirs
    named = read_runs(written, {"params": "step"}, count="table")
    assert named.used["params"].tolist() == [row["step"] for row in GEMSTONES]


def test_the_tables_own_count_must_be_there():
    frame = pd.DataFrame({"depth": 1, "width": [4, 8], "loss": 2.0, "their_params": 7})
    with pytest.raises(InputError, match="no column 'params'") as caught:
        RunTable.from_frame(frame, count="table")
    assert str(caught.value).endswith(" Try: columns={'params': 'their_params'}")
    with pytest.raises(InputError, match="must be one of nonembedding, table"):
        RunTable.from_frame(frame, count="all")
    own = RunTable.from_frame(frame.assign(params=[-1, None]), count="table")
    assert [item["reason"] for item in own.left_out] == [
        "params is -1, not a positive number", "params is missing"
    ]  # fmt: skip
    # Counted as 12·L·d², a size the table does not say is no loss.
    assert RunTable.from_frame(frame.assign(params=[-1, None])).used["params"].tolist() == [192, 768]


@pytest.mark.parametrize(
    ("labels", "seeds"),
    [
        ([0, 1, 2], [0, 1, 2]),
        (["7", "3", "9"], [7, 3, 9]),
        (["b", "a", "c"], [1, 0, 2]),
        ([0.25, 0.5, 0.125], [1, 2, 0]),
        ([2**63 + 1, 2**63, 2**63 + 2], [1, 0, 2]),
        ([("x", 1), "x", None], [1, 2, 0]),
        ([4, None, 2], [4, 5, 2]),
        ([None, None, None], [0, 0, 0]),
    ],
)
def test_seeds_are_names(labels, seeds):
    seed = pd.Series(labels, dtype=object)
    runs = RunTable.from_frame(pd.DataFrame({"depth": 1, "width": [4, 8, 16], "seed": seed, "loss": 2.0}))
    assert runs.used["seed"].tolist() == seeds
    assert runs.used["seed"].dtype == np.int64
    if "seed_label" in runs.used:
        assert runs.used["seed_label"].tolist() == ["" if label is None else str(label) for label in labels]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
@pytest.mark.parametrize(
    ("named", "compared"),
    [
        ({"seed": 0}, [6.5 / 3]),
        ({"cell": "abc"}, [6.5 / 3]),
        ({"lr": 0.01}, [2.0, 2.1, 2.4]),
        ({}, [2.0, 2.1, 2.4]),
        ({"seed": None, "lr": ""}, [2.0, 2.1, 2.4]),
    ],
)
def test_copies_are_dropped_losses_of_one_run_averaged_and_rows_without_a_seed_are_replicates(
    order, named, compared
):
    losses = [2.4, 2.0, 2.1, 2.0]
    frame = pd.DataFrame({"depth": 1, "width": 4, "loss": [losses[i] for i in order], **named})
    runs = RunTable.from_frame(frame)
    found = compare(runs)
    assert sorted(found.rows["loss"]) == pytest.approx(compared)
    assert found.rows["seed"].nunique() == len(compared)
    reasons = [item["reason"] for item in runs.left_out] + [why.text for why in found.left_out.values()]
    assert sum(reason.startswith("duplicate of row") for reason in reasons) == 1
    assert sum("seed" in reason for reason in reasons) == 3 - len(compared)


@pytest.mark.parametrize(
    ("different", "left", "reason"),
    [
        ([{"tokens": tokens, "loss": 3 - tokens / 100} for tokens in (10, 20, 20)], 3, "duplicate of row 2"),
        ([{"loss": None, "status": "failed"}, {"loss": 2.0, "status": "done"}], 1, "failed"),
    ],
    ids=["checkpoints with their tokens", "a failed attempt and a later one"],
)
def test_rows_of_one_cell_are_told_apart(different, left, reason):
    rows = [{"cell": "abc", "depth": 1, "width": 4, **item} for item in different]
    runs = RunTable.from_frame(pd.DataFrame(rows))
    kept = [item["loss"] for number, item in enumerate(rows, start=1) if number != left]
    assert runs.used["loss"].tolist() == kept
    (item,) = runs.left_out
    assert (item["row"], item["cell"], item["reason"]) == (left, "abc", reason)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "tsv"])
def test_every_format_gives_the_same_table(tmp_path, pilot_frame, ending):
    frame = pilot_frame()
    write(frame, tmp_path / f"runs.{ending}")
    runs = read_runs(tmp_path / f"runs.{ending}")
    pd.testing.assert_frame_equal(runs.used, RunTable.from_frame(frame).used, check_dtype=False, atol=1e-12)


def test_write_csv_round_trips_exactly_and_keeps_keys_as_text(tmp_path, study):
    # Keys such as 01001200e1234567 read as a number would be 0 or infinity.
    path = study.write_csv(tmp_path / "runs.csv")
    again = read_runs(path)
    assert list(again.used["cell"]) == list(study.used["cell"])
    assert list(again.used["loss"]) == list(study.used["loss"])
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("headings", "options", "words"),
    [
        # Headings that were recognised are no candidates.
        ("depth,n_embd,their_bpw,foo", {}, ["no column 'loss'", "Its other headings are their_bpw, foo."]),
        ("depth", {}, ["no column 'width' and no column 'loss'"]),
        # total_params is a count of its own, and not the missing one.
        ("depth,width,loss,total_params", {"count": "table"}, ["no column 'params'"]),
        ("depth,width,loss", {"columns": {"loss": "los"}}, ["Its own column loss needs no columns="]),
        (
            "depth,width,final_loss",
            {"columns": {"loss": "fnal_loss"}},
            ["Perhaps columns={'loss': 'final_loss'}"],
        ),
        ("depth,width,final_loss", {"columns": {"los": "final_loss"}}, ["did you mean `loss`?"]),
    ],
)
def test_a_missing_or_wrongly_named_column_is_refused_with_the_fix(tmp_path, headings, options, words):
    path = tmp_path / "theirs.csv"
    path.write_text(f"{headings}\n{','.join('1' for _ in headings.split(','))}\n")
    with pytest.raises(InputError) as caught:
        read_runs(path, **options)
    message = str(caught.value)
    assert [part for part in words if part not in message] == []
    assert str(path) in message or "did you mean" in message
    assert ("Perhaps" in message) == any("columns={" in part for part in words)


@pytest.mark.parametrize(
    ("wanted", "other", "guessed"),
    [
        ("loss", "val_acc", False),
        ("loss", "value", True),
        ("width", "head_dim", False),
        ("width", "ffn_dim", False),
        ("width", "step", False),
        ("width", "their_size", True),
    ],
)
def test_no_column_is_guessed_whose_heading_names_something_else(wanted, other, guessed):
    frame = pd.DataFrame({"depth": [1, 2], "width": [8, 16], "loss": [0.5, 0.25]}).rename(
        columns={wanted: other}
    )
    with pytest.raises(InputError, match=f"no column '{wanted}'") as caught:
        RunTable.from_frame(frame)
    proposed = str(caught.value).partition(" Try: columns=")[2]
    assert proposed == (repr({wanted: other}) if guessed else "")


def test_an_accuracy_is_no_loss():
    frame = pd.DataFrame({"depth": [1, 2], "width": [8, 16], "val_accuracy": [0.5, 0.25]})
    with pytest.raises(InputError, match="higher is better"):
        RunTable.from_frame(frame, {"loss": "val_accuracy"})


def write(frame, path):
    """Write a table to a file of the format that its ending names."""
    separator = "\t" if path.suffix == ".tsv" else ","
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        frame.to_csv(path, index=False, sep=separator, na_rep="nan")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_common_headings_are_taken_with_a_note(tmp_path, suffix):
    frame = pd.DataFrame(
        {"n_layer": [1, 2, 2], "n_embd": [8, 8, 16], "val_loss": [2.5, np.nan, 2.25], "tok": [1e6, 1e6, 1e6]}
    )
    write(frame, tmp_path / f"theirs.{suffix}")
    runs = read_runs(tmp_path / f"theirs.{suffix}")
    found = runs.used[["depth", "width", "loss", "tokens"]].to_numpy().tolist()
    assert found == [[1, 8, 2.5, 1e6], [2, 16, 2.25, 1e6]]
    # A text nan in the column that stands for the loss is that of a diverged run.
    assert runs.frame["status"].tolist() == ["done", "diverged" if suffix == "csv" else "done", "done"]
    (note,) = runs.notes
    named = [note.values[i : i + 3] for i in range(0, len(note.values), 3)]
    assert note.about is About.COMMON_NAMES
    assert sorted(named) == [
        ("n_embd", "width", ""),
        ("n_layer", "depth", ""),
        ("tok", "tokens", ""),
        ("val_loss", "loss", ""),
    ]


def test_common_headings_neither_compete_nor_replace_ours():
    frame = pd.DataFrame({"depth": [1], "width": [8], "val_loss": [2.5], "eval_loss": [2.4]})
    with pytest.raises(InputError, match="Several headings can be the loss: eval_loss, val_loss"):
        RunTable.from_frame(frame)
    assert RunTable.from_frame(frame, {"loss": "eval_loss"}).used["loss"].tolist() == [2.4]
    frame.columns = ["depth", "width", "width", "loss"]
    with pytest.raises(InputError, match="several columns named 'width'"):
        RunTable.from_frame(frame)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"depth,width,loss\n", "has no rows"),
        ("empty.jsonl", b"\n\n", "is empty"),
        ("broken.jsonl", b'{"depth": 1}\n\n{oops\n', "line 3, is not JSON"),
        ("list.jsonl", b"[1, 2]\n", "line 1, is not a JSON object"),
        ("broken.parquet", b"not parquet", "cannot be read as PARQUET"),
        ("latin.csv", b"depth,width,loss\n1,8,\xff\n", "line 2 is not UTF-8"),
        ("runs.xlsx", b"PK", "Save its sheet as CSV"),
        ("runs.txt", b"depth", "ends in .csv"),
        ("runs.csv.zst", b"depth", "decompress it"),
        ("fit.json", b'{"crossings": [], "law": {}}', "interplay.recommend(1e9, fit="),
        ("words.json", b'{"depth": "x"}', "is no run table"),
        ("ragged.csv", b"depth,width,loss\n1,8,2,3,4\n", "line 2, has 5 values"),
    ],
)
def test_unreadable_files_are_one_clear_paragraph(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match="no file"):
        read_runs(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_runs(tmp_path)


@pytest.fixture
def mlflow_store(tmp_path):
    """The URI of a store, and a function that adds a run to its experiment and returns its id."""
    client_module = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = client_module.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("toy", artifact_location=str(tmp_path / "artifacts"))

    def add(status=None, cell="a", protocol=None, kind="trial", end=1, reason=None, seed=1, **metrics):
        tags = {"kind": kind, "cell": cell, "status": status, "protocol": protocol, "reason": reason}
        tags = {f"interplay.{name}": value for name, value in tags.items() if value}
        run = client.create_run(experiment, tags=tags, start_time=1).info.run_id
        for name, value in {"depth": 2, "width": 8, "seed": seed, "lr": 0.04}.items():
            client.log_param(run, name, value)
        for name, value in metrics.items():
            client.log_metric(run, name, value + 1, step=1)
            client.log_metric(run, name, value, step=2)
        client.set_terminated(run, end_time=end)
        return run

    return uri, add


def test_an_experiment_gives_the_rows_of_its_newest_protocol_and_the_reason_of_every_other_run(mlflow_store):
    uri, add = mlflow_store
    add(kind="study")
    add("done", "a", "new", end=900, loss=1.25, **{"measure.accuracy": 0.5, "measure.rank_residual/1": 0.1})
    add("diverged", "b", "new", end=300, reason="NaN", seed=2)
    add("done", "c", "old", end=800, loss=1.0)
    add("done", "d", end=500, loss=1.0)
    add("failed", "e", "tried", end=999)
    unfinished, stranger = add(cell="f"), add(kind=None)
    runs = read_runs("mlflow:toy", tracking_uri=uri)
    (row,) = runs.used[["cell", "depth", "width", "seed", "lr", "loss"]].to_numpy().tolist()
    assert row == ["a", 2, 8, 1, 0.04, 1.25]
    assert runs.used["accuracy"].tolist() == [0.5], "what was measured beside the loss is a column"
    assert not [name for name in runs.frame if "rank" in name], "but not of single layers"
    assert sorted(runs.frame["cell"]) == ["a", "b"]
    reasons = {item.get("cell", item["row"]): item["reason"] for item in runs.left_out}
    other = "another protocol ({}) than the newest rows (new)".format
    assert reasons == {
        "b": "diverged: NaN", "c": other("old"), "d": other("none recorded"), "e": other("tried"),
        unfinished: f"MLflow run {unfinished} has no tag interplay.status; it is FINISHED",
        stranger: f"MLflow run {stranger} has no tag interplay.kind",
    }  # fmt: skip
    json.dumps(runs.left_out)
    with pytest.raises(InputError, match="did you mean mlflow:toy"):
        read_runs("mlflow:tot", tracking_uri=uri)


def test_an_experiment_without_any_protocol_is_read_as_it_is(mlflow_store):
    uri, add = mlflow_store
    add("done", "a", loss=1.0)
    add("done", "b", loss=1.0)
    assert len(read_runs("mlflow:toy", tracking_uri=uri).used) == 2


def test_a_protocol_is_text_and_a_file_with_several_is_kept_whole(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("depth,width,seed,loss,protocol\n1,8,0,1.9,12e4\n1,8,1,1.8,0012\n1,16,0,1.7,12e4\n")
    assert read_runs(path).used["protocol"].tolist() == ["12e4", "0012", "12e4"]


def test_a_foreign_experiment_is_a_table_of_its_runs(tmp_path):
    client_module = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = client_module.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("sweep", artifact_location=str(tmp_path / "artifacts"))
    for depth, width, status in (
        (2, 16, "FINISHED"),
        (2, 32, "FINISHED"),
        (4, 16, "FAILED"),
        (4, 32, "RUNNING"),
    ):
        run = client.create_run(experiment, start_time=depth * width).info.run_id
        for name, value in {"n_layer": depth, "hidden_size": width, "optimizer.lr": 0.01, "seed": 7}.items():
            client.log_param(run, name, value)
        for step, loss in enumerate((4.0, 3.0 - width / 100)):
            client.log_metric(run, "eval/loss", loss, step=step)
            client.log_metric(run, "train_tokens", 1e6 * (step + 1), step=step)
        if status != "RUNNING":
            client.set_terminated(run, status=status)
    runs = read_runs("mlflow:sweep", tracking_uri=uri)
    names = ["depth", "width", "lr", "seed", "tokens", "loss"]
    assert runs.used[names].to_numpy().tolist() == [[2, 16, 0.01, 7, 2e6, 2.84], [2, 32, 0.01, 7, 2e6, 2.68]]
    assert {item["reason"] for item in runs.left_out} == {"failed", "running"}
    assert Remark(About.UNFINISHED, (2, 1, "failed", 1, "running")) in runs.notes
    with pytest.raises(InputError, match="loss"):
        read_runs("mlflow:sweep", {"loss": "metrics.los"}, tracking_uri=uri)


def test_a_table_of_records_is_that_of_their_frame():
    """The records of a study need no reading; the reader of foreign tables is the truth for them."""
    first = {
        **{"cell": "a", "depth": 2, "width": 16, "heads": 2, "params": 6144, "total_params": 7000},
        **{"budget": 6e3, "seed": 0, "lr": 1e-3, "lr_factor": 1.0, "tokens": 1000, "flops": 1e9, "loss": 2.5},
        **{"status": "done", "reason": None, "vocabulary": 64, "epochs": None, "train_seconds": 2.0},
        **{"accuracy": 0.5, "protocol": "p"},
    }  # fmt: skip
    lost = {"loss": None, "accuracy": None}
    records = [
        first,
        {**first, "cell": "b", "seed": 1, "network": "llama"},
        {
            **first,
            "cell": "c",
            "depth": 1,
            "params": 3072,
            "status": "diverged",
            "reason": "the loss is nan",
            **lost,
        },
        {
            **first,
            "cell": "d",
            "depth": 3,
            "params": 9216,
            "status": "failed",
            "reason": "out of memory",
            **lost,
        },
        {**first, "cell": "e", "depth": 4, "params": 12288, "loss": np.inf},
        {**first, "cell": "f", "seed": 2, "purpose": "sensitivity", "bits_per_byte": 1.25, "epochs": 0.5},
    ]
    made, read = RunTable.of_records(records, "the study"), RunTable.from_frame(pd.DataFrame(records))
    pd.testing.assert_frame_equal(made.frame, read.frame)
    pd.testing.assert_frame_equal(made.used, read.used)
    assert list(made.used["cell"]) == ["a", "b", "f"]
    assert made.left_out == read.left_out
    assert made.notes == read.notes == ()
    with pytest.raises(InputError):
        RunTable.of_records([], "the study")


def test_a_table_shows_how_many_of_its_rows_are_used():
    table = RunTable.from_frame(
        pd.DataFrame({"depth": [1, 2, 2], "width": [8, 8, 8], "loss": [2.0, 1.9, None]})
    )
    assert repr(table).startswith(f"RunTable of {table.source}: 2 of 3 rows used (left out: 1 × ")
    assert "<table" in table._repr_html_()
