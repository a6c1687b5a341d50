"""Checkpoints of a cell, saved atomically; the newest two are kept.

All ranks call `save`, `find` and `Found.load` together and get the same result. Checkpoints hold no state of random
generators: batches and dropout masks are functions of the seed and the step.

A damaged checkpoint is skipped with a note. An intact one is loaded or is an error: training from an older one, or from
the start, would throw its work away.
"""

import contextlib
import functools
import io
import json
import logging
import os
import pickle
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock
from pydantic import ConfigDict, Field

from core.errors import InputError, shortened
from trainables.checkpoint import universal
from trainables.data.kind import digest
from trainables.layout import Layout
from trainables.progress import Evaluation, FloatRecord, Point
from trainables.ranks.collective import run_on_all_ranks
from trainables.record import versions
from trainables.storage.scratch import SCRATCH
from trainables.storage.storage import FULL, MARKER, Folder, plain_name

KEEP = 2
#: Version of the format.
FORMAT = 5
#: Errors of a load that another attempt may not meet: file server, network, device, memory.
_MAY_PASS = (OSError, MemoryError, dist.DistError, torch.AcceleratorError, torch.OutOfMemoryError)


class Segment(FloatRecord):
    """A part of the training curve: its last step, rate and norm, and the sum of its losses over ranks and steps."""

    step: int
    loss: float
    seconds: float
    lr: float
    grad_norm: float
    gpu: dict[str, float] = Field(default_factory=dict)


class TrainingState(FloatRecord):
    """The state of a cell besides weights, optimizer and schedule; training changes it in place."""

    model_config = ConfigDict(frozen=False)

    cell: str
    step: int = 0
    train_seconds: float = 0.0
    window_loss: float = 0.0
    """Sum over ranks and steps of the training losses since the last segment."""
    window_seconds: float = 0.0
    """Training time since the last segment."""
    segments: list[Segment] = Field(default_factory=list)
    """Those since the last point; all of them while the cell trains steps that longer cells share."""
    points: list[Point] = Field(default_factory=list)
    evaluations: list[Evaluation] = Field(default_factory=list)
    longer_evaluations: list[Evaluation] = Field(default_factory=list)
    """Those at steps at which only longer cells have one."""
    trunk_steps: int = 0
    """Steps that were taken from a trunk."""
    notes: list[str] = Field(default_factory=list)
    start: dict[str, float] = Field(default_factory=dict)


class FileRecord(FloatRecord):
    """Size and CRC-32 of a complete file."""

    bytes: int
    crc32: int


class Marker(FloatRecord):
    """The contents of `complete.json`."""

    format: int
    versions: dict[str, str]
    """Of the libraries that wrote the files."""
    layout: Layout
    state: TrainingState
    files: dict[str, FileRecord]


@dataclass
class Found:
    """A verified checkpoint of this cell.

    `converted`: it was saved in another layout. `universal`: the engine must be built for DeepSpeed's universal form.
    """

    marker: Marker
    storage: Folder
    tag: str
    converted: bool
    universal: bool

    def load(self, engine: Any, notes: list[str]) -> None:
        """Load the checkpoint into the engine, and add a note if its layout was converted.

        Raises:
            InputError: a rank could not read it, although its files are those that were written.
            OSError, MemoryError, torch.distributed.DistError, torch.AcceleratorError: another attempt may succeed.
        """
        try:
            problem = self._read(engine)

            def check() -> None:
                if isinstance(problem, pickle.UnpicklingError):
                    raise _would_run_code(self.storage, self.tag, problem) from problem
                if problem:
                    raise _cannot_load(self.storage, self.tag, self.marker, _first_line(problem)) from problem

            # If a lost peer was the problem, this raises the error of the connection instead.
            run_on_all_ranks(check, "loading the checkpoint")
        finally:
            _release(self.storage, self.tag)
        if self.converted:
            notes.append(f"resumed at step {self.marker.state.step} from a checkpoint of another layout")

    def _read(self, engine: Any) -> Exception | None:
        """Read the files into the engine; return an error that every attempt would meet, raise any other."""
        folder = _universal_folder(self.storage, self.tag) if self.converted else self.storage.local
        try:
            with universal.mended(engine) if self.converted else contextlib.nullcontext():
                if self.converted and not self.universal:
                    universal.load_plain(engine, folder / self.tag)
                    return None
                with universal.without_code():
                    if engine.load_checkpoint(str(folder), tag=self.tag)[0] is None:
                        return LookupError("DeepSpeed does not find its files")
        except FileNotFoundError as error:
            # All recorded files are there, so another version looks for files of another name.
            return error
        except _MAY_PASS:
            raise
        except Exception as error:  # noqa: BLE001  # torch, pickle and DeepSpeed raise any class; `load` raises it
            return error
        return None


