"""Files that only their user may read."""

import os
from pathlib import Path
from typing import TextIO


def open_private(path: Path) -> TextIO:
    """Create a text file with mode 0600 from the start; FileExistsError if it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return os.fdopen(handle, "w", encoding="ascii")
