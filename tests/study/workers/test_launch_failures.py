"""Pools of a cluster that give no machine, as Ray's autoscaler reports them."""

import threading

from study.spec.study import load_spec
from study.workers.launch_failures import (
    QUIET_SECONDS,
    LaunchFailure,
    LaunchFailures,
    concerns,
    message,
    report_launch_failures,
)
from study.workers.machines import AutoscalerLimits
from tests.named import assert_named
from tests.study.small import SMALL


def test_a_type_that_fails_is_spoken_of_after_the_patience_and_again_after_as_long():
    failures, spoken = LaunchFailures(100), []
    for now in range(1000, 1260, 5):
        spoken += [(now, name) for name in failures.update(now, {"spot"}, {"i-1": "on_demand"})]
    assert spoken == [(1100, "spot"), (1200, "spot")]
    assert failures.failing["spot"].since == 1000


def test_a_machine_that_starts_ends_the_shortage_of_its_type_alone():
    failures = LaunchFailures(100)
    both = {"spot", "wide"}
    failures.update(0, both, {})
    failures.update(50, set(), {"i-1": "spot"})
    assert set(failures.update(99, both, {"i-1": "spot"})) == set()
    assert set(failures.update(101, both, {"i-1": "spot"})) == {"wide"}, "an old machine is no new one"


def test_failures_that_stop_are_forgotten():
    failures = LaunchFailures(100)
    failures.update(0, {"spot"}, {})
    assert failures.update(QUIET_SECONDS + 1, set(), {}) == {}
    assert failures.failing == {}
    assert failures.update(150, {"spot"}, {}) == {}, "counted anew"


def test_the_message_names_the_pool_and_what_to_change():
    kinds = {"spot": {"node_config": {"InstanceType": "g6.xlarge"}}, "on_demand": {}, "wide": {}}
    text = message("spot", LaunchFailure(0, 800, 700), 720, AutoscalerLimits(kinds, 5), "spot")
    assert_named(text, "spot (g6.xlarge)", "12 min", "`resources.pool` is 'spot'")
    assert_named(text, "resources.pool=NAME", "on_demand, wide")


def test_a_study_hears_of_the_machines_it_waits_for_alone():
    kinds = {"spot": {"resources": {"CPU": 4, "spot": 1}}, "wide": {"resources": {"CPU": 96, "wide": 1}}}
    limits = AutoscalerLimits(kinds, 5)
    assert [name for name in kinds if concerns(name, limits, "wide")] == ["wide"]
    assert [name for name in kinds if concerns(name, limits, "any")] == ["spot", "wide"]
    assert concerns("of-a-file-we-cannot-read", limits, "wide")


def test_the_watch_says_it_while_it_lasts_and_survives_a_head_that_does_not_answer(monkeypatch, caplog):
    answers = iter([RuntimeError("busy"), ({"spot"}, {}), ({"spot"}, {}), ({"spot"}, {})])
    said = []

    def asked():
        answer = next(answers, (set(), {}))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("study.workers.launch_failures.autoscaler_status", asked)
    monkeypatch.setattr("study.workers.launch_failures.POLL_SECONDS", 0.01)
    monkeypatch.setattr("study.workers.launch_failures.time.monotonic", iter(range(1000)).__next__)
    resources = load_spec(SMALL, ["resources.capacity_timeout_seconds=1", "resources.pool=spot"]).resources
    with report_launch_failures(resources, said.append):
        for _ in range(500):
            if said:
                break
            threading.Event().wait(0.01)
    assert said
    assert "type spot" in said[0]
    assert "busy" in caplog.text
