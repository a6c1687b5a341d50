"""What a run does before its cells: the data are packed once, with a progress line; a few steps are really timed."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from study.errors import SpecError
from study.plan import speed
from study.plan.plan import make_plan
from study.plan.speed import fitted
from study.run import preparation
from study.run.preparation import is_worth_timing, packed, progress_bar, time_steps, tried_cells
from study.spec.study import load_spec
from tests.trainables.data.store.test_open import prose
from trainables.data import data_key
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.storage.storage import Bucket

CONTEXT = 64
SMALL = ("quickstart", ["frontier.budgets=[1730, 15600]", "data.sequences=1000", "training.steps=100"])


@pytest.mark.parametrize(
    "data", [FilesData(path="a.txt"), HierarchyData(sequences=300, validation_sequences=40)]
)
def test_data_is_packed_once(tmp_path, monkeypatch, data):
    texts = tmp_path / "texts"
    texts.mkdir()
    monkeypatch.chdir(texts)
    (texts / "a.txt").write_text(prose())
    key = data_key(data, CONTEXT)
    console = Console(file=io.StringIO())
    for _ in range(2):
        windows = packed(data, CONTEXT, tmp_path, key, console)
        tokens = (tmp_path / key / "train.bin").stat().st_size // 2
        assert windows == (300 if data.kind == "hierarchy" else (tokens - 1) // CONTEXT)
        assert (tmp_path / key / "manifest.json").is_file()
        # Packed is packed: the second time nothing is opened.
        monkeypatch.setattr(preparation, "open_store", lambda *_, **__: pytest.fail("packed again"))


def test_a_plan_names_what_is_not_read_and_a_run_also_what_was_empty(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    rows = [*({"text": f"{prose()} {row}"} for row in range(3)), {"text": ""}]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "small.yaml").write_text(Path("tests/study/small.yaml").read_text())
    plan = make_plan(load_spec(str(tmp_path / "small.yaml"), [f"data={{kind: files, path: {folder}}}"]))
    (note,) = (note for note in plan.notes if "README.md" in note)
    data, out = FilesData(path=str(folder)), io.StringIO()
    packed(data, CONTEXT, tmp_path, data_key(data, CONTEXT), Console(file=out, width=40))
    assert out.getvalue().splitlines() == [note, f"1 rows of {folder} are empty and were left out"]


def test_a_storage_out_of_reach_is_an_error_of_the_study(monkeypatch):
    def gone(*_):
        raise OSError(5, "AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Bucket, "read", gone)
    data = HierarchyData(sequences=300, validation_sequences=40)
    key = data_key(data, CONTEXT)
    with pytest.raises(SpecError, match=r"memory://gone/data cannot be reached: .*NETWORK_CONNECTION"):
        packed(data, CONTEXT, "memory://gone/data", key, Console())


def test_one_line_says_how_far_it_is_and_how_long_it_takes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(preparation.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with progress_bar(Console(file=out, width=40)) as watch:
        for second, stage, share in (
            (1, "reading the text", None),
            (31, "reading the text", 0.5),
            (61, "encoding the train text", None),
            # Machines start for five minutes; they are not counted in what is left.
            (361, "encoding the train text", 0.1),
            (371, "encoding the train text", 0.15),
            (400, "encoding the train text", 0.3),
        ):
            now[0] = second
            watch(stage, share)
    assert out.getvalue().splitlines() == [
        "packing the data: reading the text, 50%",
        "packing the data: encoding the train text",
        "packing the data: encoding the train text, 10%",
        # A fifth in 39 s, 70 % to go.
        "packing the data: encoding the train text, 30%, about 2 min left",
        "packed the data in 7 min",
    ]


def test_the_extreme_shapes_are_tried_once_each():
    plan = make_plan(load_spec("quickstart"))
    shapes = [planned.cell.shape for planned in tried_cells(plan)]
    every = {planned.cell.shape for planned in plan.cells}
    assert len(shapes) == len(set(shapes)) <= 4
    assert max(shape.depth for shape in shapes) == max(shape.depth for shape in every)
    assert max(shape.width for shape in shapes) == max(shape.width for shape in every)


def test_a_study_of_seconds_is_not_worth_it_and_no_study_twice(monkeypatch):
    assert not is_worth_timing(make_plan(load_spec("quickstart", ["training.steps=1"])))
    plan = make_plan(load_spec("quickstart", ["training.steps=100000"]))
    assert is_worth_timing(plan)
    assert not is_worth_timing(plan, left=1e-6)
    planner = plan.planner
    for busy in (False, True):
        speed.keep(
            speed.Speed(
                step=1e-3, layer=1e-3, work=1.0, machine=speed.machine(planner.layouts.device), device="cpu",
                workers=plan.slots, recipe=speed.timing_fields(planner.recipe, planner.layouts.vocabulary), cells=[],
                date="", busy=busy,
            )
        )  # fmt: skip
        assert is_worth_timing(make_plan(load_spec("quickstart", ["training.steps=100000"]))) == busy


def timed(monkeypatch, program, limit=20.0, *changes):
    """Time the steps of the quickstart by another program, whose input are the cells."""
    monkeypatch.setattr(preparation, "LIMIT", limit)
    popen = subprocess.Popen
    monkeypatch.setattr(
        preparation.subprocess,
        "Popen",
        lambda command, **others: popen([sys.executable, "-c", program], **others),
    )
    return time_steps(make_plan(load_spec("quickstart", changes)), "nowhere", Console(file=io.StringIO()))


LINE = """
import json, sys, time
cells = json.load(sys.stdin)
def line(computing, **more):
    times = {"step_seconds": 0.01, "steps": 9, "flops_per_second": 1.0, "memory_bytes": 1, "device": "cpu"}
    print(json.dumps(times | {"computing": computing} | more), flush=True)
