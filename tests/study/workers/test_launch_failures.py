"""Pools of a cluster that give no machine, as Ray's autoscaler reports them."""

import logging
import threading

from study.spec.study import load_spec
from study.workers.launch_failures import (
    QUIET_SECONDS,
    TAIL_BYTES,
    LaunchFailure,
    LaunchFailures,
    cloud_errors,
    concerns,
    message,
    report_launch_failures,
)
from study.workers.machines import Promised
from tests.study.small import SMALL

REASON = "An error occurred (InsufficientInstanceCapacity): none left"


def test_a_type_that_fails_is_spoken_of_after_the_patience_and_again_after_as_long():
    failures, spoken = LaunchFailures(100), []
    for now in range(1000, 1260, 5):
        spoken += [(now, name) for name in failures.update(now, {"spot": REASON}, {"i-1": "on_demand"})]
    assert spoken == [(1100, "spot"), (1200, "spot")]
    assert failures.failing["spot"].since == 1000


def test_a_machine_that_starts_ends_the_shortage_of_its_type_alone():
    failures = LaunchFailures(100)
    both = {"spot": REASON, "wide": REASON}
    failures.update(0, both, {})
    failures.update(50, {}, {"i-1": "spot"})
    assert set(failures.update(99, both, {"i-1": "spot"})) == set()
    assert set(failures.update(101, both, {"i-1": "spot"})) == {"wide"}, "an old machine is no new one"


def test_failures_that_stop_are_forgotten():
    failures = LaunchFailures(100)
    failures.update(0, {"spot": REASON}, {})
    assert failures.update(QUIET_SECONDS + 1, {}, {}) == {}
    assert failures.failing == {}
    assert failures.update(150, {"spot": REASON}, {}) == {}, "counted anew"


def test_a_person_is_told_which_pool_why_and_what_to_change():
    kinds = {"spot": {"node_config": {"InstanceType": "g6.xlarge"}}, "on_demand": {}, "wide": {}}
    text = message("spot", LaunchFailure(0, 800, 700, REASON), 720, Promised(kinds, 5), "spot")
    assert "No machine of type spot (g6.xlarge) could be started for 12 min: An error" in text
    assert "InsufficientInstanceCapacity" in text
    assert "`resources.pool` is 'spot'" in text
    assert "--set resources.pool=NAME (others of this cluster: on_demand, wide)" in text


def refused(reason):
    """Ray's own provider of machines, with a cloud that refuses every launch."""
    from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter

    class Cloud:
        def get_cached_autoscaling_config(self):
            raise RuntimeError(reason)

    return NodeProviderAdapter(None, Cloud())


def test_the_reason_is_the_clouds_last_answer_in_the_autoscalers_log(tmp_path):
    """The lines are those that Ray logs, not a copy of them."""
    log = tmp_path / "monitor.log"
    assert cloud_errors(log) == {}
    logger = logging.getLogger("ray.autoscaler.v2.instance_manager.node_provider")
    handler = logging.FileHandler(log)
    logger.addHandler(handler)
    try:
        refused("long ago")._launch_nodes_by_type("spot", 1, "a")
        log.open("a").write("x" * TAIL_BYTES + "\n")
        refused("first")._launch_nodes_by_type("wide", 1, "b")
        refused(REASON)._launch_nodes_by_type("wide", 2, "c")
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert cloud_errors(log) == {"wide": REASON}


def test_a_study_hears_of_the_machines_it_waits_for_alone():
    kinds = {"spot": {"resources": {"CPU": 4, "spot": 1}}, "wide": {"resources": {"CPU": 96, "wide": 1}}}
    promise = Promised(kinds, 5)
    assert [name for name in kinds if concerns(name, promise, "wide")] == ["wide"]
    assert [name for name in kinds if concerns(name, promise, "any")] == ["spot", "wide"]
    assert concerns("of-a-file-we-cannot-read", promise, "wide")


def test_the_watch_says_it_while_it_lasts_and_survives_a_head_that_does_not_answer(monkeypatch, caplog):
    answers = iter(
        [RuntimeError("busy"), ({"spot": REASON}, {}), ({"spot": REASON}, {}), ({"spot": REASON}, {})]
    )
    said = []

    def asked():
        answer = next(answers, ({}, {}))
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
    assert "No machine of type spot" in said[0]
    assert "cannot be asked which machines are missing: busy" in caplog.text


def test_library_defect_ray_passes_a_failed_launch_on_without_its_cause():
    adapter = refused(REASON)
    adapter._launch_nodes_by_type("spot", 1, "a-request")
    (error,) = adapter.poll_errors()
    assert "spot" in str(error)
    assert REASON not in str(error), "Ray reports it: `cloud_errors` need not read its log any more"