@dataclass
class _Writer:
    """Collect DeepSpeed's files, and write them later with checksums inside `run_on_all_ranks`.

    DeepSpeed's ranks meet in a barrier after their writes: a disk slower than the group's timeout would end training.
    """

    parts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)

    def save(self, state_dict: Any, path: str) -> None:
        self.parts[path] = state_dict

    def write(self, *, is_copy: bool) -> None:
        """Write the collected files, synced to disk unless they are to be copied elsewhere, and free their contents."""
        for name in list(self.parts):
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with _Summed(path.open("wb", buffering=0)) as file:
                try:
                    torch.save(self.parts.pop(name), file)
                except RuntimeError as error:
                    # Torch's zip writer replaces the disk's error by its own.
                    raise file.error or error from error
                file.flush()
                if not is_copy:
                    os.fsync(file.fileno())
                self.files[path.name] = FileRecord(bytes=file.tell(), crc32=file.crc32)

    @contextlib.contextmanager
    def instead_of_deepspeeds(self, engine: Any) -> Iterator[None]:
        """Make an engine write through this object."""
        theirs = engine.checkpoint_engine
        # `write` makes the folders.
        theirs.save, theirs.makedirs = self.save, lambda *_, **__: None
        # DeepSpeed would copy two conversion scripts at every save.
        engine._copy_recovery_script = lambda save_path: None
        try:
            yield
        finally:
            del theirs.save, theirs.makedirs, engine._copy_recovery_script


class _Summed(io.BufferedWriter):
    """A file that computes its CRC-32 and keeps the disk's error."""

    crc32 = 0
    error: OSError | None = None

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


