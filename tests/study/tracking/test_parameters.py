"""The spec as parameters of the study's run: all of it, and the cells stay where they are when it changes."""

import json
import subprocess
import sys
import time

import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.mlflow_mirror import (
    PARAMETER_CHARACTERS,
    PARAMETERS,
    spec_parameters,
)
from study.tracking.mlflow_store import Experiment, server_problem
from study.tracking.study_paths import study_paths
from study.tracking.targets import make_mirror, mirror_study
from tests.environment import free_port
from tests.study.small import SMALL
from tests.study.tracking.examples import ALL_RUNS, cell_runs, mlflow_study, row, study_run
from trainables.cell import Recipe

RUN = "mlflow.tracking.MlflowClient"


@pytest.fixture
def study(uri):
    """Connect a study with these parameters to the store, as one run of it does, and return it."""

    def connect(**parameters):
        one = mlflow_study(uri, parameters)
        one.recorded = one.connect()
        return one

    return connect


def parents(uri):
    return {run.data.tags["mlflow.parentRunId"] for run in cell_runs(uri).values()}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["search.sampler=crossing", "search.max_cells=10", "sensitivity={}"],
        ["resources.tensor_parallel={min_width: {2: 64}}", "description=a = b", "diagnostics=[rank]"],
    ],
)
def test_the_parameters_are_those_of_the_spec_as_set_reads_them(overrides):
    spec = load_spec(SMALL, overrides)
    found = spec_parameters(spec)
    assert {"training.steps", "frontier.depths", "data.kind", "resources.slots", "name"} <= found.keys()
    assert json.loads(found["frontier.depths"]) == list(spec.frontier.depths)
    document = spec.model_dump(mode="json")
    for key, text in found.items():
        value = document
        for part in key.split("."):
            value = value[part]
        assert text == (value if isinstance(value, str) else json.dumps(value))
    sets = [
        f"{key}={text}"
        for key, text in found.items()
        if text not in ("null", "") and key != "training.tokens"
    ]
    assert load_spec(SMALL, sets) == spec


def test_an_address_has_no_user_and_no_options():
    changes = ["tracking.uri=http://token@host:5000", "resources.storage=s3://kept/c?region=x"]
    found = spec_parameters(load_spec(SMALL, changes))
    assert (found["tracking.uri"], found["resources.storage"]) == ("http://host:5000", "s3://kept/c")
    assert spec_parameters(load_spec(SMALL, ["resources.storage=/a/#1?"]))["resources.storage"] == "/a/#1?"


def test_texts_that_are_too_long_for_mlflow_are_cut_and_still_differ(uri, study):
    one, other = (
        spec_parameters(load_spec(SMALL, [f"claim={'x' * PARAMETER_CHARACTERS}{end}"]))["claim"]
        for end in "ab"
    )
    assert one != other
    study(claim=one)
    assert study_run(uri).data.params["claim"] == one


def test_more_parameters_than_a_batch_holds_arrive(uri, study):
    many = {f"key{index}": "" for index in range(PARAMETERS + 1)}
    study(**many)
    assert study_run(uri).data.params == many


def test_an_unchanged_spec_keeps_its_run(uri, study):
    study(seeds="3").log_row(row("aaaa"))
    before = study_run(uri)
    assert study(seeds="3").recorded == {"aaaa": 12.345}
    assert (study_run(uri).info.run_id, study_run(uri).data.params) == (before.info.run_id, {"seeds": "3"})


def test_a_changed_key_makes_the_run_anew_with_all_cells_below_it_and_sends_none_again(uri, study):
    study(seeds="3", slots="auto").log_row(row("aaaa"))
    cell, old = cell_runs(uri)["aaaa"].info.run_id, study_run(uri).info.run_id
    for changed in ({"seeds": "4", "slots": "auto"}, {"seeds": "4"}, {"seeds": "4", "slots": "8"}):
        again = study(**changed)
        assert again.recorded == {"aaaa": 12.345}
        again.finish("FINISHED")
        assert study_run(uri).data.params == changed
        assert parents(uri) == {study_run(uri).info.run_id}
    assert cell_runs(uri)["aaaa"].info.run_id == cell
    assert Experiment(uri, "study").client.get_run(old).info.lifecycle_stage == "deleted"
    again.log_row(row("bbbb"))
    assert parents(uri) == {study_run(uri).info.run_id}


def test_a_run_of_the_study_without_parameters_gets_them(uri, study):
    """An earlier version wrote none; a killed driver may not have come to it."""
    study()
    before = study_run(uri).info.run_id
    study(seeds="3")
    assert (study_run(uri).info.run_id, study_run(uri).data.params) == (before, {"seeds": "3"})


