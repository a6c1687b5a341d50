"""`interplay init`: a study that plans to the time that was asked for, and the schema beside it."""

import json
from dataclasses import asdict

import jsonschema
import pytest
import yaml

from study.commands import init as module
from study.errors import SpecError
from study.plan import make_plan
from study.run.preparation import is_worth_timing
from study.spec.study import load_spec
from study.spec.yaml_file import SpecLoader


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """On a machine whose speed need not be measured, but in the tests of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "is_worth_timing", lambda plan: False)


@pytest.fixture
def of_unknown_speed(in_an_empty_folder, tmp_path, monkeypatch):
    """A machine that has never timed a step."""
    monkeypatch.setattr(module, "is_worth_timing", is_worth_timing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.usefixtures("of_unknown_speed")
def test_a_few_steps_are_timed_where_the_speed_is_unknown_and_the_study_fills_the_time(command, tmp_path):
    (tmp_path / "text.txt").write_text("A text. " * 1000)
    assert command("init", "mine", "--data", "text.txt", "--hours", "0.5", "--device", "cpu")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "text.txt", "mine.yaml", module.SCHEMA}
    (speed,) = json.loads((tmp_path / "cache" / "interplay" / "speed.json").read_text())
    plan = make_plan(load_spec("mine.yaml"))
    assert speed["recipe"]["vocabulary"] == plan.vocabulary
    assert asdict(plan.planner.speed) == speed
    assert 0.85 * 0.5 <= plan.hours <= 0.5
    assert command("init", "again", "--data", "text.txt", "--hours", "0.5", "--device", "cpu")[0] == 0
    assert json.loads((tmp_path / "cache" / "interplay" / "speed.json").read_text()) == [speed]


@pytest.mark.usefixtures("of_unknown_speed")
def test_a_speed_that_cannot_be_measured_is_said_and_the_study_is_written(command, tmp_path, monkeypatch):
    def time_steps(plan, data):
        assert plan.planner.spec.data.kind == "hierarchy"
        raise SpecError("a cell took too long.")

    monkeypatch.setattr(module, "time_steps", time_steps)
    status, out, err = command("init", "mine", "--device", "cpu")
    assert (status, err) == (0, "")
    assert "could not be timed: a cell took too long." in out
    assert (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("options", "hours", "depths"),
    [
        ((), 1, (1, 2, 4)),
        (("--hours", "0.2"), 0.2, (1, 2, 4)),
        (("--hours", "24", "--device", "h100-80gb"), 24, None),
        (("--hours", "3000", "--device", "h100-80gb"), 3000, (4, 8, 16, 32)),
    ],
)
def test_the_study_fills_the_time(command, tmp_path, options, hours, depths):
    status, out, err = command("init", "mine", *options)
    assert (status, err) == (0, "")
    assert "interplay run mine.yaml" in out
    spec = load_spec(str(tmp_path / "mine.yaml"))
    plan = make_plan(spec)
    # Neighbouring budgets differ by 5 %, so that time differs by about 10 %.
    assert 0.85 * hours <= plan.to_json()["totals"]["hours"] <= hours
    assert depths in (None, spec.frontier.depths)
    assert len(spec.training.seed_values) == 3
    assert len({planned.budget for planned in plan.cells}) == module.POINTS
    assert plan.misses == ()


def test_the_file_names_the_schema_which_accepts_it_and_has_the_users_text(command, tmp_path):
    (tmp_path / "my text.txt").write_text("A text. " * 1000)
    assert command("init", "mine.yaml", "--data", "my text.txt", "--hours", "0.1")[0] == 0
    text = (tmp_path / "mine.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={module.SCHEMA}\n")
    schema = json.loads((tmp_path / module.SCHEMA).read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.load(text, Loader=SpecLoader))
    assert load_spec("mine.yaml").data.path == str(tmp_path / "my text.txt")
    # Each choice has its reason.
    assert text.count("# ") >= 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("taken",), "exists"),
        (("mine", "--hours", "0"), "--hours"),
        (("mine", "--hours", "nan"), "--hours"),
        (("mine", "--hours", "0.0001"), "smallest study"),
        (("mine", "--data", "nowhere.txt"), "nowhere.txt"),
        (("mine", "--device", "h100"), "h100-80gb"),
        (("a b",), "`name`"),
    ],
)
def test_a_wrong_option_writes_nothing(command, tmp_path, arguments, said):
    (tmp_path / "taken.yaml").write_text("mine: 1")
    status, out, err = command("init", *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["taken.yaml"]
    assert (tmp_path / "taken.yaml").read_text() == "mine: 1"
