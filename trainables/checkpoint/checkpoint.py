"""Checkpoints of a cell: saved whole or not at all, found again after a kill, only the newest two kept.

All ranks of a cell call `save`, `find` and `Found.load` together, and all learn the same: a rank that alone raised, or
alone took another checkpoint, would leave the others waiting in a collective.

The state of random generators is no part of a checkpoint: batches and dropout masks are functions of the seed and the
step.
"""

import contextlib
import functools
import json
import logging
import os
import pickle
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from trainables.cell import digest
from trainables.checkpoint import universal
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.progress import Evaluation, Point
from trainables.ranks.collective import run_on_all_ranks
from trainables.record import versions
from trainables.storage.disk import FULL
from trainables.storage.storage import Folder

KEEP = 2
#: Written last: a checkpoint without it, or with files other than it says, does not count.
MARKER = "complete.json"
#: Raised when what is written changes, so that a checkpoint of another format is passed over and not misread.
FORMAT = 2
#: What a failed load may raise: torch and DeepSpeed have no error of their own for it.
_UNREADABLE = (
    *(OSError, EOFError, LookupError, RuntimeError, TypeError, ValueError, AssertionError, AttributeError),
    *(pickle.UnpicklingError,),
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class TrainingState(_Record):
    """Where a cell stands, beside its weights, optimizer and schedule."""

    cell: str
    step: int
    train_seconds: float
    first_loss: float | None
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]
    notes: tuple[str, ...] = ()
    start: dict[str, float] = {}


class FileRecord(_Record):
    """What a whole file has: its size, and the CRC-32 of its contents."""

    bytes: int
    crc32: int


class Marker(_Record):
    """The contents of `complete.json`."""

    format: int
    layout: Layout
    state: TrainingState
    files: dict[str, FileRecord]
    versions: dict[str, str]


@dataclass
class Found:
    """A whole checkpoint of this cell, checked, and converted where it was saved in another layout."""

    state: TrainingState
    universal: bool
    """The engine must be built for DeepSpeed's universal checkpoint."""
    _storage: Folder
    _tag: str
    _folder: Path
    _plain: bool
    """It is in the universal form, and the engine is of stage 0."""

    def load(self, engine: Any, notes: list[str]) -> bool:
        """Bring the engine to this checkpoint; False, with a note, where it cannot be read after all."""
        problem = None
        try:
            if self._plain or self.universal:
                options = universal.options(engine)
                if self._plain:
                    universal.load_plain(engine, self._folder / self._tag)
                else:
                    engine.load_checkpoint(str(self._folder), tag=self._tag)
                universal.mend(engine, options)
            else:
                engine.load_checkpoint(str(self._folder), tag=self._tag)
        except torch.OutOfMemoryError:
            raise  # the checkpoint is good
        except _UNREADABLE as error:
            problem = f"it could not be loaded ({type(error).__name__}: {error})".partition("\n")[0]
        problem = _first(run_on_all_ranks(lambda: problem, "loading the checkpoint"))
        _release(self._storage, self._tag)
        if problem:
            notes.append(f"the checkpoint {self._tag} was passed over: {problem}")
        elif self.universal or self._plain:
            notes.append(f"resumed at step {self.state.step} from a checkpoint of another layout")
        return problem is None


