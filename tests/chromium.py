"""Pages in a headless Chromium."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--window-size=1400,1200",
)


def dump_dom(page: Path | str, wait: int = 0) -> str:
    """The document of a file or an address after its scripts have run, and `wait` ms of its own clock have gone by.

    The test is skipped without Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                *(chromium, *FLAGS, f"--user-data-dir={profile}"),
                *([f"--virtual-time-budget={wait}"] if wait else []),
                *("--dump-dom", page.as_uri() if isinstance(page, Path) else page),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    return done.stdout
