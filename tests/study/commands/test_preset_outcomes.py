"""What presets came out as: recorded from rows, shown by `interplay presets`, of the presets as they are."""

import json

import pytest

from study.commands import preset_outcomes as outcomes
from study.commands.preset_outcomes import Outcome, identity, read_outcome
from study.commands.presets import catalogue
from study.errors import SpecError
from study.spec.study import load_spec
from study.spec.yaml_file import preset_names
from tests.study.commands.test_series import leave_rows
from tests.study.small import SMALL


def test_presets_are_listed_with_cost_and_outcome(command):
    records = json.loads(command("presets", "--json")[1])
    assert [record["name"] for record in records] == preset_names()
    status, out, err = command("presets")
    assert (status, err) == (0, "")
    for record in records:
        assert record["cells"] > 0
        assert record["name"] in out
        assert record["description"]


def test_every_recorded_outcome_is_of_the_preset_as_it_is_and_was_run_from_a_commit():
    known = outcomes.outcomes()
    for name, outcome in known.items():
        assert outcome.identity == identity(load_spec(name)), (
            f"{name} was changed: run it and record its outcome"
        )
        assert outcome.words
        assert outcome.cells > 0
        assert not outcome.revision.endswith("+"), "of code that nobody can look up"


def test_every_preset_for_a_laptop_was_run_here_and_the_plan_knew_how_long_it_takes():
    """The plan is of this machine as it is now, and outcomes of the day that they were recorded."""
    records = [record for record in catalogue() if record["hours"] < 1]
    assert len(records) == 13
    for record in records:
        assert record["outcome"] is not None, record["name"]
        if record["slots"] == 2 and record["name"] != "quickstart-search":
            assert 0.5 < record["outcome"]["seconds"] / (3600 * record["hours"]) < 2, record["name"]
        if record["claim"]:
            assert record["outcome"]["seconds"] < 600, record["name"]


def test_the_identity_is_of_what_is_asked_not_of_its_words():
    plain = load_spec("quickstart")
    assert identity(plain) == identity(load_spec("quickstart", ["description=x", "resources.slots=1"]))
    assert identity(plain) != identity(load_spec("quickstart", ["training.steps=1"]))


def test_an_outcome_is_read_from_rows(tmp_path, monkeypatch):
    spec = leave_rows(tmp_path)
    monkeypatch.setattr(outcomes, "load_spec", lambda name: spec if name == spec.name else load_spec(name))
    with pytest.raises(SpecError, match=r"There is no file .*series.yaml"):
        # Its page is what it says.
        read_outcome(spec.name, tmp_path)
    from study.commands.series import report_series

    report_series(spec, tmp_path, tmp_path / spec.name)
    other = load_spec(SMALL, ["vary={training.steps: [300, 600]}"])
    (tmp_path / spec.name / "series.yaml").write_text(other.to_yaml())
    with pytest.raises(SpecError, match="another form of the series small"):
        read_outcome(spec.name, tmp_path)
    (tmp_path / spec.name / "series.yaml").write_text(spec.to_yaml())
    found = read_outcome(spec.name, tmp_path)
    assert found.cells == 60
    assert found.seeds == (0, 1, 2)
    assert found.identity == identity(spec)
    assert "Depth 2 overtakes depth 1" in " ".join(found.words)


def test_breaks_between_runs_take_no_time():
    """Two cells side by side, one within another's time, and one on the next day."""
    assert outcomes._covered([(10.0, 20.0), (90_000.0, 90_005.0), (12.0, 30.0), (13.0, 14.0)]) == 25.0


def test_an_unfinished_preset_has_no_outcome(tmp_path):
    with pytest.raises(SpecError, match="36 cells of quickstart have no row"):
        read_outcome("quickstart", tmp_path)


def test_an_edited_preset_is_said_to_be_another(monkeypatch):
    old = Outcome(
        identity="0" * 16,
        date="2026-01-02",
        seeds=(0,),
        cells=1,
        train_seconds=1.0,
        seconds=1.0,
        words=("It won.",),
        revision="a",
    )
    monkeypatch.setattr("study.commands.presets.outcomes", lambda: {"quickstart": old})
    (record,) = [one for one in catalogue() if one["name"] == "quickstart"]
    assert record["outcome"]["current"] is False