@dataclass(frozen=True)
class _Written:
    """The outcome of one rank's share of a save."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    problem: str | None = None
    """Why there will be no checkpoint."""
    ends_training: bool = False


class Saved:
    """A checkpoint whose files are on this machine; a thread copies them to an object store while training goes on."""

    def __init__(
        self,
        storage: Folder,
        tag: str,
        marker: bytes,
        written: list[_Written],
        damaged: Collection[str] | None,
    ) -> None:
        self.storage, self.tag, self.marker, self.damaged = storage, tag, marker, damaged
        self.written, self.outcome = written, _Written()
        files = [] if any(part.problem for part in written) else list(written[dist.get_rank()].files)
        self.thread = threading.Thread(target=self._publish, args=(files,), daemon=True)
        self.thread.start()

    @property
    def is_copied(self) -> bool:
        """Whether this rank has copied its files, or failed to; `finish` then waits for other ranks only."""
        return not self.thread.is_alive()

    def finish(self) -> str | None:
        """Wait for all ranks and write the marker; return None, or why there is no checkpoint.

        Every rank must call this, before the next save. Unless all are kept, the newest `KEEP` checkpoints of the cell
        up to this step are, and damaged ones are deleted. If a rank could not write for another reason than a full disk
        or an object store, raise a RuntimeError.
        """
        try:
            parts = self.written + run_on_all_ranks(self._published, "writing the checkpoint")
            complete = functools.partial(self._complete, parts)
            ended = run_on_all_ranks(complete, "completing the checkpoint")[0]
        finally:
            self.storage.release(self.tag)
        if ended.ends_training:
            raise RuntimeError(f"the checkpoint {self.tag} could not be written: {ended.problem}")
        return ended.problem

    def _publish(self, names: list[str]) -> None:
        try:
            self.storage.publish(self.tag, names)
        except (OSError, RuntimeError) as error:
            self.outcome = _failed(error, self.storage)

    def _published(self) -> _Written:
        self.thread.join()
        return self.outcome

    def _complete(self, parts: list[_Written]) -> _Written:
        """On rank 0 write the marker and remove old checkpoints, or the files of this one if a rank failed."""
        storage, tag = self.storage, self.tag
        if dist.get_rank():
            return _Written()
        if bad := [part for part in parts if part.problem]:
            _discard(storage, tag)
            return max(bad, key=lambda part: part.ends_training)
        try:
            storage.write(tag, MARKER, self.marker)
        except OSError as error:
            _discard(storage, tag)
            return _failed(error, storage)
        try:
            if self.damaged is not None:
                _thin(storage, tag, self.damaged)
        except OSError as error:
            # The checkpoint is complete, and the next save removes them.
            log = logging.getLogger(__name__)
            log.warning("Older checkpoints in %s could not be deleted: %s", storage.name, _first_line(error))
        return _Written()


def save(
    engine: Any, storage: Folder, layout: Layout, state: TrainingState, damaged: Collection[str] | None = ()
) -> Saved:
    """Write the files of engine and state on this machine, and start to copy them to an object store.

    The checkpoint is incomplete until `finish`. `damaged` are those that `find` saw to be so; None keeps all of them,
    and all older ones, in a folder that several cells may write to.
    """
    # With the key in the name, cells cannot overwrite each other's.
    tag = f"step-{state.step:09d}-{state.cell}"
    writer = _Writer()

    def prepare() -> None:
        if dist.get_rank() == 0 or storage.is_remote:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(storage.local / tag)

    run_on_all_ranks(prepare, "preparing a checkpoint")
    client = {} if layout.zero else {"parameter_names": names(engine)}
    with writer.instead_of_deepspeeds(engine):
        engine.save_checkpoint(str(storage.local), tag=tag, client_state=client, save_latest=False)

    def write() -> _Written:
        try:
            writer.write(is_copy=storage.is_remote)
        except (OSError, RuntimeError) as error:
            return _failed(error, storage)
        return _Written(writer.files)

    try:
        written = run_on_all_ranks(write, "writing the checkpoint")
    except Exception:
        storage.release(tag)
        raise
    files = {name: record for part in written for name, record in part.files.items()}
    contents = Marker(format=FORMAT, versions=versions(), layout=layout, state=state, files=files)
    body = contents.model_dump(mode="json")
    marker = json.dumps({"checksum": digest(body), **body}).encode()
    return Saved(storage, tag, marker, written, damaged)


def find(
    storage: Folder,
    cell: str,
    layout: Layout,
    notes: list[str],
    damaged: set[str],
    accepts: Callable[[Marker], bool] = lambda marker: True,
) -> Found | None:
    """Find the newest intact checkpoint of a cell and prepare it for loading in a layout; None if there is none.

    Damaged and unfinished ones and those of other cells are skipped with a note and added to `damaged`, and those that
    are not accepted without one. `cell` may also be the key of a trunk.

    Raises:
        InputError: an intact checkpoint is of another format or cannot be converted to the layout; the disk is full.
        OSError: the storage cannot be read.
    """
    while True:
        newest = functools.partial(_newest, storage, cell, damaged, accepts)
        tag, marker, skipped = run_on_all_ranks(newest, "looking for checkpoints")[0]
        notes += [f"the checkpoint {name} was skipped: {why}" for name, why in skipped.items()]
        damaged.update(skipped)
        if marker is None:
            return None
        # At stage 0 every group holds the whole state, so their number may differ.
        kept = {"tensor_parallel", "shard_vocabulary", "zero"} | ({"data_parallel"} if layout.zero else set())
        converted = any(getattr(marker.layout, name) != getattr(layout, name) for name in kept)
        try:
            ready, convert = (functools.partial(work, storage, tag, marker) for work in (_ready, _convert))
            problem = next(filter(None, run_on_all_ranks(ready, "reading the checkpoint")), None)
            if not problem and converted:
                run_on_all_ranks(convert, "converting the checkpoint")
        except Exception:
            # Fetched files would keep filling the disk.
            _release(storage, tag)
            raise
        if not problem:
            return Found(marker, storage, tag, converted, universal=converted and layout.zero > 0)
        notes.append(f"the checkpoint {tag} was skipped: {problem}")
        damaged.add(tag)


def names(engine: Any) -> list[str]:
    """Return the names of the parameters in the order of torch's optimizer."""
    return [engine.param_names[p] for group in engine.optimizer.param_groups for p in group["params"]]


