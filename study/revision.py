"""The revision of this code, for rows, weights and MLflow."""

import importlib.metadata
import os
import subprocess
from functools import cache
from pathlib import Path

#: Environment variable with the revision of the code that `interplay submit` sends.
REVISION = "INTERPLAY_REVISION"


@cache
def revision() -> str:
    """Return the git revision of this code, with `+` if a package was edited; outside a checkout, the version.

    A wheel installed inside another project's checkout must not claim that project's revision, so this file must be
    tracked by the repository that contains it. A job on a cluster has the revision of the checkout that sent it.
    """
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "study/revision.py")
        edited = git("status", "--porcelain", "--", "study", "trainables", "analysis")
        return git("rev-parse", "HEAD") + ("+" if edited else "")
    except (OSError, subprocess.SubprocessError):
        if sent := os.environ.get(REVISION):
            return sent
        return f"interplay {importlib.metadata.version('interplay')}"
