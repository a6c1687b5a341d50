"""Published rules of shape: their depths, and what they lose in simulated and shipped tables."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from analysis.audit.rules import RULES, Rule, Verdict, by_ratio, by_width, judge, judge_rules
from analysis.audit.shipped_tables import TABLES
from analysis.fit.document import fit
from analysis.intervals import width_of
from analysis.law.near_optimal import WITHIN
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

DEPTHS = (1, 2, 4, 8)
TRUTH = Truth(2.3, 0.25, DEPTHS, noise=0.001)
DOCS = Path(__file__).parents[3] / "docs"


def rule_of(depth):
    return Rule("a rule", "says", "source", "all", None, depth)


def study_of(seeds=3, seed=0):
    frame = simulate(TRUTH, shapes_of(DEPTHS, np.geomspace(2e3, 3e5, 8)), seeds, np.random.default_rng(seed))
    return fit(RunTable.from_frame(frame.assign(tokens=1e7))).study


@pytest.mark.parametrize("params", [1e5, 1e8, 3e10])
def test_each_rule_gives_the_depth_that_it_states(params):
    depth = by_ratio(64)(params)
    assert width_of(params, depth) == pytest.approx(64 * depth)
    depth = by_width(lambda width: width**0.44)(params)
    assert depth == pytest.approx(width_of(params, depth) ** 0.44)
    assert by_width(lambda width: 1e12)(params) is None


def test_the_rules_are_at_least_eight_with_a_source_and_a_name_each():
    assert len({rule.name for rule in RULES}) == len(RULES) >= 8
    assert all(rule.source and rule.statement and rule.domain for rule in RULES)
    for rule in RULES:
        assert rule.depth(1e9) > 1


def test_a_rule_that_takes_the_best_depth_holds_and_one_that_does_not_loses():
    study = study_of()
    best = {at.params: at.depth for at in study.best}
    right = judge(rule_of(best.__getitem__), "simulated", study)
    assert (right.lost, right.interval, right.verdict) == (0.0, (0.0, 0.0), Verdict.HOLDS)
    assert (right.sizes, right.outside) == (len(study.best), 0)
    wrong = judge(rule_of(lambda params: 8.0), "simulated", study)
    true = [
        float(TRUTH.loss(8, np.array([at.params]))[0])
        - min(float(TRUTH.loss(depth, np.array([at.params]))[0]) for depth in DEPTHS)
        for at in study.best
    ]
    assert wrong.verdict is Verdict.LOSES
    assert wrong.interval[0] < np.mean(true) < wrong.interval[1]
    assert wrong.worst[0] == study.best[int(np.argmax(true))].params
    assert wrong.lost > WITHIN


def test_between_two_measured_depths_the_loss_is_straight():
    study = study_of()
    shallow, deep = (
        judge(rule_of(lambda _, depth=depth: depth), "simulated", study).lost for depth in (2.0, 4.0)
    )
    middle = judge(rule_of(lambda _: math.sqrt(8)), "simulated", study).lost
    assert middle == pytest.approx((shallow + deep) / 2)


def test_a_depth_that_was_not_measured_is_not_judged():
    study = study_of()
    outside = judge(rule_of(lambda _: 9.0), "simulated", study)
    assert (outside.verdict, outside.sizes, outside.lost) == (Verdict.OUTSIDE, 0, None)
    none = judge(rule_of(lambda _: None), "simulated", study)
    assert none.verdict is Verdict.OUTSIDE
    half = judge(rule_of(lambda params: 4.0 if params < 2e4 else 90.0), "simulated", study)
    assert 0 < half.sizes < len(study.best)
    assert half.sizes + half.outside == len(study.best)


@pytest.mark.slow
def test_the_interval_of_what_a_rule_loses_holds_the_truth_in_simulated_studies():
    held, count = 0, 40
    for seed in range(count):
        study = study_of(seed=seed)
        found = judge(rule_of(lambda _: 2.0), "simulated", study)
        true = np.mean(
            [
                float((TRUTH.loss(2, np.array([at.params])) - TRUTH.loss(at.depth, np.array([at.params])))[0])
                for at in study.best
            ]
        )
        held += found.interval[0] <= true <= found.interval[1]
    assert held >= 0.9 * count


def test_the_shipped_tables_judge_every_rule():
    judgements = judge_rules()
    assert len(judgements) == len(RULES) * len(TABLES)
    by_name = {(item.rule, item.table): item for item in judgements}
    gemstones = [by_name[rule.name, "gemstones"] for rule in RULES]
    assert all(item.sizes == 9 for item in gemstones)
    # Fewer than eight layers at 18 million to 1.4 billion parameters cost more than next to nothing.
    assert by_name["log3(width)", "gemstones"].verdict is Verdict.LOSES
    for item in judgements:
        if item.lost is not None:
            assert item.interval[0] <= item.lost <= item.interval[1]
            assert item.worst[1] >= item.lost


def test_at_equal_tokens_both_tables_of_the_gemstones_have_the_verdicts_that_the_page_states():
    first, second = (fit(TABLES[name].read(), tokens=1e11).study for name in ("gemstones", "gemstones-lr"))
    assert {len(first.rows), len(second.rows)} == {22, 20}
    for rule in RULES:
        verdicts = [judge(rule, "", study).verdict for study in (first, second)]
        expected = [Verdict.HOLDS, Verdict.UNDECIDED] if rule.name == "additive law" else verdicts[:1] * 2
        assert verdicts == expected


def test_the_page_has_the_numbers_of_now():
    program = runpy.run_path(str(DOCS / "rules.py"))
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert program["page"](text) == text
