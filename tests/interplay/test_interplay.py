"""The package `interplay`: the same numbers as the command, from names, paths and DataFrames, without output."""

import ast
import contextlib
import importlib
import inspect
import io
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.figure
import pandas as pd
import pyarrow
import pytest
from rich.console import Console

import interplay
import interplay.verbs
from analysis.law.threshold_law import solve_depth
from core.command_line import in_shell
from core.errors import InputError
from interplay.verbs.audit import audit_each
from interplay.verbs.recommend import recommend_each
from interplay.verbs.theory import theory_bounds
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.rows import Row
from study.run.recorder import cell_fields
from study.tracking.study_paths import study_paths
from tests.command import interplay as command
from tests.isoflop import isoflop_table, timed_table
from tests.notebook import NOTEBOOK, ROOT, execute
from tests.study.small import SMALL
from tests.tables import CROSSINGS, foreign_runs

NO_FIT = ROOT / "tests" / "data" / "golden.json"
TABLE = ROOT / "analysis" / "audit" / "tables" / "gemstones.jsonl"
#: A search with all that a report can show.
SEARCHED = ("search.sampler=crossing", "search.max_cells=40")


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    path.write_text(foreign_runs("my_loss"))
    return pd.read_csv(path)


@pytest.fixture(scope="module")
def answer(frame):
    return interplay.fit(frame, columns={"loss": "my_loss"})


def leave_rows(folder, *changes, failed=(), lost=False):
    """Rows of a study as a run without MLflow leaves them; all of them diverged if `lost`."""
    spec = interplay.load_spec(SMALL, *changes)
    plan = make_plan(spec)
    for rank, planned in enumerate(plan.pool):
        depth, size = planned.cell.shape.depth, planned.cell.shape.budget_params
        loss = (
            3 - 0.05 * math.log(size) - 0.02 * (depth - 1) * math.log(size / 5e3) + 0.002 * planned.cell.seed
        )
        layers = {f"token_cosine/{layer}": 0.1 * layer for layer in range(1, depth + 1)}
        status = "failed" if planned.title in failed else "diverged" if lost else "done"
        study_paths(spec, folder).ledger.put(
            Row(
                cell=planned.cell.key, name=planned.cell.name, **cell_fields(plan, planned),
                protocol=plan.protocol, status=status,
                ended=rank + 1.0, reason=None if status == "done" else f"{status} at step {rank}",
                loss=loss if status == "done" else None, start=layers,
                measures={**layers, "accuracy": 0.5, "accuracy_hops_2": 0.6, "accuracy_hops_4": 0.4},
                evaluations=[{"step": step, "loss": loss + 100 / step} for step in (100, 1200)],
            )
        )  # fmt: skip
    return spec


@pytest.fixture
def untrained(monkeypatch, tmp_path, template):
    """Let a run in this folder, which has a store of MLflow, leave what is missing untrained."""
    shutil.copy(template, tmp_path / "mlflow.db")
    monkeypatch.setattr("study.run.runner.run_cells", lambda *_, **__: True)
    monkeypatch.setattr("study.run.runner.private_ray", lambda _: contextlib.nullcontext())


def test_the_import_loads_nothing_heavy():
    heavy = ("torch", "ray", "mlflow", "pandas", "pydantic")
    code = f"import sys, interplay; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", interplay.__all__)
def test_each_function_is_documented_with_an_example_and_no_module_hides_it(name):
    for module in interplay.verbs.__path__:
        for path in Path(module).glob("*.py"):
            importlib.import_module(f"interplay.verbs.{path.stem}")
    function = getattr(interplay, name)
    assert inspect.isfunction(function)
    summary, _, rest = inspect.getdoc(function).partition("\n\n")
    assert summary.endswith((".", ":"))
    examples = re.findall(rf"^    .*interplay\.{name}\(.*$", rest, re.MULTILINE)
    assert examples
    for example in examples:
        ast.parse(example.strip())


def test_what_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'recommend_each'"):
        interplay.recommend_each  # noqa: B018
    assert set(dir(interplay)) == {*interplay.__all__, "__version__"}


