"""The token of a cluster. Its holder can run programs on every machine, so it is never printed."""

import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from study.cluster.cluster_file import TOKEN, ClusterFile
from study.errors import SpecError

#: Random bytes in a token, as many as in Ray's own.
BYTES = 32


class Token(NamedTuple):
    """A token's file, and whether it was made or its mode corrected."""

    path: Path
    made: bool
    corrected: bool
    """Other users could read the file until now."""


def make_token(cluster: ClusterFile) -> Token:
    """Make the token that a cluster file mounts, or keep an existing one; SpecError if it mounts none."""
    if cluster.token is None:
        raise SpecError(
            f"{cluster.name} mounts no token; add `{TOKEN}: ~/.ray/interplay-token` to its `file_mounts`."
        )
    path = cluster.token.absolute()
    # `Path.mkdir(parents=True)` would not apply the mode to the parents.
    for folder in reversed([folder for folder in path.parents if not folder.exists()]):
        folder.mkdir(mode=0o700)
    try:
        # With its mode before it has a byte.
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        read_token(path, cluster.name)
        was_open = open_to_others(path) is not None
        if was_open:
            path.chmod(0o600)
        return Token(path, made=False, corrected=was_open)
    path.write_text(secrets.token_hex(BYTES), encoding="ascii")
    return Token(path, made=True, corrected=False)


def read_token(path: Path, cluster: str = "FILE") -> str:
    """Return the token in a file; SpecError, with the cluster file, if it is missing or not one word."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise SpecError(f"the token {path} {what}; make it with `interplay cluster token {cluster}`.")
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise SpecError(
            f"{path} holds no token ({'it is empty' if not text else 'one word is expected'}); delete it and run "
            f"`interplay cluster token {cluster}`."
        )
    return text


def open_to_others(path: Path) -> str | None:
    """The mode of a file if others than its owner can access it, such as `0644`; else None."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{mode:04o}" if mode & 0o077 else None
