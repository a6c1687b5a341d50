"""A tracker shows the rows and the curves of a study: MLflow, or whatever else has a class of this protocol."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from study.spec.study import StudySpec
from study.tracking.mlflow_client import tracking_uri
from study.tracking.rows import CurveUpdate, Row
from study.tracking.study_paths import ARTIFACTS, StudyPaths


class Tracker(Protocol):
    """A place that collects rows, on which no study depends.

    It may be unreachable or slow, so methods may raise any error. `study.tracking.mirror.Mirror` calls it from a single
    thread at a time.
    """

    address: str
    """Its location, for messages; without anything secret."""

    def problem(self) -> str | None:
        """Return within seconds why it cannot be used now, in one sentence; None if it can."""

    def open(self) -> None:
        """Create what the study needs; a SpecError means that retrying does not help."""

    def recorded(self) -> Mapping[str, str] | None:
        """Return the tag `ENDED` of each cell with a complete row; None without the study. Changes nothing."""

    def connect(self) -> Mapping[str, str]:
        """Begin or resume the study; return what `recorded` does. Called again after an error."""

    def log_curve(self, update: CurveUpdate) -> None:
        """Add to the curve of a running cell."""

    def log_row(self, row: Row) -> None:
        """Write a row with the whole curve and end the cell's run. May be called again with the same row."""

    def finish(self, status: str, artifacts: Iterable[Path]) -> None:
        """Attach files to the study and end it as FINISHED, KILLED or FAILED."""


def make_tracker(spec: StudySpec, paths: StudyPaths, tags: Mapping[str, str]) -> Tracker:
    """Return the tracker of a study, whose run has these tags; `tracking.uri` may choose another kind here."""
    from study.tracking.mlflow_tracker import MlflowTracker

    uri = tracking_uri(spec.tracking.uri, paths.results)
    local = spec.tracking.uri == "auto" and uri.startswith("sqlite")
    artifacts = paths.results / ARTIFACTS if local else None
    return MlflowTracker(uri, spec.experiment, spec.name, tags, artifacts)