def test_a_frame_and_its_file_have_the_same_answer_as_the_command(answer, frame, tmp_path, capfd):
    frame.to_csv(tmp_path / "runs.csv", index=False)
    by_path = interplay.fit(tmp_path / "runs.csv", columns={"loss": "my_loss"})
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


@pytest.mark.parametrize(
    "form",
    [
        lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
        lambda frame: frame.convert_dtypes(dtype_backend="numpy_nullable"),
        lambda frame: frame.astype({"depth": "category", "my_loss": "category"}),
        lambda frame: frame.astype(str),
        pyarrow.Table.from_pandas,
        lambda frame: frame.to_dict("records"),
    ],
    ids=["arrow", "nullable", "category", "text", "table", "dicts"],
)
def test_tables_of_any_library_and_rows_as_dicts_have_the_same_answer(answer, frame, form):
    assert interplay.fit(form(frame), columns={"loss": "my_loss"}).fit.crossings == answer.fit.crossings


def test_an_answer_in_bits_per_byte_has_other_losses_and_the_same_shapes(answer, frame):
    text = frame.assign(size=4.0)
    bits = interplay.fit(text, columns={"loss": "my_loss", "bytes_per_token": "size"}, unit="bpb")
    per_nat = 1 / 4 / math.log(2)
    assert bits.to_json()["unit"] == "bits per byte"
    pd.testing.assert_frame_equal(bits.crossings, answer.crossings)
    assert bits.best["loss"].tolist() == pytest.approx((per_nat * answer.best["loss"]).tolist())
    assert bits.best["depth"].tolist() == answer.best["depth"].tolist()
    one, other = (found.recommend(1e6) for found in (answer, bits))
    assert (one.depth, one.width, one.depth_interval) == (other.depth, other.width, other.depth_interval)
    assert other.near_optimal.within == pytest.approx(per_nat * one.near_optimal.within)
    assert bits.recommend(1e6, 0.002).near_optimal.within == pytest.approx(0.002)
    with pytest.raises(InputError, match="bytes per token"):
        interplay.fit(frame, columns={"loss": "my_loss"}, unit="bpb")


def test_tokens_may_be_text_and_headings_numbers(frame, answer):
    plain = frame.assign(tokens=5e9)
    numbered = plain.set_axis(range(len(plain.columns)), axis=1)
    columns = {
        ours: plain.columns.get_loc(theirs)
        for ours, theirs in {"depth": "depth", "width": "width", "seed": "seed", "loss": "my_loss"}.items()
    } | {"tokens": plain.columns.get_loc("tokens")}
    by_numbers = interplay.fit(numbered, columns=columns, tokens="5B")
    pd.testing.assert_frame_equal(by_numbers.crossings, answer.crossings)
    assert by_numbers.to_json() == interplay.fit(numbered, columns=columns, tokens=5e9).to_json()


@pytest.mark.parametrize("source", [[], [1, 2], None, {"depth": 1}, [{"depth": 1}, 3]])
def test_what_is_no_source_is_one_error_that_says_what_is(source):
    what = "An empty list" if source == [] else f"An object of type {type(source).__name__}"
    with pytest.raises(InputError, match=f"^{what} is no source of runs: give the name of a study"):
        interplay.fit(source)


def test_the_arguments_that_help_are_named_as_those_of_python(frame):
    kinds = {"learned": 0.0, "rotary": 0.1}
    rows = pd.concat(
        [frame.assign(positions=kind, my_loss=frame["my_loss"] + more) for kind, more in kinds.items()]
    )
    with pytest.raises(InputError) as caught:
        interplay.fit(rows, columns={"loss": "my_loss"})
    assert str(caught.value).endswith(" Try: where={'positions': 'learned'}")
    found = interplay.fit(rows, columns={"loss": "my_loss"}, where={"positions": "learned"})
    assert found.fit.used == len(frame)
    with pytest.raises(InputError) as caught:
        interplay.fit(frame.rename(columns={"my_loss": "measured"}))
    assert str(caught.value).endswith(" Try: columns={'loss': 'measured'}")


