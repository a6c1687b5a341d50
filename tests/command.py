"""The command `interplay` in this process: its imports take seconds in each new one."""

import contextlib
import io
import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from interplay import cli


class Done(NamedTuple):
    """What a command returned and wrote."""

    returncode: int
    stdout: str
    stderr: str


def interplay(folder: Path, *arguments: str, columns: int = 120) -> Done:
    """Run the command in a folder that is also the home."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    environment = {"HOME": str(folder), "COLUMNS": str(columns)}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch("sys.argv", ["interplay", *arguments]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