@dataclass
class _Writer:
    """Writes DeepSpeed's files: to the disk before the marker can be, summed up, and without raising.

    DeepSpeed's ranks meet in a barrier after their writes, at stages 0 to 2 all others for the one that writes the
    weights: a disk slower than the group's timeout would end the training there. So `save` only notes what is to be
    written, and `write` does it where the others wait in `together`. No copy is needed: training goes on after both.
    """

    parts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    error: Exception | None = None

    def save(self, state_dict: Any, path: str) -> None:
        """Note a file; called by DeepSpeed."""
        self.parts[path] = state_dict

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, as what `write` needs is made there; called by DeepSpeed."""

    def write(self) -> None:
        """Write all files noted, and forget what was in them."""
        while self.parts:
            path = next(iter(self.parts))
            self._write(self.parts.pop(path), path)

    def _write(self, state_dict: Any, path: str) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("wb") as file:
                stream = _Summed(file)
                try:
                    torch.save(state_dict, stream)  # type: ignore[arg-type]  # it needs no more than write and flush
                except RuntimeError as error:
                    # torch's zip writer hides the disk's error behind its own.
                    raise stream.error or error from error
                file.flush()
                os.fsync(file.fileno())
            self.files[Path(path).name] = FileRecord(bytes=stream.bytes, crc32=stream.crc32)
        except (OSError, RuntimeError) as error:
            self.error = self.error or error

    @contextlib.contextmanager
    def instead_of_deepspeeds(self, engine: Any) -> Iterator[None]:
        """Let an engine write through this object."""
        theirs = engine.checkpoint_engine
        theirs.save, theirs.makedirs = self.save, self.makedirs
        # Two programs that make a model out of ZeRO's files, copied at every save.
        engine._copy_recovery_script = lambda save_path: None
        try:
            yield
        finally:
            del theirs.save, theirs.makedirs, engine._copy_recovery_script


class _Summed:
    """A stream that sums up what passes through it."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.bytes = self.crc32 = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


@dataclass(frozen=True)
class _Written:
    """What one rank has to say of its share of a save."""

    files: dict[str, FileRecord]
    problem: str | None = None
    """Costs the checkpoint."""
    error: str | None = None
    """Ends the training."""


def save(engine: Any, storage: Folder, layout: Layout, state: TrainingState) -> str | None:
    """Save engine and state; return why there is no checkpoint, else None.

    A full disk or an object store that is away costs the checkpoint, not the training: what was half written is
    removed, and the cell goes on.

    Raises:
        RuntimeError: a rank could not write for another reason.
    """
    tag, writer, is_first = tag_of(state), _Writer(), dist.get_rank() == 0

    def prepare() -> None:
        if is_first or storage.is_remote:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(storage.local / tag)

    run_on_all_ranks(prepare, "making room for a checkpoint")
    client = {} if layout.zero else {"parameter_names": names(engine)}
    with writer.instead_of_deepspeeds(engine):
        engine.save_checkpoint(str(storage.local), tag=tag, client_state=client, save_latest=False)

    def finish(written: list[_Written]) -> _Written:
        if is_first:
            bad = [part for part in written if part.problem or part.error]
            if bad:
                _discard(storage, tag)
                return next((part for part in bad if part.error), bad[0])
            files = {name: record for part in written for name, record in part.files.items()}
            marker = Marker(format=FORMAT, layout=layout, state=state, files=files, versions=versions())
            return _finish(storage, tag, marker)
        return _Written({})

    try:
        written = run_on_all_ranks(lambda: _publish(storage, tag, writer), "writing the checkpoint")
        ended = run_on_all_ranks(lambda: finish(written), "completing the checkpoint")[0]
    finally:
        storage.release(tag)
    if ended.error:
        raise RuntimeError(f"the checkpoint at step {state.step} could not be written: {ended.error}")
    return ended.problem


def find(
    storage: Folder, cell: str, layout: Layout, notes: list[str], passed: set[str] | None = None
) -> Found | None:
    """Find the newest whole checkpoint of a cell, and make it ready to load in a layout; None where there is none.

    What cannot be used (truncated, damaged, of another cell or format, in a layout that DeepSpeed cannot convert) is
    passed over with a note, and the one before is taken.

    Args:
        storage: of the cell.
        cell: its key.
        layout: that the engine will have.
        notes: takes the notes.
        passed: tags not to look at again; those looked at are added.

    Raises:
        InputError: the disk has no room to fetch or convert the checkpoint.
        OSError, RuntimeError: the storage could not be read; trying again may help.
    """
    passed = set() if passed is None else passed
    while True:
        tag, marker, news = run_on_all_ranks(
            lambda: _newest(storage, cell, passed), "looking for checkpoints"
        )[0]
        notes += [text for _, text in news]
        passed.update(name for name, _ in news)
        if tag is None or marker is None:
            return None
        passed.add(tag)
        same = _loads_as_it_is(marker.layout, layout)
        try:
            ready = functools.partial(_ready, storage, tag, marker)
            problem = _first(run_on_all_ranks(ready, "reading the checkpoint"))
            if not problem and not same:
                convert = functools.partial(_convert, storage, tag, marker.layout)
                problem = _first(run_on_all_ranks(convert, "converting the checkpoint"))
        except Exception:
            # What was fetched would fill the disk also of what comes next.
            _release(storage, tag)
            raise
        if problem:
            notes.append(f"the checkpoint {tag} was passed over: {problem}")
            continue
        if same:
            return Found(marker.state, False, storage, tag, storage.local, False)
        is_plain = layout.zero == 0
        return Found(marker.state, not is_plain, storage, tag, _universal_folder(storage, tag), is_plain)


