"""Disk helpers: errors of a full disk, and syncing files."""

import errno
import os
from pathlib import Path

#: Error numbers of a full disk or quota.
FULL = (errno.ENOSPC, errno.EDQUOT)


def fsync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_files(folder: Path) -> None:
    """Sync every file of a folder to disk, so that a later rename cannot survive a power cut without its contents."""
    for path in folder.iterdir():
        fsync(path)
