"""The token of a cluster: whoever has it may run programs on every machine, so it is made here and shown to nobody."""

import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from study.cluster.cluster_file import TOKEN, ClusterFile
from study.errors import SpecError
from study.private_file import open_private
from study.submit.tunnel import ADDRESS

#: Only the owner reads it.
MODE = 0o600
#: Bytes of chance in a token: as many as in those that Ray makes itself.
BYTES = 32


@dataclass(frozen=True)
class Token:
    """A token's file, and what was done to it."""

    path: Path
    made: bool
    mended: bool
    """Its file could be read by others and now cannot."""

    @property
    def exports(self) -> tuple[str, ...]:
        """What a shell needs for Ray's own commands to use it."""
        return (
            "export RAY_AUTH_MODE=token",
            f"export RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.path))}",
            # Without it `ray job` looks for a cluster on this machine, not for the end of `ray dashboard` (ray 2.60).
            f"export RAY_API_SERVER_ADDRESS={ADDRESS}",
        )


def make_token(cluster: ClusterFile) -> Token:
    """Make the token that a cluster file mounts, or keep the one that is there.

    Raises:
        SpecError: the file mounts none, or what lies there is no usable token.
    """
    path = cluster.token
    if path is None:
        raise SpecError(
            f"{cluster.name} mounts no token; add `{TOKEN}: ~/.ray/interplay-token` to its `file_mounts`."
        )
    path = path.absolute()
    _private_folder(path.parent)
    try:
        with open_private(path) as file:
            file.write(secrets.token_hex(BYTES))
    except FileExistsError:
        read_token(path)
        mended = bool(_mode(path) & ~MODE)
        if mended:
            path.chmod(MODE)
        return Token(path, made=False, mended=mended)
    return Token(path, made=True, mended=False)


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SpecError: there is no such file, or nothing that a token could be stands in it.
    """
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise SpecError(
            f"the token {path} {what}; `interplay cluster token FILE` makes the one of a cluster file."
        )
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise SpecError(
            f"{path} holds no token ({'it is empty' if not text else 'one word is expected'}); delete it and run "
            "`interplay cluster token FILE`."
        )
    return text


def open_to_others(path: Path) -> str | None:
    """The mode of a file that others than its owner may read or write, such as `0644`; None if they may not."""
    mode = _mode(path)
    return f"{mode:04o}" if mode & ~MODE & 0o077 else None


def _private_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