def tag_of(state: TrainingState) -> str:
    """The name of a checkpoint; with the cell's key in it, no cell can overwrite what is another's."""
    return f"step-{state.step:09d}-{state.cell}"


def names(engine: Any) -> list[list[str]]:
    """The parameters of each group of torch's own optimizer, which keeps no names."""
    return [[engine.param_names[p] for p in group["params"]] for group in engine.optimizer.param_groups]


def _publish(storage: Folder, tag: str, writer: _Writer) -> _Written:
    """Write this rank's files, and bring them to where the others find them."""
    writer.write()
    if writer.error is not None:
        return _failed(writer.error, storage)
    try:
        storage.publish(tag, writer.files)
    except OSError as error:
        return _Written({}, problem=f"{storage.name} took no file ({_first_line(error)})")
    return _Written(writer.files)


def _finish(storage: Folder, tag: str, marker: Marker) -> _Written:
    """Write the marker and remove what is older than the newest checkpoints."""
    body = marker.model_dump(mode="json")
    try:
        storage.write(tag, MARKER, json.dumps({"checksum": digest(body), **body}).encode())
    except OSError as error:
        _discard(storage, tag)
        return _failed(error, storage)
    try:
        _thin(storage, tag, marker.state.cell)
    except OSError as error:
        # The checkpoint is whole, and the next one's clean-up does this one's.
        logging.getLogger(__name__).warning(
            "Older checkpoints in %s could not be deleted: %s", storage.name, _first_line(error)
        )
    return _Written({})


def _thin(storage: Folder, tag: str, cell: str) -> None:
    """Remove all of a cell's checkpoints but the newest up to a tag."""
    own = sorted(name for name in storage.tags() if name.endswith(f"-{cell}"))
    kept = [name for name in own if name <= tag and (name == tag or storage.read(name, MARKER))][-KEEP:]
    for name in own:
        # Also later ones: this cell came here from before them, so they were no good.
        if name not in kept:
            with contextlib.suppress(OSError):
                storage.remove(name, MARKER)


def _failed(error: Exception, storage: Folder) -> _Written:
    if isinstance(error, OSError) and error.errno in FULL:
        return _Written({}, problem=f"the disk of {storage.local} is full")
    if isinstance(error, OSError) and storage.is_remote:
        return _Written({}, problem=f"{storage.name} took no file ({_first_line(error)})")
    return _Written({}, error=_first_line(error))


def _discard(storage: Folder, tag: str) -> None:
    """Remove what is half written; without a marker it would not count, but take room."""
    with contextlib.suppress(OSError):
        storage.remove(tag, MARKER)


def _newest(
    storage: Folder, cell: str, passed: set[str]
) -> tuple[str | None, Marker | None, list[tuple[str, str]]]:
    """Rank 0: the newest checkpoint that seems usable by its marker, and notes on those before it."""
    news: list[tuple[str, str]] = []
    if storage.is_remote:
        # What a killed rank left on this machine; no rank has fetched anything yet.
        shutil.rmtree(storage.local, ignore_errors=True)
    if dist.get_rank():
        return None, None, news
    for tag in sorted((name for name in storage.tags() if name.startswith("step-")), reverse=True):
        if tag in passed:
            continue
        marker = _read_marker(storage, tag)
        if isinstance(marker, Marker) and marker.state.cell != cell:
            marker = f"it belongs to cell {marker.state.cell}"
        if isinstance(marker, Marker):
            return tag, marker, news
        news.append((tag, f"the checkpoint {tag} was passed over: {marker}"))
    return None, None, news


