"""The trainer on one GPU, by the stages of its measurement; in miniature where there is none."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import stages
from tests.gpu.__main__ import measure, table
from tests.gpu.sizes import SMALL, TINY

ROOT = Path(__file__).parents[2]
SIZES = SMALL if torch.cuda.is_available() else TINY
#: What the measurement may be without: it is brought to a machine by hand.
ABSENT = (
    "ray",
    "mlflow",
    "optuna",
    "datasets",
    "pandas",
    "scipy",
    "rich",
    "typer",
    "matplotlib",
    "pyarrow",
    "pynvml",
)


def rows_of(stage, tmp_path):
    """The rows of a stage by `what`; numbers are finite and none is negative."""
    rows = list(stages.STAGES[stage][0](SIZES, tmp_path))
    json.dumps(rows, allow_nan=False)
    assert all(value >= 0 for row in rows for value in row.values() if isinstance(value, int | float))
    return {row["what"]: row for row in rows}


def test_the_ceilings_are_measured(tmp_path):
    rows = rows_of("ceilings", tmp_path)
    assert rows["product, bf16"]["FLOP/s"] > 0
    assert {"copy on the device", "copy to the device, pageable", "copy to the device, pinned"} < set(rows)


@pytest.mark.slow
def test_losses_are_those_of_a_plain_loop(tmp_path):
    for what, row in rows_of("agreement", tmp_path).items():
        assert row["apart"] < (1e-4 if what.startswith("fp32") else 5e-3)


@pytest.mark.slow
def test_a_process_trains_cell_after_cell_runs_out_of_memory_is_killed_and_goes_on(tmp_path):
    rows = rows_of("life", tmp_path)
    assert all(row["bytes left"] < 60e6 for what, row in rows.items() if what.startswith("after"))
    tried = rows["out of memory"]["sequences tried"]
    assert len(tried) > 1
    assert all(fewer == more // 2 for more, fewer in itertools.pairwise(tried))
    assert rows["killed and resumed"]["from step"] > 0
    assert rows["killed and resumed"]["apart"] < 1e-3
    assert rows["weights read by transformers"]["apart"] < 1e-3


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one(tmp_path):
    rows = rows_of("gangs", tmp_path)
    assert len(rows) == 2 * len(stages.GANGS)
    for what, row in rows.items():
        assert row["apart"] < (1e-5 if what.endswith("fp32") else 1e-3)


@pytest.mark.slow
def test_memory_is_as_estimated_and_the_largest_micro_batch_fits(tmp_path):
    rows = rows_of("memory", tmp_path)
    largest = rows.pop(f"{SIZES.cases[-1].name}, the largest that fits")
    assert largest["sequences"] >= 1
    assert largest["bytes"] < largest["of"]
    # In miniature the buffers of the libraries outweigh the tensors; `test_memory.py` checks the estimate on a CPU.
    assert not torch.cuda.is_available() or all(
        0.85 < row["estimate over it"] < 1.15 for row in rows.values()
    )


@pytest.mark.slow
def test_every_case_is_timed_against_both_rivals_and_the_first_again(tmp_path):
    rows = list(stages.throughput(SIZES, tmp_path))
    variants = [(row["what"], row["who"]) for row in rows]
    assert variants[0] == variants[-1]
    assert len(set(variants)) == len(variants) - 1 == len(stages.WHO) * len(SIZES.cases)
    peak = stages.this_device().peak["bf16"]
    for row in rows:
        case = next(case for case in SIZES.cases if case.name == row["what"])
        # 6 FLOPs per parameter of the blocks and the head and token, and the attention.
        shape, least = case.shape, 6 * case.vocabulary * case.shape.width
        least += 72 * shape.depth * shape.width**2
        assert 1 <= row["MFU"] * peak / row["tokens/s"] / least < 1.6


def test_attention_is_timed_by_the_width_of_a_head(tmp_path):
    rows = rows_of("attention", tmp_path)
    assert len(rows) == len(SIZES.heads) * len(SIZES.contexts)
    if torch.cuda.is_available():
        assert rows[f"64 wide, {SIZES.contexts[-1]} tokens"]["flash"]
        assert not rows[f"320 wide, {SIZES.contexts[-1]} tokens"]["flash"]


@pytest.mark.slow
def test_processes_share_the_device(tmp_path):
    rows = rows_of("packing", tmp_path)
    assert list(rows) == [f"{count} processes" for count in SIZES.processes]


def test_a_checkpoint_is_weighed_and_timed(tmp_path):
    (row,) = rows_of("checkpoints", tmp_path).values()
    case = SIZES.cases[-1]
    parameters = 12 * case.shape.depth * case.shape.width**2 + case.vocabulary * case.shape.width
    # Weights and both moments in fp32.
    assert row["bytes"] > 12 * parameters
    assert row["saves"] >= 2


@pytest.mark.slow
def test_operations_of_a_layer_are_no_more_than_a_plain_loop_s(tmp_path):
    rows = rows_of("kernels", tmp_path)
    assert rows["ours, per layer"]["operations"] <= rows["plain torch, per layer"]["operations"] + 5
    assert rows["ours, per layer"]["reads"] == 0


def test_constants_of_a_plan_follow_from_the_steps(tmp_path):
    own, *cells = stages.constants(SIZES, tmp_path)
    assert own["what"] == stages.this_device().name
    assert own["utilisation"] > 0
    # On a busy machine single cells are off; the fitted plan is nearer to all of them than the old one.
    off = [[abs(cell[name] - 1) for cell in cells] for name in ("new", "plan over it")]
    assert sum(off[0]) <= sum(off[1])


def test_the_script_keeps_every_stage_also_a_failed_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(stages.STAGES, "attention", (stages.attention, 0.01))
    out = tmp_path / "gpu.json"
    measure(out, "tiny", ["attention"])
    assert json.loads(out.read_text())["stages"]["attention"]["error"] == "ended at its limit of 0 s"
    monkeypatch.undo()
    monkeypatch.setattr(subprocess, "run", one_row)
    document = measure(out, "tiny", ["ceilings"])
    assert json.loads(out.read_text()) == document
    assert list(document["stages"]) == ["attention", "ceilings"]
    assert "| copy | 1.23e+12 |" in capsys.readouterr().out
    assert "ended at its limit" in table("attention", document["stages"]["attention"])


def one_row(command, stdout, **_):
    stdout.write('a warning\nrow {"what": "copy", "bytes/s": 1.234e12}\n')


@pytest.mark.slow
def test_the_script_needs_torch_and_three_wheels_only(tmp_path):
    code = f"""
import importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
def find_others(name, *places):
    return None if name.split(".")[0] in {ABSENT} else find(name, *places)
importlib.machinery.PathFinder.find_spec = staticmethod(find_others)
sys.argv[1:] = ["gpu.json", "--size", "tiny", "--stage", "life"]
import tests.gpu.__main__ as script
script.main()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "weights read by transformers" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.slow
def test_without_a_gpu_the_script_says_so(tmp_path):
    command = [sys.executable, "-m", "tests.gpu", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert not (tmp_path / "gpu.json").exists()
