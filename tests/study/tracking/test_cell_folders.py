"""TensorBoard and W&B: what their folders hold, read back; each cell is there once, and what is missing is written."""

import json
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.resources import WandbSection
from study.spec.study import load_spec
from study.tracking.cell_folders import MARK
from study.tracking.ledger import CurveUpdate, Ledger
from study.tracking.mirror import Mirror
from study.tracking.study_paths import study_paths
from study.tracking.targets import make_mirror, mirror_study
from study.tracking.tensorboard import TensorBoardStudy
from study.tracking.wandb_runs import BLOCK, WandbStudy, records
from tests.study.small import SMALL
from tests.study.tracking.examples import PARAMETERS, point, row


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing may be written into the home, which W&B's own variables leave to ours to set."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "API_KEY", "MODE", "BASE_URL"):
        # Set and deleted, so that what the code sets is taken back.
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")
    return folder


@pytest.fixture
def wandb_process():
    """Ends W&B's process after the test, so that the next begins one with its own folders."""
    yield
    import wandb

    wandb.teardown()


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "rows")


def tensorboard(tmp_path):
    return TensorBoardStudy(tmp_path / "study" / "tensorboard")


def offline(tmp_path, **section):
    return WandbStudy(tmp_path / "study" / "wandb", "study", "a/b?", WandbSection(**section))


def events(folder):
    """All events of the one event file of a folder."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.rglob("events.out.tfevents.*")
    content, found = file.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    return found


def scalars(folder):
    """Steps and values by the name of their curve."""
    found = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, pytest.approx(value.simple_value)))
    return found


def hyperparameters(folder):
    """The parameters, and the names of the metrics, of a folder's table of hyperparameters."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    values, metrics = {}, []
    for event in events(folder):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                for name, one in data.session_start_info.hparams.items():
                    values[name] = getattr(one, one.WhichOneof("kind"))
                metrics += [one.name.tag for one in data.experiment.metric_infos]
    return values, metrics


def wandb_run(folder):
    """What an offline run holds: the run, the lines of its history, its summary, and how it ended."""
    (file,) = folder.glob("run-*.wandb")
    found = list(records(file))

    def items(updates):
        return {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in updates}

    (run,) = (one.run for one in found if one.HasField("run"))
    summary = {}
    for one in found:
        if one.HasField("summary"):
            summary |= items(one.summary.update)
    return SimpleNamespace(
        run=run,
        config=items(run.config.update),
        history=[items(one.history.item) for one in found if one.HasField("history")],
        summary=summary,
        exits=[one.exit.exit_code for one in found if one.HasField("exit")],
    )


def runs(tmp_path):
    """The offline runs by the key of their cell; each cell has one."""
    folders = [one for one in (tmp_path / "study" / "wandb").glob("offline-run-*") if not one.is_symlink()]
    found = {one.name.rsplit("-", 1)[1]: one for one in folders}
    assert len(found) == len(folders)
    return found


def mirrored(target, ledger, *rows, live=()):
    """One run of a study that finishes these cells."""
    mirror = Mirror([target], ledger, ledger.rows().values())
    mirror.open()
    mirror.start()
    for update in live:
        mirror.put(update)
    for one in rows:
        ledger.put(one)
        mirror.ended(one)
    mirror.close()
    mirror.finish("FINISHED")
    return mirror


def live(cell="aaaa", *steps):
    return CurveUpdate(cell, f"L1-d8-{cell}", {"depth": 1}, [point(step) for step in steps])


def test_an_event_file_has_curves_final_values_and_parameters_of_its_cell(tmp_path):
    target = tensorboard(tmp_path)
    assert target.connect() == {}
    target.log_curve(live("aaaa", 10))
    folder = tmp_path / "study" / "tensorboard" / "aaaa"
    assert scalars(folder)["train_loss"] == [(10, 1.0)], "a live curve can be seen before its cell ends"
    target.log_row(row(measures={"accuracy": 0.75}, bits_per_byte=0.2))
    found = scalars(folder)
    assert found["bits_per_byte"] == [(20, 0.2)]
    assert found["train_loss"] == [(10, 1.0), (20, 1.0)], "no step is there twice"
    assert found["loss"] == [(10, 0.9), (20, 0.5)]
    assert found["train_seconds"] == [(20, 2.0)]
    values, metrics = hyperparameters(folder)
    assert values == {"depth": 1.0, "status": "done"}, "the parameters with which the cell began"
    assert metrics[0] == "loss"
    assert set(metrics) <= found.keys()
    times = {event.step: event.wall_time for event in events(folder) if event.step}
    assert times[20] == pytest.approx(12.345, abs=0.002)
    assert tensorboard(tmp_path).connect() == {"aaaa": 12.345}


