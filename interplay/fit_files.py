"""The argument `--fit`: a fit file, the folder that has it, or the name of a study; and the run table beside it."""

from pathlib import Path
from typing import TYPE_CHECKING

from core.command_line import call, option
from study.errors import SpecError
from study.spec.recorded import recorded_file, recorded_source

if TYPE_CHECKING:
    # They load pandas, which a published law does not need.
    from analysis.fit.document import Fit
    from analysis.runs.table import RunTable

#: The file of numbers in the folder of a report, and in that of a comparison; the run table beside a fit.
FIT, COMPARISON = "fit.json", "comparison.json"
RUNS = "runs.csv"


def fit_file(given: Path, results: Path) -> Path:
    """Return the fit file that `--fit` names, whether it exists or not.

    Raises:
        SpecError: a run table, a folder without a fit, or a study that has none yet.
    """
    from analysis.runs.files import is_table  # loads pandas, which a published law does not need

    if given.is_dir() and (given / FIT).is_file():
        return given / FIT
    # The name of a study, or its folder, which no other fit may be written into.
    folder = given.resolve()
    recorded = recorded_file(folder.name, folder.parent)
    if recorded is not None:
        results = folder.parent
    elif given.name == str(given) and not given.is_file():
        recorded = recorded_file(given.name, results)
    if recorded is not None:
        if (file := recorded.parent / FIT).is_file():
            return file
        study = recorded_source(recorded, results)
        run, report = (call(verb, study, results=results) for verb in ("run", "report"))
        raise SpecError(
            f"The study {recorded.parent.name} in {results} has no fit yet; finish it with `{run}`, or fit its rows so "
            f"far with `{report}`."
        )
    # A fit is a .json file, as some run tables are.
    if is_table(str(given)) and given.suffix != ".json":
        fit = call("fit", given, out=FIT)
        raise SpecError(
            f"{option('fit', given)} is a run table and no fit; fit it with `{fit}`, then give {option('fit', FIT)}."
        )
    if given.is_dir():
        fit = call("fit", "RUNS", out=given / FIT)
        raise SpecError(
            f"{option('fit', given)} is a folder without {FIT}; `{fit}` writes one, of a study or a run table."
        )
    return given


def runs_beside(folder: Path, fit: "Fit") -> "RunTable":
    """Return the run table of a folder, in the count of N of the fit that lies beside it.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    from analysis.runs.table import read_runs

    return read_runs(str(folder / RUNS), count="table" if fit.count == "table" else "nonembedding")
