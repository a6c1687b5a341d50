"""Two pillars and a roof: `analysis` and `trainables` import nothing of ours, `study` imports both."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"study", "trainables", "analysis", "tests"}
#: What a package may never import, at the top of a module or inside a function.
FORBIDDEN = {
    "analysis": {
        "study",
        "trainables",
        "tests",
        "torch",
        "ray",
        "optuna",
        "deepspeed",
        "transformers",
        "datasets",
    },
    "trainables": {"study", "analysis", "tests", "ray", "mlflow", "optuna"},
    "study": {"tests"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_what_its_place_allows(package):
    modules = sorted((ROOT / package).rglob("*.py"))
    assert len(modules) > 5
    wrong = {str(path): bad for path in modules if (bad := set(imported(path)) & FORBIDDEN[package])}
    assert not wrong


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("study.cli", {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed"}),
        ("study.plan.plan", {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed"}),
        ("trainables.cell", {"torch", "numpy", "transformers", "datasets"}),
        ("analysis.fit.document", {"torch", "ray", "mlflow"}),
        # Its trials need them, in processes of their own.
        ("study.run.runner", {"torch", "deepspeed", "transformers"}),
    ],
)
def test_light_modules_stay_light(module, heavy):
    """A plan or a fit answers in a second: nothing heavy is imported before it is needed."""
    program = f"import {module}, sys; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []
