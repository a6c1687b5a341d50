"""The files and folders of a study, and the lock that keeps a second driver out."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
from filelock import FileLock, Timeout

from study.errors import SpecError
from study.spec.resources import ResourcesSection
from study.spec.section import from_environment
from study.spec.study import StudySpec
from study.tracking.ledger import Ledger, UnfinishedCells
from trainables.storage.storage import located, under

if TYPE_CHECKING:
    # Reading a plan loads no numerical library.
    from analysis.fit.document import Fit

#: The file in a study's folder that names its storage, if that is not the results folder.
STORAGE = "storage"
#: The spec of a series in the folder of its page; a study has `spec.yaml`.
SERIES = "series.yaml"
#: Seconds within which two processes of one id started if they are the same.
SAME_START_SECONDS = 10.0
#: The spec of a study in its folder.
SPEC = "spec.yaml"


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
        named = self.storage
        if named == "auto":
            named = from_environment("INTERPLAY_STORAGE", ResourcesSection, "storage") or "auto"
        if named == "auto":
            return self.results
        place = located(named)
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
        return under(self.shared, "data")

    @property
    def checkpoints(self) -> str | Path:
        """Checkpoints of running cells, by key."""
        return under(under(self.shared, self.name), "checkpoints")

    @property
    def models(self) -> str | Path:
        """Final weights of finished cells, by key."""
        return under(under(self.shared, self.name), "models")

    @property
    def shared_results(self) -> str | Path:
        """A copy of the table, the fit and the report, for when the driver's disk goes with its machine."""
        return under(under(self.shared, self.name), "results")

    @property
    def ledger(self) -> Ledger:
        """Rows of finished cells. Studies of one experiment share them."""
        experiment = self.experiment or self.name
        plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", experiment)
        folder = experiment if plain else "experiment-" + quote(experiment, safe="")
        return Ledger(under(under(self.shared, folder), "rows"))

    @property
    def unfinished(self) -> UnfinishedCells:
        """Cells that have started and have no row."""
        return UnfinishedCells(self.folder / "unfinished.json")

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.folder / "runs.csv"

    @property
    def fit(self) -> "Fit | None":
        """The fit of the last run that finished; None without it, or if another version has written it."""
        from analysis.errors import InputError
        from analysis.fit.document import Fit

        try:
            return Fit.from_json(json.loads((self.folder / "fit.json").read_text()))
        except (FileNotFoundError, ValueError, InputError):
            return None

    @property
    def outputs(self) -> list[Path]:
        """The files and folders that a finished study has written for its user."""
        names = (SPEC, "runs.csv", "fit.json", "report.html", "figures")
        return [self.folder / name for name in names]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study, or raise a SpecError: two drivers would train the same cells twice."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "run.lock", timeout=0)
        owner = self.folder / "run.pid"
        try:
            with lock:
                owner.write_text(f"{os.getpid()} {psutil.Process().create_time()}")
                try:
                    yield
                finally:
                    owner.unlink(missing_ok=True)
        except Timeout:
            raise SpecError(
                f"the study {self.name!r} in {self.results} is being run by process {self.driver() or '?'}; "
                "wait for it, stop it with Ctrl-C (nothing is lost), or use another --results folder."
            ) from None

    def driver(self) -> int | None:
        """The id of the process of this machine that runs the study now, None if there is none. Takes no lock."""
        try:
            pid, began = (self.folder / "run.pid").read_text().split()
            process = psutil.Process(int(pid))
            # The id may be another process's by now. psutil's time moves with the clock of the machine.
            return process.pid if abs(process.create_time() - float(began)) < SAME_START_SECONDS else None
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return None


def study_paths(spec: StudySpec, results: Path) -> StudyPaths:
    """Return the paths of a study."""
    return StudyPaths(results, spec.name, spec.resources.storage, spec.experiment)


def study_paths_of(folder: Path) -> StudyPaths:
    """Return the paths of a study by its own folder, with the storage of its last run."""
    mark = folder / STORAGE
    return StudyPaths(folder.parent, folder.name, mark.read_text() if mark.is_file() else str(folder.parent))