def _thin(storage: Folder, tag: str, damaged: Collection[str]) -> None:
    """Remove the damaged checkpoints of a cell, and all up to a tag but the newest `KEEP`.

    Later ones stay: this run has not loaded them.
    """
    cell = tag.rpartition("-")[2]
    tags = sorted(name for name in storage.tags() if name.endswith(f"-{cell}"))
    bad = {name for name in tags if name in damaged and name != tag}
    earlier = [name for name in tags if name <= tag and name not in bad]
    kept = [name for name in earlier if name == tag or storage.read(name, MARKER)][-KEEP:]
    for name in bad.union(earlier) - set(kept):
        _discard(storage, name)


def _failed(error: Exception, storage: Folder) -> _Written:
    if isinstance(error, OSError) and error.errno in FULL:
        return _Written(problem=f"the disk of {storage.local} is full")
    if isinstance(error, OSError) and storage.is_remote:
        return _Written(problem=f"{storage.name} refused a file ({_first_line(error)})")
    return _Written(problem=_first_line(error), ends_training=True)


def _discard(storage: Folder, tag: str) -> None:
    with contextlib.suppress(OSError):
        storage.remove(tag, MARKER)


def _newest(
    storage: Folder, cell: str, passed: set[str], accepts: Callable[[Marker], bool]
) -> tuple[str, Marker | None, dict[str, str]]:
    """On rank 0 return the newest accepted checkpoint with a valid marker, and why newer ones were skipped, by tag."""
    skipped: dict[str, str] = {}
    if storage.is_remote:
        # Remove what a killed rank left on this machine; no rank has fetched anything yet.
        shutil.rmtree(storage.local, ignore_errors=True)
    tags = storage.tags() if dist.get_rank() == 0 else []
    for tag in sorted({name for name in tags if name.startswith("step-")} - passed, reverse=True):
        marker = _read_marker(storage, tag, cell)
        if not isinstance(marker, Marker):
            skipped[tag] = marker
        elif accepts(marker):
            return tag, marker, skipped
    return "", None, skipped


def _read_marker(storage: Folder, tag: str, cell: str) -> Marker | str:
    """Return the marker of a checkpoint, or why it is skipped; an InputError if it is of another format."""
    content = storage.read(tag, MARKER)
    if content is None:
        return "it was not finished"
    try:
        body = json.loads(content)
        version = body["format"]
        if version == FORMAT:
            if body.pop("checksum", None) != digest(body):
                raise ValueError("another checksum")
            marker = Marker.model_validate(body)
            if not [plain_name(name) for name in marker.files]:
                raise ValueError("no files")
            return marker if marker.state.cell == cell else f"it belongs to cell {marker.state.cell}"
    except (ValueError, TypeError, LookupError, RecursionError):
        # A power cut can leave an empty file.
        return f"its {MARKER} is damaged"
    if not tag.endswith(f"-{cell}"):
        return "it belongs to another cell"
    raise InputError(
        f"The checkpoint {tag} in {storage.name} is of format {shortened(str(version))}, and this version of Interplay "
        f"reads format {FORMAT}. Use the version that wrote it, or delete it to train the cell without it."
    )


