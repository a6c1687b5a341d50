"""The saved view of an experiment, against the runs that it shows and the page that reads it."""

import json
from pathlib import Path

import mlflow
import pytest

from study.plan import make_plan
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.mlflow_store import Experiment
from study.tracking.mlflow_view import COLUMNS, KEY, TAG, charts, page, saved_view
from tests.study.small import SMALL
from tests.study.tracking.examples import cell_runs, mlflow_study, row, runs

SCRIPTS = Path(mlflow.__file__).parent / "server/js/build/static/js"


def tags(uri):
    return Experiment(uri, "study").read().tags


@pytest.fixture
def study(uri):
    one = mlflow_study(uri)
    one.connect()
    planned = (plan := make_plan(load_spec(SMALL))).cells[0]
    one.log_row(row(planned.cell.key, **cell_fields(plan, planned)))
    return one


def test_an_experiment_has_the_view_and_keeps_it(uri, study, monkeypatch):
    before = tags(uri)[TAG]
    assert json.loads(before)["createdAt"] == Experiment(uri, "study").read().creation_time
    monkeypatch.setattr("mlflow.tracking.MlflowClient.set_experiment_tag", None)
    mlflow_study(uri).connect()
    assert tags(uri)[TAG] == before


def test_an_old_view_is_replaced(uri, study):
    Experiment(uri, "study").client.set_experiment_tag(study._experiment.id, TAG, "{}")
    mlflow_study(uri).connect()
    assert "compareRunCharts" in tags(uri)[TAG]


def test_the_charts_are_of_metrics_and_parameters_of_the_cells_and_in_an_open_section(uri, study):
    state = json.loads(json.loads(tags(uri)[TAG])["state"])
    (run,) = cell_runs(uri).values()
    there = {"METRIC": run.data.metrics, "PARAM": run.data.params}
    scatter, curves, _ = state["compareRunCharts"]
    assert [scatter[name]["key"] for name in ("xaxis", "yaxis")] == ["depth", "loss"]
    for chart in state["compareRunCharts"]:
        axes = [chart[name] for name in ("xaxis", "yaxis") if name in chart]
        assert all(axis["key"] in there[axis["type"]] for axis in axes)
    assert len(Experiment(uri, "study").client.get_metric_history(run.info.run_id, curves["metricKey"])) > 1
    sections = {section["uuid"]: section["display"] for section in state["compareRunSections"]}
    assert {sections[chart["metricSectionId"]] for chart in charts()} == {True}
    columns = {f"params.`{name}`" for name in run.data.params} | {f"metrics.`{m}`" for m in run.data.metrics}
    assert set(COLUMNS) <= columns
    (found,) = runs(uri, state["searchFilter"])
    assert found.info.run_id == run.info.run_id


def test_the_installed_page_reads_every_name_of_the_view():
    """MLflow documents no format, so another release may name the parts of a view otherwise."""
    text = "".join(path.read_text() for path in SCRIPTS.glob("*.js"))
    envelope = json.loads(saved_view(0))
    state = json.loads(envelope["state"])
    parts = [*state["compareRunCharts"], *state["compareRunSections"]]
    names = {*envelope, *state, *(name for part in parts for name in part)} | {"compareRunsMode"}
    values = {*(chart["type"] for chart in charts()), "PARAM", "METRIC", state["runsHiddenMode"]}
    assert [name for name in sorted(names) if name not in text] == []
    assert [value for value in sorted(values) if f'"{value}"' not in text] == []
    assert f'"{TAG.removesuffix(KEY)}"' in text
    assert f'"{page("1").partition("?")[2].split("&")[-1].partition("=")[0]}"' in text


def test_a_view_fits_into_a_tag_of_older_servers():
    assert len(saved_view(0)) < 5000