def test_an_answer_is_short_and_draws_and_writes(answer, tmp_path):
    assert len(repr(answer)) < 3000
    assert repr(answer).splitlines() == answer.sentences
    page = answer._repr_html_()
    assert page.count("<p>") == len(answer.sentences)
    assert page.count("<tr") == 1 + len(answer.best)
    figures = answer.figures()
    assert {"excess", "best_depth", "loss"} <= set(figures)
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in figures.values())
    report = answer.report(tmp_path / "out")
    assert json.loads((report.parent / "fit.json").read_text())["crossings"] == answer.to_json()["crossings"]


def test_sizes_are_recommended_by_an_answer_a_file_or_a_law(answer, tmp_path):
    size = float(answer.best.params.iloc[-1])
    found = interplay.recommend(size, fit=answer)
    assert found == answer.recommend(size)
    assert len(repr(found)) < 80
    assert f"{found.depth} layer" in repr(found)
    assert found.depth == answer.best.depth.iloc[-1]
    answer.report(tmp_path)
    assert interplay.recommend(size, fit=tmp_path / "fit.json").depth == found.depth
    assert interplay.recommend(5e9, law="levine2020").depth_exact == pytest.approx(
        solve_depth(5.039, 0.0555, 5e9), rel=1e-3
    )
    assert interplay.recommend(1e9, law="log3").depth == 8
    found = interplay.recommend(1e9)
    assert found.depths[0] <= interplay.recommend(1e9, law="liu2026").depth <= found.depths[1]
    assert repr(found) == found.sentence
    assert interplay.audit(depth=32, width=4096).verdict == "too shallow"
    assert interplay.audit(depth=12, width=768).verdict == "near the best"
    assert repr(interplay.audit(depth=12, width=768)).startswith("12 × 768 is near the best: it loses ")


def test_a_budget_of_flops_is_recommended_by_an_answer_a_file_or_a_law(answer, tmp_path):
    isoflop = interplay.fit(isoflop_table())
    found = isoflop.recommend(flops=1e18)
    assert found.shape == isoflop.fit.compute.at(1e18)
    assert found == interplay.recommend(flops="1e18", fit=isoflop)
    (tmp_path / "fit.json").write_text(json.dumps(isoflop.to_json()))
    assert interplay.recommend(flops=1e18, fit=tmp_path / "fit.json") == found
    assert interplay.recommend(flops=1e20) == interplay.recommend(flops=1e20, law="liu2026")
    with pytest.raises(InputError, match="isoFLOP"):
        answer.recommend(flops=1e18)
    for both in ({}, {"params": 1e9, "flops": 1e20}):
        with pytest.raises(InputError, match="not both"):
            interplay.recommend(**both)


def test_a_study_at_equal_training_time_is_asked_for_a_time(tmp_path, command):
    timed = interplay.fit(timed_table())
    file = tmp_path / "fit.json"
    file.write_text(json.dumps(timed.to_json()))
    shape = interplay.recommend(train_time="40min", fit=file)
    assert shape.shape == timed.fit.compute.at(40.0) == interplay.recommend(train_time=2400, fit=timed).shape
    status, out, _ = command("recommend", "--train-time", "40min", "--fit", str(file), "--json")
    assert (status, json.loads(out)) == (0, shape.to_json())
    assert (shape.minutes, shape.flops) == (40.0, None)
    status, out, _ = command("recommend", "--train-time", "40min", "--fit", str(file))
    assert (status, "In 40 min of training: " in out, "FLOPs" in out) == (0, True, False)
    assert timed.recommend(train_time="40min").shape == shape.shape
    with pytest.raises(InputError, match="equal training time"):
        interplay.compare(timed, interplay.fit(isoflop_table()))
    for given, words in (
        ({"params": 1e8}, "train_time='384min'"),
        ({"flops": 1e18}, "train_time="),
        ({"train_time": "1s"}, "reach from 90 s"),
        ({"train_time": "40min", "device": "cpu"}, "leave it out"),
        ({"latency": "5ms"}, "costs"),
    ):
        with pytest.raises(InputError, match=words):
            interplay.recommend(fit=file, **given)