"""


@pytest.mark.parametrize(("computing", "busy"), [(0.99, False), (0.6, True)])
def test_a_speed_measured_beside_other_work_is_marked(monkeypatch, computing, busy):
    found = timed(monkeypatch, f"{LINE}\nfor cell in cells: line({computing})")
    assert len(found.cells) == 4
    assert found.speed.busy == busy
    assert make_plan(load_spec("quickstart")).planner.speed == found.speed


@pytest.mark.parametrize(
    ("measured", "kept"), [((31.0, None, 8.0, 9.0), 9.0), ((None, None, None, None), None)]
)
def test_compiling_is_measured_with_nothing_compiled_before_and_kept_as_the_median(
    monkeypatch, tmp_path, measured, kept
):
    """A cell that was not compiled has no such time."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    program = f"""{LINE}
import os
assert not os.path.exists(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for cell, seconds in zip(cells, {measured}): line(1.0, compile_seconds=seconds)
"""
    assert timed(monkeypatch, program).speed.compile_seconds == kept


def test_cells_that_are_not_timed_within_the_limit_are_left_out_and_their_processes_end(monkeypatch):
    began = time.monotonic()
    found = timed(monkeypatch, f"{LINE}\nline(1.0)\ntime.sleep(60)", limit=1.5)
    assert time.monotonic() - began < 10
    assert [planned.cell.shape.depth for planned, _ in found.cells] == [1]
    assert found.speed.cells == ["L1-d8"]


def test_a_cell_that_is_compiled_has_the_time_for_it_on_a_cpu_too(monkeypatch):
    program = f"{LINE}\ntime.sleep(1)\nfor cell in cells: line(1.0, compile_seconds=39.0)"
    with pytest.raises(SpecError, match="0 s"):
        timed(monkeypatch, program, 0.4)
    found = timed(monkeypatch, program, 0.4, "resources.compile=always")
    assert found.speed.compile_seconds == 39.0


@pytest.mark.parametrize(
    ("program", "part"), [("time.sleep(60)", "0 s"), ("raise SystemExit('lost')", "lost")]
)
def test_no_speed_is_kept_where_no_cell_was_timed(monkeypatch, program, part):
    with pytest.raises(SpecError, match=part):
        timed(monkeypatch, f"{LINE}\n{program}", limit=0.4 if part == "0 s" else 20.0)
    assert make_plan(load_spec("quickstart")).planner.speed is None


def test_cells_of_several_devices_are_not_tried():
    plan = make_plan(load_spec("text", ["resources.tensor_parallel=2", "training.tokens=1e9"]))
    assert tried_cells(plan) == []
    assert not is_worth_timing(plan)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_cells_are_timed_and_the_next_plan_follows_them(command, monkeypatch):
    # On a busy machine the last cells would be left out.
    monkeypatch.setattr(preparation, "LIMIT", 500.0)
    spec, changes = SMALL
    before = make_plan(load_spec(*SMALL))
    tried = {f"L{p.cell.shape.depth} d{p.cell.shape.width}": p.cell.shape for p in tried_cells(before)}
    status, output, errors = command("try", spec, *changes, "--json")
    assert status == 0, errors
    document = json.loads(output)
    assert [cell["cell"] for cell in document["cells"]] == list(tried)
    assert set(tried) == {"L4 d18", "L1 d12", "L4 d6", "L1 d36"}
    after = make_plan(load_spec(*SMALL))
    assert document["planned_hours"] == before.hours
    assert document["hours"] == after.hours != before.hours
    for cell in document["cells"]:
        assert cell["planned_step_seconds"] == _cost(before, tried[cell["cell"]]).step_seconds
        assert cell["step_seconds"] > 0
        assert 0 < cell["memory_bytes"] < 1e9
    # The next plan has the constants that fit the measured steps, whatever these took on this machine.
    costs = [_cost(before, shape) for shape in tried.values()]
    step, layer, work = fitted(costs, [cell["step_seconds"] for cell in document["cells"]])
    plain, device = before.planner.layouts.device, after.planner.layouts.device
    assert (device.seconds_per_step, device.seconds_per_step_layer) == pytest.approx((step, layer))
    assert device.seconds_per_value == pytest.approx(work * plain.seconds_per_value)
    assert device.utilisation == pytest.approx(plain.utilisation / work)


def _cost(plan, shape):
    return plan.planner.layouts.choose(shape).cost


@pytest.mark.parametrize(
    ("changes", "part"),
    [(["resources.tensor_parallel=2"], "several devices")],
)
def test_what_cannot_be_tried_is_refused(command, changes, part):
    status, _, errors = command("try", "text", *changes)
    assert status == 2
    assert part in errors