@pytest.mark.parametrize("call", ["delete_run", "create_run", "log_batch", "set_tag"])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_driver_that_ends_while_the_run_is_made_anew_leaves_no_cell_behind(
    uri, study, monkeypatch, call, is_done
):
    from mlflow.tracking import MlflowClient

    for name in ("aaaa", "bbbb"):
        study(seeds="3").log_row(row(name))
    whole = getattr(MlflowClient, call)

    def cut(self, *arguments, **options):
        if is_done:
            whole(self, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, cut)
        with pytest.raises(KeyboardInterrupt):
            study(seeds="4")
    assert study(seeds="4").recorded.keys() == {"aaaa", "bbbb"}
    assert study_run(uri).data.params == {"seeds": "4"}
    assert parents(uri) == {study_run(uri).info.run_id}


def test_cells_of_other_studies_of_the_experiment_stay_below_theirs(uri, study):
    study(seeds="3").log_row(row("aaaa"))
    sister = mlflow_study(uri)
    sister.paths = study_paths(load_spec(SMALL), sister.paths.results)
    sister.connect()
    sister.log_row(row("bbbb"))
    study(seeds="4")
    tags = {cell: run.data.tags["mlflow.parentRunId"] for cell, run in cell_runs(uri).items()}
    names = {run.info.run_id: run.info.run_name for run in Experiment(uri, "study").runs(ALL_RUNS)}
    assert {cell: names[parent] for cell, parent in tags.items()} == {"aaaa": "study", "bbbb": "small"}


def refuse(self, run_id):
    raise PermissionError("Permission denied.")


@pytest.fixture
def recorded(tmp_path, uri):
    """A spec whose experiment is in the store, and its folder with the rows of two cells."""
    spec = load_spec(SMALL, ["tracking.experiment=study"])
    plan, paths = make_plan(spec), study_paths(spec, tmp_path)
    for index, one in enumerate(plan.cells[:2]):
        fields = cell_fields(plan, one)
        paths.ledger.put(row(one.cell.key, study="small", ended=10.0 + index, **fields))
    return tmp_path


@pytest.mark.parametrize("verb", ["mirror", "run"])
def test_a_store_that_refuses_deletion_keeps_the_old_run_and_says_so_once(recorded, uri, monkeypatch, verb):
    spec = load_spec(SMALL, ["tracking.experiment=study"])
    wider = load_spec(SMALL, ["tracking.experiment=study", "training.seeds=7"])
    mirror_study(spec, recorded)
    before, cells = study_run(uri), cell_runs(uri)
    with monkeypatch.context() as patch:
        patch.setattr(f"{RUN}.delete_run", refuse)
        if verb == "mirror":
            said = mirror_study(wider, recorded)
        else:
            paths = study_paths(wider, recorded)
            mirror = make_mirror(wider, "p", paths, paths.ledger.rows().values(), {})
            assert mirror.open() == []
            mirror.start()
            mirror.close()
            mirror.finish("FINISHED")
            (said,) = mirror.problems
    assert said.count("could not be deleted (Permission denied)") == 1
    assert (study_run(uri).info.run_id, study_run(uri).data.params) == (
        before.info.run_id,
        before.data.params,
    )
    assert parents(uri) == {before.info.run_id}
    assert {run.info.run_id for run in cell_runs(uri).values()} == {run.info.run_id for run in cells.values()}
    assert "deleted" not in mirror_study(wider, recorded)
    assert study_run(uri).data.params["training.seeds"] == "7"


def test_mirror_writes_the_spec_into_an_empty_store_and_a_wrong_store_is_an_error(recorded, uri, monkeypatch):
    spec = load_spec(SMALL, ["tracking.experiment=study"])
    assert mirror_study(spec, recorded).startswith("2 rows of small")
    assert study_run(uri).data.params == spec_parameters(spec)
    assert len(cell_runs(uri)) == 2
    for run in cell_runs(uri).values():
        assert run.data.params.keys() & Recipe.model_fields.keys()
        assert not run.data.params.keys() & spec_parameters(spec).keys()
    monkeypatch.setattr(f"{RUN}.create_run", refuse)
    with pytest.raises(SpecError):
        mirror_study(load_spec(SMALL, ["tracking.experiment=study", "training.seeds=7"]), recorded)


@pytest.mark.slow
def test_a_tracking_server_takes_the_spec_and_the_cells_stay_below_it(recorded, uri):
    port = free_port()
    command = (sys.executable, "-m", "interplay", "ui", "--port", str(port), "--uri", uri)
    server = subprocess.Popen(
        command, cwd=recorded, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while problem := server_problem(address):
            assert time.monotonic() < deadline, problem
            assert server.poll() is None, server.stdout.read()
            time.sleep(0.5)
        cells = {}
        for seeds in (3, 5):
            changes = ["tracking.experiment=study", f"tracking.uri={address}", f"training.seeds={seeds}"]
            changes += ["description=''", f"claim={'x' * 2 * PARAMETER_CHARACTERS}"]
            spec = load_spec(SMALL, changes)
            mirror_study(spec, recorded)
            assert study_run(address).data.params == spec_parameters(spec)
            assert parents(address) == {study_run(address).info.run_id}
            found = {cell: run.info.run_id for cell, run in cell_runs(address).items()}
            assert found == (cells or found)
            cells = found
    finally:
        server.terminate()
        server.communicate(timeout=60)
