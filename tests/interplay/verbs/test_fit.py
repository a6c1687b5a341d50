"""`interplay report` of a spec: it writes the page of the study anew, and of no other."""

import math
import re
import shlex

import pandas as pd
import pytest

import interplay
from interplay.study_fit import answer_of, study_runs
from interplay.verbs.status import study_status
from study.errors import SpecError
from study.plan.layouts import LayoutPlanner
from study.plan.plan import make_plan
from study.plan.rows import Row
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.study_paths import study_paths
from tests.study.small import SMALL

SEARCHED = ("search.sampler=crossing", "search.objective=crossings", "search.max_cells=30")


def leave_rows(folder, *changes):
    """Rows of every cell of the small study, whose two depths cross at N = 6,000."""
    spec = load_spec(SMALL, ["frontier.depths=[1, 2]", *changes])
    plan, paths = make_plan(spec), study_paths(spec, folder)
    for rank, planned in enumerate(plan.cells):
        distance = math.log(planned.cell.shape.budget_params / 6000)
        loss = 2.0 - 0.1 * distance + (0.05 * distance if planned.cell.shape.depth == 1 else 0.0)
        paths.ledger.put(
            Row(
                cell=planned.cell.key, name=planned.cell.name, **cell_fields(plan, planned),
                protocol=plan.protocol, study=spec.name, status="done",
                ended=rank + 1.0, loss=loss + 0.002 * planned.cell.seed,
            )
        )  # fmt: skip
    return paths.folder


@pytest.mark.parametrize("part", ["frontier.depths=[1]", "training.seeds=1", "training.steps=300"])
@pytest.mark.slow
def test_a_part_of_a_study_does_not_replace_its_page(command, tmp_path, part):
    folder = leave_rows(tmp_path)
    chosen = [SMALL, "frontier.depths=[1, 2]", "--results", str(tmp_path)]
    assert command("report", *chosen)[0] == 0
    names = ("report.html", "fit.json", "runs.csv")
    before = {name: (folder / name).read_bytes() for name in names}
    status, out, err = command("report", *chosen, part)
    assert (status, out) == (2, "")
    assert "--out DIR" in err or "no rows" in err
    assert {name: (folder / name).read_bytes() for name in names} == before
    assert command("report", *chosen)[0] == 0


@pytest.mark.parametrize("name", ["", "spec.yaml"])
def test_a_study_named_by_its_folder_is_told_where_its_rows_are(command, tmp_path, name):
    folder = leave_rows(tmp_path / "there")
    (folder / "spec.yaml").write_text(load_spec(SMALL, ["frontier.depths=[1, 2]"]).to_yaml())
    status, _, err = command("fit", str(folder / name), "--results", "elsewhere")
    assert status == 2
    proposed = shlex.split(err.partition("`")[2].partition("`")[0])
    assert command(*proposed[1:])[0] == 0


def test_a_study_without_a_fit_is_told_how_to_make_one(command, tmp_path):
    folder = leave_rows(tmp_path / "there")
    (folder / "spec.yaml").write_text(load_spec(SMALL, ["frontier.depths=[1, 2]"]).to_yaml())
    for fit in (["--fit", str(folder)], ["--fit", folder.name, "--results", str(folder.parent)]):
        (folder / "fit.json").unlink(missing_ok=True)
        status, _, err = command("recommend", "6k", *fit)
        assert status == 2
        *_, proposed = re.findall("`([^`]*)`", err)
        assert command(*shlex.split(proposed)[1:])[0] == 0
        assert command("recommend", "6k", *fit)[0] == 0


def test_a_page_written_anew_tells_why_the_search_ended(command, tmp_path):
    folder = leave_rows(tmp_path, *SEARCHED)
    assert command("report", SMALL, "frontier.depths=[1, 2]", *SEARCHED, "--results", str(tmp_path))[0] == 0
    assert "The limit of 30 cells is reached." in (folder / "report.html").read_text()


def test_a_study_that_cannot_be_trained_here_is_read_from_its_rows_without_any_layout(tmp_path, monkeypatch):
    changes = ["frontier.depths=[1, 2]", "resources.tensor_parallel=64"]
    leave_rows(tmp_path)
    spec = load_spec(SMALL, changes)
    with pytest.raises(SpecError, match="tensor_parallel"):
        make_plan(spec).trainable()
    cpu_runs = study_runs(load_spec(SMALL, changes[:1]), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LayoutPlanner, "choose", lambda *_: pytest.fail("a layout was chosen"))
        source = study_runs(spec, tmp_path)
        assert study_status(spec, tmp_path).counts == {"done": len(cpu_runs.plan.cells)}
    pd.testing.assert_frame_equal(source.table.frame, cpu_runs.table.frame)
    fits = [
        answer_of(runs, level=0.95, tokens=None, unit="nats").fit.crossings for runs in (source, cpu_runs)
    ]
    assert fits[0] == fits[1]
    assert fits[0][0].params == pytest.approx(6000, rel=0.1)


def test_in_python_a_folder_of_another_study_is_refused_with_a_call(tmp_path):
    leave_rows(tmp_path)
    with pytest.raises(SpecError) as caught:
        interplay.run(SMALL, "frontier.depths=[1, 2]", "training.steps=300", results=tmp_path)
    name = load_spec(SMALL).name
    assert str(caught.value).endswith(f"'training.steps=300', 'name={name}-2', results={str(tmp_path)!r})")
