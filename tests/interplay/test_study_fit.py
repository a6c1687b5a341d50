"""From RUNS to the fit and the report: foreign tables, the cost of a missing check, searched studies."""

import io
import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.audit.recommend import shapes_of_sizes
from analysis.design.simulated_study import Truth
from analysis.fit.document import Fit
from analysis.fit.next_words import next_sizes_sentence, rate_sentence
from analysis.fit.study import study_of
from analysis.fit.words import headlines, next_steps
from analysis.report.words import confidence
from analysis.runs.table import RunTable
from core.files import write_json
from interplay.study_fit import fit_and_report, planned_check, report_facts, study_fit
from interplay.terminal import fit_table, recommendation_table
from study.errors import SpecError
from study.plan.plan import make_plan
from study.search.sensitivity_runs import sensitivity_cells
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths
from tests.study.search.test_sensitivity_runs import loss_of
from tests.study.small import SMALL

#: Two checkpoints of six shapes, with a count of parameters that holds more than 12·L·d².
HEADER = "depth,width,n_params,tokens,final_loss"
ROWS = [
    f"{depth},{width},{12 * depth * width**2 + 1000 * width},{tokens},{3 - depth / 10 - width / 1000 - tokens / 1e11}"
    for depth in (1, 2)
    for width in (16, 32, 64)
    for tokens in (10**10, 2 * 10**10)
]
NAMES = ("--column", "loss=final_loss", "--column", "params=n_params")


@pytest.fixture
def their_runs(tmp_path):
    (tmp_path / "runs.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")


@pytest.mark.usefixtures("their_runs")
@pytest.mark.parametrize("count", ["nonembedding", "table"])
def test_a_foreign_table_is_fitted_in_either_count_and_at_the_tokens_asked_for(command, count):
    status, out, _ = command(
        "fit", "runs.csv", *NAMES, "--count", count, "--tokens", "1e10", "--out", "f.json", "--json"
    )
    assert status == 0
    document = json.loads(out)
    assert document["count"] == count
    assert document["tokens"]["compared"] == 1e10
    assert document["rows"]["used"] == 6
    assert len(document["rows"]["left_out"]) == 6
    assert any("differs from 12·L·d²" in text for text in document["warnings"]) == (count == "table")
    # Without the option the most tokens that all shapes have are compared.
    assert json.loads(command("fit", "runs.csv", *NAMES, "--json")[1])["tokens"]["compared"] == 2e10


@pytest.mark.usefixtures("their_runs")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs.csv", *NAMES, "--tokens", "5e10"], "The table has 1e+10, 2e+10"),
        (["runs.csv", *NAMES, "--tokens", "-1"], "positive number"),
        (["runs.csv", *NAMES, "--tokens", "50B"], "within 5% of 5e+10"),
        (["runs.csv", *NAMES, "--tokens", "much"], "--tokens is 'much'"),
        (["runs.csv", "--column", "tokens=width", "--count", "table"], "no column 'width'"),
        (["quickstart", "--count", "table"], "quickstart is a spec"),
        (["no_tokens.csv", "--tokens", "1e10"], "--column tokens=THEIRS"),
    ],
)
def test_a_count_or_tokens_that_are_not_there_are_one_paragraph(command, tmp_path, words, said):
    (tmp_path / "no_tokens.csv").write_text("depth,width,loss\n1,8,2\n2,8,1.9\n")
    for verb in (["fit"], ["report", "--out", "report"]):
        status, out, err = command(*verb, *words)
        assert status == 2
        assert not out
        assert said in err
        assert "\n" not in err.strip()
        assert not (tmp_path / "report").exists()


def table_of(cells, best=1.0, harm=0.03):
    """Losses that rise by `harm` at a factor of two from the best multiple of the rate."""
    lines = [
        {
            **planned.row(),
            "loss": loss_of(planned) + harm * float(np.log2(planned.lr_factor / best)) ** 2,
            "status": "done",
            "purpose": planned.purpose,
        }
        for planned in cells
    ]
    return RunTable.from_frame(pd.DataFrame(lines))


