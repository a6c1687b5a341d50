"""Diagnostics in a spec, on the way to MLflow, and back from there for the report."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.rows import run_table
from study.run.recorder import Recorder
from study.run.trial import TrialSettings, run_with, trial_config
from study.spec.study import load_spec
from study.tracking.mirror import Mirror
from study.tracking.mlflow_store import tracking_uri
from study.tracking.study_paths import StudyPaths
from study.tracking.tables import layer_table
from tests.environment import environment_without
from tests.stubs import stub_result
from tests.study.small import SMALL
from tests.study.tracking.examples import history, mlflow_study
from trainables.layout import Layout
from trainables.progress import Evaluation, Point, Progress


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_spec(SMALL))


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


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["diagnostics=[rnk]"], "'rnk'; allowed: rank, layer_drop, induction"),
        (["diagnostics=[rank, rank]"], "In `diagnostics`: rank is there more than once"),
        (
            ["diagnostics=[rank]", "resources.tensor_parallel=2", "resources.slots=2"],
            "set tensor_parallel to 1",
        ),
        (["diagnostics=[rank]", "resources.zero=3"], "zero 3"),
    ],
)
def test_diagnostics_that_cannot_be_had_are_refused_before_anything_starts(overrides, words):
    with pytest.raises(SpecError) as refused:
        make_plan(load_spec(SMALL, overrides)).trainable()
    assert words in str(refused.value)


def test_a_trial_asks_for_the_diagnostics_of_its_study(plan, tmp_path, monkeypatch):
    asked = []

    def train(cell, **options):
        asked.append(options["diagnostics"])
        return stub_result()

    monkeypatch.setattr("ray.tune.report", lambda report: None)
    monkeypatch.setattr("study.run.trial.own_place", lambda: None)
    for names in ((), ("rank", "layer_drop")):
        settings = TrialSettings(
            data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1, diagnostics=names
        )
        run_with(train, trial_config(plan.cells[0].cell, Layout(), settings))
    assert asked == [(), ("rank", "layer_drop")]


@pytest.mark.slow
def test_measures_of_layers_reach_mlflow_and_the_report(plan, template, tmp_path, monkeypatch):
    """Sent live first and then with the row, as of a long cell, and with the row alone, as of a short one."""
    monkeypatch.setattr("study.tracking.mirror.BATCH_SECONDS", 0.01)
    shutil.copy(template, tmp_path / "mlflow.db")
    uri = tracking_uri("auto", tmp_path)
    start = {"rank_residual/1": 0.75, "rank_residual/2": 0.5}
    middle, end = ({**start, "rank_residual/2": value, "induction_score": 0.125} for value in (0.625, 0.875))
    paths = StudyPaths(tmp_path, "study")
    paths.folder.mkdir()
    mirror = Mirror([mlflow_study(uri)], paths.ledger, [])
    mirror.start()
    recorder = Recorder(plan, {}, mirror, paths)
    whole = result(start, middle, end)
    point = Point(step=10, train_loss=1, lr=1, grad_norm=1, tokens_per_second=1)
    part = Progress(
        step=600, steps=1200, train_seconds=1, points=(point,), evaluations=whole.evaluations[:1], start=start
    )
    recorder.started(plan.cells[0])
    recorder.progress(plan.cells[0], part)
    recorder.ended(plan.cells[0], whole.model_copy(update={"points": (point,)}))
    recorder.ended(plan.cells[1], whole.model_copy(update={"points": (point,)}))
    recorder.ended(
        plan.cells[2], result({"rank_residual/1": 0.25}, status="diverged", reason="nan", loss=None)
    )
    mirror.close()
    assert mirror.problems == []
    cells = [p.cell.key for p in plan.cells[:3]]
    for cell in cells[:2]:
        assert history(uri, cell, "validation_rank_residual/2") == [(0, 0.5), (600, 0.625), (1200, 0.875)]
    expected = {(cell, 0, "rank_residual", 1, 0.75) for cell in cells[:2]}
    expected |= {(cell, 0, "rank_residual", 2, 0.5) for cell in cells[:2]}
    expected |= {(cell, 1200, "rank_residual", 1, 0.75) for cell in cells[:2]}
    expected |= {(cell, 1200, "rank_residual", 2, 0.875) for cell in cells[:2]}
    expected |= {(cells[2], 0, "rank_residual", 1, 0.25)}
    for rows in (recorder.rows, paths.ledger.rows()):
        table = layer_table(rows)
        assert list(table.columns) == ["cell", "step", "name", "layer", "value"]
        assert set(table.itertuples(index=False, name=None)) == expected
        assert len(table) == len(expected)
        runs = run_table(rows, plan.name).frame
        assert runs["induction_score"].tolist()[:2] == [0.125, 0.125], "what is no layer's is a column"
        assert not [name for name in runs.columns if "/" in name]


def test_a_study_without_diagnostics_has_no_table_of_layers():
    assert layer_table({}).empty


def test_the_preset_compares_depths_of_one_width_in_minutes():
    spec = load_spec("rank-collapse")
    plan = make_plan(spec)
    assert spec.diagnostics == ("rank",)
    assert {(p.cell.shape.depth, p.cell.shape.width) for p in plan.cells} == {(2, 24), (6, 24), (12, 24)}
    assert plan.device_hours / 2 * 60 < 6, "on two cores, by a cautious estimate"


@pytest.mark.extended
def test_the_preset_shows_the_collapse_and_its_second_run_the_same(tmp_path):
    command = [sys.executable, "-m", "interplay", "run", "rank-collapse", "--results", str(tmp_path)]
    for value in ("training.steps=30", "training.seeds=1", "resources.slots=1"):
        command += [value]
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
    assert written[0] == written[1], "read back from the row files"
    figure.write_bytes(written[0])
    table = pd.read_csv(figure).set_index(["name", "when", "depth", "layer"])["value"]
    assert table["rank_residual_attention", "start", 12, 12] < 0.01
    assert table["rank_residual", "start", 12, 12] > 0.2
    assert {depth for _, _, depth, _ in table.index} == {2, 6, 12}
    assert '<figure id="diagnostics"' in (tmp_path / "rank-collapse" / "report.html").read_text()
    fit = json.loads((tmp_path / "rank-collapse" / "fit.json").read_text())
    assert fit["rows"]["used"] == 3