def test_a_cell_that_diverged_has_no_loss_in_its_table_and_its_reason(tmp_path):
    target = tensorboard(tmp_path)
    target.log_row(row(status="diverged", reason="the loss is nan"))
    values, metrics = hyperparameters(tmp_path / "study" / "tensorboard" / "aaaa")
    assert values == {**PARAMETERS, "status": "diverged", "reason": "the loss is nan"}
    assert "loss" not in metrics


def test_an_offline_run_of_wandb_has_curves_summary_and_parameters_of_its_cell(tmp_path, home, wandb_process):
    target = offline(tmp_path, entity="us")
    target.open()
    target.log_curve(live("aaaa", 10))
    target.log_row(row(measures={"accuracy": 0.75}, bits_per_byte=0.2))
    target.log_row(row("bbbb", status="failed", reason="out of memory", steps=()))
    found = runs(tmp_path)
    one, other = wandb_run(found["aaaa"]), wandb_run(found["bbbb"])
    assert (one.run.run_id, one.run.project, one.run.entity, one.run.run_group, one.run.display_name) == (
        "aaaa", "a-b-", "us", "study", "L1-d8-aaaa"
    )  # fmt: skip
    assert other.config.items() >= PARAMETERS.items()
    curve = [(line["step"], line["train_loss"]) for line in one.history if "train_loss" in line]
    assert curve == [(10, 1.0), (20, 1.0)], "no step is there twice"
    assert [(line["step"], line["loss"]) for line in one.history if "loss" in line] == [(10, 0.9), (20, 0.5)]
    assert one.summary["bits_per_byte"] == 0.2
    assert (one.summary["loss"], one.summary["train_seconds"], one.exits) == (0.5, 2.0, [0])
    assert (other.summary["interplay.reason"], other.exits) == ("out of memory", [1])
    assert offline(tmp_path).connect() == {"aaaa": 12.345, "bbbb": 12.345}
    assert list(home.rglob("*")) == []


def test_a_run_longer_than_a_block_is_read_whole_and_one_that_is_cut_has_no_end(tmp_path, wandb_process):
    target, steps = offline(tmp_path), tuple(range(1, 801))
    target.open()
    target.log_row(row(steps=steps))
    folder = runs(tmp_path)["aaaa"]
    (file,) = folder.glob("run-*.wandb")
    assert file.stat().st_size > 2 * BLOCK
    run = wandb_run(folder)
    assert [line["step"] for line in run.history if "train_loss" in line] == list(steps)
    assert run.exits == [0]
    whole, content = list(records(file)), file.read_bytes()
    for size in (7, BLOCK - 3, BLOCK + 3, len(content) - 1):
        file.write_bytes(content[:size])
        found = list(records(file))
        assert found == whole[: len(found)]
        assert not any(one.HasField("exit") for one in found)


def test_a_run_whose_end_is_not_written_has_no_mark_and_is_reported(
    tmp_path, ledger, monkeypatch, wandb_process
):
    monkeypatch.setattr("study.tracking.wandb_runs.records", lambda file: iter(()))
    monkeypatch.setattr("study.tracking.wandb_runs.END_SECONDS", 0.1)
    mirror = mirrored(offline(tmp_path), ledger, row())
    assert len(mirror.problems) == 1
    assert "no end" in mirror.problems[0]
    assert offline(tmp_path).connect() == {}


@pytest.mark.parametrize("make", [tensorboard, offline])
def test_a_cell_trained_again_is_there_once_and_what_is_deleted_is_written_again(
    tmp_path, ledger, make, wandb_process
):
    def folders():
        root = tmp_path / "study" / ("tensorboard" if make is tensorboard else "wandb")
        return {
            mark.parent.name[-4:]: mark.parent
            for mark in root.glob(f"*/{MARK}")
            if not mark.parent.is_symlink()
        }

    assert mirrored(make(tmp_path), ledger, row("aaaa", "failed", reason="x"), row("bbbb")).problems == []
    before = {cell: (one, (one / MARK).stat().st_mtime_ns) for cell, one in folders().items()}
    assert before.keys() == {"aaaa", "bbbb"}
    assert mirrored(make(tmp_path), ledger, row("aaaa", ended=13.0)).problems == []
    after = {cell: (one, (one / MARK).stat().st_mtime_ns) for cell, one in folders().items()}
    assert after.keys() == {"aaaa", "bbbb"}
    assert after["bbbb"] == before["bbbb"], "what is complete is not written again"
    assert make(tmp_path).connect() == {"aaaa": 13.0, "bbbb": 12.345}
    if make is offline:
        assert wandb_run(runs(tmp_path)["aaaa"]).summary["loss"] == 0.5
    else:
        assert scalars(after["aaaa"][0])["loss"] == [(10, 0.9), (20, 0.5)]
    (after["bbbb"][0] / MARK).unlink()  # as a kill in the middle of the cell leaves it
    assert mirrored(make(tmp_path), ledger).problems == []
    assert folders().keys() == {"aaaa", "bbbb"}


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"cell": "aaaa"}'])
def test_a_cell_whose_mark_is_damaged_is_written_again(tmp_path, ledger, damaged):
    target = tensorboard(tmp_path)
    assert mirrored(target, ledger, row("aaaa")).problems == []
    (target.folder / "aaaa" / MARK).write_text(damaged)  # as a power cut may leave it
    assert target.connect() == {}
    assert mirrored(tensorboard(tmp_path), ledger).problems == []
    assert target.connect().keys() == {"aaaa"}


