"""What produced a result: the revision of this code and the versions of the libraries below it."""

import importlib.metadata
import subprocess
from pathlib import Path

PACKAGES = ("interplay", "ray", "torch", "deepspeed", "transformers", "datasets", "mlflow", "optuna")


def versions() -> dict[str, str]:
    """Versions of this project and of the libraries that decide a loss or a row."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def revision() -> str:
    """The git revision of the code that runs, `+` where a package was edited; the version where it is no checkout.

    A wheel installed somewhere inside another project's checkout must not claim that project's revision, so the files
    have to be tracked by the repository they lie in.
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