@pytest.mark.parametrize("factor", [0.1, 1])
def test_an_answer_recommends_and_audits_as_its_file_does(answer, tmp_path, factor):
    answer.report(tmp_path)
    size = factor * float(answer.best.params.iloc[-1])
    by_file = interplay.recommend(size, fit=tmp_path / "fit.json")
    assert interplay.recommend(size, fit=answer) == answer.recommend(size) == by_file
    assert by_file.learning_rate
    assert answer.recommend(f"{size / 1e3:.6f}k").depth == by_file.depth
    width = round(math.sqrt(size / 24))
    document = interplay.audit(depth=2, width=width, fit=answer).to_json()
    named = interplay.audit(depth=2, width=width, fit=str(tmp_path / "fit.json")).to_json()
    for key in ("law", "source"):
        both = document["laws"][0].pop(key), named["laws"][0].pop(key)
        assert both == ("a table", str(tmp_path / "fit.json"))
    assert document == named


def test_a_size_is_a_number_or_text():
    sizes = (7e9, 7_000_000_000, "7B", "7e9")
    assert len({interplay.recommend(size, law="liu2026") for size in sizes}) == 1
    for wrong in ("seven", [1e9]):
        with pytest.raises(InputError, match="is no size"):
            interplay.recommend(wrong, law="liu2026")
    for wrong in (0, -1, math.inf, math.nan):
        with pytest.raises(InputError, match="a positive number of parameters"):
            interplay.recommend(wrong)


@pytest.mark.slow
def test_the_figures_are_those_of_the_report(tmp_path):
    spec = leave_rows(tmp_path, *SEARCHED)
    answer = interplay.fit(spec, results=tmp_path)
    drawn = answer.figures()
    page = answer.report(tmp_path / "out")
    assert list(drawn) == re.findall(r'<figure id="(\w+)"', page.read_text())
    assert set(drawn) == {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert {"diagnostics", "training", "accuracy", "accuracy_graded"} < set(drawn)
    assert answer.title == "small"


def test_the_folder_of_a_study_is_not_written_by_a_report(answer, tmp_path):
    (tmp_path / "spec.yaml").write_text("name: another\n")
    for write in (answer.report, lambda out: interplay.report(TABLE, out=out)):
        with pytest.raises(SpecError, match="folder of a study,"):
            write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]
    with pytest.raises(SpecError, match=r"spec\.yaml.* is a file"):
        answer.report(tmp_path / "spec.yaml")


@pytest.mark.usefixtures("untrained")
def test_cells_that_failed_are_in_the_answer(tmp_path):
    failed = ("L1-d12-s0", "L1-d12-s0 lr×0.5", "L1-d12-s1", "L1-d12-s1 lr×0.5")
    spec = leave_rows(tmp_path, "search.lr_factors=[0.5, 1]", failed=failed)
    answer = interplay.run(spec, results=tmp_path)
    assert set(answer.failed) == set(failed)
    assert answer.failed["L1-d12-s0"].startswith("failed at step ")
    line = repr(answer).splitlines()[-1]
    assert line.startswith("4 cells failed (L1-d12-s0")
    assert line.endswith("; 1 more).")
    assert answer._repr_html_().count("cells failed") == 1
    read = interplay.fit(spec, results=tmp_path)
    assert read.failed == answer.failed
    assert read.to_json() == answer.to_json()


@pytest.mark.parametrize(
    ("failed", "said"), [(["L1-d12-s0"], "1 cell failed .L1-d12-s0: "), ([], "every cell diverged")]
)
@pytest.mark.usefixtures("untrained")
def test_a_study_without_a_loss_says_why(tmp_path, failed, said):
    spec = leave_rows(tmp_path, failed=failed, lost=True)
    with pytest.raises(SpecError, match=f"no cell of the study 'small' has a usable loss: {said}"):
        interplay.run(spec, results=tmp_path)


FRAME = pd.DataFrame({"depth": [1, 2], "width": [8, 8], "loss": [2.0, 1.9]})


