"""Fit the threshold law to the runs of a source."""

from collections.abc import Mapping
from pathlib import Path

from analysis.runs.table import Count
from analysis.units import UnitOption
from core.command_line import option
from core.files import write_json
from interplay.answer import Answer
from interplay.study_fit import answer_of
from interplay.verbs.read import Source, runs_of
from study.errors import SpecError
from study.tracking.study_paths import refuse_results


def fit(
    source: Source,
    *changes: str,
    results: str | Path = "results",
    count: Count = "nonembedding",
    uri: str | None = None,
    level: float = 0.95,
    tokens: float | str | None = None,
    unit: UnitOption = "nats",
    where: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Answer:
    """Find the crossings of a source and fit the threshold law; the other arguments are those of `read`.

        answer = interplay.fit(frame, columns={"depth": "n_layer", "width": "d_model", "loss": "val_loss"})
        answer.recommend(1e9)

    Args:
        source: see the package.
        *changes: as of `read`.
        results: as of `read`.
        count: as of `read`.
        uri: as of `read`.
        level: that of all intervals, between 0 and 1.
        tokens: training tokens at which shapes are compared, as a number or as text such as "50B"; by default the most
            that all shapes have.
        unit: of the losses in the answer: `nats` per token, or `bpb`, bits per byte of the text; it changes no crossing
            and no shape.
        where: as of `read`.
        columns: as of `read`.
        out: a file to which the fit is written as well.

    Raises:
        SpecError: as of `read`; or `out` is a folder, or in that of a study.
        InputError: as of `read`; no row can be used, the level, the tokens or the unit are wrong, or the unit needs
            bytes that are not known.
    """
    if out is not None:
        if Path(out).is_dir():
            file = Path(out) / "fit.json"
            raise SpecError(f"{option('out', out)} is a folder; name the file to write, such as {file}.")
        refuse_results(Path(out).parent, "out")
    runs = runs_of(source, *changes, results=results, count=count, uri=uri, where=where, columns=columns)
    answer = answer_of(runs, level=level, tokens=tokens, unit=unit)
    if out is not None:
        write_json(Path(out), answer.to_json())
    return answer
