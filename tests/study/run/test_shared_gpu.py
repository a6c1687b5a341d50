"""Trials that share a GPU are placed on it together, as many as the spec says."""

import pytest

from tests.environment import run_program


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_trials_run_on_one_gpu_at_a_time(tmp_path):
    """The GPU is a number that Ray is told of; in a process of its own, for Ray keeps its token."""
    root = tmp_path / "root"
    root.mkdir()
    done = run_program("tests.study.run.shared_gpu", root, home=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPUs 0 cells 8 most 4" in done.stdout
    assert "told " + " ".join(["1.0"] * 8) in done.stdout