def added(check):
    """The overrides of the command that the sentence names."""
    program, verb, _, *overrides = shlex.split(rate_sentence(check).split("`")[1])
    assert (program, verb) == ("interplay", "run")
    return overrides


def keys(cells):
    return {planned.cell.key for planned in cells}


def test_the_missing_check_takes_the_sensitivity_runs_of_the_plan():
    plan = make_plan(load_spec(SMALL))
    check = planned_check(plan, Path("results"), study_of(table_of(plan.cells)))
    assert not check.checked
    spec = load_spec(SMALL, added(check))
    cells = sensitivity_cells(spec, make_plan(spec), study_of(table_of(plan.cells)))
    assert check.runs == len(cells) > 0
    assert check.flops == pytest.approx(sum(planned.flops for planned in cells))
    assert check.seconds == pytest.approx(sum(planned.seconds for planned in cells) / plan.slots)
    # What was trained of it is not counted again; all of it is the check.
    assert (
        planned_check(plan, Path("results"), study_of(table_of([*plan.cells, *cells[:5]]))).runs
        == len(cells) - 5
    )
    done = planned_check(plan, Path("results"), study_of(table_of([*plan.cells, *cells])))
    assert done.checked
    assert (done.runs, done.flops) == (0, None)


def test_a_best_rate_beyond_those_tried_asks_for_wider_ones():
    spec = load_spec(SMALL, ["sensitivity.lr_factors=[0.5, 2]"])
    plan = make_plan(spec)
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells, best=4.0)))
    table = table_of([*plan.cells, *cells], best=4.0)
    check = planned_check(plan, Path("results"), study_of(table))
    assert not check.checked
    wider = load_spec(SMALL, added(check))
    assert wider.sensitivity.lr_factors == (0.25, 0.5, 2.0, 4.0)
    assert check.runs == len(keys(sensitivity_cells(wider, plan, study_of(table))) - keys(cells))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (SMALL, ["search.lr_factors=[0.5,1]"]),
        (SMALL, []),
        (SMALL, ["sensitivity.lr_factors=[0.5,2]"]),
        ("quickstart-search", ["sensitivity.lr_factors=[0.5,2]"]),
    ],
)
def test_without_one_rate_or_a_crossing_it_takes_more_rates_of_all_shapes(name, overrides):
    plan = make_plan(load_spec(name, overrides))
    table = table_of(plan.cells)
    if len(plan.search.lr_factors) == 1:
        frame = table.frame.assign(loss=table.frame["loss"] - 0.9 * np.log2(table.frame["depth"]))
        table = RunTable.from_frame(frame.assign(loss=frame["loss"] + 2))
    check = planned_check(plan, Path("results"), study_of(table))
    more = make_plan(load_spec(name, [*overrides, *added(check)]))
    assert keys(plan.cells) < keys(more.cells)
    assert check.runs == len(more.cells) - len(plan.cells)
    assert check.flops == pytest.approx(sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells))


def test_three_rates_in_the_grid_are_a_check():
    plan = make_plan(load_spec(SMALL, ["search.lr_factors=[0.5, 1, 2]"]))
    assert planned_check(plan, Path("results"), study_of(table_of(plan.cells))).checked


def test_fit_and_recommendation_state_the_check(tmp_path):
    plan = make_plan(load_spec(SMALL))
    fit = study_fit(plan, table_of(plan.cells), Path("results"))
    assert fit.learning_rate == planned_check(plan, Path("results"), study_of(table_of(plan.cells)))
    write_json(tmp_path / "fit.json", fit.to_json())
    assert json.loads((tmp_path / "fit.json").read_text())["learning_rate"]["checked"] is False
    source, shapes = shapes_of_sizes(tmp_path / "fit.json", None, [2e4])
    assert [shape.learning_rate for shape in shapes] == [rate_sentence(fit.learning_rate)]
    for view in (recommendation_table(source, shapes), fit_table(fit)):
        console = Console(file=io.StringIO(), width=2000)
        console.print(view)
        assert rate_sentence(fit.learning_rate) in console.file.getvalue()


