"""A series of studies that differ in one key: its members, its verbs, and its page; also by the real command."""

import csv
import json
import math
import shlex

import pytest

from analysis.runs.bytes import NoBytesError
from analysis.units import bits_per_byte
from interplay.verbs.series import write_page
from study.plan.plan import make_plan
from study.run.recorder import cell_parameters
from study.spec.study import load_spec, members
from study.tracking.ledger import Row
from study.tracking.study_paths import study_paths
from tests.study.run.test_study import Laptop
from tests.study.small import SMALL

VARY = "vary={training.steps: [300, 1200]}"
#: True crossing of depths 1 and 2, by steps: the deeper model needs the longer training.
CROSSING = {300: 16_000.0, 1200: 4_000.0}


def loss(planned, crossing):
    """Two straight lines of ln N that meet at the crossing, and a seed's own shift."""
    distance = math.log(planned.cell.shape.budget_params / crossing)
    shallow = planned.cell.shape.depth == 1
    return 2.0 - 0.1 * distance + (0.05 * distance if shallow else 0.0) + 0.002 * planned.cell.seed


def leave_rows(folder, *overrides, value=loss, sizes=None):
    """Rows of every member, as runs without MLflow would leave them; `sizes` are bytes per token by value."""
    spec = load_spec(SMALL, [VARY, "frontier.depths=[1, 2]", *overrides])
    for varied, one in members(spec).items():
        plan = make_plan(one)
        for rank, planned in enumerate(plan.cells):
            study_paths(one, folder).ledger.put(
                Row(
                    cell=planned.cell.key, name=planned.cell.name, parameters=cell_parameters(plan, planned),
                protocol=plan.protocol, status="done",
                    ended=rank + 1.0, loss=value(planned, CROSSING[varied]), measures={"accuracy": 0.5},
                    bits_per_byte=bits_per_byte(value(planned, CROSSING[varied]), (sizes or {}).get(varied)),
                )
            )  # fmt: skip
    return spec


def test_a_series_in_bits_per_byte_needs_the_bytes_of_every_member(tmp_path):
    spec = leave_rows(tmp_path, sizes={300: 2.0})
    with pytest.raises(NoBytesError, match="small-steps-1200"):
        write_page(spec, tmp_path, tmp_path / "page", renew=False, unit="bpb")


def test_members_are_studies_that_differ_in_the_key_alone():
    spec = load_spec(SMALL, [VARY])
    assert list(members(spec)) == [300, 1200]
    first, second = members(spec).values()
    assert [one.name for one in (first, second)] == ["small-steps-300", "small-steps-1200"]
    assert {one.experiment for one in (first, second)} == {"small"}
    same = {"name": "x", "training": first.training}
    assert first.model_copy(update=same) == second.model_copy(update=same)
    assert second.vary is None
    keys = [{planned.cell.key for planned in make_plan(one).cells} for one in (first, second)]
    assert not keys[0] & keys[1]
    assert load_spec(SMALL).training.steps == 1200
    assert keys[1] == {planned.cell.key for planned in make_plan(load_spec(SMALL)).cells}, "cells are shared"


@pytest.mark.parametrize(
    ("key", "values", "read"),
    [
        ("training.parametrisation", ["sp", "completep"], lambda spec: spec.training.parametrisation),
        ("training.lr.base", [0.2, 0.4], lambda spec: spec.training.lr.base),
        ("training.betas.0", [0.8, 0.9], lambda spec: spec.training.betas[0]),
        ("frontier.heads", [1, 2], lambda spec: spec.frontier.heads),
    ],
)
def test_any_key_with_a_single_value_is_varied(key, values, read):
    found = members(load_spec(SMALL, ["training.betas=[0.9, 0.95]", f"vary={{{key}: {values}}}", "name=any"]))
    assert [read(one) for one in found.values()] == values
    assert len({make_plan(one).cells[0].cell.key for one in found.values()}) == 2