@pytest.mark.parametrize(
    ("source", "changes", "options", "said"),
    [
        (FRAME, ["training.seeds=2"], {}, "changes a spec"),
        (TABLE, ["training.seeds=2"], {}, "changes a spec"),
        (FRAME, [], {"uri": "sqlite:///x"}, "uri= names the store"),
        ("quickstart", [], {"uri": "sqlite:///x"}, "uri= names the store"),
        (interplay.load_spec("quickstart"), [], {"uri": "sqlite:///x"}, "uri= names the store"),
        (interplay.load_spec("quickstart"), [], {"columns": {"loss": "final_loss"}}, "columns= renames"),
        (interplay.load_spec("quickstart"), [], {"count": "table"}, "count='table' takes"),
        ("quickstart", [], {"columns": {"loss": "final_loss"}}, "columns= renames"),
    ],
)
def test_arguments_that_do_not_go_with_their_source_are_refused(source, changes, options, said, tmp_path):
    for call in (
        interplay.read,
        interplay.fit,
        lambda source, *rest, **more: interplay.report(source, *rest, out=tmp_path, **more),
    ):
        with pytest.raises(SpecError, match=said):
            call(source, *changes, **options)
        # In a shell the same message names the option.
        with in_shell(["fit"]), pytest.raises(SpecError) as caught:
            call(source, *changes, **options)
        assert all(f"--{name.removesuffix('s')}" in str(caught.value) for name in options)


def test_a_plan_has_a_row_per_cell():
    plan = interplay.plan(SMALL, "training.seeds=2")
    assert len(plan.cells) == plan.totals["cells"]
    assert plan.cells["flops"].sum() == pytest.approx(plan.totals["flops"])
    assert len(repr(plan)) < 200
    assert "<table" in plan._repr_html_()
    spec = interplay.load_spec(SMALL)
    assert len(interplay.plan(spec, "training.seeds=2").cells) == len(plan.cells)


#: Calls whose results need nothing but presets and published laws.
CALLS = [
    lambda: interplay.plan(SMALL),
    lambda: interplay.power(SMALL, assume={"noise": 0.01}, studies=5),
    lambda: interplay.status(SMALL),
    lambda: recommend_each([1e9]),
    lambda: recommend_each([1e9], law="liu2026"),
    lambda: recommend_each(flops=[1e20]),
    lambda: audit_each(depth=32, width=4096),
    lambda: interplay.recommend(1e9),
    lambda: interplay.recommend(1e9, law="liu2026"),
    lambda: interplay.recommend(flops=1e20),
    lambda: interplay.audit(depth=32, width=4096),
    lambda: theory_bounds(4, 8),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_result_is_a_document_a_view_and_a_part_of_a_notebook(call, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = call()
    assert capfd.readouterr() == ("", "")
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))
    console = Console(file=io.StringIO(), width=120)
    console.print(result)
    assert console.file.getvalue().strip()
    assert repr(result)
    assert re.match(r"<(p|pre)>", result._repr_html_())
    assert not re.search(r"(?<![\w-])--[a-z]", repr(result)), "an option of the shell"


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: interplay.plan("quickstrat"), SpecError, "quickstart"),
        (lambda: interplay.compare("quickstart"), SpecError, "two studies or more"),
        (lambda: interplay.fit(pd.DataFrame({"depth": [1]})), InputError, "loss"),
        (lambda: interplay.fit("absent.csv"), InputError, "absent.csv"),
        (lambda: interplay.recommend(1e13), InputError, "every law"),
        (lambda: interplay.recommend(1e9, law="levine2020", fit="f.json"), InputError, "not both"),
        (lambda: interplay.audit(), InputError, "no model"),
        (lambda: interplay.audit("config.json", depth=1, width=2), InputError, "one model"),
        (lambda: interplay.audit(depth=1, width=2, law="levine2020", fit="f.json"), InputError, "not both"),
        # Values of a wrong type.
        (lambda: interplay.fit(rows(), level="0.9"), InputError, "level is '0.9'"),
        (lambda: interplay.fit(rows(), level=None), InputError, "level is None"),
        (lambda: interplay.fit(rows(), tokens="many"), InputError, "tokens= is 'many'"),
        (lambda: interplay.fit(rows(), columns="loss=x"), InputError, "columns= is 'loss=x'; give a dict"),
        (lambda: interplay.fit(rows(), columns=["loss"]), InputError, "give a dict, such as columns={'loss'"),
        (
            lambda: interplay.read("runs.csv", where="seed=0"),
            InputError,
            "give a dict, such as where={'dataset'",
        ),
        (lambda: interplay.power(SMALL, assume=["noise=1"]), InputError, "such as assume={'noise': 0.005}"),
        (lambda: interplay.power(SMALL, studies=0), InputError, "studies= is 0"),
        (lambda: interplay.load_spec("quickstart", 5), SpecError, "5 changes no key"),
        (lambda: interplay.plan(interplay.load_spec(SMALL), {"name": 1}), SpecError, "changes no key"),
        (lambda: interplay.recommend(1e9, fit=rows()), InputError, "of type DataFrame is no fit"),
        (lambda: interplay.audit(depth=3.5, width=64), InputError, "depth= is 3.5"),
        (lambda: interplay.audit(depth="3", width=64), InputError, "depth= is '3'"),
    ],
)
def test_wrong_input_raises_the_error_of_the_command(call, error, said):
    with pytest.raises(error, match=said):
        call()


