"""The lease of a study in the storage that machines share: one driver at a time, on whatever cluster it runs.

The lock in the study's folder keeps out a second driver of the same machine or file system, if that has locks. Two
drivers with one bucket would overwrite each other's checkpoints and train every cell twice.
"""

import logging
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import printable, shortened
from study.errors import SpecError
from study.tracking.study_paths import runs
from trainables.storage.storage import Folder, unusable

_LOG = logging.getLogger(__name__)

#: Seconds between two renewals, and those after which a lease that nobody has renewed is that of a lost driver. The
#: clocks of two machines are not compared.
RENEW_SECONDS, LOST_SECONDS = 20.0, 60.0
#: Where the lease lies below the folder of a study.
FOLDER, FILE = "driver", "lease.json"
#: Environment variable with the name of the cluster; cluster/setup_node.sh sets it.
CLUSTER = "INTERPLAY_CLUSTER"


class Driver(BaseModel):
    """The driver that holds a lease."""

    model_config = ConfigDict(frozen=True)

    token: str
    host: str
    pid: int = Field(ge=0, lt=2**31)
    # A date that `time.gmtime` can show.
    began: float = Field(ge=0, lt=1e11)
    """When its process started, in Unix seconds."""
    machine: str = ""
    """What `this_machine` returned there."""
    cluster: str = ""
    renewals: int = 0

    def __str__(self) -> str:
        """Return it as in messages."""
        where = f" of the cluster {self.cluster}" if self.cluster else ""
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.began))
        # Whoever may write to the storage may have written it.
        return printable(shortened(f"process {self.pid} on {self.host}{where}", 200)) + f", started {when}"

    @property
    def is_gone(self) -> bool:
        """Whether it ran on this machine and has ended."""
        return self.machine == this_machine() and not runs(self.pid, self.began)


#: Stands for a lease in a file that is damaged or half written, which other stores than S3 show.
UNREADABLE = Driver(token="", host="an unknown machine", pid=0, began=0.0)


def this_machine() -> str:
    """Return what only processes have in common that see one another's ids, until the machine is started again.

    A host name would not do: two laptops, or two containers, may have the same one, and a driver that runs on the other
    would be taken for one that has ended here.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        # Not Linux.
        return f"{uuid.getnode():x}"


def this_driver() -> Driver:
    """Return the driver that this process is."""
    return Driver(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        began=psutil.Process().create_time(),
        machine=this_machine(),
        cluster=os.environ.get(CLUSTER, ""),
    )


@contextmanager
def leased(
    storage: Folder,
    study: str,
    waits: Callable[[Driver], None] = lambda _: None,
    lost: Callable[[Driver], None] = lambda _: None,
) -> Iterator[None]:
    """Hold the lease of a study while the block runs.

    Where the lease of a driver of another machine lies there, it is lost if it is not renewed within `LOST_SECONDS`.

    Args:
        storage: the study's folder in the shared storage.
        study: its name.
        waits: called once before that wait.
        lost: called in a thread of its own if another driver has taken the lease meanwhile, as after an outage.

    Raises:
        SpecError: another driver holds it.
        InputError, ConnectionError: the store cannot be used.
    """
    try:
        ours = _acquire(storage, study, waits)
    except OSError as error:
        raise unusable(storage.name, error) from error
    over = threading.Event()

    def renew() -> None:
        held = ours
        while not over.wait(RENEW_SECONDS):
            try:
                now = _read(storage)
                if now and now.token not in (held.token, UNREADABLE.token):
                    lost(now)
                    return
                held = held.model_copy(update={"renewals": held.renewals + 1})
                _write(storage, held)
            except Exception as error:  # noqa: BLE001 - fsspec's stores have errors of their own
                _LOG.warning(
                    "The lease in %s was not renewed, which is tried again in %.0f s: %s",
                    storage.name, RENEW_SECONDS, error,
                )  # fmt: skip

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        try:
            if (now := _read(storage)) and now.token == ours.token:
                storage.remove(FOLDER, FILE)
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.warning(
                "The lease in %s was not given back, so the next run waits for it: %s", storage.name, error
            )


def _acquire(storage: Folder, study: str, waits: Callable[[Driver], None]) -> Driver:
    other = _read(storage)
    if other and not other.is_gone:
        waits(other)
        deadline = time.monotonic() + LOST_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, RENEW_SECONDS))
            now = _read(storage)
            if now is None:
                break
            if now not in (other, UNREADABLE):
                raise _held(storage, study, now)
    ours = this_driver()
    # Two that begin at the same time write a part of the same name. The last one to write has the lease, which both see
    # a moment later.
    with suppress(FileExistsError, FileNotFoundError):
        _write(storage, ours)
    time.sleep(min(1.0, RENEW_SECONDS))
    now = _read(storage) or UNREADABLE
    if now.token != ours.token:
        raise _held(storage, study, now)
    return ours


def _held(storage: Folder, study: str, driver: Driver) -> SpecError:
    return SpecError(
        f"the study {study!r} in {storage.name} is being run by {driver}, and two drivers would train the same cells. "
        "Stop it there (`interplay stop JOB`, Ctrl-C), or run this study with another name (name=NAME)."
    )


def _read(storage: Folder) -> Driver | None:
    """Return the driver that holds the lease; None if there is none, `UNREADABLE` if its file is being written."""
    content = storage.read(FOLDER, FILE)
    if content is None:
        return None
    try:
        return Driver.model_validate_json(content)
    except ValidationError:
        return UNREADABLE


def _write(storage: Folder, driver: Driver) -> None:
    if not storage.is_remote:
        (storage.local / FOLDER).mkdir(parents=True, exist_ok=True)
    storage.write(FOLDER, FILE, driver.model_dump_json().encode())