def test_a_key_replaces_what_it_excludes():
    spec = load_spec(SMALL, ["vary={training.tokens: [1e5, 1e6]}"])
    assert [one.training.length for one in members(spec).values()] == [98, 977]
    assert [one.name for one in members(spec).values()] == ["small-tokens-100000", "small-tokens-1e06"]


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("{training.stps: [1, 2]}", "with `training.stps` 1: `training.stps` is not a key; allowed: "),
        ("{training.steps: [10]}", "it should have at least 2 items"),
        ("{training.steps: [10, 10]}", "a name of its own for each study, and has 10, 10"),
        ("{training.steps: [10, true]}", "`vary.training.steps.1` is True"),
        ("{data.levels: [5, 9]}", "with `data.levels` 9: "),
        ("{name: [a, b]}", "has the key `name`"),
        ("{}", "it should have at least 1 item"),
        ("{training.steps: [1, 2], training.batch: [1, 2]}", "it should have at most 1 item"),
        ("3", "it should be a section"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(command, vary, said):
    status, out, err = command("run", SMALL, f"vary={vary}")
    assert (status, out) == (2, "")
    assert said in err


def test_a_plan_lists_the_members_and_their_sum(command):
    status, out, err = command("plan", SMALL, VARY)
    assert (status, err) == (0, "")
    assert "small-steps-1200" in out
    document = json.loads(command("plan", SMALL, VARY, "--json")[1])
    each = [member["plan"]["totals"] for member in document["members"]]
    for name in ("cells", "tokens", "flops", "hours"):
        assert document["totals"][name] == pytest.approx(sum(one[name] for one in each))
    assert each[1]["tokens"] == 4 * each[0]["tokens"]


@pytest.mark.parametrize(
    "arguments", [["plan", SMALL, "--cell", "L1-d12-s0"], ["power", SMALL], ["fit", SMALL]], ids=str
)
def test_what_takes_one_study_names_the_members(command, arguments):
    status, _, err = command(*arguments, VARY)
    assert status == 2
    assert "series of the studies small-steps-300, small-steps-1200" in err


@pytest.mark.slow
def test_the_page_tells_where_the_crossing_moved(tmp_path):
    spec = leave_rows(tmp_path)
    page = write_page(spec, tmp_path, tmp_path / "out", renew=True)
    document = json.loads((page.parent / "series.json").read_text())
    found = {row["value"]: row for row in document["crossings"]}
    for value, truth in CROSSING.items():
        assert found[value]["status"] == "bracketed"
        assert found[value]["params"] == pytest.approx(truth, rel=0.05)
    assert "2 layers overtake 1 layer, by training.steps" in " ".join(document["answers"])
    for member in document["members"]:
        assert (page.parent / member["report"]).is_file()
    with (page.parent / "small-steps-300" / "runs.csv").open() as file:
        assert {row["accuracy"] for row in csv.DictReader(file)} == {"0.5"}


@pytest.mark.slow
def test_the_pages_are_written_anew_where_they_are(command, tmp_path):
    leave_rows(tmp_path)
    last = ["frontier.depths=[1, 2]", "--results", str(tmp_path)]
    named = ["name=small-steps-300", "tracking.experiment=small"]
    assert command("report", SMALL, "training.steps=300", *named, *last)[0] == 0
    one = {path.name for path in (tmp_path / "small-steps-300").iterdir()}
    assert {"report.html", "fit.json", "runs.csv"} <= one
    assert not (tmp_path / "small-steps-1200" / "report.html").exists()
    assert command("report", SMALL, VARY, *last)[0] == 0
    assert (tmp_path / "small-steps-1200" / "report.html").exists()
    assert (tmp_path / "small" / "series.json").exists()


def test_the_status_tells_of_every_member(command, tmp_path):
    leave_rows(tmp_path)
    chosen = [SMALL, VARY, "frontier.depths=[1, 2]", "--results", str(tmp_path)]
    state = json.loads(command("status", *chosen, "--json")[1])
    assert [one["counts"] for one in state["members"]] == [{"done": 2 * 5 * 3}] * 2
    assert command("status", *chosen)[1].count("not running") == 2


def test_a_series_without_rows_says_how_to_get_some(command, tmp_path):
    status, _, err = command("report", SMALL, VARY, "--results", str(tmp_path))
    assert status == 2
    assert "no study of the series 'small' has a row" in err
    given = shlex.split(err.split("`")[1])
    assert given[:4] == ["interplay", "run", SMALL, VARY]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--uri", "sqlite:///x"], "--uri names the store of mlflow:EXPERIMENT"),
        (["--column", "loss=x"], "--column renames the columns of a table"),
        (["--count", "table"], "--count table takes N from the column params"),
    ],
)  # fmt: skip
def test_options_of_tables_are_refused_as_for_a_study(command, tmp_path, option, said):
    leave_rows(tmp_path)
    status, _, err = command("report", SMALL, VARY, "--results", str(tmp_path), *option)
    assert status == 2
    assert said in err


