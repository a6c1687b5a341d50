"""Libraries that only an extra of the package brings, and the command that installs them."""

import importlib.util
import shlex
import sys
from pathlib import Path

from core.errors import InputError


def need(purpose: str, extra: str, *modules: str) -> None:
    """Raise an InputError with the command that installs an extra if one of its modules is missing.

    `purpose` begins the message, such as "training a study".
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise InputError(
                f"{purpose} needs {module}, of the extra `{extra}`; install it: {install_command(extra)}"
            )


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra into this environment, from the clone if there is one."""
    pip = Path(sys.prefix) / "bin" / "pip"
    clone = Path(__file__).parents[1]
    if not (clone / "constraints.txt").is_file():
        return shlex.join([str(pip), "install", f"interplay[{extra}]"])
    folder = Path.cwd()
    pip = pip.relative_to(clone) if pip.is_relative_to(clone) else pip
    command = shlex.join([str(pip), "install", "-c", "constraints.txt", "-e", f".[{extra}]"])
    return command if clone == folder else f"cd {shlex.quote(str(clone))} && {command}"
