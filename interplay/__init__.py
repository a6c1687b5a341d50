"""Interplay in Python: what the command does, on names, paths and DataFrames, with results as objects.

    import interplay
    answer = interplay.fit(frame, depth="n_layer", width="d_model", loss="val_loss")
    answer.recommend(1e9)

Nothing is printed. Wrong input raises `study.errors.SpecError`, `analysis.errors.InputError` or
`trainables.errors.InputError`, with one paragraph on what is wrong and the fix. A source of runs is the name of a
preset, the path of a YAML file or a spec, for the rows of a study in `results`; the path of a run table; the name
`mlflow:EXPERIMENT`; or a DataFrame with one row per run.
"""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Loaded when a function is called: each takes seconds.
    import pandas as pd

    from analysis.audit.verdict import Audit
    from analysis.law.shape import Shape
    from analysis.runs.table import Count, RunTable
    from interplay.answer import Answer, StudyPlan
    from study.results.sources import Runs
    from study.spec.study import StudySpec

__all__ = ["audit", "fit", "load_spec", "plan", "read", "recommend", "report", "run"]
__version__ = version("interplay")

#: Depths that lose at most this many nats per token are near-optimal, as for the command.
WITHIN = 0.005


def load_spec(spec: "str | Path | StudySpec", *changes: str) -> "StudySpec":
    """Read a preset or YAML file, with changes such as "training.seeds=5"; of a spec, only changes are applied."""
    from study.spec.study import StudySpec, parse_spec
    from study.spec.study import load_spec as loaded
    from study.spec.yaml_file import override

    if isinstance(spec, StudySpec):
        raw = spec.model_dump(mode="json", exclude_unset=True)
        return parse_spec(override(raw, changes), spec.name) if changes else spec
    return loaded(str(spec), changes)


def plan(spec: "str | Path | StudySpec", *changes: str) -> "StudyPlan":
    """Plan a study: every cell with its parameters, tokens, FLOPs, memory and time. Nothing is trained."""
    from interplay.answer import StudyPlan
    from study.plan.plan import make_plan

    return StudyPlan(make_plan(_one_study(spec, changes, "plan")))


def run(spec: "str | Path | StudySpec", *changes: str, results: str | Path = "results") -> "Answer":
    """Train the missing cells of a study, write its report, and return the answer.

    Raises:
        KeyboardInterrupt: the study was stopped by Ctrl-C or a signal; its finished cells are kept.
        SpecError: no cell has a usable loss; it names the cells that failed.
    """
    from study.errors import SpecError
    from study.run.runner import run_study

    study = _one_study(spec, changes, "run")
    summary = run_study(study, Path(results))
    if not summary.finished:
        raise KeyboardInterrupt
    if summary.fit is None:
        failed = "; ".join(f"{cell}: {reason}" for cell, reason in summary.failed.items())
        raise SpecError(f"no cell of the study {study.name!r} has a usable loss. {failed}")
    return fit(study, results=results)


def read(
    source: "str | Path | StudySpec | pd.DataFrame",
    *changes: str,
    results: str | Path = "results",
    count: "Count" = "nonembedding",
    uri: str | None = None,
    **columns: str,
) -> "RunTable":
    """Read the run table of a source.

    Args:
        source: see the module.
        changes: of a spec, such as "training.seeds=5".
        results: root of the results of a study or an experiment.
        count: `nonembedding` counts N as 12·L·d²; `table` takes the column `params`.
        uri: of the MLflow store of an experiment.
        columns: a column of the run table and its name in the source, such as loss="val_loss".
    """
    return _runs(source, changes, results, count, uri, columns).table


def fit(
    source: "str | Path | StudySpec | pd.DataFrame",
    *changes: str,
    results: str | Path = "results",
    count: "Count" = "nonembedding",
    uri: str | None = None,
    level: float = 0.95,
    tokens: float | None = None,
    **columns: str,
) -> "Answer":
    """Find the crossings of a source and fit the threshold law; the arguments are those of `read`.

    `level` is that of all intervals. `tokens` are the training tokens at which shapes are compared, by default the most
    that all shapes have.
    """
    import pandas as pd

    from interplay.answer import Answer
    from study.commands.fit import fit_source

    runs = _runs(source, changes, results, count, uri, columns)
    title = "a table" if isinstance(source, pd.DataFrame) else str(getattr(source, "name", source))
    return Answer(title, runs.table, fit_source(runs, level=level, tokens=tokens), runs.known)


def recommend(
    params: float, *, law: str | None = None, fit: "Answer | str | Path | None" = None, within: float = WITHIN
) -> "Shape":
    """Return the best shape of N non-embedding parameters, by a published law or a fit (an answer or its fit.json)."""
    from interplay.answer import Answer
    from study.results.recommend import recommend as recommended

    if isinstance(fit, Answer) and law is None:
        return fit.recommend(params, within)
    file = None if fit is None or isinstance(fit, Answer) else Path(fit)
    _, (shape,) = recommended(file, law, [params], within)
    return shape


def report(source: "str | Path | StudySpec | pd.DataFrame", out: str | Path, **options: object) -> Path:
    """Write the report of a source into a folder and return its page; the options are those of `fit`."""
    return fit(source, **options).report(out)  # type: ignore[arg-type]


def audit(
    config: str | Path | None = None,
    *,
    depth: int | None = None,
    width: int | None = None,
    vocabulary: int | None = None,
    law: str | None = None,
    fit: str | Path | None = None,
    within: float = WITHIN,
) -> "Audit":
    """Compare a model, by its HuggingFace config or its shape, with a published law or the fit.json of a study."""
    from study.commands.audit import audit_models

    configs = [] if config is None else [Path(config)]
    (found,) = audit_models(
        configs, (depth, width, vocabulary), law, None if fit is None else Path(fit), within
    )
    return found


def _one_study(spec: "str | Path | StudySpec", changes: tuple[str, ...], doing: str) -> "StudySpec":
    from study.commands.series import refuse_series

    loaded = load_spec(spec, *changes)
    refuse_series(loaded, doing)
    return loaded


def _runs(
    source: "str | Path | StudySpec | pd.DataFrame",
    changes: tuple[str, ...],
    results: str | Path,
    count: "Count",
    uri: str | None,
    columns: dict[str, str],
) -> "Runs":
    import pandas as pd

    from analysis.runs.table import RunTable
    from study.results.sources import Reading, Runs, study_runs
    from study.spec.study import StudySpec

    if isinstance(source, pd.DataFrame):
        return Runs(RunTable.from_frame(source, columns, count=count), {})
    if isinstance(source, StudySpec):
        return study_runs(_one_study(source, changes, "fit"), Path(results))
    named = [f"{ours}={theirs}" for ours, theirs in columns.items()]
    reading = Reading(str(source), changes, named, count, None, Path(results), uri, 0.95)
    if spec := reading.spec:
        _one_study(spec, (), "fit")
    return reading.source