@pytest.mark.slow
def test_the_page_says_which_value_had_which_training(tmp_path):
    page = write_page(leave_rows(tmp_path), tmp_path, tmp_path / "out", renew=True)
    facts = json.loads((page.parent / "series.json").read_text())["facts"]
    assert facts["training"].startswith("300: 307,200 tokens per cell (300 steps of 16 × 64)")
    assert "; 1200: 1,228,800 tokens per cell (1,200 steps" in facts["training"]
    assert facts["seeds"] == "0, 1, 2"


def test_varied_paths_start_from_the_folder_of_the_file(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "sub" / name).write_text("words " * 5000)
    (tmp_path / "sub" / "texts.yaml").write_text(
        "name: texts\ndata: {kind: files, path: a.txt}\nvary: {data.path: [a.txt, b.txt]}\n"
        "frontier: {depths: [1], heads: 2, budgets: [5000]}\n"
        "training: {steps: 2, batch: 2, context: 16, lr: {rule: fixed, value: 0.01}}\n"
    )
    spec = load_spec(str(tmp_path / "sub" / "texts.yaml"))
    assert [one.data.path for one in members(spec).values()] == [
        str(tmp_path / "sub" / name) for name in ("a.txt", "b.txt")
    ]
    # A path of this machine is no part of a name, and may be longer than one can be.
    assert [one.name for one in members(spec).values()] == ["texts-path-a.txt", "texts-path-b.txt"]


def test_varied_paths_of_a_mixture_start_from_the_folder_of_the_file_too(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "sub" / name).write_text("words " * 5000)
    part = "{weight: 1, data: {kind: files, path: a.txt}}"
    (tmp_path / "sub" / "texts.yaml").write_text(
        f"name: texts\ndata: {{kind: mixture, parts: [{part}, {part}]}}\n"
        "vary: {data.parts.0.data.path: [a.txt, b.txt]}\n"
        "frontier: {depths: [1], heads: 2, budgets: [5000]}\n"
        "training: {steps: 2, batch: 2, context: 16, lr: {rule: fixed, value: 0.01}}\n"
    )
    spec = load_spec(str(tmp_path / "sub" / "texts.yaml"))
    assert [one.data.parts[0].data.path for one in members(spec).values()] == [
        str(tmp_path / "sub" / name) for name in ("a.txt", "b.txt")
    ]


def test_a_series_does_not_replace_the_report_of_a_study(command, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "spec.yaml").write_text("name: small")
    status, _, err = command("run", SMALL, VARY, "--results", str(tmp_path))
    assert status == 2
    assert "name=small-2" in err


def test_a_study_does_not_replace_the_page_of_a_series(command, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "series.yaml").write_text("name: small")
    status, _, err = command("run", SMALL, "--results", str(tmp_path))
    assert status == 2
    assert "the folder of a series" in err
    assert "name=small-2" in err


@pytest.mark.slow
def test_a_series_by_the_real_command_and_again(tmp_path):
    laptop = Laptop(tmp_path)
    chosen = ("tiny.yaml", "vary={training.steps: [40, 80]}")
    done = laptop.run("run", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training.steps 80 (2 of 2)" in done.stdout
    page = laptop.results / "tiny" / "report.html"
    assert page.is_file()
    for line in json.loads((page.parent / "series.json").read_text())["answers"]:
        assert line.split()[0] in done.stdout
    again = laptop.run("run", *chosen)
    assert again.returncode == 0
    assert again.stdout.count("nothing to train") == 2
    studies, trials = laptop.runs()
    assert len(studies) == 2
    assert len(trials) == 16