def rows(**columns):
    """Two runs of two depths, as a table."""
    return pd.DataFrame({"depth": [1, 2], "width": [16, 16], "loss": [2.5, 2.25]} | columns)


def renamed(**names):
    return rows().rename(columns=names)


#: A call with wrong arguments, and what its message has: in Python, and in a shell.
MESSAGES = [
    (lambda: interplay.fit(renamed(loss="los")), "Try: columns={'loss': 'los'}", "--column loss=los"),
    (lambda: interplay.fit(rows(), columns={"loss": "x"}), "needs no columns=", "needs no --column"),
    (lambda: interplay.fit(renamed(loss="q")), "in columns={'loss': 'final_loss'}", "in --column loss=final_loss"),
    (lambda: interplay.fit(rows(loss=96.2)), "columns={'perplexity': 'HEADING'}", "--column perplexity=HEADING"),
    (lambda: interplay.fit(rows(val_acc=1.0), columns={"loss": "val_acc"}), "'loss': 'HEADING'", "loss=HEADING"),
    (lambda: interplay.fit(rows(a=1), count="table"), "out count='table' to", "out --count table to"),
    (lambda: interplay.fit(rows(), where={"x": 1}), "which where= names", "which --where names"),
    (lambda: interplay.fit(rows(dataset=["a", "b"])), "Try: where={'dataset': 'a'}", "--where dataset=a"),
    (lambda: interplay.fit(rows(), tokens=1e9), "'THEIRS'}, or leave out tokens=", "--column tokens=THEIRS"),
    (lambda: interplay.fit(rows(tokens=1e9), tokens=5e9), "one of these with tokens=,", "one of these with --tokens,"),
    (lambda: interplay.fit(rows(), unit="bpb"), "{'bits_per_byte': 'HEADING'}", "--column bits_per_byte=HEADING"),
    (lambda: interplay.fit(rows(bytes_per_token=[2, 6.0]), unit="bpb"), "leave out unit='bpb'", "leave out --unit bpb"),
    (lambda: interplay.fit(rows(), out="."), "out='.' is a folder", "--out . is a folder"),
    (lambda: interplay.fit("mlflow:x", uri="sqlite:///absent.db"), "or uri=URI", "or --uri URI"),
    (lambda: interplay.report(rows()), "with out=DIR", "with --out DIR"),
    (lambda: interplay.report(rows(), out=TABLE), "out='", "--out "),
    (lambda: interplay.recommend(1e9, within=-1), "within= is -1", "--within is -1"),
    (lambda: interplay.recommend(1e9, within="1%"), "within=0.01", "--within 0.01"),
    (lambda: interplay.recommend(flops="x"), "as flops=1e20", "as --flops 1e20"),
    (lambda: interplay.recommend(flops=-1), "as flops=1e20", "as --flops 1e20"),
    (lambda: interplay.recommend(flops=1e28), "interplay.recommend(flops=1e21)", "interplay recommend --flops 1e21"),
    (lambda: interplay.recommend(flops=1e20, law="levine2020"), "liu2026', flops=1e+20)", "--law liu2026 --flops"),
    (lambda: interplay.recommend(flops=1e20, law="log3"), "liu2026', flops=1e+20)", "--law liu2026 --flops"),
    (lambda: interplay.recommend(flops=1e20, within=1), "With flops=1e+20 leave it out", "With --flops 1e+20"),
    (lambda: interplay.recommend(1e9, fit=NO_FIT), "is not a fit file", "is not a fit file"),
    (lambda: interplay.recommend(1e9, law="liu2026", fit="f.json"), "law='levine2020'", "--law levine2020"),
    (lambda: interplay.recommend(1e9, fit=TABLE.parent), "is a folder without", "--fit "),
    (lambda: interplay.audit(), "or depth=L, width=D", "or --depth L --width D"),
    (lambda: interplay.audit(depth=3), "depth=32, width=4096", "--depth 32 --width 4096"),
    (lambda: interplay.audit(depth=0, width=3), "depth= is 0", "--depth is 0"),
    (lambda: interplay.audit("absent.json"), "depth=L, width=D", "--depth L --width D"),
    (lambda: interplay.audit(depth=1, width=2, law="x", fit="f.json"), "law='x' or fit=", "--law x or --fit"),
    (lambda: interplay.init("x", hours="long"), "hours='long' is not", "--hours long is not"),
    (lambda: interplay.init("x", hours=-1), "hours=-1 is not", "--hours -1 is not"),
    (lambda: interplay.power(SMALL, assume={"noise": "x"}), "assume={'noise': 'x'}", "--assume noise=x"),
    (lambda: interplay.power(SMALL, assume={"nois": 1}), "assume={'nois': 1}", "--assume nois=1"),
    (lambda: interplay.power(SMALL, assume={"a": 2}), "assume= gives", "--assume gives"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "python", "shell"), MESSAGES)
