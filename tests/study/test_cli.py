"""The command as a user meets it: what it prints, where, and with which exit status."""

import json
import re

import pytest

from study import cli
from tests.study.small import SMALL
from tests.tables import CROSSINGS, foreign_runs
from trainables.cell import Cell


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; return (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["interplay", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def table(folder, text):
    path = folder / "runs.csv"
    path.write_text(text)
    return str(path)


RUNS = foreign_runs("loss")


def test_plan_prints_a_table_or_one_json_document(command):
    status, out, err = command("plan", SMALL)
    assert (status, err) == (0, "")
    assert "L4 d22" in out
    status, out, err = command("plan", SMALL, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["totals"]["cells"] == len(document["cells"])


def test_plan_writes_one_cell_for_training_by_hand(command):
    key = json.loads(command("plan", SMALL, "--json")[1])["cells"][7]["cell"]
    status, out, _ = command("plan", SMALL, "--cell", key)
    assert status == 0
    assert Cell.model_validate_json(out).key == key
    by_name = command("plan", SMALL, "--cell", "L2-d16-s1")
    assert Cell.model_validate_json(by_name[1]).shape.width == 16
    status, out, err = command("plan", SMALL, "--cell", "nobody")
    assert (status, out) == (2, "")
    assert "called 'nobody'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "quickstrat"], "did you mean `quickstart`?"),
        (["plan", "quickstart", "--set", "frontier.depth=3"], "did you mean `depths`?"),
        (["run", "quickstart", "--set", "training.steps=many"], "training.steps"),
        (["run", "absent.yaml"], "absent.yaml"),
        (["fit", "absent.csv"], "absent.csv"),
        (["fit", "mlflow:nothing"], "no MLflow store"),
        (["fit", "quickstart"], "interplay run quickstart"),
        (["report", "quickstart", "--out", "x"], "interplay run quickstart"),
        (["recommend", "--params", "1e9"], "--law levine2020"),
        (["recommend", "--params", "1e9", "--law", "levine"], "levine2020"),
        (["recommend", "--params", "-5", "--law", "levine2020"], "positive"),
        (["recommend", "--params", "1e9", "--fit", "absent.json"], "absent.json"),
        (["ui"], "interplay run quickstart"),
        (["plan", "quickstart", "--bogus"], "--bogus"),
        (["plan"], "spec"),
        (["run", "text", "--set", "data.path=absent.txt"], "absent.txt"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_ends_with_status_2_and_one_paragraph_on_stderr(command, tmp_path, arguments, message):
    status, out, err = command(*arguments)
    assert status == 2
    assert out == ""
    assert message in re.sub(r"\s+", " ", err)
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing is written for a command that is wrong"


def test_options_that_do_not_go_with_their_source_are_refused(command, tmp_path):
    path = table(tmp_path, RUNS)
    assert "--set changes a spec" in command("fit", path, "--set", "a.b=1")[2]
    assert "--column renames" in command("fit", "quickstart", "--column", "loss=x")[2]
    assert "OURS=THEIRS" in command("fit", path, "--column", "loss")[2]


def test_fit_of_a_foreign_table_with_renamed_columns(command, tmp_path):
    path = table(tmp_path, foreign_runs("final_loss"))
    status, _, err = command("fit", path)
    assert status == 2
    assert "--column loss=final_loss" in err
    status, out, err = command("fit", path, "--column", "loss=final_loss", "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    crossings = {(c["shallow"], c["deep"]): c for c in document["crossings"]}
    assert set(crossings) == {(1, 2), (2, 4), (1, 4)}
    for pair, params in CROSSINGS.items():
        assert crossings[pair]["params"] == pytest.approx(params, rel=0.05)
    assert document["rows"]["used"] == 45
    status, out, _ = command("fit", path, "--column", "loss=final_loss")
    assert status == 0
    assert "1 → 2" in out


def test_report_of_a_table_is_written_where_asked(command, tmp_path):
    status, out, err = command("report", table(tmp_path, RUNS), "--out", "there")
    assert (status, err) == (0, "")
    assert "there/report.html" in out
    assert (tmp_path / "there" / "fit.json").is_file()


def test_recommend_gives_the_published_shapes(command):
    status, out, _ = command("recommend", "--law", "levine2020", "--params", "1.7395e11", "1e12", "--json")
    assert status == 0
    assert [shape["depth"] for shape in json.loads(out)] == [80, 95]


def test_recommend_from_a_fit_with_a_law_says_what_was_measured_too(command, tmp_path):
    assert command("fit", table(tmp_path, RUNS), "--out", "fit.json")[0] == 0
    law = json.loads((tmp_path / "fit.json").read_text())["law"]
    status, out, err = command("recommend", "--fit", "fit.json", "--params", "3e4", "--json")
    assert (law["status"], status) == ("ok", 0), err
    shape = json.loads(out)[0]
    assert {"params", "depth", "width", "depth_interval", "width_interval", "extrapolated"} <= set(shape)
    assert shape["measured"]["depth"] in (1, 2, 4)


def test_recommend_without_a_law_answers_inside_the_measured_sizes_and_refuses_outside(command, tmp_path):
    two_depths = "".join(line for line in RUNS.splitlines(keepends=True) if not line.startswith("4,"))
    assert command("fit", table(tmp_path, two_depths), "--out", "fit.json")[0] == 0
    assert json.loads((tmp_path / "fit.json").read_text())["law"]["status"] == "insufficient"
    status, out, err = command("recommend", "--fit", "fit.json", "--params", "1e5", "--json")
    assert status == 0, err
    assert json.loads(out)[0]["extrapolated"] is False
    status, _, err = command("recommend", "--fit", "fit.json", "--params", "1e9")
    assert status == 2
    assert "has no law that reaches N = 1e+09" in err


def test_help_names_every_verb_and_every_verb_has_help(command):
    status, out, _ = command("--help")
    assert status == 0
    for verb in ("plan", "run", "status", "fit", "report", "recommend", "ui"):
        assert verb in out
        assert command(verb, "--help")[0] == 0
