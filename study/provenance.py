"""What produced a result: the revision of this code and the versions of the libraries below it."""

import importlib.metadata
import subprocess
from pathlib import Path

PACKAGES = ("interplay", "ray", "torch", "deepspeed", "transformers", "datasets", "mlflow", "optuna")


def versions() -> dict[str, str]:
    """Versions of this project and of the libraries that decide a loss or a row."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def revision() -> str:
    """The git revision of the code that runs, `+` where it was edited; its version where it is no checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(folder)) else "")
    except (OSError, subprocess.SubprocessError):
        return f"interplay {importlib.metadata.version('interplay')}"