def test_a_full_disk_is_reported_and_the_next_run_writes_the_cell(tmp_path, ledger):
    from tensorboardX import RecordWriter

    def full(self):
        raise OSError("no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordWriter, "flush", full)
        mirror = mirrored(tensorboard(tmp_path), ledger, row())
    assert len(mirror.problems) == 1
    assert "no space left" in mirror.problems[0]
    assert "tensorboard" in mirror.problems[0]
    assert mirrored(tensorboard(tmp_path), ledger).problems == []
    assert scalars(tmp_path / "study" / "tensorboard" / "aaaa")["loss"] == [(10, 0.9), (20, 0.5)]


class Blocked:
    """A target whose every call waits for an event that never comes before the test ends."""

    address, refused, hint = "blocked", None, None

    def __init__(self):
        self.asked, self.over = threading.Event(), threading.Event()

    def problem(self):
        return None

    def open(self):
        pass

    def connect(self):
        self.asked.set()
        self.over.wait(60)
        return {}

    log_curve = log_row = finish = lambda self, *arguments: self.connect()


class Broken(Blocked):
    address = "broken"

    def connect(self):
        raise ConnectionError("it went away.")


def test_targets_that_hang_or_fail_hold_up_no_other(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr("study.tracking.mirror.BATCH_SECONDS", 0.01)
    blocked, broken, good = Blocked(), Broken(), tensorboard(tmp_path)
    mirror = Mirror([blocked, broken, good], ledger, [])
    assert mirror.open() == []
    mirror.start()
    assert blocked.asked.wait(50)
    ledger.put(row())
    mirror.ended(row())
    deadline = time.monotonic() + 50
    while good.connect() != {"aaaa": 12.345}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    mirror.put(live("bbbb", 10))
    mirror.close(patience=0.5)
    mirror.finish("FINISHED")
    assert mirror.problems == ["blocked took more than 0 s", "broken: it went away"]
    assert scalars(tmp_path / "study" / "tensorboard" / "aaaa")["loss"] == [(10, 0.9), (20, 0.5)]
    assert set(ledger.rows()) == {"aaaa"}
    blocked.over.set()


def test_a_target_that_hangs_at_the_end_of_the_study_holds_it_up_no_longer_than_the_patience(ledger):
    blocked = Blocked()
    mirror = Mirror([blocked], ledger, [])
    mirror.finish("FINISHED", patience=0.05)
    assert blocked.asked.is_set()
    assert len(mirror.problems) == 1
    blocked.over.set()


def test_wandb_that_is_not_installed_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    for found in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=found: found)
        with pytest.raises(SpecError, match="pip install 'wandb>="):
            offline(tmp_path).open()
    assert not (tmp_path / "study").exists()


def test_wandb_online_without_a_key_is_refused_and_asks_nothing(tmp_path, wandb_process):
    with pytest.raises(SpecError, match="WANDB_API_KEY"):
        offline(tmp_path, mode="online").open()


def test_a_study_has_the_targets_of_its_spec_and_mirror_writes_all_that_is_missing(tmp_path, template):
    changes = ["tracking.also=[tensorboard]", "training.seeds=1", "frontier.depths=[1]"]
    spec = load_spec(SMALL, changes)
    results = tmp_path / "results"
    paths = study_paths(spec, results)
    planned = make_plan(spec).cells[0]
    paths.ledger.put(row(planned.cell.key, study=spec.name))
    results.joinpath("mlflow.db").write_bytes(template.read_bytes())
    said = mirror_study(spec, results)
    assert str(paths.folder / "tensorboard") in said
    assert paths.folder.joinpath("tensorboard", planned.cell.key, MARK).is_file()
    everything = load_spec(
        SMALL, [*changes[1:], "tracking.also=[wandb, tensorboard]", "tracking.wandb.project=p"]
    )
    targets = make_mirror(everything, "p", paths, [], {}).targets
    assert [type(one).__name__ for one in targets] == ["MlflowStudy", "TensorBoardStudy", "WandbStudy"]
    assert targets[2].project == "p"
    assert [one.hint[1].split()[0] for one in targets if one.hint] == ["tensorboard", "wandb"]
