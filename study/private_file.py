"""Files that only their user may read."""

import os
from pathlib import Path
from typing import TextIO


def open_private(path: Path) -> TextIO:
    """Make a file to write to, with mode 0600 before its first byte: one closed to others later could be read before.

    Raises:
        FileExistsError: it is there already.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return os.fdopen(handle, "w", encoding="ascii")
