"""The runs of the next steps of a study: what their command adds to the plan."""

import dataclasses
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.audit.recommend import shapes_of_sizes
from analysis.fit.document import Fit, fit
from analysis.fit.next_words import next_sizes_sentence, rate_sentence
from analysis.fit.study import study_of
from analysis.fit.words import headlines, next_steps
from analysis.report.words import confidence
from analysis.runs.table import RunTable
from core.files import write_json
from interplay.planned_runs import planned_runs
from interplay.study_fit import report_facts
from interplay.terminal import fit_table, recommendation_table
from study.errors import SpecError
from study.plan.plan import make_plan
from study.search.sensitivity_runs import sensitivity_cells
from study.spec.study import load_spec
from tests.study.search.test_sensitivity_runs import loss_of
from tests.study.small import SMALL


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


def fitted(plan, table):
    """The fit of a study, and the runs of its next steps."""
    result = fit(table)
    return result, planned_runs(plan, result, Path("results"))


def missing_rates(plan, table):
    """Whether the learning rate is checked, and the runs that check it."""
    result, runs = fitted(plan, table)
    return result.learning_rate.checked, runs.rates


def added(runs):
    """The overrides of the command."""
    program, verb, _, *overrides = shlex.split(runs.how)
    assert (program, verb) == ("interplay", "run")
    return overrides


def keys(cells):
    return {planned.cell.key for planned in cells}


def test_the_missing_check_takes_the_sensitivity_runs_of_the_plan():
    plan = make_plan(load_spec(SMALL))
    checked, runs = missing_rates(plan, table_of(plan.cells))
    assert not checked
    spec = load_spec(SMALL, added(runs))
    cells = sensitivity_cells(spec, make_plan(spec), study_of(table_of(plan.cells)))
    assert runs.runs == len(cells) > 0
    assert runs.flops == pytest.approx(sum(planned.flops for planned in cells))
    assert runs.seconds == pytest.approx(sum(planned.seconds for planned in cells) / plan.slots)
    # What was trained of it is not counted again; all of it is the check.
    assert missing_rates(plan, table_of([*plan.cells, *cells[:5]]))[1].runs == len(cells) - 5
    assert missing_rates(plan, table_of([*plan.cells, *cells])) == (True, None)


def test_a_best_rate_beyond_those_tried_asks_for_wider_ones():
    spec = load_spec(SMALL, ["sensitivity.lr_factors=[0.5, 2]"])
    plan = make_plan(spec)
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells, best=4.0)))
    table = table_of([*plan.cells, *cells], best=4.0)
    checked, runs = missing_rates(plan, table)
    assert not checked
    wider = load_spec(SMALL, added(runs))
    assert wider.sensitivity.lr_factors == (0.25, 0.5, 2.0, 4.0)
    assert runs.runs == len(keys(sensitivity_cells(wider, plan, study_of(table))) - keys(cells))


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
    _, runs = missing_rates(plan, table)
    more = make_plan(load_spec(name, [*overrides, *added(runs)]))
    assert keys(plan.cells) < keys(more.cells)
    assert runs.runs == len(more.cells) - len(plan.cells)
    assert runs.flops == pytest.approx(sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells))


def test_three_rates_in_the_grid_are_a_check():
    plan = make_plan(load_spec(SMALL, ["search.lr_factors=[0.5, 1, 2]"]))
    assert missing_rates(plan, table_of(plan.cells)) == (True, None)


def test_fit_and_recommendation_state_the_check(tmp_path):
    plan = make_plan(load_spec(SMALL))
    result, runs = fitted(plan, table_of(plan.cells))
    write_json(tmp_path / "fit.json", result.to_json(runs))
    document = json.loads((tmp_path / "fit.json").read_text())
    assert document["learning_rate"]["checked"] is False
    assert document["next_runs"]["rates"] == dataclasses.asdict(runs.rates)
    sentence = rate_sentence(result.learning_rate, runs.rates)
    assert document["learning_rate"]["sentence"] == sentence
    source, shapes = shapes_of_sizes(tmp_path / "fit.json", None, [2e4])
    assert [shape.learning_rate for shape in shapes] == [sentence]
    for view in (recommendation_table(source, shapes), fit_table(result, runs)):
        console = Console(file=io.StringIO(), width=2000)
        console.print(view)
        assert sentence in console.file.getvalue()


