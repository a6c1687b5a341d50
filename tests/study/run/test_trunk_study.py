"""Four numbers of tokens from one trunk: a study by the real command, killed once, against the same cells alone."""

import csv
import json
import signal
import subprocess
import sys

import pytest

from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.tracking.ledger import Ledger
from tests.study.run.test_study import Laptop

SPEC = """
name: tiny
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 4000, validation_sequences: 64}
frontier: {depths: [1, 2], heads: 2, budgets: [1600], tolerance: 0.15}
training: {tokens: [25600, 51200, 102400, 204800], batch: 8, context: 32, lr: {rule: width, base: 0.4, cap: 0.04},
  schedule: wsd, warmup_steps: 20, seeds: 1}
resources: {device: cpu, slots: 2, checkpoint_every_seconds: 0.1}
"""


@pytest.fixture
def laptop(tmp_path):
    one = Laptop(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    yield one
    for process in one.started:
        process.kill()


@pytest.mark.slow
def test_four_numbers_of_tokens_cost_little_more_than_the_largest_and_change_no_result(laptop):
    process = laptop.start("run", "tiny.yaml")
    laptop.wait_for(laptop.checkpoints, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = laptop.run("run", "tiny.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    rows = Ledger(laptop.results / "tiny" / "rows").rows().values()
    taken = {row.recipe["steps"]: row.trunk_steps for row in rows}
    assert taken == {100: 0, 200: 80, 400: 160, 800: 320}
    assert len(rows) == 8
    longest = sum(row.flops for row in rows if row.recipe["steps"] == 800)
    trained = sum(row.flops * (1 - row.trunk_steps / row.recipe["steps"]) for row in rows)
    assert trained / longest == pytest.approx(1.175)
    plan = make_plan(load_spec(str(laptop.folder / "tiny.yaml")))
    assert plan.flops == pytest.approx(trained)
    with (laptop.results / "tiny" / "runs.csv").open() as file:
        table = list(csv.DictReader(file))
    counted = sum(
        float(row["flops"]) * (1 - float(row["trunk_tokens"]) / float(row["tokens"])) for row in table
    )
    assert counted == pytest.approx(trained)
    assert not list((laptop.results / "tiny" / "checkpoints").glob("*")), "all trunks have ended"
    ledger = Ledger(laptop.results / "tiny" / "rows")
    for planned in plan.cells[2:4]:
        row = ledger.get(planned.cell.key)
        (laptop.folder / "cell.json").write_text(planned.cell.model_dump_json())
        alone = subprocess.run(
            [sys.executable, "-m", "trainables", "cell.json", "--data", str(laptop.results / "data")],
            cwd=laptop.folder, env=laptop.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        result = json.loads(alone.stdout)
        assert row.loss == result["loss"]
        assert [(e.step, e.loss) for e in row.evaluations] == [
            (e["step"], e["loss"]) for e in result["evaluations"]
        ]
        curves = (
            [(p.step, p.train_loss) for p in row.points],
            [(p["step"], p["train_loss"]) for p in result["points"]],
        )
        assert curves[0] == curves[1]
