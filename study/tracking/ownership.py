"""The folder of a study belongs to its spec: no other study may replace the report, fit and run table in it."""

import csv
from collections.abc import Mapping
from pathlib import Path

from study.errors import SpecError
from study.plan import Plan
from study.spec.study import StudySpec, load_spec, studies
from study.tracking.ledger import study_rows
from study.tracking.rows import Row
from study.tracking.study_paths import SERIES, SPEC, StudyPaths


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
    if (paths.folder / SERIES).is_file():
        raise OtherStudyError(
            f"{paths.folder} is the folder of a series, whose page the report of the study {paths.name!r} would "
            "replace."
        )
    own = study_rows(plan, rows)
    held = _in_run_table(paths.runs)
    held |= {key: row.name for key, row in rows.items() if row.study == paths.name and row.loss is not None}
    others = sorted(name for key, name in held.items() if key not in own and plan.by_key(key) is None)
    if others:
        few = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        raise OtherStudyError(
            f"{len(others)} of the {len(held)} cells with results in {paths.folder} ({few}) are not part of this study "
            f"of the same name, which has other depths, sizes, seeds, data or training; {paths.folder / SPEC} is the "
            "spec of that folder. Its report, fit and run table would be replaced.",
            shares=len(others) < len(held),
        )


def check_series_owner(spec: StudySpec, folder: Path) -> None:
    """Raise an `OtherStudyError` if the folder is that of a study, or of a series with other members."""
    if (folder / SPEC).is_file():
        raise OtherStudyError(
            f"{folder} is the folder of a study, whose report the page of the series {spec.name!r} would replace."
        )
    page = folder / SERIES
    if not page.is_file():
        return
    before, now = ({one.name for one in studies(series)} for series in (load_spec(str(page)), spec))
    if lost := sorted(before - now):
        raise OtherStudyError(
            f"the page in {folder} compares {len(before)} studies, and {', '.join(lost)} of them are not part of this "
            f"series of the same name; {page} is the spec of that page, which would be replaced.",
            shares=lost != sorted(before),
        )


def refuse_results(folder: Path, option: str) -> None:
    """Raise a SpecError if an option names the folder of a study or series, which `interplay run` alone writes."""
    if any((folder / name).is_file() for name in (SPEC, SERIES)):
        raise SpecError(
            f"{option} {folder} is the folder of a study or series, whose report would be replaced; name another one."
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
