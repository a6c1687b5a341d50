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


def ignored(folder, names):
    patterns = (".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")
    # Only at the top: interplay/verbs is a package.
    own = ("results",) if Path(folder) == ROOT else ()
    return shutil.ignore_patterns(*patterns, *own)(folder, names)


@pytest.fixture(scope="module")
def interplay(tmp_path_factory):
    """Run the command of a wheel in an environment of its own, outside the checkout; return the finished process."""
    folder = tmp_path_factory.mktemp("wheel")
    source, outside = folder / "source", folder / "outside"
    outside.mkdir()
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    options = ["-qq", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([programs / "pip", "install", *options, wheel], check=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(outside), "COLUMNS": "100"}

    def run(*arguments, program="interplay"):
        return subprocess.run(
            [programs / program, *arguments],
            cwd=outside, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    run.outside, run.packages = outside, next((folder / "env").glob("lib/*/site-packages"))
    return run


def test_a_wheel_brings_what_a_fit_needs_and_not_what_training_needs(interplay):
    """The numbers are those of this environment, which has everything."""
    names = {path.name for path in interplay.packages.iterdir()}
    assert not names & {
        "torch",
        "ray",
        "deepspeed",
        "transformers",
        "mlflow",
        "optuna",
        "pyarrow",
        "tests",
        "benchmarks",
    }
    table = interplay.outside / "runs.csv"
    losses_of_lines(table)
    fit = interplay("fit", "runs.csv", "--json")
    assert fit.returncode == 0, fit.stderr
    here = subprocess.run(
        [sys.executable, "-m", "interplay", "fit", str(table), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(fit.stdout)["crossings"] == json.loads(here.stdout)["crossings"]
    assert interplay("report", "runs.csv", "--out", "page").returncode == 0
    assert (interplay.outside / "page" / "report.html").is_file()
    at = json.loads(interplay("recommend", "100k", "--fit", "page", "--json").stdout)
    assert at[0]["params"] == 100_000
    assert interplay("audit", "--depth", "32", "--width", "4096", "--json").returncode == 0


def losses_of_lines(path):
    """Write a run table of two depths whose losses cross."""
    lines = ["depth,width,heads,seed,lr,tokens,loss"]
    for depth, offset in ((1, 0.0), (2, 0.02)):
        for width in (32, 48, 64, 96, 128):
            n = 12 * depth * width**2
            for seed in range(3):
                loss = 2 + 30 * n ** -(0.3 + offset) + offset * 10 * n**-0.3 + 1e-4 * seed
                lines.append(f"{depth},{width},4,{seed},0.001,1000000,{loss}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("run", "quickstart"), "ray"),
        (("try", "quickstart"), "torch"),
        (("ui",), "mlflow"),
        (("fit", "mlflow:study"), "mlflow"),
        (("fit", "runs.parquet"), "pyarrow"),
    ],
)
def test_what_the_light_package_lacks_is_named_with_the_command(interplay, arguments, missing):
    (interplay.outside / "runs.parquet").write_bytes(b"PAR1")
    done = interplay(*arguments)
    assert done.returncode == 2, done.stderr
    assert f"needs {missing}, of the extra `train`" in done.stderr
    assert "pip install 'interplay[train]'" in done.stderr


def test_a_wheel_plans_and_lists_the_presets(interplay):
    for preset in ("quickstart", "levine2020"):
        done = interplay("plan", preset)
        assert done.returncode == 0, done.stderr
        assert preset in done.stdout
    listed = interplay("presets", "--json")
    assert listed.returncode == 0, listed.stderr
    assert any(record["result"] for record in json.loads(listed.stdout)), "the recorded results are there too"


def test_a_wheel_has_the_data_of_its_packages(interplay):
    for file in (
        "py.typed",
        "report/templates/page.html.j2",
        "audit/known_models.yaml",
        "audit/tables/gemstones.jsonl",
        "audit/tables/LICENSE-gemstones.txt",
    ):
        assert (interplay.packages / "analysis" / file).is_file()