def _cannot_load(storage: Folder, tag: str, marker: Marker, why: str) -> InputError:
    """Return the error for an intact checkpoint that this process cannot load."""
    then, now = (
        ", ".join(f"{k} {v}" for k, v in recorded.items()) for recorded in (marker.versions, versions())
    )
    spread = marker.layout
    return InputError(
        f"The checkpoint {tag} in {storage.name} is intact, but cannot be loaded here ({why}). It was written by "
        f"{then} with tensor_parallel {spread.tensor_parallel}, data_parallel {spread.data_parallel} and ZeRO stage "
        f"{spread.zero}; installed are {now}. Install the former versions, or train in that layout; or delete it to "
        "train the cell without it."
    )


def _ready(storage: Folder, tag: str, marker: Marker) -> str | None:
    """Fetch a remote checkpoint, one rank per machine; verify its files and return what is wrong, else None."""

    def wrong(name: str) -> str | None:
        path, record = storage.local / tag / name, marker.files[name]
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != record.bytes:
            return f"{name} has {path.stat().st_size} bytes instead of {record.bytes}"
        crc32 = 0
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                crc32 = zlib.crc32(piece, crc32)
        if crc32 != record.crc32:
            return f"{name} is damaged"
        return None

    def unlisted() -> str | None:
        # DeepSpeed opens files by its own names, so that one that nobody verified would be loaded. Names with a dot
        # first are the file system's own.
        present = {path.name for path in (storage.local / tag).iterdir() if not path.name.startswith(".")}
        names = sorted(present - marker.files.keys() - {MARKER})
        return f"its {MARKER} does not list {names[0]}" if names else None

    names = sorted(marker.files)
    if not storage.is_remote:
        # Each rank verifies a share.
        share = names[dist.get_rank() :: dist.get_world_size()]
        return unlisted() or next(filter(None, map(wrong, share)), None)
    with FileLock(storage.lock):
        missing = [name for name in names if wrong(name)]
        try:
            storage.fetch(tag, missing)
        except FileNotFoundError as error:
            return f"a file of it is missing ({error})"
        except OSError as error:
            if error.errno not in FULL:
                raise
            size = sum(record.bytes for record in marker.files.values())
            raise InputError(
                f"The checkpoint {tag} in {storage.name} has {size / 1e9:.3g} GB, and the disk of {storage.local} "
                f"is too full to fetch it. Free that much there, or set {SCRATCH} to a folder with enough space."
            ) from error
        return next(filter(None, map(wrong, missing)), None) or unlisted()


def _would_run_code(storage: Folder, tag: str, error: pickle.UnpicklingError) -> InputError:
    """Return the error for a checkpoint with a class that no save writes: in shared storage others may write."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    what = shortened(refused[1]) if refused else _first_line(error)
    return InputError(
        f"The checkpoint {tag} in {storage.name} was not loaded, because a file of it would run code that no "
        f"checkpoint of this version has ({what}). Find out who wrote it; delete it to train the cell without it."
    )


def _convert(storage: Folder, tag: str, marker: Marker) -> None:
    """Convert a fetched checkpoint to the universal form; an InputError if that is impossible."""
    folder = _universal_folder(storage, tag)
    if not storage.is_remote and dist.get_rank():
        return
    try:
        with FileLock(storage.lock) if storage.is_remote else contextlib.nullcontext():
            # Of a remote checkpoint each machine converts its copy once. In a shared folder `done` can be anyone's.
            if not (storage.is_remote and (folder / "done").is_file()):
                universal.convert(storage.local / tag, folder / tag, marker.layout)
                if storage.is_remote:
                    (folder / "done").touch()
    except pickle.UnpicklingError as error:
        raise _would_run_code(storage, tag, error) from error
    except universal.UnsupportedError as error:
        why = f"DeepSpeed cannot convert it to this layout: {error}"
        raise _cannot_load(storage, tag, marker, why) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InputError(
            f"The checkpoint {storage.local / tag} was saved in another layout, and the disk is too full to convert "
            "it. Free three times its size, or use the layout it was saved in."
        ) from error


def _release(storage: Folder, tag: str) -> None:
    if storage.is_remote or dist.get_rank() == 0:
        shutil.rmtree(_universal_folder(storage, tag), ignore_errors=True)
    storage.release(tag)


def _universal_folder(storage: Folder, tag: str) -> Path:
    return storage.local / f"universal-{tag}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].partition(" (Request ID")[0]
