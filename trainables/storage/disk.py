"""What the disk is asked for in more than one room."""

import errno
import os
from pathlib import Path

#: A full disk or quota: not the fault of the file that is being read or written.
FULL = (errno.ENOSPC, errno.EDQUOT)


def fsync_files(folder: Path) -> None:
    """Have the disk hold every file before the folder gets its name, so that a power cut leaves no hollow one."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
