"""When a cell may end early: what the judge says at an evaluation, and what it is made from."""

import dataclasses
import math

import numpy as np
import pytest

from analysis.design.loss_forecast import LossForecast
from study.errors import SpecError
from study.run.trial import TrialSettings, trial_config
from study.search.early_stopping import EvaluationRule, Judge, Policy, is_whole
from study.spec.early_stopping import EarlyStoppingSection
from study.spec.study import load_spec
from tests.study.learning_curves import Setting, planned
from tests.study.small import SMALL
from trainables.progress import Evaluation

SURE = LossForecast(step=5, centre=3.0, loss=2.0, slope=0.9, variance=(1e-4, 0.0, 0.01), runs=20)


def at(step, loss):
    return Evaluation(step=step, loss=loss)


def study(**rule):
    """A policy, the planned cells whose fate the rule decides, and the curves of all cells."""
    setting = Setting({"rule": "forecast", "finished": 12, **rule})
    spec, plan = planned(setting)
    return Policy(spec), plan.cells, setting.curves(plan, np.random.default_rng(0))


def told(policy, cells, curves):
    for cell in cells:
        policy.ended(cell, "done", curves[cell.cell.key])


def free(policy, cells):
    return [cell for cell in cells if not is_whole(cell.cell.key, policy.rule.whole_share)]


def test_a_judge_ends_a_cell_where_its_forecast_is_sure_enough():
    judge = Judge(steps=10, rules=(EvaluationRule(step=5, line=SURE, halfwidth=0.0099),))
    ending = judge(at(5, 3.0))
    assert (ending.loss, ending.loss_se) == (2.0, 0.01)
    assert ending.reason == "at step 5 of 10; forecast 2.0000 ± 0.0196 from 20 finished cells"
    assert judge(at(5, 3.1)) is None, "the interval is wider away from the losses it was made from"
    assert judge(at(6, 3.0)) is None
    assert judge(at(5, math.nan)) is None
    assert judge(at(5, 0.7)) is None, "a forecast below zero is none"


def test_a_judge_is_sent_to_a_trial_as_it_is():
    line = dataclasses.replace(SURE, loss=1 / 3, variance=(math.inf, 0.0, 0.01))
    judge = Judge(steps=10, rules=(EvaluationRule(step=5, line=line, halfwidth=0.1),))
    _, plan = planned(Setting({"rule": "forecast"}))
    cell = plan.cells[0]
    settings = TrialSettings(data_root="a", checkpoint_root="b", checkpoint_every=1, evaluations=4)
    config = trial_config(cell.cell, cell.layout, settings, judge)
    assert Judge.model_validate_json(config["judge"]) == judge
    assert "judge" not in trial_config(cell.cell, cell.layout, settings)


def test_nothing_is_forecast_before_enough_cells_are_done():
    policy, cells, curves = study()
    mine, others = free(policy, cells)[0], [cell for cell in cells if cell is not free(policy, cells)[0]]
    told(policy, others[:11], curves)
    assert policy.judge(mine) is None
    told(policy, others[11:12], curves)
    judge = policy.judge(mine)
    assert [watch.step for watch in judge.rules] == [400, 600, 800]
    assert {watch.line.runs for watch in judge.rules} == {12}


def test_stopped_and_failed_cells_and_those_of_another_rate_are_no_finished_curves():
    policy, cells, curves = study()
    mine, *others = free(policy, cells)
    for number, cell in enumerate(others[:15]):
        status = ("stopped", "diverged", "failed")[number % 3]
        policy.ended(cell, status, curves[cell.cell.key][:2])
    for cell in others[15:30]:
        policy.ended(dataclasses.replace(cell, lr_factor=2.0), "done", curves[cell.cell.key])
    assert policy.judge(mine) is None
    assert policy.judge(dataclasses.replace(mine, lr_factor=2.0)) is not None


def test_a_share_of_the_cells_is_trained_to_its_end_whatever_it_shows():
    policy, cells, curves = study(whole_share=0.25)
    whole = [cell for cell in cells if cell not in free(policy, cells)]
    assert 0.1 < len(whole) / len(cells) < 0.4
    told(policy, cells, curves)
    assert all(policy.judge(cell) is None for cell in whole)
    assert all(policy.judge(cell) for cell in free(policy, cells))
    assert np.mean([is_whole(str(number), 0.25) for number in range(4000)]) == pytest.approx(0.25, abs=0.03)


def test_forecasts_follow_from_what_ended_and_not_from_when():
    policy, cells, curves = study()
    mine = free(policy, cells)[-1]
    for cell in cells[:20]:
        policy.judge(mine)
        told(policy, [cell], curves)
    once, *_ = study()
    told(once, cells[:20], curves)
    assert policy.judge(mine) == once.judge(mine)


def test_where_a_cell_may_be_stopped():
    section = EarlyStoppingSection()
    assert section.steps(1000, 10) == (300, 400, 500, 600, 700, 800, 900)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("early_stopping.rule=asha", "`early_stopping.rule` is 'asha'"),
        ("early_stopping={rule: forecast, grace: 0.1}", "`early_stopping.grace` is not a key"),
        ("early_stopping={rule: forecast, finished: 3}", "`early_stopping.finished`"),
        ("early_stopping={rule: forecast, whole_share: 0}", "`early_stopping.whole_share`"),
        ("early_stopping={rule: forecast, least_share: 0.8}", "puts none there; take 10 or more"),
    ],
)
def test_mistakes_of_a_rule_are_named(override, words):
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        load_spec(SMALL, [override])


def test_a_study_without_a_rule_has_no_policy():
    assert load_spec(SMALL).early_stopping is None
    with pytest.raises(ValueError, match="no early_stopping"):
        Policy(load_spec(SMALL))
