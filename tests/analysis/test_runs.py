import json

import numpy as np
import pandas as pd
import pytest

from analysis.errors import InputError
from analysis.fit import fit
from analysis.runs import COLUMNS, RunTable, read_runs


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
        ({"loss": "n/a"}, "loss is missing or not a number"),
        ({"loss": float("inf")}, "loss is not finite"),
        ({"depth": 0}, "depth is 0, not a positive whole number"),
        ({"width": -8}, "width is -8, not a positive"),
        ({"width": 8.5}, "width is 8.5, not a positive whole"),
        ({"depth": None}, "depth is missing"),
        ({"params": -1}, "params is -1"),
        ({"status": "diverged", "reason": "NaN at step 7"}, "diverged: NaN at step 7"),
        ({"status": "failed"}, "failed"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(change, reason):
    good = {"depth": 1, "width": 4, "params": 192, "seed": 0, "loss": 2.0, "status": "done", "reason": None}
    runs = RunTable.from_frame(pd.DataFrame([good, {**good, "seed": 1, **change}]))
    assert list(runs.used.index) == [1]
    assert [item["row"] for item in runs.left_out] == [2]
    assert runs.left_out[0]["reason"].startswith(reason)


def test_duplicates_are_told_apart_from_replicates():
    row = {"depth": 1, "width": 4, "loss": 2.0, "seed": 0}
    runs = RunTable.from_frame(pd.DataFrame([row, row, {**row, "loss": 2.1}, {**row, "seed": 1}]))
    assert list(runs.used.index) == [1, 4]
    assert runs.left_out[0]["reason"] == "duplicate of row 1"
    assert "give each its seed" in runs.left_out[1]["reason"]


def test_a_failed_attempt_does_not_shadow_the_cell_that_was_done():
    row = {"cell": "abc", "depth": 1, "width": 4, "loss": None, "status": "failed"}
    runs = RunTable.from_frame(pd.DataFrame([row, {**row, "loss": 2.0, "status": "done"}]))
    assert list(runs.used["loss"]) == [2.0]
    assert runs.left_out == [{"row": 1, "cell": "abc", "reason": "failed"}]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "tsv"])
def test_every_format_gives_the_same_table(tmp_path, pilot_frame, ending):
    frame = pilot_frame()
    path = tmp_path / f"runs.{ending}"
    {
        "csv": lambda: frame.to_csv(path, index=False),
        "tsv": lambda: frame.to_csv(path, index=False, sep="\t"),
        "jsonl": lambda: frame.to_json(path, orient="records", lines=True, double_precision=15),
        "parquet": lambda: frame.to_parquet(path),
    }[ending]()
    runs = read_runs(path)
    pd.testing.assert_frame_equal(runs.used, RunTable.from_frame(frame).used, check_dtype=False, atol=1e-12)


def test_write_csv_round_trips_exactly_and_keeps_keys_as_text(tmp_path, study):
    # Keys such as 01001200e1234567 read as a number would be 0 or infinity.
    path = study.write_csv(tmp_path / "runs.csv")
    again = read_runs(path)
    assert list(again.used["cell"]) == list(study.used["cell"])
    assert list(again.used["loss"]) == list(study.used["loss"])
    assert not list(tmp_path.glob(".*"))


def test_foreign_names_are_mapped(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("n_layer,d_model,final_loss,loss\n1,8,2.5,99\n")
    runs = read_runs(path, {"depth": "n_layer", "width": "d_model", "loss": "final_loss"})
    assert runs.used.iloc[0][["depth", "width", "loss"]].tolist() == [1, 8, 2.5]


def test_a_missing_column_names_what_is_there_and_the_fix(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("depth,width,final_loss\n1,8,2.5\n")
    with pytest.raises(InputError) as caught:
        read_runs(path)
    message = str(caught.value)
    assert "no column 'loss'" in message
    assert "depth, width, final_loss" in message
    assert "--column loss=final_loss" in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"loss": "fnal_loss"}, "Perhaps --column loss=final_loss"),
        ({"los": "final_loss"}, "Did you mean 'loss'?"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path, columns, words):
    path = tmp_path / "theirs.csv"
    path.write_text("depth,width,final_loss\n1,8,2.5\n")
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        read_runs(path, columns)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"depth,width,loss\n", "has no rows"),
        ("empty.jsonl", b"\n\n", "is empty"),
        ("broken.jsonl", b'{"depth": 1}\n{oops\n', "line 2, is not JSON"),
        ("list.jsonl", b"[1, 2]\n", "line 1, is not a JSON object"),
        ("broken.parquet", b"not parquet", "cannot be read as PARQUET"),
        ("latin.csv", b"depth,width,loss\n1,8,\xff\n", "cannot be read as CSV"),
        ("runs.xlsx", b"PK", "ends in .csv"),
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
def mlflow_trials(tmp_path):
    """Write trials of one experiment: (cell, protocol, status, milliseconds of the end); return the store's URI."""
    client_module = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def write(*trials):
        client = client_module.MlflowClient(tracking_uri=uri)
        experiment = client.create_experiment("toy", artifact_location=str(tmp_path / "artifacts"))
        for cell, protocol, status, end in trials:
            tags = {"interplay.kind": "trial", "interplay.cell": cell, "interplay.status": status}
            item = client.create_run(
                experiment, tags=tags | ({"interplay.protocol": protocol} if protocol else {}), start_time=1
            )
            for name, value in {"depth": 2, "width": 8, "seed": 1}.items():
                client.log_param(item.info.run_id, name, value)
            if status == "done":
                client.log_metric(item.info.run_id, "loss", 1.0)
            client.set_terminated(item.info.run_id, end_time=end)
        return uri

    return write


