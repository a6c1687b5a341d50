"""Shapes are measured once each, alone, into `costs.csv`; a run that is stopped there loses nothing."""

import dataclasses
import io
import json
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from analysis.runs.costs import read_costs, write_costs
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.speed import machine
from study.run import costs, preparation
from study.run.costs import measure_costs
from study.spec.study import load_spec
from tests.study.run.test_study import Laptop
from trainables.train.latency import BATCHES

SMALL = ("quickstart", ["frontier.depths=[1,2]", "frontier.budgets=[1730, 3100]"])
ALL = ("train", "prefill", "decode")
#: Prints values that follow from the shape, as `trainables.train.latency` does, and what was asked on stderr.
PROGRAM = """
import json, os, sys
for cell, layout, vocabulary, measures in json.load(sys.stdin):
    depth = cell["shape"]["depth"]
    latency = {"prefill_ms": 2.0 * depth, "decode_ms": 1.0 * depth, "kv_bytes_per_token": 8 * depth}
    steady = {"prefill_steady": True, "decode_steady": depth == 1}
    trains, generates = "train" in measures, {"prefill", "decode"} & set(measures)
    with open(os.environ["ASKED"], "a") as file:
        print(depth, cell["shape"]["width"], vocabulary, *measures, file=file)
    print(json.dumps({
        "train_tokens_per_second": 100.0 / depth if trains else None,
        "train_computing": 0.99 if trains else None, "generate_computing": 0.98 if generates else None,
        "latencies": [{"batch": b, **latency, **steady} for b in (1, 8)] if generates else [],
    }), flush=True)
"""


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Measure the shapes of a small plan by a program; return the result, and the lines of what was asked."""
    popen, listed = subprocess.Popen, tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(listed))
    monkeypatch.setattr(costs, "packed", lambda *_: None)

    def measured(measures=ALL, program=PROGRAM, changes=(), **options):
        listed.write_text("")
        monkeypatch.setattr(
            preparation.subprocess,
            "Popen",
            lambda command, **others: popen([sys.executable, "-c", program], **others),
        )
        plan = make_plan(load_spec(SMALL[0], [*SMALL[1], *changes]))
        console, file = Console(file=io.StringIO()), tmp_path / "study" / "costs.csv"
        try:
            return measure_costs(plan, plan.cells, measures, file, "nowhere", console, **options), plan
        finally:
            measured.asked = listed.read_text().splitlines()
            measured.rows = read_costs(file)

    measured.file = tmp_path / "study" / "costs.csv"
    return measured


def test_each_shape_is_measured_once_with_a_row_for_each_batch(measure):
    result, plan = measure()
    shapes = {planned.cell.shape: planned for planned in plan.cells}
    assert len(shapes) == 4 < len(plan.cells), "seeds are not shapes"
    each = [f"{s.depth} {s.width} {plan.vocabulary} train prefill decode" for s in shapes]
    assert measure.asked == [*each, *each], "all of them, and then all once more"
    assert (result.new, result.left_out) == (4, [])
    assert sorted(map(str, result.rows)) == sorted(map(str, measure.rows))
    here = machine(plan.planner.layouts.device)
    assert [(row.depth, row.width, row.batch) for row in result.rows] == [
        (shape.depth, shape.width, batch) for shape in shapes for batch in BATCHES
    ]
    for row, planned in zip(result.rows[::2], shapes.values(), strict=True):
        assert (row.train_tokens_per_second, row.prefill_ms, row.decode_ms, row.kv_bytes_per_token) == (
            100 / row.depth, 2 * row.depth, row.depth, 8 * row.depth,
        )  # fmt: skip
        assert (row.params, row.kv_heads) == (planned.parameters.total, 2)
        assert (row.device, row.machine, row.precision, row.context) == ("cpu", here, "fp32", 32)
        # Two measurements that agree are steady, whatever the halves of each.
        assert row.unsteady == ()
        assert "torch 2" in row.versions


def test_what_was_measured_is_not_measured_again_unless_asked(measure):
    first = measure()[0]
    second = measure()[0]
    assert (measure.asked, second.new, second.rows) == ([], 0, first.rows)
    assert measure(again=True)[0].new == len(measure.asked) / 2 == 4
    assert len(measure.rows) == 8, "rows are replaced"


def test_rows_of_other_devices_stay(measure):
    measure()
    others = [dataclasses.replace(row, machine="another", decode_ms=99.0) for row in measure.rows]
    others += [dataclasses.replace(row, device="h100-80gb") for row in measure.rows]
    write_costs(measure.file, [*measure.rows, *others])
    measure(again=True)
    assert len(measure.rows) == 24
    assert {str(row) for row in others} < {str(row) for row in measure.rows}


def test_only_what_was_asked_is_filled_and_more_can_be_added(measure):
    measure(("train",))
    assert {row.train_tokens_per_second for row in measure.rows} == {100.0, 50.0}
    assert {(row.prefill_ms, row.decode_ms, row.kv_bytes_per_token) for row in measure.rows} == {(None,) * 3}
    measure(("decode",))
    # What a row has is measured with it, so that it has one date.
    assert {line.split(" ", 3)[3] for line in measure.asked} == {"train decode"}
    assert {(row.train_tokens_per_second, row.prefill_ms, row.decode_ms) for row in measure.rows} == {
        (100.0, None, 1.0),
        (50.0, None, 2.0),
    }
    measure(("train",))
    assert measure.asked == []


def test_what_was_measured_beside_other_work_is_marked(measure):
    measure(ALL, PROGRAM.replace("0.99", "0.5"))
    assert {row.unsteady for row in measure.rows} == {("train",)}
    measure(ALL, PROGRAM.replace("0.98", "0.5"), again=True)
    assert {row.unsteady for row in measure.rows} == {("prefill", "decode")}


def test_of_two_measurements_the_faster_counts_and_those_that_differ_are_marked(measure):
    counted = PROGRAM.replace("for cell, layout", "count = 0\nfor cell, layout").replace(
        '    depth = cell["shape"]["depth"]\n', '    depth, count = cell["shape"]["depth"], count + 1\n'
    )
    # The first four are faster, but decode of two layers is measured 1.3 times as fast in the second round.
    slower = counted.replace(
        '"decode_ms": 1.0 * depth', '"decode_ms": 2 / 1.3 if depth == 2 and count > 4 else depth'
    )
    slower = slower.replace("100.0 / depth if", "100.0 / depth / (1.05 if count > 4 else 1.0) if")
    measure(program=slower)
    for row in measure.rows:
        assert row.train_tokens_per_second == 100 / row.depth
        assert row.decode_ms == pytest.approx(2 / 1.3 if row.depth == 2 else 1)
        assert row.unsteady == (("decode",) if row.depth == 2 else ())


def test_a_shape_that_cannot_be_measured_loses_none_before_it(measure):
    broken = PROGRAM + "\n    if depth == 2: raise SystemExit('out of memory')"
    with pytest.raises(SpecError, match="out of memory"):
        measure(program=broken)
    kept = [(row.depth, row.batch) for row in measure.rows]
    assert (1, 1) in kept
    assert len(kept) < 8
    assert measure()[0].new == 4 - len(kept) // 2
    assert len(measure.rows) == 8


def test_a_device_that_is_elsewhere_and_shapes_of_several_devices_are_not_measured(measure):
    with pytest.raises(SpecError, match="h100-80gb"):
        measure(changes=["resources.device=h100-80gb"])
    result, _ = measure(
        changes=["training.optimizer=adamw", "resources.tensor_parallel={min_width: {2: 16}}"]
    )
    wide = {(shape.depth, shape.width) for shape in result.left_out}
    assert wide
    assert all(width >= 16 for _, width in wide)
    assert not wide & {(row.depth, row.width) for row in measure.rows}


MEASURED = ("resources.measure=[train, decode, prefill]", "training.seeds=1", "training.steps=20")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_measures_its_shapes_and_one_stopped_there_goes_on(tmp_path):
    laptop = Laptop(tmp_path)
    file = laptop.results / "tiny" / "costs.csv"
    process = laptop.start("run", "tiny.yaml", *MEASURED)
    try:
        laptop.wait_for(file.exists, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT), output
    assert "Traceback" not in output
    before = read_costs(file)
    assert 0 < len(before) < 8
    assert len(laptop.rows()) == 4, "all cells were trained"
    assert not (laptop.results / "tiny" / "report.html").exists()
    again = laptop.run("run", "tiny.yaml", *MEASURED)
    assert again.returncode == 0, again.stdout + again.stderr
    rows = read_costs(file)
    assert len(rows) == 8
    assert {str(row) for row in before} <= {str(row) for row in rows}, "the others are not measured again"
    for row in rows:
        assert row.kv_bytes_per_token == 2 * row.depth * row.width * 4
        assert None not in (row.train_tokens_per_second, row.prefill_ms, row.decode_ms)
    assert (laptop.results / "tiny" / "report.html").exists()
    shown = laptop.run("cost", "tiny.yaml", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["measured"] == 0
