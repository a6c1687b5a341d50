"""The revision of this code and the versions of the libraries that produced a result."""

import importlib.metadata
import subprocess
from pathlib import Path

PACKAGES = ("interplay", "ray", "torch", "deepspeed", "transformers", "datasets", "mlflow", "optuna")


def versions() -> dict[str, str]:
    """Return the versions of this project and of the libraries that affect a loss or a row."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def revision() -> str:
    """Return the git revision of this code, with `+` if a package was edited; outside a checkout, the version.

    A wheel installed inside another project's checkout must not claim that project's revision, so this file must be
    tracked by the repository that contains it.
    """
    root = Path(__file__).parent.parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "study/tracking/provenance.py")
        edited = git("status", "--porcelain", "--", "study", "trainables", "analysis")
        return git("rev-parse", "HEAD") + ("+" if edited else "")
    except (OSError, subprocess.SubprocessError):
        return f"interplay {importlib.metadata.version('interplay')}"
