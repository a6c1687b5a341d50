"""The package `interplay`: the same numbers as the command, from names, paths and DataFrames, without output."""

import json
import re
import subprocess
import sys

import matplotlib.figure
import pandas as pd
import pytest

import interplay
from analysis.errors import InputError
from analysis.law.threshold_law import solve_depth
from study.errors import SpecError
from tests.command import interplay as command
from tests.notebook import NOTEBOOK, ROOT, execute
from tests.study.small import SMALL
from tests.tables import CROSSINGS, foreign_runs

TABLE = ROOT / "docs" / "gemstones.jsonl"


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    path.write_text(foreign_runs("my_loss"))
    return pd.read_csv(path)


@pytest.fixture(scope="module")
def answer(frame):
    return interplay.fit(frame, loss="my_loss")


def test_the_import_loads_nothing_heavy():
    heavy = ("torch", "ray", "mlflow", "pandas", "pydantic")
    code = f"import sys, interplay; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_a_frame_and_its_file_have_the_same_answer_as_the_command(answer, frame, tmp_path, capfd):
    frame.to_csv(tmp_path / "runs.csv", index=False)
    by_path = interplay.fit(tmp_path / "runs.csv", loss="my_loss")
    assert capfd.readouterr() == ("", "")
    done = command(tmp_path, "fit", "runs.csv", "--column", "loss=my_loss", "--json")
    printed = json.loads(done.stdout)
    assert by_path.to_json()["crossings"] == printed["crossings"] == answer.to_json()["crossings"]
    found = dict(
        zip(
            zip(answer.crossings.shallow, answer.crossings.deep, strict=True),
            answer.crossings.params,
            strict=True,
        )
    )
    assert found == pytest.approx(CROSSINGS, rel=0.1)


def test_an_answer_is_short_and_draws_and_writes(answer, tmp_path):
    assert len(repr(answer)) < 3000
    assert repr(answer).splitlines() == answer.sentences
    page = answer._repr_html_()
    assert page.count("<p>") == len(answer.sentences)
    assert page.count("<tr") == 1 + len(answer.best)
    figures = answer.figures()
    assert {"depth_profile", "best_depth", "loss"} <= set(figures)
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in figures.values())
    report = answer.report(tmp_path / "out")
    assert json.loads((report.parent / "fit.json").read_text())["crossings"] == answer.to_json()["crossings"]


def test_sizes_are_recommended_by_an_answer_a_file_or_a_law(answer, tmp_path):
    size = float(answer.best.params.iloc[-1])
    found = interplay.recommend(size, fit=answer)
    assert found == answer.recommend(size)
    assert found.depth == answer.best.depth.iloc[-1]
    answer.report(tmp_path)
    assert interplay.recommend(size, fit=tmp_path / "fit.json").depth == found.depth
    assert interplay.recommend(7e9, law="levine2020").depth_exact == pytest.approx(
        solve_depth(5.039, 0.0555, 7e9), rel=1e-3
    )
    assert interplay.audit(depth=32, width=4096).verdict == "too shallow"


def test_a_plan_has_a_row_per_cell():
    plan = interplay.plan(SMALL, "training.seeds=2")
    assert len(plan.cells) == plan.totals["cells"]
    assert plan.cells["flops"].sum() == pytest.approx(plan.totals["flops"])
    assert len(repr(plan)) < 200
    assert "<table" in plan._repr_html_()
    spec = interplay.load_spec(SMALL)
    assert len(interplay.plan(spec, "training.seeds=2").cells) == len(plan.cells)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: interplay.plan("quickstrat"), SpecError, "quickstart"),
        (lambda: interplay.plan("very-deep"), SpecError, "series"),
        (lambda: interplay.fit(pd.DataFrame({"depth": [1]})), InputError, "loss"),
        (lambda: interplay.fit("absent.csv"), InputError, "absent.csv"),
        (lambda: interplay.recommend(1e9), InputError, "levine2020"),
        (lambda: interplay.audit(), InputError, "no model"),
    ],
)
def test_wrong_input_raises_the_error_of_the_command(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.slow
def test_a_study_runs_silently_and_returns_its_answer(tmp_path):
    code = (
        "import interplay, sys\n"
        "changes = ['training.steps=30', 'training.seeds=2', 'frontier.depths=[1, 2]', 'resources.slots=2']\n"
        "answer = interplay.run(sys.argv[1], *changes)\n"
        "again = interplay.fit(sys.argv[1], *changes)\n"
        "assert again.to_json() == answer.to_json()\n"
        "print(len(answer.table.used))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, SMALL],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "20\n"
    assert (tmp_path / "results" / "small" / "report.html").is_file()


def test_the_notebook_runs_and_its_outputs_are_those_of_this_code():
    stored = json.loads(NOTEBOOK.read_text())
    names = {}
    fresh = execute(json.loads(NOTEBOOK.read_text()), names)

    def texts(notebook):
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        # The time of a plan depends on the cores of this machine.
        return [
            re.sub(r"about .* on ", "", output["data"]["text/plain"])
            for cell in cells
            for output in cell["outputs"]
        ]

    assert texts(fresh) == texts(stored), "run `python -m tests.notebook`"
    assert names["answer"].to_json()["rows"]["used"] == 22
    assert round(names["best"].depth_exact) == 34
    pictures = [o["data"].get("image/png", "") for c in stored["cells"] for o in c.get("outputs", ())]
    assert 10_000 < max(map(len, pictures)) < 80_000