def test_the_next_depth_costs_what_its_option_adds_to_the_plan():
    plan = make_plan(load_spec(SMALL))
    frame = table_of(plan.cells).frame
    deepest = frame["depth"] == frame["depth"].max()
    better = RunTable.from_frame(frame.assign(loss=frame["loss"] - 0.3 * deepest))
    following = study_fit(plan, better, Path("results")).next_depth
    program, verb, name, override = shlex.split(following.how)
    assert (program, verb, name) == ("interplay", "run", "small")
    more = make_plan(load_spec(SMALL, [override]))
    assert following.runs == len(more.cells) - len(plan.cells) > 0
    assert following.flops == pytest.approx(
        sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells)
    )


AT_FLOPS = (
    "frontier.flops=[2e9, 8e9, 32e9]",
    "training.batch=4",
    "frontier.tolerance=0.25",
    "training.seeds=2",
)


def isoflop_losses(cells, shift=0.0):
    """Losses of parabolas in ln N whose minimum is `shift` above N of 20 tokens per parameter, lower for 4 layers."""
    generator, lines = np.random.default_rng(0), []
    for planned in cells:
        row = planned.row()
        place = np.log(row["params"] / np.sqrt(row["compute"] / 120)) - shift
        deep = 0.1 if row["depth"] == 4 else 0.0
        loss = 3 + 0.05 * place**2 - 0.2 * np.log(row["compute"] / 2e9) - deep + 1e-3 * generator.normal()
        lines.append({**row, "loss": loss, "status": "done"})
    return RunTable.from_frame(pd.DataFrame(lines))


def test_a_study_at_equal_flops_is_answered_at_these_and_proposes_a_deeper_shape_at_equal_flops():
    given = (*AT_FLOPS, "training.batch=2")
    plan = make_plan(load_spec(SMALL, given))
    found = study_fit(plan, isoflop_losses(plan.cells), Path("results"))
    assert found.compute.budgets == (2e9, 8e9, 3.2e10)
    for compute in found.compute.budgets:
        at = found.compute.at(compute)
        assert (at.depth, at.params) == (4, pytest.approx(np.sqrt(compute / 120), rel=0.1))
    assert (found.crossings[0].params, found.next_sizes, found.learning_rate) == (None, None, None)
    assert found.next_depth.depth == 8
    *_, override = shlex.split(found.next_depth.how)
    more = make_plan(load_spec(SMALL, [*given, override]))
    assert found.next_depth.runs == len(more.cells) - len(plan.cells) > 0
    # One and two layers have the same losses.
    assert confidence(found)[0] == "partly settled"
    facts = report_facts(plan.planner.spec, plan, isoflop_losses(plan.cells), "")["facts"]
    assert facts["training"].startswith("equal FLOPs: 2e9 to 3.2e10 (")
    assert Fit.from_json(found.to_json()).compute == found.compute


@pytest.mark.parametrize(("shift", "side", "factor"), [(-3.0, "smaller", 0.125), (3.0, "larger", 8)])
def test_a_least_loss_at_an_end_of_the_sizes_proposes_one_factor_further(shift, side, factor):
    given = (*AT_FLOPS, "training.batch=2")
    plan = make_plan(load_spec(SMALL, given))
    found = study_fit(plan, isoflop_losses(plan.cells, shift), Path("results"))
    assert found.compute is None
    assert any("No depth is stated" in sentence for sentence in headlines(found))
    following = found.next_sizes
    ends = {(depth, flops) for depth in (1, 2, 4) for flops in (2e9, 8e9, 3.2e10)}
    assert set(getattr(following, side)) == ends
    assert (following.smaller == (), following.larger == ()) == (side == "larger", side == "smaller")
    *_, override = shlex.split(following.how)
    more = load_spec(SMALL, [*given, override])
    assert set(more.frontier.spread) == {0.25, 0.5, 1, 2, 4, factor}
    new = {p.cell.key: p for p in make_plan(more).cells}.keys() - {p.cell.key for p in plan.cells}
    assert following.runs == len(new) > 0
    assert next_sizes_sentence(following) in next_steps(found)