def test_a_message_names_arguments_in_python_and_options_in_a_shell(
    call, python, shell, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        call()
    assert python in str(caught.value)
    assert not re.search(r"(?<!\w)--[a-z]|\binterplay [a-z]", str(caught.value))
    with in_shell(["fit"]), pytest.raises(ValueError) as caught:
        call()
    assert shell in str(caught.value)


def test_a_law_and_an_answer_are_refused_together(answer):
    for call in (interplay.recommend, lambda size, **both: interplay.audit(depth=2, width=64, **both)):
        with pytest.raises(InputError, match="not both"):
            call(1e9, law="levine2020", fit=answer)


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


@pytest.mark.slow
def test_a_stopped_study_keeps_its_cells_and_the_same_call_goes_on(tmp_path):
    code = (
        "import interplay, sys\n"
        "changes = ['training.steps=300', 'training.seeds=2', 'frontier.depths=[1, 2]', 'resources.slots=2']\n"
        "try:\n"
        "    print(len(interplay.run(sys.argv[1], *changes).table.used))\n"
        "except KeyboardInterrupt as stopped:\n"
        "    print(stopped)\n"
    )
    rows = tmp_path / "results" / "small" / "rows"

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", code, SMALL],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )

    with start() as process:
        until = time.monotonic() + 300
        while not list(rows.glob("*.json")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=120)
    assert said == (
        "the study 'small' was stopped; its finished cells are kept, and the same call trains the others\n"
    ), err
    assert process.returncode == 0
    kept = {path.name: path.read_bytes() for path in rows.glob("*.json")}
    assert 1 <= len(kept) < 20
    with start() as process:
        assert process.communicate(timeout=300)[0] == "20\n"
    assert {name: (rows / name).read_bytes() for name in kept} == kept


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
    assert round(names["best"].depth_exact) == 37
    pictures = [o["data"].get("image/png", "") for c in stored["cells"] for o in c.get("outputs", ())]
    assert 10_000 < max(map(len, pictures)) < 80_000