def test_an_experiment_gives_the_rows_of_its_newest_protocol_and_says_what_became_of_the_others(
    mlflow_trials,
):
    uri = mlflow_trials(
        ("a", "new", "done", 900), ("b", "new", "diverged", 300), ("c", "old", "done", 800), ("d", "", "done", 500),
        ("e", "tried", "failed", 999),
    )  # fmt: skip
    runs = read_runs("mlflow:toy", tracking_uri=uri)
    assert runs.used["cell"].tolist() == ["a"]
    assert sorted(runs.frame["cell"]) == ["a", "b"]
    reasons = {item["cell"]: item["reason"] for item in runs.left_out}
    assert reasons["c"] == "another protocol (old) than the newest rows (new)"
    assert reasons["d"] == "another protocol (none recorded) than the newest rows (new)"
    assert reasons["e"] == "another protocol (tried) than the newest rows (new)"


def test_an_experiment_without_any_protocol_is_read_as_it_is(mlflow_trials):
    assert (
        len(
            read_runs(
                "mlflow:toy", tracking_uri=mlflow_trials(("a", "", "done", 5), ("b", "", "done", 9))
            ).used
        )
        == 2
    )


def test_a_file_with_several_protocols_is_kept_whole_with_a_warning(tmp_path):
    path = tmp_path / "runs.csv"
    lines = [
        f"1,{w},{s},{2 - w / 100 + s / 1000},{p}" for w in (8, 16) for s, p in ((0, "12e4"), (1, "0012"))
    ]
    path.write_text("depth,width,seed,loss,protocol\n" + "\n".join(lines) + "\n")
    runs = read_runs(path)
    assert len(runs.used) == 4
    (warning,) = [text for text in fit(runs).warnings if "protocol" in text]
    assert "2 protocols (0012, 12e4)" in warning
    path.write_text(path.read_text().replace("0012", "12e4"))
    assert not any("protocol" in text for text in fit(read_runs(path)).warnings)


def test_mlflow_trials_become_rows_and_the_rest_says_why(tmp_path):
    client_module = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = client_module.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("toy", artifact_location=str(tmp_path / "artifacts"))

    def run(tags, params=None, loss=None):
        item = client.create_run(experiment, tags=tags)
        for name, value in (params or {}).items():
            client.log_param(item.info.run_id, name, value)
        if loss is not None:
            client.log_metric(item.info.run_id, "loss", loss + 1, step=1)
            client.log_metric(item.info.run_id, "loss", loss, step=2)
        return item.info.run_id

    trial = {"interplay.kind": "trial", "interplay.cell": "c1", "interplay.status": "done"}
    shape = {"depth": 2, "width": 8, "heads": 2, "params": 1536, "seed": 1, "lr": 0.04, "tokens": 1000}
    run({"interplay.kind": "study"})
    run(trial, shape, loss=1.25)
    run(
        {**trial, "interplay.cell": "c2", "interplay.status": "diverged", "interplay.reason": "NaN"},
        shape | {"seed": 2},
    )
    unfinished = run({"interplay.kind": "trial", "interplay.cell": "c3"}, shape)
    stranger = run({})

    runs = read_runs("mlflow:toy", tracking_uri=uri)
    assert len(runs.used) == 1
    assert runs.used.iloc[0][["cell", "depth", "width", "seed", "loss"]].tolist() == ["c1", 2, 8, 1, 1.25]
    reasons = {item["row"]: item["reason"] for item in runs.left_out}
    assert "no tag interplay.status" in reasons[unfinished]
    assert "no tag interplay.kind" in reasons[stranger]
    assert "diverged: NaN" in reasons.values()
    assert len(reasons) == 3
    with pytest.raises(InputError, match="Did you mean mlflow:toy"):
        read_runs("mlflow:tot", tracking_uri=uri)
    json.dumps(runs.left_out)