def test_the_next_depth_costs_what_its_option_adds_to_the_plan():
    plan = make_plan(load_spec(SMALL))
    frame = table_of(plan.cells).frame
    deepest = frame["depth"] == frame["depth"].max()
    better = RunTable.from_frame(frame.assign(loss=frame["loss"] - 0.3 * deepest))
    runs = fitted(plan, better)[1].depth
    program, verb, name, override = shlex.split(runs.how)
    assert (program, verb, name) == ("interplay", "run", "small")
    more = make_plan(load_spec(SMALL, [override]))
    assert runs.runs == len(more.cells) - len(plan.cells) > 0
    assert runs.flops == pytest.approx(sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells))


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
    found, runs = fitted(plan, isoflop_losses(plan.cells))
    assert found.compute.budgets == (2e9, 8e9, 3.2e10)
    for compute in found.compute.budgets:
        at = found.compute.at(compute)
        assert (at.depth, at.params) == (4, pytest.approx(np.sqrt(compute / 120), rel=0.1))
    assert (found.crossings[0].params, found.next_sizes, found.learning_rate) == (None, None, None)
    assert found.next_depth == 8
    *_, override = shlex.split(runs.depth.how)
    more = make_plan(load_spec(SMALL, [*given, override]))
    assert runs.depth.runs == len(more.cells) - len(plan.cells) > 0
    # One and two layers have the same losses.
    assert confidence(found)[0] == "partly settled"
    facts = report_facts(plan.planner.spec, plan, isoflop_losses(plan.cells), "")["facts"]
    assert facts["training"].startswith("equal FLOPs: 2e9 to 3.2e10 (")
    assert Fit.from_json(found.to_json()).compute == found.compute


@pytest.mark.parametrize(("shift", "side", "factor"), [(-3.0, "smaller", 0.125), (3.0, "larger", 8)])
def test_a_least_loss_at_an_end_of_the_sizes_proposes_one_factor_further(shift, side, factor):
    given = (*AT_FLOPS, "training.batch=2")
    plan = make_plan(load_spec(SMALL, given))
    found, runs = fitted(plan, isoflop_losses(plan.cells, shift))
    assert found.compute is None
    assert any("No depth is stated" in sentence for sentence in headlines(found))
    following = found.next_sizes
    ends = {(depth, flops) for depth in (1, 2, 4) for flops in (2e9, 8e9, 3.2e10)}
    assert set(getattr(following, side)) == ends
    assert (following.smaller == (), following.larger == ()) == (side == "larger", side == "smaller")
    *_, override = shlex.split(runs.sizes.how)
    more = load_spec(SMALL, [*given, override])
    assert set(more.frontier.spread) == {0.25, 0.5, 1, 2, 4, factor}
    new = {p.cell.key: p for p in make_plan(more).cells}.keys() - {p.cell.key for p in plan.cells}
    assert runs.sizes.runs == len(new) > 0
    assert next_sizes_sentence(following, runs.sizes) in next_steps(found, runs)


def test_the_command_for_more_rates_keeps_those_that_are_trained():
    given = ("search.lr_factors=[0.512345678, 1.0]",)
    plan = make_plan(load_spec(SMALL, given))
    _, rates = missing_rates(plan, table_of(plan.cells, best=2.0))
    more = make_plan(load_spec(SMALL, [*given, *added(rates)]))
    assert keys(plan.cells) < keys(more.cells)
    assert rates.runs == len(more.cells) - len(plan.cells)


def test_a_factor_whose_sizes_have_too_few_steps_is_proposed_with_the_reason():
    plan = make_plan(load_spec(SMALL, AT_FLOPS))
    found, runs = fitted(plan, isoflop_losses(plan.cells, 3.0))
    assert (runs.sizes.runs, runs.sizes.flops, runs.sizes.how) == (0, None, "")
    assert "`training.batch: 2` or less" in next_sizes_sentence(found.next_sizes, runs.sizes)
    with pytest.raises(SpecError, match=r"`training\.batch: 2` or less"):
        load_spec(SMALL, [*AT_FLOPS, "frontier.spread=[0.25, 0.5, 1, 2, 4, 8]"])