def test_a_factor_whose_sizes_have_too_few_steps_is_proposed_with_the_reason():
    plan = make_plan(load_spec(SMALL, AT_FLOPS))
    following = study_fit(plan, isoflop_losses(plan.cells, 3.0), Path("results")).next_sizes
    assert (following.runs, following.flops, following.how) == (0, None, "")
    assert "`training.batch: 2` or less" in next_sizes_sentence(following)
    with pytest.raises(SpecError, match=r"`training\.batch: 2` or less"):
        load_spec(SMALL, [*AT_FLOPS, "frontier.spread=[0.25, 0.5, 1, 2, 4, 8]"])


TRUTH = Truth(a=2.4, b=0.25, depths=(1, 2, 4))
SEARCH = ("search.sampler=crossing", "search.objective=depth", "search.max_cells=40")


def searched_table(cells):
    lines = []
    for order, planned in enumerate(cells, 1):
        shape, harm = planned.cell.shape, 0.01 if planned.purpose and planned.cell.shape.depth == 2 else 0.0
        stray = np.random.default_rng([shape.depth, shape.width, planned.cell.seed]).standard_normal()
        loss = float(TRUTH.loss(shape.depth, np.array([shape.budget_params]))[0]) + 0.003 * stray + harm
        lines.append(
            {**planned.row(), "loss": loss, "status": "done", "purpose": planned.purpose, "order": order}
        )
    return RunTable.from_frame(pd.DataFrame(lines))


def test_a_grid_has_no_search():
    spec = load_spec(SMALL)
    plan = make_plan(spec)
    assert report_facts(spec, plan, table_of(plan.cells), "")["search"] is None


def test_the_report_of_an_unfinished_grid_has_its_finished_and_planned_cells():
    spec = load_spec(SMALL)
    plan = make_plan(spec)
    assert report_facts(spec, plan, table_of(plan.cells), "")["cells"] is None
    part = table_of(plan.cells[:-2])
    assert report_facts(spec, plan, part, "")["cells"] == (plan.cell_count - 2, plan.cell_count)
    failed = table_of(plan.cells).frame
    failed = RunTable.from_frame(failed.assign(status=["failed", *failed["status"][1:]]))
    assert report_facts(spec, plan, failed, "")["cells"] == (plan.cell_count - 1, plan.cell_count)
    # A search that chooses its cells may end before it has trained them all.
    searched = load_spec(SMALL, SEARCH)
    plan = make_plan(searched)
    found = report_facts(searched, plan, table_of(plan.cells[:-2]), "")["cells"]
    assert (found is None) == plan.search.may_end_early


def test_a_search_is_reported_with_its_objective():
    spec = load_spec(SMALL, SEARCH)
    plan = make_plan(spec)
    found = report_facts(spec, plan, table_of(plan.cells), "")["search"]
    assert found is not None
    assert found.objective.kind == "depth"
    assert found.ended == ""


@pytest.mark.extended
def test_the_report_of_a_searched_study_has_all_of_it(tmp_path):
    spec = load_spec(SMALL, [*SEARCH, "sensitivity.lr_factors=[0.5]"])
    plan = make_plan(spec)
    again = sensitivity_cells(spec, plan, study_of(searched_table(plan.cells)))
    runs = searched_table([*plan.cells, *again])
    where = StudyPaths(tmp_path, "small")
    fit, page = fit_and_report(plan, {}, where, runs, "the limit of 40 cells is reached.")
    assert [pair.shift is not None for pair in fit.learning_rate.pairs] == [True, True]
    html = page.read_text()
    assert 'id="section-the-search"' in html
    # The sensitivity runs have a section of their own, with the shift of each crossing.
    assert 'id="section-the-learning-rate"' in html
    assert "The limit of 40 cells is reached." in html
    document = json.loads((page.parent / "fit.json").read_text())
    assert [pair["shift"]["runs"] > 0 for pair in document["learning_rate"]["pairs"]] == [True, True]
    assert pd.read_csv(page.parent / "runs.csv")["purpose"].eq("sensitivity").sum() == len(again)
