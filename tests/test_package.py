"""A wheel carries all it needs: presets are package data, and the command works outside the checkout."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow]
ROOT = Path(__file__).parent.parent
#: What `interplay plan` imports; the rest of the dependencies are 2 GB that a plan does not need.
NEEDED = ("filelock", "numpy", "nvidia-ml-py", "psutil", "pydantic", "pyyaml", "rich", "typer")


def ignored(folder, names):
    patterns = (".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")
    # Only at the top: interplay/verbs is a package.
    own = ("results",) if Path(folder) == ROOT else ()
    return shutil.ignore_patterns(*patterns, *own)(folder, names)


def test_a_wheel_installed_in_an_empty_environment_plans_the_quickstart(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=ignored)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *NEEDED], check=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    command = [str(tmp_path / "env" / "bin" / "interplay"), "plan"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(outside), "COLUMNS": "100"}
    for preset in ("quickstart", "levine2020"):
        done = subprocess.run(
            [*command, preset], cwd=outside, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert preset in done.stdout
    listed = subprocess.run(
        [command[0], "presets", "--json"],
        cwd=outside,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert listed.returncode == 0, listed.stderr
    assert any(record["result"] for record in json.loads(listed.stdout)), "the recorded results are there too"
    for file in (
        "py.typed",
        "report/templates/page.html.j2",
        "audit/known_models.yaml",
        "audit/gemstones.jsonl",
    ):
        assert list((tmp_path / "env").glob(f"lib/*/site-packages/analysis/{file}"))
    assert not list((tmp_path / "env").glob("lib/*/site-packages/tests"))
