"""Steps of a cell as they are timed, by real training."""

import pytest
import torch

from tests.trainables.train import golden
from trainables.layout import Layout
from trainables.train.step_times import LEAST_STEPS, step_times


@pytest.mark.slow
def test_a_compiled_cell_has_the_seconds_of_compiling_in_its_first_step(tmp_path, monkeypatch):
    cell = golden.cell()
    plain = step_times(cell, Layout(), str(tmp_path))
    assert plain.compile_seconds is None
    assert plain.steps >= LEAST_STEPS
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch.compiler.reset()
    compiled = step_times(cell, Layout(compiled=True), str(tmp_path))
    # A process that compiles with gcc needs seconds, and a step milliseconds.
    assert compiled.compile_seconds > 10 * compiled.step_seconds
    assert list((tmp_path / "compiled").iterdir())


def test_a_machine_without_a_compiler_measures_no_compiling(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert step_times(golden.cell(), Layout(compiled=True), str(tmp_path / "data")).compile_seconds is None
