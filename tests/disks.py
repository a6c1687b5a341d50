"""A disk that is soon full."""

import contextlib
import shutil
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    """A file system of so many kilobytes at a folder, or a skip where this user may mount none."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or subprocess.run(["mount", *options], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