def _read_marker(storage: Folder, tag: str) -> Marker | str:
    """The marker of a checkpoint, or what is wrong with it."""
    content = storage.read(tag, MARKER)
    if content is None:
        return "it was not finished"
    try:
        body = json.loads(content)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            return f"it is not of format {FORMAT}"
        if body.pop("checksum", None) != digest(body):
            return f"its {MARKER} is damaged"
        return Marker.model_validate(body)
    except (ValueError, ValidationError):
        # A power cut can leave a file of the right name and no contents.
        return f"its {MARKER} is damaged"


def _ready(storage: Folder, tag: str, marker: Marker) -> str | None:
    """Fetch a checkpoint to this machine if need be, and check its files; what is wrong with them, else None.

    One rank of a machine does what all its ranks need, while they wait for the lock.
    """
    names = sorted(marker.files)
    if storage.is_remote:
        with FileLock(storage.lock):
            missing = [name for name in names if _wrong(storage.local / tag / name, marker.files[name])]
            try:
                storage.fetch(tag, missing)
            except FileNotFoundError as error:
                return f"a file of it is missing ({error})"
            except OSError as error:
                if error.errno not in FULL:
                    raise
                size = sum(record.bytes for record in marker.files.values())
                raise InputError(
                    f"The checkpoint {tag} in {storage.name} has {size / 1e9:.3g} GB, and the disk has no room to "
                    f"fetch it to {storage.local}. Free as much there, or set TMPDIR to a folder that has it."
                ) from error
            wrong = [_wrong(storage.local / tag / name, marker.files[name]) for name in missing]
    else:
        # Each rank a share of the reading.
        mine = names[dist.get_rank() :: dist.get_world_size()]
        wrong = [_wrong(storage.local / tag / name, marker.files[name]) for name in mine]
    return next((text for text in wrong if text), None)


def _wrong(path: Path, record: FileRecord) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != record.bytes:
        return f"{path.name} has {path.stat().st_size} bytes instead of {record.bytes}"
    crc32 = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            crc32 = zlib.crc32(piece, crc32)
    return None if crc32 == record.crc32 else f"{path.name} is damaged"


def _convert(storage: Folder, tag: str, saved: Layout) -> str | None:
    """Make the universal form of a fetched checkpoint; why there is none, else None."""
    folder = _universal_folder(storage, tag)
    try:
        if storage.is_remote:
            with FileLock(storage.lock):
                if not (folder / "done").is_file():
                    universal.convert(storage.local / tag, folder / tag, saved)
                    (folder / "done").touch()
        elif dist.get_rank() == 0:
            universal.convert(storage.local / tag, folder / tag, saved)
    except universal.UnsupportedError as error:
        return f"DeepSpeed cannot bring it into this layout ({error})"
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InputError(
            f"The checkpoint {storage.local / tag} was saved in another layout, and the disk has no room to convert "
            "it. Free three times its size, or use the layout it was saved in."
        ) from error
    return None


def _release(storage: Folder, tag: str) -> None:
    """Free the disk of what only the loading of a checkpoint needed."""
    if storage.is_remote or dist.get_rank() == 0:
        shutil.rmtree(_universal_folder(storage, tag), ignore_errors=True)
    storage.release(tag)


def _universal_folder(storage: Folder, tag: str) -> Path:
    """Where the universal form of a checkpoint lies."""
    return storage.local / f"universal-{tag}"


def _loads_as_it_is(saved: Layout, wanted: Layout) -> bool:
    """Whether DeepSpeed loads what one layout saved into an engine of another without converting it."""
    if (saved.tensor_parallel, saved.shard_vocabulary, saved.zero) != (
        wanted.tensor_parallel,
        wanted.shard_vocabulary,
        wanted.zero,
    ):
        return False
    # At stage 0 every group holds everything.
    return wanted.zero == 0 or saved.data_parallel == wanted.data_parallel


def _first(said: list[str | None]) -> str | None:
    """What the first rank that has anything to say says."""
    return next((text for text in said if text), None)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].partition(" (Request ID")[0]
