"""A process of trials that dies while it is made: Ray Tune reports its cell as lost before it has started."""

import os
import signal
from unittest.mock import Mock

import pytest

from study.plan.plan import make_plan
from study.run.recorder import Recorder
from study.run.trial import Report, TrialSettings
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.tracking.mirror import Mirror
from study.tracking.study_paths import StudyPaths
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.stubs import Cells, stub_result
from tests.study.small import SMALL
from trainables.cell import Cell


class Fragile:
    """Kills the first process, other than the driver, that receives it."""

    def __init__(self, mark, driver):
        self.mark, self.driver = mark, driver

    def __reduce__(self):
        return receive, (self.mark, self.driver)


def receive(mark, driver):
    if os.getpid() != driver and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Fragile(mark, driver)


def trainable(fragile):
    """A trial that Ray sends together with the object that kills the process which is made for it."""

    def trial(config):
        from ray import tune

        assert fragile.mark.exists()
        loss = float(Cell.model_validate_json(config["cell"]).seed)
        tune.report({"report": Report(result=stub_result(loss=loss)).model_dump_json()})

    return trial


class Events(Recorder):
    """The recorder of a study, and the order of what it is told."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.events = []

    def started(self, planned):
        self.events.append(("started", planned.cell.seed))
        super().started(planned)

    def retried(self, planned, reason):
        self.events.append(("retried", planned.cell.seed))
        super().retried(planned, reason)


@pytest.fixture
def plan():
    return make_plan(load_spec(SMALL, ["training.seeds=3", "frontier.depths=[1]", "frontier.budgets=[1600]"]))


@pytest.fixture
def recorder(plan, tmp_path):
    paths = StudyPaths(tmp_path / "results", "study")
    paths.folder.mkdir(parents=True)
    return Events(plan, {}, Mock(spec=Mirror), paths)


def test_a_trial_that_is_lost_before_its_start_is_recorded_with_its_cause(plan, recorder):
    first, second, _ = plan.cells
    recorder.started(first)
    recorder.retried(second, "the process of the trial died")
    assert recorder.unfinished.lost_trials(second.cell.key) == ["the process of the trial died"]
    assert recorder.unfinished.running == {first.cell.key}
    recorder.started(second)
    assert recorder.unfinished.running == {first.cell.key, second.cell.key}
    recorder.ended(second, stub_result(loss=1.0))
    (row,) = recorder.ledger.rows().values()
    assert row.lost == ("the process of the trial died",)


@pytest.mark.slow
def test_a_process_that_dies_while_it_is_made_costs_a_retry_and_not_the_study(plan, recorder, tmp_path):
    settings = TrialSettings(data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1)
    slots, train = Slots(1, 1, 0), trainable(Fragile(tmp_path / "mark", os.getpid()))
    with private_ray(slots):
        assert run_cells(Cells(plan.cells), slots, settings, 1, recorder, tmp_path / "tune", trainable=train)
    assert recorder.events[0] == ("retried", 0), "Tune reports the loss, and no start before it"
    assert [event for event in recorder.events if event[0] == "started"] == [("started", n) for n in range(3)]
    rows = recorder.ledger.rows()
    assert sorted(row.loss for row in rows.values()) == [0.0, 1.0, 2.0]
    assert "ActorDiedError" in rows[plan.cells[0].cell.key].lost[0]
    assert recorder.unfinished.keys == []
