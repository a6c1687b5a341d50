"""The files and folders of a study, the lock that keeps a second driver out, and which spec a folder belongs to.

No other study may replace the report, fit and run table in a folder.
"""

import csv
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
from filelock import FileLock, Timeout

from analysis.fit.recommendation import NamedFit, read_fit
from analysis.runs.costs import COSTS
from core.command_line import option
from core.errors import InputError
from study.errors import SpecError
from study.plan import Plan
from study.plan.rows import Row
from study.spec.resources import ResourcesSection
from study.spec.section import from_environment
from study.spec.study import StudySpec
from study.spec.yaml_file import SPEC
from study.tracking.ledger import Ledger, UnfinishedCells, study_rows
from trainables.storage.scratch import NO_LOCKS
from trainables.storage.storage import Folder, joined, open_storage, path_or_uri

#: The file in a study's folder that names its storage, if that is not the results folder.
STORAGE = "storage"
#: Seconds within which two processes of one id started if they are the same.
SAME_START_SECONDS = 10.0


@dataclass(frozen=True)
class StudyPaths:
    """Every path a study writes to, under one results folder."""

    results: Path
    name: str
    storage: str = "auto"
    """`resources.storage` of the spec."""
    experiment: str = ""
    """`tracking.experiment` of the spec; by default the name."""

    @property
    def folder(self) -> Path:
        """The study's own folder."""
        return self.results / self.name

    @property
    def shared(self) -> str | Path:
        """The root of what all machines share: folder or URI."""
        named: str | None = self.storage
        if named == "auto":
            named = from_environment("INTERPLAY_STORAGE", ResourcesSection, "storage")
        if named in (None, "auto"):
            return self.results
        place = path_or_uri(named)
        return place.resolve() if isinstance(place, Path) else place

    @property
    def is_shared(self) -> bool:
        """Whether the shared root is another place than the results folder."""
        return self.shared != self.results

    def write_storage(self) -> None:
        """Record the storage in the study's folder, because it may come from the environment of this machine."""
        if self.is_shared:
            (self.folder / STORAGE).write_text(str(self.shared))
        else:
            (self.folder / STORAGE).unlink(missing_ok=True)

    @property
    def data(self) -> str | Path:
        """Packed token stores of all studies."""
        return joined(self.shared, "data")

    @property
    def checkpoints(self) -> str | Path:
        """Checkpoints of running cells, by key."""
        return joined(joined(self.shared, self.name), "checkpoints")

    @property
    def models(self) -> str | Path:
        """Final weights of finished cells, by key."""
        return joined(joined(self.shared, self.name), "models")

    @property
    def compiled(self) -> Path:
        """Compiled layers, for the processes of this machine: a restarted one need not compile them again."""
        return self.folder / "compiled"

    @property
    def shared_results(self) -> str | Path:
        """A copy of the table, the fit and the report, for when the driver's disk goes with its machine."""
        return joined(joined(self.shared, self.name), "results")

    @property
    def ledger(self) -> Ledger:
        """Rows of finished cells. Studies of one experiment share them."""
        experiment = self.experiment or self.name
        plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", experiment)
        folder = experiment if plain else "experiment-" + quote(experiment, safe="")
        return Ledger(joined(joined(self.shared, folder), "rows"))

    @property
    def lease(self) -> Folder:
        """Where the driver's lease lies, of a study that several machines or clusters could run."""
        return open_storage(joined(self.shared, self.name))

    @property
    def unfinished(self) -> UnfinishedCells:
        """Cells that have started and have no row."""
        return UnfinishedCells(self.folder / "unfinished.json")

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.folder / "runs.csv"

    @property
    def costs(self) -> Path:
        """The costs of the shapes that were measured alone."""
        return self.folder / COSTS

    @property
    def fit(self) -> NamedFit | None:
        """The fit of the last run that finished; None without it, or if another version has written it."""
        file = self.folder / "fit.json"
        try:
            return read_fit(file) if file.is_file() else None
        except InputError:
            return None

    @property
    def outputs(self) -> list[Path]:
        """The files and folders that a finished study has written for its user."""
        names = (SPEC, "runs.csv", COSTS, "fit.json", "report.html", "figures")
        return [self.folder / name for name in names]

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the study, or raise a SpecError: two drivers would train the same cells twice.

        Yields whether it is held: a file system without `flock` (Lustre mounted without `-o flock`) locks nothing.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        owner, mine = self.folder / "run.pid", f"{os.getpid()} {psutil.Process().create_time()}"
        # A file whose existence is the lock, which the library would use instead, stays when a machine is lost.
        lock = FileLock(self.folder / "run.lock", timeout=0, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise SpecError(
                f"the study {self.name!r} in {self.results} is being run by process {self.driver() or '?'}; "
                f"wait for it, stop it with Ctrl-C (nothing is lost), or use another {option('results')} folder."
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        try:
            if lock.is_locked or not self.driver():
                owner.write_text(mine)
            yield lock.is_locked
        finally:
            with suppress(FileNotFoundError):
                if owner.read_text() == mine:
                    owner.unlink()
            lock.release()

    def driver(self) -> int | None:
        """The id of the process of this machine that runs the study now, None if there is none. Takes no lock."""
        try:
            pid, began = (self.folder / "run.pid").read_text().split()
            return int(pid) if runs(int(pid), float(began)) else None
        except (FileNotFoundError, ValueError):
            return None


def runs(pid: int, began: float) -> bool:
    """Whether a process of this machine runs that started at a time, in Unix seconds."""
    try:
        # The id may be another process's by now. psutil's time moves with the clock of the machine.
        return abs(psutil.Process(pid).create_time() - began) < SAME_START_SECONDS
    except psutil.NoSuchProcess:
        return False


def study_paths(spec: StudySpec, results: Path) -> StudyPaths:
    """Return the paths of a study."""
    return StudyPaths(results, spec.name, spec.resources.storage, spec.experiment)


def study_paths_of(folder: Path) -> StudyPaths:
    """Return the paths of a study by its own folder, with the storage of its last run."""
    mark = folder / STORAGE
    return StudyPaths(folder.parent, folder.name, mark.read_text() if mark.is_file() else str(folder.parent))


class OtherStudyError(SpecError):
    """The folder belongs to another study of the same name; `shares` if both have cells in common."""

    def __init__(self, message: str, *, shares: bool = False) -> None:
        """Begin with what is in the folder; the command adds how the study can be run."""
        super().__init__(message)
        self.shares = shares


def check_owner(plan: Plan, paths: StudyPaths, rows: Mapping[str, Row]) -> None:
    """Raise an `OtherStudyError` if the folder has results that the report of this study would leave out.

    These are the cells with a loss in the folder's run table, and those in `rows`, all rows of the ledger, that were
    trained under the name of the study. A study may therefore grow by depths, sizes, seeds and rates, and a spec whose
    cells all diverged or failed may be corrected, but neither a part of a study nor one with other data or another
    recipe replaces it.
    """
    ours = study_rows(plan, rows)
    held = _in_run_table(paths.runs)
    held |= {key: row.name for key, row in rows.items() if row.study == paths.name and row.loss is not None}
    others = sorted(name for key, name in held.items() if key not in ours and plan.by_key(key) is None)
    if others:
        few = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        raise OtherStudyError(
            f"{len(others)} of the {len(held)} cells with results in {paths.folder} ({few}) are not part of this study "
            f"of the same name, which has other depths, sizes, seeds, data or training; {paths.folder / SPEC} is the "
            "spec of that folder. Its report, fit and run table would be replaced.",
            shares=len(others) < len(held),
        )


def refuse_results(folder: Path, name: str) -> None:
    """Raise a SpecError if an option is the folder of a study, which `interplay run` alone writes."""
    if (folder / SPEC).is_file():
        raise SpecError(
            f"{option(name, folder)} is the folder of a study, whose report would be replaced; name another one."
        )


def _in_run_table(path: Path) -> dict[str, str]:
    """Return the names of the cells with a loss in a run table, by key; nothing without the file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {
            line["cell"]: "L{depth}-d{width}-s{seed}".format(**line)
            for line in csv.DictReader(file)
            if line.get("cell") and line.get("loss")
        }
