"""The folder of this machine for local copies of checkpoints, cleared of those whose processes are gone.

It is INTERPLAY_SCRATCH or, by default, the temporary folder. Each object store folder has one subfolder here, which all
ranks of its cell on this machine share:

    interplay-UID/HASH/files    the local copies
    interplay-UID/HASH/lock     held by the one rank that fetches a checkpoint
    interplay-UID/HASH/users    locked, shared, by each process that uses the folder

The kernel drops the locks of a killed process. A process id would not do: containers of one machine that share the
folder number their processes separately, so that each would take the other's for dead.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.errors import InputError

#: Folder for local copies of checkpoints, such as one on the disks of the machine.
SCRATCH = "INTERPLAY_SCRATCH"
#: Characters of the name of a subfolder.
_NAME_LENGTH = 16
#: File systems that lie in memory.
_IN_MEMORY = ("tmpfs", "ramfs")
#: Error numbers of file systems without locks: nothing can be claimed there, so nothing is removed.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class LocalCopy:
    """A folder of this machine, claimed until `users` is closed or its process ends."""

    files: Path
    lock: Path
    users: BinaryIO


def claim(uri: str) -> LocalCopy:
    """Claim this machine's folder for the copies of a URI, after removing folders that no living process uses.

    Raises:
        InputError: the folder cannot be made, or others may write to it.
    """
    root = own_folder()
    remove_unused(root)
    folder = root / hashlib.sha256(uri.encode()).hexdigest()[:_NAME_LENGTH]
    while True:
        folder.mkdir(exist_ok=True)
        try:
            users = (folder / "users").open("ab")
        except FileNotFoundError:
            # Another process removed the folder just now.
            continue
        _lock(users, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if (folder / "users").stat().st_ino == os.fstat(users.fileno()).st_ino:
                return LocalCopy(folder / "files", folder / "lock", users)
        users.close()


def remove_unused(root: Path) -> None:
    """Remove the folders of `root` that no living process has claimed: a killed one left them."""
    # Compiled layers lie here too, in a folder of another name, by study: one may be called `users`.
    for path in root.glob(f"{'[0-9a-f]' * _NAME_LENGTH}/users"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("ab") as users:
            if not _lock(users, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return
            folder = path.parent
            for other in folder.iterdir():
                if other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
                elif other != path:
                    other.unlink()
            # Last, because whoever claims the folder anew makes it again; the folder then stays.
            path.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()


def own_folder() -> Path:
    """Return the folder for local copies, which only this user can write to: whoever writes there changes weights."""
    root = scratch_root() / f"interplay-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {root} for local copies of checkpoints cannot be made: {error.strerror}. Set {SCRATCH} to a "
            "folder that this user may write to."
        ) from error
    if not is_own(root):
        raise InputError(
            f"{root} belongs to another user, or others may write to it; delete it, or set {SCRATCH} to another "
            "folder."
        )
    return root


def is_own(folder: Path) -> bool:
    """Return whether a folder is this user's, nobody else may write to it, and it is no link."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def scratch_root() -> Path:
    """Return INTERPLAY_SCRATCH, else the temporary folder; `/var/tmp` if that is the default one and lies in memory."""
    if named := os.environ.get(SCRATCH):
        return Path(named).expanduser().absolute()
    folder = Path(tempfile.gettempdir())
    if folder != Path("/tmp") or any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")):
        return folder
    try:
        return outside_memory(folder, Path("/proc/mounts").read_text(errors="replace"))
    except FileNotFoundError:
        # Only Linux has it.
        return folder


@functools.cache
def outside_memory(folder: Path, mounts: str, instead: Path = Path("/var/tmp")) -> Path:
    """Return a folder, or `instead` with one warning if by the text of `/proc/mounts` only `folder` lies in memory."""
    if file_system(folder, mounts) not in _IN_MEMORY:
        return folder
    if file_system(instead, mounts) in _IN_MEMORY or not os.access(instead, os.W_OK):
        return folder
    log = logging.getLogger(__name__)
    log.warning(
        "Local copies of checkpoints are kept in %s, because %s lies in memory, which they would fill; set %s to "
        "choose another folder.",
        instead, folder, SCRATCH,
    )  # fmt: skip
    return instead


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system of a folder, by the text of `/proc/mounts`; empty if none is listed."""
    # Of several on one mount point the last one is seen.
    lines = [line.split(" ") for line in mounts.splitlines()]
    above = [
        (len(Path(line[1]).parts), turn, line[2])
        for turn, line in enumerate(lines)
        if folder.is_relative_to(line[1])
    ]
    return max(above)[2] if above else ""


def _lock(file: BinaryIO, how: int) -> bool:
    """Lock a file; return whether its file system has locks. A BlockingIOError with LOCK_NB if another holds it."""
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise
    return True
