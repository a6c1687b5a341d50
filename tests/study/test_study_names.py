"""A study is found by its name and its folder, with the values with which it was run."""

import json
import shlex
from types import SimpleNamespace

import pytest

import interplay.cli
import study.run.runner
import study.tracking.targets
from study.plan.plan import make_plan
from study.spec.recorded import differences
from study.spec.study import load_spec
from study.spec.yaml_file import find
from study.tracking.study_paths import study_paths
from tests.study.small import SMALL
from tests.study.tracking.test_ownership import trained

CHANGES = ["name=mine", "frontier.depths=[1,2]", "training.seeds=2"]


def leave(results, source=SMALL, changes=CHANGES, count=None):
    """A study in a results folder, with rows of its first `count` cells or of all."""
    spec = load_spec(source, changes)
    plan, paths = make_plan(spec), study_paths(spec, results)
    for rank, row in enumerate(trained(plan, plan.cells[:count]).values()):
        paths.ledger.put(row.model_copy(update={"study": spec.name, "loss": 2.0 + 0.01 * (rank % 7)}))
    (paths.folder / "spec.yaml").write_text(spec.to_yaml())
    return spec


@pytest.fixture
def mine(tmp_path):
    return leave(tmp_path / "results")


@pytest.mark.parametrize("name", ["mine", "results/mine", "results/mine/spec.yaml"])
def test_a_study_is_read_with_the_values_of_its_run(command, mine, name):
    status, out, err = command("status", name, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["counts"] == {"done": len(make_plan(mine).cells)}


def test_each_verb_takes_the_name_of_a_study(command, mine, monkeypatch, tmp_path):
    cells = len(make_plan(mine).cells)
    document = json.loads(command("plan", "mine", "--json")[1])
    assert (document["name"], document["totals"]["cells"]) == ("mine", cells)
    status, out, err = command("fit", "mine", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["rows"]["used"] == cells
    assert command("report", "mine")[0] == 0
    assert (tmp_path / "results" / "mine" / "report.html").is_file()
    assert "has no weights" in command("export", "mine", "L1-d16-s0", "--out", "x")[2]
    power = command("power", "mine", "--studies", "5", "--json")
    assert json.loads(power[1])["name"] == "mine"
    taken = []
    stopped = SimpleNamespace(finished=False)
    monkeypatch.setattr(study.run.runner, "run_study", lambda spec, *_: (taken.append(spec), stopped)[1])
    assert command("run", "mine")[0] == 130
    monkeypatch.setattr(
        study.tracking.targets, "mirror_study", lambda spec, _: (taken.append(spec), "sent")[1]
    )
    assert command("mirror", "mine")[0] == 0
    monkeypatch.setattr("interplay.verbs.plan.make_plan", lambda spec: (taken.append(spec), 1 / 0)[1])
    monkeypatch.setattr("sys.argv", ["interplay", "try", "mine"])
    with pytest.raises(ZeroDivisionError):
        interplay.cli.main()
    assert [one.model_dump() for one in taken] == [mine.model_dump()] * 3


def test_a_study_of_another_results_folder_is_found_there(command, tmp_path):
    leave(tmp_path / "elsewhere")
    assert command("status", "mine")[0] == 2
    assert command("status", "mine", "--results", "elsewhere")[0] == 0
    monkey = command("status", "min", "--results", "elsewhere")[2]
    assert "did you mean `mine`" in monkey


def test_a_fit_is_found_by_the_name_of_its_study_and_in_its_folder(command, mine, tmp_path):
    assert "interplay run mine" in command("recommend", "2e4", "--fit", "mine")[2]
    assert command("report", "mine")[0] == 0
    asked = ("results/mine/fit.json", "results/mine", "mine")
    answers = [command("recommend", "2e4", "--json", "--fit", name) for name in asked]
    assert {status for status, *_ in answers} == {0}
    assert len({out for _, out, _ in answers}) == 1
    table = "results/mine/runs.csv"
    given = shlex.split(command("recommend", "2e4", "--fit", table)[2].split("`")[1])
    assert given == ["interplay", "fit", table, "--out", "fit.json"]
    (tmp_path / "bare").mkdir()
    assert "bare/fit.json" in command("recommend", "2e4", "--fit", "bare")[2]


def test_a_preset_is_read_before_a_study_of_its_name_and_what_differs_is_said(command, tmp_path):
    leave(tmp_path / "results", "quickstart", ())
    status, out, err = command("status", "quickstart", "--json")
    assert (status, err) == (0, "")
    whole = json.loads(out)["counts"]
    leave(tmp_path / "results", "quickstart", ["frontier.depths=[1,2]"])
    status, out, err = command("status", "quickstart", "--json")
    assert (status, json.loads(out)["counts"]) == (0, whole)
    (line,) = err.strip().splitlines()
    assert "frontier.depths: [1, 2, 4] / [1, 2]" in line
    given = shlex.split(line.partition("To take these: ")[2])
    assert given == ["interplay", "status", "results/quickstart"]
    status, out, err = command(*given[1:], "--json")
    assert (status, err) == (0, "")
    assert set(json.loads(out)["counts"]) == {"done"}
    # What was asked for is no surprise.
    assert command("status", "quickstart", "frontier.depths=[1,2]")[2] == ""


def test_a_study_is_read_before_a_file_without_its_ending_and_what_differs_is_said(command, mine, tmp_path):
    (tmp_path / "mine.yaml").write_text(load_spec(SMALL, [*CHANGES, "training.seeds=3"]).to_yaml())
    _, out, err = command("status", "mine", "--json")
    assert json.loads(out)["counts"] == {"done": len(make_plan(mine).cells)}
    assert "training.seeds: 2 / 3" in err
    assert "interplay status mine.yaml" in err
    (tmp_path / "other.yaml").write_text(load_spec(SMALL, ["name=other"]).to_yaml())
    assert command("status", "other")[0] == 0


def test_a_broken_file_beside_a_study_does_not_stop_its_verbs(command, mine, tmp_path):
    (tmp_path / "mine.yaml").write_text("frontier: {depths: [1")
    status, out, err = command("status", "mine", "--json")
    assert (status, json.loads(out)["counts"]) == (0, {"done": len(make_plan(mine).cells)})
    assert "mine.yaml is no valid spec" in err
    (tmp_path / "spec.yaml").write_text(mine.to_yaml())
    assert find("..", tmp_path / "results") != tmp_path / "results" / ".." / "spec.yaml"


def test_rows_of_other_values_are_not_denied(command, mine):
    status, out, err = command("report", SMALL, "name=mine", "training.steps=7")
    assert (status, out) == (2, "")
    assert f"none of the {len(make_plan(mine).cells)} rows" in err
    assert "training.steps: 7 / 1200" in err
    given = shlex.split(err.split("`")[-2])
    assert given == ["interplay", "report", "mine"]
    assert command(*given[1:])[0] == 0


def test_a_spec_of_another_version_is_refused_with_a_way_on(command, mine, tmp_path):
    assert command("report", "mine")[0] == 0
    folder = tmp_path / "results" / "mine"
    (folder / "runs.csv").write_text((folder / "runs.csv").read_text())
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace("seeds: 2", "sneeds: 2"))
    for verb in ("status", "fit", "report", "plan", "run"):
        status, out, err = command(verb, "mine")
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert "results/mine/spec.yaml" in err
        given = shlex.split(err.split("To read its rows all the same: `")[1].split("`")[0])
    assert command(*given[1:])[0] == 0


def test_differences_name_the_keys_that_change_cells():
    one = load_spec("quickstart")
    assert differences(one, load_spec("quickstart", ["resources.slots=1", "description=x"])) == {}
    assert differences(one, load_spec("quickstart", ["training.seeds=9"])) == {"training.seeds": ("2", "9")}
    text = load_spec("quickstart", [f"data.path={__file__}"])
    assert differences(one, text)["data.path"] == ("-", __file__)
