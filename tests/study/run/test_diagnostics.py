"""Diagnostics in a spec, on the way to MLflow, and back from there for the report."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.runner import _Listener
from study.run.trial import TrialSettings, run_with, trial_config
from study.spec.study import load_spec
from study.tracking.ledger import StudyPaths, layer_table, run_table
from study.tracking.mlflow_store import METRICS_PER_BATCH, Outbox, Store, store_uri
from study.tracking.tracker import Tracker
from tests.environment import environment_without
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.layout import Layout
from trainables.progress import Evaluation, Point, Progress


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_spec(SMALL))


@pytest.fixture
def store(template, tmp_path, monkeypatch):
    monkeypatch.setattr("study.tracking.tracker.BATCH_SECONDS", 0.01)
    shutil.copy(template, tmp_path / "mlflow.db")
    return Store(store_uri("auto", tmp_path), "study", tmp_path / "artifacts")


def result(start, *evaluations, **changes):
    """Of a cell with these measures at the start and at steps 600, 1200, ... of its 1200."""
    found = tuple(
        Evaluation(step=600 * i, loss=1 / i, measures=each) for i, each in enumerate(evaluations, 1)
    )
    return stub_result(step=1200, start=start, evaluations=found, **changes)


def test_a_spec_names_diagnostics_and_its_cells_stay_the_same_cells(plan):
    spec = load_spec(SMALL, ["diagnostics=[rank, induction]"])
    assert spec.diagnostics == ("rank", "induction")
    assert load_spec(SMALL).diagnostics == ()
    looked = make_plan(spec)
    assert [p.cell.key for p in looked.cells] == [p.cell.key for p in plan.cells]
    assert looked.protocol == plan.protocol
    # A key of before there were diagnostics.
    assert plan.cells[0].cell.key == "678b9e0422100fd0"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["diagnostics=[rnk]"], "'rnk'; allowed: rank, layer_drop, induction, gradients"),
        (["diagnostics=[rank, rank]"], "`diagnostics` has rank more than once"),
        (
            ["diagnostics=[rank]", "resources.tensor_parallel=2", "resources.slots=2"],
            "set tensor_parallel to 1",
        ),
        (["diagnostics=[rank]", "resources.zero=3"], "ZeRO stage 3"),
        (["diagnostics=[gradients]", "resources.zero=3"], "diagnostics (gradients) look into whole layers"),
    ],
)
def test_diagnostics_that_cannot_be_had_are_refused_before_anything_starts(overrides, words):
    with pytest.raises(SpecError) as refused:
        make_plan(load_spec(SMALL, overrides))
    assert words in str(refused.value)


def test_a_trial_asks_for_the_diagnostics_of_its_study(plan, tmp_path, monkeypatch):
    asked = []

    def train(cell, **options):
        asked.append(options["diagnostics"])
        return stub_result()

    monkeypatch.setattr("ray.tune.report", lambda report: None)
    for names in ((), ("rank", "gradients")):
        settings = TrialSettings(
            data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1, diagnostics=names
        )
        run_with(train, trial_config(plan.cells[0].cell, Layout(), settings))
    assert asked == [(), ("rank", "gradients")]


def test_measures_of_layers_reach_mlflow_and_come_back(plan, store, tmp_path):
    """Told live first and then with the row, as a long cell is, and with the row alone, as a short one."""
    start = {"rank_residual/1": 0.75, "rank_residual/2": 0.5}
    middle, end = ({**start, "rank_residual/2": value, "induction_score": 0.125} for value in (0.625, 0.875))
    rows = {}
    outbox = Outbox(tmp_path / "outbox")
    tracker = Tracker(store, store.uri, "study", outbox, None, None)
    tracker.start("study", {})
    listener = _Listener(plan, rows, tracker, StudyPaths(tmp_path, "small"))
    whole = result(start, middle, end)
    point = Point(step=10, train_loss=1, lr=1, grad_norm=1, tokens_per_second=1)
    news = Progress(
        step=600, steps=1200, train_seconds=1, points=(point,), evaluations=whole.evaluations[:1], start=start
    )
    listener.started(plan.cells[0])
    listener.progress(plan.cells[0], news)
    listener.ended(plan.cells[0], whole.model_copy(update={"points": (point,)}))
    listener.ended(plan.cells[1], whole.model_copy(update={"points": (point,)}))
    lost = result({"rank_residual/1": 0.25}, status="diverged", reason="nan", loss=None)
    listener.ended(plan.cells[2], lost)
    tracker.close()
    assert tracker.problem is None
    for run in store.runs("tags.`interplay.kind` = 'trial' AND tags.`interplay.status` = 'done'"):
        history = store.client.get_metric_history(run.info.run_id, "validation_rank_residual/2")
        assert [(m.step, m.value) for m in history] == [(0, 0.5), (600, 0.625), (1200, 0.875)]
    cells = [p.cell.key for p in plan.cells[:3]]
    expected = {(cell, 0, "rank_residual", 1, 0.75) for cell in cells[:2]}
    expected |= {(cell, 0, "rank_residual", 2, 0.5) for cell in cells[:2]}
    expected |= {(cell, 1200, "rank_residual", 1, 0.75) for cell in cells[:2]}
    expected |= {(cell, 1200, "rank_residual", 2, 0.875) for cell in cells[:2]}
    expected |= {(cells[2], 0, "rank_residual", 1, 0.25)}
    for known in (rows, store.rows()):
        table = layer_table(plan, known)
        assert list(table.columns) == ["cell", "step", "name", "layer", "value"]
        assert set(table.itertuples(index=False, name=None)) == expected
        assert len(table) == len(expected)
        runs = run_table(plan, known).frame
        assert runs["induction_score"].tolist()[:2] == [0.125, 0.125], "what is no layer's is a column"
        assert not [name for name in runs.columns if "/" in name]


def test_more_measures_than_a_batch_holds_reach_mlflow(plan, store, tmp_path):
    # As many at the start as at the end, in one batch with the row.
    count = METRICS_PER_BATCH // 2 + 100
    many = {f"rank_residual/{layer}": layer / count for layer in range(1, count + 1)}
    tracker = Tracker(store, store.uri, "study", Outbox(tmp_path / "outbox"), None, None)
    tracker.start("study", {})
    _Listener(plan, {}, tracker, StudyPaths(tmp_path, "small")).ended(plan.cells[0], result(many, many))
    tracker.close()
    assert tracker.problem is None
    (row,) = store.rows().values()
    assert row.start == row.measures == many
    assert row.loss == 1.0


def test_a_study_without_diagnostics_has_no_table_of_layers(plan):
    assert layer_table(plan, {}).empty


def test_the_preset_compares_depths_of_one_width_in_minutes():
    spec = load_spec("rank-collapse")
    plan = make_plan(spec)
    assert spec.diagnostics == ("rank",)
    assert {(p.cell.shape.depth, p.cell.shape.width) for p in plan.cells} == {(2, 24), (6, 24), (12, 24)}
    assert plan.device_hours / 2 * 60 < 6, "on two cores, by a cautious estimate"


@pytest.mark.slow
def test_the_preset_shows_the_collapse_and_its_second_run_the_same(tmp_path):
    command = [sys.executable, "-m", "study", "run", "rank-collapse", "--results", str(tmp_path)]
    for value in ("training.steps=30", "training.seeds=1", "resources.slots=1"):
        command += ["--set", value]
    environment = {**environment_without("RAY_", "MLFLOW_"), "HOME": str(tmp_path / "home")}
    figure = tmp_path / "rank-collapse" / "figures" / "diagnostics.csv"
    written = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        written.append(figure.read_bytes())
        figure.unlink()
    assert "nothing to train" in done.stdout
    assert written[0] == written[1], "read back from MLflow"
    figure.write_bytes(written[0])
    table = pd.read_csv(figure).set_index(["name", "when", "depth", "layer"])["value"]
    assert table["rank_residual_attention", "start", 12, 12] < 0.01
    assert table["rank_residual", "start", 12, 12] > 0.2
    assert {depth for _, _, depth, _ in table.index} == {2, 6, 12}
    words = "Distance of the tokens from rank one behind the last of 12 layers: before training 0.00"
    assert words in (tmp_path / "rank-collapse" / "report.html").read_text()
    fit = json.loads((tmp_path / "rank-collapse" / "fit.json").read_text())
    assert fit["rows"]["used"] == 3
